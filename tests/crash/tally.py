"""Reports of runs with many crashes or power cuts: a line every ten rounds of the long ones, and a
summary at the end.

A test requests the fixture `progress` (made known by the conftest.py of its folder) and passes it
to the code that runs the rounds:

    progress.begin("segment + lmdb", "round", 20)   the row of the summary; the name of a step; how
                                                    many there will be
    progress.step(kills=2)                          one is done
    progress.count(records=4711)                    known only afterwards

Rows with the same name are added up over all tests. The summary is also written to
build/SUITE.json.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import pytest

EVERY = 10

Rows: TypeAlias = dict[str, Counter[str]]

_TALLY = pytest.StashKey[dict[str, Rows]]()


class Progress:
    """Of one test. `say` gets the lines, `rows` the numbers."""

    def __init__(self, say: Callable[[str], None], rows: Rows) -> None:
        self._say, self._rows = say, rows
        self._row, self._unit, self._planned = "", "", 0
        self._done, self._began_s = 0, 0.0

    def begin(self, row: str, unit: str, planned: int) -> None:
        self._row, self._unit, self._planned = row, unit, planned
        self._done, self._began_s = 0, time.monotonic()
        self.count(**{f"{unit}s": 0, "violations": 0})

    def step(self, **counts: int) -> None:
        self._done += 1
        self.count(**{f"{self._unit}s": 1}, **counts)
        if self._done % EVERY == 0 and self._planned >= 2 * EVERY:
            seconds = time.monotonic() - self._began_s
            self._say(f"{self._row}: {self._unit} {self._done} of {self._planned}, {seconds:.0f} s")

    def count(self, **counts: int) -> None:
        row = self._rows.setdefault(self._row, Counter())
        for name, value in counts.items():
            row[name] += value

    def counted(self, name: str) -> int:
        """Counters of this row."""
        return self._rows[self._row][name]


def silent() -> Progress:
    """For runs that are not reported: those of engines that are broken on purpose."""
    return Progress(lambda _: None, {})


@pytest.fixture
def progress(request: pytest.FixtureRequest) -> Progress:
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    rows = request.config.stash.setdefault(_TALLY, {}).setdefault(request.path.parent.name, {})

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)

    return Progress(say, rows)


def summarize(reporter: pytest.TerminalReporter, suite: str) -> None:
    """At the end of a session: a line per row, nothing if there are no rows."""
    rows = reporter.config.stash.get(_TALLY, {}).get(suite, {})
    if not rows:
        return
    reporter.section(f"{suite}: what was done")
    for name, counts in sorted(rows.items()):
        in_order = sorted(counts, key=lambda what: what == "violations")
        reporter.write_line(
            f"{name:32} " + ", ".join(f"{counts[what]} {what.replace('_', ' ')}" for what in in_order)
        )
    path = reporter.config.rootpath / "build" / f"{suite}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=2, sort_keys=True) + "\n")
    reporter.write_line(f"(also in {path.relative_to(reporter.config.rootpath)})")
