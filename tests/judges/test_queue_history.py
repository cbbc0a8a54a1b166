"""Each rule that the judge of work queues adds: histories that keep it and others that break only
that rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.judges.history import GroupSettings
from tests.judges.history_events import (
    AckKind,
    DeadLetterRead,
    Delivered,
    Drained,
    Event,
    LeftBehind,
    LogCut,
    LogRead,
    LogReadDone,
    Outcome,
    PassedOver,
    Record,
    SendConfirmed,
    Sent,
    from_json,
    merge,
    to_json,
)
from tests.judges.queue_history import QueueSettings, Report, check
from tests.judges.test_history import MS, R, Story

LIMIT = 3
SETTINGS = QueueSettings(
    GroupSettings(lock_ms=1000, delivery_limit=LIMIT), delay_ms=1200, multiplier=1.5, max_ms=2000
)
END = 100_000 * MS
DONE = LeftBehind(END, "orders", 0, 0, 0, 0)


def judged(
    story: Story, *more: Event, log: dict[Record, str] | None = None, left: LeftBehind | None = DONE
) -> Report:
    log = {R: "a"} if log is None else log
    final: list[Event] = [LogRead(END, record, value) for record, value in log.items()]
    final += [LogReadDone(END, "orders", 0), Drained(END), *([left] if left else [])]
    return check(merge([story.events, more, final]), SETTINGS)


def rules(report: Report) -> set[str]:
    return {violation.rule for violation in report.violations}


def letter(count: int = LIMIT, *, is_rejected: bool = False, value: str | None = "a") -> DeadLetterRead:
    return DeadLetterRead(END, R, count, is_rejected, value)


@pytest.fixture
def story() -> Story:
    begun = Story()
    begun.send(10, "a", R)
    return begun


@pytest.mark.parametrize(
    "event",
    [
        DONE,
        letter(),
        PassedOver(1, "orders", 0, 5),
        LogCut(1, "orders", 0, 5),
        Sent(1, "p", "a", due_ns=7, digest="x"),
    ],
)
def test_events_survive_the_disk(event: Event) -> None:
    assert from_json(to_json(event)) == event


def test_a_job_that_is_accepted(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    report = judged(story)
    assert report.ok, str(report)
    assert report.statistics.deliveries == report.statistics.confirmed_acknowledgements == 1


def test_what_is_left_behind_must_be_known(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    assert rules(judged(story, left=None)) == {"incomplete"}


@pytest.mark.parametrize(("at", "found"), [(1999, {"early"}), (2000, set())])
def test_a_scheduled_job(at: int, found: set[str]) -> None:
    story = Story()
    story.events += [Sent(10 * MS, "p", "a", due_ns=2020 * MS), SendConfirmed(11 * MS, "p", "a", R)]
    story.deliver(at, "A")
    story.ack(at + 10, "A")
    report = judged(story)
    assert rules(report) == found
    assert report.statistics.schedules == 1


@pytest.mark.parametrize(("count", "waits"), [(1, 1200), (2, 1800)])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_delay_after_a_confirmed_release(count: int, waits: int, restarts: bool, story: Story) -> None:
    """It starts when the release was sent, with or without a restart."""
    for late, found in ((-21, {"early"}), (-20, set())):
        told = Story()
        told.events = list(story.events)
        for each in range(1, count + 1):
            told.deliver(3000 * each, "A", count=each)
            told.ack(3000 * each + 10, "A", AckKind.RELEASE)
        released = 3000 * count + 10
        if restarts:
            told.restart(released + 100, 2)
        told.deliver(released + waits + late, "B", count=count + 1, asked=released + 200)
        told.ack(released + waits + 50, "B")
        report = judged(told)
        assert rules(report) == found, str(report)
        assert report.statistics.delays >= count


def test_a_release_that_nobody_confirmed_promises_no_delay(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.RELEASE, Outcome.UNKNOWN)
    story.restart(40, 2)
    story.deliver(100, "B", count=1, asked=60)
    story.ack(110, "B")
    assert judged(story).ok


@pytest.mark.parametrize(("start", "found"), [(0, set()), (1, {"passed over"})])
def test_what_is_passed_over_does_not_come(start: int, found: set[str], story: Story) -> None:
    story.deliver(50, "A", asked=45)
    story.ack(55, "A")
    assert rules(judged(story, PassedOver(40 * MS, "orders", 0, start))) == found


def test_what_was_asked_for_before_may_come(story: Story) -> None:
    story.deliver(50, "A", asked=39)
    story.ack(55, "A")
    assert judged(story, PassedOver(40 * MS, "orders", 0, 1)).ok


def test_what_is_passed_over_may_go_from_the_log(story: Story) -> None:
    assert rules(judged(story, log={})) == {"missing"}
    assert judged(story, PassedOver(40 * MS, "orders", 0, 1), log={}).ok


def test_an_unfinished_job(story: Story) -> None:
    assert rules(judged(story)) == {"unfinished"}
    assert judged(story, PassedOver(40 * MS, "orders", 0, 1)).ok
    story.deliver(50, "A")
    story.ack(55, "A", AckKind.RELEASE)
    assert rules(judged(story)) == {"unfinished"}
    story.deliver(5000, "A", count=2)
    story.ack(5010, "A", AckKind.REJECT)
    assert rules(judged(story)) == {"unfinished"}, "its dead letter is missing"
    assert judged(story, letter(2, is_rejected=True)).ok


@pytest.mark.parametrize(
    "letters",
    [
        [letter(2, is_rejected=True)],
        [letter(1, is_rejected=True), letter(1, is_rejected=True)],
        [letter(1)],
        [letter(1, is_rejected=True, value="b")],
        [letter(1, is_rejected=True, value=None)],
    ],
    ids=["a delivery that nobody rejected", "twice", "given up too early", "another value", "no value"],
)
def test_a_wrong_dead_letter(letters: list[DeadLetterRead], story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.REJECT)
    assert judged(story, letter(1, is_rejected=True)).ok
    assert rules(judged(story, *letters)) == {"dead letters"}


def test_an_exhausted_job(story: Story) -> None:
    """Its last delivery may have been lost with a connection."""
    for each in range(1, LIMIT):
        story.deliver(3000 * each, "A", count=each)
        story.ack(3000 * each + 10, "A", AckKind.RELEASE)
    report = judged(story, letter())
    assert report.ok, str(report)
    assert report.statistics.exhausted == 1


@pytest.mark.parametrize(
    ("outcome", "found"),
    [(Outcome.CONFIRMED, {"dead letters"}), (Outcome.REFUSED, set()), (Outcome.UNKNOWN, set())],
)
def test_a_dead_letter_of_an_accepted_job(outcome: Outcome, found: set[str], story: Story) -> None:
    story.deliver(20, "A", count=LIMIT)
    story.ack(1500, "A", AckKind.ACCEPT, outcome)
    assert rules(judged(story, letter())) - {"count"} == found


@pytest.mark.parametrize("left", [(1, 0, 0), (None, 0, 0), (0, 2, 0), (0, 0, 1), (0, 0, 0, 1)])
def test_something_left_behind(left: tuple[int | None, int, int], story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    assert rules(judged(story, left=LeftBehind(END, "orders", 0, *left))) == {"left"}


@pytest.mark.parametrize(("seen", "found"), [("x", set()), ("y", {"altered"}), ("", set())])
def test_the_bytes_of_a_job(seen: str, found: set[str]) -> None:
    """As in consumers' events, and as in its dead letter. Some events do not have them."""
    story = Story()
    story.events += [Sent(10 * MS, "p", "a", digest="x"), SendConfirmed(11 * MS, "p", "a", R)]
    story.deliver(20, "A")
    delivered = story.events[-1]
    assert isinstance(delivered, Delivered)
    story.events[-1] = replace(delivered, digest=seen)
    story.ack(30, "A")
    assert rules(judged(story)) == found
    story.events[-3:] = []
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.REJECT)
    assert rules(judged(story, replace(letter(1, is_rejected=True), digest=seen))) == found


