"""The records that a fetch acquires: next fetch offset, in-flight limit, redelivery, holes, new
data, both acquire modes."""

from __future__ import annotations

import pytest

from kbroker.share import offers
from kbroker.share.share_partition import AcquireMode
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, Queue, ack


class TestNewData:
    def test_whole_batches_or_exactly_what_was_asked_for(self) -> None:  # NEXT-8, NEXT-11
        """Log [0-9][10-19], MaxRecords 5, BatchSize 5."""
        assert Queue((0, 9), (10, 19)).fetch("m", 5) == [(0, 9, 1)]
        assert Queue((0, 9), (10, 19)).fetch("m", 5, by_record=True) == [(0, 4, 1)]

    def test_the_rest_of_a_record_limited_batch_is_available(self) -> None:  # NEXT-11, NEXT-12
        q = Queue((0, 9), (10, 19))
        q.fetch("m", 5, by_record=True)
        assert q.shown() == "0-4 H1 m, 5-9 A0"
        assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.next_fetch_offset()) == (0, 9, 5)
        assert q.fetch("n", 3, by_record=True) == [(5, 7, 1)]
        assert q.fetch("n", 500) == [(8, 9, 1), (10, 19, 1)]

    def test_record_limit_is_one_entry_over_several_batches(self) -> None:  # NEXT-11
        q = Queue((0, 3), (4, 7), (8, 11))
        assert q.fetch("m", 6, by_record=True, batch_size=2) == [(0, 5, 1)]
        assert q.shown() == "0-5 H1 m, 6-7 A0"

    def test_entries_are_cut_at_record_batches_once_batch_size_is_reached(self) -> None:  # NEXT-10
        q = Queue((0, 2), (3, 5), (6, 8), (9, 20))
        assert q.fetch("m", 500, batch_size=4) == [(0, 5, 1), (6, 20, 1)]

    def test_no_cut_if_all_fits_into_batch_size(self) -> None:  # NEXT-10
        assert Queue((0, 2), (3, 5)).fetch("m", 500, batch_size=6) == [(0, 5, 1)]

    def test_batch_size_zero_gives_no_empty_entry(self) -> None:  # RPC-48
        assert Queue((0, 2), (3, 5)).fetch("m", 500, batch_size=0) == [(0, 2, 1), (3, 5, 1)]

    def test_max_records_ends_with_the_batch_that_holds_the_last_one(self) -> None:  # NEXT-8
        q = Queue((0, 2), (3, 5), (6, 8))
        assert q.fetch("m", 4, batch_size=500) == [(0, 5, 1)]
        assert q.sp.window.next_fetch_offset() == 6

    def test_the_first_data_there_is_becomes_the_start(self) -> None:  # NEXT-7
        """The log has nothing before 12."""
        q = Queue((12, 15))
        assert q.fetch("m") == [(12, 15, 1)]
        assert q.sp.start_offset == 12

    def test_a_batch_that_reaches_below_the_start_is_clipped(self) -> None:  # ACQ-9
        assert Queue((0, 9), start=4).fetch("m") == [(4, 9, 1)]
        assert Queue((0, 9), start=4).fetch("m", 2, by_record=True) == [(4, 5, 1)]

    def test_holes_inside_what_was_read_belong_to_the_entry(self) -> None:  # ACQ-16
        """The client acknowledges them as gaps."""
        q = Queue((0, 4), (10, 14))
        assert q.fetch("m") == [(0, 14, 1)]
        q.ack("m", ack(0, 14, *[ACCEPT] * 5, *[GAP] * 5, *[ACCEPT] * 5))
        assert q.sp.start_offset == 15

    def test_nothing_for_nothing(self) -> None:  # ACQ-5
        q = Queue((0, 4))
        assert q.fetch("m", 0) == []
        assert q.fetch("m", -1) == []
        assert (
            q.sp.acquire(
                "m", mode=AcquireMode(0), batch_size=1, max_records=1, fetch_offset=0, batches=[], now_ms=0
            )
            == []
        )
        assert q.shown() == ""

    def test_what_lies_below_the_start_is_not_acquired(self) -> None:  # ACQ-5
        q = Queue((0, 4), (5, 9), start=5)
        batches = [(0, 4)]
        assert (
            q.sp.acquire(
                "m",
                mode=AcquireMode(0),
                batch_size=9,
                max_records=9,
                fetch_offset=0,
                batches=batches,
                now_ms=0,
            )
            == []
        )

    def test_a_read_ahead_of_what_is_due_is_ignored(self) -> None:
        """Otherwise the records in between would be taken for missing."""
        q = Queue((0, 4), (5, 9), (10, 14))
        for fetched in ([], q.fetch("m", 5)):
            assert len(fetched) <= 1
            batches = [(10, 14)]
            assert (
                q.sp.acquire(
                    "m",
                    mode=AcquireMode(0),
                    batch_size=9,
                    max_records=9,
                    fetch_offset=10,
                    batches=batches,
                    now_ms=0,
                )
                == []
            )
        assert q.sp.window.next_fetch_offset() == 5

    def test_a_batch_header_cannot_claim_the_memory(self) -> None:
        q = Queue((0, 2**31 - 2), max_record_locks=100)
        [(first, last, count)] = q.fetch("m")
        assert (first, count) == (0, 1)
        assert last < 2**24
        q.ack("m", ack(first, last, ACCEPT))
        assert q.fetch("m")[0][0] == last + 1


