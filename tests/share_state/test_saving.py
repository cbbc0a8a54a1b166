"""Several queued decisions, failed saves, and stored states that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.errors import ErrorCode, StoreFailed
from kbroker.formats.state import (
    GivenUpKey,
    share_partition_prefix,
    share_state_number,
)
from kbroker.share.effects import StateBatch
from kbroker.share.persister import (
    InitializeRequest,
    ReadRequest,
    ReadResult,
    Result,
    WriteRequest,
)
from tests.share_state.coordinator_driver import K, P, Q, R, Share


def test_several_writes_on_their_way_to_the_disk(share: Share) -> None:
    outcomes = [
        share.coordinator.write(
            "g",
            [WriteRequest(P, 5, 7, 100, number, [StateBatch(100 + number, 100 + number, K, 1)])],
            now_ms=0,
        )
        for number in range(3)
    ]
    assert share.coordinator.states.statistics().unsaved == 3
    read = share.coordinator.read("g", [ReadRequest(P, 7)], now_ms=0)
    assert (read.changes, read.must_wait) == ((), True), "what it says is not saved yet"
    assert share.summary().delivery_complete_count == 0
    for number, outcome in enumerate(outcomes):
        assert outcome.must_wait
        share.save(outcome)
        assert share.summary().delivery_complete_count == number
    share.save(read)
    assert share.coordinator.states.statistics().unsaved == 0
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
        results = share.coordinator.states.failed(outcome)
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


def test_a_count_that_cannot_be_read_refuses_only_what_adds_to_it(share: Share) -> None:
    key = GivenUpKey(*P, "g").encode()
    share.store.write([(key, b"?")])
    share.restart()
    batch = StateBatch(100, 100, R, 1)
    rows = [WriteRequest(P, 5, 7, 100, 1, [batch], given_up=1), WriteRequest(P, 5, 7, 100, 1, [batch])]
    outcome = share.save(share.coordinator.write("g", rows, now_ms=0))
    assert [row.code for row in outcome.results] == [ErrorCode.unknown_server_error, ErrorCode.none]
    assert share.read(7).batches == (batch,)
    share.delete()
    assert list(share.store.scan(b"")) == []


def test_a_failed_initialize_and_a_failed_delete(share: Share) -> None:
    outcome = share.coordinator.initialize("g", [InitializeRequest(Q, 1, 1)], now_ms=0)
    share.coordinator.states.failed(outcome)
    assert share.summary(Q).start_offset == -1
    outcome = share.coordinator.delete("g", [P])
    assert share.summary(P).start_offset == 100, "decided, but the store still has it"
    share.coordinator.states.failed(outcome)
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
    share.coordinator.states.failed(first)
    with pytest.raises(AssertionError, match="an earlier change of it had failed"):
        share.coordinator.states.confirm(second)


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
    """The decision for the row before it is really saved, not only kept in memory."""
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