CUTTING = replace(SETTINGS, cuts=True)
CUT = LogCut(15 * MS, "orders", 0, 1)


def cut(story: Story, *more: Event) -> Report:
    """The log began after the only record, at the latest when it was read."""
    final: list[Event] = [LogReadDone(END, "orders", 0, start=1), Drained(END), DONE]
    return check(merge([story.events, more, final]), CUTTING)


def test_a_finished_job_may_go_from_the_log(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    assert rules(judged(story, log={})) == {"missing"}
    report = cut(story)
    assert report.ok, str(report)
    assert (report.statistics.cut, report.statistics.kept) == (1, 0)


def test_an_unfinished_job_that_went_from_the_log(story: Story) -> None:
    assert rules(cut(story)) == {"unfinished"}
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.RELEASE)
    assert rules(cut(story)) == {"unfinished"}


def test_what_the_log_still_has_to_have(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    final: list[Event] = [LogReadDone(END, "orders", 0, start=0), Drained(END), DONE]
    assert rules(check(merge([story.events, final]), CUTTING)) == {"missing"}


@pytest.mark.parametrize(("asked", "kept"), [(14, 0), (16, 1)])
def test_a_job_from_beside_the_log(asked: int, kept: int, story: Story) -> None:
    story.deliver(20, "A", asked=asked)
    story.ack(30, "A")
    report = cut(story, CUT)
    assert report.ok, str(report)
    assert report.statistics.kept == kept


@pytest.mark.parametrize(
    ("value", "found"), [("a", set()), ("b", {"dead letters"}), (None, {"dead letters"})]
)
def test_the_dead_letter_of_a_job_that_went_from_the_log(
    value: str | None, found: set[str], story: Story
) -> None:
    story.deliver(20, "A", asked=16)
    story.ack(30, "A", AckKind.REJECT)
    assert rules(cut(story, CUT, letter(1, is_rejected=True, value=value))) == found


ORDERED = QueueSettings(SETTINGS.group, 0, 1, 0, ordered=True)
NEXT = R._replace(offset=R.offset + 1)


@pytest.mark.parametrize(
    ("second_at", "keys", "due_ms", "kind", "found"),
    [
        (25, "kk", 0, AckKind.ACCEPT, {"key order", "two of a key"}),
        (35, "kk", 0, AckKind.ACCEPT, set()),
        (35, "kk", 0, AckKind.REJECT, set()),
        (35, "kk", 0, AckKind.RELEASE, {"key order"}),
        (25, "kl", 0, AckKind.ACCEPT, set()),
        (25, "", 0, AckKind.ACCEPT, set()),
        (25, "kk", 12, AckKind.ACCEPT, {"two of a key"}),
        (35, "kk", 12, AckKind.RELEASE, set()),
    ],
)
def test_two_records_of_a_key(second_at: int, keys: str, due_ms: int, kind: AckKind, found: set[str]) -> None:
    """The first is delivered at 20 and acknowledged at 30. A scheduled one does not delay the
    other, but is not in flight at the same time."""
    story = Story()
    for at, value, record in ((10, "a", R), (11, "b", NEXT)):
        story.send(at, value, record)
    sent = [event for event in story.events if isinstance(event, Sent)]
    for number, event in enumerate(sent):
        key = keys[number : number + 1]
        due_ns = due_ms * MS if number == 0 else 0
        story.events[story.events.index(event)] = replace(event, key=key, due_ns=due_ns)
    story.deliver(20, "A")
    story.ack(30, "A", kind)
    story.deliver(second_at, "B", NEXT, value="b")
    story.ack(50, "B", record=NEXT)
    if kind is AckKind.RELEASE:
        story.deliver(60, "A", count=2)
        story.ack(70, "A")
    letters = [letter(1, is_rejected=True)] if kind is AckKind.REJECT else []
    final: list[Event] = [
        LogRead(END, R, "a"),
        LogRead(END, NEXT, "b"),
        LogReadDone(END, "orders", 0),
        Drained(END),
        DONE,
    ]
    report = check(merge([story.events, letters, final]), ORDERED)
    assert rules(report) == found
    assert report.statistics.keyed == (1 if keys == "kk" else 0)
