"""The sides of the comparison: kbroker, measured by the suite's rows, and the rivals, each with a
new queue for every window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from perf.measuring.processes import BrokerWatch
from perf.queues.jobs import lateness_ms, worker
from perf.queues.own import queue
from perf.rivals.nats_jetstream import NatsJetStream
from perf.rivals.rabbitmq import ClassicQueue, QuorumQueue
from perf.rivals.redis_streams import RedisStreams, RedisStreamsPipelined
from perf.rivals.rival import RECORD_BYTES, Rival, client_version
from perf.rivals.server_process import TreeWatch
from perf.suite.candidates import Candidate
from perf.suite.results import CandidateFacts
from perf.suite.rows import Dry, Row, Run, readings_of
from perf.suite.rows.share import ROWS
from perf.workloads.client_process import SLOT_S
from perf.workloads.fill import fill
from perf.workloads.outcome import Percentiles, WorkloadOutcome
from perf.workloads.share import share_consume
from perf.workloads.window import Client, Plan, measure

OURS = ("segment-disk", "segment-os")
RIVALS: Sequence[type[Rival]] = (
    RedisStreams,
    RedisStreamsPipelined,
    QuorumQueue,
    NatsJetStream,
    ClassicQueue,
)
CONSUMERS: Mapping[str, int] = {"one-1": 1, "one-8": 8}
"""The number of consumers, by the key of the suite's row."""
SINGLE: Mapping[str, str] = {"single-1": "one-1", "single-8": "one-8"}
"""Rows of kbroker alone, and the rows of the rivals with which they are compared."""
DELAYED = "delayed-8"
DELAY_S = 2.0
_DELAYED_CONSUMERS = 8
_DELAYED_PER_S = 1_500
_LONGEST_S = 120.0
_RECORDS_PER_S = 10_000
"""Enough records are stored for this rate. A window in which they nearly run out is closed
early."""


class Settings(NamedTuple):
    """`seconds`, `warm_up_s`: the lengths of each window and of its warm-up."""

    rounds: int
    seconds: float
    warm_up_s: float

    @property
    def records(self) -> int:
        return int(_RECORDS_PER_S * (self.seconds + self.warm_up_s))

    @property
    def delayed_jobs(self) -> int:
        """The number of jobs, each of which is delivered twice."""
        return int(_DELAYED_PER_S * self.seconds)


def queue_rows(settings: Settings) -> list[Row]:
    """The suite's rows, rows of kbroker alone with a topic written in batches of one, and the row
    of jobs that fail once."""
    shared = [row for row in ROWS if row.key in CONSUMERS]
    singles = [_single(key, CONSUMERS[like], settings.records) for key, like in SINGLE.items()]
    return [*shared, *singles, _delayed(settings.delayed_jobs)]


def _single(key: str, consumers: int, records: int) -> Row:
    def topic(run: Run) -> str:
        return run.kept_topic(
            "single", lambda bootstrap, name: fill(bootstrap, name, records, RECORD_BYTES, batch_records=1)
        )

    def prepare(run: Run) -> None:
        topic(run)

    def measured(run: Run) -> dict[str, float]:
        group = run.new_group()
        outcome = share_consume(
            run.plan(),
            run.bootstrap,
            topic(run),
            group,
            consumers=consumers,
            most=records,
            mode="explicit",
            max_poll_records=1,
        )
        if outcome.ran_dry:
            raise Dry("the topic was empty before there was a window")
        return run.readings(outcome)

    people = "1 consumer" if consumers == 1 else f"{consumers} consumers"
    note = (
        "The topic was written in batches of 1, so kbroker delivers one record at a time, like the other "
        "queues."
    )
    return Row(
        key,
        f"{people}, one record at a time, from batches of 1",
        "queue",
        measured,
        note,
        frozenset(OURS),
        prepare=prepare,
    )


