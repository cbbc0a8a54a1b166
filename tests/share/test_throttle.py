"""Fewer records per response near the delivery limit (KAFKA-17541)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from kbroker.share import archiving, throttle
from kbroker.share.effects import DeadLetter, DeadLetterCause, ShareSettings
from tests.share.queue_driver import ACCEPT, RELEASE, Queue, ack, state

# limit: {delivery count before: how many of a cached batch of 500 one response has}
TABLE = {
    2: {1: 500},
    3: {1: 500, 2: 1},
    4: {1: 500, 2: 250, 3: 1},
    5: {1: 500, 2: 500, 3: 250, 4: 1},
    6: {2: 500, 3: 250, 4: 125, 5: 1},
    10: {4: 500, 5: 250, 6: 125, 7: 62, 8: 31, 9: 1},
}
ROWS = [(limit, count, size) for limit, sizes in TABLE.items() for count, size in sizes.items()]


@pytest.mark.parametrize("by_record", [False, True])
@pytest.mark.parametrize(("limit", "count", "size"), ROWS)
# THR-4, THR-6, THR-8
def test_records_per_answer(limit: int, count: int, size: int, by_record: bool) -> None:
    q = Queue((0, 499), (500, 999), saved=f"0-499 A{count}", delivery_count_limit=limit)
    assert q.fetch("m", 500, by_record=by_record) == [(0, size - 1, count + 1)]


def test_limit_two_never_throttles() -> None:  # THR-2
    """A count of 2 is archived already."""
    q = Queue((0, 499), delivery_count_limit=2)
    q.fetch("m")
    q.release("m")
    assert q.fetch("m") == [(0, 499, 2)]
    q.release("m")
    assert q.shown() == ""


@pytest.mark.parametrize("by_record", [False, True])
def test_limit_two_throttles_in_a_queue(by_record: bool) -> None:  # THR-2
    """A worker that dies twice gives up one record, not all ten."""
    q = Queue((0, 9), delivery_count_limit=2, is_queue=True)
    assert q.fetch("m", 10, by_record=by_record) == [(0, 9, 1)]
    q.release("m")
    assert q.fetch("m", 10, by_record=by_record) == [(0, 0, 2)]
    q.release("m")
    assert (q.sp.start_offset, q.shown()) == (1, "1-9 A1")
    for offset in range(1, 10):
        assert q.fetch("m", 10, by_record=by_record) == [(offset, offset, 2)]
        q.ack("m", ack(offset, offset, ACCEPT))
    assert q.sp.start_offset == 10


@pytest.mark.parametrize("limit", range(2, 26))
def test_a_queue_delivers_each_last_attempt_alone(limit: int) -> None:  # THR-6
    q = Queue((0, 4), (5, 9), saved=f"0-9 A{limit - 1}", delivery_count_limit=limit, is_queue=True)
    for offset in range(10):
        assert q.fetch("m") == [(offset, offset, limit)]
        q.ack("m", ack(offset, offset, RELEASE))
    assert q.sp.start_offset == 10


def test_undelivered_records_come_before_a_last_attempt() -> None:  # THR-6
    q = Queue((0, 9), delivery_count_limit=2, is_queue=True)
    assert q.fetch("m", 3, by_record=True) == [(0, 2, 1)]
    q.ack("m", ack(0, 0, RELEASE), ack(1, 2, ACCEPT))
    assert q.fetch("m", 5, by_record=True) == [(0, 0, 2)]
    assert q.fetch("n", 5, by_record=True) == [(3, 7, 1)]


class TestALoweredLimit:
    """Of 5 to 2: records with a count of 2, 3 and 4 are waiting."""

    @staticmethod
    def queue(*, is_queue: bool = True, letters: bool = True) -> Queue:
        q = Queue(
            (0, 4),
            (5, 9),
            (10, 14),
            (15, 19),
            saved="0-4 A2, 5-9 A3, 10-14 A4, 15-19 A1",
            delivery_count_limit=5,
            is_queue=is_queue,
            dead_letter_queue=letters,
        )
        q.settings = replace(q.settings, delivery_count_limit=2)
        q.sp.use(q.settings)
        return q

    def test_gives_up_what_has_reached_it(self) -> None:
        q = self.queue()
        assert q.fetch("m") == [(15, 15, 2)]
        assert q.sp.saves.has_given_up
        assert not archiving.has_dead_letters(q.sp), "a crash would forget that they are ARCHIVING"
        persist = q.save(q.sp.save_passed())
        assert persist is not None
        assert persist.archiving
        assert not q.sp.saves.has_given_up
        assert q.sp.save_passed() is None
        assert archiving.take(q.sp) == [
            DeadLetter(0, 4, 2, DeadLetterCause.EXHAUSTED),
            DeadLetter(5, 9, 3, DeadLetterCause.EXHAUSTED),
            DeadLetter(10, 14, 4, DeadLetterCause.EXHAUSTED),
        ]
        assert q.sp.statistics().exhausted == 15

    def test_a_save_that_fails_is_tried_again(self) -> None:
        q = self.queue()
        q.fetch("m")
        q.fail(q.sp.save_passed())
        assert (archiving.has_unsaved_archiving(q.sp), archiving.take(q.sp)) == (True, [])
        q.save(q.sp.retry_unsaved())
        assert sum(letter.last_offset + 1 - letter.first_offset for letter in archiving.take(q.sp)) == 15

    def test_archives_them_where_there_are_no_dead_letters(self) -> None:
        q = self.queue(letters=False)
        assert q.fetch("m") == [(15, 15, 2)]
        q.save(q.sp.save_passed())
        q.ack("m", ack(15, 15, ACCEPT))
        assert (q.sp.start_offset, q.shown()) == (16, "16-19 A1")

    def test_after_a_restart(self) -> None:
        q = self.queue()
        q.reload()
        assert q.fetch("m") == [(15, 15, 2)]
        q.save(q.sp.save_passed())
        assert len(archiving.take(q.sp)) == 3

    def test_that_holds_up_the_start_offset(self) -> None:
        """Nothing else is left to acquire."""
        q = Queue((0, 4), saved="0-4 A4", delivery_count_limit=5, is_queue=True)
        q.settings = replace(q.settings, delivery_count_limit=2)
        q.sp.use(q.settings)
        assert q.fetch("m") == []
        assert q.sp.start_offset == 5

    def test_delivers_once_more_in_a_plain_share_group(self) -> None:
        """As Kafka does."""
        q = self.queue(is_queue=False)
        assert sum(last - first + 1 for first, last, _ in q.fetch("m")) > 0
        assert not q.sp.saves.has_given_up


@pytest.mark.parametrize(
    ("limit", "batch", "count", "answers"),
    [(5, 5, 3, [2, 2, 1]), (5, 5, 4, [1, 1, 1, 1, 1]), (3, 4, 2, [1, 1, 1, 1])],
)
def test_answer_by_answer(limit: int, batch: int, count: int, answers: list[int]) -> None:  # THR-4, THR-6
    """As observed on a running Kafka."""
    q = Queue((0, batch - 1), saved=f"0-{batch - 1} A{count}", delivery_count_limit=limit)
    sizes = []
    while entries := q.fetch("m"):
        sizes.append(sum(last - first + 1 for first, last, _ in entries))
    assert sizes == answers


def test_a_throttled_batch_does_not_follow_others() -> None:  # THR-3
    q = Queue((0, 4), (5, 9), saved="0-4 A1, 5-9 A3")
    assert q.fetch("m") == [(0, 4, 2)]
    assert q.fetch("m") == [(5, 6, 4)]


def test_nothing_follows_a_throttled_batch() -> None:  # THR-3
    q = Queue((0, 4), (5, 9), (10, 14), saved="0-4 A3, 5-9 A1")
    assert q.fetch("m") == [(0, 1, 4)]
    q = Queue((0, 4), (5, 9), saved="0-4 A3")
    assert q.fetch("m") == [(0, 1, 4)]


def test_a_held_record_with_a_high_count_throttles_nobody() -> None:  # THR-7
    q = Queue((0, 4), (5, 9), (10, 14), saved="0-4 A3, 5-9 A1")
    assert q.fetch("m") == [(0, 1, 4)]
    assert q.fetch("m") == [(2, 3, 4)]
    assert q.fetch("m") == [(4, 4, 4)]
    assert q.fetch("m") == [(5, 9, 2), (10, 14, 1)]


def test_a_pending_record_with_a_high_count_throttles_nobody() -> None:  # THR-7
    q = Queue((0, 4), (5, 9), saved="0-4 A3")
    for _ in range(3):
        q.fetch("m")
    q.ask("m", ack(0, 4, RELEASE))
    assert q.fetch("n") == [(5, 9, 1)]


def test_only_offsets_that_were_read_throttle() -> None:  # THR-7
    q = Queue((0, 4), (5, 9))
    q.fetch("m", 10)
    q.ack("m", ack(0, 9, RELEASE))
    q.fetch("m", 10)
    q.ack("m", ack(0, 9, RELEASE))
    q.log = [(0, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)]
    q.fetch("m", 10)
    q.ack("m", ack(0, 4, ACCEPT), ack(5, 5, RELEASE))  # 5 now has count 3, the cached batch is 0-9
    q.ack("m", ack(6, 9, RELEASE))
    assert q.fetch("m", read=1) == [(5, 5, 4)]


def test_the_size_is_that_of_the_whole_cached_batch() -> None:  # THR-5
    """Half of ten, although only eight are left."""
    q = Queue((0, 9), saved="0-9 A2")
    q.fetch("m")
    q.ack("m", ack(0, 0, ACCEPT), ack(1, 1, ACCEPT), ack(2, 9, RELEASE))
    assert q.sp.start_offset == 2
    assert q.fetch("m") == [(2, 6, 4)]


def test_the_size_counts_also_what_is_long_done() -> None:  # THR-5
    """Half of 2000 is more than the 600 that are left, although the window no longer has the start
    of the batch."""
    q = Queue((0, 999), (1000, 2999), max_record_locks=5000)
    q.fetch("m", 1000)
    for count in (1, 2):
        assert q.fetch("m", 2000) == [(1000, 2999, count)]
        q.ack("m", ack(1000, 2999, RELEASE))
    assert q.fetch("m", 2000) == [(1000, 2999, 3)]
    q.ack("m", ack(0, 2399, ACCEPT), ack(2400, 2999, RELEASE))
    assert q.sp.start_offset == 2400
    assert q.fetch("m") == [(2400, 2999, 4)]


def test_the_last_attempt_goes_alone_also_in_the_middle() -> None:  # THR-6
    q = Queue((0, 9), saved="0-9 A2")
    q.fetch("m")
    q.ack("m", ack(0, 9, RELEASE))  # count 3: five per answer
    assert q.fetch("m") == [(0, 4, 4)]
    q.ack("m", ack(3, 3, RELEASE), ack(4, 4, ACCEPT))  # 3: its fifth delivery is next, 5-9 have count 3
    assert q.fetch("n") == [(3, 3, 5)]
    assert q.fetch("n") == [(5, 9, 4)]


def test_records_before_the_suspect_one_come_without_it() -> None:  # THR-6
    """Counts 1 1 4 1 1: first the two before it, then it alone, then the rest."""
    columns = bytearray(5), bytearray((1, 1, 4, 1, 1))
    pick = partial(throttle.pick, *columns, settings=ShareSettings(), batch_size=5, room=5)
    assert pick(0, 5) == [(0, 2)]
    assert pick(2, 5) == [(2, 3)]
    assert pick(3, 5) == [(3, 5)]


def test_record_limit_wins_if_it_is_smaller() -> None:  # THR-8
    q = Queue((0, 499), saved="0-499 A3")
    assert q.fetch("m", 7, by_record=True) == [(0, 6, 4)]


def test_state_helper() -> None:
    assert [tuple(batch) for batch in state("0-4 A3, 7 R1")] == [(0, 4, 0, 3), (7, 7, 4, 1)]
