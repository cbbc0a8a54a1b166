"""Requests that the share coordinator refuses, in Kafka's order of checks."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.state import (
    MAX_GROUP_ID_BYTES,
)
from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.persister import (
    InitializeRequest,
    TopicPartition,
    WriteRequest,
)
from tests.share_state.coordinator_driver import GONE, NEGATIVE, NULL, A, K, P, Q, Share


@pytest.mark.parametrize(
    ("partition", "leader", "state", "code"),
    [
        (NULL, 7, 5, ErrorCode.invalid_request),
        (NEGATIVE, 7, 5, ErrorCode.invalid_request),
        (P, -1, 5, ErrorCode.invalid_request),  # 4.4: -1 is not "do not check"
        (P, 7, -1, ErrorCode.invalid_request),
        (Q, 0, 0, ErrorCode.invalid_request),  # unknown key comes before fencing
        (GONE, 7, 5, ErrorCode.invalid_request),  # and before the topics
        (P, 6, 5, ErrorCode.fenced_leader_epoch),
        (P, 6, 4, ErrorCode.fenced_leader_epoch),  # the leader epoch first
        (P, 7, 4, ErrorCode.fenced_state_epoch),
        (P, 7, 5, ErrorCode.none),
        (P, 8, 6, ErrorCode.none),
    ],
)
def test_write_refusals(
    share: Share, partition: TopicPartition, leader: int, state: int, code: ErrorCode
) -> None:
    # SC-18..21, SC-24, SC-25, SC-28
    before = share.records()
    assert share.write(partition=partition, leader=leader, state=state).code is code
    assert (share.records() == before) is (code is not ErrorCode.none)


@pytest.mark.parametrize(
    ("partition", "leader", "code"),
    [
        (NULL, 7, ErrorCode.invalid_request),
        (NEGATIVE, 7, ErrorCode.invalid_request),
        (P, -1, ErrorCode.invalid_request),
        (Q, 7, ErrorCode.invalid_request),
        (P, 6, ErrorCode.fenced_leader_epoch),
        (P, 7, ErrorCode.none),
        (P, 8, ErrorCode.none),
    ],
)
# SC-18, SC-19, SC-21, SC-24
def test_read_refusals(share: Share, partition: TopicPartition, leader: int, code: ErrorCode) -> None:
    assert share.read(leader, partition).code is code


@pytest.mark.parametrize(
    ("partition", "state", "code"),
    [
        (NULL, 5, ErrorCode.unknown_topic_or_partition),
        (NEGATIVE, 5, ErrorCode.invalid_request),
        (P, -1, ErrorCode.invalid_request),
        (P, 4, ErrorCode.fenced_state_epoch),
        (GONE, 5, ErrorCode.unknown_topic_or_partition),
        (P, 5, ErrorCode.none),
        (P, 6, ErrorCode.none),
        (Q, 0, ErrorCode.none),
    ],
)
# SC-18, SC-20, SC-25, SC-27
def test_initialize_refusals(share: Share, partition: TopicPartition, state: int, code: ErrorCode) -> None:
    assert share.initialize(state, 0, partition).code is code


@pytest.mark.parametrize(
    ("partition", "code"),
    [
        (NULL, ErrorCode.unknown_topic_or_partition),
        (NEGATIVE, ErrorCode.invalid_request),
        (GONE, ErrorCode.unknown_topic_or_partition),
        (Q, ErrorCode.none),  # unknown, but the partition exists
        (P, ErrorCode.none),
    ],
)
# SC-18, SC-22, SC-23, SC-27
def test_delete_and_summary_refusals(share: Share, partition: TopicPartition, code: ErrorCode) -> None:
    assert share.summary(partition).code is code
    assert share.delete(partition).code is code


@pytest.mark.parametrize("partition", [P, Q])
def test_a_topic_that_is_gone_is_the_last_check(partition: TopicPartition) -> None:  # SC-27, SC-28
    """Write and read: 42 for a share-partition that was never initialized, 3 for one that was and
    lost its topic."""
    share = Share()
    share.initialize(5, 100, P)
    share.coordinator.states._partition_exists = lambda topic_id, number: False
    code = ErrorCode.unknown_topic_or_partition if partition == P else ErrorCode.invalid_request
    assert share.write(partition=partition).code is code
    assert share.read(7, partition).code is code


@pytest.mark.parametrize(
    "batch",
    [
        StateBatch(9, 8, A, 1),
        StateBatch(-1, 8, A, 1),
        StateBatch(1, 8, 1, 1),
        StateBatch(1, 8, 9, 1),
        StateBatch(1, 8, A, -1),
        StateBatch(101, 102, A, 256),
        StateBatch(101, 100 + MAX_SPAN, A, 1),
        StateBatch(1 << 62, 1 << 62, K, 1),
    ],
)
def test_garbage_is_refused_instead_of_stored(share: Share, batch: StateBatch) -> None:  # SC-30
    """Kafka stores it, and the share-partition never loads again."""
    assert share.write(StateBatch(100, 101, K, 1), batch).code is ErrorCode.invalid_request
    assert share.read(7).batches == ()


def test_what_may_be_loaded_just_so_is_stored(share: Share) -> None:  # SC-30
    """The span counts from the start offset in the write itself, if it has one."""
    far, farther = (
        StateBatch(99 + MAX_SPAN, 99 + MAX_SPAN, K, 255),
        StateBatch(100 + MAX_SPAN, 100 + MAX_SPAN, K, 1),
    )
    assert share.write(far).code is ErrorCode.none
    assert share.write(farther).code is ErrorCode.invalid_request
    assert share.write(farther, start=101).code is ErrorCode.none
    assert share.write(farther, start=100).code is ErrorCode.none, "the start stays 101"
    assert share.read(7).batches == (far, farther)
    assert (
        share.coordinator.initialize("g", [InitializeRequest(P, 9, -1)], now_ms=0).results[0].code
        is ErrorCode.none
    )
    assert share.write(StateBatch(1 << 62, 1 << 62, K, 1), start=-1, state=9).code is ErrorCode.none, (
        "where is not known yet"
    )


def test_group_ids_that_no_key_can_hold(share: Share) -> None:  # SC-32
    long = "g" * (MAX_GROUP_ID_BYTES + 1)
    assert (
        share.coordinator.initialize(long, [InitializeRequest(P, 0, 0)], now_ms=0).results[0].code
        is ErrorCode.invalid_request
    )
    empty = share.coordinator.initialize("", [InitializeRequest(P, 0, 0)], now_ms=0)
    assert (empty.results, empty.changes) == ((), ())


def test_one_result_for_each_row_in_order(share: Share) -> None:  # SC-34
    rows = [WriteRequest(each, 5, 7, 100, 0, ()) for each in (P, Q, P, NULL)]
    outcome = share.coordinator.write("g", rows, now_ms=0)
    assert [(row.partition, row.code) for row in outcome.results] == [
        (P, ErrorCode.none),
        (Q, ErrorCode.invalid_request),
        (P, ErrorCode.none),
        (NULL, ErrorCode.invalid_request),
    ]
    assert len(outcome.changes) == 2
