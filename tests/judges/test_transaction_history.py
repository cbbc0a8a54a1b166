"""Each rule of the judge of transactions: a history that keeps it and one that breaks only that
rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.judges.history_events import (
    CommittedAtEnd,
    Event,
    LifeBegan,
    LogRead,
    LogReadDone,
    PowerLost,
    Read,
    Record,
    SendConfirmed,
    Sent,
    from_json,
    merge,
    to_json,
)
from tests.judges.transaction_events import (
    CommitAsked,
    Planned,
    StableEndSeen,
    TransactionBegan,
    TransactionEnded,
    TransactionResult,
)
from tests.judges.transaction_history import RULES, Report, TransactionHistorySettings, check

MS = 1_000_000
EVENTS, INPUTS, OUTPUTS = "events", "inputs", "outputs"
SETTINGS = TransactionHistorySettings(INPUTS)


class Story:
    """Topics of one partition. Two inputs; `commit` and `abort` write to EVENTS, `transform` to
    OUTPUTS. The final read finds what was committed unless a test changes it. Times in
    milliseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = [LifeBegan(0, 1)]
        self.log: dict[Record, str] = {}
        self.stable = dict.fromkeys((EVENTS, INPUTS, OUTPUTS), 100)
        self.offset = 2
        for offset in range(2):
            place = Record(INPUTS, 0, offset)
            self.events += [Sent(1, "f", f"in{offset}", True), SendConfirmed(2, "f", f"in{offset}", place)]
            self.log[place] = f"in{offset}"
        self.ended: list[Event] = []

    def begin(self, at: int, name: str, *values: str, source: str = "") -> None:
        topic = OUTPUTS if source else EVENTS
        planned = tuple(Planned(topic, 0, value, source) for value in values)
        self.events.append(TransactionBegan(at * MS, "p", name, planned))

    def store(self, *values: str, topic: str = EVENTS) -> None:
        for value in values:
            self.log[Record(topic, 0, self.offset)] = value
            self.offset += 1
        self.offset += 1  # the marker

    def ask(self, at: int, name: str) -> None:
        self.events.append(CommitAsked(at * MS, name))

    def end(self, at: int, name: str, result: TransactionResult) -> None:
        self.events.append(TransactionEnded(at * MS, name, result))

    def commit(self, at: int, name: str, *values: str, source: str = "") -> None:
        self.begin(at, name, *values, source=source)
        self.ask(at + 2, name)
        self.end(at + 4, name, TransactionResult.COMMITTED)
        self.store(*values, topic=OUTPUTS if source else EVENTS)

    def abort(self, at: int, name: str, *values: str) -> None:
        self.begin(at, name, *values)
        self.end(at + 4, name, TransactionResult.ABORTED)
        self.offset += len(values) + 1

    def read(self, at: int, *offsets: int, reader: str = "r") -> None:
        for offset in offsets:
            place = Record(EVENTS, 0, offset)
            self.events.append(Read(at * MS, reader, place, self.log.get(place, "?")))

    def check(self, settings: TransactionHistorySettings = SETTINGS, *, committed: int = 2) -> Report:
        end: list[Event] = []
        for place, value in self.log.items():
            end.append(LogRead(1000 * MS, place, value))
        for topic, stable in self.stable.items():
            end += [LogReadDone(1000 * MS, topic, 0), StableEndSeen(1000 * MS, topic, 0, stable, 100)]
        end.append(CommittedAtEnd(1000 * MS, INPUTS, 0, committed))
        return check(merge([self.events, end]), settings)

    def move(self, value: str, offset: int) -> None:
        for place in [each for each, found in self.log.items() if found == value]:
            del self.log[place]
        self.log[Record(EVENTS, 0, offset)] = value

    def remove(self, value: str) -> None:
        for place in [each for each, found in self.log.items() if found == value]:
            del self.log[place]


