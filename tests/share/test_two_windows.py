"""The window of returned records beside the front window: it stays small, and nothing in front
holds it up."""

from __future__ import annotations

import pytest

from kbroker.share import archiving, log_start, offers
from kbroker.share.effects import AckBatch
from kbroker.share.parked import Lane
from kbroker.share.parking import Parking
from kbroker.share.record_state import ACQUIRED
from kbroker.share.redelivery import Redelivery
from tests.share.queue_driver import ACCEPT, REJECT, RELEASE, Queue, ack

_ROUND = 500
_WAIT_MS = 1000
_LOCK_MS = 30_000


def queue(*log: tuple[int, int], **changed: int) -> tuple[Queue, Parking]:
    """Released records are parked for a second."""
    redelivery = Redelivery(_WAIT_MS, 1, _WAIT_MS, 0)
    q = Queue(*log, park_from_ms=50, redelivery=redelivery, lock_duration_ms=_LOCK_MS, **changed)
    parking = q.sp.parking = Parking(0, leader_epoch=7, life_ahead_ms=0, now_ms=0)
    return q, parking


def returned(q: Queue, first: int, last: int) -> None:
    """A member gets the records, gives them back, and they are due again."""
    assert q.fetch("m", last - first + 1) == [(first, last, 1)]
    q.ack("m", ack(first, last, RELEASE))
    q.now_ms += _WAIT_MS
    assert q.sp.end_waits(q.now_ms) == last - first + 1


@pytest.mark.parametrize("records", [20_000, pytest.param(5_000_000, marks=pytest.mark.full)])
def test_a_lock_that_is_held_while_records_pass(records: int) -> None:
    """One member works on a returned record, and renews its lock. Others do `records` more."""
    q, parking = queue(limits_undecided=True, max_record_locks=2 * _ROUND, delivery_count_limit=10)
    q.log = [(0, 0)]
    returned(q, 0, 0)
    assert q.sp.acquire_parked("slow", [0], now_ms=q.now_ms) == [(0, 0, 2)]
    for first in range(1, records, _ROUND):
        last = first + _ROUND - 1
        q.log = [(first, last)]
        returned(q, first, last)
        assert q.sp.acquire_parked("m", parking.in_turn(_ROUND), now_ms=q.now_ms) == [(first, last, 2)]
        q.ask("slow", ack(0, 0, 4))
        q.ack("m", ack(first, last, ACCEPT))
        assert len(parking.window.states) <= 2 * _ROUND
        assert (list(parking.rows), parking.waiting) == ([0], 1)
        assert q.sp.start_offset == last + 1
        assert len(parking.window.locks) <= 2000
    assert parking.window.states.count(ACQUIRED) == 1
    q.ack("slow", ack(0, 0, ACCEPT))
    assert (q.sp.is_settled, parking.waiting, len(parking.window.states)) == (True, 0, 0)


@pytest.mark.parametrize("limits_undecided", [False, True])
def test_a_front_that_is_full_holds_up_no_record_that_is_due(limits_undecided: bool) -> None:
    """The front window is full of records whose dead letters cannot be written."""
    limit = 10
    q, parking = queue(
        (0, 4), (5, 14), dead_letter_queue=True, max_record_locks=limit, limits_undecided=limits_undecided
    )
    returned(q, 0, 4)
    while taken := q.fetch("m", limit):
        q.ack("m", *(AckBatch(first, last, (REJECT,)) for first, last, _ in taken))
    letters = archiving.take(q.sp)
    assert letters
    assert q.sp.window.in_flight == limit
    archiving.give_back(q.sp, [(each.first_offset, each.last_offset) for each in letters])
    assert offers.offset_to_acquire(q.sp) is None
    assert offers.parked_ready(q.sp) == 5
    assert q.sp.acquire_parked("m", parking.in_turn(5), now_ms=q.now_ms) == [(0, 4, 2)]
    q.ack("m", ack(0, 4, ACCEPT))
    assert parking.waiting == 0


def test_both_windows_share_the_bound_of_locks() -> None:
    q, parking = queue((0, 5), (6, 20), limits_undecided=True, max_record_locks=6)
    returned(q, 0, 5)
    assert q.fetch("m", 4, by_record=True) == [(6, 9, 1)]
    assert offers.parked_ready(q.sp) == 2
    assert q.sp.acquire_parked("m", parking.in_turn(6), now_ms=q.now_ms) == [(0, 1, 2)]
    assert (offers.offset_to_acquire(q.sp), offers.parked_ready(q.sp)) == (None, 0)
    answered = q.ask("m", ack(0, 0, ACCEPT), ack(6, 6, ACCEPT))
    assert offers.parked_ready(q.sp) == 0
    q.save(answered)
    assert offers.parked_ready(q.sp) == 2


def test_a_slot_is_used_again_by_another_record() -> None:
    """The lock of the record that had it before has no effect on the next one."""
    q, parking = queue((0, 1), limits_undecided=True)
    returned(q, 0, 1)
    assert q.sp.acquire_parked("a", [0], now_ms=q.now_ms) == [(0, 0, 2)]
    slot, first_deadline_ms = parking.rows[0].slot, q.now_ms + _LOCK_MS
    q.ack("a", ack(0, 0, ACCEPT))
    q.log = [(2, 2)]
    returned(q, 2, 2)
    assert parking.rows[2].slot == slot
    assert q.sp.acquire_parked("b", [2], now_ms=q.now_ms) == [(2, 2, 2)]
    assert q.sp.expire(first_deadline_ms) is None
    q.ack("b", ack(2, 2, ACCEPT))
    assert list(parking.rows) == [1]


def test_an_earlier_write_of_a_row_ends_last_while_the_store_is_read() -> None:
    """The place that it saved is not there any more: a finished record does not come back."""
    q, parking = queue((0, 0), limits_undecided=True)
    parking = q.sp.parking = Parking(1, leader_epoch=7, life_ahead_ms=0, now_ms=0)
    assert q.fetch("m") == [(0, 0, 1)]
    reading = parking.begin_read()
    assert reading == (Lane.REDELIVERY, (-1, -1))
    moved = log_start.leave(q.sp, {0: b"0"}, now_ms=0)
    q.now_ms = _LOCK_MS
    ran_out = q.sp.expire(q.now_ms)
    q.now_ms += _WAIT_MS
    assert q.sp.end_waits(q.now_ms) == 1
    q.save(ran_out)
    q.save(moved)
    assert q.sp.acquire_parked("m", [0], now_ms=q.now_ms) == [(0, 0, 2)]
    q.ack("m", ack(0, 0, ACCEPT))
    parking.end_read(Lane.REDELIVERY, [], q.settings, lambda _: False)
    assert (list(parking.rows), q.sp.end_waits(q.now_ms + _WAIT_MS)) == ([], 0)
