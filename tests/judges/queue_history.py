"""The checker of work queues: does a history of a share group that delays, schedules and archives
records keep every promise?

The rules of history.py, and:

    early          a scheduled record is not delivered before its due time, by the wall clock. After
                   a confirmed release a record is not redelivered before
                   delay x multiplier^(count - 1) has passed since the release was sent, over any
                   number of restarts: the due time is stored with the release
    passed over    a record that an operator removed, or moved the group's start past, is not
                   delivered
    unfinished     every other record of the log may have been accepted, or has a dead letter. If
                   the topic removes finished records (`cuts`), this holds for every record that the
                   log ever had
    altered        a record is delivered with the key, value, headers and timestamp with which it
                   was sent, from the log or from a kept copy; its dead letter has the same
    dead letters   a record has at most one, and none if it was certainly accepted; cause, count and
                   value are right
    key order, two of a key   if the group is `ordered`: see key_order_rules.py
    left           at the end the lag is 0, and nothing is parked, counted or kept

The rules report only certain violations. The end of a lock or a session gives no certain bound for
a delay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.judges import history, key_order_rules, log_rules
from tests.judges.history import GroupSettings
from tests.judges.history_events import (
    AckKind,
    DeadLetterRead,
    Event,
    LeftBehind,
    LogCut,
    PassedOver,
    Record,
)
from tests.judges.log_rules import Violation, contradiction, duplicated, invented, reordered

CLOCKS_DIFFER_NS = 20_000_000
"""Tolerance for due times: they are rounded to milliseconds, and each broker life reads the wall
clock and the monotonic clock once, a moment apart."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of the group and its topic during the test.

    - `delay_ms`, `multiplier`, `max_ms`: the group's redelivery settings, without jitter.
    - `ordered`: the group has kbroker.queue.ordering=key.
    - `cuts`: the topic has kbroker.queue.retention.
    """

    group: GroupSettings
    delay_ms: int
    multiplier: float
    max_ms: int
    ordered: bool = False
    cuts: bool = False

    def wait_ns(self, count: int) -> int:
        """How long a record waits after the release of its delivery number `count`."""
        return int(min(self.delay_ms * self.multiplier ** (count - 1), self.max_ms) * 1_000_000)


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts of a history's events. Tests assert on them, since the check of a history in which
    nothing happened proves nothing.

    `delays` and `schedules`: deliveries whose earliest due time was certain."""

    lives: int
    confirmed_sends: int
    deliveries: int
    confirmed_acknowledgements: int
    delays: int
    schedules: int
    rejected: int
    exhausted: int
    passed_over: int
    keyed: int = 0
    """Deliveries of records with an older record of the same key, if the group is ordered."""
    cut: int = 0
    """Records that the log no longer has."""
    kept: int = 0
    """Deliveries that were certainly made from kept copies."""


Report: TypeAlias = log_rules.Report[QueueStatistics]


@dataclass(slots=True, kw_only=True)
class QueueIndex(history.Index):
    queue: QueueSettings
    passes: dict[tuple[str, int], list[PassedOver]] = field(default_factory=lambda: defaultdict(list))
    letters: dict[Record, list[DeadLetterRead]] = field(default_factory=lambda: defaultdict(list))
    left: list[LeftBehind] = field(default_factory=list)
    cuts: dict[tuple[str, int], list[LogCut]] = field(default_factory=lambda: defaultdict(list))
    values: dict[Record, str] = field(default_factory=dict)
    """Values of records as their producers and consumers saw them."""
    delays: int = 0
    schedules: int = 0

    def add(self, event: Event) -> bool:
        match event:
            case PassedOver():
                self.passes[event.topic, event.partition].append(event)
            case DeadLetterRead():
                self.letters[event.record].append(event)
            case LogCut():
                self.cuts[event.topic, event.partition].append(event)
            case LeftBehind():
                self.left.append(event)
            case _:
                return history.Index.add(self, event)
        return False

    def finish(self) -> None:
        history.Index.finish(self)
        self.values = {event.record: event.value for event in self.confirmed}
        self.values |= {record: holds[0].delivered.value for record, holds in self.holds.items() if holds}

    def is_cut(self, record: Record) -> bool:
        """Whether the log may have removed the record."""
        return self.queue.cuts and record.offset < self.starts.get(record[:2], 0)

    def is_kept(self, hold: history.Hold) -> bool:
        """Whether the log had removed the record before the delivery was requested."""
        delivered = hold.delivered
        cuts = self.cuts.get(delivered.record[:2], ())
        return any(cut.at_ns < delivered.asked_ns and delivered.record.offset < cut.start for cut in cuts)

    def is_passed_over(self, record: Record) -> bool:
        """Whether an operator passed the record over at any time."""
        return any(record.offset < each.start for each in self.passes.get(record[:2], ()))

    def by_key(self) -> key_order_rules.Keyed:
        """Records with keys, without those that were passed over; empty if the group is not
        ordered."""
        if not self.queue.ordered:
            return {}
        return key_order_rules.by_key(
            ((each, value) for each, value in self.values.items() if not self.is_passed_over(each)), self.sent
        )


