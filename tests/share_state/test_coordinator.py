"""The share coordinator: who is refused with what, what is written, and how a failed save is taken
back."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from kbroker.errors import ErrorCode, StoreFailed
from kbroker.formats.share_records import ShareSnapshot, ShareUpdate, StateBatchRecord, encode_share_snapshot
from kbroker.formats.state import (
    MAX_GROUP_ID_BYTES,
    GroupKey,
    RecordType,
    ShareStateKey,
    parse_key,
    share_partition_prefix,
    share_state_number,
)
from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.persister import (
    InitializeRequest,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.share_state.states import BATCHES_PER_SNAPSHOT
from kbroker.storage.memory_store import MemoryStateStore

A, K, R = 0, 2, 4
TOPIC = uuid4()
P = TopicPartition(TOPIC, 0)
Q = TopicPartition(TOPIC, 1)
GONE = TopicPartition(TOPIC, 9)
NULL = TopicPartition(UUID(int=0), 0)
NEGATIVE = TopicPartition(TOPIC, -1)


class Share:
    """A coordinator over a memory store whose group "g" initialises P at state epoch 5, start 100,
    read by leader 7."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.store = MemoryStateStore({})
        self.updates_per_snapshot = updates_per_snapshot
        self.restart()

    def restart(self) -> None:
        self.coordinator = ShareStateCoordinator(
            self.store.scan,
            lambda topic_id, partition: topic_id == TOPIC and 0 <= partition < 3,
            updates_per_snapshot=self.updates_per_snapshot,
        )

    def save(self, outcome: ShareStateOutcome[Result]) -> ShareStateOutcome[Result]:
        self.store.write(outcome.changes)
        self.coordinator.confirm(outcome)
        return outcome

    def initialize(self, state_epoch: int, start_offset: int, partition: TopicPartition = P) -> Result:
        outcome = self.coordinator.initialize(
            "g", [InitializeRequest(partition, state_epoch, start_offset)], now_ms=1000
        )
        return self.save(outcome).results[0]

    def read(self, leader_epoch: int, partition: TopicPartition = P) -> ReadResult:
        outcome = self.coordinator.read("g", [ReadRequest(partition, leader_epoch)], now_ms=2000)
        self.save(outcome)
        return outcome.results[0]

    def write(
        self,
        *batches: StateBatch,
        state: int = 5,
        leader: int = 7,
        start: int = 100,
        dcc: int = 0,
        partition: TopicPartition = P,
    ) -> Result:
        outcome = self.coordinator.write(
            "g", [WriteRequest(partition, state, leader, start, dcc, batches)], now_ms=3000
        )
        return self.save(outcome).results[0]

    def delete(self, partition: TopicPartition = P) -> Result:
        return self.save(self.coordinator.delete("g", [partition])).results[0]

    def summary(self, partition: TopicPartition = P) -> SummaryResult:
        outcome = self.coordinator.read_summary("g", [ReadRequest(partition, 0)])
        assert (outcome.changes, outcome.must_wait) == ((), False)
        return outcome.results[0]

    def records(self) -> list[tuple[int, ShareSnapshot | ShareUpdate]]:
        found = []
        for key, value in self.store.scan(ShareStateKey.namespace):
            parsed = parse_key(key)
            assert isinstance(parsed, ShareStateKey)
            record = parsed.decode_value(value)
            assert isinstance(record, ShareSnapshot | ShareUpdate)
            found.append((parsed.number, record))
        return found


@pytest.fixture
def share() -> Share:
    share = Share()
    assert share.initialize(5, 100).code is ErrorCode.none
    assert share.read(7).code is ErrorCode.none
    return share


# --- refusals, in Kafka's order ---


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
        (Q, ErrorCode.none),  # unknown, but there is such a partition
        (P, ErrorCode.none),
    ],
)
# SC-18, SC-22, SC-23, SC-27
def test_delete_and_summary_refusals(share: Share, partition: TopicPartition, code: ErrorCode) -> None:
    assert share.summary(partition).code is code
    assert share.delete(partition).code is code