class TestNextFetchOffset:
    def test_nothing_in_flight(self) -> None:  # NEXT-1
        assert Queue(start=7).sp.window.next_fetch_offset() == 7

    def test_after_the_end(self) -> None:  # NEXT-1
        q = Queue((0, 4))
        q.fetch("m")
        assert q.sp.window.next_fetch_offset() == 5

    def test_first_available_offset(self) -> None:  # NEXT-2
        q = Queue((0, 4), (5, 9))
        q.fetch("m")
        q.ack("m", ack(6, 7, RELEASE))
        assert q.sp.window.next_fetch_offset() == 6
        q.ack("m", ack(2, 2, RELEASE))
        assert q.sp.window.next_fetch_offset() == 2

    def test_pending_is_not_available(self) -> None:  # NEXT-2
        """KAFKA-19463."""
        q = Queue((0, 4))
        q.fetch("m")
        asked = q.ask("m", ack(2, 2, RELEASE))
        assert q.sp.window.next_fetch_offset() == 5
        q.save(asked)
        assert q.sp.window.next_fetch_offset() == 2

    def test_all_done_and_empty(self) -> None:  # NEXT-1, SPSO-3
        q = Queue((0, 4))
        q.fetch("m")
        q.ack("m", ack(0, 4, ACCEPT))
        assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.next_fetch_offset()) == (5, 5, 5)


class TestInFlightLimit:
    def test_counts_offsets_and_is_soft(self) -> None:  # ACQ-1, ACQ-4
        q = Queue(*((n, n + 9) for n in range(0, 100, 10)), max_record_locks=25)
        assert q.fetch("m", 20) == [(0, 19, 1)]
        assert q.fetch("m", 20) == [(20, 29, 1)]  # five were left, the batch is acquired whole
        assert offers.offset_to_acquire(q.sp) is None
        assert q.fetch("m", 20) == []

    def test_exact_in_record_limit(self) -> None:
        q = Queue((0, 99), max_record_locks=25)
        q.fetch("m", 20, by_record=True)
        assert q.sp.statistics().in_flight == 100  # the rest of the batch is in the window, too

    def test_terminal_offsets_behind_a_stuck_record_count(self) -> None:  # ACQ-1
        q = Queue(*((n, n) for n in range(50)), max_record_locks=20)
        q.fetch("m", 20)
        q.ack("m", ack(1, 19, ACCEPT))
        assert q.sp.statistics().in_flight == 20
        assert offers.offset_to_acquire(q.sp) is None
        q.ack("m", ack(0, 0, ACCEPT))
        assert q.fetch("m", 5, batch_size=500) == [(20, 24, 1)]

    def test_at_the_limit_only_what_came_back_is_delivered(self) -> None:  # ACQ-3
        """KAFKA-19808: nothing after the end of the window."""
        q = Queue((0, 29), (30, 59), max_record_locks=30)
        q.fetch("m")
        q.ack("m", ack(20, 20, RELEASE))
        assert offers.offset_to_acquire(q.sp) is not None
        assert q.fetch("n") == [(20, 20, 2)]
        assert q.fetch("n") == []

    def test_room_is_the_smaller_of_asked_and_left(self) -> None:  # ACQ-2
        """KAFKA-19555."""
        q = Queue(*((n, n) for n in range(50)), max_record_locks=20)
        q.fetch("m", 15)
        q.ack("m", ack(3, 4, RELEASE))
        assert sum(last - first + 1 for first, last, _ in q.fetch("n", 500)) == 5
        assert q.sp.end_offset == 17

    def test_a_lower_limit_counts_at_once(self) -> None:
        q = Queue((0, 9), (10, 19))
        q.fetch("m", 10)
        q.sp.use(Queue(max_record_locks=10).settings)
        assert offers.offset_to_acquire(q.sp) is None


