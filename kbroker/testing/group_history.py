"""The judge of consumer groups: does a history of one group of ordinary consumers keep every promise?

Its members commit what they have read after they have read it (kbroker.testing.history_events, "members of a consumer group"). A
member's *turn* with a partition begins with Assigned and ends with Revoked, with Gone, or with the history. As in history.py only what
is certain is called a violation: whoever sends a commit may have it applied from then on, whoever is answered has it applied by then,
and an answer that never came leaves both open for good.

    start      a turn begins at an offset that can be the group's newest commit, or at the beginning if there is none for sure
    sequence   within a turn each record comes once, in the order of the log, and none is left out
    zombie     a commit of a member whose turn another member has taken over is not confirmed
    read       at the end every record of the log was read by somebody
    drained    at the end the group has committed the end of every log

Together they say: no record is left out, and one is read twice only where a turn ended without a confirmed commit behind it.

Expects one group that reads its topics from the beginning, topics without retention and without control batches, a final read of each
log and what the group has committed at the end. A history without these is "incomplete".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from kbroker.testing.history_events import (
    Assigned,
    CommitAnswered,
    CommitSent,
    CommittedAtEnd,
    Event,
    Gone,
    LifeBegan,
    Outcome,
    Read,
    Revoked,
)
from kbroker.testing.log_rules import (
    LogIndex,
    Violation,
    contradiction,
    duplicated,
    invented,
    missing,
    reordered,
    told,
    unread_logs,
)

Partition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Statistics:
    """`turns` of members with partitions, and how many of them ended without being told (`cut_short`). `reread`: deliveries of records
    that somebody had read before."""

    lives: int
    records: int
    turns: int
    cut_short: int
    reads: int
    reread: int
    confirmed_commits: int
    refused_commits: int
    unknown_commits: int


@dataclass(frozen=True, slots=True)
class Report:
    violations: tuple[Violation, ...]
    statistics: Statistics

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        return told(self.violations, self.statistics)


@dataclass(slots=True)
class _Commit:
    sent: CommitSent
    answered: CommitAnswered | None = None

    @property
    def outcome(self) -> Outcome:
        return self.answered.outcome if self.answered else Outcome.UNKNOWN

    def surely_applied_before(self, moment_ns: int) -> bool:
        return self.outcome is Outcome.CONFIRMED and self.answered is not None and self.answered.at_ns < moment_ns

    def events(self) -> tuple[Event, ...]:
        return (self.sent,) if self.answered is None else (self.sent, self.answered)


@dataclass(slots=True)
class _Turn:
    assigned: Assigned
    reads: list[Read] = field(default_factory=list)
    ended: Revoked | Gone | None = None

    @property
    def partition(self) -> Partition:
        return self.assigned.topic, self.assigned.partition


@dataclass(slots=True, kw_only=True)
class _Index(LogIndex):
    """A history sorted by what the rules ask for."""

    turns: dict[Partition, list[_Turn]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[Partition, list[_Commit]] = field(default_factory=lambda: defaultdict(list))
    at_end: dict[Partition, CommittedAtEnd] = field(default_factory=dict)
    lives: int = 0
    _open: dict[tuple[str, Partition], _Turn] = field(default_factory=dict)
    _asked: dict[tuple[str, Partition], _Commit] = field(default_factory=dict)

    def add(self, event: Event) -> bool:
        if LogIndex.add(self, event):
            return True
        match event:
            case Assigned():
                begun = self._open[event.consumer, (event.topic, event.partition)] = _Turn(event)
                self.turns[begun.partition].append(begun)
            case Read():
                turn = self._open.get((event.consumer, event.record[:2]))
                assert turn is not None, f"a record of a partition that the member does not have: {event}"
                turn.reads.append(event)
            case Revoked():
                self._end(event.consumer, (event.topic, event.partition), event)
            case Gone():
                for consumer, partition in list(self._open):
                    if consumer == event.consumer:
                        self._end(consumer, partition, event)
            case CommitSent() | CommitAnswered():
                self._committed(event)
            case CommittedAtEnd():
                self.at_end[event.topic, event.partition] = event
            case LifeBegan():
                self.lives += 1
        return False

    def _end(self, consumer: str, partition: Partition, event: Revoked | Gone) -> None:
        turn = self._open.pop((consumer, partition), None)
        if turn is not None:
            turn.ended = event

    def _committed(self, event: CommitSent | CommitAnswered) -> None:
        place = event.consumer, (event.topic, event.partition)
        if isinstance(event, CommitSent):
            self._asked[place] = _Commit(event)
            self.commits[place[1]].append(self._asked[place])
            return
        assert place in self._asked, f"an answer to what was never sent: {event}"
        self._asked.pop(place).answered = event


def check(events: Iterable[Event]) -> Report:
    """Judge a history. `events` in the order of `at_ns` (history_events.merge makes one of several).

    AssertionError: the history contradicts itself (a read without a turn, an answer without a commit).
    """
    index = _Index()
    for event in events:
        index.add(event)
    violations = tuple(violation for rule in RULES.values() for violation in rule(index))
    return Report(violations, _statistics(index))


def _statistics(index: _Index) -> Statistics:
    turns = [turn for turns in index.turns.values() for turn in turns]
    outcomes = [commit.outcome for commits in index.commits.values() for commit in commits]
    return Statistics(
        lives=index.lives,
        records=len(index.log),
        turns=len(turns),
        cut_short=sum(isinstance(turn.ended, Gone) or (isinstance(turn.ended, Revoked) and turn.ended.lost) for turn in turns),
        reads=sum(len(turn.reads) for turn in turns),
        reread=sum(len(seen) - 1 for seen in index.seen.values()),
        confirmed_commits=outcomes.count(Outcome.CONFIRMED),
        refused_commits=outcomes.count(Outcome.REFUSED),
        unknown_commits=outcomes.count(Outcome.UNKNOWN),
    )


def _incomplete(index: _Index) -> Iterator[Violation]:
    yield from unread_logs(index)
    for topic, partition in sorted(index.logs_read - index.at_end.keys()):
        yield Violation("incomplete", f"nobody asked for what is committed of {topic}-{partition} at the end")


def _start(index: _Index) -> Iterator[Violation]:
    """Nobody begins where the group has not got to, nor where it has got past; nor does it end there."""
    for partition, turns in index.turns.items():
        for turn in turns:
            if turn.reads:
                first = turn.reads[0]
                found = _possible_offsets(index.commits[partition], turn.assigned.asked_ns, first.at_ns)
                if first.record.offset not in found:
                    detail = f"begins at {first.record.offset}; what it may have found: {sorted(found)}"
                    yield Violation("start", detail, first.record, (turn.assigned, first))
    for partition, committed in index.at_end.items():
        found = _possible_offsets(index.commits[partition], committed.at_ns, committed.at_ns)
        if max(committed.offset, 0) not in found:
            yield Violation("start", f"ends with {committed.offset}; what may have been committed: {sorted(found)}", None, (committed,))


def _possible_offsets(commits: list[_Commit], since_ns: int, until_ns: int) -> set[int]:
    """What somebody can have found who looked between these moments for what is committed; 0: nothing."""
    possible = [commit for commit in commits if commit.sent.at_ns < until_ns and commit.outcome is not Outcome.REFUSED]
    newest_ns = max((commit.sent.at_ns for commit in possible if commit.surely_applied_before(since_ns)), default=0)
    newest = {commit.sent.offset for commit in possible if commit.answered is None or commit.answered.at_ns >= newest_ns}
    return newest | (set() if newest_ns else {0})


def _sequence(index: _Index) -> Iterator[Violation]:
    """Offsets within a turn rise one by one: the logs of these tests have no holes."""
    for turns in index.turns.values():
        for turn in turns:
            for before, after in zip(turn.reads, turn.reads[1:], strict=False):
                if after.record.offset != before.record.offset + 1:
                    detail = f"offset {after.record.offset} after {before.record.offset} within one turn"
                    yield Violation("sequence", detail, after.record, (turn.assigned, before, after))


def _zombie(index: _Index) -> Iterator[Violation]:
    """Who has lost a partition to another member cannot say any more how far the group has got."""
    for partition, commits in index.commits.items():
        turns = index.turns[partition]
        for commit in commits:
            if commit.outcome is not Outcome.CONFIRMED:
                continue
            own = [turn for turn in turns if turn.assigned.consumer == commit.sent.consumer and turn.assigned.at_ns < commit.sent.at_ns]
            since_ns = own[-1].assigned.at_ns if own else 0
            taken = [turn for turn in turns if turn not in own and since_ns < turn.assigned.asked_ns and _holds(turn, commit)]
            if taken:
                events = (*commit.events(), taken[-1].assigned)
                yield Violation("zombie", f"a commit of {commit.sent.offset} by a member that had lost the partition", None, events)


def _holds(turn: _Turn, commit: _Commit) -> bool:
    """The member has its turn for as long as the commit was under way."""
    assert commit.answered is not None
    begun = turn.assigned.at_ns < commit.sent.at_ns and turn.assigned.consumer != commit.sent.consumer
    return begun and (turn.ended is None or turn.ended.at_ns > commit.answered.at_ns)


def _unread(index: _Index) -> Iterator[Violation]:
    for record, read in index.log.items():
        if record not in index.seen:
            yield Violation("read", "nobody has read it", record, (read,))


def _undrained(index: _Index) -> Iterator[Violation]:
    ends: dict[Partition, int] = defaultdict(int)
    for record in index.log:
        ends[record[:2]] = max(ends[record[:2]], record.offset + 1)
    for partition, committed in index.at_end.items():
        if ends[partition] and committed.offset != ends[partition]:
            detail = f"{committed.offset} is committed of {partition[0]}-{partition[1]}, which ends at {ends[partition]}"
            yield Violation("drained", detail, None, (committed,))


RULES: dict[str, Callable[[_Index], Iterator[Violation]]] = {
    "incomplete": _incomplete,
    "missing": missing,
    "contradiction": contradiction,
    "invented": invented,
    "duplicated": duplicated,
    "reordered": reordered,
    "start": _start,
    "sequence": _sequence,
    "zombie": _zombie,
    "read": _unread,
    "drained": _undrained,
}
