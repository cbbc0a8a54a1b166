"""Each rule of the judge of consumer groups: a history that keeps it and one that breaks it, with only that rule speaking."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kbroker.testing.group_history import RULES, Report, check
from kbroker.testing.history_events import (
    Assigned,
    CommitAnswered,
    CommitSent,
    CommittedAtEnd,
    Event,
    Gone,
    LifeBegan,
    LogRead,
    LogReadDone,
    Outcome,
    Read,
    Record,
    Revoked,
    SendConfirmed,
    Sent,
    from_json,
    merge,
    to_json,
)

MS = 1_000_000
T = "orders"


class Story:
    """A history of one partition with four records, times in milliseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = [LifeBegan(0, 1)]
        for offset in range(4):
            self.events += [Sent(MS, "p", str(offset)), SendConfirmed(2 * MS, "p", str(offset), Record(T, 0, offset))]

    def assign(self, at: int, consumer: str, *, asked: int | None = None) -> None:
        self.events.append(Assigned(at * MS, (at - 1 if asked is None else asked) * MS, consumer, T, 0))

    def read(self, at: int, consumer: str, *offsets: int) -> None:
        self.events += [Read(at * MS, consumer, Record(T, 0, offset), str(offset)) for offset in offsets]

    def commit(
        self, at: int, consumer: str, offset: int, outcome: Outcome | None = Outcome.CONFIRMED, *, answered: int | None = None
    ) -> None:
        self.events.append(CommitSent(at * MS, consumer, T, 0, offset))
        if outcome is not None:
            self.events.append(CommitAnswered((at + 1 if answered is None else answered) * MS, consumer, T, 0, outcome))

    def revoke(self, at: int, consumer: str, *, lost: bool = False) -> None:
        self.events.append(Revoked(at * MS, consumer, T, 0, lost))

    def gone(self, at: int, consumer: str) -> None:
        self.events.append(Gone(at * MS, consumer))

    def history(self, *, log: int = 4, committed: int | None = 4, logs_read: bool = True) -> list[Event]:
        end = max(event.at_ns for event in self.events) + MS
        final: list[Event] = [LogRead(end, Record(T, 0, offset), str(offset)) for offset in range(log)]
        final += [LogReadDone(end, T, 0)] if logs_read else []
        final += [] if committed is None else [CommittedAtEnd(end, T, 0, committed)]
        return merge([self.events, final])

    def judge(self, *, log: int = 4, committed: int | None = 4, logs_read: bool = True) -> Report:
        return check(self.history(log=log, committed=committed, logs_read=logs_read))


def rules(report: Report) -> set[str]:
    return {violation.rule for violation in report.violations}


@pytest.fixture
def story() -> Story:
    """`a` reads two records, commits them and hands over to `b`, who reads the rest."""
    told = Story()
    told.assign(10, "a")
    told.read(11, "a", 0, 1)
    told.commit(12, "a", 2)
    told.revoke(14, "a")
    told.assign(20, "b")
    told.read(21, "b", 2, 3)
    told.commit(22, "b", 4)
    return told


def test_an_orderly_history(story: Story) -> None:
    report = story.judge()
    assert report.ok, report
    counts = report.statistics
    assert (counts.turns, counts.cut_short, counts.reads, counts.reread, counts.confirmed_commits, counts.records) == (2, 0, 4, 0, 2, 4)


def test_beginning_behind_a_confirmed_commit() -> None:
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 2)
    story.gone(14, "a")
    story.assign(20, "b")
    story.read(21, "b", 1, 2, 3)
    story.commit(22, "b", 4)
    assert rules(story.judge()) == {"start"}


def test_beginning_beyond_every_commit() -> None:
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 1)
    story.gone(14, "a")
    story.assign(20, "b")
    story.read(21, "b", 2, 3)
    story.commit(22, "b", 4)
    assert rules(story.judge()) == {"start"}


@pytest.mark.parametrize("start", [0, 2])
def test_a_commit_without_an_answer_may_hold_or_not(start: int) -> None:
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 2, None)
    story.gone(14, "a")
    story.assign(20, "b")
    story.read(21, "b", *range(start, 4))
    story.commit(22, "b", 4)
    report = story.judge()
    assert report.ok, report
    assert report.statistics.reread == 2 - start
    assert report.statistics.cut_short == 1


def test_a_refused_commit_does_not_hold() -> None:
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 2, Outcome.REFUSED)
    story.revoke(14, "a", lost=True)
    story.assign(20, "b")
    story.read(21, "b", 2, 3)
    story.commit(22, "b", 4)
    assert rules(story.judge()) == {"start"}