@pytest.mark.parametrize("partition", [P, Q])
def test_a_topic_that_is_gone_is_the_last_check(partition: TopicPartition) -> None:  # SC-27, SC-28
    """Write and read: 42 for what was never initialised, 3 for what was and lost its topic."""
    share = Share()
    share.initialize(5, 100, P)
    share.coordinator._partition_exists = lambda topic_id, number: False
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
    """The span counts from the start offset that the write itself brings, once there is one."""
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


# --- what is written ---


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
                delivery_complete_count=-1,  # unknown as long as the start is not decided
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
        (100, -1, 100, 5),  # version 0 does not say
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
    """Those below -1 are of versions that took them."""
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
    """Nothing counts as done that is not saved as that."""
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
    assert share.coordinator.statistics().snapshots == 2
    assert share.coordinator.statistics().updates == 4


def test_updates_of_many_batches_are_replaced_by_a_snapshot_before() -> None:
    """Loaded or not. Where records behind a stuck one are answered in random order, hundreds of
    batches come with a write."""
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
    assert share.coordinator.statistics().loaded == 0
    assert share.read(7).code is ErrorCode.invalid_request
    assert share.initialize(0, 0).code is ErrorCode.none
    assert share.read(0).code is ErrorCode.none
    assert share.delete(Q).code is ErrorCode.none, "deleting what is not there"


def test_summary_of_what_is_not_there(share: Share) -> None:  # SC-22
    assert share.summary(Q) == SummaryResult(
        Q, state_epoch=0, leader_epoch=0, start_offset=-1, delivery_complete_count=-1
    )
    assert share.coordinator.statistics().loaded == 1, "asking for unknown names costs no memory"


def test_topic_deleted_takes_all_groups_and_nothing_else(share: Share) -> None:  # SC-49
    other = uuid4()
    share.coordinator._partition_exists = lambda topic_id, number: True
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
    outcome = share.coordinator.topic_deleted(TOPIC)
    share.save(unsaved)
    share.save(outcome)
    assert len(outcome.results) == 5
    assert next(key for key, _ in share.store.scan(b"")).startswith(b"group/")
    left = [parse_key(key) for key, _ in share.store.scan(ShareStateKey.namespace)]
    assert sorted((each.group_id, each.topic_id) for each in left if isinstance(each, ShareStateKey)) == [
        ("gg", other),
        ("h", other),
    ]
    assert share.coordinator.statistics().loaded == 0


def test_an_update_without_its_snapshot_is_the_state(share: Share) -> None:  # SC-16
    share.write(StateBatch(100, 100, K, 1))
    share.store.write([(ShareStateKey(TOPIC, 0, "g", 0).encode(), None)])
    share.restart()
    assert share.read(7) == ReadResult(
        P, state_epoch=0, start_offset=100, batches=(StateBatch(100, 100, K, 1),), written_in=7
    )


# --- saving ---


def test_several_writes_on_their_way_to_the_disk(share: Share) -> None:
    outcomes = [
        share.coordinator.write(
            "g",
            [WriteRequest(P, 5, 7, 100, number, [StateBatch(100 + number, 100 + number, K, 1)])],
            now_ms=0,
        )
        for number in range(3)
    ]
    assert share.coordinator.statistics().unsaved == 3
    read = share.coordinator.read("g", [ReadRequest(P, 7)], now_ms=0)
    assert (read.changes, read.must_wait) == ((), True), "what it says is not saved yet"
    assert share.summary().delivery_complete_count == 0
    for number, outcome in enumerate(outcomes):
        assert outcome.must_wait
        share.save(outcome)
        assert share.summary().delivery_complete_count == number
    share.save(read)
    assert share.coordinator.statistics().unsaved == 0
    assert not share.coordinator.read("g", [ReadRequest(P, 7)], now_ms=0).must_wait
    share.restart()
    assert share.read(7).batches == read.results[0].batches == (StateBatch(100, 102, K, 1),)


