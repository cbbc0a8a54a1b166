"""The history checker against a tiny queue that is correct by construction, and against mutations
of its histories.

The queue runs in virtual time. Its clients lose answers, stall past their locks, close and are
killed; the queue itself is killed and restarts with the state that it had confirmed. Every such
history must pass; every mutation must be caught.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.judges.history import GroupSettings, Report, check
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
    LogRead,
    LogReadDone,
    Outcome,
    Record,
    SendConfirmed,
    Sent,
)

MS = 1_000_000
# the clients here lose a lot
SETTINGS = GroupSettings(lock_ms=100, delivery_limit=5, lost_deliveries_excused=4)
CONSUMERS = ("A", "B", "C")
ENDS = {AckKind.ACCEPT, AckKind.REJECT}


@dataclass(slots=True)
class Item:
    """One record in the queue; `saved` is the (done, count) that survives a kill."""

    value: str
    holder: str | None = None
    lock_ends_ns: int = 0
    count: int = 0
    done: bool = False
    saved: tuple[bool, int] = (False, 0)


@dataclass(slots=True)
class Consumer:
    asked_ns: int = 0
    pending: list[Delivered] = field(default_factory=list)
    to_acknowledge: list[Delivered] = field(default_factory=list)


class Queue:
    """A correct broker and its clients in one, driven by a random number generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = 0
        self.life = 1
        self.events: list[Event] = [LifeBegan(0, 1)]
        self.items: list[Item] = []
        self.sends = 0
        self.consumers = {name: Consumer() for name in CONSUMERS}

    def write(self, event: type[Event], *fields: object) -> None:
        self.tick(1)
        self.events.append(event(self.now_ns, *fields))  # type: ignore[arg-type]

    def tick(self, most_ms: int) -> None:
        """Time passes, and locks expire meanwhile."""
        self.now_ns += self.random.randrange(1, most_ms * MS + 1)
        for item in self.items:
            if item.holder is not None and item.lock_ends_ns <= self.now_ns:
                self.release(item)

    def release(self, item: Item) -> None:
        item.holder = None
        item.done = item.done or item.count >= SETTINGS.delivery_limit
        if self.random.random() < 0.5:  # saving an expiry is best effort
            item.saved = (item.done, item.count)

    def produce(self) -> None:
        value = f"v{self.sends}"
        self.sends += 1
        self.write(Sent, "p", value, True)
        kept, answered = self.random.random() < 0.9, self.random.random() < 0.9
        if kept:
            self.items.append(Item(value))
            if answered:
                self.write(SendConfirmed, "p", value, Record("t", 0, len(self.items) - 1))

    def fetch(self, name: str) -> None:
        """The broker acquires; the client may look at the answer much later."""
        consumer = self.consumers[name]
        if consumer.pending or consumer.to_acknowledge:
            return
        free = [
            (offset, item) for offset, item in enumerate(self.items) if item.holder is None and not item.done
        ]
        for offset, item in free[: self.random.randrange(1, 4)]:
            item.holder, item.count, item.lock_ends_ns = (
                name,
                item.count + 1,
                self.now_ns + SETTINGS.lock_ms * MS,
            )
            consumer.pending.append(
                Delivered(0, consumer.asked_ns, name, Record("t", 0, offset), item.value, item.count)
            )
        self.tick(3)

    def look(self, name: str) -> None:
        consumer = self.consumers[name]
        if not consumer.pending:
            return
        self.tick(5)
        delivered = [replace(event, at_ns=self.now_ns) for event in consumer.pending]
        self.events += delivered
        consumer.pending, consumer.to_acknowledge, consumer.asked_ns = [], delivered, self.now_ns

    def acknowledge(self, name: str) -> None:
        consumer = self.consumers[name]
        for event in consumer.to_acknowledge:
            self.acknowledge_one(name, event)
        consumer.to_acknowledge = []

    def acknowledge_one(self, name: str, event: Delivered) -> None:
        kind = self.random.choice(
            [AckKind.ACCEPT, AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT, AckKind.RENEW]
        )
        self.write(AckSent, name, event.record, kind)
        item = self.items[event.record.offset]
        arrives, answered = self.random.random() < 0.9, self.random.random() < 0.9
        if arrives and item.holder == name:
            outcome = Outcome.CONFIRMED
            if kind is AckKind.RENEW:
                item.lock_ends_ns = self.now_ns + SETTINGS.lock_ms * MS
            else:
                item.done = kind in ENDS or item.count >= SETTINGS.delivery_limit
                item.holder, item.saved = None, (item.done, item.count)
        else:
            outcome = Outcome.REFUSED
        if not arrives or not answered:
            outcome = Outcome.UNKNOWN
        if outcome is not Outcome.UNKNOWN or self.random.random() < 0.5:
            self.write(AckAnswered, name, event.record, outcome)

    def drop(self, name: str, how: type[Closing | Disconnected]) -> None:
        """The records that the consumer holds are redelivered at once; answers that it has not
        looked at are lost."""
        if how is Closing:
            self.write(Closing, name)
        for item in self.items:
            if item.holder == name:
                self.release(item)
        if how is Disconnected:
            self.write(Disconnected, name)
        self.consumers[name] = Consumer(asked_ns=self.now_ns)

    def kill(self) -> None:
        self.write(LifeEnded, self.life)
        self.life += 1
        for item in self.items:
            item.holder, (item.done, item.count) = None, item.saved
        self.write(LifeBegan, self.life)
        for name in CONSUMERS:
            self.drop(name, Disconnected)

    def step(self) -> None:
        name = self.random.choice(CONSUMERS)
        roll = self.random.random()
        if roll < 0.2:
            self.produce()
        elif roll < 0.5:
            self.fetch(name)
        elif roll < 0.7:
            self.look(name)
        elif roll < 0.9:
            self.acknowledge(name)
        elif roll < 0.94:
            self.tick(150)
        elif roll < 0.96:
            self.drop(name, Closing if self.random.random() < 0.5 else Disconnected)
        elif roll < 0.98:
            self.kill()

    def finish(self) -> list[Event]:
        for name in CONSUMERS:
            self.drop(name, Closing)
        for _ in range(SETTINGS.delivery_limit):
            self.now_ns += SETTINGS.lock_ms * MS
            self.tick(1)
        for offset, item in enumerate(self.items):
            if not item.done:
                item.count += 1
                self.write(Delivered, self.now_ns, "last", Record("t", 0, offset), item.value, item.count)
                self.write(AckSent, "last", Record("t", 0, offset), AckKind.ACCEPT)
                self.write(AckAnswered, "last", Record("t", 0, offset), Outcome.CONFIRMED)
        self.write(Drained)
        for offset, item in enumerate(self.items):
            self.write(LogRead, Record("t", 0, offset), item.value)
        self.write(LogReadDone, "t", 0)
        return self.events


