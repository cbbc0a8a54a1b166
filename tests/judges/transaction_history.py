"""The checker of transactions: does a history keep exactly once, as readers with read_committed see
it?

Producers write transactions to topics (transaction_events.py). Some of them make their records from
those of an input topic, and commit their position in it within the same transaction. Other readers
with read_committed read all logs from the beginning meanwhile (Read), and one at the end (LogRead).

    incomplete    each log, its stable end and the group's offsets were read at the end
    stuck         at the end no transaction holds back a reader
    contradictory the ends that a producer has received agree
    lost          each record of a committed transaction is in its log
    aborted       no record is ever read whose transaction was aborted, or was never to be committed
    torn          all or none of a transaction with an unknown end is in the logs
    early         no record is read before its producer has asked for the commit
    duplicated    each value is in the logs once
    invented      each value was written
    misplaced     a record is in the log to which it was sent
    reordered     a producer's records are in each log in the order in which it sent them
    missing       what a reader has read is still there at the end
    contradiction an offset holds one value for all readers at all times
    skipped       a reader gets all records up to its position: what it passed does not appear later
    unprocessed   an output was made from each input ...
    repeated      ... only once ...
    unread input  ... and from nothing else
    undrained     the group has committed the end of its inputs

A power cut may take the transactions that ended shortly before it, but only whole, if the history
is checked with `may_lose_last_ms`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.judges import log_rules
from tests.judges.history_events import (
    CommittedAtEnd,
    Event,
    LifeBegan,
    LogRead,
    PowerLost,
    Read,
    Record,
)
from tests.judges.log_rules import LogIndex, Violation, contradiction
from tests.judges.transaction_events import (
    CommitAsked,
    Planned,
    StableEndSeen,
    TransactionBegan,
    TransactionEnded,
    TransactionResult,
)

Log: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TransactionHistorySettings:
    """`inputs`: the topic whose records are transformed; "": none. `may_lose_last_ms`: how long
    before a power cut an end may have been answered that is lost."""

    inputs: str = ""
    may_lose_last_ms: int = 0


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """`unknown`: no end was confirmed although a commit was requested. `lost`: committed, but taken
    by a power cut."""

    lives: int
    transactions: int
    committed: int
    aborted: int
    unknown: int
    lost: int
    reads: int
    outputs: int


Report: TypeAlias = log_rules.Report[TransactionStatistics]


@dataclass(slots=True)
class _Transaction:
    began: TransactionBegan
    asked: CommitAsked | None = None
    ends: list[TransactionEnded] = field(default_factory=list)

    @property
    def result(self) -> TransactionResult:
        told = {event.result for event in self.ends}
        if TransactionResult.COMMITTED in told:
            return TransactionResult.COMMITTED
        return (
            TransactionResult.ABORTED
            if TransactionResult.ABORTED in told or self.asked is None
            else TransactionResult.UNKNOWN
        )

    def events(self) -> tuple[Event, ...]:
        return (self.began, *([self.asked] if self.asked else []), *self.ends)


@dataclass(slots=True, kw_only=True)
class _Index(LogIndex):
    """A history, indexed for the rules. `places`: where the final read has found each value."""

    settings: TransactionHistorySettings
    transactions: dict[str, _Transaction] = field(default_factory=dict)
    planned: dict[str, tuple[_Transaction, Planned]] = field(default_factory=dict)
    places: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    readers: dict[tuple[str, Log], dict[int, Read]] = field(default_factory=lambda: defaultdict(dict))
    stable: dict[Log, StableEndSeen] = field(default_factory=dict)
    at_end: dict[Log, CommittedAtEnd] = field(default_factory=dict)
    cut_ns: list[int] = field(default_factory=list)
    lives: int = 0

    def add(self, event: Event) -> bool:
        if LogIndex.add(self, event):
            if isinstance(event, LogRead):
                self.places[event.value].append(event.record)
            return True
        match event:
            case TransactionBegan():
                assert event.transaction not in self.transactions, f"begins twice: {event}"
                found = self.transactions[event.transaction] = _Transaction(event)
                for each in event.records:
                    assert each.value not in self.planned, f"sent twice: {each}"
                    self.planned[each.value] = found, each
            case CommitAsked():
                self.transactions[event.transaction].asked = event
            case TransactionEnded():
                self.transactions[event.transaction].ends.append(event)
            case Read():
                self.readers[event.consumer, event.record[:2]][event.record.offset] = event
            case StableEndSeen():
                self.stable[event.topic, event.partition] = event
            case CommittedAtEnd():
                self.at_end[event.topic, event.partition] = event
            case PowerLost():
                self.cut_ns.append(event.at_ns)
            case LifeBegan():
                self.lives += 1
        return False

    def found(self, transaction: _Transaction) -> list[Planned]:
        """Its records that are in the logs at the end."""
        return [each for each in transaction.began.records if each.value in self.places]

    def may_be_lost(self, transaction: _Transaction) -> bool:
        """Whether a power cut has taken it, and was allowed to."""
        if not self.settings.may_lose_last_ms or self.found(transaction):
            return False
        window_ns = self.settings.may_lose_last_ms * 1_000_000
        asked_ns = transaction.asked.at_ns if transaction.asked else transaction.began.at_ns
        ended_ns = max((event.at_ns for event in transaction.ends), default=0)
        # Without an answer it may have been committed, and read, until the cut.
        return any(asked_ns <= cut_ns and not 0 < ended_ns < cut_ns - window_ns for cut_ns in self.cut_ns)


def check(events: Iterable[Event], settings: TransactionHistorySettings | None = None) -> Report:
    """`events` in the order of their times (history_events.merge)."""
    index = _Index(settings=settings or TransactionHistorySettings())
    for event in events:
        index.add(event)
    violations = tuple(violation for rule in RULES.values() for violation in rule(index))
    results = Counter(each.result for each in index.transactions.values())
    committed = [each for each in index.transactions.values() if each.result is TransactionResult.COMMITTED]
    return Report(
        violations,
        TransactionStatistics(
            lives=index.lives,
            transactions=len(index.transactions),
            committed=results[TransactionResult.COMMITTED],
            aborted=results[TransactionResult.ABORTED],
            unknown=results[TransactionResult.UNKNOWN],
            lost=sum(index.may_be_lost(each) for each in committed),
            reads=sum(len(seen) for seen in index.readers.values()),
            outputs=len(_sources(index)),
        ),
    )


def _incomplete(index: _Index) -> Iterator[Violation]:
    logs = {(each.topic, each.partition) for _, each in index.planned.values()}
    logs |= {event.record[:2] for event in index.confirmed}
    for topic, partition in sorted(logs - index.logs_read):
        yield Violation("incomplete", f"the log of {topic}-{partition} was not read at the end")
    for topic, partition in sorted(logs - index.stable.keys()):
        yield Violation("incomplete", f"the stable end of {topic}-{partition} was not read")
    for topic, partition in sorted(index.logs_read - index.at_end.keys()):
        if topic == index.settings.inputs:
            yield Violation("incomplete", f"the committed offset of {topic}-{partition} was not read")


def _stuck(index: _Index) -> Iterator[Violation]:
    for log, seen in index.stable.items():
        if seen.stable < seen.high_watermark:
            place = Record(*log, seen.stable)
            yield Violation("stuck", f"an open transaction holds back {seen.high_watermark}", place, (seen,))


def _contradictory(index: _Index) -> Iterator[Violation]:
    for each in index.transactions.values():
        told = {event.result for event in each.ends} - {TransactionResult.UNKNOWN}
        if len(told) > 1 or (TransactionResult.COMMITTED in told and each.asked is None):
            yield Violation("contradictory", "committed, but that cannot be", None, each.events())


def _whole(index: _Index) -> Iterator[Violation]:
    """The rules lost and torn, and aborted for the final read."""
    for each in index.transactions.values():
        found, planned = index.found(each), each.began.records
        places = [index.places[one.value][0] for one in found]
        first = places[0] if places else None
        absent = [one.value for one in planned if one.value not in index.places]
        if each.result is TransactionResult.COMMITTED:
            if absent and not index.may_be_lost(each):
                detail = f"{len(absent)} of {len(planned)} committed records are not there: {absent}"
                yield Violation("torn" if found else "lost", detail, first, each.events())
        elif each.result is TransactionResult.ABORTED:
            if found:
                yield Violation("aborted", f"{len(found)} of {len(planned)} are there", first, each.events())
        elif found and absent:
            yield Violation("torn", f"{absent} of {len(planned)} are not there", first, each.events())


def _aborted_reads(index: _Index) -> Iterator[Violation]:
    """The rules aborted and early, during the test."""
    for event in _reads(index):
        if event.value not in index.planned:
            continue
        transaction, _ = index.planned[event.value]
        events = (*transaction.events(), event)
        if transaction.result is TransactionResult.ABORTED:
            yield Violation("aborted", f"{event.value} was read", event.record, events)
        elif transaction.asked is not None and event.at_ns < transaction.asked.at_ns:
            yield Violation("early", f"{event.value} was read before the commit", event.record, events)


def _reads(index: _Index) -> Iterator[Read]:
    for seen in index.readers.values():
        yield from seen.values()


def _seen(index: _Index) -> Iterator[Read | LogRead]:
    yield from index.log.values()
    yield from _reads(index)


def _duplicated(index: _Index) -> Iterator[Violation]:
    seen: dict[str, dict[Record, Event]] = defaultdict(dict)
    for event in _seen(index):
        seen[event.value].setdefault(event.record, event)
    once = index.planned.keys() | {value for value, sent in index.sent.items() if sent.idempotent}
    for value, found in seen.items():
        # Plain producers send again what a dying broker has not confirmed.
        if len(found) > 1 and value in once:
            places = ", ".join(map(str, found))
            events = tuple(found.values())
            if value in index.planned:
                events += index.planned[value][0].events()
            yield Violation("duplicated", f"{value} is at {places}", next(iter(found)), events)


def _invented(index: _Index) -> Iterator[Violation]:
    for event in _seen(index):
        if event.value in index.planned:
            _, planned = index.planned[event.value]
            if (planned.topic, planned.partition) != event.record[:2]:
                yield Violation("misplaced", f"it was sent as {planned}", event.record, (event,))
        elif event.value not in index.sent:
            yield Violation("invented", f"nobody wrote {event.value!r}", event.record, (event,))


def _reordered(index: _Index) -> Iterator[Violation]:
    last: dict[tuple[str, Log], Record] = {}
    for transaction in sorted(index.transactions.values(), key=lambda each: each.began.at_ns):
        for each in index.found(transaction):
            record = index.places[each.value][0]
            key = transaction.began.producer, record[:2]
            if key in last and last[key].offset > record.offset:
                earlier = index.log[last[key]]
                events = (earlier, index.log[record])
                yield Violation("reordered", f"{earlier.value} was sent before it", record, events)
            last[key] = record


def _missing(index: _Index) -> Iterator[Violation]:
    for event in _reads(index):
        if event.record in index.log:
            continue
        transaction, _ = index.planned.get(event.value, (None, None))
        if transaction is None or not index.may_be_lost(transaction):
            events = (event, *(transaction.events() if transaction else ()))
            yield Violation("missing", f"{event.value} was read and is gone", event.record, events)
    for confirmed in index.confirmed:
        if confirmed.record not in index.log:
            yield Violation("missing", f"{confirmed.value} is gone", confirmed.record, (confirmed,))


def _contradiction(index: _Index) -> Iterator[Violation]:
    """Unless a power cut may have taken those records."""
    for violation in contradiction(index):
        values = {event.value for event in violation.events if isinstance(event, Read | LogRead)}
        lost = [
            value
            for value in values & index.planned.keys()
            if value not in index.places and index.may_be_lost(index.planned[value][0])
        ]
        if len(values) - len(lost) > 1:
            yield violation


def _skipped(index: _Index) -> Iterator[Violation]:
    """A reader that is past an offset has passed everything below it for good."""
    logs: dict[Log, list[int]] = defaultdict(list)
    for record in index.log:
        logs[record[:2]].append(record.offset)
    for (reader, log), seen in index.readers.items():
        position = max(seen)
        for offset in sorted(logs[log]):
            if offset < position and offset not in seen:
                read = index.log[Record(*log, offset)]
                events: tuple[Event, ...] = (seen[position], read)
                if read.value in index.planned:
                    events += index.planned[read.value][0].events()
                yield Violation("skipped", f"{reader} has read {position} without it", read.record, events)


def _sources(index: _Index) -> dict[str, list[Record]]:
    """The outputs made from each input, as far as they are in the logs."""
    found: dict[str, list[Record]] = defaultdict(list)
    for value, (_, planned) in index.planned.items():
        if planned.source and value in index.places:
            found[planned.source] += index.places[value]
    return found


def _outputs(index: _Index) -> Iterator[Violation]:
    """The rules unprocessed, repeated and unread input."""
    if not index.settings.inputs:
        return
    sources = _sources(index)
    inputs = {read.value: read for read in index.log.values() if read.record.topic == index.settings.inputs}
    for value, read in inputs.items():
        if value not in sources:
            yield Violation("unprocessed", f"{value} has no output", read.record, (read,))
    for value, places in sources.items():
        outputs = tuple(index.log[place] for place in places)
        events: tuple[Event, ...] = outputs
        events += tuple(index.planned[each.value][0].began for each in outputs)
        if len(places) > 1:
            yield Violation("repeated", f"{value} has {len(places)} outputs", places[0], events)
        if value not in inputs:
            yield Violation("unread input", f"{value} is no input", places[0], events)


def _undrained(index: _Index) -> Iterator[Violation]:
    """Markers may follow the last record."""
    ends: dict[Log, int] = defaultdict(int)
    for record in index.log:
        ends[record[:2]] = max(ends[record[:2]], record.offset + 1)
    for log, committed in index.at_end.items():
        if log not in index.stable or not ends[log]:
            continue
        end = index.stable[log].high_watermark
        if not ends[log] <= committed.offset <= end:
            detail = f"{committed.offset} is committed; records end at {ends[log]}, the log at {end}"
            yield Violation("undrained", detail, Record(*log, committed.offset), (committed,))


RULES: dict[str, Callable[[_Index], Iterator[Violation]]] = {
    "incomplete": _incomplete,
    "stuck": _stuck,
    "contradictory": _contradictory,
    "lost, aborted, torn": _whole,
    "aborted, early": _aborted_reads,
    "duplicated": _duplicated,
    "invented, misplaced": _invented,
    "reordered": _reordered,
    "missing": _missing,
    "contradiction": _contradiction,
    "skipped": _skipped,
    "unprocessed, repeated, unread input": _outputs,
    "undrained": _undrained,
}
"""By the rules that each one reports."""