def test_a_failed_save_takes_back_that_write_and_those_behind_it(share: Share) -> None:
    share.initialize(1, 0, Q)
    rows = [
        WriteRequest(P, 5, 7, 101, 1, [StateBatch(105, 105, K, 1)]),
        WriteRequest(Q, 0, 7, 0, 1, []),  # fenced
        WriteRequest(P, 5, 7, 105, 2, [StateBatch(107, 107, K, 1)]),
    ]
    saved, lost, behind = (
        share.coordinator.write("g", rows[index : index + 2], now_ms=0) for index in (0, 1, 2)
    )
    share.save(saved)
    for outcome in (lost, behind):
        results = share.coordinator.failed(outcome)
        assert [row.code for row in results if row.code is not ErrorCode.fenced_state_epoch] == [
            ErrorCode.coordinator_not_available
        ]
    assert results == (Result(P, ErrorCode.coordinator_not_available),)
    assert share.read(7) == ReadResult(
        P, state_epoch=5, start_offset=101, batches=(StateBatch(105, 105, K, 1),), written_in=7
    )
    share.write(StateBatch(106, 106, K, 1), start=101)
    share.restart()
    assert share.read(7).batches == (StateBatch(105, 106, K, 1),)


def test_a_failed_initialize_and_a_failed_delete(share: Share) -> None:
    outcome = share.coordinator.initialize("g", [InitializeRequest(Q, 1, 1)], now_ms=0)
    share.coordinator.failed(outcome)
    assert share.summary(Q).start_offset == -1
    outcome = share.coordinator.delete("g", [P])
    assert share.summary(P).start_offset == 100, "decided, but the store still has it"
    share.coordinator.failed(outcome)
    assert share.summary(P).start_offset == 100


def test_initialized_again_while_the_deletion_is_under_way(share: Share) -> None:
    deletion = share.coordinator.delete("g", [P])
    again = share.coordinator.initialize("g", [InitializeRequest(P, 1, 7)], now_ms=0)
    share.save(deletion)
    share.save(again)
    assert share.summary().start_offset == 7
    share.restart()
    assert share.summary().start_offset == 7


def test_saved_after_a_failure_is_the_callers_mistake(share: Share) -> None:
    first = share.coordinator.write("g", [WriteRequest(P, 5, 7, 100, 0, [])], now_ms=0)
    second = share.coordinator.write("g", [WriteRequest(P, 5, 7, 100, 0, [])], now_ms=0)
    share.coordinator.failed(first)
    with pytest.raises(AssertionError, match="an earlier change of it had failed"):
        share.coordinator.confirm(second)


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\xff" * 40])
def test_a_stored_state_that_cannot_be_read_is_its_own_rows_error(garbage: bytes) -> None:
    share = Share()
    for partition in (P, Q):
        share.initialize(5, 100, partition)
    share.store.write([(share_partition_prefix("g", *Q) + share_state_number(0), garbage)])
    share.restart()
    requests = [WriteRequest(partition, 5, 7, 100, 0, [StateBatch(100, 104, K, 1)]) for partition in (P, Q)]
    outcome = share.save(share.coordinator.write("g", requests, now_ms=3000))
    assert [result.code for result in outcome.results] == [ErrorCode.none, ErrorCode.unknown_server_error]
    share.restart()
    assert share.read(7).batches == (StateBatch(100, 104, K, 1),)


def test_a_store_that_cannot_be_read_is_its_own_rows_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided for the row before it is saved, and not only remembered."""
    share = Share()
    for partition in (P, Q):
        share.initialize(5, 100, partition)
    scan = share.store.scan

    def fail_for_q(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        if prefix == share_partition_prefix("g", *Q):
            raise StoreFailed("the disk")
        return scan(prefix)

    monkeypatch.setattr(share.store, "scan", fail_for_q)
    share.restart()
    requests = [WriteRequest(partition, 5, 7, 100, 0, [StateBatch(100, 104, K, 1)]) for partition in (P, Q)]
    outcome = share.save(share.coordinator.write("g", requests, now_ms=3000))
    assert [result.code for result in outcome.results] == [ErrorCode.none, ErrorCode.unknown_server_error]
    share.restart()
    assert share.read(7).batches == (StateBatch(100, 104, K, 1),)
