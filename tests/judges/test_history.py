"""Each rule of the history checker: one history that keeps it and one that breaks only that
rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.judges.history import GroupSettings, Report, check
from tests.judges.history_events import (
    AckAnswered,
    AckKind,
    AckSent,
    Closing,
    Delivered,
    Disconnected,
    Drained,
    Event,
    LifeBegan,
    LifeEnded,
    LogRead,
    LogReadDone,
    Outcome,
    Record,
    SendConfirmed,
    Sent,
    from_json,
    merge,
    read_lines,
    to_json,
)

MS = 1_000_000
SETTINGS = GroupSettings(lock_ms=1000, delivery_limit=5)
R = Record("orders", 0, 0)
R1 = Record("orders", 0, 1)


class Story:
    """Writes a history with times in milliseconds; every consumer's `asked` is its last delivery
    unless given."""

    def __init__(self) -> None:
        self.events: list[Event] = [LifeBegan(0, 1)]

    def send(self, at: int, value: str, record: Record | None, *, idempotent: bool = False) -> None:
        self.events.append(Sent(at * MS, "p", value, idempotent))
        if record is not None:
            self.events.append(SendConfirmed((at + 1) * MS, "p", value, record))

    def deliver(
        self,
        at: int,
        consumer: str,
        record: Record = R,
        *,
        count: int = 1,
        asked: int | None = None,
        value: str = "a",
    ) -> None:
        self.events.append(
            Delivered(at * MS, (at - 2 if asked is None else asked) * MS, consumer, record, value, count)
        )

    def ack(
        self,
        at: int,
        consumer: str,
        kind: AckKind = AckKind.ACCEPT,
        outcome: Outcome | None = Outcome.CONFIRMED,
        record: Record = R,
    ) -> None:
        self.events.append(AckSent(at * MS, consumer, record, kind))
        if outcome is not None:
            self.events.append(AckAnswered((at + 1) * MS, consumer, record, outcome))

    def restart(self, at: int, life: int) -> None:
        self.events += [LifeEnded(at * MS, life - 1), LifeBegan((at + 1) * MS, life)]

    def judge(
        self,
        log: dict[Record, str] | None = None,
        *,
        drained: bool = True,
        settings: GroupSettings = SETTINGS,
    ) -> Report:
        end = max(event.at_ns for event in self.events) + MS
        log = {R: "a"} if log is None else log
        final: list[Event] = [LogRead(end, record, value) for record, value in log.items()]
        final += [LogReadDone(end, "orders", 0), *([Drained(end)] if drained else [])]
        return check(merge([self.events, final]), settings)


def rules(report: Report) -> set[str]:
    return {violation.rule for violation in report.violations}


@pytest.fixture
def story() -> Story:
    begun = Story()
    begun.send(10, "a", R)
    return begun


def test_a_record_produced_delivered_and_accepted(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    report = story.judge()
    assert report.ok, str(report)
    assert (
        report.statistics.confirmed_sends
        == report.statistics.deliveries
        == report.statistics.confirmed_acknowledgements
        == 1
    )


def test_a_history_without_its_end_proves_nothing(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    assert rules(story.judge(drained=False)) == {"incomplete"}
    assert "incomplete" in rules(check(story.events, SETTINGS))


def test_a_confirmed_record_missing_from_the_log(story: Story) -> None:
    assert rules(story.judge({})) == {"missing"}


def test_an_unconfirmed_record_may_be_there_or_not() -> None:
    story = Story()
    story.send(10, "a", None)
    assert story.judge({}).ok
    assert rules(story.judge({R: "a"})) == {"unfinished"}
    story.deliver(20, "A")
    story.ack(30, "A")
    assert story.judge({R: "a"}).ok


def test_a_delivered_record_missing_from_the_log() -> None:
    story = Story()
    story.send(10, "a", None)
    story.deliver(20, "A")
    story.ack(30, "A")
    assert rules(story.judge({})) == {"missing"}


def test_an_offset_used_twice(story: Story) -> None:
    story.send(12, "b", None)
    story.deliver(20, "A", value="b")
    story.ack(30, "A")
    assert rules(story.judge()) == {"contradiction"}


def test_a_value_that_nobody_sent(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    story.deliver(40, "A", R1, value="zzz")
    story.ack(41, "A", record=R1)
    assert rules(story.judge({R: "a", R1: "zzz"})) == {"invented"}


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_record_stored_twice(idempotent: bool) -> None:
    story = Story()
    story.send(10, "a", R, idempotent=idempotent)
    for at, record in ((20, R), (30, R1)):
        story.deliver(at, "A", record)
        story.ack(at + 2, "A", record=record)
    assert rules(story.judge({R: "a", R1: "a"})) == ({"duplicated"} if idempotent else set())


@pytest.mark.parametrize("idempotent", [True, False])
def test_records_stored_out_of_order(idempotent: bool) -> None:
    story = Story()
    story.send(10, "a", R1, idempotent=idempotent)
    story.send(11, "b", R, idempotent=idempotent)
    for at, record, value in ((20, R, "b"), (30, R1, "a")):
        story.deliver(at, "A", record, value=value)
        story.ack(at + 2, "A", record=record)
    assert rules(story.judge({R: "b", R1: "a"})) == ({"reordered"} if idempotent else set())


@pytest.mark.parametrize("kind", [AckKind.ACCEPT, AckKind.REJECT])
def test_a_confirmed_end_undone_in_a_later_life(story: Story, kind: AckKind) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", kind)
    story.restart(40, 2)
    story.deliver(60, "A", asked=50)
    story.ack(61, "A")
    assert rules(story.judge()) == {"undone"}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.REFUSED, None])
def test_an_unconfirmed_end_may_be_undone(story: Story, outcome: Outcome | None) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.ACCEPT, outcome)
    story.restart(40, 2)
    story.deliver(60, "A", asked=50)
    story.ack(61, "A")
    assert story.judge().ok


def test_an_unconfirmed_end_may_have_been_the_end(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.ACCEPT, Outcome.UNKNOWN)
    assert story.judge().ok


def test_a_refused_end_was_none(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.ACCEPT, Outcome.REFUSED)
    assert rules(story.judge()) == {"unfinished"}


def test_undone_in_the_same_life_shows_in_the_count_of_a_long_parked_fetch(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A")
    story.deliver(40, "B", asked=5, count=2)
    story.ack(41, "B")
    assert rules(story.judge()) == {"undone"}


def test_a_delivery_from_before_the_accept_may_be_handed_out_late(story: Story) -> None:
    """B acquired first, but its client was stalled; the lock expired, A got the record with count 2
    and accepted it."""
    story.deliver(1100, "A", count=2)
    story.ack(1110, "A")
    story.deliver(1200, "B", asked=5, count=1)
    story.ack(1201, "B", outcome=Outcome.REFUSED)
    assert story.judge().ok


def test_two_holders(story: Story) -> None:
    story.deliver(20, "A")
    story.deliver(500, "B", count=2)
    story.ack(600, "B", AckKind.ACCEPT, Outcome.REFUSED)
    story.ack(700, "A")
    assert rules(story.judge()) == {"two holders"}


def test_a_lock_that_ran_out_is_no_second_holder(story: Story) -> None:
    story.deliver(20, "A")
    story.deliver(1019, "B", count=2)
    story.ack(1030, "B")
    assert story.judge().ok


def test_a_second_holder_in_the_next_life_is_none(story: Story) -> None:
    story.deliver(20, "A")
    story.restart(30, 2)
    story.deliver(60, "B", asked=50)
    story.ack(70, "B")
    assert story.judge().ok


@pytest.mark.parametrize("gone", [Closing, Disconnected])
def test_a_consumer_that_went_holds_nothing(story: Story, gone: type[Closing | Disconnected]) -> None:
    story.deliver(20, "A")
    story.events.append(gone(40 * MS, "A"))
    story.deliver(50, "B", count=2)
    story.ack(60, "B")
    assert story.judge().ok


@pytest.mark.parametrize("renewal", [Outcome.CONFIRMED, Outcome.REFUSED])
def test_a_renewal_holds_on(story: Story, renewal: Outcome) -> None:
    story.deliver(20, "A")
    story.ack(900, "A", AckKind.RENEW, renewal)
    story.deliver(1500, "B", count=2)
    story.ack(1510, "B")
    assert rules(story.judge()) == ({"two holders"} if renewal is Outcome.CONFIRMED else set())


def test_a_renewal_that_is_confirmed_late_proves_nothing(story: Story) -> None:
    """B has finished the record: the broker confirms whatever is below the start offset."""
    story.deliver(20, "A")
    story.deliver(1100, "B", count=2)
    story.ack(1110, "B")
    story.ack(1200, "A", AckKind.RENEW)
    story.ack(1210, "A")
    assert story.judge().ok


@pytest.mark.parametrize(("again", "found"), [(1100, set()), (1500, {"undone"})])
def test_an_accept_that_is_confirmed_late_ends_the_record_with_its_answer(
    story: Story, again: int, found: set[str]
) -> None:
    """Its request or its answer was held up for longer than the lock lasts."""
    story.deliver(20, "A")
    story.ack(30, "A", outcome=None)
    story.events.append(AckAnswered(1400 * MS, "A", R, Outcome.CONFIRMED))
    story.deliver(again, "B", count=2)
    story.ack(again + 10, "B")
    story.events.sort(key=lambda event: event.at_ns)
    assert rules(story.judge()) == found


@pytest.mark.parametrize(("count", "found"), [(2, set()), (3, {"count"}), (1, {"count"}), (6, {"count"})])
def test_counts_rise_by_one_within_a_life(story: Story, count: int, found: set[str]) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.RELEASE, Outcome.UNKNOWN)
    story.deliver(40, "B", count=count)
    story.ack(50, "B")
    assert rules(story.judge()) == found


def test_counts_may_skip_what_died_with_its_consumer(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.RELEASE)
    story.events.append(Closing(35 * MS, "C"))
    story.deliver(40, "B", count=3)
    story.ack(50, "B")
    assert story.judge().ok


def test_a_first_count_above_one_needs_an_explanation(story: Story) -> None:
    story.deliver(40, "B", count=2)
    story.ack(50, "B")
    assert rules(story.judge()) == {"count"}
    story.events.append(Disconnected(35 * MS, "C"))
    assert story.judge().ok


def test_what_was_lost_before_a_record_was_sent_explains_nothing(story: Story) -> None:
    story.events.insert(1, Disconnected(5 * MS, "C"))
    story.deliver(40, "B", count=2)
    story.ack(50, "B")
    assert rules(story.judge()) == {"count"}
    assert story.judge(settings=replace(SETTINGS, requests_late_ms=6)).ok


def test_what_a_fetch_has_left_may_be_lost(story: Story) -> None:
    """C got another record with the same fetch, which waited in its client until the lock of this
    one had expired."""
    story.send(11, "b", R1)
    story.deliver(1100, "B", count=2)
    story.ack(1110, "B")
    story.deliver(1200, "C", R1, asked=15, value="b")
    story.ack(1205, "C", record=R1, outcome=Outcome.UNKNOWN)
    story.events.append(Closing(1210 * MS, "C"))
    assert story.judge({R: "a", R1: "b"}).ok


@pytest.mark.parametrize(("count", "found"), [(2, set()), (1, {"count fell"})])
def test_a_confirmed_release_is_remembered_over_a_kill(story: Story, count: int, found: set[str]) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.RELEASE)
    story.restart(40, 2)
    story.deliver(60, "B", asked=50, count=count)
    story.ack(70, "B")
    assert rules(story.judge()) == found


def test_an_unconfirmed_count_may_be_forgotten_by_a_kill(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.RELEASE, Outcome.UNKNOWN)
    story.restart(40, 2)
    story.deliver(60, "B", asked=50, count=1)
    story.ack(70, "B")
    assert story.judge().ok


def test_a_record_that_nobody_got(story: Story) -> None:
    report = story.judge()
    assert rules(report) == {"unfinished"}
    assert "never delivered" in str(report)
    assert "orders-0@0" in str(report)


def test_a_record_at_its_limit_is_excused_and_counted(story: Story) -> None:
    for count in range(1, 6):
        story.deliver(20 * count, "A", count=count)
        story.ack(20 * count + 5, "A", AckKind.RELEASE)
    report = story.judge()
    assert report.ok
    assert report.statistics.excused == 1


def test_a_released_record_below_its_limit_is_not_excused(story: Story) -> None:
    for count in range(1, 5):
        story.deliver(20 * count, "A", count=count)
        story.ack(20 * count + 5, "A", AckKind.RELEASE)
    assert rules(story.judge()) == {"unfinished"}
    story.events.append(Closing(200 * MS, "A"))
    assert story.judge().statistics.excused == 1


def test_an_acknowledgement_of_nothing_is_a_broken_history(story: Story) -> None:
    story.ack(30, "A")
    with pytest.raises(AssertionError, match="was not delivered"):
        story.judge()


def test_events_survive_their_lines(story: Story) -> None:
    story.deliver(20, "A")
    story.ack(30, "A", AckKind.REJECT)
    story.restart(40, 2)
    story.events += [
        Closing(50 * MS, "A"),
        Disconnected(60 * MS, "B"),
        Drained(7),
        LogRead(8, R, "ü"),
        LogReadDone(9, "orders", 0),
    ]
    lines = [to_json(event) + "\n" for event in story.events]
    assert list(read_lines(lines)) == story.events
    assert list(read_lines([*lines, lines[0][:-1]])) == story.events
    assert [from_json(line.encode()) for line in lines] == story.events


def test_merge_keeps_the_order_of_one_process() -> None:
    one: list[Event] = [Drained(5), LogReadDone(5, "a", 0)]
    assert merge([one, [Closing(1, "A")]]) == [Closing(1, "A"), *one]
    assert merge([[replace(event, at_ns=9) for event in one]]) == [Drained(9), LogReadDone(9, "a", 0)]
