"""The whole life of records in a share-partition: traces of a running Kafka, loading, lock
timeouts, log start, start offset."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share import log_start
from kbroker.share.effects import Persist, StateBatch
from tests.share.holdings import holdings
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW, Queue, ack, state

LOCK_MS = 30_000


def wrote(persist: Persist | None) -> tuple[int, int, tuple[StateBatch, ...]]:
    assert persist is not None
    return persist.start_offset, persist.delivery_complete_count, persist.batches


def test_engine_trace() -> None:  # REC-9, REC-11, REC-12, ACK-18, ACK-24, SPSO-2, SPSO-3, SPSO-5..7
    """Log [0-4][5-9], limit 5, batch_optimized: the trace observed on Kafka 4.4.0, step by step."""
    q = Queue((0, 4), (5, 9))
    assert q.fetch("M1", 5) == [(0, 4, 1)]
    assert (q.sp.start_offset, q.sp.end_offset) == (0, 4)
    assert q.fetch("M2", 5) == [(5, 9, 1)]
    assert q.sp.end_offset == 9

    assert wrote(q.ack("M2", ack(5, 9, ACCEPT))) == (0, 5, state("5-9 K1"))
    assert (q.sp.start_offset, q.sp.statistics().in_flight) == (0, 10)

    write = q.ack("M1", ack(0, 4, ACCEPT, ACCEPT, RELEASE, REJECT, ACCEPT))
    assert wrote(write) == (0, 9, state("0-1 K1, 2 A1, 3 R1, 4 K1"))
    assert (q.sp.start_offset, q.sp.window.complete) == (2, 7)

    assert q.sp.window.next_fetch_offset() == 2
    assert q.fetch("M2") == [(2, 2, 2)]
    assert q.ask("M2", ack(2, 2, RENEW)) is None
    with pytest.raises(KafkaError) as caught:
        q.ask("M1", ack(2, 2, ACCEPT))
    assert caught.value.code is ErrorCode.invalid_record_state

    assert wrote(q.release("M2")) == (2, 7, state("2 A2"))
    assert q.fetch("M1") == [(2, 2, 3)]
    assert wrote(q.ack("M1", ack(2, 2, ACCEPT))) == (2, 8, state("2 K3"))
    assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.complete) == (10, 10, 0)
    assert q.shown() == ""
    # the state for administrators until the next write: start 2, complete 8, end 10, lag 0
    assert q.saved_start == 2


def test_gap_window_trace() -> None:  # LOAD-13, LOAD-14, NEXT-3..5, NEXT-9, ACQ-9, SPSO-2, SPSO-8
    """Persisted: start 10, [21-30 K1]."""
    q = Queue((8, 15), (16, 25), (26, 40), start=10, saved="21-30 K1")
    assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.next_fetch_offset()) == (10, 30, 10)
    assert q.fetch("m", read=1) == [(10, 15, 1)]
    assert (q.sp.end_offset, q.sp.window.next_fetch_offset()) == (30, 16)
    assert q.fetch("m", read=1) == [(16, 20, 1)]
    assert (q.sp.end_offset, q.sp.window.next_fetch_offset()) == (30, 31)
    q.ack("m", ack(10, 20, ACCEPT))
    assert (q.sp.start_offset, q.sp.end_offset) == (21, 30)  # the gap window is still open and limits it
    assert q.sp.window.complete == 10
    assert q.fetch("m") == [(31, 40, 1)]
    assert q.sp.start_offset == 21
    q.ack("m", ack(31, 31, ACCEPT))
    assert q.sp.start_offset == 32


class TestGapWindow:
    def test_several_holes_in_one_read(self) -> None:  # ACQ-14
        q = Queue((0, 50), start=10, saved="15-19 K1, 30-39 A1")
        assert q.fetch("m", 500) == [(10, 14, 1), (20, 29, 1), (30, 39, 2), (40, 50, 1)]

    def test_a_hole_is_never_filled_beyond_the_next_batch(self) -> None:  # NEXT-9
        """KAFKA-19954: one record requested; the record batch overlaps the loaded ones."""
        q = Queue((10, 30), start=10, saved="15-30 K1")
        assert q.fetch("m", 1) == [(10, 14, 1)]
        assert q.shown() == "10-14 H1 m, 15-30 K1"

    def test_record_limit_in_a_hole(self) -> None:  # NEXT-9, NEXT-11
        q = Queue((10, 30), start=10, saved="21-30 K1")
        assert q.fetch("m", 3, by_record=True) == [(10, 12, 1)]
        assert q.shown() == "10-12 H1 m, 13-20 A0, 21-30 K1"
        assert q.fetch("m", 500, by_record=True) == [(13, 20, 1)]

    def test_a_hole_in_which_the_log_has_nothing(self) -> None:
        """The read at the hole begins after it: the hole must not be read repeatedly."""
        q = Queue((0, 4), (15, 19), start=0, saved="0-4 K1, 15-19 A1")
        assert q.sp.window.next_fetch_offset() == 5
        assert q.fetch("m") == [(15, 19, 2)]
        assert q.sp.window.next_fetch_offset() == 20
        q.ack("m", ack(15, 19, ACCEPT))
        assert q.sp.start_offset == 20

    def test_a_hole_without_data_before_terminal_records(self) -> None:
        q = Queue((15, 19), start=10, saved="15-19 K1")
        assert q.fetch("m") == []
        assert q.sp.window.next_fetch_offset() == 20

    def test_a_part_of_a_hole_without_data(self) -> None:
        """Two records requested; the next record batch inside the hole is found, too."""
        q = Queue((10, 11), (18, 19), (21, 30), start=10, saved="21-30 A1")
        assert q.fetch("m", 5) == [(10, 11, 1), (18, 20, 1)]
        assert q.fetch("m") == [(21, 30, 2)]

    def test_the_start_becomes_the_first_data(self) -> None:  # NEXT-7
        q = Queue((12, 15), start=10, saved="21-30 K1")
        assert q.fetch("m") == [(12, 15, 1)]
        assert q.sp.start_offset == 12

    def test_a_full_window_behind_a_filled_gap_does_not_block(self) -> None:  # SPSO-8
        """100 terminal offsets after the gap fill the window, so that data beyond them could not
        close the gap window."""
        q = Queue((0, 9), (10, 109), (110, 119), start=0, saved="10-109 K1", max_record_locks=100)
        assert q.fetch("m") == [(0, 9, 1)]
        q.ack("m", ack(0, 9, ACCEPT))
        assert q.fetch("m") == [(110, 119, 1)]

    def test_the_rest_of_a_hole_is_found_behind_a_redelivery(self) -> None:
        q = Queue((10, 12), (13, 30), start=10, saved="21-30 A1")
        assert q.fetch("m", 3) == [(10, 12, 1)]
        q.ack("m", ack(10, 12, RELEASE))
        assert q.fetch("m") == [(10, 12, 2), (13, 20, 1), (21, 30, 2)]

    def test_redelivery_does_not_open_passed_holes_again(self) -> None:  # NEXT-4
        q = Queue((10, 12), (15, 17), (30, 39), start=10, saved="30-39 K1")
        assert q.fetch("m", read=1) == [(10, 12, 1)]
        assert q.fetch("m", read=1) == [(15, 17, 1)]
        q.ack("m", ack(10, 12, RELEASE))
        assert q.fetch("m", read=1) == [(10, 12, 2)]
        assert q.sp.window.next_fetch_offset() == 18

    def test_holes_that_appear_later_are_no_records(self) -> None:  # NEXT-6
        """No record was there when it was read, so none is acquired there, even if a record batch
        claims to contain it."""
        q = Queue((0, 4), (10, 14), (20, 24), start=0, saved="0-4 A1, 10-14 A1")
        assert q.fetch("m") == [(0, 4, 2), (10, 14, 2), (20, 24, 1)]  # and the gap window is closed
        q.ack("m", ack(0, 4, RELEASE), ack(10, 14, RELEASE), ack(20, 24, RELEASE))
        q.log = [(0, 24)]
        assert q.fetch("n", 1, by_record=True) == [(0, 0, 3)]
        assert q.fetch("n") == [(1, 4, 3), (10, 14, 3), (20, 24, 2)]
        assert q.sp.window.next_fetch_offset() == 25


class TestLoad:
    def test_nothing_saved(self) -> None:
        sp = Queue(start=17).sp
        assert (sp.start_offset, sp.end_offset, sp.window.next_fetch_offset(), sp.window.complete) == (
            17,
            17,
            17,
            0,
        )
        assert (sp.saves.state_epoch, sp.saves.leader_epoch) == (3, 7)

    def test_counts_go_on(self) -> None:  # LOAD-12
        q = Queue((0, 9), saved="0-3 A2, 4-9 A1")
        assert q.fetch("m") == [(0, 3, 3), (4, 9, 2)]

    def test_terminal_records_are_never_delivered_again(self) -> None:  # LOAD-15, REC-5
        q = Queue((0, 9), saved="0 A1, 1-3 K1, 4-6 R5, 7-9 A1")
        assert q.sp.window.complete == 6
        assert q.fetch("m") == [(0, 0, 2), (7, 9, 2)]

    def test_the_start_moves_past_terminal_records(self) -> None:  # LOAD-16
        q = Queue(saved="0-4 K1, 5-6 R2, 7 A1")
        assert (q.sp.start_offset, q.sp.window.complete) == (7, 0)
        q = Queue(saved="0-4 K1, 5-6 R2")
        assert (q.sp.start_offset, q.sp.end_offset, q.shown()) == (7, 7, "")

    def test_but_not_into_a_gap(self) -> None:  # LOAD-13, SPSO-2
        q = Queue((0, 20), saved="0-4 K1, 10-14 K1")
        assert (q.sp.start_offset, q.sp.window.complete, q.sp.window.next_fetch_offset()) == (5, 5, 5)
        assert q.fetch("m") == [(5, 9, 1), (15, 20, 1)]

    @pytest.mark.parametrize("saved", ["0-4 H1", "0-4 G1"])
    # LOAD-11, DLQ-19
    def test_acquired_and_archiving_are_neither_delivered_nor_terminal(self, saved: str) -> None:
        q = Queue((0, 4), (5, 9), saved=saved)
        assert q.fetch("m") == [(5, 9, 1)]
        q.ack("m", ack(5, 9, ACCEPT))
        assert q.sp.start_offset == 0
        q.expire(10**9)
        q.release("m")
        q.release("")
        assert q.fetch("m") == []
        with pytest.raises(KafkaError):
            q.ask("", ack(0, 4, ACCEPT))
        assert next(holdings(q.sp)).member_id is None

    @pytest.mark.parametrize(
        "batches",
        [
            [StateBatch(4, 9, 2, 1)],
            [StateBatch(10, 9, 2, 1)],
            [StateBatch(10, 12, 9, 1)],
            [StateBatch(10, 12, 5, 1)],
            [StateBatch(10, 12, -1, 1)],
            [StateBatch(10, 12, 2, -1)],
            [StateBatch(10, 12, 2, 1), StateBatch(12, 13, 2, 1)],
            [StateBatch(10, 10 + 2**40, 2, 1)],
            [StateBatch(10, 10, 2, 1), StateBatch(2**50, 2**50, 2, 1)],
        ],
        ids=["below", "upside down", "unknown", "hole", "negative", "count", "overlap", "huge", "far"],
    )
    def test_state_that_makes_no_sense(self, batches: list[StateBatch]) -> None:  # LOAD-9, LOAD-10
        q = Queue(start=10)
        q.saved_batches = tuple(batches)
        with pytest.raises(ValueError, match=r"StateBatch|offsets from 10"):
            q.reload()

    def test_no_start_offset(self) -> None:
        with pytest.raises(ValueError, match="-1"):
            Queue(start=-1)

    def test_restart_gives_back_what_was_held(self) -> None:  # REC-13
        q = Queue((0, 9), (10, 19))
        q.fetch("m", 20)
        q.ack("m", ack(0, 3, ACCEPT), ack(8, 8, REJECT), ack(12, 12, RELEASE))
        q.reload()
        assert q.fetch("n") == [(4, 7, 1), (9, 11, 1), (12, 12, 2), (13, 19, 1)]


class TestLockTimeout:
    def test_due_at_the_deadline(self) -> None:  # ACK-31
        q = Queue((0, 4))
        q.now_ms = 100.0
        q.fetch("m")
        assert q.sp.next_deadline_ms() == LOCK_MS + 100
        assert q.sp.expire(LOCK_MS + 99) is None
        assert wrote(q.expire(LOCK_MS + 100)) == (0, 0, state("0-4 A1"))
        assert q.sp.next_deadline_ms() is None
        assert q.sp.statistics().lock_timeouts == 5

    def test_available_before_it_is_saved(self) -> None:  # ACK-31
        q = Queue((0, 4))
        q.fetch("m")
        q.now_ms = LOCK_MS
        persist = q.sp.expire(LOCK_MS)
        assert q.fetch("n") == [(0, 4, 2)]
        q.save(persist)
        assert q.shown() == "0-4 H2 n"

    def test_a_failed_write_changes_nothing_and_is_made_up_for(self) -> None:  # ACK-32
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 5)
        q.now_ms = LOCK_MS
        q.fail(q.sp.expire(LOCK_MS))
        assert q.shown() == "0-4 A1"
        q.sp.acquire(
            "n", mode=0, batch_size=5, max_records=5, fetch_offset=5, batches=[(5, 9)], now_ms=q.now_ms
        )
        asked = q.ask("n", ack(5, 9, ACCEPT))
        assert wrote(asked) == (0, 5, state("0-4 A1, 5-9 K1"))
        q.fail(asked)
        assert wrote(q.ack("n", ack(5, 9, ACCEPT))) == (0, 5, state("0-4 A1, 5-9 K1"))
        q.fetch("n")
        assert wrote(q.ack("n", ack(0, 0, ACCEPT))) == (0, 6, state("0 K2"))

    def test_at_the_limit(self) -> None:  # ACK-31, REC-6
        q = Queue((0, 4), saved="0-4 A1", delivery_count_limit=2)
        q.fetch("m")
        q.now_ms = LOCK_MS
        persist = q.sp.expire(LOCK_MS)
        assert q.shown() == "0-4 R2"
        assert wrote(persist) == (0, 5, state("0-4 R2"))
        q.save(persist)
        assert q.sp.start_offset == 5

    def test_the_last_holder_is_too_late(self) -> None:  # ACK-9
        q = Queue((0, 4))
        q.fetch("m")
        q.expire(LOCK_MS)
        with pytest.raises(KafkaError):
            q.ask("m", ack(0, 4, ACCEPT))

    def test_what_is_acknowledged_does_not_time_out(self) -> None:  # ACK-34
        q = Queue((0, 4))
        q.fetch("m")
        q.ack("m", ack(1, 1, ACCEPT), ack(3, 3, ACCEPT))
        assert wrote(q.expire(LOCK_MS)) == (0, 2, state("0 A1, 2 A1, 4 A1"))

    def test_an_old_lock_does_not_end_a_later_one(self) -> None:
        q = Queue((0, 4))
        q.fetch("m")
        q.now_ms = 1000.0
        q.ack("m", ack(0, 4, RELEASE))
        q.fetch("m")
        assert q.expire(LOCK_MS) is None
        assert q.shown() == "0-4 H2 m"
        assert q.expire(LOCK_MS + 1000) is not None

    def test_a_new_duration_counts_for_later_locks(self) -> None:  # ACK-30
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 5)
        q.sp.use(Queue(lock_duration_ms=1000).settings)
        q.fetch("m", 5)
        assert q.sp.next_deadline_ms() == 1000
        assert wrote(q.expire(1000)) == (0, 0, state("5-9 A1"))
        assert q.sp.next_deadline_ms() == LOCK_MS
        assert wrote(q.expire(LOCK_MS)) == (0, 0, state("0-4 A1"))

    def test_many_small_locks_behind_a_stuck_record_do_not_pile_up(self) -> None:
        q = Queue(*((n, n) for n in range(2000)))
        q.fetch("m", 1)
        for _ in range(1999):
            [(offset, _, _)] = q.fetch("m", 1)
            q.ack("m", ack(offset, offset, ACCEPT))
        assert q.sp.statistics().locks <= 1025
        q.expire(LOCK_MS)
        assert q.sp.statistics().lock_timeouts == 1
        assert q.fetch("n", 1) == [(0, 0, 2)]

    def test_locks_leave_with_the_start_offset(self) -> None:
        q = Queue(*((n, n) for n in range(3000)))
        for n in range(3000):
            q.fetch("m", 1)
            q.ack("m", ack(n, n, ACCEPT))
        assert q.sp.statistics().locks == 0
        assert q.sp.next_deadline_ms() is None


class TestLogStart:
    def test_nothing_in_flight(self) -> None:  # LSO-3, LSO-7
        q = Queue((50, 59))
        assert wrote(q.save(log_start.log_start_moved(q.sp, 50))) == (50, 0, ())
        assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.complete) == (50, 50, 0)
        assert q.fetch("m") == [(50, 59, 1)]

    def test_behind_the_start_is_ignored(self) -> None:  # LSO-2
        q = Queue(start=7)
        assert log_start.log_start_moved(q.sp, 7) is None
        assert log_start.log_start_moved(q.sp, 3) is None
        assert q.sp.start_offset == 7

    def test_inside_the_window(self) -> None:  # LSO-4, LSO-6
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(2, 3, ACCEPT), ack(5, 8, ACCEPT), ack(9, 9, RELEASE))
        q.save(log_start.log_start_moved(q.sp, 6))
        assert (q.sp.start_offset, q.sp.end_offset, q.shown()) == (9, 9, "9 A1")
        assert q.fetch("m") == [(9, 9, 2)]

    def test_the_complete_count_drops_by_what_fell_out(self) -> None:  # LSO-6
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(2, 3, ACCEPT), ack(7, 8, REJECT))
        q.ask("m", ack(4, 4, ACCEPT))
        assert q.sp.window.complete == 5
        log_start.log_start_moved(q.sp, 6)
        assert q.sp.window.complete == 2

    @pytest.mark.parametrize(
        ("begins_at", "first_open", "done"),
        [(1, 1, 6), (3, 4, 5), (4, 4, 4), (5, 5, 4), (6, 10, 4), (9, 10, 1), (10, 10, 0), (15, 15, 0)],
    )
    def test_what_is_done_there_before_it_is_noticed(
        self, begins_at: int, first_open: int, done: int
    ) -> None:
        """Pending records are done, but may become available again. The log's start decides once it
        is noticed."""
        q = Queue((0, 9), (10, 19))
        q.fetch("m", 10)
        q.ack("m", ack(2, 3, ACCEPT), ack(6, 9, REJECT))
        assert q.sp.window.stands_from(begins_at) == (first_open, done)
        pending = q.ask("m", ack(5, 5, ACCEPT))
        expected = done + (begins_at <= 5)
        assert q.sp.window.stands_from(begins_at) == (first_open, expected)
        q.save(log_start.log_start_moved(q.sp, begins_at))
        q.sp.retry_unsaved()
        q.fail(pending)
        assert 20 - q.sp.start_offset - q.sp.window.complete == 20 - begins_at - done

    def test_what_is_done_there_of_a_gap(self) -> None:
        """The content of the gap is unknown before it is read."""
        q = Queue((10, 30), start=10, saved="13-15 K1, 21-30 A1")
        assert q.sp.window.stands_from(12) == (12, 3)
        assert q.sp.window.stands_from(14) == (16, 2)
        assert q.sp.window.stands_from(22) == (22, 0)

    # LSO-4, LSO-5, SPSO-9
    def test_available_records_below_are_gone_and_held_ones_are_acknowledged_silently(self) -> None:
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(0, 1, RELEASE))
        q.save(log_start.log_start_moved(q.sp, 5))
        assert q.sp.window.next_fetch_offset() == 10
        assert q.ask("m", ack(2, 4, ACCEPT)) is None
        q.ack("m", ack(3, 9, ACCEPT))
        assert (q.sp.start_offset, q.sp.window.complete) == (10, 0)  # KAFKA-19859

    def test_beyond_the_window(self) -> None:
        q = Queue((0, 9), (30, 39))
        q.fetch("m", 10)
        q.save(log_start.log_start_moved(q.sp, 30))
        assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.next_fetch_offset()) == (30, 30, 30)
        assert q.ask("m", ack(0, 9, ACCEPT)) is None
        assert q.sp.expire(10**9) is None
        assert q.fetch("m") == [(30, 39, 1)]

    def test_pending_records_fall_out(self) -> None:  # REC-8
        q = Queue((0, 9), (10, 19))
        q.fetch("m", 20)
        saved, failed = q.ask("m", ack(0, 7, ACCEPT)), q.ask("m", ack(8, 14, ACCEPT))
        q.save(log_start.log_start_moved(q.sp, 12))
        q.save(saved)
        q.fail(failed)
        assert q.shown() == "12-14 H1 m, 15-19 H1 m"
        assert q.sp.window.complete == 0

    def test_all_pending_records_fall_out(self) -> None:
        q = Queue((0, 9), (10, 19))
        q.fetch("m", 10)
        saved, failed = q.ask("m", ack(0, 7, ACCEPT)), q.ask("m", ack(8, 9, ACCEPT))
        q.save(log_start.log_start_moved(q.sp, 10))
        assert q.fetch("n") == [(10, 19, 1)]
        q.save(saved)
        q.fail(failed)
        assert q.shown() == "10-19 H1 n"

    def test_in_a_gap_window(self) -> None:
        q = Queue((14, 30), start=10, saved="21-30 A1")
        q.save(log_start.log_start_moved(q.sp, 14))
        assert q.sp.window.next_fetch_offset() == 14
        assert q.fetch("m") == [(14, 20, 1), (21, 30, 2)]


class TestStartOffset:
    def test_stops_at_what_is_not_terminal(self) -> None:  # SPSO-1, SPSO-2
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(0, 3, ACCEPT), ack(5, 9, ACCEPT))
        assert (q.sp.start_offset, q.sp.window.complete) == (4, 5)

    def test_stops_at_what_is_being_saved(self) -> None:  # SPSO-1, SPSO-2
        q = Queue((0, 9))
        q.fetch("m")
        asked = q.ask("m", ack(3, 4, ACCEPT))
        q.ack("m", ack(0, 2, ACCEPT))
        assert q.sp.start_offset == 3
        q.save(asked)
        assert q.sp.start_offset == 5

    def test_all_terminal_empties_the_window(self) -> None:  # SPSO-3
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(0, 9, GAP))
        assert q.sp.statistics().in_flight == 0
        assert (q.sp.start_offset, q.sp.end_offset) == (10, 10)

    def test_long_runs(self) -> None:  # SPSO-5
        q = Queue(*((n, n + 99) for n in range(0, 10_000, 100)), max_record_locks=10_000)
        q.fetch("m", 10_000, batch_size=100)
        q.ack("m", ack(1, 9_000, ACCEPT))
        assert q.sp.start_offset == 0
        q.ack("m", ack(0, 0, ACCEPT))
        assert q.sp.start_offset == 9_001
        q.ack("m", ack(9_001, 9_998, RELEASE))
        assert q.fetch("n", 1) == [(9_001, 9_099, 2)]
        assert q.sp.window.complete == 0

    def test_the_write_carries_the_start_before_it_moves(self) -> None:  # ACK-18, SPSO-7
        q = Queue((0, 4))
        q.fetch("m")
        q.ack("m", ack(0, 1, ACCEPT))
        assert q.saved_start == 0
        assert wrote(q.ack("m", ack(2, 4, ACCEPT)))[0] == 2


class TestStatistics:
    def test_counts(self) -> None:
        q = Queue((0, 9), (10, 19))
        q.fetch("m")
        q.ack("m", ack(1, 3, ACCEPT), ack(4, 4, REJECT), ack(5, 6, RELEASE))
        q.ask("m", ack(10, 11, ACCEPT))
        q.fetch("n")
        statistics = q.sp.statistics()
        assert statistics.in_flight == 20
        assert (statistics.available, statistics.acquired, statistics.pending) == (0, 14, 2)
        assert (statistics.acknowledged, statistics.archived) == (3, 1)
        assert statistics.delivery_complete_count == 6
        assert (statistics.acquired_records, statistics.redeliveries) == (22, 2)
        assert (statistics.writes_under_way, statistics.locks) == (1, 2)

    def test_what_was_only_read_is_not_delivered_again(self) -> None:
        q = Queue((0, 9))
        q.fetch("m", 5, by_record=True)
        q.ack("m", ack(3, 4, RELEASE))
        assert q.fetch("n", 4, by_record=True) == [(3, 4, 2), (5, 6, 1)]
        statistics = q.sp.statistics()
        assert (statistics.acquired_records, statistics.redeliveries) == (9, 2)

    def test_holders(self) -> None:
        q = Queue((0, 9))
        q.now_ms = 5.0
        q.fetch("m")
        q.ask("m", ack(2, 2, ACCEPT))
        held, pending, rest = holdings(q.sp)
        assert (held.first_offset, held.last_offset, held.member_id, held.deadline_ms) == (
            0,
            1,
            "m",
            LOCK_MS + 5,
        )
        assert (pending.state, pending.pending, pending.delivery_count) == (2, True, 1)
        assert (rest.first_offset, rest.last_offset) == (3, 9)
