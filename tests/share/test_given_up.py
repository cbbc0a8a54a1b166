"""How many records a Persist counts as given up for good: each once, in the write that makes it
final, or in the next one if that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kbroker.share import archiving, log_start, scanning
from kbroker.share.effects import Persist
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, Queue, ack
from tests.share.test_archiving import GIVES_BACK, last_attempt
from tests.share.test_two_windows import _LOCK_MS, queue


def count(persist: Persist | None) -> int:
    assert persist is not None
    return persist.given_up


def bury(q: Queue) -> Persist | None:
    return archiving.dead_lettered(
        q.sp, [(each.first_offset, each.last_offset) for each in archiving.take(q.sp)]
    )


def test_rejections_and_no_other_answers() -> None:
    q = Queue((0, 9), delivery_count_limit=9)
    q.fetch("m")
    assert count(q.ack("m", ack(0, 1, ACCEPT))) == 0
    assert count(q.ack("m", ack(2, 2, GAP))) == 0
    assert count(q.ack("m", ack(3, 4, REJECT))) == 2
    assert count(q.ack("m", ack(5, 9, ACCEPT, REJECT, GAP, RELEASE, REJECT))) == 2
    assert count(log_start.log_start_moved(q.sp, 20)) == 0


@pytest.mark.parametrize("give_back", GIVES_BACK)
def test_the_delivery_limit(give_back: Callable[[Queue], Persist | None]) -> None:
    assert count(give_back(last_attempt(dead_letter_queue=False))) == 5
    q = last_attempt()
    assert count(q.save(give_back(q))) == 0
    assert count(q.save(bury(q))) == 5


def test_the_delivery_limit_among_other_answers() -> None:
    q = last_attempt(3, dead_letter_queue=False)
    assert count(q.ack("m", ack(0, 3, RELEASE, ACCEPT, GAP, RELEASE))) == 2


@pytest.mark.parametrize("dead_letter_queue", [False, True])
def test_a_lowered_limit(dead_letter_queue: bool) -> None:
    q = Queue((0, 3), saved="0-3 A3", is_queue=True, dead_letter_queue=dead_letter_queue)
    q.sp.use(replace(q.settings, delivery_count_limit=2))
    assert q.fetch("m") == []
    assert count(q.save(q.sp.save_passed())) == (0 if dead_letter_queue else 4)
    if dead_letter_queue:
        assert count(q.save(bury(q))) == 4


@pytest.mark.parametrize("dead_letter_queue", [False, True])
def test_parked_records(dead_letter_queue: bool) -> None:
    """That they leave the window, return and are accepted counts for nothing."""
    q, parking = queue((0, 5), limits_undecided=True, is_queue=True, dead_letter_queue=dead_letter_queue)
    assert q.fetch("m", 6) == [(0, 5, 1)]
    assert count(q.ack("m", ack(0, 5, RELEASE))) == 0
    q.now_ms += 1000
    assert q.sp.end_waits(q.now_ms) == 6
    later = 0 if dead_letter_queue else 1
    q.sp.acquire_parked("m", [0, 1, 2], now_ms=q.now_ms)
    assert count(q.ack("m", ack(0, 0, ACCEPT))) == 0
    assert count(q.ack("m", ack(1, 1, REJECT))) == later
    q.sp.use(replace(q.settings, delivery_count_limit=2))
    q.now_ms += _LOCK_MS
    assert count(q.save(q.sp.expire(q.now_ms))) == later
    assert count(q.save(scanning.expire_records(q.sp, [3]))) == later
    q.sp.use(replace(q.settings, delivery_count_limit=1))
    assert q.sp.acquire_parked("m", [4, 5], now_ms=q.now_ms) == []
    assert count(q.save(q.sp.save_passed())) == 2 * later
    if dead_letter_queue:
        assert count(q.save(bury(q))) == 5
    assert parking.waiting == 0


def test_records_past_their_time_that_no_member_had() -> None:
    q, _ = queue((0, 3), limits_undecided=True, scans=True)
    scanning.scanned(q.sp, 0, [(0, 3)], (), (), now_ms=0, wall_ms=0)
    assert count(scanning.expire_records(q.sp, [1, 2])) == 2


def test_a_failed_write_keeps_the_count_of_what_is_final() -> None:
    q = last_attempt(9, dead_letter_queue=False)
    q.fail(q.ask("m", ack(0, 1, REJECT)))
    assert count(q.ack("m", ack(0, 0, ACCEPT))) == 0
    rejected = q.ask("m", ack(5, 6, REJECT))
    q.now_ms = _LOCK_MS
    ran_out = q.sp.expire(q.now_ms)
    assert (count(rejected), count(ran_out)) == (2, 7)
    q.fail(ran_out)
    q.save(rejected)
    again = q.sp.retry_unsaved()
    assert count(again) == 7
    q.fail(again)
    assert count(q.save(q.sp.retry_unsaved())) == 7


def test_a_rejection_that_fails_after_its_lock_has_run_out_is_counted_once() -> None:
    q = last_attempt(dead_letter_queue=False)
    rejected = q.ask("m", ack(0, 4, REJECT))
    q.now_ms = _LOCK_MS
    q.fail(rejected)
    assert (count(rejected), count(q.save(q.sp.retry_unsaved()))) == (5, 5)
    assert q.sp.is_settled
