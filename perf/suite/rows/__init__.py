"""The definition of a row, and of a run of it. The rows themselves are in the modules of this
package; `all_rows` of perf/suite/command.py lists them.

A row measures one workload on one candidate, once, in about the length of the run's window, and
returns its readings by the names in perf.suite.results.METRICS. It compares nothing, and does
not affect the next row: its new topics are deleted, and topics that it has filled are kept for
later rounds on purpose.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from perf.measuring.processes import BrokerWatch, Cost
from perf.suite.candidates import Candidate

if TYPE_CHECKING:
    from perf.workloads.outcome import WorkloadOutcome
    from perf.workloads.window import Plan

Group: TypeAlias = Literal[
    "produce",
    "fetch",
    "share",
    "queue",
    "latency",
    "footprint",
    "scale",
    "jobs",
    "waiting",
    "transactions",
    "compaction",
]
Fill: TypeAlias = Callable[[str, str], None]
"""A function of bootstrap and topic that fills the topic."""

_numbers = itertools.count(1)


@dataclass
class Run:
    """One run of one row: its broker, its length, and helpers to prepare and clean up.

    - `round_number`: 0 for the warm-up round, whose readings are dropped; then from 1.
    - `seconds`, `warm_up_s`: the lengths of the window and its warm-up.
    - `quick`: a short suite, with smaller numbers.
    - `home`: an empty directory, removed afterwards.
    """

    candidate: Candidate
    round_number: int
    seconds: float
    warm_up_s: float
    quick: bool
    home: Path
    say: Callable[[str], None]
    watch: BrokerWatch = field(init=False)
    _used_up: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = BrokerWatch(self.candidate.pid)

    @property
    def bootstrap(self) -> str:
        return self.candidate.bootstrap

    def plan(self, seconds: float | None = None, *, warm_up_s: float | None = None) -> Plan:
        """The window for perf.workloads (of `seconds`, if the row needs another length), during
        which the broker is measured.

        Use one plan for each workload: `watch` holds the cost of the last window."""
        from perf.workloads.window import Plan

        return Plan(
            self.seconds if seconds is None else seconds,
            self.warm_up_s if warm_up_s is None else warm_up_s,
            self.watch,
        )

    def kept_topic(
        self, name: str, fill: Fill, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """A topic that is created and filled at its first use on this broker, and kept for all rows
        that use its name."""
        if name not in self.candidate.filled:
            self.say(f"{self.candidate.key} fills {name}")
            self.candidate.create_topic(name, partitions=partitions, config=config)
            fill(self.bootstrap, name)
            self.candidate.filled.add(name)
        return name

    def new_topic(self, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """An empty topic, deleted at the end of the run."""
        name = f"used-up-{next(_numbers)}"
        self.candidate.create_topic(name, partitions=partitions, config=config)
        self._used_up.append(name)
        return name

    def new_group(self, config: Mapping[str, str] | None = None) -> str:
        """A new share group id, for a group that reads from the earliest record. `config` adds to
        its group configs."""
        name = f"group-{next(_numbers)}"
        self.candidate.set_group_config(name, {"share.auto.offset.reset": "earliest", **(config or {})})
        return name

    @contextmanager
    def own_broker(self, config: Mapping[str, str] | None = None) -> Iterator[Candidate]:
        """Another broker of the candidate's kind, not started yet, on an empty directory; `config`
        adds to its broker configs.

        Killed, and its directory removed, at the end. While it runs, `watch` may measure it:
        `run.watch.pid = broker.pid`."""
        home = self.home / f"broker-{next(_numbers)}"
        broker = self.candidate.another(home, config)
        broker.prepare()
        try:
            yield broker
        finally:
            broker.kill()
            shutil.rmtree(home, ignore_errors=True)

    def readings(self, outcome: WorkloadOutcome) -> dict[str, float]:
        """The rate, the broker's CPU and memory in the window, and the outcome's percentiles, if
        any."""
        return readings_of(outcome, self.watch.cost())

    def clean_up(self) -> None:
        """Deletes the topics made by `new_topic`. Called by the runner."""
        for name in self._used_up:
            self.candidate.delete_topic(name)


def readings_of(outcome: WorkloadOutcome, cost: Cost) -> dict[str, float]:
    """The readings by metric. `cost`: the broker's cost in the same window."""
    found = {
        "rate": outcome.records_per_s,
        "cpu_s": cost.cpu_s,
        "cpu_share": cost.cpu_s / outcome.seconds,
        "rss_anon_mb": cost.rss_anon_mb,
        "rss_mb": cost.rss_mb,
    }
    if outcome.records and cost.cpu_s:
        found["per_cpu_s"] = outcome.records / cost.cpu_s
    if outcome.latencies_ms is not None:
        percentiles = outcome.latencies_ms
        found |= {"p50_ms": percentiles.p50, "p99_ms": percentiles.p99, "p999_ms": percentiles.p999}
    return found


class Dry(Exception):
    """A topic ran out before the window was long enough. Raised by rows, with one line; the cell
    then has no reading."""


RowFunction: TypeAlias = Callable[[Run], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """One workload.

    - `run`: measures once and returns readings by metric.
    - `note`: an explanation for readers of the report.
    - `candidates`: the keys of suitable candidates; None for all.
    - `quick`: the row is also in the quick suite.
    - `rounds`: the most rounds, for slow rows; None for all rounds of the suite.
    - `takes_s`: the approximate duration, without joining, if it differs from that of the windows.
    - `warms`: brokers that need a warm-up (Kafka) run the row once before the first round.
    - `prepare`: fills the kept topics before the first round.
    """

    key: str
    title: str
    group: Group
    run: RowFunction
    note: str = ""
    candidates: frozenset[str] | None = None
    quick: bool = False
    rounds: int | None = None
    takes_s: float | None = None
    warms: bool = True
    prepare: Callable[[Run], None] | None = None

    def suits(self, candidate: str) -> bool:
        return self.candidates is None or candidate in self.candidates