def good() -> Story:
    """Offsets of EVENTS: a0 2, a1 3, marker 4, b0 5, marker 6; outputs 7 and 9; c0 11, c1 12."""
    story = Story()
    story.commit(10, "a", "a0", "a1")
    story.abort(20, "b", "b0")
    story.commit(30, "x", "x0", source="in0")
    story.commit(40, "y", "y0", source="in1")
    story.commit(50, "c", "c0", "c1")
    story.begin(60, "u", "u0", "u1")
    story.ask(62, "u")
    story.read(70, 2, 3, 11, 12)
    return story


def rules(report: Report) -> set[str]:
    return {violation.rule for violation in report.violations}


def test_a_good_history() -> None:
    report = good().check()
    assert report.ok, str(report)
    done = report.statistics
    assert (done.transactions, done.committed, done.aborted, done.unknown) == (6, 4, 1, 1)
    assert (done.outputs, done.reads, done.lives) == (2, 4, 1)


def test_an_unknown_end_may_be_a_commit() -> None:
    story = good()
    story.store("u0", "u1")
    assert story.check().ok


def stuck(story: Story) -> None:
    story.stable[EVENTS] = 50


def told_of_both_ends(story: Story) -> None:
    story.end(55, "c", TransactionResult.ABORTED)


def committed_unasked(story: Story) -> None:
    story.begin(80, "d", "d0")
    story.end(84, "d", TransactionResult.COMMITTED)
    story.store("d0")


def lost(story: Story) -> None:
    story.commit(80, "d", "d0", "d1")
    story.remove("d0")
    story.remove("d1")


def torn_commit(story: Story) -> None:
    story.commit(80, "d", "d0", "d1")
    story.remove("d1")


def torn_unknown(story: Story) -> None:
    story.store("u1")


def aborted_at_end(story: Story) -> None:
    story.store("b0")


def never_to_be_committed(story: Story) -> None:
    story.begin(80, "d", "d0")
    story.store("d0")


def aborted_read(story: Story) -> None:
    """The reader before it leaves out what an abort takes from the final read."""
    story.abort(80, "d", "d0")
    place = Record(EVENTS, 0, story.offset - 2)
    story.events.append(Read(90 * MS, "r", place, "d0"))


def early(story: Story) -> None:
    story.begin(80, "d", "d0")
    story.store("d0")
    story.read(85, story.offset - 2)
    story.ask(90, "d")


def twice(story: Story) -> None:
    story.store("a0")


def input_twice(story: Story) -> None:
    story.log[Record(INPUTS, 0, 2)] = "in0"


def invented(story: Story) -> None:
    story.store("nobody's")


def misplaced(story: Story) -> None:
    story.remove("x0")
    story.store("x0", topic=EVENTS)


def reordered(story: Story) -> None:
    story.commit(80, "d", "d0", "d1")
    story.move("d1", story.offset - 4)
    story.log[Record(EVENTS, 0, story.offset - 2)] = "d0"
    story.remove("d0")
    story.log[Record(EVENTS, 0, story.offset - 2)] = "d0"


def gone(story: Story) -> None:
    story.begin(80, "d", "d0")
    story.ask(81, "d")
    story.events.append(Read(85 * MS, "r", Record(EVENTS, 0, 80), "d0"))


def input_gone(story: Story) -> None:
    story.events.append(SendConfirmed(3, "f", "in2", Record(INPUTS, 0, 2)))


def contradiction(story: Story) -> None:
    story.events.append(Read(85 * MS, "s", Record(EVENTS, 0, 2), "a1"))


def skipped(story: Story) -> None:
    story.read(90, 12, reader="late")


def unprocessed(story: Story) -> None:
    story.log[Record(INPUTS, 0, 2)] = "in2"
    story.events.append(Sent(1, "f", "in2", True))


def repeated(story: Story) -> None:
    story.commit(80, "z", "z0", source="in0")


def from_nothing(story: Story) -> None:
    story.commit(80, "z", "z0", source="in9")


