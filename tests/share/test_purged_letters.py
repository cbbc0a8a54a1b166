"""A client deletes records (DeleteRecords) while their dead letters are being written."""

from __future__ import annotations

from kbroker.share import archiving, log_start
from kbroker.share.effects import DeadLetter, DeadLetterCause
from kbroker.share.parking import Parking
from kbroker.share.redelivery import Redelivery
from tests.share.queue_driver import REJECT, RELEASE, Queue, ack


def letters_in_hand() -> Queue:
    """Record 0 is held, so the start offset is below parked record 1. Its dead letter and that of
    2, which is in the window, are being written."""
    redelivery = Redelivery(300, 1, 300, 0)
    q = Queue((0, 0), (1, 1), (2, 2), dead_letter_queue=True, park_from_ms=50, redelivery=redelivery)
    q.sp.parking = Parking(0, leader_epoch=7, life_ahead_ms=0, now_ms=0)
    q.fetch("m")
    q.ack("m", ack(1, 1, RELEASE), ack(2, 2, REJECT))
    q.now_ms = 400
    assert q.sp.end_waits(q.now_ms) == 1
    assert [tuple(each) for each in q.sp.acquire_parked("m", [1], now_ms=q.now_ms)] == [(1, 1, 2)]
    q.ack("m", ack(1, 1, REJECT))
    assert archiving.take(q.sp) == [
        DeadLetter(1, 1, 2, DeadLetterCause.REJECTED),
        DeadLetter(2, 2, 1, DeadLetterCause.REJECTED),
    ]
    assert q.sp.start_offset == 0
    return q


def test_the_others_are_finished() -> None:
    q = letters_in_hand()
    q.save(log_start.purge(q.sp, 2))
    q.save(archiving.dead_lettered(q.sp, [(1, 2)]))
    assert (q.sp.start_offset, archiving.has_archiving(q.sp)) == (3, False)


def test_the_others_are_returned() -> None:
    q = letters_in_hand()
    q.save(log_start.purge(q.sp, 2))
    archiving.give_back(q.sp, [(1, 2)])
    assert archiving.take(q.sp) == [DeadLetter(2, 2, 1, DeadLetterCause.REJECTED)]
