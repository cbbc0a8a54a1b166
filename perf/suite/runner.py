"""Runs rows against candidates in turns (A B C A B C …), so that other work on the machine affects
all of them alike.

All brokers run all the time, and one of them works. Before the first round every broker is filled,
and Kafka runs every row once, since a fresh JVM is up to two times slower. Then every round runs
each row, and for each row every candidate. Each round begins with another candidate, and every
second round has the opposite order, so that no candidate always follows the same one. A cell that
fails becomes a note; a broker that dies is left out from then on. Ctrl-C ends the run and keeps the
readings so far.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

from rich.console import Console

from perf.measuring.machine import describe
from perf.measuring.processes import memory
from perf.measuring.warm_memory import warm_memory
from perf.report.data import duration
from perf.suite import candidates as known
from perf.suite.candidates import Candidate
from perf.suite.expectation import PAUSE_S, Lengths, expected_s
from perf.suite.results import METRICS, Results, RowResult
from perf.suite.rows import Row, Run

_T = TypeVar("_T")
_SETTLE_S = 2.0
_ERROR_CHARACTERS = 300
_CELL_LIMIT_S = 240
WARMING = 0


class Settings(NamedTuple):
    """The lengths of a run.

    - `seconds`, `warm_up_s`: of each window and its warm-up.
    - `warming_s`: of the windows of the warm-up round.
    - `budget_s`: no round begins that would end later than this after the start.
    """

    rounds: int
    seconds: float
    warming_s: float
    warm_up_s: float
    quick: bool
    budget_s: float


class Runner:
    """One run of the suite. `results` is filled during the run, which may therefore be ended at any
    time."""

    def __init__(
        self,
        keys: Sequence[str],
        rows: Sequence[Row],
        settings: Settings,
        home: Path,
        console: Console,
        *,
        with_tls: bool = False,
    ) -> None:
        """`with_tls`: each broker has a second listener with TLS."""
        self._keys, self._rows, self._settings, self._home = keys, rows, settings, home
        self._console, self._with_tls = console, with_tls
        self._began = time.monotonic()
        self._candidates: list[Candidate] = []
        mode = "quick" if settings.quick else "full"
        self.results = Results(describe(home), datetime.now(UTC).isoformat(timespec="seconds"), mode)
        self.results.rows = [
            RowResult(row.key, row.title, row.group, row.note, {key: [] for key in keys if row.suits(key)})
            for row in rows
        ]

    def run(self) -> None:
        """Measures everything. KeyboardInterrupt ends it with a note. The brokers have ended on
        return."""
        try:
            with self._running_brokers():
                self._announce()
                self._round(WARMING)
                self._rounds()
        except KeyboardInterrupt:
            self._note("interrupted: the rest was not measured")
        finally:
            self.results.took_s = round(time.monotonic() - self._began, 1)

    def _announce(self) -> None:
        keys, settings = [candidate.key for candidate in self._candidates], self._settings
        took = duration(
            expected_s(
                self._rows,
                keys,
                settings.rounds,
                Lengths(settings.seconds, settings.warming_s, settings.warm_up_s),
            )
        )
        self._say(
            f"{len(self._rows)} rows, {len(keys)} candidates, rounds: {settings.rounds}; about {took} on "
            "an idle machine"
        )

    def _rounds(self) -> None:
        longest_s = 0.0
        for number in range(1, self._settings.rounds + 1):
            began = time.monotonic()
            if began - self._began + longest_s > self._settings.budget_s:
                self._note(
                    f"{number - 1} rounds instead of {self._settings.rounds}: another one would take too long"
                )
                return
            self._round(number)
            longest_s = max(longest_s, time.monotonic() - began)

    @contextmanager
    def _running_brokers(self) -> Iterator[None]:
        for key in self._keys:
            kind = known.KINDS[key]
            self.results.candidates.append(known.facts(kind, known.why_missing(kind)))
        self._candidates = known.make_candidates(self._keys, self._home, with_tls=self._with_tls)
        try:
            for candidate in list(self._candidates):
                self._start(candidate)
            if self._candidates:
                time.sleep(_SETTLE_S)
            for candidate in self._candidates:
                candidate.idle_mb = memory(candidate.pid).anonymous_mb
            yield
        finally:
            for candidate in self._candidates:
                candidate.kill()

    def _start(self, candidate: Candidate) -> None:
        self._say(f"starts {candidate.title}")
        try:
            candidate.start()
        except Exception as error:
            self._leave_out(candidate, f"does not start: {one_line(error)}")

    def _leave_out(self, candidate: Candidate, why: str) -> None:
        self._candidates.remove(candidate)
        self._note(f"{candidate.key} {why}")
        for facts in self.results.candidates:
            if facts.key == candidate.key:
                facts.missing = why

    def _round(self, number: int) -> None:
        of = f"round {number} of {self._settings.rounds}" if number != WARMING else "warming"
        for place, (row, result) in enumerate(zip(self._rows, self.results.rows, strict=True), start=1):
            if row.rounds is not None and number > row.rounds:
                continue
            self._say(f"{of}, row {place} of {len(self._rows)}: {row.key}")
            for candidate in in_turn([each for each in self._candidates if row.suits(each.key)], number):
                reading = self._cell(row, candidate, number)
                if reading is not None and number != WARMING:
                    result.add(candidate.key, number, reading)
                if not candidate.is_running:
                    self._leave_out(candidate, f"died while running {row.key}")

    def _cell(self, row: Row, candidate: Candidate, number: int) -> Mapping[str, float] | None:
        """Runs one row on one candidate, once. Returns None if it failed or only prepared."""
        if row.group == "produce":
            warm_memory()
        calm_down(0.0 if number == WARMING else PAUSE_S)
        home = self._home / "run"
        home.mkdir()
        began = time.monotonic()
        settings = self._settings
        seconds = settings.seconds if number != WARMING else settings.warming_s
        run = Run(candidate, number, seconds, settings.warm_up_s, settings.quick, home, self._say)
        try:
            with _time_limit(_CELL_LIMIT_S):
                reading = _done(row, run)
        except Exception as error:
            self._note(f"{row.key}, {candidate.key}, round {number}: {one_line(error)}")
            reading = None
        try:
            run.clean_up()
        except Exception as error:
            self._note(f"{row.key}, {candidate.key}, round {number}, cleaning up: {one_line(error)}")
        shutil.rmtree(home)
        if reading is not None:
            self._say(
                f"{number}/{settings.rounds} {row.key:26} {candidate.key:13} {_shown(reading)}  "
                f"({time.monotonic() - began:.1f} s)"
            )
        return reading

    def _note(self, text: str) -> None:
        self.results.notes.append(text)
        self._console.print(f"[yellow]{text}[/yellow]", highlight=False)

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(f"[dim]{minutes:3}:{seconds:02}[/dim] {text}", highlight=False)


def in_turn(candidates: Sequence[_T], round_number: int) -> list[_T]:
    """The order of a round. Each round begins with another candidate, and every second round has
    the opposite order, so that the neighbours change."""
    step = 1 if round_number % 2 else -1
    return [candidates[(round_number + step * place) % len(candidates)] for place in range(len(candidates))]


def calm_down(pause_s: float = PAUSE_S) -> None:
    """Called before a window, so that no dirty pages of others are written during it, and none of
    their clients and connections are cleaned up then."""
    os.sync()
    time.sleep(pause_s)


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError inside the block, so that a hang costs one cell, not the run. Main thread
    only."""

    def ring(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _done(row: Row, run: Run) -> Mapping[str, float] | None:
    if run.round_number != WARMING:
        return row.run(run)
    if row.prepare is not None:
        row.prepare(run)
    return row.run(run) if row.warms and run.candidate.family == "kafka" else None


def _shown(reading: Mapping[str, float]) -> str:
    return "  ".join(
        f"{value:,.4g} {METRICS[name].unit} ({name})"
        for name, value in reading.items()
        if not name.startswith("rss")
    )


def one_line(error: Exception) -> str:
    """For a note."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_ERROR_CHARACTERS]}"