def check(events: Iterable[Event], settings: QueueSettings) -> Report:
    """Check a history, as history.check does."""
    index = QueueIndex(settings=settings.group, queue=settings)
    for event in events:
        index.add(event)
    index.finish()
    violations = tuple(violation for rule in RULES.values() for violation in rule(index))
    return log_rules.Report(violations, _statistics(index))


def _statistics(index: QueueIndex) -> QueueStatistics:
    holds = [hold for holds in index.holds.values() for hold in holds]
    letters = [letter for letters in index.letters.values() for letter in letters]
    return QueueStatistics(
        lives=len(index.lives),
        confirmed_sends=len(index.confirmed),
        deliveries=len(holds),
        confirmed_acknowledgements=sum(
            hold.has(AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT) for hold in holds
        ),
        delays=index.delays,
        schedules=index.schedules,
        rejected=sum(letter.is_rejected for letter in letters),
        exhausted=sum(not letter.is_rejected for letter in letters),
        passed_over=sum(index.is_passed_over(event.record) for event in index.confirmed),
        cut=sum(index.is_cut(record) for record in index.values),
        kept=sum(map(index.is_kept, holds)),
        keyed=sum(
            len(index.holds.get(record, ()))
            for records in index.by_key().values()
            for record, _ in records[1:]
        ),
    )


def _incomplete(index: QueueIndex) -> Iterator[Violation]:
    yield from history.RULES["incomplete"](index)
    ends = {(left.topic, left.partition) for left in index.left}
    for topic, partition in sorted(index.logs_read - ends):
        yield Violation("incomplete", f"the final state of {topic}-{partition} was not read")


def _missing(index: QueueIndex) -> Iterator[Violation]:
    """A confirmed record is in its log until an operator or retention removes it."""
    for violation in log_rules.missing(index):
        record = violation.record
        if record is None or not (index.is_passed_over(record) or index.is_cut(record)):
            yield violation


def _early(index: QueueIndex) -> Iterator[Violation]:
    for record, holds in index.holds.items():
        for hold in holds:
            at_ns, sent = hold.delivered.at_ns, index.sent.get(hold.delivered.value)
            if sent is not None and sent.due_ns:
                index.schedules += 1
                if at_ns < sent.due_ns - CLOCKS_DIFFER_NS:
                    early_ms = (sent.due_ns - at_ns) // 1_000_000
                    yield Violation(
                        "early",
                        f"delivered {early_ms} ms before its scheduled time",
                        record,
                        (sent, hold.delivered),
                    )
        for released in holds:
            if released.has(AckKind.RELEASE):
                yield from _early_after(index, record, released, holds)


def _early_after(
    index: QueueIndex, record: Record, released: history.Hold, holds: list[history.Hold]
) -> Iterator[Violation]:
    assert released.sent is not None
    due_ns = released.sent.at_ns + index.queue.wait_ns(released.delivered.count)
    for hold in holds:
        if released.surely_before(hold, index.lock_ns):
            index.delays += 1
            if hold.delivered.at_ns < due_ns - CLOCKS_DIFFER_NS:
                early_ms = (due_ns - hold.delivered.at_ns) // 1_000_000
                detail = f"delivered {early_ms} ms before the delay of a confirmed release was over"
                yield Violation("early", detail, record, (*released.events(), hold.delivered))


def _passed_over(index: QueueIndex) -> Iterator[Violation]:
    for record, holds in index.holds.items():
        for passed in index.passes.get(record[:2], ()):
            if record.offset >= passed.start:
                continue
            for hold in holds:
                if hold.delivered.asked_ns > passed.at_ns:
                    yield Violation(
                        "passed over",
                        f"delivered although the group begins at {passed.start}",
                        record,
                        (passed, hold.delivered),
                    )


