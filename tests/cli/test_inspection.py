"""`kbroker storage inspect` with the memory stores: every figure, and every kind of damage it must
name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from kbroker.formats.batches import Record, build_batch
from kbroker.formats.share_records import ShareSnapshot, ShareUpdate, StateBatchRecord, encode_share_snapshot
from kbroker.formats.state import LogStart, LogStartKey, ShareStateKey, Topic, TopicKey, TopicState
from kbroker.inspection.topics import inspect
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.persister import TopicPartition
from kbroker.share_state.parked import changes_of, counter, prefix_of
from kbroker.storage.memory_store import LOG_STORE, STATE_STORE
from kbroker.storage.spi import Change, LogId, LogSettings, LogStore, StampedBatch, StateReader, StateStore

ORDERS = UUID(int=1)
LOG = LogId(ORDERS, 0)
TOPIC = (TopicKey(ORDERS).encode(), Topic("orders", 1, 0).encode())


class Directory:
    """A log store and a state store with one topic `orders` of one partition with ten one-record
    batches."""

    def __init__(self, path: Path) -> None:
        self.logs: LogStore = LOG_STORE.open(path / "log", {}, 1)
        self.state: StateStore = STATE_STORE.open(path / "state", {}, 1)
        self.logs.create(LOG, LogSettings())
        self.state.write([TOPIC])
        self.logs.write([batch(offset) for offset in range(10)], now_ms=0)

    def problems(self, *, check_batches: bool = False) -> list[str]:
        return inspect(self.logs, self.state, check_batches=check_batches).problems


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def batch(offset: int, log: LogId = LOG) -> StampedBatch:
    data = build_batch([Record(0, 1000 + offset, None, b"value")], base_offset=offset)
    return StampedBatch(log, offset, offset, 1000 + offset, data)


def share_state(
    number: int, *, start: int, complete: int, batches: list[tuple[int, int, int, int]]
) -> Change:
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    rows = tuple(StateBatchRecord(**dict(zip(names, row, strict=True))) for row in batches)
    both = {
        "snapshot_epoch": 0,
        "start_offset": start,
        "state_batches": rows,
        "delivery_complete_count": complete,
    }
    key = ShareStateKey(ORDERS, 0, "workers", number).encode()
    if number:
        return key, ShareUpdate(leader_epoch=-1, **both).encode()
    return key, ShareSnapshot(
        state_epoch=7, leader_epoch=1, create_timestamp=0, write_timestamp=0, **both
    ).encode()


def test_a_healthy_log(directory: Directory) -> None:
    report = inspect(directory.logs, directory.state, check_batches=True)
    (log,) = report.logs
    assert (log.topic, log.partition, log.start_offset, log.end_offset, log.newest_ms) == (
        "orders",
        0,
        0,
        10,
        1009,
    )
    assert log.size_bytes == report.bytes_checked == sum(len(batch(offset).data) for offset in range(10))
    assert report.problems == []


def test_the_start_that_clients_see_may_lie_beyond_the_first_byte(directory: Directory) -> None:
    directory.state.write([(LogStartKey(ORDERS, 0).encode(), LogStart(4).encode())])
    assert inspect(directory.logs, directory.state).logs[0].start_offset == 4


def test_share_state_is_merged_from_snapshot_and_updates(directory: Directory) -> None:
    directory.state.write(
        [
            share_state(0, start=0, complete=2, batches=[(0, 1, 2, 1), (2, 2, 0, 1)]),
            share_state(1, start=2, complete=3, batches=[(3, 4, 2, 1), (5, 5, 4, 3)]),
        ]
    )
    (found,) = inspect(directory.logs, directory.state).share_partitions
    assert (found.group, found.topic, found.start_offset, found.state_epoch, found.updates) == (
        "workers",
        "orders",
        2,
        7,
        1,
    )
    assert found.records == {"available": 1, "acknowledged": 2, "archived": 1}
    assert found.lag == 10 - 2 - 3


def test_lag_counts_only_records_that_are_still_there(directory: Directory) -> None:
    """The group has not been used since 0 to 3 were removed: 1 and 3 were finished, 0 and 2 never
    will be; 4 and 5 are finished."""
    batches = [(1, 1, 2, 1), (3, 5, 4, 1)]
    directory.state.write(
        [
            share_state(0, start=0, complete=4, batches=batches),
            (LogStartKey(ORDERS, 0).encode(), LogStart(4).encode()),
        ]
    )
    assert inspect(directory.logs, directory.state).share_partitions[0].lag == len(range(6, 10))


def test_records_that_wait_are_lag_as_far_as_the_log_has_them(directory: Directory) -> None:
    at, generation = TopicPartition(ORDERS, 0), (3 << 32) + 1
    prefix = prefix_of("workers", at, generation)
    found = [Parked(offset, Lane.SCHEDULE, 9000 - offset, 1, 1) for offset in (1, 2, 3, 6)]
    changes = changes_of(prefix, [ParkingChange(each.offset, (), each) for each in found])
    other = changes_of(
        prefix_of("workers", at, 7), [ParkingChange(9, (), Parked(9, Lane.REDELIVERY, 1, 1, 1))]
    )
    snapshot = encode_share_snapshot(1, 7, 1, 5, 1, 1, 1, 1, [(6, 6, 4, 1)], generation)
    key = ShareStateKey(ORDERS, 0, "workers", 0).encode()
    directory.state.write([*changes.items(), *other.items(), counter(prefix, 4), (key, snapshot)])
    (report,) = inspect(directory.logs, directory.state).share_partitions
    assert (report.waiting, report.next_due_ms, report.lag) == (4, 8994, 4 + 4)
    assert report.records == {"parked": 1}
    directory.state.write([share_state(1, start=5, complete=2, batches=[(7, 7, 4, 1)])])
    (report,) = inspect(directory.logs, directory.state).share_partitions
    assert (report.records, report.lag) == ({"parked": 1, "finished": 1}, 4 + 3)
    directory.state.write([(LogStartKey(ORDERS, 0).encode(), LogStart(3).encode())])
    (report,) = inspect(directory.logs, directory.state).share_partitions
    assert (report.waiting, report.next_due_ms, report.lag) == (2, 8994, 3 + 2)
    kept = [keep._replace(kept=True) for keep in found[:1]]
    directory.state.write([*changes_of(prefix, [ParkingChange(1, (), kept[0], b"a batch")]).items()])
    (report,) = inspect(directory.logs, directory.state).share_partitions
    assert (report.waiting, report.next_due_ms, report.lag) == (3, 8994, 3 + 3), (
        "the log has it no more, the state has it"
    )
    directory.state.write([(next(iter(changes)), b"?"), (prefix + b"\0", b"?")])
    assert directory.problems() == [
        "share state of group workers on orders-0: records that wait cannot be "
        "read: "
        "not the value of a parked record, or of a later version: 3f"
    ]


@pytest.mark.parametrize(("start", "complete"), [(-1, 0), (0, -1)])
def test_lag_is_unknown_until_something_was_decided(directory: Directory, start: int, complete: int) -> None:
    directory.state.write([share_state(0, start=start, complete=complete, batches=[])])
    assert inspect(directory.logs, directory.state).share_partitions[0].lag is None


def test_a_log_without_a_topic(directory: Directory) -> None:
    directory.logs.create(LogId(UUID(int=9), 3), LogSettings())
    assert directory.problems() == [f"log {UUID(int=9)}-3 (0 bytes) belongs to no topic"]


def test_a_topic_without_its_logs(directory: Directory) -> None:
    directory.state.write([(TopicKey(ORDERS).encode(), Topic("orders", 3, 0).encode())])
    assert directory.problems() == ["topic orders has no log for partition 1, 2"]


def test_a_deletion_that_was_not_finished(directory: Directory) -> None:
    directory.state.write([(TopicKey(ORDERS).encode(), Topic("orders", 1, 0, TopicState.DELETING).encode())])
    assert directory.problems() == ["log of deleted topic orders-0 is still there: the next start removes it"]


def test_share_state_beyond_the_end_of_the_log(directory: Directory) -> None:
    directory.state.write([share_state(0, start=0, complete=0, batches=[(8, 12, 2, 1)])])
    assert directory.problems() == [
        "share state of group workers on orders-0 continues after the end of the log at 10: the next start "
        "cuts it"
    ]


def test_share_state_of_no_topic(directory: Directory) -> None:
    directory.state.write([share_state(0, start=0, complete=0, batches=[]), (TOPIC[0], None)])
    directory.logs.drop(LOG)
    assert directory.problems() == [f"share state of group workers on {ORDERS}-0: there is no such topic"]


def test_state_that_cannot_be_read(directory: Directory) -> None:
    broken = ShareStateKey(ORDERS, 0, "workers", 0).encode()
    directory.state.write(
        [(broken, b"\0\0junk"), (TopicKey(UUID(int=2)).encode(), b"{"), (b"share/short", b"")]
    )
    found = directory.problems()
    assert len(found) == 3
    assert all("cannot be read" in problem for problem in found)


@pytest.mark.parametrize("position", [21, 61, 70])
def test_a_damaged_batch_is_found_by_its_crc(directory: Directory, position: int) -> None:
    good = batch(10)
    data = bytearray(good.data)
    data[position] ^= 1
    directory.logs.write([good._replace(data=bytes(data)), batch(11)], now_ms=0)
    assert directory.problems() == []
    assert directory.problems(check_batches=True) == ["orders-0: the batch at offset 10 is damaged"]


class ChangingState:
    """A state reader beside a live broker: its first snapshot is older than the values that `get`
    finds."""

    def __init__(self, state: StateStore, now: dict[bytes, bytes | None]) -> None:
        self._state, self._now = state, now

    def get(self, key: bytes) -> bytes | None:
        return self._now[key] if key in self._now else self._state.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._state.scan(prefix)

    @contextmanager
    def snapshot(self) -> Iterator[StateReader]:
        with self._state.snapshot() as moment:
            yield moment

    def close(self) -> None: ...


def test_topics_made_or_deleted_by_a_live_broker_meanwhile_are_no_problem(directory: Directory) -> None:
    made, deleted = UUID(int=5), UUID(int=6)
    directory.logs.create(LogId(made, 0), LogSettings())
    directory.state.write([(TopicKey(deleted).encode(), Topic("gone", 1, 0).encode())])
    now = {TopicKey(made).encode(): Topic("new", 1, 0).encode(), TopicKey(deleted).encode(): None}
    assert inspect(directory.logs, ChangingState(directory.state, now)).problems == []
