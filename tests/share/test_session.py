"""Share sessions: epochs, members, due rows and their order, and the effects of a closed
connection."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import TopicPartition
from kbroker.share.session import MAX_EPOCH, FetchPlan, ShareSessions, next_epoch

A0, A1, A2, B1 = (
    TopicPartition(UUID(int=1), 0),
    TopicPartition(UUID(int=1), 1),
    TopicPartition(UUID(int=1), 2),
    TopicPartition(UUID(int=2), 1),
)


def partitions_of(plan: FetchPlan) -> tuple[TopicPartition, ...]:
    return tuple(place.partition for place in plan.places)


class Client:
    """A member `m` of group `g` on connection `c`, unless told otherwise."""

    def __init__(self, max_sessions: int = 100) -> None:
        self.sessions = ShareSessions(max_sessions)

    def fetch(
        self,
        epoch: int,
        *add: TopicPartition,
        forget: Sequence[TopicPartition] = (),
        has_acks: bool = False,
        group: str = "g",
        member: str = "m",
        connection: str = "c",
    ) -> FetchPlan:
        return self.sessions.fetch(
            group, member, epoch, connection_id=connection, add=add, forget=forget, has_acks=has_acks
        )

    def fails(
        self, code: ErrorCode, epoch: int, *add: TopicPartition, has_acks: bool = False, member: str = "m"
    ) -> None:
        with pytest.raises(KafkaError) as caught:
            self.fetch(epoch, *add, has_acks=has_acks, member=member)
        assert caught.value.code is code

    def ack_fails(self, code: ErrorCode, epoch: int) -> None:
        with pytest.raises(KafkaError) as caught:
            self.sessions.acknowledge("g", "m", epoch)
        assert caught.value.code is code


NOT_FOUND, WRONG_EPOCH = ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch


def test_session_trace() -> None:  # SES-2..4, SES-6, SES-7, SES-11, SES-12, SES-15, SES-29, RPC-24
    """The trace observed on a running Kafka, request by request."""
    c = Client()
    c.ack_fails(NOT_FOUND, 1)
    plan = c.fetch(0, A0)
    assert (partitions_of(plan), plan.session.epoch, plan.replaced) == ((A0,), 1, None)
    assert c.fetch(1).session.epoch == 2
    assert c.sessions.acknowledge("g", "m", 2).session.epoch == 3
    c.fails(WRONG_EPOCH, 2)
    assert plan.session.epoch == 3
    plan = c.fetch(3, B1, forget=[B1], has_acks=True)
    assert (partitions_of(plan), plan.session.epoch) == ((A0,), 4)
    c.fails(ErrorCode.invalid_request, 0, A0, has_acks=True)
    assert c.sessions.acknowledge("g", "m", 4).session.epoch == 5  # the session survived it
    plan = c.fetch(0, A0)
    assert plan.session.epoch == 1
    assert plan.replaced is not None
    last = c.sessions.acknowledge("g", "m", -1)
    assert last.is_final
    assert c.sessions.close(last.session)
    c.ack_fails(NOT_FOUND, -1)
    c.fails(NOT_FOUND, 1)


class TestEpochs:
    def test_no_session(self) -> None:  # SES-6, SES-8, SES-10..12, SES-14
        c = Client()
        for epoch in (1, 7, -1, -2):
            c.fails(NOT_FOUND, epoch)
            c.ack_fails(NOT_FOUND, epoch)
        c.ack_fails(WRONG_EPOCH, 0)

    def test_every_other_epoch_is_wrong(self) -> None:  # SES-6, SES-10, SES-11, SES-14, SES-15
        c = Client()
        c.fetch(0, A0)
        for epoch in (2, 3, -2, MAX_EPOCH):
            c.fails(WRONG_EPOCH, epoch)
            c.ack_fails(WRONG_EPOCH, epoch)
        c.ack_fails(WRONG_EPOCH, 0)
        c.fetch(1)

    def test_the_final_epoch_is_not_compared(self) -> None:  # SES-8, SES-26
        c = Client()
        c.fetch(0, A0, A1)
        plan = c.fetch(-1, has_acks=True)
        assert (plan.is_final, partitions_of(plan)) == (True, ())
        assert plan.session.to_release == [A0, A1]  # it lives until close()
        assert c.sessions.statistics().sessions == 1

    def test_a_final_request_with_topics_is_answered(self) -> None:  # SES-9
        c = Client()
        c.fetch(0, A0)
        assert c.fetch(-1, A1, forget=[A0]).session.partitions == [A0]

    def test_acks_on_epoch_zero_come_before_a_full_table(self) -> None:  # SES-18
        c = Client(max_sessions=0)
        c.fails(ErrorCode.invalid_request, 0, has_acks=True)
        c.fails(ErrorCode.share_session_limit_reached, 0)

    def test_wraps_to_one(self) -> None:  # SES-13
        assert [next_epoch(epoch) for epoch in (0, 1, MAX_EPOCH - 1, MAX_EPOCH)] == [1, 2, MAX_EPOCH, 1]
        assert MAX_EPOCH == 2147483647

    def test_used_or_replaced_while_a_request_waited(self) -> None:  # SES-22
        c = Client()
        c.fetch(0, A0)
        waiting = c.fetch(1)
        assert (c.sessions.is_current(waiting), waiting.is_overtaken) == (True, False)
        c.sessions.acknowledge("g", "m", 2)
        assert (c.sessions.is_current(waiting), waiting.is_overtaken) == (False, True)
        waiting = c.fetch(3)
        c.fetch(0, A0)
        assert (c.sessions.is_current(waiting), waiting.is_overtaken) == (False, False)
        waiting = c.fetch(1)
        final = c.fetch(-1)
        c.sessions.close(final.session)
        assert (c.sessions.is_current(waiting), waiting.is_overtaken) == (False, False)
        assert not final.is_overtaken


class TestTable:
    def test_full(self) -> None:  # SES-16
        c = Client(max_sessions=2)
        c.fetch(0, member="a")
        c.fetch(0, member="b")
        c.fails(ErrorCode.share_session_limit_reached, 0, member="c")
        assert c.sessions.statistics().refused == 1

    def test_replacing_needs_no_new_slot(self) -> None:  # SES-17
        c = Client(max_sessions=1)
        c.fetch(0, A0)
        assert partitions_of(c.fetch(0, A1)) == (A1,)

    def test_a_slot_is_free_after_close_and_after_disconnect(self) -> None:  # SES-20
        c = Client(max_sessions=1)
        c.sessions.close(c.fetch(0, member="a").session)
        c.fetch(0, member="b", connection="d")
        c.sessions.connection_closed("d")
        c.fetch(0, member="c")

    def test_a_session_per_group_and_member(self) -> None:  # SES-1
        c = Client()
        c.fetch(0, A0)
        c.fetch(0, A1, group="h")
        c.fetch(0, B1, member="n")
        assert partitions_of(c.fetch(1)) == (A0,)
        assert c.sessions.statistics().sessions == 3
        assert c.sessions.statistics().partitions == 3

    def test_a_session_that_was_replaced_is_not_closed(self) -> None:
        c = Client()
        old = c.fetch(0, A0).session
        new = c.fetch(0, A0, connection="d").session
        assert not c.sessions.close(old)
        assert c.sessions.close(new)
        assert not c.sessions.close(new)


class TestConnections:
    def test_the_session_dies_with_the_connection_that_made_it(self) -> None:  # SES-23
        c = Client()
        session = c.fetch(0, A0).session
        c.fetch(1, connection="another")
        assert c.sessions.connection_closed("another") == []
        assert c.sessions.connection_closed("c") == [session]
        c.fails(NOT_FOUND, 2)
        assert c.sessions.statistics().evictions == 1

    def test_an_old_connection_does_not_take_the_new_session(self) -> None:  # SES-24
        """KAFKA-19950."""
        c = Client()
        c.fetch(0, A0, connection="old")
        c.fetch(0, A0, connection="new")
        assert c.sessions.connection_closed("old") == []
        c.fetch(1, connection="new")

    def test_every_session_of_the_connection(self) -> None:  # SES-25
        """Kafka ends only the newest."""
        c = Client()
        sessions = [c.fetch(0, A0, group=group).session for group in ("g", "h", "i")]
        assert c.sessions.connection_closed("c") == sessions
        assert c.sessions.statistics().sessions == 0

    def test_closed_before_the_connection(self) -> None:
        c = Client()
        c.sessions.close(c.fetch(0, A0).session)
        assert c.sessions.connection_closed("c") == []
        assert c.sessions.statistics().evictions == 0


class TestPartitions:
    def test_duplicates_are_merged(self) -> None:  # RPC-58
        c = Client()
        assert c.fetch(0, A0, A0, A1).session.partitions == [A0, A1]
        assert c.fetch(1, A2, A0, A2, forget=[A1, A1]).session.partitions == [A0, A2]

    def test_listing_again_changes_nothing(self) -> None:  # SES-7
        c = Client()
        session = c.fetch(0, A0, A1).session
        assert c.fetch(1, A0).session.partitions == [A0, A1]
        assert not session.answer_row(A0, has_records=False, has_error=False)

    def test_acknowledging_adds_none(self) -> None:  # SES-11
        c = Client()
        c.fetch(0, A0)
        assert c.sessions.acknowledge("g", "m", 1, acknowledged=[B1]).session.partitions == [A0]

    def test_what_ends_with_the_session(self) -> None:  # SES-26, SES-27
        """Including partitions that it forgot, or only acknowledged: it may hold records there."""
        c = Client()
        c.fetch(0, A0, A1)
        c.fetch(1, forget=[A1])
        session = c.sessions.acknowledge("g", "m", 2, acknowledged=[A0, B1]).session
        assert set(session.to_release) == {A0, A1, B1}
        c.fetch(3, A1)
        assert sorted(session.to_release) == [A0, A1, B1]

    def test_what_cannot_be_held_is_not_noted(self) -> None:
        """Regression: a client made its session grow without bound by naming partitions in its
        acknowledgements, or forgetting them."""
        held = {A0, A1}
        sessions = ShareSessions(10, lambda group_id, partition: group_id == "g" and partition in held)
        session = sessions.fetch("g", "m", 0, connection_id="c", add=[A2], forget=[], has_acks=False).session
        nowhere = [TopicPartition(UUID(int=9), index) for index in range(1000)]
        sessions.acknowledge("g", "m", 1, acknowledged=[A0, *nowhere])
        sessions.fetch("g", "m", 2, connection_id="c", add=[], forget=[A1, *nowhere], has_acks=False)
        assert session.held_elsewhere == {A0, A1}
        held.symmetric_difference_update({A0, B1})
        sessions.acknowledge("g", "m", 3, acknowledged=[B1])
        assert session.held_elsewhere == {A1, B1}, "those that are not there any more are dropped then"
        assert sessions.statistics().held_elsewhere == 2


class TestOrder:
    def test_epoch_zero_is_as_listed(self) -> None:
        assert partitions_of(Client().fetch(0, A1, A0, A2)) == (A1, A0, A2)

    @pytest.mark.parametrize(
        ("epoch", "order"), [(1, (A1, A2, A0)), (2, (A2, A0, A1)), (3, (A0, A1, A2)), (4, (A1, A2, A0))]
    )
    def test_rotated_left_by_epoch(self, epoch: int, order: tuple[TopicPartition, ...]) -> None:  # FET-9
        c = Client()
        c.fetch(0, A0, A1, A2)
        for earlier in range(1, epoch):
            c.fetch(earlier)
        assert partitions_of(c.fetch(epoch)) == order

    def test_a_single_partition(self) -> None:  # FET-9
        c = Client()
        c.fetch(0, A0)
        assert partitions_of(c.fetch(1)) == (A0,)

    def test_served_moves_to_the_end_of_the_session(self) -> None:  # FET-4
        c = Client()
        session = c.fetch(0, A0, A1, A2).session
        session.answer_row(A0, has_records=True, has_error=False)
        assert session.partitions == [A1, A2, A0]

    def test_what_the_previous_answer_served_comes_last(self) -> None:  # FET-10
        """Whatever the rotation order, so that two busy partitions take turns."""
        c = Client()
        session = c.fetch(0, A0, A1).session
        served = []
        for epoch in range(1, 9):
            plan = c.fetch(epoch)
            session.begin_answer()
            session.answer_row(plan.places[0].partition, has_records=True, has_error=False)
            served.append(plan.places[0].partition)
        assert served in ([A0, A1] * 4, [A1, A0] * 4)

    @pytest.mark.parametrize("requests", range(1, 8))
    @pytest.mark.parametrize("at_once", [1, 2, 5])
    @pytest.mark.parametrize("count", [2, 3, 4, 6, 12])
    def test_nobody_is_left_out(self, count: int, at_once: int, requests: int) -> None:  # FET-10
        """All partitions are busy and a response has room for `at_once`; with acknowledgements
        there are `requests` of them between two fetches."""
        c = Client()
        session = c.fetch(0, *(TopicPartition(UUID(int=1), number) for number in range(count))).session
        last_served = dict.fromkeys(session.partitions, 0)
        for turn in range(1, 5 * count):
            plan = c.fetch(session.epoch)
            session.begin_answer()
            for place in plan.places[:at_once]:
                session.answer_row(place.partition, has_records=True, has_error=False)
                last_served[place.partition] = turn
            assert turn - min(last_served.values()) <= -(-count // at_once)
            for _ in range(requests - 1):
                c.sessions.acknowledge("g", "m", session.epoch)


class TestRows:
    def test_newly_added_once(self) -> None:  # FET-5, FET-8
        c = Client()
        session = c.fetch(0, A0).session
        c.fetch(1, A1)
        assert session.answer_row(A1, has_records=False, has_error=False)
        assert not session.answer_row(A1, has_records=False, has_error=False)
        assert not session.answer_row(A0, has_records=False, has_error=False)

    def test_not_if_the_same_request_forgets_it(self) -> None:  # FET-6
        c = Client()
        c.fetch(0, A0)
        session = c.fetch(1, A1, forget=[A1]).session
        assert not session.answer_row(A1, has_records=False, has_error=False)

    def test_records_and_errors_always(self) -> None:  # FET-3
        session = Client().fetch(0, A0).session
        assert session.answer_row(A0, has_records=True, has_error=False)
        assert session.answer_row(A0, has_records=False, has_error=True)
        assert session.answer_row(A0, has_records=False, has_error=True)

    def test_clean_again_after_an_error_once(self) -> None:  # FET-7, FET-8
        session = Client().fetch(0, A0).session
        session.answer_row(A0, has_records=False, has_error=True)
        assert session.answer_row(A0, has_records=False, has_error=False)
        assert not session.answer_row(A0, has_records=False, has_error=False)
