"""The judge of idempotent producers and of purged logs: does a history of both keep every promise?

A producer keeps its id and its sequence over the lives of a broker. It has one batch under way per
log, sends that again until it is answered, and now and then repeats a confirmed one. Meanwhile
DeleteRecords and retention move the logs' starts. The promises (docs/durability.md has them in
words) are these rules:

    refused        the next batch of a producer, and a retry of an unanswered one, is accepted,
                   whatever was purged and killed
    stored twice   a repeat is not stored again while its first copy is certainly in the log
    forgotten      a repeat of one of the last five batches is recognised while its copy is in the
                   log, as long as no crash came between
    id twice       no producer id is given out twice in the life of a data directory
    start          a log's start never goes back and never lies beyond the log's end
    removed        a log's start moves no further than DeleteRecords requested, or retention may
    missing, contradiction, invented, duplicated, reordered
                   as for every log (kbroker.testing.log_rules)

One process sends the batches, purges and bounds requests of a log, one after the other. Other
producers (Sent, SendConfirmed) may write beside it. A history ends with a read of each log
(LogRead, LogReadDone). After a power cut with durability `os` (PowerLost), confirmations no longer
hold: the next read of a log is its new beginning. Ids stay used for good.

A `Ledger` takes a history event by event, and knows what each producer has sent last, so that a
process can continue where a history ends. It knows nothing of brokers and clients.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import NamedTuple, TypeAlias

from kbroker.testing import log_rules
from kbroker.testing.history_events import (
    BatchAnswered,
    BatchSent,
    BoundsSeen,
    Event,
    IdTaken,
    LifeBegan,
    LifeEnded,
    LogRead,
    LogReadDone,
    PowerLost,
    PurgeAnswered,
    PurgeSent,
    Record,
    SendConfirmed,
    Sent,
)
from kbroker.testing.log_rules import LogIndex, Violation
from kbroker.testing.purged_log import Held, LogState, Retention

REMEMBERED = 5
"""Batches that a broker knows of each producer, as Kafka's do."""
_KEPT = 10
_OUT_OF_ORDER = 45
_TO_THE_END = -1


class Log(NamedTuple):
    topic: str
    partition: int


