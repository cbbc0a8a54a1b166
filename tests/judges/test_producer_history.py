"""Each rule of the judge of producers and purged logs: histories that keep it, and one that breaks
only that rule."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

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
    from_json,
    to_json,
)
from tests.judges.producer_history import Log, ProducerPlace, Report, Retention, check, value_of

NOTHING, OLD, ANYTHING = "nothing", "old", "anything"
"""Topics by what their retention may remove."""
RETENTION = {NOTHING: Retention.NOTHING, OLD: Retention.OLD, ANYTHING: Retention.ANYTHING}
P, Q = 7, 8


class Story:
    """Writes a history of one log, an event every millisecond."""

    def __init__(self, topic: str = NOTHING) -> None:
        self.topic, self.now_ms, self.life = topic, 0, 1
        self.events: list[Event] = []
        self.add(LifeBegan(self.now(), 1))

    def now(self) -> int:
        self.now_ms += 1
        return self.now_ms * 1_000_000

    def add(self, *events: Event) -> None:
        self.events += events

    def send(
        self,
        sequence: int,
        offset: int | None,
        *,
        count: int = 1,
        producer: int = P,
        error: int = 0,
        is_old: bool = False,
    ) -> None:
        """`offset` None: there is no answer."""
        self.add(BatchSent(self.now(), producer, self.topic, 0, sequence, count, is_old))
        if offset is not None:
            self.add(BatchAnswered(self.now(), producer, self.topic, 0, sequence, error, offset))

    def refuse(self, sequence: int, error: int = 45) -> None:
        self.send(sequence, -1, error=error)

    def purge(self, offset: int, start: int | None, error: int = 0) -> None:
        self.add(PurgeSent(self.now(), self.topic, 0, offset))
        if start is not None:
            self.add(PurgeAnswered(self.now(), self.topic, 0, error, start))

    def look(self, start: int, end: int) -> None:
        asked_ns = self.now()
        self.add(BoundsSeen(self.now(), asked_ns, self.topic, 0, start, end))

    def restart(self, *, orderly: bool = False, power: bool | None = None) -> None:
        """`power`: a power cut, which ends the promises or does not."""
        self.add(LifeEnded(self.now(), self.life, orderly))
        if power is not None:
            self.add(PowerLost(self.now(), promises_end=power))
        self.life += 1
        self.add(LifeBegan(self.now(), self.life))

    def read(self, start: int, *values: str, cut: Iterable[int] = ()) -> None:
        self.look(start, start + len(values))
        for offset, value in enumerate(values, start):
            self.add(LogRead(self.now(), Record(self.topic, 0, offset), value, offset in cut))
        self.add(LogReadDone(self.now(), self.topic, 0))

    def value(self, sequence: int, producer: int = P) -> str:
        return value_of(ProducerPlace(producer, Log(self.topic, 0)), sequence)

    def judge(self) -> Report:
        return check(self.events, RETENTION)

    def rules(self) -> set[str]:
        return {violation.rule for violation in self.judge().violations}


@pytest.fixture
def story() -> Story:
    """A producer has sent three batches of one record each."""
    begun = Story()
    for sequence in range(3):
        begun.send(sequence, sequence)
    return begun


def whole(story: Story) -> list[str]:
    return [story.value(sequence) for sequence in range(3)]


def test_events_come_back_from_json(story: Story) -> None:
    story.purge(1, 1)
    story.look(1, 3)
    story.restart(orderly=True, power=True)
    story.add(
        IdTaken(story.now(), 5),
        Sent(story.now(), "p", "ü", is_old=True),
        LogRead(story.now(), Record("t", 0, 1), "v", is_cut=True),
    )
    assert [from_json(to_json(event)) for event in story.events] == story.events


def test_nothing_is_wrong(story: Story) -> None:
    story.send(2, 2)
    story.restart()
    story.send(3, None, count=2)
    story.restart()
    story.send(3, 3, count=2)
    story.purge(1, 1)
    story.read(1, *whole(story)[1:], story.value(3), story.value(4))
    report = story.judge()
    assert report.ok, str(report)
    done = report.statistics
    assert (done.lives, done.crashes, done.confirmed_batches, done.retries, done.repeats_known) == (
        3,
        2,
        4,
        1,
        1,
    )
    assert (done.purges, done.records) == (1, 4)


def test_what_was_not_read_was_not_judged(story: Story) -> None:
    assert story.rules() == {"incomplete"}


# -- producers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [False, True])
def test_the_next_batch_is_refused_after_a_purge(story: Story, crashes: bool) -> None:
    story.purge(3, 3)
    story.restart(orderly=not crashes)
    story.refuse(3)
    story.read(3)
    assert story.rules() == {"refused"}


def test_a_retry_without_an_answer_is_refused(story: Story) -> None:
    story.send(3, None)
    story.restart()
    story.refuse(3)
    story.read(0, *whole(story))
    assert story.rules() == {"refused"}


@pytest.mark.parametrize("error", [45, 47])
def test_a_repeat_of_the_last_batch_is_refused(story: Story, error: int) -> None:
    """The broker knows it, or has dropped the producer and treats it as new."""
    story.purge(3, 3)
    story.restart()
    story.refuse(2, error)
    story.read(3)
    assert story.rules() == {"refused"}


@pytest.mark.parametrize("crashes", [False, True])
def test_a_repeat_is_stored_twice(story: Story, crashes: bool) -> None:
    story.restart(orderly=not crashes)
    story.send(2, 3)
    assert story.rules() == {"stored twice", "incomplete"}
    story.read(0, *whole(story), story.value(2))
    assert story.rules() == {"stored twice", "duplicated"}


@pytest.mark.parametrize("purged", [3, -1])
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_repeat_may_be_stored_again_where_the_first_was_purged(
    story: Story, purged: int, is_answered: bool
) -> None:
    story.purge(purged, 3 if is_answered else None)
    story.restart()
    story.send(2, 3)
    story.send(3, 4)
    story.read(3, story.value(2), story.value(3))
    assert story.judge().ok, str(story.judge())


def test_a_purge_that_was_not_answered_and_not_done_excuses_nothing(story: Story) -> None:
    story.purge(3, None)
    story.restart()
    story.look(0, 3)
    story.send(2, 3)
    assert "stored twice" in story.rules()


def test_a_repeat_is_forgotten_without_a_crash(story: Story) -> None:
    """A snapshot exactly at the log's start is as good as the log."""
    story.purge(3, 3)
    story.restart(orderly=True)
    story.send(2, 3)
    story.read(3, story.value(2))
    assert story.rules() == {"forgotten"}


