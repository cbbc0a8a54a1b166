"""The checker of share groups: does a history (tests.judges.history_events) of one group keep
every promise of durability and delivery?

Clients see the broker's actions from outside, and know the time of each only as an interval:

    a delivery  was acquired between `asked_ns` and `at_ns`
    a hold      begins there. It ends, at the earliest, when the client sends its acknowledgement or
                begins to close, or when the lock duration has passed since `asked_ns`, whichever
                comes first; a confirmed renewal restarts the lock
    a response  that never arrived leaves both outcomes possible

A rule reports a violation only if it is certain: if no choice of times within the intervals
satisfies the rule. On the other hand, no visible violation may be missed. The tests have a broken
history for each rule, and random mutations of correct histories.

A history needs

    one share group that reads its topics from the beginning
    topics without retention
    a final read of each log (LogRead, LogReadDone)
    a final consumer that emptied the group (Drained)

Otherwise the checker reports it as "incomplete".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tests.judges import log_rules
from tests.judges.history_events import (
    AckAnswered,
    AckKind,
    AckSent,
    Closing,
    Delivered,
    Disconnected,
    Drained,
    Event,
    LifeBegan,
    LifeEnded,
    Outcome,
    Record,
)
from tests.judges.log_rules import (
    LogIndex,
    Violation,
    contradiction,
    duplicated,
    invented,
    missing,
    reordered,
    unread_logs,
)

FOREVER_NS = 1 << 62
BREAK_SEEN_WITHIN_NS = 5_000_000_000
"""A client notices a broken connection within this time; until then its holds may have been
released without its knowing."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The group's settings during the test: the shortest lock duration and the delivery limit."""

    lock_ms: int
    delivery_limit: int
    lost_deliveries_excused: int = 2
    """How many deliveries after the last visible one may have been lost with their consumers. If
    they would bring the delivery count to `delivery_limit`, an unfinished record may have been
    archived and is no violation. Statistics count such records as `excused`."""
    requests_late_ms: int = 0
    """How long after the end of a consumer or its connection the broker may still carry out a
    request of it, as on a slow network."""


@dataclass(frozen=True, slots=True)
class ShareStatistics:
    """Counts of a history's events. Tests assert on them, since the check of a history in which
    nothing happened proves nothing."""

    lives: int
    confirmed_sends: int
    unconfirmed_sends: int
    records: int
    deliveries: int
    redeliveries: int
    confirmed_acknowledgements: int
    unknown_acknowledgements: int
    excused: int


Report: TypeAlias = log_rules.Report[ShareStatistics]


@dataclass(slots=True)
class Hold:
    """One delivery and its acknowledgement. `life`: the broker life that made the delivery; None if
    that is not certain."""

    delivered: Delivered
    life: int | None
    sent: AckSent | None = None
    answered: AckAnswered | None = None
    renewed_ns: int = 0
    earliest_end_ns: int = 0

    @property
    def locked_since_ns(self) -> int:
        return max(self.delivered.asked_ns, self.renewed_ns)

    @property
    def outcome(self) -> Outcome:
        return self.answered.outcome if self.answered else Outcome.UNKNOWN

    def may_have(self, *kinds: AckKind) -> bool:
        return self.sent is not None and self.sent.kind in kinds and self.outcome is not Outcome.REFUSED

    def has(self, *kinds: AckKind) -> bool:
        return self.may_have(*kinds) and self.outcome is Outcome.CONFIRMED

    def surely_kept_until_answer(self, lock_ns: int) -> bool:
        """The response arrived before the lock can have ended, so no other member held the record
        in between."""
        return self.answered is not None and self.answered.at_ns <= self.locked_since_ns + lock_ns

    def surely_before(self, other: Hold, lock_ns: int) -> bool:
        """For a hold that ended with a confirmed acknowledgement: whether the broker certainly made
        the other delivery after it.

        If the lock may have ended before the answer, another member may have finished the record
        meanwhile: a broker confirms acknowledgements below the start offset without a look."""
        assert self.sent is not None
        assert self.answered is not None
        if other is self or other.delivered.at_ns < self.sent.at_ns:
            return False
        if other.delivered.asked_ns >= self.answered.at_ns:
            return True
        if not self.surely_kept_until_answer(lock_ns):
            return False
        same_life = self.life is not None and self.life == other.life
        return other.delivered.asked_ns >= self.delivered.at_ns or (
            same_life and other.delivered.count > self.delivered.count
        )

    def events(self) -> tuple[Event, ...]:
        return tuple(event for event in (self.delivered, self.sent, self.answered) if event is not None)