class Place(NamedTuple):
    """One producer id in one log."""

    producer_id: int
    log: Log


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What the history held: a check of a history in which nothing happened proves nothing."""

    lives: int
    crashes: int
    ids: int
    confirmed_batches: int
    confirmed_sends: int
    retries: int
    """Of batches that a crash had left without an answer."""
    repeats_known: int
    repeats_refused: int
    repeats_stored: int
    """Again, as the broker may where the first copy was purged."""
    purges: int
    records: int
    """That the logs held at the end."""


Report: TypeAlias = log_rules.Report[ProducerStatistics]


@dataclass(slots=True)
class Batch:
    """`base_offset` of its last copy, None before the first answer. `crashed`: since that
    answer."""

    sequence: int
    count: int
    is_old: bool = False
    base_offset: int | None = None
    crashed: bool = False

    @property
    def next_sequence(self) -> int:
        return self.sequence + self.count


@dataclass(slots=True)
class Lane:
    """A producer in one log. `open`: sent, and not yet answered; `confirmed`: the last ones, oldest
    first."""

    confirmed: list[Batch] = field(default_factory=list)
    open: Batch | None = None

    @property
    def next_sequence(self) -> int:
        return self.confirmed[-1].next_sequence if self.confirmed else 0

    def age_of(self, sequence: int) -> int | None:
        """How many batches were confirmed after this one; None if it is none of them."""
        ages = [age for age, batch in enumerate(reversed(self.confirmed)) if batch.sequence == sequence]
        return ages[0] if ages else None


def value_of(place: Place, sequence: int) -> str:
    """The value of the record that a producer sends to a log with this sequence."""
    producer_id, (topic, partition) = place
    return f"{topic}-{partition}:{producer_id}:{sequence}"


class Ledger:
    """What a history says of each producer and log so far; `violations` grows as events are
    applied, in the order of `at_ns`."""

    def __init__(self, retention: Mapping[str, Retention]) -> None:
        self.logs: dict[Log, LogState] = {}
        self.lanes: dict[Place, Lane] = {}
        self.lost: set[Place] = set()
        """Where a power cut has ended the promises, and nobody knows what the broker knows."""
        self.ids: list[int] = []
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._retention = retention
        self._sent: set[str] = set()
        self._old: set[str] = set()
        self._begins: dict[str, tuple[Place, Batch]] = {}
        """What batch begins with a value."""

    def log(self, topic: str, partition: int) -> LogState:
        log = Log(topic, partition)
        if log not in self.logs:
            self.logs[log] = LogState(self._retention.get(topic, Retention.NOTHING))
        return self.logs[log]

    def _violates(self, rule: str, detail: str, record: Record | None, *events: Event) -> None:
        self.violations.append(Violation(rule, detail, record, events))

    @singledispatchmethod
    def apply(self, event: Event) -> None:
        """The next event of the history; those that are none of the ledger's are left alone."""

    # -- lives and ids
    # ----------------------------------------------------------------------------------------------

    @apply.register
    def _life_began(self, event: LifeBegan) -> None:
        self.counts["lives"] += 1

    @apply.register
    def _life_ended(self, event: LifeEnded) -> None:
        if event.orderly:
            return
        self.counts["crashes"] += 1
        for lane in self.lanes.values():
            for batch in lane.confirmed:
                batch.crashed = True

    @apply.register
    def _power_lost(self, event: PowerLost) -> None:
        if not event.promises_end:
            return
        self.lost |= {place for place, _ in self._begins.values()}
        self.lanes.clear()
        for state in self.logs.values():
            # What was asked for before may still show, and nothing more.
            state.requested = max(state.requested, state.start)
            state.start = state.end = 0
            state.held.clear()
            state.confirmed_ends.clear()
            state.is_new = True

    @apply.register
    def _id_taken(self, event: IdTaken) -> None:
        if event.producer_id in self.ids:
            self._violates("id twice", f"producer id {event.producer_id} was given out before", None, event)
        self.ids.append(event.producer_id)

    # -- batches
    # ----------------------------------------------------------------------------------------------

    @apply.register
    def _batch_sent(self, event: BatchSent) -> None:
        place = Place(event.producer_id, Log(event.topic, event.partition))
        lane = self.lanes.setdefault(place, Lane())
        self.log(*place.log)
        if lane.open is not None:
            assert event.sequence == lane.open.sequence, (
                f"a batch was sent behind one without an answer: {event}"
            )
            self.counts["retries"] += 1
        elif lane.age_of(event.sequence) is None:
            assert event.sequence == lane.next_sequence, f"a sequence was left out: {event}"
            lane.open = Batch(event.sequence, event.count, event.is_old)
            values = [value_of(place, event.sequence + number) for number in range(event.count)]
            self._begins[values[0]] = place, lane.open
            self._sent.update(values)
            self._old.update(values if event.is_old else ())

    @apply.register
    def _batch_answered(self, event: BatchAnswered) -> None:
        lane = self.lanes[Place(event.producer_id, Log(event.topic, event.partition))]
        log = self.log(event.topic, event.partition)
        if lane.open is not None and lane.open.sequence == event.sequence:
            self._first_answered(event, lane, log, lane.open)
            return
        age = lane.age_of(event.sequence)
        assert age is not None, f"an answer to what was not sent: {event}"
        batch = lane.confirmed[-1 - age]
        if event.error:
            self._repeat_refused(event, log, batch, age)
        elif event.base_offset == batch.base_offset:
            self.counts["repeats_known"] += 1
        else:
            self._stored_again(event, lane, log, batch, age)

    def _first_answered(self, event: BatchAnswered, lane: Lane, log: LogState, batch: Batch) -> None:
        lane.open = None
        if event.error:
            self._violates(
                "refused", f"error {event.error} for sequence {event.sequence}, the next one", None, event
            )
        else:
            self.counts["confirmed_batches"] += 1
            self._stored(event, log, batch)
            lane.confirmed = [*lane.confirmed[1 - _KEPT :], batch]

    def _repeat_refused(self, event: BatchAnswered, log: LogState, batch: Batch, age: int) -> None:
        assert batch.base_offset is not None
        self.counts["repeats_refused"] += 1
        if age == 0 or event.error != _OUT_OF_ORDER:
            self._violates(
                "refused",
                f"error {event.error} for a repeat of sequence {event.sequence}, {age} before the last",
                None,
                event,
            )
        elif age < REMEMBERED and (log.surely_keeps(batch.base_offset) or not batch.crashed):
            self._violates(
                "forgotten",
                f"a repeat of sequence {event.sequence}, {age} before the last, is refused",
                None,
                event,
            )

    def _stored_again(self, event: BatchAnswered, lane: Lane, log: LogState, batch: Batch, age: int) -> None:
        assert batch.base_offset is not None
        self.counts["repeats_stored"] += 1
        first, again = (
            Record(event.topic, event.partition, offset) for offset in (batch.base_offset, event.base_offset)
        )
        if log.surely_keeps(first.offset):
            self._violates("stored twice", f"a repeat of what is at {first} was stored again", again, event)
        elif not batch.crashed and age < REMEMBERED:
            self._violates(
                "forgotten",
                f"a repeat of what was at {first} was stored again without a crash between",
                again,
                event,
            )
        self._stored(event, log, batch)
        batch.crashed = False
        lane.confirmed = [batch]

    def _stored(self, event: BatchAnswered, log: LogState, batch: Batch) -> None:
        batch.base_offset = event.base_offset
        place = Place(event.producer_id, Log(event.topic, event.partition))
        for number in range(batch.count):
            record = Record(event.topic, event.partition, event.base_offset + number)
            self._hold(log, record, value_of(place, batch.sequence + number), event)

    # -- other producers
    # ----------------------------------------------------------------------------------------------

    @apply.register
    def _record_sent(self, event: Sent) -> None:
        self._sent.add(event.value)
        if event.is_old:
            self._old.add(event.value)

    @apply.register
    def _record_confirmed(self, event: SendConfirmed) -> None:
        self.counts["confirmed_sends"] += 1
        self._hold(self.log(*event.record[:2]), event.record, event.value, event)

    def _hold(self, log: LogState, record: Record, value: str, event: Event) -> None:
        """From now on the record has to be there."""
        log.is_read = False
        log.confirmed_ends.append((event.at_ns, record.offset + 1))
        if record.offset < log.start:
            return
        before = log.held.setdefault(record.offset, Held(value, value in self._old, event))
        if before.value != value:
            self._violates(
                "contradiction", f"{before.value!r} and {value!r} at one offset", record, before.event, event
            )

    # -- purges and bounds
    # --------------------------------------------------------------------------------------------

    @apply.register
    def _purge_sent(self, event: PurgeSent) -> None:
        log = self.log(event.topic, event.partition)
        if event.offset == _TO_THE_END:
            log.open_ended = True
        else:
            log.requested = max(log.requested, event.offset)

    @apply.register
    def _purge_answered(self, event: PurgeAnswered) -> None:
        self.counts["purges"] += 1
        log = self.log(event.topic, event.partition)
        record = Record(event.topic, event.partition, event.start)
        if event.error:
            self._violates("start", f"a purge was answered with error {event.error}", None, event)
        elif event.start < log.start or (not log.open_ended and event.start < log.requested):
            self._violates(
                "start",
                f"a purge of what is below {log.requested} moved the start to {event.start} only",
                record,
                event,
            )
        elif not log.may_start_at(event.start):
            self._violates(
                "removed",
                f"a purge of what is below {log.requested} moved the start beyond it",
                record,
                event,
            )
        log.begin_at(event.start)
        log.requested = max(log.requested, log.start)
        log.open_ended = False

    @apply.register
    def _bounds_seen(self, event: BoundsSeen) -> None:
        log = self.log(event.topic, event.partition)
        record = Record(event.topic, event.partition, event.start)
        if event.start > event.end:
            self._violates("start", f"the log begins behind its end, {event.end}", record, event)
        if event.start < log.start:
            self._violates("start", f"the log began at {log.start} before", record, event)
        elif not log.may_start_at(event.start):
            gone = dict.fromkeys(
                held.event for offset, held in sorted(log.held.items()) if offset < event.start
            )
            self._violates("removed", f"nobody asked for more than {log.requested}", record, event, *gone)
        if event.end < (end := log.known_end(event.asked_ns)):
            self._violates(
                "missing", f"the log ends at {event.end}, confirmed were offsets up to {end}", record, event
            )
        log.start = min(log.start, event.start)
        log.begin_at(event.start)
        # What was asked of an earlier life, and not done then, is done no more.
        log.requested, log.open_ended, log.end = event.start, False, event.end

    # -- reading
    # ----------------------------------------------------------------------------------------------

    @apply.register
    def _log_read(self, event: LogRead) -> None:
        self.log(*event.record[:2]).reads[event.record.offset] = event

    @apply.register
    def _log_read_done(self, event: LogReadDone) -> None:
        log = self.log(event.topic, event.partition)
        reads = {offset: read for offset, read in log.reads.items() if offset >= log.start}
        log.reads = {}
        log.is_read = True
        for offset, held in log.held.items():
            record = Record(event.topic, event.partition, offset)
            if offset not in reads:
                self._violates(
                    "missing", f"confirmed record {held.value} is not in the log", record, held.event
                )
            elif reads[offset].value != held.value:
                detail = f"{held.value!r} was confirmed where {reads[offset].value!r} is"
                self._violates("contradiction", detail, record, held.event, reads[offset])
        copies: dict[str, list[LogRead]] = defaultdict(list)
        for read in reads.values():
            if read.value not in self._sent:
                self._violates("invented", f"value {read.value!r} was never sent", read.record, read)
            copies[read.value].append(read)
        for value, found in copies.items():
            if len(found) > 1:
                self._violates("duplicated", f"{value} is there {len(found)} times", found[0].record, *found)
        if log.is_new:
            log.is_new = False
            self._begin_anew(log, reads)

    def _begin_anew(self, log: LogState, reads: Mapping[int, LogRead]) -> None:
        """What a read has found is what counts from here on: the log, and in it the last batches of
        each producer."""
        for offset, read in sorted(reads.items()):
            log.held[offset] = Held(read.value, read.value in self._old, read)
            if read.value not in self._begins or read.is_cut:
                continue
            place, batch = self._begins[read.value]
            if offset + batch.count - 1 in reads:
                lane = self.lanes.setdefault(place, Lane())
                known = Batch(batch.sequence, batch.count, batch.is_old, offset, crashed=True)
                lane.confirmed = [*lane.confirmed[1 - _KEPT :], known]

    def statistics(self) -> ProducerStatistics:
        names = ("lives", "crashes", "confirmed_batches", "confirmed_sends", "retries", "purges")
        repeats = ("repeats_known", "repeats_refused", "repeats_stored")
        counts = {name: self.counts[name] for name in (*names, *repeats)}
        return ProducerStatistics(
            ids=len(self.ids), records=sum(len(log.held) for log in self.logs.values()), **counts
        )


def check(events: Iterable[Event], retention: Mapping[str, Retention]) -> Report:
    """Judge a history. `events` in the order of `at_ns` (history_events.merge makes one of
    several); `retention` by topic.

    AssertionError: the history contradicts itself (an answer to what was never sent).
    """
    ledger, index = Ledger(retention), LogIndex()
    for event in events:
        ledger.apply(event)
        index.add(event)
    rules: tuple[Callable[[], Iterator[Violation]], ...] = (
        lambda: _unread(ledger),
        lambda: log_rules.reordered(index),
    )
    violations = [*ledger.violations, *(violation for rule in rules for violation in rule())]
    return Report(tuple(violations), ledger.statistics())


def _unread(ledger: Ledger) -> Iterator[Violation]:
    """Without a final read of every log the absence of violations would mean nothing."""
    for log, state in sorted(ledger.logs.items()):
        if not state.is_read:
            yield Violation("incomplete", f"the log of {log.topic}-{log.partition} was not read at the end")