def _delayed(jobs: int) -> Row:
    def measured(run: Run) -> dict[str, float]:
        settings = {"delay": str(int(DELAY_S * 1000)), "multiplier": "1.0", "jitter": "0.0"}
        with queue(run.candidate, settings) as name:
            fill(run.bootstrap, name, jobs, RECORD_BYTES, batch_records=1)
            clients = [worker(run.bootstrap, name, waits_for_others=True)] * _DELAYED_CONSUMERS
            return _all_come_back(clients, jobs, run.watch)

    note = (
        f"{jobs} jobs in a full queue: each fails once, is redelivered {DELAY_S:g} s later, and is done. A "
        "rate is all jobs divided by the time "
        "until the last one is done, minus that delay. p50 and p99: how long after its delay a job arrives. "
        "kbroker: a queue as "
        "`kbroker queues create` makes it, with batches of 1."
    )
    return Row(DELAYED, "8 consumers, each job fails once", "waiting", measured, note, frozenset(OURS))


def _all_come_back(clients: Sequence[Client], jobs: int, watch: BrokerWatch) -> dict[str, float]:
    """Measures from the time when each client has failed its first job until the last job is done.
    Raises WorkloadFailed."""
    window = measure(Plan(_LONGEST_S, watch=watch), clients, most=jobs, all_of_it=True)
    cost, seconds = watch.cost(), window.span.seconds
    late = Percentiles.of(lateness_ms(window, DELAY_S))
    found = readings_of(WorkloadOutcome(jobs, 0, max(SLOT_S, seconds - DELAY_S), latencies_ms=late), cost)
    return {**found, "cpu_share": cost.cpu_s / seconds}


class Side(Protocol):
    """One side. `prepare` is called before the windows of a row, for all sides, so that none is
    still storing its records; `drop` after them."""

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
    """kbroker: one topic for all rows and rounds, as in the suite, each time with a new group."""

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
        if row.prepare is not None:
            row.prepare(self._run(0))

    def measure(self, row: Row, round_number: int) -> Mapping[str, float]:
        return row.run(self._run(round_number))

    def drop(self) -> None:
        """Does nothing: the topic is kept."""

    def _run(self, round_number: int) -> Run:
        return Run(
            self.candidate,
            round_number,
            self.settings.seconds,
            self.settings.warm_up_s,
            False,
            self.home,
            self.say,
        )


@dataclass
class RivalSide:
    """A rival: a new queue for every window."""

    rival: Rival
    facts: CandidateFacts
    settings: Settings
    _queue: str = ""
    _numbers: int = 0

    def suits(self, row: Row) -> bool:
        return row.key in CONSUMERS or (row.key == DELAYED and self.rival.delays)

    def start(self) -> None:
        self.rival.start()
        self.facts.version = (
            f"{self.rival.version}, client {self.rival.client} {client_version(type(self.rival))}"
        )

    def kill(self) -> None:
        self.rival.kill()

    def is_running(self) -> bool:
        return self.rival.is_running()

    def prepare(self, row: Row) -> None:
        self._numbers += 1
        self._queue = f"{row.key}-{self._numbers}"
        if row.key == DELAYED:
            self.rival.fill(self._queue, self.settings.delayed_jobs, delay_s=DELAY_S)
        else:
            self.rival.fill(self._queue, self.settings.records)

    def measure(self, row: Row, round_number: int) -> Mapping[str, float]:
        watch = TreeWatch(self.rival.pid)
        if row.key == DELAYED:
            failing = [self.rival.failing_consumer(self._queue, DELAY_S)] * _DELAYED_CONSUMERS
            return _all_come_back(failing, self.settings.delayed_jobs, watch)
        plan = Plan(self.settings.seconds, self.settings.warm_up_s, watch)
        clients = [self.rival.consumer(self._queue)] * CONSUMERS[row.key]
        outcome = measure(plan, clients, most=self.settings.records).outcome()
        if outcome.ran_dry:
            raise Dry(f"{self._queue} was empty before there was a window")
        return readings_of(outcome, watch.cost())

    def drop(self) -> None:
        self.rival.drop(self._queue)