def test_a_commit_answered_while_the_next_member_asks_may_hold_or_not() -> None:
    for start in (0, 2):
        story = Story()
        story.assign(10, "a")
        story.read(11, "a", 0, 1)
        story.commit(12, "a", 2, answered=30)
        story.gone(31, "a")
        story.assign(40, "b", asked=20)
        story.read(41, "b", *range(start, 4))
        story.commit(42, "b", 4)
        assert story.judge().ok


@pytest.mark.parametrize("offsets", [(0, 2, 3), (0, 1, 1, 2, 3), (0, 2, 1, 3)])
def test_an_order_that_is_not_the_logs(offsets: tuple[int, ...]) -> None:
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", *offsets)
    story.commit(12, "a", 4)
    assert rules(story.judge()) - {"read"} == {"sequence"}


def test_a_zombie_commits(story: Story) -> None:
    story.commit(23, "a", 2)
    story.commit(25, "b", 4)
    assert rules(story.judge()) == {"zombie"}


def test_a_zombie_is_refused(story: Story) -> None:
    story.commit(23, "a", 2, Outcome.REFUSED)
    assert story.judge().ok


def test_a_member_that_has_its_partition_again_is_no_zombie(story: Story) -> None:
    story.revoke(30, "b")
    story.assign(40, "a")
    story.commit(41, "a", 4)
    assert story.judge().ok


def test_a_record_that_nobody_reads(story: Story) -> None:
    assert rules(story.judge(log=5)) == {"read", "invented", "drained"}


def test_a_group_that_has_not_got_to_the_end(story: Story) -> None:
    story.commit(25, "b", 3)
    assert rules(story.judge(committed=3)) == {"drained"}


@pytest.mark.parametrize("committed", [3, -1])
def test_a_commit_that_is_lost_at_the_end(story: Story, committed: int) -> None:
    assert rules(story.judge(committed=committed)) == {"drained", "start"}


def test_histories_that_do_not_say_everything(story: Story) -> None:
    assert rules(story.judge(logs_read=False)) == {"incomplete"}
    assert rules(story.judge(committed=None)) == {"incomplete"}


def test_a_record_that_was_read_is_gone(story: Story) -> None:
    assert rules(story.judge(log=3)) == {"missing", "drained"}


def test_reading_without_a_turn_is_no_history(story: Story) -> None:
    story.read(30, "a", 0)
    with pytest.raises(AssertionError, match="does not have"):
        story.judge()


def test_events_come_back_from_json(story: Story) -> None:
    story.gone(50, "b")
    assert [from_json(to_json(event)) for event in story.history()] == story.history()


def test_every_rule_has_a_history_that_breaks_it() -> None:
    """The rules of the log have theirs in test_history.py."""
    assert set(RULES) == {"incomplete", "start", "sequence", "zombie", "read", "drained"} | {
        "missing",
        "contradiction",
        "invented",
        "duplicated",
        "reordered",
    }


def test_commits_that_are_moved_are_noticed() -> None:
    """Long orderly histories, and the same with one confirmed commit or one start moved by one."""
    chooser = random.Random(7)
    for _ in range(50):
        events = _long_history(chooser)
        assert check(events).ok
        commits = [place for place, event in enumerate(events) if isinstance(event, CommitSent)]
        place = chooser.choice(commits)
        moved = events[place]
        assert isinstance(moved, CommitSent)
        events[place] = replace(moved, offset=moved.offset + chooser.choice([-1, 1]))
        report = check(events)
        assert not report.ok, moved


def _long_history(chooser: random.Random) -> list[Event]:
    """Turns of several members with a partition of 100 records: each commits what it has read at the end of its turn."""
    events: list[Event] = [LifeBegan(0, 1)]
    at, offset = 10, 0
    for value in range(100):
        events += [Sent(at, "p", str(value)), SendConfirmed(at + 1, "p", str(value), Record(T, 0, value))]
    while offset < 100:
        at += 100
        name = f"m{chooser.randrange(3)}"
        events.append(Assigned(at, at - 1, name, T, 0))
        count = min(chooser.randint(1, 20), 100 - offset)
        events += [Read(at + 1, name, Record(T, 0, offset + each), str(offset + each)) for each in range(count)]
        offset += count
        events += [
            CommitSent(at + 2, name, T, 0, offset),
            CommitAnswered(at + 3, name, T, 0, Outcome.CONFIRMED),
            Revoked(at + 4, name, T, 0),
        ]
    events += [LogRead(at + 9, Record(T, 0, each), str(each)) for each in range(100)]
    return [*events, LogReadDone(at + 9, T, 0), CommittedAtEnd(at + 9, T, 0, 100)]
