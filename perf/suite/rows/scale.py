"""Rows of scale: the same work with many share-partitions, with many members, and with slow work.

Most come in two sizes, and the ratio of the two on one broker matters: cost should grow with the
traffic, not with the number of partitions or members.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

from perf.suite.candidates import SEGMENT
from perf.suite.rows import Dry, Row, RowFunction, Run, disk, recovery
from perf.suite.rows.idle_members import idle_members
from perf.suite.rows.record_limit import take_one_by_one
from perf.suite.topics import Kept
from perf.workloads.fill import fill
from perf.workloads.share import share_consume

CONSUMERS = 8
MEMBERS = 500
THINK_S = 0.005
_RECORD_BYTES = 100


class _Spread(NamedTuple):
    """A topic that each of `groups` groups reads with one consumer: the same number of records in
    one partition or in many."""

    partitions: int
    groups: int = 10
    records: int = 600_000
    batch_records: int = 100

    def topic(self, run: Run) -> str:
        return run.kept_topic(f"spread-{self.partitions}p", self._fill, partitions=self.partitions)

    def _fill(self, bootstrap: str, topic: str) -> None:
        fill(
            bootstrap,
            topic,
            self.records,
            _RECORD_BYTES,
            batch_records=self.batch_records,
            partitions=self.partitions,
        )

    def measured(self, run: Run) -> dict[str, float]:
        topic, groups = self.topic(run), [run.new_group() for _ in range(self.groups)]
        most = self.records * self.groups
        outcome = share_consume(
            run.plan(), run.bootstrap, topic, groups, consumers=self.groups, mode="explicit", most=most
        )
        if outcome.ran_dry:
            raise Dry(f"{topic} was empty before there was a window")
        return run.readings(outcome)

    def prepare(self, run: Run) -> None:
        self.topic(run)


def _members(idle: int) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        topic, group = Kept.TASKS.topic(run), run.new_group()
        with idle_members(run.bootstrap, group, topic, idle) if idle else nullcontext():
            outcome = share_consume(
                run.plan(),
                run.bootstrap,
                topic,
                group,
                consumers=CONSUMERS,
                mode="explicit",
                max_poll_records=1,
                most=Kept.TASKS.records,
            )
        if outcome.ran_dry:
            raise Dry(f"{topic} was empty before there was a window")
        return run.readings(outcome)

    return measured


def _work(run: Run) -> dict[str, float]:
    topic, group = Kept.TASKS.topic(run), run.new_group()
    outcome = share_consume(
        run.plan(),
        run.bootstrap,
        topic,
        group,
        consumers=CONSUMERS,
        mode="explicit",
        max_poll_records=1,
        think_s=THINK_S,
    )
    ideal = CONSUMERS / THINK_S
    return {
        **run.readings(outcome),
        "of_ideal": outcome.records_per_s / ideal,
        "fairness": outcome.details["fairness"],
    }


class _Limited(NamedTuple):
    """A topic for a consumer that takes exactly one record at a time, in batches of
    `batch_records`."""

    batch_records: int
    records: int

    def topic(self, run: Run) -> str:
        return run.kept_topic(f"limit-{self.batch_records}", self._fill)

    def _fill(self, bootstrap: str, topic: str) -> None:
        fill(bootstrap, topic, self.records, _RECORD_BYTES, batch_records=self.batch_records)

    def measured(self, run: Run) -> dict[str, float]:
        taken = take_one_by_one(run.bootstrap, self.topic(run), run.new_group(), run.seconds, run.watch)
        if taken.ran_dry:
            raise Dry(f"the topic of {self.records} records was empty too early")
        cost = run.watch.cost()
        return {
            "rate": taken.records / taken.seconds, "cpu_s": cost.cpu_s,
            "per_cpu_s": taken.records / cost.cpu_s,
            "answer_bytes": taken.answer_bytes, "rss_anon_mb": cost.rss_anon_mb, "rss_mb": cost.rss_mb,
        }  # fmt: skip

    def prepare(self, run: Run) -> None:
        self.topic(run)


_FEW, _MANY = _Spread(1), _Spread(100)
_LARGE, _SINGLES = _Limited(8_000, 80_000), _Limited(1, 40_000)
_SPREAD = (
    "10 share groups with 1 consumer each, explicit, all reading the same topic, in batches of 100 records."
)
_ONE = "max.poll.records=1, explicit; the topic was written in batches of 1 to 3 records."
_LIMIT = (
    "ShareFetch v2 in mode record_limit, max_records 1, by a special client: the acknowledgement "
    "is sent with the next request."
)

ROWS = (
    Row(
        "share-partitions-10", "10 share-partitions", "scale", _FEW.measured,
        f"{_SPREAD} One partition.", candidates=SEGMENT | {"kafka"}, prepare=_FEW.prepare,
    ),
    Row(
        "share-partitions-1000", "1 000 share-partitions", "scale", _MANY.measured,
        f"{_SPREAD} 100 partitions.", candidates=SEGMENT | {"kafka"}, prepare=_MANY.prepare,
    ),
    Row(
        "members-8", "8 members, one record at a time", "scale", _members(0),
        _ONE, candidates=SEGMENT | {"kafka"}, prepare=Kept.TASKS.prepare,
    ),
    Row(
        "members-500", "the same 8 beside 492 idle members", "scale", _members(MEMBERS - CONSUMERS),
        f"{_ONE} The idle ones are members of the same group that only send heartbeats.",
        candidates=SEGMENT | {"kafka"}, takes_s=5, prepare=Kept.TASKS.prepare,
    ),
    Row(
        "one-work-8", "8 consumers, 5 ms of work for each record", "scale", _work,
        f"{_ONE} Ideal would be 1 600 records/s.", candidates=SEGMENT | {"kafka"}, prepare=Kept.TASKS.prepare,
    ),
    Row(
        "one-limit", "exactly one record at a time, from batches of 8 000", "scale", _LARGE.measured,
        _LIMIT, candidates=SEGMENT, quick=True, prepare=_LARGE.prepare,
    ),
    Row(
        "one-limit-singles", "exactly one record at a time, from batches of one", "scale", _SINGLES.measured,
        _LIMIT, candidates=SEGMENT, quick=True, prepare=_SINGLES.prepare,
    ),
    *recovery.ROWS,
    *disk.ROWS,
)  # fmt: skip
