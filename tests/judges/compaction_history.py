"""The checker of compacted topics: does a history keep what compaction promises to readers?

Idempotent producers write entries (compaction_events.py), some of them in transactions. Readers of
both isolation levels read the logs from the beginning, again and again, and so does a share group.

    incomplete    each log was read whole at the end, and the share group was drained
    lost          a reader of a whole log finds the latest value of each key, or a later one
    resurrected   ... and no older value of a key that was deleted
    early         ... and each latest tombstone for delete.retention.ms
    late          once all passes are done, each key has one record and no tombstone, and records of
                  aborted transactions are gone
    aborted       no reader with read_committed gets a record that was not to be committed
    contradiction an offset holds one entry for all readers at all times
    moved         an entry has one offset, in the log to which it was sent
    changed       key, value, headers and timestamp of an entry are those that were sent
    invented      each entry was sent
    disorder      the offsets that a reader gets of a log rise
    reordered     a producer's entries are in each log in the order in which it sent them
    skipped       a reader has got each record below its position that is still there at the end
    trimmed       the log of a topic that is only compacted starts at 0

The share group has rules of tests.judges.history: undone, two holders, count, count fell, and
unfinished for the records that are in the logs at the end.

The latest value of a key is the one with the highest offset of those that are certain when the
reader begins: confirmed, and committed. An open transaction before it may hold it back from a
reader with read_committed. Entries without an answer may be there or not. A reader who
takes longer than a tombstone lives may miss it; `excused` counts these cases.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tests.judges import history, log_rules
from tests.judges.compaction_events import (
    EntriesRead,
    EntryConfirmed,
    EntrySeen,
    EntrySent,
    LogScanned,
    PassNoted,
    Settled,
    Stage,
)
from tests.judges.history_events import (
    AckKind,
    Delivered,
    Event,
    LifeBegan,
    LifeEnded,
    LogRead,
    PowerLost,
    Record,
)
from tests.judges.log_rules import Violation
from tests.judges.transaction_events import CommitAsked, TransactionEnded, TransactionResult
from tests.judges.uncertain_events import without_what_a_cut_may_take

Log: TypeAlias = tuple[str, int]
_MS = 1_000_000
_SHARE_RULES = ("undone", "two holders", "count", "count fell", "unfinished")


@dataclass(frozen=True, slots=True)
class CompactionHistorySettings:
    """- `delete_retention_ms`: of all topics
    - `trimmed`: the topics of which retention may remove whole segments
    - `group`: of the share group
    - `may_lose_last_ms`: how long before a power cut something may have been confirmed that is
      lost"""

    delete_retention_ms: int
    group: history.GroupSettings
    trimmed: frozenset[str] = frozenset()
    may_lose_last_ms: int = 0


@dataclass(frozen=True, slots=True)
class CompactionStatistics:
    """- `cleaned`: entries that were confirmed or read, and are in no log at the end
    - `checked`: keys that were looked for in a scan
    - `kills_in_passes`, `cuts_in_passes`: kills of the broker, and power cuts, while a pass ran
    - `kills_in_replacements`, `cuts_in_replacements`: of these, while it wrote the new contents of
      a segment
    - `trimmed`: logs of which retention has removed a part"""

    lives: int
    entries: int
    confirmed: int
    tombstones: int
    aborted: int
    cleaned: int
    scans: int
    checked: int
    excused: int
    passes: int
    kills_in_passes: int
    kills_in_replacements: int
    cuts_in_passes: int
    cuts_in_replacements: int
    trimmed: int
    deliveries: int
    acknowledgements: int


Report: TypeAlias = log_rules.Report[CompactionStatistics]


@dataclass(slots=True)
class _Known:
    """An entry, and what the history tells of it. `offset`: -1 while unknown."""

    sent: EntrySent
    offset: int = -1
    confirmed_ns: int | None = None

    @property
    def log(self) -> Log:
        return self.sent.topic, self.sent.partition

    @property
    def key(self) -> tuple[str, int, str]:
        return (*self.log, self.sent.key)


@dataclass(slots=True)
class _Scan:
    """A LogScanned with the records that were read, in order."""

    event: LogScanned
    entries: list[EntrySeen]

    @property
    def log(self) -> Log:
        return self.event.topic, self.event.partition

    def holds_back(self, known: _Known) -> bool:
        """With read_committed, what follows the first record of an open transaction cannot be read.
        At the end none is open."""
        return self.event.is_committed and not self.event.is_final and known.offset >= self.event.end


@dataclass(slots=True, kw_only=True)
class _Index:
    """A history, indexed for the rules."""

    settings: CompactionHistorySettings
    share: history.Index
    entries: dict[str, _Known] = field(default_factory=dict)
    names: dict[Record, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    ended: dict[str, TransactionEnded] = field(default_factory=dict)
    read: dict[tuple[str, Log], list[EntriesRead]] = field(default_factory=lambda: defaultdict(list))
    scanned: list[LogScanned] = field(default_factory=list)
    settled: dict[Log, Settled] = field(default_factory=dict)
    tombstones: dict[tuple[str, int, str], list[_Known]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[Violation] = field(default_factory=list)
    """What shows at once, event by event."""
    maybe_finished: dict[Record, str] = field(default_factory=dict)
    """With their values. A cut came so soon after that it may have taken their delivery."""
    counts: Counter[str] = field(default_factory=Counter)
    longest_pass_ns: int = 0
    _may_be_aborted: list[tuple[_Known, Record, Event]] = field(default_factory=list)
    _stage: PassNoted | None = None
    _began_ns: int = 0

    def add(self, event: Event) -> None:
        self.share.add(event)
        match event:
            case EntrySent():
                assert event.name not in self.entries, f"sent twice: {event}"
                known = self.entries[event.name] = _Known(event)
                if event.is_tombstone:
                    self.tombstones[known.key].append(known)
            case EntryConfirmed():
                self.counts["confirmed"] += 1
                known = self.entries[event.name]
                known.confirmed_ns = event.at_ns
                if event.offset >= 0:
                    self._place(event.name, Record(*known.log, event.offset), event)
            case EntriesRead():
                self.read[event.reader, (event.topic, event.partition)].append(event)
                for each in event.entries:
                    record = Record(event.topic, event.partition, each.offset)
                    self._seen(each.name, each.digest, record, event, is_committed=event.is_committed)
            case Delivered():
                self._seen(event.value, event.digest, event.record, event, is_committed=True)
            case CommitAsked():
                self.asked.add(event.transaction)
            case TransactionEnded():
                self.ended[event.transaction] = event
            case LogScanned():
                self.scanned.append(event)
            case Settled():
                self.settled[event.topic, event.partition] = event
            case PassNoted() | LifeBegan() | LifeEnded() | PowerLost():
                self._pass(event)

    def _seen(self, name: str, digest: str, record: Record, event: Event, *, is_committed: bool) -> None:
        known = self.entries.get(name)
        if known is None:
            self.wrong.append(Violation("invented", f"nobody sent {name!r}", record, (_short(event),)))
            return
        if digest != known.sent.digest:
            self.wrong.append(Violation("changed", f"{name} differs", record, (known.sent, _short(event))))
        if record[:2] != known.log:
            self.wrong.append(Violation("moved", "to another log", record, (known.sent, _short(event))))
        self._place(name, record, event)
        if is_committed and known.sent.transaction:
            self._may_be_aborted.append((known, record, event))

    def _place(self, name: str, record: Record, event: Event) -> None:
        known = self.entries[name]
        if known.offset not in (-1, record.offset):
            detail = f"{name} was at {known.offset}"
            self.wrong.append(Violation("moved", detail, record, (known.sent, _short(event))))
        known.offset = record.offset
        other = self.names.setdefault(record, name)
        if other != name:
            events = (self.entries[other].sent, known.sent, _short(event))
            self.wrong.append(Violation("contradiction", f"{other} and {name}", record, events))

    def _pass(self, event: PassNoted | LifeBegan | LifeEnded | PowerLost) -> None:
        """A cut may precede the LifeEnded that it caused."""
        last, self._stage = self._stage, None
        if last is not None and last.stage is not Stage.ENDED:
            self.longest_pass_ns = max(self.longest_pass_ns, event.at_ns - self._began_ns)
            if isinstance(event, LifeEnded | PowerLost):
                what = "cuts" if isinstance(event, PowerLost) else "kills"
                self.counts[f"{what} in passes"] += 1
                self.counts[f"{what} in replacements"] += last.stage is Stage.REPLACING
        if isinstance(event, LifeBegan):
            self.counts["lives"] += 1
        elif isinstance(event, PassNoted):
            if event.stage is Stage.BEGAN:
                self._began_ns = event.at_ns
            self.counts["passes"] += event.stage is Stage.ENDED
            self._stage = event

    def finish(self) -> None:
        """Call this after the last add()."""
        for known, record, event in self._may_be_aborted:
            if self.is_aborted(known):
                detail = f"{known.sent.name} was read"
                ended = self.ended.get(known.sent.transaction)
                events = (known.sent, *([ended] if ended else []), _short(event))
                self.wrong.append(Violation("aborted", detail, record, events))
        for scan in self.final_scans():
            for each in scan.entries:
                self.share.add(LogRead(scan.event.at_ns, Record(*scan.log, each.offset), each.name))
        self.share.finish()

    def is_aborted(self, known: _Known) -> bool:
        """Whether it is certain that the entry does not count."""
        transaction = known.sent.transaction
        if not transaction:
            return False
        ended = self.ended.get(transaction)
        return transaction not in self.asked or (
            ended is not None and ended.result is TransactionResult.ABORTED
        )

    def certain_ns(self, known: _Known) -> int | None:
        """Since when it is certain that the entry counts; None: never."""
        if known.offset < 0:
            return None
        if not known.sent.transaction:
            return known.confirmed_ns
        ended = self.ended.get(known.sent.transaction)
        return ended.at_ns if ended is not None and ended.result is TransactionResult.COMMITTED else None

    def scans(self) -> Iterator[_Scan]:
        for event in self.scanned:
            found = self.read.get((event.reader, (event.topic, event.partition)), [])
            yield _Scan(event, [each for some in found for each in some.entries])

    def final_scans(self) -> Iterator[_Scan]:
        """Those with read_committed."""
        return (scan for scan in self.scans() if scan.event.is_final and scan.event.is_committed)


def check(events: Iterable[Event], settings: CompactionHistorySettings) -> Report:
    """Check a history in the order of `at_ns`. Raises AssertionError if it contradicts itself."""
    index = _Index(settings=settings, share=history.Index(settings=settings.group))
    uncertain = settings.may_lose_last_ms, index.maybe_finished
    for event in without_what_a_cut_may_take(list(events), *uncertain):
        index.add(event)
    index.finish()
    found = [violation for rule in RULES.values() for violation in rule(index)]
    return Report(tuple(found), _statistics(index))


def _short(event: Event) -> Event:
    """Without the other records that were read at the same time."""
    return replace(event, entries=()) if isinstance(event, EntriesRead) else event


def _incomplete(index: _Index) -> Iterator[Violation]:
    """Without a final read, an absence of violations would prove nothing."""
    read = {scan.log for scan in index.final_scans()}
    for topic, partition in sorted({known.log for known in index.entries.values()} - read):
        yield Violation("incomplete", f"the log of {topic}-{partition} was not read at the end")
    if index.share.drained is None:
        yield Violation("incomplete", "the share group was not drained at the end")


def _values(index: _Index) -> Iterator[Violation]:
    """The rules lost, resurrected and early: each key in each scan."""
    certain: dict[Log, list[tuple[int, _Known]]] = defaultdict(list)
    for known in index.entries.values():
        since_ns = index.certain_ns(known)
        if since_ns is not None:
            certain[known.log].append((since_ns, known))
    scans: dict[Log, list[_Scan]] = defaultdict(list)
    for scan in index.scans():
        scans[scan.log].append(scan)
    for log, of_log in scans.items():
        to_come = sorted(certain[log], key=lambda each: each[0], reverse=True)
        latest: dict[str, _Known] = {}
        for scan in sorted(of_log, key=lambda each: each.event.began_ns):
            while to_come and to_come[-1][0] <= scan.event.began_ns:
                _, known = to_come.pop()
                before = latest.get(known.sent.key)
                if before is None or before.offset < known.offset:
                    latest[known.sent.key] = known
            yield from _values_of(index, scan, latest)


def _values_of(index: _Index, scan: _Scan, latest: dict[str, _Known]) -> Iterator[Violation]:
    found: dict[str, tuple[int, _Known]] = {}
    for each in scan.entries:
        known = index.entries.get(each.name)
        if known is not None and not index.is_aborted(known):
            found[known.sent.key] = each.offset, known
    for key, expected in latest.items():
        if expected.offset < scan.event.start or scan.holds_back(expected):
            continue
        index.counts["checked"] += 1
        offset, last = found.get(key, (-1, None))
        if offset >= expected.offset:
            continue
        rule = _broken(index, scan, expected, last)
        if rule:
            detail = f"{scan.event.reader} ends with {last.sent.name if last else 'nothing'} for {key}"
            record = Record(*scan.log, expected.offset)
            events: tuple[Event, ...] = (expected.sent, *([last.sent] if last else []), scan.event)
            yield Violation(rule, detail, record, events)


def _broken(index: _Index, scan: _Scan, expected: _Known, last: _Known | None) -> str:
    """The rule that is broken, if any, when the scan ends with something older than `expected` for
    its key, or with nothing."""
    retention_ns = index.settings.delete_retention_ms * _MS
    deletions = [
        each
        for each in index.tombstones[expected.key]
        if not index.is_aborted(each) and (each.offset < 0 or each.offset >= expected.offset)
    ]
    if last is None:
        if any(each.sent.at_ns + retention_ns <= scan.event.at_ns for each in deletions):
            return ""
        return "early" if expected.sent.is_tombstone else "lost"
    if not any(each.sent.at_ns <= scan.event.at_ns for each in deletions):
        return "lost"
    # The first pass over the tombstone may have removed the older record just after it was read.
    if scan.event.at_ns - scan.event.began_ns >= retention_ns - index.longest_pass_ns:
        index.counts["excused"] += 1
        return ""
    return "resurrected"


def _late(index: _Index) -> Iterator[Violation]:
    for scan in index.scans():
        settled = index.settled.get(scan.log)
        if not scan.event.is_final or settled is None:
            continue
        last: dict[str, EntrySeen] = {}
        for each in scan.entries:
            known = index.entries.get(each.name)
            if known is None or each.offset >= settled.end:
                continue
            record, events = Record(*scan.log, each.offset), (known.sent, settled)
            if known.sent.is_tombstone:
                yield Violation("late", f"the tombstone {each.name} is still there", record, events)
            if index.is_aborted(known):
                yield Violation("late", f"{each.name} was aborted and is still there", record, events)
            elif known.sent.key in last:
                detail = f"{known.sent.key} is still at {last[known.sent.key].offset}, too"
                yield Violation("late", detail, record, events)
            last[known.sent.key] = each


def _order(index: _Index) -> Iterator[Violation]:
    """The rules disorder and reordered."""
    for (reader, log), events in index.read.items():
        last = -1
        for event in events:
            for each in event.entries:
                if each.offset <= last:
                    detail = f"{reader} got it after {last}"
                    yield Violation("disorder", detail, Record(*log, each.offset), (_short(event),))
                last = each.offset
    newest: dict[tuple[str, Log], _Known] = {}
    for known in index.entries.values():
        if known.offset < 0:
            continue
        before = newest.get((known.sent.producer, known.log))
        if before is not None and before.offset > known.offset:
            record = Record(*known.log, known.offset)
            yield Violation("reordered", f"after {before.offset}", record, (before.sent, known.sent))
        newest[known.sent.producer, known.log] = known


def _skipped(index: _Index) -> Iterator[Violation]:
    """A record of the final read was in the log when the reader passed it."""
    left = {scan.log: scan for scan in index.final_scans()}
    for (reader, log), events in index.read.items():
        got = {each.offset for event in events for each in event.entries}
        if log not in left or not got:
            continue
        position = max(got)
        for each in left[log].entries:
            if each.offset < position and each.offset not in got:
                detail = f"{reader} has read {position} without it"
                yield Violation("skipped", detail, Record(*log, each.offset), (_short(events[-1]),))


def _trimmed(index: _Index) -> Iterator[Violation]:
    for event in index.scanned:
        if event.start and event.topic not in index.settings.trimmed:
            yield Violation("trimmed", f"the log starts at {event.start}", None, (event,))


def _shared(index: _Index) -> Iterator[Violation]:
    for name in _SHARE_RULES:
        for violation in history.RULES[name](index.share):
            read = violation.record and index.share.log.get(violation.record)
            if name != "unfinished" or not read or index.maybe_finished.get(read.record) != read.value:
                yield violation


RULES: dict[str, Callable[[_Index], Iterator[Violation]]] = {
    "incomplete": _incomplete,
    "lost, resurrected, early": _values,
    "late": _late,
    "aborted, contradiction, moved, changed, invented": lambda index: iter(index.wrong),
    "disorder, reordered": _order,
    "skipped": _skipped,
    "trimmed": _trimmed,
    ", ".join(_SHARE_RULES): _shared,
}
"""By the rules that each one reports."""


def _statistics(index: _Index) -> CompactionStatistics:
    left = {(*scan.log, each.offset) for scan in index.final_scans() for each in scan.entries}
    holds = [hold for holds in index.share.holds.values() for hold in holds]
    return CompactionStatistics(
        lives=index.counts["lives"],
        entries=len(index.entries),
        confirmed=index.counts["confirmed"],
        tombstones=sum(map(len, index.tombstones.values())),
        aborted=sum(index.is_aborted(known) for known in index.entries.values()),
        cleaned=sum(
            known.offset >= 0 and (*known.log, known.offset) not in left for known in index.entries.values()
        ),
        scans=len(index.scanned),
        checked=index.counts["checked"],
        excused=index.counts["excused"],
        passes=index.counts["passes"],
        kills_in_passes=index.counts["kills in passes"],
        kills_in_replacements=index.counts["kills in replacements"],
        cuts_in_passes=index.counts["cuts in passes"],
        cuts_in_replacements=index.counts["cuts in replacements"],
        trimmed=len({(each.topic, each.partition) for each in index.scanned if each.start}),
        deliveries=len(holds),
        acknowledgements=sum(hold.has(*AckKind) for hold in holds),
    )
