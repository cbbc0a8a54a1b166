"""Runs the queue rows against kbroker and the rivals in turns (A B C B A C …), and judges the best
rival of each durability.

All servers run all the time, and one of them works. For each row, all sides are filled first; then
come the windows, in the suite's order of turns. A cell that fails becomes a note, and a server that
dies is left out from then on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console

from perf.measuring.machine import describe
from perf.rivals.sides import OURS, RIVALS, SINGLE, KbrokerSide, RivalSide, Settings, Side, queue_rows
from perf.suite import candidates as known
from perf.suite.goals import Goal, judge
from perf.suite.results import METRICS, CandidateFacts, Reading, Results, RowResult
from perf.suite.rows import Row
from perf.suite.runner import WARMING, calm_down, in_turn, one_line

AT_LEAST = {"rate": 1.0, "per_cpu_s": 0.7}
"""The least ratios to the best rival of the same durability, in the row of eight consumers. The
other rows are for information."""
JUDGED_ROW = "one-8"
_SHOWN = ("rate", "per_cpu_s", "cpu_share", "rss_anon_mb")
_SETTLE_S = 1.0


class Comparison:
    """One run. `results` is filled during the run, which may therefore be ended at any time."""

    def __init__(
        self,
        keys: Sequence[str],
        settings: Settings,
        home: Path,
        console: Console,
        patterns: Sequence[str] = ("*",),
    ) -> None:
        """`patterns`: name patterns of rows."""
        self._settings, self._home, self._console = settings, home, console
        self._began = time.monotonic()
        self.results = Results(describe(home), datetime.now(UTC).isoformat(timespec="seconds"), "rivals")
        self._rows = [
            row for row in queue_rows(settings) if any(fnmatch(row.key, pattern) for pattern in patterns)
        ]
        self._sides = self._make_sides(keys)
        self.results.rows = [
            RowResult(
                row.key,
                row.title,
                row.group,
                row.note,
                {side.facts.key: [] for side in self._sides if side.suits(row)},
            )
            for row in self._rows
        ]

    def run(self) -> None:
        """Measures everything. KeyboardInterrupt ends it with a note. The servers have ended on
        return."""
        try:
            with self._running_servers():
                for number in range(WARMING, self._settings.rounds + 1):
                    for row, result in zip(self._rows, self.results.rows, strict=True):
                        self._row(row, result, number)
        except KeyboardInterrupt:
            self._note("interrupted: the rest was not measured")
        finally:
            self.results.took_s = round(time.monotonic() - self._began, 1)
            self.results.goals = judge(self.results, goals(self.results))

    def _make_sides(self, keys: Sequence[str]) -> list[Side]:
        """Adds the facts of all candidates to the results, and returns the installed ones as
        sides."""
        sides: list[Side] = []
        settings, home = self._settings, self._home
        for candidate in known.make_candidates([key for key in OURS if key in keys], home):
            facts = known.facts(candidate.kind, None)
            sides.append(KbrokerSide(candidate, facts, settings, home, self._say))
            self.results.candidates.append(facts)
        for rival in (rival for rival in RIVALS if rival.key in keys):
            facts = CandidateFacts(
                rival.key, rival.title, rival.family, "", rival.durability, "", rival.why_missing()
            )
            self.results.candidates.append(facts)
            if facts.missing is None:
                sides.append(RivalSide(rival(home / rival.key), facts, settings))
            else:
                self._say(f"{rival.title}: {facts.missing}")
        return sides

    @contextmanager
    def _running_servers(self) -> Iterator[None]:
        everybody = list(self._sides)
        try:
            for side in everybody:
                self._say(f"starts {side.facts.title}")
                try:
                    side.start()
                except Exception as error:
                    self._leave_out(side, f"does not start: {one_line(error)}")
            yield
        finally:
            for side in everybody:
                side.kill()

    def _row(self, row: Row, result: RowResult, number: int) -> None:
        prepared = []
        for side in [side for side in self._sides if side.suits(row)]:
            with self._cell(side, row, number):
                side.prepare(row)
                prepared.append(side)
        calm_down(_SETTLE_S)
        for side in in_turn(prepared, number):
            calm_down()
            with self._cell(side, row, number):
                self._measure(side, row, result, number)
        for side in prepared:
            with self._cell(side, row, number):
                side.drop()

    def _measure(self, side: Side, row: Row, result: RowResult, number: int) -> None:
        reading = side.measure(row, number)
        if number != WARMING:
            result.add(side.facts.key, number, reading)
        which = "warming" if number == WARMING else f"{number}/{self._settings.rounds}"
        self._say(f"{which:7} {row.key:6} {side.facts.key:17} {_shown(reading)}")

    @contextmanager
    def _cell(self, side: Side, row: Row, number: int) -> Iterator[None]:
        """Turns a failure into a note, and leaves out a side whose server has died."""
        try:
            yield
        except Exception as error:
            self._note(f"{row.key}, {side.facts.key}, round {number}: {one_line(error)}")
        if side in self._sides and not side.is_running():
            self._leave_out(side, f"died in {row.key}")

    def _leave_out(self, side: Side, why: str) -> None:
        self._sides.remove(side)
        side.facts.missing = why
        self._note(f"{side.facts.key} {why}")

    def _note(self, text: str) -> None:
        self.results.notes.append(text)
        self._console.print(f"[yellow]{text}[/yellow]", highlight=False)

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(f"[dim]{minutes:3}:{seconds:02}[/dim] {text}", highlight=False)


def goals(results: Results) -> list[Goal]:
    """Against the best rival of the same durability, metric by metric: the fastest need not be the
    one that uses the least CPU.

    The judged row also has the other rivals, without a limit."""
    found = []
    ours = [candidate for candidate in results.candidates if candidate.family == "kbroker"]
    for row in results.rows:
        against_row = SINGLE.get(row.key)
        for candidate in ours:
            for metric, at_least in AT_LEAST.items():
                rivals = by_median(results, against_row or row.key, metric, candidate.durability)
                judged = row.key == JUDGED_ROW
                for place, rival in enumerate(rivals if judged else rivals[:1]):
                    limit = at_least if judged and place == 0 else None
                    found.append(Goal(row.key, metric, candidate.key, rival, limit, against_row=against_row))
    return found


def by_median(results: Results, row: str, metric: str, durability: str) -> list[str]:
    """The rivals with readings, best first."""
    medians = {
        candidate.key: median
        for candidate in results.candidates
        if candidate.family != "kbroker" and candidate.durability == durability
        if (median := results.median(row, candidate.key, metric)) is not None
    }
    return sorted(medians, key=medians.__getitem__, reverse=True)


def _shown(reading: Reading) -> str:
    return "  ".join(f"{reading[name]:,.4g} {METRICS[name].unit}" for name in _SHOWN if name in reading)
