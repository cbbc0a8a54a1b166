"""The checker of consumer groups: does a history of one group of ordinary consumers keep every
promise?

Members commit after they have read (tests.judges.history_events, "members of a consumer group").
A member's *turn* with a partition begins with Assigned and ends with Revoked or with the history. A
turn is *shaky* from the moment at which the member is Gone. It is shaky from its beginning if the
member was Gone and no commit has been confirmed since it came Back.

As in history.py, a rule reports only certain violations. A commit may be applied from the moment it
is sent, and is applied by the time its response arrives. Without a response both outcomes stay
possible, until every broker process that may have received it has ended.

    start        a turn begins at an offset that can be the group's newest commit, or at the
                 beginning if there is certainly none
    sequence     within a turn each record is read once, in log order, and none is left out
    zombie       a commit of a member whose partition another member has taken over is not confirmed
    evicted      no member loses a partition without a Revoked, unless its turn is shaky or the
                 broker was killed meanwhile
    uncommitted  a member that gives up a partition has committed all records that it has read, with
                 the same exceptions
    read         at the end a member has read every record of the log
    drained      at the end the group has committed the end of every log

Together these rules say that no record is left out, and that a record is read twice only if a
member or the broker died or froze before its commit.

A history needs

    one group that reads its topics from the beginning
    topics without retention and without control batches
    a final read of each log, and the group's committed offsets at the end

Otherwise the checker reports it as "incomplete".
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from tests.judges import log_rules
from tests.judges.history_events import (
    Assigned,
    Back,
    CommitAnswered,
    CommitSent,
    CommittedAtEnd,
    Event,
    Gone,
    LifeBegan,
    LifeEnded,
    Outcome,
    Read,
    Revoked,
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

Partition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """`cut_short`: turns that were lost or shaky. `reread`: reads of records that a member had read
    before."""

    lives: int
    records: int
    turns: int
    cut_short: int
    reads: int
    reread: int
    confirmed_commits: int
    refused_commits: int
    unknown_commits: int


Report: TypeAlias = log_rules.Report[GroupStatistics]


@dataclass(slots=True)
class _Commit:
    """`outcome`: UNKNOWN unless certain. `until_ns`: the time by which it is applied, if it ever
    is; None: not known."""

    sent: CommitSent
    answered: CommitAnswered | None = None
    outcome: Outcome = Outcome.UNKNOWN
    until_ns: int | None = None

    def events(self) -> tuple[Event, ...]:
        return (self.sent,) if self.answered is None else (self.sent, self.answered)


@dataclass(slots=True)
class _Turn:
    assigned: Assigned
    shaky_ns: int | None = None
    """From then on the member may have lost the partition without having been notified."""
    reads: list[Read] = field(default_factory=list)
    ended: Revoked | None = None

    @property
    def partition(self) -> Partition:
        return self.assigned.topic, self.assigned.partition

    @property
    def certain_until_ns(self) -> float:
        """Until then the member certainly has the partition, if any member has."""
        return min(
            self.ended.at_ns if self.ended else math.inf, math.inf if self.shaky_ns is None else self.shaky_ns
        )


@dataclass(slots=True)
class _Member:
    """`turns`: its open turns. `back_ns`: the time of the Back after its last Gone; 0: none."""

    turns: dict[Partition, _Turn] = field(default_factory=dict)
    asked: dict[Partition, _Commit] = field(default_factory=dict)
    shaky: bool = False
    back_ns: int = 0


@dataclass(slots=True, kw_only=True)
class _Index(LogIndex):
    """A history, indexed for the rules."""

    turns: dict[Partition, list[_Turn]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[Partition, list[_Commit]] = field(default_factory=lambda: defaultdict(list))
    at_end: dict[Partition, CommittedAtEnd] = field(default_factory=dict)
    lives: int = 0
    deaths: list[int] = field(default_factory=list)
    """The end of each life of the broker."""
    _members: dict[str, _Member] = field(default_factory=lambda: defaultdict(_Member))

    def add(self, event: Event) -> bool:
        if LogIndex.add(self, event):
            return True
        match event:
            case Read():
                turn = self._members[event.consumer].turns.get(event.record[:2])
                assert turn is not None, f"a record of a partition that the member does not have: {event}"
                turn.reads.append(event)
            case CommitSent() | CommitAnswered():
                self._committed(event)
            case Assigned() | Revoked():
                self._turned(event)
            case Gone():
                member = self._members[event.consumer]
                member.shaky, member.back_ns = True, 0
                for turn in member.turns.values():
                    turn.shaky_ns = turn.shaky_ns or event.at_ns
            case Back():
                self._members[event.consumer].back_ns = event.at_ns
            case CommittedAtEnd():
                self.at_end[event.topic, event.partition] = event
            case LifeBegan():
                self.lives += 1
            case LifeEnded():
                self.deaths.append(event.at_ns)
        return False

    def _turned(self, event: Assigned | Revoked) -> None:
        member, partition = self._members[event.consumer], (event.topic, event.partition)
        if isinstance(event, Assigned):
            assert partition not in member.turns, f"the member has this partition already: {event}"
            turn = member.turns[partition] = _Turn(event, event.at_ns if member.shaky else None)
            self.turns[partition].append(turn)
            return
        assert partition in member.turns, f"the member does not have this partition: {event}"
        member.turns.pop(partition).ended = event

    def _committed(self, event: CommitSent | CommitAnswered) -> None:
        member, partition = self._members[event.consumer], (event.topic, event.partition)
        if isinstance(event, CommitSent):
            assert partition not in member.asked, f"the commit before it has no response: {event}"
            member.asked[partition] = _Commit(event)
            self.commits[partition].append(member.asked[partition])
            return
        assert partition in member.asked, f"a response to a commit that was not sent: {event}"
        commit = member.asked.pop(partition)
        commit.answered, commit.outcome = event, event.outcome
        if event.outcome is Outcome.CONFIRMED and member.back_ns and member.back_ns < commit.sent.at_ns:
            member.shaky = False

    def settle(self) -> None:
        """Call this after the last add(): it finds what is certain about each commit."""
        for commit in chain.from_iterable(self.commits.values()):
            if commit.answered is None:
                continue
            if commit.outcome is Outcome.REFUSED and self.died_between(
                commit.sent.at_ns, commit.answered.at_ns
            ):
                # The client may have sent it in both lives, and the first may have applied it.
                commit.outcome = Outcome.UNKNOWN
            if commit.outcome is not Outcome.UNKNOWN:
                commit.until_ns = commit.answered.at_ns
            elif (next_death := bisect_right(self.deaths, commit.answered.at_ns)) < len(self.deaths):
                # Until then it may wait in a connection from which the broker has not read it.
                commit.until_ns = self.deaths[next_death]

    def died_between(self, since_ns: int, until_ns: int) -> bool:
        place = bisect_right(self.deaths, since_ns)
        return place < len(self.deaths) and self.deaths[place] < until_ns


def check(events: Iterable[Event]) -> Report:
    """Check a history. `events` must be in the order of `at_ns`; history_events.merge merges those
    of several processes.

    Raises AssertionError if the history contradicts itself: a read without a turn, a turn within a
    turn, or a response without a commit.
    """
    index = _Index()
    for event in events:
        index.add(event)
    index.settle()
    violations = tuple(violation for rule in RULES.values() for violation in rule(index))
    return Report(violations, _statistics(index))


def _statistics(index: _Index) -> GroupStatistics:
    turns = [turn for turns in index.turns.values() for turn in turns]
    outcomes = [commit.outcome for commits in index.commits.values() for commit in commits]
    return GroupStatistics(
        lives=index.lives,
        records=len(index.log),
        turns=len(turns),
        cut_short=sum(
            turn.shaky_ns is not None or (turn.ended is not None and turn.ended.lost) for turn in turns
        ),
        reads=sum(len(turn.reads) for turn in turns),
        reread=sum(len(seen) - 1 for seen in index.seen.values()),
        confirmed_commits=outcomes.count(Outcome.CONFIRMED),
        refused_commits=outcomes.count(Outcome.REFUSED),
        unknown_commits=outcomes.count(Outcome.UNKNOWN),
    )


def _incomplete(index: _Index) -> Iterator[Violation]:
    yield from unread_logs(index)
    for topic, partition in sorted(index.logs_read - index.at_end.keys()):
        yield Violation("incomplete", f"the committed offset of {topic}-{partition} was not read at the end")


def _start(index: _Index) -> Iterator[Violation]:
    """A turn begins neither before nor after the group's newest commit, and the committed offset at
    the end is the newest one."""
    for partition, turns in index.turns.items():
        orderly = sorted(
            turn.ended.at_ns
            for turn in turns
            if turn.shaky_ns is None and turn.ended is not None and not turn.ended.lost
        )
        for turn in turns:
            if turn.reads:
                first = turn.reads[0]
                # A member that gave the partition up in order did so before the next one could
                # fetch the committed offset.
                handed_over = bisect_left(orderly, turn.assigned.at_ns)
                since_ns = max(turn.assigned.asked_ns, orderly[handed_over - 1] if handed_over else 0)
                found = _possible_offsets(index.commits[partition], since_ns, first.at_ns)
                if first.record.offset not in found:
                    detail = f"begins at {first.record.offset}; it may have fetched: {sorted(found)}"
                    yield Violation("start", detail, first.record, (turn.assigned, first))
    for partition, committed in index.at_end.items():
        found = _possible_offsets(index.commits[partition], committed.at_ns, committed.at_ns)
        if max(committed.offset, 0) not in found:
            yield Violation(
                "start",
                f"ends with {committed.offset}; possible commits: {sorted(found)}",
                None,
                (committed,),
            )


def _possible_offsets(commits: list[_Commit], since_ns: int, until_ns: int) -> set[int]:
    """The committed offsets that a fetch between these times may have returned; 0: none is
    committed."""
    possible = [
        commit for commit in commits if commit.sent.at_ns < until_ns and commit.outcome is not Outcome.REFUSED
    ]
    applied = [
        commit
        for commit in possible
        if commit.outcome is Outcome.CONFIRMED and (commit.until_ns or 0) < since_ns
    ]
    newest_ns = max((commit.sent.at_ns for commit in applied), default=0)
    newest = {
        commit.sent.offset for commit in possible if commit.until_ns is None or commit.until_ns >= newest_ns
    }
    return newest | (set() if newest_ns else {0})


def _sequence(index: _Index) -> Iterator[Violation]:
    """Offsets within a turn rise one by one, since the logs of these tests have no holes."""
    for turns in index.turns.values():
        for turn in turns:
            for before, after in zip(turn.reads, turn.reads[1:], strict=False):
                if after.record.offset != before.record.offset + 1:
                    detail = f"offset {after.record.offset} after {before.record.offset} within one turn"
                    yield Violation("sequence", detail, after.record, (turn.assigned, before, after))


def _zombie(index: _Index) -> Iterator[Violation]:
    """A member that has lost a partition to another one can no longer commit for it."""
    for partition, commits in index.commits.items():
        turns = index.turns[partition]
        for commit in commits:
            if commit.outcome is not Outcome.CONFIRMED:
                continue
            own = [
                turn
                for turn in turns
                if turn.assigned.consumer == commit.sent.consumer and turn.assigned.at_ns < commit.sent.at_ns
            ]
            since_ns = own[-1].assigned.at_ns if own else 0
            taken = [turn for turn in turns if since_ns < turn.assigned.asked_ns and _holds(turn, commit)]
            if taken:
                events = (*commit.events(), taken[-1].assigned)
                yield Violation(
                    "zombie",
                    f"a commit of {commit.sent.offset} by a member that had lost the partition",
                    None,
                    events,
                )


def _holds(turn: _Turn, commit: _Commit) -> bool:
    """Whether another member's turn certainly lasted for as long as the commit was in flight."""
    assert commit.answered is not None
    begun = turn.assigned.at_ns < commit.sent.at_ns and turn.assigned.consumer != commit.sent.consumer
    return begun and turn.certain_until_ns > commit.answered.at_ns


