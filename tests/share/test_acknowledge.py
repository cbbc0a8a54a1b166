"""Accept, release, reject and renew: every row of the check table, atomicity, saving, failures, and
races with lock timeouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch
from tests.share.holdings import holdings
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW, Queue, ack

LOCK_MS = 30_000


def refused(q: Queue, member: str, *batches: AckBatch) -> KafkaError:
    before, deadline, saved = q.shown(), [run.deadline_ms for run in holdings(q.sp)], q.sp.statistics()
    with pytest.raises(KafkaError) as caught:
        q.ask(member, *batches)
    assert caught.value.message
    assert q.shown() == before
    assert [run.deadline_ms for run in holdings(q.sp)] == deadline
    assert q.sp.statistics() == saved
    return caught.value


def one_batch(*taken: AckBatch) -> Queue:
    """Records 0-9, held by m as one cached batch, with some acknowledgements done."""
    q = Queue((0, 9))
    q.fetch("m")
    if taken:
        q.ack("m", *taken)
    return q


def gap_at_the_start() -> Queue:
    """10-20 not yet read, 21-30 loaded and then acquired."""
    q = Queue((21, 30), start=10, saved="21-30 A1")
    q.sp.acquire("m", mode=0, batch_size=500, max_records=500, fetch_offset=21, batches=[(21, 30)], now_ms=0)
    return q


def natural_hole() -> Queue:
    """0-4 and 10-14 in flight, 5-9 never existed."""
    q = Queue((0, 4), (10, 14))
    q.fetch("m", 5)
    q.fetch("m", 5)
    assert q.shown() == "0-4 H1 m, 10-14 H1 m"
    return q


STATE, REQUEST = ErrorCode.invalid_record_state, ErrorCode.invalid_request

CHECKS: dict[str, tuple[Callable[[], Queue], AckBatch, ErrorCode]] = {
    "no cached batch at or below, SPSO not inside": (gap_at_the_start, ack(12, 25, ACCEPT), STATE),
    "nothing in flight": (lambda: Queue((0, 9)), ack(0, 4, ACCEPT), STATE),
    "first beyond the last cached batch": (one_batch, ack(10, 12, ACCEPT), REQUEST),
    "last beyond the last cached batch": (one_batch, ack(5, 12, ACCEPT), REQUEST),
    "last in a hole": (natural_hole, ack(3, 7, ACCEPT), REQUEST),
    "all in a hole": (natural_hole, ack(6, 8, ACCEPT), REQUEST),
    "not acquired any more": (lambda: one_batch(ack(0, 9, RELEASE)), ack(0, 9, ACCEPT), STATE),
    "one record not acquired any more": (lambda: one_batch(ack(4, 4, RELEASE)), ack(0, 9, ACCEPT), STATE),
    "terminal already": (lambda: one_batch(ack(4, 4, ACCEPT)), ack(4, 4, ACCEPT), STATE),
}


@pytest.mark.parametrize(("queue", "batch", "code"), CHECKS.values(), ids=CHECKS)
def test_refusals(queue: Callable[[], Queue], batch: AckBatch, code: ErrorCode) -> None:  # ACK-5, ACK-7..9
    assert refused(queue(), "m", batch).code is code


class TestOwnership:
    def test_another_member_holds_it(self) -> None:  # ACK-9
        assert refused(one_batch(), "n", ack(0, 9, ACCEPT)).code is STATE

    def test_another_member_holds_a_part(self) -> None:  # ACK-9
        q = one_batch(ack(4, 5, RELEASE))
        q.fetch("n")
        assert refused(q, "m", ack(0, 9, ACCEPT)).code is STATE
        assert refused(q, "n", ack(4, 6, ACCEPT)).code is STATE

    def test_the_same_member_under_several_locks(self) -> None:
        q = one_batch(ack(4, 5, RELEASE))
        q.fetch("m")
        q.ack("m", ack(0, 9, ACCEPT))
        assert q.sp.start_offset == 10

    def test_pending(self) -> None:  # ACK-10
        """KAFKA-19436: not even by its holder, until the write has ended."""
        q = one_batch()
        asked = q.ask("m", ack(2, 3, ACCEPT))
        assert refused(q, "m", ack(2, 2, ACCEPT)).code is STATE
        assert refused(q, "m", ack(0, 9, RELEASE)).code is STATE
        assert refused(q, "m", ack(3, 3, RENEW)).code is STATE
        q.save(asked)


class TestBelowTheStart:
    def test_all_below_is_ok_whatever_it_says(self) -> None:  # ACK-4
        q = one_batch(ack(0, 4, ACCEPT))
        for ack_type in (GAP, ACCEPT, RELEASE, REJECT, RENEW):
            assert q.ask("m", ack(0, 4, ack_type)) is None
            assert q.ask("never seen", ack(1, 3, ack_type)) is None

    def test_the_part_below_is_skipped(self) -> None:  # ACK-6
        q = one_batch(ack(0, 4, ACCEPT))
        persist = q.ack("m", ack(0, 9, ACCEPT))
        assert persist is not None
        assert [tuple(batch) for batch in persist.batches] == [(5, 9, 2, 1)]

    def test_the_types_of_the_part_below_are_skipped(self) -> None:  # ACK-6
        q = one_batch(ack(0, 1, ACCEPT))
        q.ack("m", ack(0, 4, RELEASE, RELEASE, ACCEPT, REJECT, RELEASE))
        assert q.shown() == "4 A1, 5-9 H1 m"

    def test_from_minus_one(self) -> None:  # ACK-6, RPC-28
        q = one_batch()
        q.ack("m", ack(-1, 3, ACCEPT))
        assert q.sp.start_offset == 4

    def test_nothing_in_flight_behind_it(self) -> None:  # ACK-4, ACK-5
        q = one_batch(ack(0, 9, ACCEPT))
        assert q.ask("m", ack(0, 9, ACCEPT)) is None
        assert refused(q, "m", ack(5, 12, ACCEPT)).code is STATE


class TestHoles:
    def test_offsets_between_two_cached_batches_are_skipped(self) -> None:  # ACK-11, SPSO-4
        q = natural_hole()
        persist = q.ack("m", ack(0, 14, ACCEPT))
        assert persist is not None
        assert [tuple(batch) for batch in persist.batches] == [(0, 4, 2, 1), (10, 14, 2, 1)]
        assert q.sp.start_offset == 15

    def test_beginning_in_the_hole(self) -> None:  # ACK-11
        q = natural_hole()
        q.ack("m", ack(7, 11, ACCEPT, ACCEPT, ACCEPT, REJECT, RELEASE))
        assert q.shown() == "0-4 H1 m, 10 R1, 11 A1, 12-14 H1 m"

    def test_the_start_jumps_over_it(self) -> None:  # SPSO-4
        q = natural_hole()
        q.ack("m", ack(0, 4, ACCEPT))
        assert q.sp.start_offset == 10


class TestTypes:
    def test_one_for_all(self) -> None:  # ACK-1, ACK-3
        for ack_type, shown in ((GAP, "R1"), (ACCEPT, "K1"), (RELEASE, "A1"), (REJECT, "R1")):
            assert one_batch(ack(1, 9, ack_type)).shown() == f"0 H1 m, 1-9 {shown}"

    def test_one_per_offset(self) -> None:  # ACK-1, ACK-3
        q = one_batch(ack(1, 5, GAP, ACCEPT, RELEASE, REJECT, ACCEPT))
        assert q.shown() == "0 H1 m, 1 R1, 2 K1, 3 A1, 4 R1, 5 K1, 6-9 H1 m"

    def test_many_batches_in_one_list(self) -> None:
        q = one_batch(ack(1, 1, ACCEPT), ack(2, 2, ACCEPT), ack(3, 4, REJECT), ack(8, 9, RELEASE))
        assert q.shown() == "0 H1 m, 1-2 K1, 3-4 R1, 5-7 H1 m, 8-9 A1"

    def test_renewals_among_others(self) -> None:  # ACK-1, ACK-24
        q = one_batch()
        q.now_ms = 10.0
        q.ack("m", ack(1, 6, ACCEPT, RENEW, RENEW, RELEASE, RENEW, REJECT))
        assert q.shown() == "0 H1 m, 1 K1, 2-3 H1 m, 4 A1, 5 H1 m, 6 R1, 7-9 H1 m"
        assert [run.deadline_ms for run in holdings(q.sp) if run.member_id] == [
            LOCK_MS,
            LOCK_MS + 10,
            LOCK_MS + 10,
            LOCK_MS,
        ]


class TestAtomic:
    def test_a_later_batch_refuses_all(self) -> None:  # ACK-13
        assert refused(one_batch(), "m", ack(0, 4, ACCEPT), ack(5, 12, ACCEPT)).code is REQUEST
        q = one_batch(ack(7, 7, RELEASE))
        assert refused(q, "m", ack(0, 4, ACCEPT), ack(6, 8, ACCEPT)).code is STATE

    def test_renewals_of_earlier_batches_are_not_kept(self) -> None:  # ACK-14
        """Kafka keeps the new lock although it reports an error."""
        q = one_batch(ack(7, 7, RELEASE))
        q.now_ms = 5000.0
        refused(q, "m", ack(0, 4, RENEW), ack(7, 7, ACCEPT))
        q.expire(LOCK_MS)
        assert q.shown() == "0-9 A1"

    def test_the_same_offset_twice_in_a_list(self) -> None:  # ACK-16, RPC-27
        """Passes the validation (equal to the previous last), refused by the records."""
        assert refused(one_batch(), "m", ack(0, 4, ACCEPT), ack(4, 6, ACCEPT)).code is STATE
        assert refused(one_batch(), "m", ack(0, 4, *[RENEW] * 4, ACCEPT), ack(4, 6, RENEW)).code is STATE

    def test_renewed_and_then_accepted_in_one_list(self) -> None:
        q = one_batch()
        q.ack("m", ack(0, 4, RENEW), ack(4, 6, ACCEPT))
        assert q.shown() == "0-3 H1 m, 4-6 K1, 7-9 H1 m"
        q.ack("m", ack(0, 3, ACCEPT, RENEW, RENEW, RENEW), ack(3, 3, ACCEPT))
        assert q.shown() == "1-2 H1 m, 3-6 K1, 7-9 H1 m"


class TestSaving:
    def test_what_is_written(self) -> None:  # ACK-18
        q = one_batch(ack(0, 1, ACCEPT))
        persist = q.ask("m", ack(2, 3, ACCEPT), ack(5, 5, RELEASE))
        assert persist is not None
        assert (persist.start_offset, persist.delivery_complete_count) == (2, 2)
        assert [tuple(batch) for batch in persist.batches] == [(2, 3, 2, 1), (5, 5, 0, 1)]
        assert (persist.state_epoch, persist.leader_epoch) == (3, 7)

    def test_not_final_before_it_is_saved(self) -> None:  # ACK-17, ACK-19, SC-56
        q = one_batch()
        persist = q.ask("m", ack(0, 4, ACCEPT), ack(5, 5, RELEASE))
        assert q.sp.start_offset == 0
        assert q.fetch("n") == []
        q.save(persist)
        assert q.sp.start_offset == 5
        assert q.fetch("n") == [(5, 5, 2)]

    def test_nothing_to_save(self) -> None:  # ACK-23
        q = one_batch()
        assert q.ask("m", ack(0, 9, RENEW)) is None
        assert q.ask("m") is None

    def test_writes_may_end_in_any_order(self) -> None:
        q = one_batch()
        first, second = q.ask("m", ack(0, 4, ACCEPT)), q.ask("m", ack(5, 9, ACCEPT))
        assert second is not None
        assert second.delivery_complete_count == 10
        q.save(second)
        assert q.sp.start_offset == 0
        q.save(first)
        assert (q.sp.start_offset, q.sp.end_offset, q.sp.window.complete) == (10, 10, 0)

    def test_a_token_is_used_once(self) -> None:
        q = one_batch()
        persist = q.ack("m", ack(0, 4, ACCEPT))
        assert persist is not None
        with pytest.raises(KeyError):
            q.sp.persisted(persist.token)
        with pytest.raises(KeyError):
            q.sp.persist_failed(persist.token, now_ms=0)


class TestFailing:
    def test_back_to_the_holder_with_the_old_lock(self) -> None:  # ACK-20, ACK-22
        q = one_batch()
        q.now_ms = 1000.0
        q.fail(q.ask("m", ack(0, 4, ACCEPT, RELEASE, REJECT, GAP, ACCEPT)))
        assert q.shown() == "0-4 H1 m, 5-9 H1 m"  # its holder has answered for 0 to 4
        assert {run.deadline_ms for run in holdings(q.sp)} == {LOCK_MS}
        assert q.sp.window.complete == 0
        q.ack("m", ack(0, 9, ACCEPT))
        assert q.sp.start_offset == 10

    def test_the_lock_ran_out_meanwhile(self) -> None:  # ACK-21, ACK-33
        """The timer finds it pending and does nothing; a rollback then makes it available."""
        q = one_batch()
        asked = q.ask("m", ack(0, 4, ACCEPT))
        q.expire(LOCK_MS)
        assert q.shown() == "0-4 ~K1, 5-9 A1"
        q.fail(asked)
        assert q.shown() == "0-9 A1"
        assert q.sp.window.next_fetch_offset() == 0

    def test_the_lock_ran_out_but_the_timer_is_late(self) -> None:
        q = one_batch()
        asked = q.ask("m", ack(0, 4, ACCEPT))
        q.now_ms = LOCK_MS
        q.fail(asked)
        assert q.shown() == "0-4 A1, 5-9 H1 m"

    def test_the_lock_ran_out_and_the_write_succeeds(self) -> None:  # ACK-33
        q = one_batch()
        asked = q.ask("m", ack(0, 4, ACCEPT))
        q.expire(LOCK_MS)
        q.save(asked)
        assert q.sp.start_offset == 5

    def test_at_the_limit_a_rollback_after_the_lock_ran_out_archives(self) -> None:  # ACK-21
        q = Queue((0, 0), saved="0 A4")
        q.fetch("m")
        asked = q.ask("m", ack(0, 0, ACCEPT))
        q.expire(LOCK_MS)
        q.fail(asked)
        assert q.fetch("m") == []
        assert q.sp.start_offset == 1

    def test_what_the_rollback_decided_is_saved_with_the_next_write(self) -> None:
        q = one_batch()
        asked = q.ask("m", ack(0, 4, RELEASE))
        q.expire(LOCK_MS)
        q.fail(asked)
        q.fetch("n")
        persist = q.ack("n", ack(7, 7, ACCEPT))
        assert persist is not None
        # 0-4 are held again and are acknowledged later
        assert [tuple(batch) for batch in persist.batches] == [(7, 7, 2, 2)]
        q = one_batch()
        asked = q.ask("m", ack(0, 4, RELEASE))
        q.expire(LOCK_MS)
        q.fail(asked)
        q.log = [(5, 9)]
        q.sp.acquire(
            "n", mode=0, batch_size=9, max_records=9, fetch_offset=5, batches=[(5, 9)], now_ms=q.now_ms
        )
        persist = q.ack("n", ack(5, 9, ACCEPT))
        assert persist is not None
        assert [tuple(batch) for batch in persist.batches] == [(0, 4, 0, 1), (5, 9, 2, 2)]

    def test_the_broker_does_not_prolong_the_lock_any_more(self) -> None:
        """The holder has answered, and got an error: it no longer works on the records."""
        q = Queue((0, 9), lock_max_ms=100 * LOCK_MS)
        q.fetch("m")
        q.fail(q.ask("m", ack(0, 4, ACCEPT)))
        q.now_ms = LOCK_MS
        q.sp.expire(q.now_ms, lambda member_id: 1e9)
        assert q.shown() == "0-4 A1, 5-9 H1 m"
        assert q.sp.ran_out == (5, 0, 0), "not by the limit of prolonging"
        assert q.sp.statistics().prolonged_locks == 5

    def test_nor_where_the_list_is_refused(self) -> None:
        """One offset is another member's: the client has finished the others as well, except those
        that it renews."""
        q = Queue((0, 9), lock_max_ms=100 * LOCK_MS)
        q.fetch("m", 8, by_record=True)
        q.fetch("n")
        with pytest.raises(KafkaError):
            q.ask("m", ack(0, 3, ACCEPT), ack(4, 4, RENEW), ack(6, 8, ACCEPT, RENEW, ACCEPT))
        assert q.shown() == "0-3 H1 m, 4-5 H1 m, 6 H1 m, 7 H1 m, 8-9 H1 n", "four locks for one"
        q.now_ms = LOCK_MS
        q.sp.expire(q.now_ms, lambda member_id: 1e9)
        assert q.shown() == "0-3 A1, 4-5 H1 m, 6 A1, 7 H1 m, 8-9 H1 n"

    def test_a_renewal_says_that_its_holder_is_at_work_again(self) -> None:
        q = Queue((0, 9), lock_max_ms=100 * LOCK_MS)
        q.fetch("m")
        q.fail(q.ask("m", ack(0, 9, ACCEPT)))
        q.ack("m", ack(0, 4, RENEW))
        q.now_ms = LOCK_MS
        q.sp.expire(q.now_ms, lambda member_id: 1e9)
        assert q.shown() == "0-4 H1 m, 5-9 A1"

    def test_failing_and_saving_interleaved(self) -> None:  # ACK-22
        q = one_batch()
        a, b, c = q.ask("m", ack(0, 2, ACCEPT)), q.ask("m", ack(3, 5, ACCEPT)), q.ask("m", ack(6, 9, ACCEPT))
        q.save(c)
        q.fail(b)
        q.save(a)
        assert q.shown() == "3-5 H1 m, 6-9 K1"
        assert q.sp.window.complete == 4


class TestRenew:
    def test_the_full_duration_again(self) -> None:  # ACK-24
        q = one_batch()
        q.now_ms = 20_000.0
        assert q.ask("m", ack(2, 5, RENEW)) is None
        q.expire(LOCK_MS)
        assert q.shown() == "0-1 A1, 2-5 H1 m, 6-9 A1"
        q.expire(20_000 + LOCK_MS - 1)
        assert "2-5 H1 m" in q.shown()
        q.expire(20_000 + LOCK_MS)
        assert q.shown() == "0-9 A1"

    def test_any_number_of_times(self) -> None:  # ACK-25
        q = one_batch()
        for _ in range(1000):
            q.now_ms += LOCK_MS - 1
            assert q.expire(q.now_ms) is None
            q.ask("m", ack(0, 9, RENEW))
        assert q.shown() == "0-9 H1 m"

    def test_many_renewals_at_once_do_not_pile_up(self) -> None:
        q = one_batch()
        for _ in range(20_000):
            q.ask("m", ack(0, 9, RENEW))
        assert q.sp.statistics().locks < 5000
        q.expire(LOCK_MS)
        assert q.shown() == "0-9 A1"

    def test_only_the_holder(self) -> None:  # ACK-26
        assert refused(one_batch(), "n", ack(0, 9, RENEW)).code is STATE

    def test_disabled_for_the_group(self) -> None:  # ACK-27
        q = one_batch()
        q.sp.use(Queue(renew_enabled=False).settings)
        error = refused(q, "m", ack(0, 0, ACCEPT), ack(1, 2, ACCEPT, RENEW))
        assert error.code is STATE
        assert error.message == "Renewing acquisition locks is not enabled for the group."
        q.ack("m", ack(0, 0, ACCEPT))


class TestRelease:
    def test_only_that_members_records(self) -> None:  # ACK-28, ACK-29
        """KAFKA-19953: even inside one cached batch."""
        q = one_batch(ack(0, 0, ACCEPT), ack(3, 6, RELEASE))
        q.fetch("n")
        persist = q.release("m")
        assert persist is not None
        assert [tuple(batch) for batch in persist.batches] == [(1, 2, 0, 1), (7, 9, 0, 1)]
        assert q.shown() == "1-2 A1, 3-6 H2 n, 7-9 A1"

    def test_the_count_is_left(self) -> None:  # REC-10
        """KAFKA-19972."""
        q = one_batch()
        q.release("m")
        assert q.fetch("n") == [(0, 9, 2)]

    def test_at_the_limit_it_is_archived(self) -> None:  # ACK-28
        q = Queue((0, 4), saved="0-4 A1", delivery_count_limit=2)
        q.fetch("m")
        q.release("m")
        assert (q.sp.start_offset, q.fetch("n")) == (5, [])

    def test_saved_before_it_is_available(self) -> None:  # ACK-28
        q = one_batch()
        asked = q.sp.release_member("m")
        assert q.fetch("n") == []
        q.fail(asked)
        assert q.shown() == "0-9 H1 m"
        q.expire(LOCK_MS)
        assert q.fetch("n") == [(0, 9, 2)]

    def test_pending_acknowledgements_are_left_alone(self) -> None:
        q = one_batch()
        asked = q.ask("m", ack(0, 4, ACCEPT))
        q.release("m")
        assert q.shown() == "0-4 ~K1, 5-9 A1"
        q.save(asked)
        assert q.sp.start_offset == 5

    def test_nothing_held(self) -> None:
        assert one_batch().sp.release_member("n") is None
        assert Queue().sp.release_member("m") is None
