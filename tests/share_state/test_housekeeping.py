"""Cold snapshots: which share-partitions get one, its content, and that only the updates are
removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import ShareSnapshot
from kbroker.formats.state import MAX_GROUP_ID_BYTES, ShareStateKey
from kbroker.share.effects import StateBatch
from kbroker.share.persister import ReadRequest, Result, TopicPartition
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey, is_cold, state_prefix, with_updates
from kbroker.share_state.loading import ShareState
from tests.share_state.coordinator_driver import GONE, TOPIC, A, K, P, Q, Share

INTERVAL_MS = 300_000
WRITTEN_MS = 1000
"""When Share.initialize writes its snapshot."""


def key(partition: TopicPartition) -> SharePartitionKey:
    return SharePartitionKey("g", partition)


def cold_at(now_ms: int) -> Callable[[ShareState], bool]:
    return lambda state: is_cold(state, now_ms=now_ms, interval_ms=INTERVAL_MS)


def snapshot_cold(share: Share, now_ms: int, *share_partitions: SharePartitionKey) -> list[Result]:
    return list(
        share.save(
            share.coordinator.states.snapshot(share_partitions, now_ms=now_ms, wanted=cold_at(now_ms))
        ).results
    )


def stored(share: Share, partition: TopicPartition = P) -> ShareSnapshot:
    value = share.store.get(ShareStateKey(*partition, "g", 0).encode())
    assert value is not None
    return ShareSnapshot.decode(value)


def busy(*partitions: TopicPartition) -> Share:
    """Share-partitions with a snapshot of WRITTEN_MS and four updates after it."""
    share = Share()
    for partition in partitions:
        share.initialize(5, 100, partition)
        share.read(7, partition)
        for first in (100, 103, 106):
            share.write(
                StateBatch(first, first + 1, K, 1),
                StateBatch(first + 2, first + 2, A, 2),
                partition=partition,
                dcc=first,
            )
    return share


def test_a_cold_snapshot_takes_the_updates_in() -> None:  # SC-51
    share = busy(P, Q)
    before = share.read(7)
    assert len(list(share.store.scan(b""))) == 10
    assert share.coordinator.states.cold(now_ms=WRITTEN_MS + INTERVAL_MS, interval_ms=INTERVAL_MS) == [
        key(P),
        key(Q),
    ]
    assert snapshot_cold(share, WRITTEN_MS + INTERVAL_MS, key(P)) == [Result(P)]
    assert [found for found, _ in share.store.scan(state_prefix(P))] == [ShareStateKey(*P, "g", 0).encode()]
    snapshot = stored(share)
    assert (snapshot.snapshot_epoch, snapshot.state_epoch, snapshot.leader_epoch) == (1, 5, 7)
    assert (snapshot.start_offset, snapshot.delivery_complete_count) == (100, 106)
    assert (snapshot.create_timestamp, snapshot.write_timestamp) == (WRITTEN_MS, WRITTEN_MS + INTERVAL_MS)
    share.restart()
    assert share.read(7) == before
    assert len(list(share.store.scan(state_prefix(Q)))) == 5


def test_who_is_left_alone() -> None:
    """Younger than the interval, without updates, unknown, or of a deleted topic."""
    share = busy(P)
    share.initialize(5, 100, Q)
    late = WRITTEN_MS + INTERVAL_MS
    assert share.coordinator.states.cold(now_ms=late - 1, interval_ms=INTERVAL_MS) == []
    assert share.coordinator.states.cold(now_ms=late, interval_ms=INTERVAL_MS) == [key(P)]
    before = list(share.store.scan(b""))
    assert snapshot_cold(share, late - 1, key(P)) == []
    assert snapshot_cold(share, late, key(Q), key(Q._replace(partition=2)), key(GONE)) == []
    assert list(share.store.scan(b"")) == before
    assert share.coordinator.states.statistics().cold_snapshots == 0


def test_a_snapshot_from_the_future_is_cold() -> None:
    """The clock was set back: a share-partition must not wait until that time is reached again."""
    share = busy(P)
    assert snapshot_cold(share, WRITTEN_MS - 1, key(P)) == [Result(P)]
    assert stored(share).write_timestamp == WRITTEN_MS - 1


def test_a_share_partition_that_nobody_has_asked_for_since_the_start() -> None:
    share = busy(P, Q)
    share.restart()
    late = WRITTEN_MS + INTERVAL_MS
    assert share.coordinator.states.cold(now_ms=late, interval_ms=INTERVAL_MS) == []
    found = with_updates(share.store.scan(state_prefix(P)))
    assert found == (key(P),)
    assert snapshot_cold(share, late, *found) == [Result(P)]
    assert with_updates(share.store.scan(state_prefix(P))) == ()
    assert stored(share).create_timestamp == WRITTEN_MS
    assert share.coordinator.states.statistics().loads == 1


def test_an_update_after_it_is_number_1_again() -> None:
    share = busy(P)
    snapshot_cold(share, WRITTEN_MS + INTERVAL_MS, key(P))
    share.write(StateBatch(200, 200, K, 1))
    assert [found for found, _ in share.store.scan(b"share/")] == [
        ShareStateKey(*P, "g", number).encode() for number in (0, 1)
    ]
    just_before = WRITTEN_MS + 2 * INTERVAL_MS - 1
    assert share.coordinator.states.cold(now_ms=just_before, interval_ms=INTERVAL_MS) == []


def test_a_failed_save_leaves_it_as_it_was() -> None:
    share = busy(P)
    before = share.read(7)
    outcome = share.coordinator.states.snapshot([key(P)], now_ms=WRITTEN_MS + INTERVAL_MS)
    assert [result.code for result in share.coordinator.states.failed(outcome)] == [
        ErrorCode.coordinator_not_available
    ]
    assert share.read(7) == before
    assert len(with_updates(share.store.scan(b"share/"))) == 1
    assert snapshot_cold(share, WRITTEN_MS + INTERVAL_MS, key(P)) == [Result(P)]


def test_what_cannot_be_read_is_its_own_result_only() -> None:
    share = busy(P, Q)
    share.restart()
    share.store.write([(ShareStateKey(*Q, "g", 0).encode(), b"\0\0damaged")])
    long_name = SharePartitionKey("g" * (MAX_GROUP_ID_BYTES + 1), P)
    codes = [
        (result.partition, result.code)
        for result in snapshot_cold(share, WRITTEN_MS + INTERVAL_MS, key(Q), long_name, key(P))
    ]
    assert codes == [(Q, ErrorCode.unknown_server_error), (P, ErrorCode.invalid_request), (P, ErrorCode.none)]


def test_groups_of_one_partition_are_found_apart() -> None:
    keys = [
        ShareStateKey(TOPIC, partition, group, number)
        for partition in (0, 1)
        for group in ("a", "b")
        for number in (0, 1, 2)
    ]
    entries = [
        (each.encode(), b"")
        for each in keys
        if (each.partition, each.group_id, each.number) not in {(0, "a", 1), (0, "a", 2)}
    ]
    found = with_updates((name, value) for name, value in entries if name.startswith(state_prefix(P)))
    assert found == (SharePartitionKey("b", P),)


def test_what_loading_costs() -> None:
    """One scan for a share-partition, over its own entries only; one entry after a cold snapshot,
    which is not larger than the entries it replaces. How long that takes with 10 000 of them is a
    figure in perf/."""
    partitions = [TopicPartition(TOPIC, number) for number in range(3)]
    share = busy(*partitions)
    read_bytes = {}
    for late_ms, entries in ((0, 5), (INTERVAL_MS, 1)):
        snapshot_cold(share, WRITTEN_MS + late_ms, *map(key, partitions))
        share.restart()
        scanned: list[list[int]] = []

        def counting(prefix: bytes, scanned: list[list[int]] = scanned) -> Iterator[tuple[bytes, bytes]]:
            found = list(share.store.scan(prefix))
            scanned.append([len(name) + len(value) for name, value in found])
            yield from found

        coordinator = ShareStateCoordinator(counting, lambda *_: True)
        for partition in partitions:
            (result,) = coordinator.read("g", [ReadRequest(partition, 7)], now_ms=WRITTEN_MS).results
            assert result.code is ErrorCode.none
        assert [len(sizes) for sizes in scanned] == [entries] * len(partitions)
        assert coordinator.states.statistics().loads == len(partitions)
        read_bytes[entries] = sum(map(sum, scanned))
    assert read_bytes[1] < read_bytes[5]
