"""The checker of idempotent producers and purged logs: does a history of both keep every promise?

A producer keeps its id and its sequence numbers across lives of a broker. It has one batch in
flight per log, retries it until a response arrives, and sometimes repeats a confirmed batch.
Meanwhile DeleteRecords and retention move the start offsets of logs. These rules check the promises
of docs/durability.md:

    refused        the broker accepts a producer's next batch, and a retry of an unconfirmed one,
                   after any purges and kills
    stored twice   a repeat is not stored again while its first copy is certainly in the log
    forgotten      a repeat of one of the last five batches is recognised while its copy is in the
                   log and no crash came between
    id twice       no producer id is assigned twice in the life of a data directory
    start          a log's start never moves back and is never beyond the log's end
    removed        a log's start moves no further than DeleteRecords requested or retention allows
    missing, contradiction, invented, duplicated, reordered
                   as for every log (tests.judges.log_rules)

For each log one process sends all batches, purges and bounds requests, one after the other. Other
producers (Sent, SendConfirmed) may write at the same time. A history ends with a read of each log
(LogRead, LogReadDone). After a power cut with durability `os` (PowerLost) earlier confirmations no
longer hold, and the next read of a log is its new beginning. Producer ids stay used.

A `Ledger` takes a history event by event. It has the last batches of each producer, so that a
process can continue where a history ends. It must not know brokers or clients.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import singledispatchmethod
from typing import NamedTuple, TypeAlias

from tests.judges import log_rules
from tests.judges.history_events import (
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
from tests.judges.log_rules import LogIndex, Violation

REMEMBERED = 5
"""How many batches of each producer a broker remembers per partition, as in Kafka."""
_KEPT = 10
_OUT_OF_ORDER = 45
_TO_THE_END = -1


class Retention(Enum):
    """Which records a topic's retention may remove."""

    NOTHING = "nothing"
    OLD = "old"
    """Leading segments that have only old records (`is_old` of Sent and BatchSent)."""
    ANYTHING = "anything"


class HeldValue(NamedTuple):
    value: str
    is_old: bool
    event: Event


@dataclass(slots=True)
class PurgedLog:
    """What the history says of one log, whose oldest records DeleteRecords and retention remove.

    - `start`, `end`: offsets that the log's start and end have certainly reached.
    - `requested`: the offset below which DeleteRecords may have removed records.
    - `open_ended`: a DeleteRecords of all records is in flight.
    """

    retention: Retention
    start: int = 0
    end: int = 0
    requested: int = 0
    open_ended: bool = False
    is_new: bool = False
    """After a power cut that may have lost unsynced data: the next read is the new beginning."""
    held: dict[int, HeldValue] = field(default_factory=dict)
    reads: dict[int, LogRead] = field(default_factory=dict)
    is_read: bool = False
    confirmed_ends: list[tuple[int, int]] = field(default_factory=list)

    def may_start_at(self, offset: int) -> bool:
        """Whether requested purges, or retention, can have removed everything below `offset`."""
        if self.open_ended or offset <= self.requested or self.retention is Retention.ANYTHING:
            return True
        young = (at for at, held in self.held.items() if not held.is_old)
        return self.retention is Retention.OLD and not any(self.requested <= at < offset for at in young)

    def surely_keeps(self, offset: int) -> bool:
        return offset >= self.start and not self.may_start_at(offset + 1)

    def begin_at(self, start: int) -> None:
        if start > self.start:
            self.start = start
            self.held = {offset: held for offset, held in self.held.items() if offset >= start}

    def known_end(self, asked_ns: int) -> int:
        """The end offset that records confirmed before `asked_ns` prove. Later calls must not pass
        an earlier time."""
        self.end = max([self.end, *(end for at_ns, end in self.confirmed_ends if at_ns < asked_ns)])
        self.confirmed_ends = [(at_ns, end) for at_ns, end in self.confirmed_ends if at_ns >= asked_ns]
        return self.end


class Log(NamedTuple):
    topic: str
    partition: int


