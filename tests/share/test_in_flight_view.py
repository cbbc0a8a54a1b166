"""The displayed in-flight window: runs by state, delivery count, holder and time left, and the
number of batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.share import archiving
from kbroker.share.in_flight_view import InFlightRange, InFlightView
from tests.share.holdings import holdings
from tests.share.queue_driver import ACCEPT, REJECT, RELEASE, Queue, ack

LOCK_MS = 30_000


def ranges(q: Queue) -> list[InFlightRange]:
    return list(q.sp.in_flight_view(q.now_ms).ranges)


def test_an_empty_window() -> None:
    q = Queue(start=7)
    assert q.sp.in_flight_view(0) == InFlightView(7, 7, 2000, ())
    assert q.sp.statistics().batches == 0


def test_every_state_a_record_can_be_in() -> None:
    q = Queue((0, 9), (10, 19), (20, 29))
    q.fetch("M1", read=1)
    q.now_ms = 1000
    q.fetch("M2", read=1)
    q.fetch("M1", read=1)
    q.ack("M2", ack(12, 13, RELEASE), ack(14, 14, REJECT), ack(15, 15, ACCEPT))
    pending = q.ask("M1", ack(20, 22, ACCEPT), ack(23, 23, RELEASE))
    q.now_ms = 5000
    assert q.sp.in_flight_view(q.now_ms) == InFlightView(0, 29, 2000, tuple(ranges(q)))
    assert ranges(q) == [
        (0, 9, "acquired", False, 1, "M1", LOCK_MS - 5000),
        (10, 11, "acquired", False, 1, "M2", LOCK_MS - 4000),
        (12, 13, "available", False, 1, None, None),
        (14, 14, "archived", False, 1, None, None),
        (15, 15, "acknowledged", False, 1, None, None),
        (16, 19, "acquired", False, 1, "M2", LOCK_MS - 4000),
        (20, 22, "acknowledged", True, 1, None, None),
        (23, 23, "available", True, 1, None, None),
        (24, 29, "acquired", False, 1, "M1", LOCK_MS - 4000),
    ]
    q.fail(pending)
    assert ranges(q)[-1] == (20, 29, "acquired", False, 1, "M1", LOCK_MS - 4000)
    q.now_ms = 2 * LOCK_MS
    assert {each.lock_ms_left for each in ranges(q) if each.member_id} == {0}, (
        "not below 0, though expire() has not been called yet"
    )
    assert q.sp.statistics().batches == 3


def test_archiving_is_shown_alike_whatever_it_came_from_and_whoever_has_it() -> None:
    q = Queue((0, 5), delivery_count_limit=1, dead_letter_queue=True)
    q.fetch("M1")
    q.ack("M1", ack(0, 1, REJECT))
    archiving.take(q.sp)
    q.ack("M1", ack(2, 2, RELEASE), ack(3, 3, REJECT))
    assert ranges(q)[0] == (0, 3, "archiving", False, 1, None, None)
    expired = q.sp.expire(LOCK_MS)
    assert ranges(q) == [(0, 3, "archiving", False, 1, None, None), (4, 5, "archiving", True, 1, None, None)]
    q.save(expired)
    assert ranges(q) == [(0, 5, "archiving", False, 1, None, None)]


def test_what_the_loaded_state_does_not_mention_is_a_gap() -> None:
    q = Queue((0, 40), start=10, saved="21-30 K1, 33-34 A2")
    assert ranges(q) == [
        (10, 20, "gap", False, 0, None, None),
        (21, 30, "acknowledged", False, 1, None, None),
        (31, 32, "gap", False, 0, None, None),
        (33, 34, "available", False, 2, None, None),
    ]
    assert q.sp.statistics().batches == 2


def test_what_the_log_has_no_more_is_not_shown() -> None:
    """Even before a fetch has noticed it."""
    q = Queue((0, 9), (10, 19))
    q.fetch("M1", read=1)
    q.ack("M1", ack(4, 6, ACCEPT))
    view = q.sp.in_flight_view(q.now_ms, 5)
    assert (view.start_offset, view.end_offset) == (5, 9)
    assert view.ranges == (
        (5, 6, "acknowledged", False, 1, None, None),
        (7, 9, "acquired", False, 1, "M1", LOCK_MS),
    )
    for log_start_offset in (10, 15):
        assert q.sp.in_flight_view(q.now_ms, log_start_offset) == InFlightView(
            log_start_offset, log_start_offset, 2000, ()
        )


def test_a_batch_that_begins_below_the_start_counts() -> None:
    q = Queue((0, 9), (10, 19))
    q.fetch("M1", read=1)
    q.fetch("M1", read=1)
    q.ack("M1", ack(0, 4, ACCEPT))
    assert (q.sp.start_offset, q.sp.statistics().batches) == (5, 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["M1", "M2"]), st.integers(1, 7), st.sampled_from([None, ACCEPT, RELEASE, REJECT])
        ),
        max_size=12,
    )
)
def test_the_view_covers_the_window_and_agrees_with_the_columns(
    steps: list[tuple[str, int, int | None]],
) -> None:
    q = Queue(*[(base, base + 4) for base in range(0, 100, 5)])
    for member, size, ack_type in steps:
        for first, last, _ in q.fetch(member, size):
            if ack_type is not None:
                q.ack(member, ack(first, last, ack_type))
        q.now_ms += 10
    view = q.sp.in_flight_view(q.now_ms)
    if view.ranges:
        assert (view.ranges[0].first_offset, view.ranges[-1].last_offset) == (
            view.start_offset,
            view.end_offset,
        )
    assert all(
        before.last_offset + 1 == after.first_offset
        for before, after in zip(view.ranges, view.ranges[1:], strict=False)
    )
    shown = [
        each[2:3] + each[4:6] for each in view.ranges for _ in range(each.first_offset, each.last_offset + 1)
    ]
    assert shown == [
        (run.state.name.lower(), run.delivery_count, run.member_id)
        for run in holdings(q.sp)
        for _ in range(run.first_offset, run.last_offset + 1)
    ]