BROKEN: list[tuple[Callable[[Story], None], set[str]]] = [
    (stuck, {"stuck"}),
    (told_of_both_ends, {"contradictory"}),
    (committed_unasked, {"contradictory"}),
    (lost, {"lost"}),
    (torn_commit, {"torn"}),
    (torn_unknown, {"torn"}),
    (aborted_at_end, {"aborted", "reordered"}),
    (never_to_be_committed, {"aborted"}),
    (aborted_read, {"aborted", "missing"}),
    (early, {"early"}),
    (twice, {"duplicated"}),
    (input_twice, {"duplicated"}),
    (invented, {"invented"}),
    (misplaced, {"misplaced", "reordered"}),
    (reordered, {"reordered"}),
    (gone, {"missing"}),
    (input_gone, {"missing"}),
    (contradiction, {"contradiction", "duplicated"}),
    (skipped, {"skipped"}),
    (unprocessed, {"unprocessed"}),
    (repeated, {"repeated"}),
    (from_nothing, {"unread input"}),
]


@pytest.mark.parametrize(("breaks", "expected"), BROKEN, ids=[each.__name__ for each, _ in BROKEN])
def test_a_rule(breaks: Callable[[Story], None], expected: set[str]) -> None:
    story = good()
    breaks(story)
    ends = max(offset for topic, _, offset in story.log if topic == INPUTS) + 1
    assert rules(story.check(committed=ends)) == expected, str(story.check(committed=ends))


@pytest.mark.parametrize("committed", [-1, 1, 101])
def test_the_group_has_committed_the_end(committed: int) -> None:
    assert rules(good().check(committed=committed)) == {"undrained"}


@pytest.mark.parametrize("committed", [2, 3, 100])
def test_markers_may_follow_the_last_input(committed: int) -> None:
    assert good().check(committed=committed).ok


def test_a_log_that_was_not_read() -> None:
    story = good()
    del story.stable[OUTPUTS]
    for value in ("x0", "y0"):
        story.remove(value)
    assert "incomplete" in rules(story.check())


class TestPowerCuts:
    LENIENT = TransactionHistorySettings(INPUTS, may_lose_last_ms=300)

    def cut(self, *, at: int, end: int, left: int = 0) -> Story:
        """A transaction that ended shortly before the cut, with so many of its two records left."""
        story = good()
        story.begin(end - 5, "d", "d0", "d1")
        story.ask(end - 3, "d")
        story.end(end, "d", TransactionResult.COMMITTED)
        story.store(*["d0", "d1"][:left])
        story.events.append(PowerLost(at * MS, promises_end=True))
        return story

    def test_takes_what_ended_just_before_it(self) -> None:
        report = self.cut(at=500, end=300).check(self.LENIENT)
        assert report.ok, str(report)
        assert report.statistics.lost == 1

    def test_takes_nothing_else(self) -> None:
        assert rules(self.cut(at=700, end=300).check(self.LENIENT)) == {"lost"}

    def test_takes_it_only_whole(self) -> None:
        assert rules(self.cut(at=500, end=300, left=1).check(self.LENIENT)) == {"torn"}

    def test_takes_nothing_unless_it_may(self) -> None:
        assert rules(self.cut(at=500, end=300).check()) == {"lost"}

    def test_takes_what_a_reader_has_seen_and_gives_its_offset_away(self) -> None:
        story = self.cut(at=500, end=300)
        story.events.append(Read(400 * MS, "r", Record(EVENTS, 0, 80), "d0"))
        assert story.check(self.LENIENT).ok
        assert rules(story.check()) == {"lost", "missing"}
        story.commit(600, "e", "e0")
        story.move("e0", 80)
        assert story.check(self.LENIENT).ok


def test_events_survive_json() -> None:
    story = good()
    story.events += [StableEndSeen(5, EVENTS, 0, 1, 2), PowerLost(6, promises_end=True)]
    assert [from_json(to_json(event)) for event in story.events] == story.events


def test_the_order_of_processes_does_not_matter() -> None:
    story = good()
    events = list(story.events)
    random.Random(1).shuffle(events)
    assert merge([events]) != events
    assert replace(story.check(), violations=()) == story.check()
    assert all(callable(rule) for rule in RULES.values())
