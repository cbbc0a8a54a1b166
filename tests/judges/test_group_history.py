"""Each rule of the judge of consumer groups: a history that keeps it and one that breaks only that
rule."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.judges.group_history import RULES, Report, check
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
            self.events += [
                Sent(MS, "p", str(offset)),
                SendConfirmed(2 * MS, "p", str(offset), Record(T, 0, offset)),
            ]

    def assign(self, at: int, consumer: str, *, asked: int | None = None) -> None:
        self.events.append(Assigned(at * MS, (at - 1 if asked is None else asked) * MS, consumer, T, 0))

    def read(self, at: int, consumer: str, *offsets: int) -> None:
        self.events += [Read(at * MS, consumer, Record(T, 0, offset), str(offset)) for offset in offsets]

    def commit(
        self,
        at: int,
        consumer: str,
        offset: int,
        outcome: Outcome | None = Outcome.CONFIRMED,
        *,
        answered: int | None = None,
    ) -> None:
        self.events.append(CommitSent(at * MS, consumer, T, 0, offset))
        if outcome is not None:
            self.events.append(
                CommitAnswered((at + 1 if answered is None else answered) * MS, consumer, T, 0, outcome)
            )

    def revoke(self, at: int, consumer: str, *, lost: bool = False) -> None:
        self.events.append(Revoked(at * MS, consumer, T, 0, lost))

    def gone(self, at: int, consumer: str) -> None:
        self.events.append(Gone(at * MS, consumer))

    def back(self, at: int, consumer: str) -> None:
        self.events.append(Back(at * MS, consumer))

    def broker_killed(self, at: int) -> None:
        self.events += [LifeEnded(at * MS, 1), LifeBegan(at * MS + 1, 2)]

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
    """`a` reads two records, commits them and hands over to `b`, which reads the rest."""
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
    assert (
        counts.turns,
        counts.cut_short,
        counts.reads,
        counts.reread,
        counts.confirmed_commits,
        counts.records,
    ) == (2, 0, 4, 0, 2, 4)


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


def _after_two_records_read(
    commit: Outcome | None, start: int, *, killed_at: int | None = None, answered: int | None = None
) -> Report:
    """`a` commits as given and is killed; `b` begins at `start` and commits everything."""
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 2, commit, answered=answered)
    if killed_at is not None:
        story.broker_killed(killed_at)
    story.gone(44, "a")
    story.assign(50, "b")
    story.read(51, "b", *range(start, 4))
    story.commit(52, "b", 4)
    return story.judge()


def test_a_refused_commit_does_not_hold() -> None:
    assert rules(_after_two_records_read(Outcome.REFUSED, 2)) == {"start"}
    assert _after_two_records_read(Outcome.REFUSED, 0).ok


def test_a_refused_commit_may_hold_if_the_broker_died_before_the_answer() -> None:
    """The client repeats the request that it sent to the broker that died, which may have applied
    it."""
    for start in (0, 2):
        assert _after_two_records_read(Outcome.REFUSED, start, killed_at=20, answered=30).ok
    assert rules(_after_two_records_read(Outcome.REFUSED, 2, killed_at=35, answered=30)) == {"start"}


def _given_up_and_committed_higher(start: int, *, killed_at: int) -> Report:
    """A commit of 1 without an answer, then a confirmed one of 2; then `b` begins at `start`."""
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 1, Outcome.UNKNOWN)
    story.broker_killed(killed_at)
    story.commit(30, "a", 2)
    story.revoke(34, "a")
    story.assign(40, "b")
    story.read(41, "b", *range(start, 4))
    story.commit(42, "b", 4)
    return story.judge()


def test_a_commit_that_was_given_up_may_hold_until_the_broker_is_dead() -> None:
    assert _given_up_and_committed_higher(1, killed_at=60).ok
    assert rules(_given_up_and_committed_higher(1, killed_at=20)) == {"start"}
    assert _given_up_and_committed_higher(2, killed_at=20).ok


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


def _handed_over(start: int, *, lost: bool = False, gone: bool = False) -> Report:
    """`b` sent its last request long ago; `a` commits 1, then 2, and gives the partition up."""
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    story.commit(12, "a", 1)
    story.commit(22, "a", 2)
    if gone:
        story.gone(23, "a")
    story.revoke(24, "a", lost=lost)
    story.assign(40, "b", asked=14)
    story.read(41, "b", *range(start, 4))
    story.commit(42, "b", 4)
    return story.judge()


def test_who_gets_a_partition_that_was_handed_over_asks_after_that() -> None:
    assert _handed_over(2).ok
    assert rules(_handed_over(1)) == {"start"}
    assert _handed_over(1, gone=True).ok
    assert rules(_handed_over(1, lost=True)) == {"evicted"}


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


def test_a_frozen_member_goes_on_for_a_while() -> None:
    """It does its work and then learns that it has lost the partition."""
    early = Story()
    early.assign(10, "a")
    early.gone(11, "a")
    early.assign(20, "b")
    early.read(21, "b", 0, 1)
    early.commit(22, "b", 2)
    early.back(30, "a")
    early.read(31, "a", 0, 1)
    early.commit(32, "a", 2, Outcome.REFUSED)
    early.revoke(34, "a", lost=True)
    early.read(35, "b", 2, 3)
    early.commit(36, "b", 4)
    report = early.judge()
    assert report.ok, report
    assert (report.statistics.reread, report.statistics.cut_short) == (2, 1)
    early.commit(40, "a", 4)
    assert rules(early.judge()) == {"zombie"}


def test_who_was_frozen_may_be_told_what_holds_no_more(story: Story) -> None:
    """An old answer waited for it: it assigns a partition that other members have had meanwhile. So
    the member is not an owner that lost it unfairly."""
    story.gone(23, "c")
    story.back(24, "c")
    story.assign(25, "c")
    story.commit(26, "b", 4)
    story.revoke(28, "c", lost=True)
    assert story.judge().ok


def test_who_was_frozen_counts_again_after_a_confirmed_commit(story: Story) -> None:
    story.gone(23, "b")
    story.back(24, "b")
    story.commit(25, "b", 4)
    story.revoke(27, "b")
    story.assign(28, "b")
    story.revoke(30, "b", lost=True)
    assert rules(story.judge()) == {"evicted"}


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_losing_a_partition_without_being_asked(story: Story, gone: bool, killed: bool) -> None:
    if killed:
        story.broker_killed(24)
    if gone:
        story.gone(25, "b")
    story.revoke(26, "b", lost=True)
    assert rules(story.judge()) == (set() if gone or killed else {"evicted"})


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("outcome", [None, Outcome.REFUSED, Outcome.UNKNOWN])
def test_giving_up_what_is_not_committed(outcome: Outcome | None, killed: bool, gone: bool) -> None:
    """A broker that rejects the last commit of a member that it makes give up a partition."""
    story = Story()
    story.assign(10, "a")
    story.read(11, "a", 0, 1)
    if killed:
        story.broker_killed(12)
    if gone:
        story.gone(13, "a")
    if outcome is not None:
        story.commit(14, "a", 2, outcome)
    story.revoke(16, "a")
    story.assign(20, "b")
    story.read(21, "b", 0, 1, 2, 3)
    story.commit(22, "b", 4)
    assert rules(story.judge()) == (set() if gone or killed else {"uncommitted"})


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


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Read(30 * MS, "a", Record(T, 0, 0), "0"), "does not have"),
        (Assigned(30 * MS, 30 * MS, "b", T, 0), "has this partition already"),
        (Revoked(30 * MS, "a", T, 0), "does not have"),
        (CommitAnswered(30 * MS, "a", T, 0, Outcome.CONFIRMED), "not sent"),
    ],
)
def test_what_is_no_history(story: Story, event: Event, words: str) -> None:
    story.events.append(event)
    with pytest.raises(AssertionError, match=words):
        story.judge()


def test_a_commit_before_the_last_one_is_answered(story: Story) -> None:
    story.commit(30, "b", 4, None)
    story.commit(31, "b", 4)
    with pytest.raises(AssertionError, match="has no response"):
        story.judge()


def test_events_come_back_from_json(story: Story) -> None:
    story.gone(50, "b")
    story.back(51, "b")
    assert [from_json(to_json(event)) for event in story.history()] == story.history()


def test_every_rule_has_a_history_that_breaks_it() -> None:
    """The rules of the log have theirs in test_history.py."""
    assert set(RULES) == {
        "incomplete",
        "start",
        "sequence",
        "zombie",
        "evicted",
        "uncommitted",
        "read",
        "drained",
    } | {
        "missing",
        "contradiction",
        "invented",
        "duplicated",
        "reordered",
    }


def test_commits_that_are_moved_are_noticed() -> None:
    """Long orderly histories, and the same with one confirmed commit or one start changed by
    one."""
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
    """Several members in turn with a partition of 100 records: each commits its position at the end
    of its turn."""
    events: list[Event] = [LifeBegan(0, 1)]
    at, offset = 10, 0
    for value in range(100):
        events += [Sent(at, "p", str(value)), SendConfirmed(at + 1, "p", str(value), Record(T, 0, value))]
    while offset < 100:
        at += 100
        name = f"m{chooser.randrange(3)}"
        events.append(Assigned(at, at - 1, name, T, 0))
        count = min(chooser.randint(1, 20), 100 - offset)
        events += [
            Read(at + 1, name, Record(T, 0, offset + each), str(offset + each)) for each in range(count)
        ]
        offset += count
        events += [
            CommitSent(at + 2, name, T, 0, offset),
            CommitAnswered(at + 3, name, T, 0, Outcome.CONFIRMED),
            Revoked(at + 4, name, T, 0),
        ]
    events += [LogRead(at + 9, Record(T, 0, each), str(each)) for each in range(100)]
    return [*events, LogReadDone(at + 9, T, 0), CommittedAtEnd(at + 9, T, 0, 100)]