def a_history(seed: int, steps: int = 250) -> list[Event]:
    queue = Queue(seed)
    for _ in range(steps):
        queue.step()
    return queue.finish()


def rules(report: Report) -> set[str]:
    return {violation.rule for violation in report.violations}


SEEDS = st.integers(0, 2**32)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


@given(SEEDS)
@QUICK
def test_right_histories_pass(seed: int) -> None:
    report = check(a_history(seed), SETTINGS)
    assert report.ok, str(report)


def test_the_histories_are_worth_judging() -> None:
    statistics = check(a_history(5, steps=1500), SETTINGS).statistics
    assert statistics.lives > 5
    assert statistics.redeliveries > 50
    assert statistics.unknown_acknowledgements > 10
    assert statistics.excused < statistics.records * 0.2


def pick(chooser: random.Random, events: list[Event], kind: type[Event]) -> int | None:
    places = [place for place, event in enumerate(events) if isinstance(event, kind)]
    return chooser.choice(places) if places else None


def lose_a_record(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    confirmed = {event.record for event in events if isinstance(event, SendConfirmed)}
    if not confirmed:
        return None
    lost = chooser.choice(sorted(confirmed))
    return [event for event in events if not (isinstance(event, LogRead) and event.record == lost)]


def before_the_end(events: list[Event], *more: Event) -> list[Event]:
    """Insert deliveries just before the group is drained."""
    place = next(place for place, event in enumerate(events) if isinstance(event, Drained))
    at_ns = events[place].at_ns
    return [*events[:place], *(replace(event, at_ns=at_ns) for event in more), *events[place:]]


def undo_an_end(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    deliveries = confirmed_acks(events, ENDS)
    if not deliveries:
        return None
    delivered = chooser.choice(deliveries)
    return before_the_end(
        events, replace(delivered, asked_ns=events[-1].at_ns - 1, consumer="X", count=delivered.count + 1)
    )


def forget_a_release(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    deliveries = confirmed_acks(events, {AckKind.RELEASE})
    if not deliveries:
        return None
    delivered = chooser.choice(deliveries)
    return before_the_end(events, replace(delivered, asked_ns=events[-1].at_ns - 1, consumer="X"))


def confirmed_acks(events: list[Event], kinds: set[AckKind]) -> list[Delivered]:
    """The deliveries that ended in a confirmed acknowledgement of one of these kinds."""
    held: dict[tuple[str, Record], Delivered] = {}
    sent: dict[tuple[str, Record], AckKind] = {}
    found = []
    for event in events:
        if isinstance(event, Delivered):
            held[event.consumer, event.record] = event
        elif isinstance(event, AckSent):
            sent[event.consumer, event.record] = event.kind
        elif isinstance(event, AckAnswered):
            key = (event.consumer, event.record)
            if event.outcome is Outcome.CONFIRMED and sent[key] in kinds:
                found.append(held[key])
    return found


def hand_out_twice(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    """Another consumer gets the record a moment after one that later finishes it with a confirmed
    acknowledgement."""
    deliveries = [
        event
        for event in confirmed_acks(events, {AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT})
        if event.consumer != "last"
    ]
    lives = [event.at_ns for event in events if isinstance(event, LifeBegan | LifeEnded)]
    deliveries = [
        event
        for event in deliveries
        if not any(event.asked_ns - MS <= at_ns <= event.at_ns + MS for at_ns in lives)
    ]
    deliveries = [event for event in deliveries if event.at_ns < event.asked_ns + SETTINGS.lock_ms * MS]
    if not deliveries:
        return None
    delivered = chooser.choice(deliveries)
    place = events.index(delivered)
    thief = replace(
        delivered, at_ns=delivered.at_ns, asked_ns=delivered.at_ns, consumer="X", count=delivered.count + 1
    )
    return [*events[: place + 1], thief, *events[place + 1 :]]


def change_a_value(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    place = pick(chooser, events, Delivered)
    if place is None:
        return None
    event = events[place]
    assert isinstance(event, Delivered)
    return [
        *events[:place],
        replace(event, value="v0" if event.value != "v0" else "v1"),
        *events[place + 1 :],
    ]


def count_past_the_limit(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    place = pick(chooser, events, Delivered)
    if place is None:
        return None
    delivered = events[place]
    assert isinstance(delivered, Delivered)
    return [*events[:place], replace(delivered, count=SETTINGS.delivery_limit + 1), *events[place + 1 :]]


def forget_a_record(chooser: random.Random, events: list[Event]) -> list[Event] | None:
    reads = [event for event in events if isinstance(event, LogRead)]
    if not reads:
        return None
    lost = chooser.choice(reads).record
    return [
        event
        for event in events
        if not (isinstance(event, Delivered | AckSent | AckAnswered) and event.record == lost)
    ]


MUTATIONS = {
    lose_a_record: {"missing"},
    undo_an_end: {"undone"},
    forget_a_release: {"count fell", "count"},
    hand_out_twice: {"two holders"},
    change_a_value: {"contradiction", "invented"},
    count_past_the_limit: {"count"},
    forget_a_record: {"unfinished"},
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@given(seed=SEEDS)
@QUICK
def test_mutations_are_caught(mutation: object, seed: int) -> None:
    mutated = mutation(random.Random(seed), a_history(seed))  # type: ignore[operator]
    if mutated is not None:
        found = rules(check(mutated, SETTINGS))
        assert found & MUTATIONS[mutation], f"{mutation.__name__}: found only {found}"  # type: ignore[index,attr-defined]