class ProducerPlace(NamedTuple):
    """A producer id and a log to which it writes."""

    producer_id: int
    log: Log


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counts of a history's events. Tests assert on them, since the check of a history in which
    nothing happened proves nothing."""

    lives: int
    crashes: int
    ids: int
    confirmed_batches: int
    confirmed_sends: int
    retries: int
    """Of batches that got no response because of a crash."""
    repeats_known: int
    repeats_refused: int
    repeats_stored: int
    """Stored a second time, which the broker may do after the first copy was purged."""
    purges: int
    records: int
    """In the logs at the end."""


Report: TypeAlias = log_rules.Report[ProducerStatistics]


@dataclass(slots=True)
class Batch:
    """`base_offset`: of its last copy; None before the first response. `crashed`: the broker has
    crashed since that response."""

    sequence: int
    count: int
    is_old: bool = False
    base_offset: int | None = None
    crashed: bool = False

    @property
    def next_sequence(self) -> int:
        return self.sequence + self.count


@dataclass(slots=True)
class ProducerLane:
    """The batches of a producer in one log. `open`: the one that was sent and got no response yet.
    `confirmed`: the last confirmed ones, oldest first."""

    confirmed: list[Batch] = field(default_factory=list)
    open: Batch | None = None

    @property
    def next_sequence(self) -> int:
        return self.confirmed[-1].next_sequence if self.confirmed else 0

    def age_of(self, sequence: int) -> int | None:
        """How many batches were confirmed after the one with this sequence; None if it is not one
        of the last confirmed."""
        ages = [age for age, batch in enumerate(reversed(self.confirmed)) if batch.sequence == sequence]
        return ages[0] if ages else None


def value_of(place: ProducerPlace, sequence: int) -> str:
    """The value of the record that a producer sends to a log with this sequence number."""
    producer_id, (topic, partition) = place
    return f"{topic}-{partition}:{producer_id}:{sequence}"


class Ledger:
    """The state of each producer and log after the events applied so far. Apply them in the order
    of `at_ns`; `violations` grows with them."""

    def __init__(self, retention: Mapping[str, Retention]) -> None:
        self.logs: dict[Log, PurgedLog] = {}
        self.lanes: dict[ProducerPlace, ProducerLane] = {}
        self.lost: set[ProducerPlace] = set()
        """Producers whose state in the broker is unknown since a power cut with durability `os`."""
        self.ids: list[int] = []
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self._retention = retention
        self._sent: set[str] = set()
        self._old: set[str] = set()
        self._begins: dict[str, tuple[ProducerPlace, Batch]] = {}
        """The batch that begins with a value."""

    def log(self, topic: str, partition: int) -> PurgedLog:
        log = Log(topic, partition)
        if log not in self.logs:
            self.logs[log] = PurgedLog(self._retention.get(topic, Retention.NOTHING))
        return self.logs[log]

    def _violates(self, rule: str, detail: str, record: Record | None, *events: Event) -> None:
        self.violations.append(Violation(rule, detail, record, events))

    @singledispatchmethod
    def apply(self, event: Event) -> None:
        """Apply the next event of the history. Kinds of events without a rule here are ignored."""

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
            # A purge requested before the power cut may still take effect, but nothing beyond it.
            state.requested = max(state.requested, state.start)
            state.start = state.end = 0
            state.held.clear()
            state.confirmed_ends.clear()
            state.is_new = True

    @apply.register
    def _id_taken(self, event: IdTaken) -> None:
        if event.producer_id in self.ids:
            self._violates("id twice", f"producer id {event.producer_id} was assigned before", None, event)
        self.ids.append(event.producer_id)

    # -- batches
    # ----------------------------------------------------------------------------------------------

    @apply.register
    def _batch_sent(self, event: BatchSent) -> None:
        place = ProducerPlace(event.producer_id, Log(event.topic, event.partition))
        lane = self.lanes.setdefault(place, ProducerLane())
        self.log(*place.log)
        if lane.open is not None:
            assert event.sequence == lane.open.sequence, (
                f"a batch was sent after one without a response: {event}"
            )
            self.counts["retries"] += 1
        elif lane.age_of(event.sequence) is None:
            assert event.sequence == lane.next_sequence, f"a sequence number was skipped: {event}"
            lane.open = Batch(event.sequence, event.count, event.is_old)
            values = [value_of(place, event.sequence + number) for number in range(event.count)]
            self._begins[values[0]] = place, lane.open
            self._sent.update(values)
            self._old.update(values if event.is_old else ())

    @apply.register
    def _batch_answered(self, event: BatchAnswered) -> None:
        lane = self.lanes[ProducerPlace(event.producer_id, Log(event.topic, event.partition))]
        log = self.log(event.topic, event.partition)
        if lane.open is not None and lane.open.sequence == event.sequence:
            self._first_answered(event, lane, log, lane.open)
            return
        age = lane.age_of(event.sequence)
        assert age is not None, f"a response to a batch that was not sent: {event}"
        batch = lane.confirmed[-1 - age]
        if event.error:
            self._repeat_refused(event, log, batch, age)
        elif event.base_offset == batch.base_offset:
            self.counts["repeats_known"] += 1
        else:
            self._stored_again(event, lane, log, batch, age)

    def _first_answered(self, event: BatchAnswered, lane: ProducerLane, log: PurgedLog, batch: Batch) -> None:
        lane.open = None
        if event.error:
            self._violates(
                "refused", f"error {event.error} for sequence {event.sequence}, the next one", None, event
            )
        else:
            self.counts["confirmed_batches"] += 1
            self._stored(event, log, batch)
            lane.confirmed = [*lane.confirmed[1 - _KEPT :], batch]

    def _repeat_refused(self, event: BatchAnswered, log: PurgedLog, batch: Batch, age: int) -> None:
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
                f"a repeat of sequence {event.sequence}, {age} before the last, was refused",
                None,
                event,
            )

    def _stored_again(
        self, event: BatchAnswered, lane: ProducerLane, log: PurgedLog, batch: Batch, age: int
    ) -> None:
        assert batch.base_offset is not None
        self.counts["repeats_stored"] += 1
        first, again = (
            Record(event.topic, event.partition, offset) for offset in (batch.base_offset, event.base_offset)
        )
        if log.surely_keeps(first.offset):
            self._violates("stored twice", f"a repeat of the batch at {first} was stored again", again, event)
        elif not batch.crashed and age < REMEMBERED:
            self._violates(
                "forgotten",
                f"a repeat of the batch at {first} was stored again without a crash in between",
                again,
                event,
            )
        self._stored(event, log, batch)
        batch.crashed = False
        lane.confirmed = [batch]

    def _stored(self, event: BatchAnswered, log: PurgedLog, batch: Batch) -> None:
        batch.base_offset = event.base_offset
        place = ProducerPlace(event.producer_id, Log(event.topic, event.partition))
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

    def _hold(self, log: PurgedLog, record: Record, value: str, event: Event) -> None:
        """Note that the log must have the record from now on."""
        log.is_read = False
        log.confirmed_ends.append((event.at_ns, record.offset + 1))
        if record.offset < log.start:
            return
        before = log.held.setdefault(record.offset, HeldValue(value, value in self._old, event))
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
            self._violates("start", f"a purge failed with error {event.error}", None, event)
        elif event.start < log.start or (not log.open_ended and event.start < log.requested):
            self._violates(
                "start",
                f"a purge of the records below {log.requested} moved the start only to {event.start}",
                record,
                event,
            )
        elif not log.may_start_at(event.start):
            self._violates(
                "removed",
                f"a purge of the records below {log.requested} moved the start beyond it",
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
            self._violates("start", f"the log begins beyond its end, {event.end}", record, event)
        if event.start < log.start:
            self._violates("start", f"the log began at {log.start} before", record, event)
        elif not log.may_start_at(event.start):
            gone = dict.fromkeys(
                held.event for offset, held in sorted(log.held.items()) if offset < event.start
            )
            self._violates("removed", f"purges requested {log.requested} at most", record, event, *gone)
        if event.end < (end := log.known_end(event.asked_ns)):
            self._violates(
                "missing",
                f"the log ends at {event.end}, but offsets up to {end} were confirmed",
                record,
                event,
            )
        log.start = min(log.start, event.start)
        log.begin_at(event.start)
        # A purge that an earlier life received and did not carry out is not carried out later.
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
                detail = f"{held.value!r} was confirmed, but {reads[offset].value!r} is at its offset"
                self._violates("contradiction", detail, record, held.event, reads[offset])
        copies: dict[str, list[LogRead]] = defaultdict(list)
        for read in reads.values():
            if read.value not in self._sent:
                self._violates("invented", f"value {read.value!r} was never sent", read.record, read)
            copies[read.value].append(read)
        for value, found in copies.items():
            if len(found) > 1:
                detail = f"{value} is in the log {len(found)} times"
                self._violates("duplicated", detail, found[0].record, *found)
        if log.is_new:
            log.is_new = False
            self._adopt(log, reads)

    def _adopt(self, log: PurgedLog, reads: Mapping[int, LogRead]) -> None:
        """Take the records of a read as the log's new contents, and the batches in them as the last
        confirmed batches of their producers."""
        for offset, read in sorted(reads.items()):
            log.held[offset] = HeldValue(read.value, read.value in self._old, read)
            if read.value not in self._begins or read.is_cut:
                continue
            place, batch = self._begins[read.value]
            if offset + batch.count - 1 in reads:
                lane = self.lanes.setdefault(place, ProducerLane())
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
    """Check a history. `events` must be in the order of `at_ns`; history_events.merge merges those
    of several processes. `retention`: by topic.

    Raises AssertionError if the history contradicts itself, for instance by a response without a
    request.
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
    """Without a final read of every log, an absence of violations would prove nothing."""
    for log, state in sorted(ledger.logs.items()):
        if not state.is_read:
            yield Violation("incomplete", f"the log of {log.topic}-{log.partition} was not read at the end")
