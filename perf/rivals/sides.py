"""Who takes part: kbroker, measured by the suite's own rows, and the rivals, each with a new queue for every window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from kbroker.workloads.fill import fill
from kbroker.workloads.share import share_consume
from kbroker.workloads.window import Plan, measure
from perf.candidates import Candidate
from perf.results import CandidateFacts
from perf.rivals.nats_jetstream import NatsJetStream
from perf.rivals.rabbitmq import ClassicQueue, QuorumQueue
from perf.rivals.redis_streams import RedisStreams, RedisStreamsPipelined
from perf.rivals.rival import RECORD_BYTES, Rival, client_version
from perf.rivals.server_process import TreeWatch
from perf.rows import Dry, Row, Run, readings_of
from perf.rows.share import ROWS

OURS = ("segment-disk", "segment-os")
RIVALS: Sequence[type[Rival]] = (RedisStreams, RedisStreamsPipelined, QuorumQueue, NatsJetStream, ClassicQueue)
CONSUMERS: Mapping[str, int] = {"one-1": 1, "one-8": 8}
"""By the key of the suite's row."""
SINGLE: Mapping[str, str] = {"single-1": "one-1", "single-8": "one-8"}
"""Rows of kbroker alone, with the row of the rivals that they compare with."""
_RECORDS_PER_S = 10_000
"""Records are there for so many; a window in which they nearly run out is closed early."""


class Settings(NamedTuple):
    """`seconds`, `warm_up_s`: of each window."""

    rounds: int
    seconds: float
    warm_up_s: float

    @property
    def records(self) -> int:
        return int(_RECORDS_PER_S * (self.seconds + self.warm_up_s))


def queue_rows(settings: Settings) -> list[Row]:
    """The suite's, and kbroker's own with a topic that was written in batches of one."""
    shared = [row for row in ROWS if row.key in CONSUMERS]
    return shared + [_single(key, CONSUMERS[like], settings.records) for key, like in SINGLE.items()]


def _single(key: str, consumers: int, records: int) -> Row:
    def topic(run: Run) -> str:
        return run.kept_topic("single", lambda bootstrap, name: fill(bootstrap, name, records, RECORD_BYTES, batch_records=1))

    def prepare(run: Run) -> None:
        topic(run)

    def measured(run: Run) -> dict[str, float]:
        group = run.new_group()
        outcome = share_consume(
            run.plan(), run.bootstrap, topic(run), group, consumers=consumers, most=records, mode="explicit", max_poll_records=1
        )
        if outcome.ran_dry:
            raise Dry("the topic was empty before there was a window")
        return run.readings(outcome)

    people = "1 consumer" if consumers == 1 else f"{consumers} consumers"
    note = "The topic was written in batches of 1: kbroker hands out one record at a time, as the other queues do."
    return Row(key, f"{people}, one record at a time, from batches of 1", "queue", measured, note, frozenset(OURS), prepare=prepare)


class Side(Protocol):
    """`prepare` comes before the windows of a row, for all sides, so that none is still storing what it was given; `drop` behind them."""

    facts: CandidateFacts

    def suits(self, row: Row) -> bool: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def is_running(self) -> bool: ...
    def prepare(self, row: Row) -> None: ...
    def measure(self, row: Row, round_number: int) -> Mapping[str, float]: ...
    def drop(self) -> None: ...


@dataclass
class KbrokerSide:
    """One topic for all rows and rounds, as in the suite, each time with a new group."""

    candidate: Candidate
    facts: CandidateFacts
    settings: Settings
    home: Path
    say: Callable[[str], None]

    def suits(self, row: Row) -> bool:
        return row.suits(self.candidate.key)

    def start(self) -> None:
        self.candidate.start()

    def kill(self) -> None:
        self.candidate.kill()

    def is_running(self) -> bool:
        return self.candidate.is_running

    def prepare(self, row: Row) -> None:
        assert row.prepare is not None
        row.prepare(self._run(0))

    def measure(self, row: Row, round_number: int) -> Mapping[str, float]:
        return row.run(self._run(round_number))

    def drop(self) -> None:
        """The topic stays."""

    def _run(self, round_number: int) -> Run:
        return Run(self.candidate, round_number, self.settings.seconds, self.settings.warm_up_s, False, self.home, self.say)


@dataclass
class RivalSide:
    """A queue of its own for every window."""

    rival: Rival
    facts: CandidateFacts
    settings: Settings
    _queue: str = ""
    _numbers: int = 0

    def suits(self, row: Row) -> bool:
        return row.key in CONSUMERS

    def start(self) -> None:
        self.rival.start()
        self.facts.version = f"{self.rival.version}, client {self.rival.client} {client_version(type(self.rival))}"

    def kill(self) -> None:
        self.rival.kill()

    def is_running(self) -> bool:
        return self.rival.is_running()

    def prepare(self, row: Row) -> None:
        self._numbers += 1
        self._queue = f"{row.key}-{self._numbers}"
        self.rival.fill(self._queue, self.settings.records)

    def measure(self, row: Row, round_number: int) -> Mapping[str, float]:
        watch = TreeWatch(self.rival.pid)
        plan = Plan(self.settings.seconds, self.settings.warm_up_s, watch)
        clients = [self.rival.consumer(self._queue)] * CONSUMERS[row.key]
        outcome = measure(plan, clients, most=self.settings.records).outcome()
        if outcome.ran_dry:
            raise Dry(f"{self._queue} was empty before there was a window")
        return readings_of(outcome, watch.cost())

    def drop(self) -> None:
        self.rival.drop(self._queue)
