"""Dead letters in the share-partition (KIP-1191): which records become ARCHIVING, when they are
handed out, and how they finish."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.errors import KafkaError
from kbroker.share import archiving, log_start, offers
from kbroker.share.effects import DeadLetter, DeadLetterCause, Persist
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, Queue, ack, state

LOCK_MS = 30_000
LIMIT = 2
REJECTED, EXHAUSTED = DeadLetterCause.REJECTED, DeadLetterCause.EXHAUSTED


def last_attempt(last: int = 4, *, dead_letter_queue: bool = True) -> Queue:
    """0 to `last`, held by m for the second delivery of two."""
    q = Queue(
        (0, last), saved=f"0-{last} A1", delivery_count_limit=LIMIT, dead_letter_queue=dead_letter_queue
    )
    assert q.fetch("m") == [(0, last, 2)]
    return q


def first_attempt(last: int = 9) -> Queue:
    """0 to `last`, held by m for the first delivery."""
    q = Queue((0, last), dead_letter_queue=True)
    q.fetch("m")
    return q


def saved(persist: Persist | None) -> tuple[object, ...]:
    assert persist is not None
    return persist.batches


def let_go(q: Queue) -> Persist | None:
    return q.ask("m", ack(0, 4, RELEASE))


def end_session(q: Queue) -> Persist | None:
    return q.sp.release_member("m")


def time_out(q: Queue) -> Persist | None:
    q.now_ms = LOCK_MS
    return q.sp.expire(LOCK_MS)


GIVES_BACK = [let_go, end_session, time_out]


class TestWhichRecords:
    def test_a_rejection(self) -> None:  # DLQ-10, ACK-2, DLQ-13
        q = first_attempt()
        asked = q.ask("m", ack(2, 3, REJECT))
        assert q.shown() == "0-1 H1 m, 2-3 ~G1, 4-9 H1 m"
        assert not archiving.has_dead_letters(q.sp)
        assert asked is not None
        assert asked.archiving
        assert saved(q.save(asked)) == state("2-3 G1")
        assert archiving.has_dead_letters(q.sp)
        assert archiving.take(q.sp) == [DeadLetter(2, 3, 1, REJECTED)]

    @pytest.mark.parametrize("give_back", GIVES_BACK)
    def test_the_delivery_limit(self, give_back: Callable[[Queue], Persist | None]) -> None:  # DLQ-11, REC-7
        q = last_attempt()
        assert saved(q.save(give_back(q))) == state("0-4 G2")
        assert q.shown() == "0-4 G2"
        assert archiving.take(q.sp) == [DeadLetter(0, 4, 2, EXHAUSTED)]

    @pytest.mark.parametrize("give_back", GIVES_BACK)
    # REC-7
    def test_the_delivery_limit_without_a_dead_letter_queue(
        self, give_back: Callable[[Queue], Persist | None]
    ) -> None:
        q = last_attempt(dead_letter_queue=False)
        assert saved(q.save(give_back(q))) == state("0-4 R2")
        assert (q.sp.start_offset, archiving.take(q.sp)) == (5, [])

    @pytest.mark.parametrize("give_back", GIVES_BACK)
    def test_below_the_limit_records_come_back(self, give_back: Callable[[Queue], Persist | None]) -> None:
        q = first_attempt(4)
        assert saved(q.save(give_back(q))) == state("0-4 A1")
        assert not archiving.has_archiving(q.sp)

    def test_a_rejection_at_the_limit_is_a_rejection(self) -> None:  # DLQ-10
        q = last_attempt()
        q.ack("m", ack(0, 1, REJECT), ack(2, 4, RELEASE))
        assert archiving.take(q.sp) == [DeadLetter(0, 1, 2, REJECTED), DeadLetter(2, 4, 2, EXHAUSTED)]

    def test_a_type_for_each_record(self) -> None:  # ACK-2, ACK-3
        q = last_attempt(5)
        q.ack("m", ack(0, 5, ACCEPT, GAP, RELEASE, REJECT, REJECT, ACCEPT))
        assert q.shown() == "2-4 G2, 5 K2"
        assert archiving.take(q.sp) == [DeadLetter(2, 2, 2, EXHAUSTED), DeadLetter(3, 4, 2, REJECTED)]

    def test_one_for_each_delivery_count(self) -> None:
        q = Queue((0, 5), saved="0-1 A1, 2-5 A2", dead_letter_queue=True)
        q.fetch("m")
        q.ack("m", ack(0, 5, REJECT))
        assert archiving.take(q.sp) == [DeadLetter(0, 1, 2, REJECTED), DeadLetter(2, 5, 3, REJECTED)]

    def test_a_gap_makes_none(self) -> None:  # DLQ-12, ACK-2
        q = last_attempt()
        q.ack("m", ack(0, 4, GAP))
        assert (q.sp.start_offset, archiving.has_archiving(q.sp)) == (5, False)

    def test_compaction_makes_none(self) -> None:  # DLQ-12
        q = Queue((0, 4), (5, 9), saved="0-4 A1", delivery_count_limit=LIMIT, dead_letter_queue=True)
        q.log = [(5, 9)]
        assert q.fetch("m") == [(5, 9, 1)]
        assert (q.sp.start_offset, archiving.take(q.sp)) == (0, [])
        assert saved(q.ack("m", ack(5, 5, ACCEPT))) == state("0-4 R1, 5 K1")

    def test_a_log_start_that_moves_makes_none(self) -> None:  # DLQ-12, LSO-8
        q = last_attempt(9)
        q.ack("m", ack(0, 0, RELEASE), ack(1, 1, REJECT))
        q.ask("m", ack(2, 2, REJECT))
        q.save(log_start.log_start_moved(q.sp, 5))
        assert (q.shown(), archiving.take(q.sp)) == ("5-9 H2 m", [])

    @pytest.mark.parametrize("answer", [REJECT, RELEASE, ACCEPT])
    def test_a_lock_that_ran_out_during_a_failed_write_makes_one(self, answer: int) -> None:  # DLQ-12
        """None of the answers is saved, so the record has reached its limit."""
        q = last_attempt()
        asked = q.ask("m", ack(0, 4, answer))
        assert q.expire(LOCK_MS) is None
        q.fail(asked)
        assert (q.sp.start_offset, archiving.has_unsaved_archiving(q.sp), archiving.take(q.sp)) == (
            0,
            True,
            [],
        )
        q.save(q.sp.retry_unsaved())
        assert archiving.take(q.sp) == [DeadLetter(0, 4, 2, DeadLetterCause.EXHAUSTED)]

    def test_a_failed_write_gives_records_back_to_their_holder(self) -> None:
        q = last_attempt()
        q.fail(q.ask("m", ack(0, 1, REJECT), ack(2, 3, RELEASE)))
        assert (q.shown(), archiving.take(q.sp)) == ("0-1 H2 m, 2-3 H2 m, 4 H2 m", [])
        q.ack("m", ack(0, 1, ACCEPT), ack(2, 3, REJECT))
        assert archiving.take(q.sp) == [DeadLetter(2, 3, 2, REJECTED)]


class TestSettings:
    def test_they_count_when_the_record_is_given_up(self) -> None:
        q = first_attempt()
        asked = q.ask("m", ack(0, 0, REJECT))
        q.sp.use(Queue(dead_letter_queue=False).settings)
        q.ack("m", ack(1, 1, REJECT))
        q.save(asked)
        q.sp.use(Queue(dead_letter_queue=True).settings)
        q.ack("m", ack(2, 2, REJECT))
        assert q.shown() == "0 G1, 1 R1, 2 G1, 3-9 H1 m"

    def test_a_queue_switched_off_leaves_what_is_archiving(self) -> None:
        q = first_attempt()
        q.ack("m", ack(0, 0, REJECT))
        q.sp.use(Queue(dead_letter_queue=False).settings)
        assert archiving.take(q.sp) == [DeadLetter(0, 0, 1, REJECTED)]


class TestArchiving:
    def test_holds_its_place(self) -> None:  # DLQ-19, REC-12
        q = Queue((0, 4), (5, 9), max_record_locks=5, dead_letter_queue=True)
        q.fetch("m")
        q.ack("m", ack(0, 0, REJECT), ack(1, 4, ACCEPT))
        assert (q.sp.start_offset, q.sp.window.complete) == (0, 4)
        assert offers.offset_to_acquire(q.sp) is None
        assert q.fetch("n") == []
        with pytest.raises(KafkaError):
            q.ask("m", ack(0, 0, ACCEPT))
        assert not q.sp.is_settled

    def test_statistics(self) -> None:
        q = last_attempt(9)
        q.ack("m", ack(0, 1, REJECT), ack(2, 4, RELEASE), ack(5, 5, GAP))
        q.ask("m", ack(6, 6, REJECT))
        statistics = q.sp.statistics()
        assert (statistics.archiving, statistics.pending, statistics.archived, statistics.acquired) == (
            5,
            1,
            1,
            3,
        )
        assert (statistics.rejected, statistics.exhausted, statistics.dead_lettered) == (3, 3, 0)
        archiving.take(q.sp)
        q.save(archiving.dead_lettered(q.sp, [(1, 3)]))
        statistics = q.sp.statistics()
        assert (statistics.archiving, statistics.archived, statistics.dead_lettered) == (2, 4, 3)

    def test_what_is_given_up_is_counted_without_a_queue_as_well(self) -> None:
        q = last_attempt(9, dead_letter_queue=False)
        q.ack("m", ack(1, 5, REJECT, RELEASE, GAP, ACCEPT, REJECT), ack(6, 6, REJECT))
        q.expire(LOCK_MS)
        statistics = q.sp.statistics()
        assert (statistics.rejected, statistics.exhausted, statistics.archiving) == (3, 5, 0)


class TestHandingOut:
    def test_once(self) -> None:
        q = first_attempt()
        q.ack("m", ack(0, 3, REJECT))
        assert archiving.take(q.sp) == [DeadLetter(0, 3, 1, REJECTED)]
        assert not archiving.has_dead_letters(q.sp)
        assert archiving.take(q.sp) == []
        q.ack("m", ack(6, 6, REJECT), ack(8, 8, REJECT))
        assert archiving.take(q.sp) == [DeadLetter(6, 6, 1, REJECTED), DeadLetter(8, 8, 1, REJECTED)]

    def test_again_after_they_were_given_back(self) -> None:
        q = last_attempt()
        q.ack("m", ack(0, 1, REJECT), ack(2, 4, RELEASE))
        archiving.take(q.sp)
        archiving.give_back(q.sp, [(1, 3)])
        assert archiving.take(q.sp) == [DeadLetter(1, 1, 2, REJECTED), DeadLetter(2, 3, 2, EXHAUSTED)]

    def test_not_before_a_timeout_is_saved(self) -> None:
        """A crash would lose it, and the record would become a second dead letter later."""
        q = last_attempt()
        persist = time_out(q)
        assert (q.shown(), archiving.has_dead_letters(q.sp), archiving.has_unsaved_archiving(q.sp)) == (
            "0-4 G2",
            False,
            False,
        )
        q.fail(persist)
        assert (archiving.has_dead_letters(q.sp), archiving.has_unsaved_archiving(q.sp), q.sp.is_settled) == (
            False,
            True,
            False,
        )

    def test_when_a_retry_is_saved(self) -> None:  # DLQ-17
        q = last_attempt()
        q.fail(time_out(q))
        retry = q.sp.retry_unsaved()
        assert saved(retry) == state("0-4 G2")
        assert not archiving.has_unsaved_archiving(q.sp)
        assert q.sp.retry_unsaved() is None
        q.fail(retry)
        assert archiving.has_unsaved_archiving(q.sp)
        q.save(q.sp.retry_unsaved())
        assert archiving.take(q.sp) == [DeadLetter(0, 4, 2, EXHAUSTED)]

    def test_when_it_is_saved_with_something_else(self) -> None:
        q = Queue((0, 4), (5, 9), saved="0-4 A1", delivery_count_limit=LIMIT, dead_letter_queue=True)
        q.fetch("m", 5)
        q.fail(time_out(q))
        q.fetch("n")
        assert saved(q.ack("n", ack(5, 5, ACCEPT))) == state("0-4 G2, 5 K1")
        assert archiving.take(q.sp) == [DeadLetter(0, 4, 2, EXHAUSTED)]

    def test_an_earlier_write_that_said_something_else_does_not_count(self) -> None:
        q = Queue((0, 4), delivery_count_limit=LIMIT, dead_letter_queue=True)
        q.fetch("m")
        available = time_out(q)
        q.fetch("m")
        second = q.sp.expire(2 * LOCK_MS)
        q.save(available)
        assert (q.shown(), archiving.has_dead_letters(q.sp)) == ("0-4 G2", False)
        q.save(second)
        assert archiving.has_dead_letters(q.sp)

    def test_not_what_the_log_start_has_passed(self) -> None:
        q = last_attempt()
        persist = time_out(q)
        q.save(log_start.log_start_moved(q.sp, 3))
        q.save(persist)
        assert archiving.take(q.sp) == [DeadLetter(3, 4, 2, EXHAUSTED)]


class TestEnd:
    def test_the_start_offset_moves_at_once(self) -> None:  # DLQ-14, DLQ-18, REC-4
        q = first_attempt()
        q.ack("m", ack(0, 3, REJECT), ack(5, 5, REJECT))
        archiving.take(q.sp)
        persist = archiving.dead_lettered(q.sp, [(0, 3), (5, 5)])
        assert (q.shown(), q.sp.start_offset, q.sp.window.complete) == (
            "4 H1 m, 5 R1, 6-9 H1 m",
            4,
            1,
        )
        assert persist is not None
        assert (persist.start_offset, persist.delivery_complete_count) == (0, 5)
        assert saved(q.save(persist)) == state("0-3 R1, 5 R1")
        assert not archiving.has_archiving(q.sp)

    def test_in_parts_and_in_any_order(self) -> None:
        q = first_attempt(3)
        q.ack("m", ack(0, 3, REJECT))
        archiving.take(q.sp)
        q.save(archiving.dead_lettered(q.sp, [(3, 3), (1, 2)]))
        assert (q.shown(), q.sp.start_offset) == ("0 G1, 1-3 R1", 0)
        q.save(archiving.dead_lettered(q.sp, [(0, 0)]))
        assert (q.sp.start_offset, q.sp.is_settled) == (4, True)

    def test_a_failed_save_is_made_up_for(self) -> None:  # DLQ-16
        q = first_attempt()
        q.ack("m", ack(0, 0, REJECT), ack(2, 2, REJECT))
        archiving.take(q.sp)
        q.fail(archiving.dead_lettered(q.sp, [(0, 0), (2, 2)]))
        assert q.shown() == "1 H1 m, 2 R1, 3-9 H1 m"
        assert archiving.has_archiving(q.sp)
        assert saved(q.ack("m", ack(9, 9, ACCEPT))) == state("2 R1, 9 K1")
        assert (q.saved_start, archiving.has_archiving(q.sp)) == (1, False)

    def test_it_stays_unsettled_until_a_save_has_passed_it(self) -> None:
        """The state still says ARCHIVING: unloaded and loaded again, the record would become a
        second dead letter."""
        q = first_attempt(0)
        q.ack("m", ack(0, 0, REJECT))
        archiving.take(q.sp)
        q.fail(archiving.dead_lettered(q.sp, [(0, 0)]))
        assert (q.sp.start_offset, q.sp.is_settled, archiving.has_archiving(q.sp)) == (1, False, True)
        q.fail(q.sp.retry_unsaved())
        assert (q.sp.is_settled, archiving.has_archiving(q.sp)) == (False, True)
        q.save(q.sp.retry_unsaved())
        assert (q.sp.is_settled, archiving.has_archiving(q.sp), q.saved_start) == (True, False, 1)

    def test_a_log_start_that_moved_meanwhile(self) -> None:
        q = first_attempt(5)
        q.ack("m", ack(0, 3, REJECT), ack(4, 5, ACCEPT))
        archiving.take(q.sp)
        moved = log_start.log_start_moved(q.sp, 2)
        assert saved(q.save(archiving.dead_lettered(q.sp, [(0, 2)]))) == state("2 R1")
        archiving.give_back(q.sp, [(0, 1)])
        assert (archiving.dead_lettered(q.sp, [(0, 2)]), archiving.take(q.sp)) == (None, [])
        q.fail(moved)
        assert q.sp.statistics().dead_lettered == 1

    def test_a_log_start_that_is_not_saved_keeps_it_loaded(self) -> None:
        q = first_attempt(3)
        q.ack("m", ack(0, 3, REJECT))
        q.fail(log_start.log_start_moved(q.sp, 4))
        assert (q.shown(), q.sp.is_settled, archiving.has_archiving(q.sp)) == ("", False, True)
        q.save(q.sp.retry_unsaved())
        assert (q.saved_start, q.sp.is_settled, archiving.has_archiving(q.sp)) == (4, True, False)

    @pytest.mark.parametrize("runs", [[(4, 4)], [(0, 1), (1, 2)], [(0, 5)], [(9, 9)], [(50, 60)]])
    def test_what_nobody_has_cannot_end_nor_come_back(self, runs: list[tuple[int, int]]) -> None:
        q = first_attempt()
        q.ack("m", ack(0, 1, REJECT), ack(4, 4, REJECT))
        archiving.take(q.sp)
        archiving.give_back(q.sp, [(4, 4)])
        before = q.sp.statistics()
        for call in (archiving.dead_lettered, archiving.give_back):
            with pytest.raises(ValueError, match="handed out"):
                call(q.sp, runs)
        assert q.sp.statistics() == before


class TestLoading:
    @pytest.mark.parametrize("dead_letter_queue", [False, True])
    def test_stored_archiving_is_handed_out(self, dead_letter_queue: bool) -> None:  # LOAD-17, DLQ-20
        """Whatever the group's config is now. The reason is not stored: below the limit it can only
        be a rejection."""
        q = Queue((0, 9), saved="0-2 G5, 3 A1, 4-5 G4, 6-7 G6", dead_letter_queue=dead_letter_queue)
        assert (archiving.has_dead_letters(q.sp), archiving.has_archiving(q.sp), q.sp.is_settled) == (
            True,
            True,
            False,
        )
        letters = [(0, 2, 5, EXHAUSTED), (4, 5, 4, REJECTED), (6, 7, 6, EXHAUSTED)]
        assert archiving.take(q.sp) == [DeadLetter(*letter) for letter in letters]
        q.save(archiving.dead_lettered(q.sp, [(0, 2), (4, 7)]))
        assert (q.sp.start_offset, q.sp.window.complete) == (3, 4)

    def test_a_restart_hands_out_again_what_was_not_archived(self) -> None:  # DLQ-20
        q = first_attempt()
        q.ack("m", ack(0, 0, REJECT), ack(2, 2, REJECT))
        archiving.take(q.sp)
        q.save(archiving.dead_lettered(q.sp, [(0, 0)]))
        q.reload()
        assert archiving.take(q.sp) == [DeadLetter(2, 2, 1, REJECTED)]

    def test_a_restart_forgets_what_was_not_saved(self) -> None:
        q = last_attempt()
        q.fail(time_out(q))
        q.reload()
        assert archiving.take(q.sp) == []
        assert q.fetch("m") == [(0, 4, 2)]
