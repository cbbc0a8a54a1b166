"""The queues of a stored directory, and what a broker that opens it must deliver: one description
for writer and test. Each function makes one queue and returns the expectation.

    later            scheduled jobs: done, due in some seconds, due in almost ten years
    delayed          jobs that failed once and twice, and wait for a day
    kept             its log is removed up to the last segment; kept beside it are scheduled jobs, a
                     delayed one, one that a worker holds, and a rejected one
    ordered          a key waits behind its delayed job, another one is free, a third is scheduled
    plain            a share group without settings of queues, with records of every state
    archiving        rejected with a reason and without, and given up; no dead letter is written
    written          the first dead letters are written, their records not yet archived; the others
                     have none
    written-parked   the same with records that were parked
    settled          dead letters written and their records archived; reasons and cursor are left
    expired          past its time to live, in the window and parked; no dead letter is written
    purged           an ended generation, of whose rows a piece is removed; jobs after the purge
    failed           one partition for each write that failed: see fail_each()
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from kbroker.client import admin
from kbroker.formats.compression import Codec
from kbroker.share.dead_letter import MESSAGES
from kbroker.share.effects import DeadLetterCause
from kbroker.share.reasons import Reason
from kbroker.testing.broker import RunningBroker
from tests.formats.queue_member import (
    ACCEPT,
    REJECT,
    RELEASE,
    Job,
    Member,
    Sent,
    create_queue,
    send,
    start_offsets,
    until,
)

DAY_MS = 86_400_000
FAR_MS = 3_640 * DAY_MS
SOON_MS = 5_000
REJECTED_MS = 4_000
"""Long enough to fill the log meanwhile."""
MANY = {"kbroker.queue.prefetch": "100"}
DELAY, LONGEST = "kbroker.queue.redelivery.delay.ms", "kbroker.queue.redelivery.max.ms"
NOT_DELAYED = {DELAY: "0"}
A_DAY = {DELAY: str(DAY_MS), LONGEST: str(DAY_MS)}
JUST_PARKED = {DELAY: "1100", LONGEST: "1100", "kbroker.queue.redelivery.jitter": "0"}
TEN_YEARS = {"kbroker.queue.scheduling.max.delay.ms": str(3_650 * DAY_MS)}
REASON = Reason("ValueError", "no such customer: Zoë", "Traceback\n  line 1")
FAILING_PARTITIONS = 6
REJECTED, EXHAUSTED, EXPIRED = (
    MESSAGES[cause]
    for cause in (DeadLetterCause.REJECTED, DeadLetterCause.EXHAUSTED, DeadLetterCause.EXPIRED)
)
Letter: TypeAlias = tuple[int, str, Sequence[str] | None]


@dataclass
class Expected:
    """- `deliver`: the delivery count of each job at its next delivery
    - `order`: values of which each comes only after the one before it is finished
    - `later`: jobs that stay scheduled
    - `letters`: of each dead letter the delivery count, the cause and the reason
    - `rejected`: jobs that the test is to reject, without a reason
    """

    deliver: dict[str, int]
    order: list[list[str]] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    letters: dict[str, Letter] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def named(jobs: Sequence[Job], *values: str) -> list[Job]:
    found = {job.value: job for job in jobs}
    return [found[value] for value in values]


def leave_when_parked(broker: RunningBroker, member: Member, name: str, end: int) -> None:
    """Accept more jobs until the window has passed offset `end` - 1: the next write saves that."""

    def has_passed() -> bool:
        send(broker, name, [Sent(f"{name}-more")])
        member.do(ACCEPT, *named(member.wait_for(1), f"{name}-more"))
        return (start_offsets(broker, name)[0] or 0) >= end

    until(has_passed, f"{name} does not pass {end}")
    member.leave()


def make_later(broker: RunningBroker) -> Expected:
    create_queue(broker, "later", {**MANY, **TEN_YEARS})
    soon, far = now_ms() + SOON_MS, now_ms() + FAR_MS
    jobs = [Sent("later-now-0"), Sent("later-soon-1", soon + 1), Sent("later-far-1", far + 1)]
    send(broker, "later", [*jobs, Sent("later-soon-0", soon), Sent("later-far-0", far)])
    more = [Sent("later-now-1"), Sent("later-soon-2", delay_ms=SOON_MS), Sent("later-far-2", far + 2)]
    send(broker, "later", more, codec=Codec.LZ4)
    member = Member(broker, "later")
    member.do(ACCEPT, *member.wait_for(2))
    leave_when_parked(broker, member, "later", 8)
    return Expected(
        {f"later-soon-{number}": 1 for number in range(3)},
        later=[f"later-far-{number}" for number in range(3)],
    )


def make_delayed(broker: RunningBroker) -> Expected:
    create_queue(broker, "delayed", {**MANY, **NOT_DELAYED})
    send(broker, "delayed", [Sent(f"delayed-{number}") for number in range(5)])
    member = Member(broker, "delayed")
    once = member.wait_for(5)
    member.do(RELEASE, *once[:2])
    twice = member.wait_for(2)
    assert [job.count for job in twice] == [2, 2]
    broker.set_group_config("delayed", A_DAY)
    member.do(RELEASE, *twice, *once[2:4])
    member.do(ACCEPT, once[4])
    leave_when_parked(broker, member, "delayed", 5)
    return Expected({"delayed-0": 3, "delayed-1": 3, "delayed-2": 2, "delayed-3": 2})


class Kept:
    """`kept` needs both lives of the broker: one job is rejected in the second. The members of the
    first hold jobs until it ends."""

    members: tuple[Member, ...] = ()
    accepted = 0

    def make(self, broker: RunningBroker) -> None:
        segments = {"internal.segment.bytes": "1000"}
        create_queue(broker, "kept", {**MANY, **TEN_YEARS, **A_DAY}, topic=segments)
        now = now_ms()
        scheduled = [Sent("kept-soon", now + SOON_MS), Sent("kept-far", now + FAR_MS)]
        others = [Sent("kept-rejected", now + REJECTED_MS), Sent("kept-delayed"), Sent("kept-held")]
        send(broker, "kept", [*scheduled, *others])
        holder, worker = self.members = Member(broker, "kept"), Member(broker, "kept")
        delayed, _ = holder.wait_for(2)
        holder.do(RELEASE, delayed)
        fillers = 0
        for _ in range(40):
            send(broker, "kept", [Sent(f"kept-filler-{fillers + each}") for each in range(5)])
            fillers += 5
        until(lambda: self._accept(worker) >= fillers, "fillers are missing")

        def is_removed() -> bool:
            send(broker, "kept", [Sent("kept-filler-last")])  # The next write saves the new start offset.
            self._accept(worker)
            return _log_start(broker) > 100

        until(is_removed, "nothing is kept")

    def _accept(self, worker: Member) -> int:
        """Returns how many so far."""
        jobs = worker.fetch(wait_ms=500)
        assert all("filler" in job.value for job in jobs), jobs
        if jobs:
            worker.do(ACCEPT, *jobs)
        self.accepted += len(jobs)
        return self.accepted

    def reject(self, broker: RunningBroker) -> tuple[Expected, Member]:
        """The member still holds what it was given."""
        for each in self.members:
            each.connection.close()
        member, found = Member(broker, "kept"), list[Job]()

        def has_come() -> bool:
            found.extend(member.fetch(wait_ms=500))
            return "kept-rejected" in [job.value for job in found]

        until(has_come, "kept-rejected does not come")
        (rejected,) = named(found, "kept-rejected")
        member.do(REJECT, rejected, reasons={rejected: REASON})
        deliver = {"kept-soon": 1, "kept-delayed": 2, "kept-held": 1}
        return Expected(deliver, later=["kept-far"], letters={"kept-rejected": (1, REJECTED, REASON)}), member


def _log_start(broker: RunningBroker) -> int:
    with broker.connect() as connection:
        return admin.list_offsets(connection, "kept", [0], admin.EARLIEST)[0]


def make_ordered(broker: RunningBroker) -> Expected:
    create_queue(broker, "ordered", {**MANY, **TEN_YEARS, **A_DAY, "kbroker.queue.ordering": "key"})
    for number in range(3):
        keyed = [Sent(f"ordered-{key}{number}", key=key) for key in "ab"]
        send(broker, "ordered", [*keyed, Sent(f"ordered-none{number}")])
    scheduled = Sent("ordered-c0", now_ms() + SOON_MS, key="c")
    send(broker, "ordered", [scheduled, Sent("ordered-c1", key="c")])
    member = Member(broker, "ordered")
    first = member.wait_for(6)  # None of the jobs without a key waits.
    values = ["ordered-a0", "ordered-none0"]
    member.do(RELEASE, *named(first, *values))
    member.do(ACCEPT, *named(first, "ordered-b0", "ordered-none1", "ordered-c1"))
    (free,) = member.wait_for(1)
    assert free.value == "ordered-b1"
    member.leave()
    values += [free.value, "ordered-none2"]  # The member gave them back.
    once = ["ordered-a1", "ordered-a2", "ordered-b2", "ordered-c0"]
    orders = [[f"ordered-{key}{number}" for number in range(3)] for key in "ab"]
    return Expected({**dict.fromkeys(values, 2), **dict.fromkeys(once, 1)}, [orders[0], orders[1][1:]])


def make_plain(broker: RunningBroker) -> tuple[Expected, Member]:
    """The member still holds jobs: the broker is to end before its connection does."""
    broker.create_topic("plain", config={"retention.ms": "-1"})
    broker.set_group_config("plain", {"share.auto.offset.reset": "earliest"})
    member = Member(broker, "plain")
    for codec in (Codec.NONE, Codec.ZSTD):
        send(broker, "plain", [Sent(f"plain-{codec.name}-{number}") for number in range(8)], codec=codec)
    jobs = member.wait_for(16)
    member.do(ACCEPT, *jobs[1:3], jobs[6])
    member.do(REJECT, jobs[5], jobs[9])
    member.do(RELEASE, jobs[3], jobs[4], jobs[7], jobs[8])
    again = member.wait_for(4)
    assert [job.count for job in again] == [2] * 4
    member.do(ACCEPT, again[0])
    member.do(RELEASE, again[2])
    (third,) = member.wait_for(1)
    assert (third.value, third.count) == (jobs[7].value, 3)
    send(broker, "plain", [Sent("plain-new")])
    held = [jobs[0], *jobs[10:]]
    counts = {**{job.value: 1 for job in held}, jobs[4].value: 2, jobs[8].value: 2, jobs[7].value: 3}
    return Expected({**counts, "plain-new": 1}), member