def test_an_older_repeat_is_forgotten(story: Story) -> None:
    story.restart()
    story.refuse(0)
    story.read(0, *whole(story))
    assert story.rules() == {"forgotten"}


def test_an_older_repeat_may_be_forgotten_with_what_was_purged(story: Story) -> None:
    story.purge(2, 2)
    story.restart()
    story.refuse(0)
    story.read(2, story.value(2))
    assert story.judge().ok


def test_only_five_batches_are_remembered() -> None:
    story = Story()
    for sequence in range(6):
        story.send(sequence, sequence)
    story.refuse(0)
    story.send(1, 1)
    story.read(0, *map(story.value, range(6)))
    assert story.judge().ok


def test_an_id_is_given_out_twice() -> None:
    story = Story()
    story.add(IdTaken(story.now(), P), IdTaken(story.now(), Q))
    assert story.judge().ok
    story.restart(power=True)
    story.add(IdTaken(story.now(), P))
    assert story.rules() == {"id twice"}


# -- the bounds of a log
# ------------------------------------------------------------------------------------------------


def test_a_start_goes_back(story: Story) -> None:
    story.purge(2, 2)
    story.restart()
    story.read(1, *whole(story)[1:])
    assert story.rules() == {"start"}


def test_a_start_lies_behind_the_end(story: Story) -> None:
    story.purge(-1, None)
    story.restart()
    story.look(5, 3)
    assert "start" in story.rules()


@pytest.mark.parametrize(("offset", "start", "error"), [(2, 1, 0), (2, -1, 1)])
def test_a_purge_does_not_do_what_it_should(story: Story, offset: int, start: int, error: int) -> None:
    story.purge(offset, start, error)
    story.read(0, *whole(story))
    assert "start" in story.rules()


def test_a_purge_removes_too_much(story: Story) -> None:
    story.purge(1, 2)
    story.read(2, story.value(2))
    assert story.rules() == {"removed"}