def _unfinished(index: QueueIndex) -> Iterator[Violation]:
    for record in sorted({*index.log, *filter(index.is_cut, index.values)}):
        if index.letters.get(record) or index.is_passed_over(record):
            continue
        holds = index.holds.get(record, [])
        if any(hold.may_have(AckKind.ACCEPT) for hold in holds):
            continue
        detail = "never accepted, and no dead letter" if holds else "never delivered"
        if record not in index.log:
            detail += f", and the log begins at {index.starts[record[:2]]}"
        read = [index.log[record]] if record in index.log else []
        cuts = [cut for cut in index.cuts.get(record[:2], ()) if record.offset < cut.start][:1]
        yield Violation(
            "unfinished",
            detail,
            record,
            (*read, *cuts, *(event for hold in holds for event in hold.events())),
        )


def _altered(index: QueueIndex) -> Iterator[Violation]:
    for record, holds in index.holds.items():
        for hold in holds:
            sent = index.sent.get(hold.delivered.value)
            if sent is not None and _differ(sent.digest, hold.delivered.digest):
                where = " from its kept copy" if index.is_kept(hold) else ""
                yield Violation(
                    "altered",
                    f"delivered{where} with another key, value, header or timestamp",
                    record,
                    (sent, hold.delivered),
                )
    for record, letters in index.letters.items():
        for letter in letters:
            sent = index.sent.get(letter.value or "")
            if sent is not None and _differ(sent.digest, letter.digest):
                yield Violation(
                    "altered",
                    "its dead letter has another key, value, header or timestamp",
                    record,
                    (sent, letter),
                )


def _differ(sent: str, seen: str) -> bool:
    return bool(sent and seen) and sent != seen


def _dead_letters(index: QueueIndex) -> Iterator[Violation]:
    for record, letters in index.letters.items():
        holds = index.holds.get(record, [])
        if len(letters) > 1:
            yield Violation("dead letters", f"{len(letters)} for one record", record, tuple(letters))
        for letter in letters:
            if (wrong := _wrong_with(index, letter, holds)) is not None:
                events = (letter, *(event for hold in holds for event in hold.events()))
                yield Violation("dead letters", wrong, record, events)


def _wrong_with(index: QueueIndex, letter: DeadLetterRead, holds: list[history.Hold]) -> str | None:
    if any(hold.has(AckKind.ACCEPT) for hold in holds) and not index.is_passed_over(letter.record):
        return "the record's accept was confirmed"
    limit = index.settings.delivery_limit
    if not letter.is_rejected and letter.count != limit:
        return f"archived after {letter.count} deliveries, with a limit of {limit}"
    rejections = [hold.delivered.count for hold in holds if hold.may_have(AckKind.REJECT)]
    if letter.is_rejected and letter.count not in rejections:
        return f"names a reject of delivery {letter.count}; possible rejects: {rejections}"
    read = index.log.get(letter.record)
    value = index.values.get(letter.record) if read is None else read.value
    if value is not None and letter.value != value and not index.is_passed_over(letter.record):
        return f"the record is {value!r}, its copy {letter.value!r}"
    return None


def _left(index: QueueIndex) -> Iterator[Violation]:
    for left in index.left:
        if left.lag != 0 or left.parked or left.counted or left.kept:
            detail = (
                f"lag {left.lag}, {left.parked} parked, {left.counted} counted, {left.kept} kept at the end"
            )
            yield Violation("left", f"{left.topic}-{left.partition}: {detail}", None, (left,))


def _key_order(index: QueueIndex) -> Iterator[Violation]:
    yield from key_order_rules.key_order(index.by_key(), index.holds, index.letters)


def _two_of_a_key(index: QueueIndex) -> Iterator[Violation]:
    yield from key_order_rules.two_of_a_key(index.by_key(), index.holds)


RULES: dict[str, Callable[[QueueIndex], Iterator[Violation]]] = {
    "incomplete": _incomplete,
    "missing": _missing,
    "contradiction": contradiction,
    "invented": invented,
    "duplicated": duplicated,
    "reordered": reordered,
    "undone": history.RULES["undone"],
    "two holders": history.RULES["two holders"],
    "count": history.RULES["count"],
    "count fell": history.RULES["count fell"],
    "early": _early,
    "passed over": _passed_over,
    "unfinished": _unfinished,
    "altered": _altered,
    "dead letters": _dead_letters,
    "key order": _key_order,
    "two of a key": _two_of_a_key,
    "left": _left,
}