class TestRedelivery:
    def test_a_released_batch_is_one_entry_again(self) -> None:  # ACQ-10
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 500, batch_size=5)
        q.ack("m", ack(0, 9, RELEASE))
        assert q.fetch("n") == [(0, 4, 2), (5, 9, 2)]

    def test_in_batch_optimized_the_budget_may_be_exceeded_by_a_batch(self) -> None:  # ACQ-10
        q = Queue((0, 4), (5, 9), (10, 14))
        q.fetch("m", 500, batch_size=5)
        q.ack("m", ack(0, 14, RELEASE))
        assert q.fetch("n", 6) == [(0, 4, 2), (5, 9, 2)]

    def test_no_cut_inside_a_split_batch_in_batch_optimized(self) -> None:  # ACQ-12, REC-11
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(0, 0, ACCEPT), ack(2, 9, RELEASE))
        assert q.fetch("n", 3) == [(2, 9, 2)]

    def test_record_limit_stops_exactly(self) -> None:  # ACQ-12
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 500, batch_size=5)
        q.ack("m", ack(0, 9, RELEASE))
        assert q.fetch("n", 7, by_record=True) == [(0, 4, 2), (5, 6, 2)]
        assert q.fetch("n", 7, by_record=True) == [(7, 9, 2)]

    def test_only_the_range_that_was_read(self) -> None:  # ACQ-11
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 10)
        q.ack("m", ack(0, 9, RELEASE))
        assert q.fetch("n", read=1) == [(0, 4, 2)]

    def test_equal_counts_are_merged_and_others_are_entries_of_their_own(self) -> None:  # ACQ-11
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(2, 4, RELEASE))
        q.fetch("m")
        q.ack("m", ack(0, 9, RELEASE))
        assert q.fetch("n") == [(0, 1, 2), (2, 4, 3), (5, 9, 2)]

    def test_held_and_terminal_offsets_are_left_out(self) -> None:  # ACQ-13
        q = Queue((0, 9))
        q.fetch("m")
        q.ack("m", ack(1, 3, RELEASE), ack(4, 4, REJECT), ack(7, 8, RELEASE))
        assert q.fetch("n") == [(1, 3, 2), (7, 8, 2)]

    def test_new_data_follows_if_there_is_budget(self) -> None:  # ACQ-15
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 5)
        q.ack("m", ack(3, 4, RELEASE))
        assert q.fetch("n", 4) == [(3, 4, 2), (5, 9, 1)]

    def test_pending_is_not_delivered(self) -> None:  # ACQ-13
        q = Queue((0, 4))
        q.fetch("m")
        q.ask("m", ack(0, 4, RELEASE))
        assert q.fetch("n") == []

    def test_both_modes_in_one_group(self) -> None:  # NEXT-13
        q = Queue((0, 9))
        assert q.fetch("m", 4, by_record=True) == [(0, 3, 1)]
        assert q.fetch("n", 1) == [(4, 9, 1)]
        q.release("n")
        assert q.fetch("m", 2, by_record=True) == [(4, 5, 2)]


class TestCompaction:
    def test_available_records_that_the_log_lost_are_archived(self) -> None:  # ACQ-6, REC-2
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 500, batch_size=5)
        q.ack("m", ack(0, 9, RELEASE))
        q.log = [(5, 9)]
        assert q.fetch("n") == [(5, 9, 2)]
        assert q.shown() == "0-4 R1, 5-9 H2 n"
        assert q.sp.window.complete == 5

    def test_every_lost_batch_is_archived(self) -> None:  # ACQ-7
        """KAFKA-19630: also after a held one, and a split one."""
        q = Queue(*((n, n + 4) for n in range(0, 25, 5)))
        q.fetch("m", 25, batch_size=5)
        q.ack("m", ack(0, 7, RELEASE), ack(9, 9, RELEASE), ack(15, 24, RELEASE))
        q.log = [(20, 24)]
        assert q.fetch("n") == [(20, 24, 2)]
        assert q.shown() == "0-7 R1, 8 H1 m, 9 R1, 10-14 H1 m, 15-19 R1, 20-24 H2 n"

    def test_it_is_saved_with_the_next_write(self) -> None:  # ACQ-6
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 10)
        q.ack("m", ack(0, 9, RELEASE))
        q.log = [(5, 9)]
        q.fetch("n")
        persist = q.ack("n", ack(5, 5, ACCEPT))
        assert persist is not None
        assert [tuple(batch) for batch in persist.batches] == [(0, 4, 4, 1), (5, 5, 2, 2)]
        assert q.sp.start_offset == 6

    def test_held_records_that_the_log_lost_stay_with_their_holder(self) -> None:  # ACQ-8
        q = Queue((0, 4), (5, 9))
        q.fetch("m", 10)
        q.ack(
            "m",
            ack(5, 9, RELEASE),
        )
        q.log = [(5, 9)]
        q.fetch("n")
        q.ack("m", ack(0, 4, ACCEPT))
        assert q.sp.start_offset == 5


@pytest.mark.parametrize("by_record", [False, True])
def test_entries_are_sorted_disjoint_and_inside_what_was_read(by_record: bool) -> None:  # FET-38
    q = Queue((0, 3), (4, 9), (12, 15), (16, 30))
    q.fetch("m", 10, batch_size=4)
    q.ack("m", ack(1, 2, RELEASE), ack(6, 6, ACCEPT), ack(8, 9, RELEASE))
    entries = q.fetch("n", 12, by_record=by_record)
    offsets = [offset for first, last, _ in entries for offset in range(first, last + 1)]
    assert offsets == sorted(set(offsets))
    assert offsets[0] >= 1
    assert offsets[-1] <= 30
