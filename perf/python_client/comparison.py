"""Runs the rows with each client library in turns, at one broker, and judges the ratios.

Each window has a topic and a share group of its own, so no window drains another one's records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from kbroker.client.broker_process import RunningBroker
from perf.measuring.machine import describe
from perf.measuring.measured_broker import measured_broker
from perf.measuring.processes import BrokerWatch
from perf.python_client.consumers import SIDES, Side, one_at_a_time
from perf.suite.goals import Goal, judge
from perf.suite.results import METRICS, CandidateFacts, Reading, Results, RowResult
from perf.suite.rows import readings_of
from perf.suite.runner import calm_down, in_turn
from perf.workloads.client_process import WorkloadFailed
from perf.workloads.fill import fill
from perf.workloads.window import Plan

ENGINE, DURABILITY = "segment", "os"
RECORD_BYTES = 100
PARTITIONS = 8
AGAINST = "confluent-kafka"
_WARM_UP_S = 0.5
_SHOWN = ("rate", "client_us", "p50_ms", "p99_ms")
_NOTE = (
    "Explicit acknowledgement, sent with the next poll; batches of one record of 100 bytes, a topic with "
    "8 partitions, segment engine with durability `os`."
)


class Kind(NamedTuple):
    """A row. `consumers`: in each process. `most_per_s`: enough records are sent for this rate.
    `at_least`: the least ratio of the rates, if there is a goal."""

    key: str
    title: str
    processes: int
    consumers: int
    most_per_s: int
    at_least: float | None


KINDS = (
    Kind("client-one-1", "1 consumer", 1, 1, 4_000, 0.5),
    Kind("client-one-8", "8 consumers of one process", 1, 8, 12_000, 1.0),
    Kind("client-one-8p", "8 consumers, a process each", 8, 1, 12_000, None),
)


class Comparison:
    """One run. `results` is filled during the run, which may therefore be ended at any time."""

    def __init__(
        self, sides: Iterable[str], rounds: int, seconds: float, home: Path, console: Console
    ) -> None:
        keys = set(sides)
        self._sides = [side for side in SIDES if side.key in keys]
        self._rounds, self._seconds, self._home, self._console = rounds, seconds, home, console
        self.results = Results(describe(home), datetime.now(UTC).isoformat(timespec="seconds"), "client")
        self.results.candidates = [_facts(side) for side in self._sides]
        self.results.rows = [
            RowResult(kind.key, kind.title, "queue", _NOTE, {side.key: [] for side in self._sides})
            for kind in KINDS
        ]

    def run(self) -> None:
        """KeyboardInterrupt ends it with a note. The broker has ended on return."""
        began_s = time.monotonic()
        broker = measured_broker(self._home / "broker", ENGINE, DURABILITY)
        broker.start()
        try:
            for number in range(self._rounds + 1):
                for kind in KINDS:
                    for side in in_turn(self._sides, number):
                        self._cell(broker, side, kind, number)
        except KeyboardInterrupt:
            self.results.notes.append("interrupted: the rest was not measured")
        finally:
            broker.kill()
            self.results.took_s = round(time.monotonic() - began_s, 1)
            self.results.goals = judge(self.results, goals([side.key for side in self._sides]))

    def _cell(self, broker: RunningBroker, side: Side, kind: Kind, number: int) -> None:
        """A failure becomes a note. Round 0 warms up."""
        try:
            reading = self._measure(broker, side, kind, f"{kind.key}-{side.key}-{number}")
        except WorkloadFailed as error:
            self.results.notes.append(f"{kind.key}, {side.key}, round {number}: {error}")
            self._console.print(f"[yellow]{self.results.notes[-1]}[/yellow]", highlight=False)
            return
        shown = "  ".join(f"{reading[name]:,.4g} {METRICS[name].unit}" for name in _SHOWN)
        which = f"{number}/{self._rounds}" if number else "warming"
        self._console.print(f"{which:7} {kind.key:13} {side.key:16} {shown}", highlight=False)
        row = self.results.row(kind.key)
        if number and row is not None:
            row.add(side.key, number, reading)

    def _measure(self, broker: RunningBroker, side: Side, kind: Kind, name: str) -> Reading:
        records = int(kind.most_per_s * (self._seconds + _WARM_UP_S))
        broker.create_topic(name, partitions=PARTITIONS)
        broker.set_group_config(name, {"share.auto.offset.reset": "earliest"})
        fill(broker.bootstrap, name, records, RECORD_BYTES, batch_records=1, partitions=PARTITIONS)
        calm_down()
        watch = BrokerWatch(broker.pid)
        outcome = one_at_a_time(
            Plan(self._seconds, _WARM_UP_S, watch), broker.bootstrap, name, name, side,
            processes=kind.processes, consumers=kind.consumers,
            most=records,
        )  # fmt: skip
        if outcome.ran_dry:
            raise WorkloadFailed(f"{records} records were used up before there was a window")
        return {**readings_of(outcome, watch.cost()), "client_us": outcome.details["client_us"]}


def goals(keys: Sequence[str]) -> list[Goal]:
    """The rate has a limit; processor time and latency are for information."""
    if AGAINST not in keys:
        return []
    return [
        Goal(kind.key, metric, key, AGAINST, kind.at_least if metric == "rate" else None)
        for kind in KINDS
        for key in keys
        if key != AGAINST
        for metric in ("rate", "client_us", "p50_ms", "p99_ms")
    ]


def _facts(side: Side) -> CandidateFacts:
    versions = ", ".join(f"{name} {version(name)}" for name in side.packages)
    return CandidateFacts(side.key, side.title, "client", ENGINE, DURABILITY, versions)