def _evicted(index: _Index) -> Iterator[Violation]:
    for turn in chain.from_iterable(index.turns.values()):
        if turn.ended is not None and turn.ended.lost and _is_unhurt(index, turn):
            yield Violation(
                "evicted", "lost without a request to give it up", None, (turn.assigned, turn.ended)
            )


def _uncommitted(index: _Index) -> Iterator[Violation]:
    for partition, turns in index.turns.items():
        confirmed = {
            (each.sent.consumer, each.sent.offset)
            for each in index.commits[partition]
            if each.outcome is Outcome.CONFIRMED
        }
        for turn in turns:
            if turn.ended is not None and not turn.ended.lost and turn.reads and _is_unhurt(index, turn):
                last = turn.reads[-1]
                if (last.consumer, last.record.offset + 1) not in confirmed:
                    yield Violation(
                        "uncommitted",
                        "given up before it was committed",
                        last.record,
                        (turn.assigned, last, turn.ended),
                    )


def _is_unhurt(index: _Index, turn: _Turn) -> bool:
    """Neither the member nor the broker was killed or frozen during the turn."""
    assert turn.ended is not None
    return turn.shaky_ns is None and not index.died_between(turn.assigned.asked_ns, turn.ended.at_ns)


def _unread(index: _Index) -> Iterator[Violation]:
    for record, read in index.log.items():
        if record not in index.seen:
            yield Violation("read", "no member has read it", record, (read,))


def _undrained(index: _Index) -> Iterator[Violation]:
    ends: dict[Partition, int] = defaultdict(int)
    for record in index.log:
        ends[record[:2]] = max(ends[record[:2]], record.offset + 1)
    for partition, committed in index.at_end.items():
        if ends[partition] and committed.offset != ends[partition]:
            detail = (
                f"{committed.offset} is committed of {partition[0]}-{partition[1]}, which ends at "
                f"{ends[partition]}"
            )
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
    "evicted": _evicted,
    "uncommitted": _uncommitted,
    "read": _unread,
    "drained": _undrained,
}