def test_a_start_moves_by_itself(story: Story) -> None:
    story.restart()
    story.read(1, *whole(story)[1:])
    assert story.rules() == {"removed"}


def test_a_start_that_a_cut_has_put_back_moves_again_by_itself(story: Story) -> None:
    """The fault takes two lives: the second one confirms what the third one removes."""
    story.purge(3, 3)
    story.restart(power=True)
    story.read(0)
    story.send(0, 0, producer=Q, count=5)
    story.restart()
    story.read(3, story.value(3, Q), story.value(4, Q))
    assert story.rules() == {"removed"}


def test_retention_removes_what_is_old() -> None:
    story = Story(OLD)
    for sequence, is_old in enumerate([True, True, False, True]):
        story.send(sequence, sequence, is_old=is_old)
    story.read(2, story.value(2), story.value(3))
    assert story.judge().ok
    story.restart()
    story.read(3, story.value(3))
    assert story.rules() == {"removed"}


def test_retention_removes_anything() -> None:
    story = Story(ANYTHING)
    story.send(0, 0)
    story.restart()
    story.read(1)
    assert story.judge().ok


# -- the content of a log
# ------------------------------------------------------------------------------------------------


def test_a_confirmed_record_is_missing(story: Story) -> None:
    story.read(0, *whole(story)[:2])
    assert story.rules() == {"missing"}


def test_what_was_confirmed_while_somebody_looked_need_not_be_seen(story: Story) -> None:
    asked_ns = story.now()
    story.send(3, 3)
    story.add(BoundsSeen(story.now(), asked_ns, story.topic, 0, 0, 3))
    story.read(0, *whole(story), story.value(3))
    assert story.judge().ok


def test_another_value_is_there(story: Story) -> None:
    story.read(0, story.value(0), story.value(2), story.value(1))
    assert story.rules() == {"contradiction"}


def test_an_offset_is_confirmed_twice(story: Story) -> None:
    story.add(
        Sent(story.now(), "p", "a", idempotent=True),
        SendConfirmed(story.now(), "p", "a", Record(story.topic, 0, 2)),
    )
    story.read(0, *whole(story))
    assert story.rules() == {"contradiction"}


def test_a_value_is_invented(story: Story) -> None:
    story.read(0, *whole(story), "nobody's")
    assert story.rules() == {"invented"}


def test_a_record_is_there_twice(story: Story) -> None:
    story.read(0, *whole(story), story.value(2))
    assert story.rules() == {"duplicated"}


def test_a_batch_that_the_start_has_cut_is_there_once() -> None:
    story = Story()
    story.send(0, 0, count=3)
    story.purge(1, 1)
    story.restart()
    story.send(0, 3, count=3)
    values = [story.value(sequence) for sequence in range(3)]
    story.read(1, *values[1:], *values, cut=[1, 2])
    assert "duplicated" in story.rules()


def test_records_of_a_library_are_reordered() -> None:
    story = Story()
    for value in "ab":
        story.add(Sent(story.now(), "p", value, idempotent=True))
    for value, offset in (("a", 1), ("b", 0)):
        story.add(SendConfirmed(story.now(), "p", value, Record(story.topic, 0, offset)))
    story.read(0, "b", "a")
    assert story.rules() == {"reordered"}


# -- power cuts
# --------------------------------------------------------------------------------------------------


def test_a_cut_takes_nothing_that_was_synced(story: Story) -> None:
    story.restart(power=False)
    story.read(0, *whole(story)[:2])
    assert story.rules() == {"missing"}


def test_a_cut_may_take_what_was_not_synced(story: Story) -> None:
    """From there on the state that the next life finds is authoritative, and the producers continue
    from it."""
    story.restart(power=True)
    story.read(0, *whole(story)[:2])
    story.send(1, 1)
    story.send(2, 2)
    story.restart()
    story.read(0, *whole(story))
    assert story.judge().ok, str(story.judge())
    story.send(1, 3)
    assert "stored twice" in story.rules()


def test_a_read_after_a_cut_counts(story: Story) -> None:
    story.restart(power=True)
    story.read(0, *whole(story)[:2])
    story.restart()
    story.read(0, *whole(story)[:1])
    assert story.rules() == {"missing"}