class _Loss(NamedTuple):
    """A moment at which one delivery of a record may have been lost, unseen by any client, and the
    earliest time at which it can have been acquired."""

    since_ns: int
    at_ns: int


@dataclass(slots=True, kw_only=True)
class Index(LogIndex):
    """A history, indexed for the rules."""

    settings: GroupSettings
    holds: dict[Record, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    lives: list[tuple[int, int, int]] = field(default_factory=list)
    losses: list[_Loss] = field(default_factory=list)
    losses_since: list[int] = field(default_factory=list)
    """Of the losses the `since_ns`, in order; after finish()."""
    losses_at: list[int] = field(default_factory=list)
    """Of the losses the `at_ns`, likewise."""
    drained: Drained | None = None
    excused: set[Record] = field(default_factory=set)
    closings: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    breaks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _open: dict[tuple[str, Record], Hold] = field(default_factory=dict)
    _last_seen: dict[str, int] = field(default_factory=dict)

    @property
    def lock_ns(self) -> int:
        return self.settings.lock_ms * 1_000_000

    def add(self, event: Event) -> bool:
        if LogIndex.add(self, event):
            return True
        match event:
            case Delivered():
                self._delivered(event)
            case AckSent() | AckAnswered():
                self._acknowledged(event)
            case Closing() | Disconnected():
                moments = self.closings if isinstance(event, Closing) else self.breaks
                moments[event.consumer].append(event.at_ns)
                late_ns = event.at_ns + self.settings.requests_late_ms * 1_000_000
                self.losses.append(_Loss(self._last_seen.get(event.consumer, 0), late_ns))
                self._last_seen[event.consumer] = event.at_ns
            case Drained():
                self.drained = event
            case LifeBegan():
                self.lives.append((event.life, event.at_ns, FOREVER_NS))
            case LifeEnded():
                life, began_ns, _ = self.lives.pop()
                assert life == event.life, "lives overlap in this history"
                self.lives.append((life, began_ns, event.at_ns))
                self.losses.append(_Loss(event.at_ns, event.at_ns))
        return False

    def _delivered(self, event: Delivered) -> None:
        lives = [
            life
            for life, began_ns, ended_ns in self.lives
            if began_ns <= event.at_ns and event.asked_ns <= ended_ns
        ]
        hold = Hold(event, lives[0] if len(lives) == 1 else None)
        self.holds[event.record].append(hold)
        self._open[event.consumer, event.record] = hold
        # A fetch returns records of several partitions, perhaps by several polls: some may be lost.
        self._last_seen[event.consumer] = event.asked_ns

    def _acknowledged(self, event: AckSent | AckAnswered) -> None:
        hold = self._open.get((event.consumer, event.record))
        assert hold is not None, f"an acknowledgement of a record that was not delivered: {event}"
        if isinstance(event, AckSent):
            hold.sent, hold.answered = event, None
            return
        assert hold.sent is not None, f"a response to an acknowledgement that was not sent: {event}"
        if hold.sent.kind is not AckKind.RENEW:
            hold.answered = event
            return
        # One that is confirmed late proves nothing: see Hold.surely_before.
        in_time = event.at_ns <= hold.locked_since_ns + self.lock_ns
        if event.outcome is Outcome.CONFIRMED and in_time:
            hold.renewed_ns = hold.sent.at_ns
        hold.sent = None

    def finish(self) -> None:
        """Call this after the last add(): it computes values that depend on later events."""
        self.losses_since = sorted(loss.since_ns for loss in self.losses)
        self.losses_at = sorted(loss.at_ns for loss in self.losses)
        for holds in self.holds.values():
            for hold in holds:
                hold.earliest_end_ns = self._earliest_end(hold)

    def _earliest_end(self, hold: Hold) -> int:
        asked_ns, consumer = hold.delivered.asked_ns, hold.delivered.consumer
        end_ns = hold.locked_since_ns + self.lock_ns
        if hold.sent is not None and hold.sent.kind is not AckKind.RENEW:
            end_ns = min(end_ns, hold.sent.at_ns)
        end_ns = min(end_ns, _first_from(self.closings[consumer], asked_ns + 1))
        proven = hold.has(AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT)
        if not proven and _first_from(self.breaks[consumer], asked_ns + 1) <= end_ns + BREAK_SEEN_WITHIN_NS:
            return asked_ns
        return end_ns

    def losses_between(self, since_ns: int, until_ns: int) -> int:
        """Those that may have been acquired in this time, which does not end before it begins."""
        are_before = bisect_left(self.losses_at, since_ns)
        return bisect_right(self.losses_since, until_ns) - are_before


def _first_from(moments: list[int], since_ns: int) -> int:
    place = bisect_left(moments, since_ns)
    return moments[place] if place < len(moments) else FOREVER_NS


def check(events: Iterable[Event], settings: GroupSettings) -> Report:
    """Check a history. `events` must be in the order of `at_ns`; history_events.merge merges those
    of several processes.

    Raises AssertionError if the history contradicts itself: an acknowledgement without a delivery,
    or overlapping lives.
    """
    index = Index(settings=settings)
    for event in events:
        index.add(event)
    index.finish()
    violations = tuple(violation for rule in RULES.values() for violation in rule(index))
    return Report(violations, _statistics(index))


def _statistics(index: Index) -> ShareStatistics:
    holds = [hold for holds in index.holds.values() for hold in holds]
    final = [hold for hold in holds if hold.sent is not None]
    return ShareStatistics(
        lives=len(index.lives),
        confirmed_sends=len(index.confirmed),
        unconfirmed_sends=len(index.sent) - len({event.value for event in index.confirmed}),
        records=len(index.log),
        deliveries=len(holds),
        redeliveries=len(holds) - len(index.holds),
        confirmed_acknowledgements=sum(hold.outcome is Outcome.CONFIRMED for hold in final),
        unknown_acknowledgements=sum(hold.outcome is Outcome.UNKNOWN for hold in final),
        excused=len(index.excused),
    )


def _incomplete(index: Index) -> Iterator[Violation]:
    """Without a final read and a drained group, an absence of violations would prove nothing."""
    if index.drained is None:
        yield Violation("incomplete", "the group was not drained at the end")
    yield from unread_logs(index)


def _undone(index: Index) -> Iterator[Violation]:
    """A record whose accept or reject was confirmed is never delivered again, in this life of the
    broker or a later one."""
    for record, holds in index.holds.items():
        for final in holds:
            if not final.has(AckKind.ACCEPT, AckKind.REJECT):
                continue
            again = [hold for hold in holds if final.surely_before(hold, index.lock_ns)]
            if again:
                assert final.sent is not None
                events = (*final.events(), *(hold.delivered for hold in again))
                yield Violation(
                    "undone",
                    f"the record was redelivered after a confirmed {final.sent.kind}",
                    record,
                    events,
                )


def _two_holders(index: Index) -> Iterator[Violation]:
    """Within one life of the broker, only one member holds a record until its lock ends.

    Two holds certainly overlap if each client received the record before the other's hold can have
    ended.
    """
    for record, holds in index.holds.items():
        for place, one in enumerate(holds):
            for other in holds[place + 1 :]:
                if one.life is None or one.life != other.life:
                    continue
                if (
                    other.delivered.at_ns < one.earliest_end_ns
                    and one.delivered.at_ns < other.earliest_end_ns
                ):
                    yield Violation(
                        "two holders",
                        "delivered again within the lock",
                        record,
                        (*one.events(), *other.events()),
                    )


def _count(index: Index) -> Iterator[Violation]:
    """Delivery counts run from 1 to the limit and rise within a life. They skip no more numbers
    than deliveries may have been lost unseen."""
    for record, holds in index.holds.items():
        for hold in holds:
            yield from _count_of(index, record, hold, holds)


def _count_of(index: Index, record: Record, hold: Hold, holds: list[Hold]) -> Iterator[Violation]:
    delivered, count = hold.delivered, hold.delivered.count
    if not 1 <= count <= index.settings.delivery_limit:
        yield Violation(
            "count", f"delivery {count} with a limit of {index.settings.delivery_limit}", record, (delivered,)
        )
    sent = index.sent.get(delivered.value)
    highest = 1 + index.losses_between(sent.at_ns if sent else 0, delivered.at_ns)
    for other in holds:
        if other is hold:
            continue
        before = other.delivered
        same_life = hold.life is not None and hold.life == other.life
        if same_life and before.count == count and before.at_ns <= delivered.at_ns:
            yield Violation(
                "count", f"count {count} twice in one life of the broker", record, (before, delivered)
            )
        elif same_life and before.at_ns <= delivered.asked_ns and before.count > count:
            yield Violation(
                "count",
                f"count fell from {before.count} to {count} in one life of the broker",
                record,
                (before, delivered),
            )
        if before.asked_ns <= delivered.at_ns:
            highest = max(highest, before.count + 1 + index.losses_between(before.asked_ns, delivered.at_ns))
    if count > highest:
        earlier = tuple(
            other.delivered
            for other in holds
            if other is not hold and other.delivered.asked_ns <= delivered.at_ns
        )
        yield Violation(
            "count",
            f"count {count} where at most {highest} deliveries can have been made",
            record,
            (*earlier, delivered),
        )


def _count_fell(index: Index) -> Iterator[Violation]:
    """A confirmed release with count n survives any number of kills: the next delivery has a count
    of at least n + 1."""
    for record, holds in index.holds.items():
        for released in holds:
            if not released.has(AckKind.RELEASE):
                continue
            for hold in holds:
                if hold.delivered.count <= released.delivered.count and released.surely_before(
                    hold, index.lock_ns
                ):
                    detail = (
                        f"count {hold.delivered.count} after a confirmed release with count "
                        f"{released.delivered.count}"
                    )
                    yield Violation("count fell", detail, record, (*released.events(), hold.delivered))


def _unfinished(index: Index) -> Iterator[Violation]:
    """Every record of the log was delivered until a member finished it, or as often as the limit
    allows."""
    for record, read in index.log.items():
        holds = index.holds.get(record, [])
        if any(hold.may_have(AckKind.ACCEPT, AckKind.REJECT) for hold in holds):
            continue
        last = max(holds, key=lambda hold: hold.delivered.count, default=None)
        if last is not None:
            lost = index.losses_between(last.delivered.asked_ns, FOREVER_NS)
            possible = last.delivered.count + min(lost, index.settings.lost_deliveries_excused)
            if possible >= index.settings.delivery_limit:
                index.excused.add(record)
                continue
        detail = "never delivered" if last is None else "delivered, not finished, and not redelivered"
        yield Violation(
            "unfinished", detail, record, (read, *(event for hold in holds for event in hold.events()))
        )


RULES: dict[str, Callable[[Index], Iterator[Violation]]] = {
    "incomplete": _incomplete,
    "missing": missing,
    "contradiction": contradiction,
    "invented": invented,
    "duplicated": duplicated,
    "reordered": reordered,
    "undone": _undone,
    "two holders": _two_holders,
    "count": _count,
    "count fell": _count_fell,
    "unfinished": _unfinished,
}
