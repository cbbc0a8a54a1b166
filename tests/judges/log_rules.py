"""Rules about logs, which the checkers of all kinds of readers share: confirmed records are in the
log once and in order, and every record in the log was sent.

Also has the index of events that these rules need, and the types of violations and reports. The
checkers (history.py, group_history.py and others) add rules for their readers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.judges.history_events import (
    Delivered,
    Event,
    LogRead,
    LogReadDone,
    Read,
    Record,
    SendConfirmed,
    Sent,
)

SHOWN_EVENTS = 12
S_co = TypeVar("S_co", covariant=True)
"""The type of a checker's statistics."""


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    detail: str
    record: Record | None = None
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        place = f" at {self.record}" if self.record else ""
        shown = self.events[:SHOWN_EVENTS]
        more = [f"    ... and {len(self.events) - len(shown)} more"] if len(self.events) > len(shown) else []
        return "\n".join([f"{self.rule}{place}: {self.detail}", *(f"    {event}" for event in shown), *more])


@dataclass(frozen=True)
class Report(Generic[S_co]):
    violations: tuple[Violation, ...]
    statistics: S_co

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        """For people: the number of violations of each rule, then the first twenty of them."""
        rules = Counter(violation.rule for violation in self.violations)
        head = ", ".join(f"{count} x {rule}" for rule, count in rules.items()) or "no violation"
        return "\n".join(
            [f"{head}; {self.statistics}", *(str(violation) for violation in self.violations[:20])]
        )


@dataclass(slots=True)
class LogIndex:
    """The events about logs. `seen`: for each record, its deliveries to consumers."""

    sent: dict[str, Sent] = field(default_factory=dict)
    confirmed: list[SendConfirmed] = field(default_factory=list)
    log: dict[Record, LogRead] = field(default_factory=dict)
    logs_read: set[tuple[str, int]] = field(default_factory=set)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    seen: dict[Record, list[Delivered | Read]] = field(default_factory=lambda: defaultdict(list))

    def add(self, event: Event) -> bool:
        """Returns whether the event is fully handled here, with nothing left for other rules."""
        match event:
            case Sent():
                self.sent[event.value] = event
            case SendConfirmed():
                self.confirmed.append(event)
            case LogRead():
                self.log[event.record] = event
            case LogReadDone():
                self.logs_read.add((event.topic, event.partition))
                self.starts[event.topic, event.partition] = event.start
            case Delivered() | Read():
                self.seen[event.record].append(event)
                return False
            case _:
                return False
        return True


def unread_logs(index: LogIndex) -> Iterator[Violation]:
    """Without a final read of every log, an absence of violations would prove nothing."""
    seen = {record[:2] for record in index.seen} | {event.record[:2] for event in index.confirmed}
    for topic, partition in sorted(seen - index.logs_read):
        yield Violation("incomplete", f"the log of {topic}-{partition} was not read at the end")


def missing(index: LogIndex) -> Iterator[Violation]:
    """A record that was confirmed, or that a consumer has received, is in its log at the end."""
    for event in index.confirmed:
        if event.record not in index.log:
            yield Violation(
                "missing", f"confirmed record {event.value} is not in the log", event.record, (event,)
            )
    for record, seen in index.seen.items():
        if record not in index.log:
            yield Violation("missing", "a record that was delivered is not in the log", record, tuple(seen))


def contradiction(index: LogIndex) -> Iterator[Violation]:
    """An offset holds one value for all readers at all times: it is never reused."""
    values: dict[Record, dict[str, Event]] = defaultdict(dict)
    seen = [event for events in index.seen.values() for event in events]
    for event in (*index.confirmed, *seen, *index.log.values()):
        values[event.record].setdefault(event.value, event)
    for record, found in values.items():
        if len(found) > 1:
            yield Violation(
                "contradiction", f"{len(found)} different values at one offset", record, tuple(found.values())
            )


def invented(index: LogIndex) -> Iterator[Violation]:
    """Every value in a log, or delivered to a consumer, was sent."""
    for event in (*index.log.values(), *(events[0] for events in index.seen.values())):
        if event.value not in index.sent:
            yield Violation("invented", f"value {event.value!r} was never sent", event.record, (event,))


def duplicated(index: LogIndex) -> Iterator[Violation]:
    """A record of an idempotent producer is in the log only once."""
    places: dict[str, list[LogRead]] = defaultdict(list)
    for event in index.log.values():
        if event.value in index.sent and index.sent[event.value].idempotent:
            places[event.value].append(event)
    for value, events in places.items():
        if len(events) > 1:
            detail = f"{value} of an idempotent producer is in the log {len(events)} times"
            yield Violation("duplicated", detail, events[0].record, tuple(events))


def reordered(index: LogIndex) -> Iterator[Violation]:
    """The confirmed records of an idempotent producer are in a partition's log in the order in
    which it sent them."""
    last: dict[tuple[str, str, int], SendConfirmed] = {}
    order = {value: place for place, value in enumerate(index.sent)}
    idempotent = [
        event for event in index.confirmed if event.value in order and index.sent[event.value].idempotent
    ]
    for event in sorted(idempotent, key=lambda event: order[event.value]):
        key = (event.producer, event.record.topic, event.record.partition)
        if key in last and last[key].record.offset >= event.record.offset:
            yield Violation("reordered", "sent later, stored earlier", event.record, (last[key], event))
        last[key] = event
