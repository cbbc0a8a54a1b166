"""The share coordinator's records: snapshots and updates by verb, and the state that they load."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import ShareSnapshot, ShareUpdate, StateBatchRecord, encode_share_snapshot
from kbroker.formats.state import (
    GroupKey,
    RecordType,
    ShareStateKey,
    parse_key,
)
from kbroker.share.effects import StateBatch
from kbroker.share.persister import (
    InitializeRequest,
    ReadResult,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)
from kbroker.share_state.states import BATCHES_PER_SNAPSHOT
from tests.share_state.coordinator_driver import TOPIC, A, K, P, Q, R, Share


def test_initialize_writes_a_snapshot(share: Share) -> None:  # SC-45
    share = Share()
    share.initialize(5, -1)
    assert share.records() == [
        (
            0,
            ShareSnapshot(
                snapshot_epoch=0,
                state_epoch=5,
                leader_epoch=0,
                start_offset=-1,
                create_timestamp=1000,
                write_timestamp=1000,
                state_batches=(),
                delivery_complete_count=-1,  # unknown until the start is decided
            ),
        )
    ]
    share.initialize(6, 30)
    ((number, snapshot),) = share.records()
    assert isinstance(snapshot, ShareSnapshot)
    assert (number, snapshot.snapshot_epoch, snapshot.state_epoch, snapshot.delivery_complete_count) == (
        0,
        1,
        6,
        0,
    )


def test_initialize_anew_drops_batches_and_updates(share: Share) -> None:  # SC-13, SC-17, SC-45
    share.write(StateBatch(100, 109, K, 1))
    assert len(share.records()) == 3  # snapshot, the leader's epoch, the write
    share.initialize(6, 50)
    assert len(share.records()) == 1
    assert share.summary() == SummaryResult(
        P, state_epoch=6, leader_epoch=0, start_offset=50, delivery_complete_count=0
    )
    assert share.read(7).batches == ()


def test_a_repeated_initialize_does_not_wipe(share: Share) -> None:  # SC-46
    share.write(StateBatch(100, 109, K, 1))
    before = share.records()
    assert share.initialize(5, 100).code is ErrorCode.none
    assert share.records() == before
    assert share.read(7).batches == (StateBatch(100, 109, K, 1),)


def test_initialize_keeps_the_leaders_fence_until_a_restart(share: Share) -> None:  # SC-14, SC-26
    share.initialize(6, 100)
    assert share.read(6).code is ErrorCode.fenced_leader_epoch
    share.restart()
    assert share.read(6).code is ErrorCode.none


def test_read_stores_the_leader_and_nothing_when_it_is_known(share: Share) -> None:  # SC-41..43
    assert share.read(8) == ReadResult(P, state_epoch=5, start_offset=100)
    number, update = share.records()[-1]
    assert (number, update) == (
        2,
        ShareUpdate(
            snapshot_epoch=0, leader_epoch=8, start_offset=100, state_batches=(), delivery_complete_count=0
        ),
    )
    share.read(8)
    assert len(share.records()) == 3
    share.restart()
    assert share.write(leader=7).code is ErrorCode.fenced_leader_epoch


def test_write_writes_only_what_it_was_given(share: Share) -> None:  # SC-15, SC-38, SC-41, SC-50
    share.write(StateBatch(100, 109, A, 1))
    share.write(
        StateBatch(104, 106, K, 2), StateBatch(90, 101, R, 1), StateBatch(107, 107, K, 2), start=101, dcc=4
    )
    _, update = share.records()[-1]
    assert update == ShareUpdate(
        snapshot_epoch=0,
        leader_epoch=7,
        start_offset=101,
        # clipped, combined
        state_batches=(StateBatchRecord(101, 101, R, 1), StateBatchRecord(104, 107, K, 2)),
        delivery_complete_count=4,
    )
    merged = (
        StateBatch(101, 101, R, 1),
        StateBatch(102, 103, A, 1),
        StateBatch(104, 107, K, 2),
        StateBatch(108, 109, A, 1),
    )
    assert share.read(7).batches == merged
    share.restart()
    assert share.read(7) == ReadResult(P, state_epoch=5, start_offset=101, batches=merged, written_in=7)


def test_write_never_changes_the_stored_epochs(share: Share) -> None:  # SC-37
    assert share.write(leader=9, state=8).code is ErrorCode.none
    assert share.write(leader=7, state=5).code is ErrorCode.none
    assert (share.summary().leader_epoch, share.summary().state_epoch) == (7, 5)


@pytest.mark.parametrize(
    ("start", "dcc", "new_start", "new_dcc"),
    [
        (100, 7, 100, 7),  # equal: the larger count
        (100, 3, 100, 5),
        (100, -1, 100, 5),  # version 0 has none
        (99, 9, 100, 5),  # lower: as stored
        (-1, 9, 100, 5),
        (101, 2, 101, 2),  # higher: as requested
        (101, -1, 101, -1),
    ],
)
def test_start_offset_and_delivery_complete_count(
    share: Share, start: int, dcc: int, new_start: int, new_dcc: int
) -> None:
    # SC-35, SC-36, RPC-11
    share.write(dcc=5)
    share.write(start=start, dcc=dcc)
    for _ in range(2):
        assert (share.summary().start_offset, share.summary().delivery_complete_count) == (new_start, new_dcc)
        share.restart()


@pytest.mark.parametrize("start", [-2, -5, -(1 << 63)])
def test_start_offsets_below_minus_one_are_refused(share: Share, start: int) -> None:  # SC-47
    refused = share.initialize(6, start)
    assert refused.code is ErrorCode.invalid_request
    assert refused.message is not None
    assert f"{start} is below -1" in refused.message
    assert (share.summary().state_epoch, share.summary().start_offset) == (5, 100)


@pytest.mark.parametrize("stored", [-1, -2, -5, -(1 << 63)])
def test_start_offsets_below_zero_are_kept_and_survive(stored: int) -> None:  # SC-47
    """Those below -1 are from versions that accepted them."""
    share = Share()
    snapshot = encode_share_snapshot(0, 0, 0, stored, 1, 1, -1 if stored == -1 else 0, -1, ())
    share.store.write([(ShareStateKey(TOPIC, P.partition, "g", 0).encode(), snapshot)])
    share.write(StateBatch(0, 3, K, 1), start=-1, leader=0, state=0)
    for _ in range(2):
        assert share.summary().start_offset == stored
        assert share.read(0).batches == (StateBatch(0, 3, K, 1),)
        share.restart()


@pytest.mark.parametrize(
    ("offset", "first_open", "done"),
    [(101, 101, 5), (104, 107, 5), (106, 107, 3), (107, 107, 2), (109, 110, 1), (110, 110, 0)],
)
def test_what_is_done_from_an_offset_on(share: Share, offset: int, first_open: int, done: int) -> None:
    share.write(StateBatch(104, 106, K, 1), StateBatch(107, 107, A, 2), StateBatch(108, 109, R, 1), dcc=5)
    for _ in range(2):
        assert share.coordinator.stands_from("g", P, offset) == (first_open, done)
        share.restart()


def test_what_is_done_where_the_start_offset_is_not_saved_yet(share: Share) -> None:
    """Only records saved as done are counted as done."""
    outcome = share.coordinator.write(
        "g", [WriteRequest(P, 5, 7, 110, 2, [StateBatch(112, 113, K, 1)])], now_ms=1
    )
    assert share.coordinator.stands_from("g", P, 105) == (110, 0)
    share.save(outcome)
    assert share.summary().start_offset == 110
    assert share.coordinator.stands_from("g", P, 112) == (114, 2)


def test_a_snapshot_after_so_many_updates_replaces_them() -> None:  # SC-17, SC-39
    share = Share(updates_per_snapshot=3)
    share.initialize(5, 0)
    for offset in range(3):
        share.write(StateBatch(offset, offset, K, 1), leader=0, start=0, dcc=offset)
    assert [number for number, _ in share.records()] == [0, 1, 2, 3]
    share.write(StateBatch(3, 3, R, 2), leader=0, start=1, dcc=9)
    assert share.records() == [
        (
            0,
            ShareSnapshot(
                snapshot_epoch=1,
                state_epoch=5,
                leader_epoch=0,
                start_offset=1,
                create_timestamp=3000,
                write_timestamp=3000,
                state_batches=(StateBatchRecord(1, 2, K, 1), StateBatchRecord(3, 3, R, 2)),
                delivery_complete_count=9,
                written_in=0,
            ),
        )
    ]
    share.write(leader=0, start=1)
    assert [number for number, _ in share.records()] == [0, 1]
    assert share.coordinator.states.statistics().snapshots == 2
    assert share.coordinator.states.statistics().updates == 4


def test_updates_of_many_batches_are_replaced_by_a_snapshot_before() -> None:
    """Whether loaded or not. If records after a stuck one are acknowledged in random order, a write
    has hundreds of batches."""
    share = Share()
    share.initialize(5, 0)
    a_write = BATCHES_PER_SNAPSHOT // 4
    for number in range(4):
        offsets = range(2 * number * a_write, 2 * (number + 1) * a_write, 2)
        share.write(*(StateBatch(offset, offset, K, 1) for offset in offsets), leader=0, start=0)
        share.restart()
    assert [number for number, _ in share.records()] == [0, 1, 2, 3, 4]
    share.write(StateBatch(1, 1, K, 1), leader=0, start=0)
    ((number, snapshot),) = share.records()
    assert (number, len(snapshot.state_batches)) == (0, 4 * a_write - 1)


def test_zero_updates_per_snapshot_means_snapshots_only() -> None:  # SC-39
    share = Share(updates_per_snapshot=0)
    share.initialize(5, 0)
    for offset in range(3):
        share.write(StateBatch(offset, offset, K, 1), leader=0, start=0)
    ((number, snapshot),) = share.records()
    assert (number, snapshot.snapshot_epoch) == (0, 3)


def test_delete_leaves_nothing_and_forgets_the_fences(share: Share) -> None:  # SC-12, SC-23, SC-26, SC-48
    share.write(StateBatch(100, 109, K, 1))
    assert share.delete().code is ErrorCode.none
    assert share.records() == []
    assert share.summary() == SummaryResult(P)
    assert share.coordinator.states.statistics().loaded == 0
    assert share.read(7).code is ErrorCode.invalid_request
    assert share.initialize(0, 0).code is ErrorCode.none
    assert share.read(0).code is ErrorCode.none
    assert share.delete(Q).code is ErrorCode.none, "a share-partition without state can be deleted"


def test_summary_of_what_is_not_there(share: Share) -> None:  # SC-22
    assert share.summary(Q) == SummaryResult(
        Q, state_epoch=0, leader_epoch=0, start_offset=-1, delivery_complete_count=-1
    )
    assert share.coordinator.states.statistics().loaded == 1, "asking for unknown names costs no memory"


def test_topic_deleted_takes_all_groups_and_nothing_else(share: Share) -> None:  # SC-49
    other = uuid4()
    share.coordinator.states._partition_exists = lambda topic_id, number: True
    share.initialize(1, 1, Q)
    for group in ("h", "gg"):
        share.save(
            share.coordinator.initialize(
                group,
                [InitializeRequest(Q, 1, 1), InitializeRequest(TopicPartition(other, 0), 1, 1)],
                now_ms=0,
            )
        )
    share.store.write([(GroupKey(RecordType.SHARE_GROUP_METADATA, "g").encode(), b"?")])
    share.restart()
    unsaved = share.coordinator.initialize("new", [InitializeRequest(P, 1, 1)], now_ms=0)
    outcome = share.coordinator.states.topic_deleted(TOPIC)
    share.save(unsaved)
    share.save(outcome)
    assert len(outcome.results) == 5
    assert next(key for key, _ in share.store.scan(b"")).startswith(b"group/")
    left = [parse_key(key) for key, _ in share.store.scan(ShareStateKey.namespace)]
    assert sorted((each.group_id, each.topic_id) for each in left if isinstance(each, ShareStateKey)) == [
        ("gg", other),
        ("h", other),
    ]
    assert share.coordinator.states.statistics().loaded == 0


def test_an_update_without_its_snapshot_is_the_state(share: Share) -> None:  # SC-16
    share.write(StateBatch(100, 100, K, 1))
    share.store.write([(ShareStateKey(TOPIC, 0, "g", 0).encode(), None)])
    share.restart()
    assert share.read(7) == ReadResult(
        P, state_epoch=0, start_offset=100, batches=(StateBatch(100, 100, K, 1),), written_in=7
    )
