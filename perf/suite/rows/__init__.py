"""What a row of the suite is, and what it is given to run with. The rows themselves are in modules
of this package, joined in `all_rows`.

A row measures one workload against one candidate, once, in about the time of the run's window, and
returns its readings by the names of perf.suite.results.METRICS. It never knows which round it is
in, unless it asks; never compares; and leaves nothing behind that costs the next one anything: what
it has written is deleted, what it has filled is kept for the next rounds on purpose.
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
    from kbroker.workloads.outcome import Outcome
    from kbroker.workloads.window import Plan

Group: TypeAlias = Literal[
    "produce", "fetch", "share", "queue", "latency", "footprint", "scale", "jobs", "waiting"
]
Fill: TypeAlias = Callable[[str, str], None]
"""Of bootstrap and topic: fills the topic."""

_numbers = itertools.count(1)


@dataclass
class Run:
    """One run of one row: against which broker, how long, and what helps to prepare and clean up.

    `seconds` and `warm_up_s`: of the window. `round_number` 0 is the round that warms, whose
    readings are dropped; then from 1. `quick`: a short suite, which takes smaller numbers of
    everything. `home`: an empty directory, removed afterwards.
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
        """For kbroker.workloads: the window (of `seconds`, if the row needs another length), with
        the broker watched in it.

        One plan for one workload: `watch` holds what its last window cost."""
        from kbroker.workloads.window import Plan

        return Plan(
            self.seconds if seconds is None else seconds,
            self.warm_up_s if warm_up_s is None else warm_up_s,
            self.watch,
        )

    def kept_topic(self, name: str, fill: Fill, *, partitions: int = 1) -> str:
        """A topic that is created and filled at its first use on this broker, and stays for all
        rows that name it."""
        if name not in self.candidate.filled:
            self.say(f"{self.candidate.key} fills {name}")
            self.candidate.create_topic(name, partitions=partitions)
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
        """A share group id that nobody has used, reading from the earliest record; `config` adds to
        its group configs."""
        name = f"group-{next(_numbers)}"
        self.candidate.set_group_config(name, {"share.auto.offset.reset": "earliest", **(config or {})})
        return name

    @contextmanager
    def own_broker(self, config: Mapping[str, str] | None = None) -> Iterator[Candidate]:
        """Another broker of the candidate's kind, not started yet, on an empty directory; `config`
        adds to its broker configs.

        Killed, and its directory removed, at the end. While it is up `watch` may be pointed at it:
        `run.watch.pid = broker.pid`."""
        home = self.home / f"broker-{next(_numbers)}"
        broker = self.candidate.another(home, config)
        broker.prepare()
        try:
            yield broker
        finally:
            broker.kill()
            shutil.rmtree(home, ignore_errors=True)

    def readings(self, outcome: Outcome) -> dict[str, float]:
        """Rate, the broker's CPU and memory in the window, and the outcome's percentiles if it has
        any."""
        return readings_of(outcome, self.watch.cost())

    def clean_up(self) -> None:
        """Deletes what `new_topic` made; called by the runner."""
        for name in self._used_up:
            self.candidate.delete_topic(name)


def readings_of(outcome: Outcome, cost: Cost) -> dict[str, float]:
    """By metric; `cost`: of the broker in the same window."""
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
    """A topic was used up before there was a window worth reading: one line. Raised by rows; the
    cell has no reading then."""


RowFunction: TypeAlias = Callable[[Run], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """`run` measures once and returns readings by metric.

    `candidates`: keys of those that it makes sense for, None: all. `quick`: also in the quick
    suite. `rounds`: at most so many (for what takes long), None: all of the suite's. `takes_s`:
    about, where it is not the length of the run's windows; joining is on top of it. `note`: what a
    reader must know of it.
    Before the first round `prepare` fills what the row keeps, and a broker that has to be warmed
    (Kafka) runs the row once, if it `warms`.
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


def all_rows() -> list[Row]:
    """In the order in which they run and are shown; memory comes last, behind all the work."""
    from perf.suite.rows import footprint, latency, produce, scale, share

    return [*produce.ROWS, *share.ROWS, *latency.ROWS, *scale.ROWS, *footprint.ROWS]
