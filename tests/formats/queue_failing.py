"""The queues of a stored directory whose state only exists between two writes, or after one that
failed; queue_faults.py stops the broker there. queue_filling.py lists all queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kbroker.client.queues.deletion import purge_queue
from kbroker.client.queues.settings import look
from kbroker.testing.broker import RunningBroker
from tests.formats.queue_filling import (
    A_DAY,
    EXHAUSTED,
    EXPIRED,
    FAILING_PARTITIONS,
    FAR_MS,
    JUST_PARKED,
    MANY,
    NOT_DELAYED,
    REASON,
    REJECTED,
    SOON_MS,
    TEN_YEARS,
    Expected,
    Letter,
    leave_when_parked,
    named,
    now_ms,
)
from tests.formats.queue_member import ACCEPT, REJECT, RELEASE, Job, Member, Sent, create_queue, send


class Rejecting:
    """A queue whose jobs are rejected, with a reason and without, or given up at the delivery
    limit: jobs of the window and jobs that were parked."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.letters: dict[str, Letter] = {}
        create_queue(broker, name, {**MANY, **NOT_DELAYED, "share.delivery.count.limit": "2"})
        send(broker, name, [Sent(f"{name}-{number}") for number in range(8)])
        self.member = Member(broker, name)
        self.jobs = self.member.wait_for(8)

    def reject_window(self) -> None:
        with_reason, without, given_up = self.jobs[:3]
        self.broker.set_group_config(self.name, NOT_DELAYED)
        self.member.do(REJECT, with_reason, without, reasons={with_reason: REASON})
        self.member.do(RELEASE, given_up)
        (again,) = self.member.wait_for(1)
        self.member.do(RELEASE, again)
        self._note(1, with_reason, without, given_up)

    def reject_parked(self) -> None:
        self.broker.set_group_config(self.name, JUST_PARKED)
        self.member.do(RELEASE, *self.jobs[3:6])
        with_reason, without, given_up = self.member.wait_for(3)
        self.member.do(REJECT, with_reason, without, reasons={with_reason: REASON})
        self.member.do(RELEASE, given_up)
        self._note(2, with_reason, without, given_up)

    def _note(self, count: int, with_reason: Job, without: Job, given_up: Job) -> None:
        self.letters[with_reason.value] = count, REJECTED, REASON
        self.letters[without.value] = count, REJECTED, None
        self.letters[given_up.value] = 2, EXHAUSTED, None

    def finish(self) -> Expected:
        """Accept one of the other two."""
        self.member.do(ACCEPT, self.jobs[6])
        return Expected({self.jobs[7].value: 1}, letters=self.letters)


def make_expired(broker: RunningBroker, wait: Callable[[str], None]) -> Expected:
    create_queue(broker, "expired", {**MANY, **JUST_PARKED})
    values = [f"expired-{number}" for number in range(4)]
    send(broker, "expired", [Sent(value) for value in values])
    member = Member(broker, "expired")
    jobs = member.wait_for(4)
    member.do(RELEASE, *jobs[:2])
    member.leave()  # The other two are in the window again.
    broker.set_group_config("expired", {"kbroker.queue.ttl.ms": "1"})
    wait("expired")
    return Expected({}, letters=dict.fromkeys(values, (1, EXPIRED, None)))


def make_purged(broker: RunningBroker, wait: Callable[[str], None]) -> tuple[Expected, Member]:
    """The member still holds a job."""
    create_queue(broker, "purged", {**MANY, **TEN_YEARS, **A_DAY})
    old = [Sent(f"purged-far-{number}", now_ms() + FAR_MS) for number in range(30)]
    old += [Sent(f"purged-soon-{number}", now_ms() + SOON_MS) for number in range(5)]
    send(broker, "purged", [*old, *(Sent(f"purged-delayed-{number}") for number in range(5))])
    member = Member(broker, "purged")
    member.do(RELEASE, *member.wait_for(5))
    leave_when_parked(broker, member, "purged", 40)
    with broker.connect() as connection:
        purge_queue(connection, look(connection, "purged"), force=False)
    wait("purged")
    new = [Sent("purged-new-far", now_ms() + FAR_MS), Sent("purged-new-soon", now_ms() + SOON_MS)]
    send(broker, "purged", [*new, Sent("purged-new-0"), Sent("purged-new-1")])
    member = Member(broker, "purged")
    member.do(ACCEPT, *named(member.wait_for(2), "purged-new-0"))
    return Expected({"purged-new-1": 1, "purged-new-soon": 1}, later=["purged-new-far"]), member


def fail_each(broker: RunningBroker, arm: Path, *, is_in_log: bool) -> tuple[Expected, Member]:
    """Acknowledgements whose write is answered with an error. The member still holds other jobs.

    0  a delayed job, the first one of its partition: the write arrives all the same; with
       `control-records` only its first half does
    1  the same, and the write does not arrive
    2  as 0; then the job is accepted, and that write removes all places of the first
    3  a job that was parked, came back, and is parked again; with `control-records` only the
       removal of its old place fails
    4  a job that is rejected with a reason: as 0; with `control-records` only the reason is stored
    5  as 0, not the first one of its partition: with `control-records` it is parked and in the
       window, and its place is in a generation that is in use
    """
    name, partitions = "failed", range(FAILING_PARTITIONS)
    create_queue(broker, name, {**MANY, **JUST_PARKED}, partitions=FAILING_PARTITIONS)
    for each in partitions:
        values = f"failed-{each}", f"failed-{each}-held", *([f"failed-{each}-parked"] if each else [])
        send(broker, name, [Sent(value) for value in values], partition=each)
    member = Member(broker, name, FAILING_PARTITIONS)
    jobs = {job.value: job for job in member.wait_for(3 * FAILING_PARTITIONS - 1)}
    member.do(RELEASE, jobs["failed-3"])
    (jobs["failed-3"],) = member.wait_for(1)
    broker.set_group_config(name, A_DAY)
    member.do(RELEASE, *(jobs[f"failed-{each}-parked"] for each in partitions[1:]))
    half = "refuse-log" if is_in_log else "fail-state"
    faults = dict.fromkeys(partitions, half) | {1: "refuse-state"}
    if is_in_log:
        faults[3] = "refuse-removals"
    for each in (3, 2, 4, 1, 0, 5):
        job, is_rejected = jobs[f"failed-{each}"], each == 4
        arm.write_text(faults[each])
        reasons = {job: REASON} if is_rejected else {}
        codes = member.settle(REJECT if is_rejected else RELEASE, job, reasons=reasons)
        assert all(codes), (each, codes)
        assert not arm.exists(), each
        if each == 2:
            member.do(ACCEPT, job)
    counts = {"failed-0": 1, "failed-1": 1, "failed-3": 3, "failed-4": 1, "failed-5": 1}
    counts |= {f"failed-{each}-held": 1 for each in partitions}
    counts |= {f"failed-{each}-parked": 2 for each in partitions[1:]}
    if is_in_log:
        return Expected(counts, letters={"failed-4": (1, REJECTED, None)}, rejected=["failed-4"]), member
    del counts["failed-4"]
    counts |= {"failed-0": 2, "failed-5": 2}
    return Expected(counts, letters={"failed-4": (1, REJECTED, REASON)}), member
