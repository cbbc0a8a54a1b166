"""State in a log: the shipped contract, Kafka's own bytes in the records, and the rewriting that
keeps the log short."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar
from uuid import UUID

import pytest

from kbroker.errors import NoSpace, StoreFailed
from kbroker.formats.batches import build_timeless_batch, iter_headers, iter_records
from kbroker.formats.state import ShareStateKey
from kbroker.storage.lmdb.overlaid_map import OverlaidMap
from kbroker.storage.memory_store import MemoryLogStore
from kbroker.storage.segment import log_store as segment_store
from kbroker.storage.segment.state_log import LOG
from kbroker.storage.segment.state_log_records import from_record, to_record
from kbroker.storage.segment_state import store as log_state_store
from kbroker.storage.segment_state.store import STATE_STORE, LogStateStore
from kbroker.storage.spi import ON_DISK, Change, StampedBatch
from kbroker.testing.beside_sync import syncing
from kbroker.testing.state_store_contract import StateStoreContract

TOPIC = UUID(int=0x1234)


class TestLogStateStore(StateStoreContract):
    factory = STATE_STORE


class TestLogStateStoreThatMovesAtEverySync(StateStoreContract):
    factory = STATE_STORE
    options: ClassVar = {"overlay_changes": "0"}


class TestLogStateStoreThatMovesNowAndThen(StateStoreContract):
    factory = STATE_STORE
    options: ClassVar = {"overlay_changes": "50", "overlay_bytes": "4000"}


def records_of(log: MemoryLogStore) -> Iterator[tuple[bytes | None, bytes | None, object]]:
    for view in log.read(LOG, 0, max_bytes=1 << 40, end_offset=1 << 40):
        for position, _ in iter_headers(view):
            for record in iter_records(view, position):
                yield record.key, record.value, record.headers


def test_share_state_is_kept_as_kafkas_records() -> None:
    log = MemoryLogStore({})
    store = LogStateStore(log)
    snapshot, update = (ShareStateKey(TOPIC, 3, "g", number) for number in (0, 7))
    store.write([(snapshot.encode(), b"snapshot"), (update.encode(), b"update"), (b"topic/x", b"{}")])
    store.write([(update.encode(), None)])
    number = ((("n", (7).to_bytes(8, "big"))),)
    assert list(records_of(log)) == [
        (bytes.fromhex("0000 0001 67") + TOPIC.bytes + bytes.fromhex("00000003"), b"snapshot", ()),
        (bytes.fromhex("0001 0001 67") + TOPIC.bytes + bytes.fromhex("00000003"), b"update", number),
        (b"topic/x", b"{}", ()),
        (bytes.fromhex("0001 0001 67") + TOPIC.bytes + bytes.fromhex("00000003"), None, number),
    ]


@pytest.mark.parametrize(
    "key",
    [
        ShareStateKey(TOPIC, 0, "", 0).encode(),
        ShareStateKey(TOPIC, 2**31 - 1, "grüppe", 2**62).encode(),
        b"share/",
        b"share/" + bytes(28),
        b"share/" + bytes(30),
        b"share/" + bytes(31),
        b"\0",
        b"\0\0",
        b"\0\1\0\0",
        b"\0\xff\0\0",
        b"topic/\0\1",
    ],
)
def test_keys_come_back(key: bytes) -> None:
    batch = build_timeless_batch([to_record(key, b"v")])
    assert list(map(from_record, iter_records(batch))) == [(key, b"v")]
    log = MemoryLogStore({})
    LogStateStore(log).write([(key, b"v"), (b"gone", b"1"), (b"gone", None)])
    assert list(LogStateStore(log).scan(b"")) == [(key, b"v")]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        log_state_store,
        "SETTINGS",
        log_state_store.SETTINGS.__class__(segment_bytes=4096, segment_ms=1 << 62),
    )
    monkeypatch.setattr(log_state_store, "SMALLEST_DEAD_BYTES", 8192)
    monkeypatch.setattr(log_state_store, "PIECE_BYTES", 512)


def overwrite(store: LogStateStore, rounds: int, model: dict[bytes, bytes], rng: random.Random) -> None:
    for number in range(rounds):
        changes = [
            (b"key%03d" % rng.randrange(60), None if rng.random() < 0.2 else b"%030d" % number)
            for _ in range(3)
        ]
        store.write(changes)
        for key, value in changes:
            model.update({key: value}) if value is not None else model.pop(key, None)
        if number % 2:
            store.sync()


@pytest.mark.usefixtures("small_limits")
def test_the_log_stays_short_and_says_the_same(tmp_path: Path) -> None:
    model: dict[bytes, bytes] = {}
    store = STATE_STORE.open(tmp_path, {}, 1)
    assert isinstance(store, LogStateStore)
    largest = 0
    reader = STATE_STORE.open_reader(tmp_path)
    for seed in range(16):
        overwrite(store, 50, model, random.Random(seed))
        largest = max(largest, store.statistics().log_bytes)
        assert dict(store.scan(b"")) == dict(reader.scan(b"")) == model
    assert store.statistics().rewrites >= 2
    assert largest < 60_000
    reader.close()
    store.close()
    again = STATE_STORE.open(tmp_path, {}, 1)
    assert dict(again.scan(b"")) == model
    again.close()


def test_a_reader_of_a_store_that_was_never_written_finds_nothing(tmp_path: Path) -> None:
    """A broker that was killed during its first start leaves the folder without a log in it."""
    reader = STATE_STORE.open_reader(tmp_path)
    assert list(reader.scan(b"")) == []
    assert reader.get(b"key") is None
    reader.close()


@pytest.mark.usefixtures("small_limits")
def test_the_log_is_rewritten_beside_writes(tmp_path: Path) -> None:
    model: dict[bytes, bytes] = {}
    store = STATE_STORE.open(tmp_path, {}, 1)
    assert isinstance(store, LogStateStore)
    rng = random.Random(5)
    with syncing(store) as syncs:
        while syncs.more() or store.statistics().rewrites < 3:
            changes = [
                (b"key%03d" % rng.randrange(60), None if rng.random() < 0.2 else rng.randbytes(30))
                for _ in range(3)
            ]
            store.write(changes)
            for key, value in changes:
                model.update({key: value}) if value is not None else model.pop(key, None)
    assert dict(store.scan(b"")) == model
    store.close()
    again = STATE_STORE.open(tmp_path, {}, 1)
    assert dict(again.scan(b"")) == model
    again.close()


class _CutLog(MemoryLogStore):
    """Remembers the log's content after every call that changed it: the possible results of a
    crash."""

    def __init__(self) -> None:
        self.contents: dict = {}
        super().__init__(self.contents)
        self.moments: list[list[StampedBatch]] = []
        self.full = False

    def write(self, batches: Sequence[StampedBatch], *, now_ms: int) -> None:
        if self.full:
            raise NoSpace("full")
        super().write(batches, now_ms=now_ms)
        self.remember()

    def trim(self, log: object, new_start: int) -> None:
        super().trim(LOG, new_start)
        self.remember()

    def remember(self) -> None:
        if LOG in self.contents:
            self.moments.append(self.contents[LOG].batches())


@pytest.mark.usefixtures("small_limits")
def test_a_crash_at_any_point_of_a_rewriting_loses_nothing() -> None:
    log = _CutLog()
    store = LogStateStore(log)
    model: dict[bytes, bytes] = {}
    checked = 0
    for seed in range(400):
        seen = len(log.moments)
        overwrite(store, 1, model, random.Random(seed))
        store.sync()
        for moment in log.moments[seen:]:
            left = MemoryLogStore({})
            left.create(LOG, log_state_store.SETTINGS)
            left.write(moment, now_ms=0)
            assert dict(LogStateStore(left).scan(b"")) == model
            checked += 1
    assert store.statistics().rewrites >= 2
    assert checked > 400


class _UnsyncedLog(_CutLog):
    """Tracks the content that a power cut would leave, and calls `beside` in the middle of every
    sync."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[StampedBatch] = []
        self.beside: Callable[[], None] = lambda: None

    def sync(self) -> None:
        self.synced = self.contents[LOG].batches()
        self.beside()

    def trim(self, log: object, new_start: int) -> None:
        super().trim(log, new_start)
        start_offset, _ = self.bounds(LOG)
        self.synced = [batch for batch in self.synced if batch.base_offset >= start_offset]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("overlay_changes", [None, 0, 10, 100])
def test_a_write_beside_a_sync_is_whole_or_not_there_after_a_power_cut(
    tmp_path: Path, overlay_changes: int | None
) -> None:
    """Regression: it removed the keys that a rewriting had yet to write, and their values were lost
    before the write was synced.

    With an overlay size: keys move between memory and LMDB, both ways in each write.
    """
    log = _UnsyncedLog()
    living, left_over = tmp_path / "living", tmp_path / "left"
    some, others = (b"y", b"b") if overlay_changes is None else (b"y", ON_DISK)

    def opened(log: MemoryLogStore, directory: Path) -> LogStateStore:
        return LogStateStore(
            log, None if overlay_changes is None else OverlaidMap(directory, most_changes=overlay_changes)
        )

    store = opened(log, living)
    rng = random.Random(1)
    seen: list[dict[bytes, bytes]] = [{}]
    moves = 0

    def change(changes: list[Change]) -> None:
        store.write(changes)
        seen.append(dict(store.scan(b"")))

    def work() -> None:
        """Mostly overwrite keys that sort first; occasionally move the values of the last ones to
        disk, or back."""
        nonlocal moves
        if rng.random() < 0.7:
            change([(b"a%02d" % rng.randrange(20), rng.randbytes(40)) for _ in range(8)])
            return
        moves += 1
        source, target = (some, others) if moves % 2 else (others, some)
        found = [(key, value) for key, value in seen[-1].items() if key.startswith(source)]
        change([pair for key, value in found for pair in ((target + key[len(source) :], value), (key, None))])

    change([(b"y%02d" % number, rng.randbytes(40)) for number in range(60)])
    log.beside = work
    while moves < 200:
        store.sync()
        left = MemoryLogStore({})
        left.create(LOG, log_state_store.SETTINGS)
        left.write(log.synced, now_ms=0)
        if living.exists():
            shutil.copytree(living, left_over)
        again = opened(left, left_over)
        assert dict(again.scan(b"")) in seen[-2:]
        again.close()
        shutil.rmtree(left_over, ignore_errors=True)
    assert store.statistics().rewrites >= 10
    assert bool(store.statistics().moves) == (overlay_changes in (0, 10))
    store.close()


@pytest.mark.usefixtures("small_limits")
def test_a_full_disk_postpones_the_rewriting() -> None:
    log = _CutLog()
    store = LogStateStore(log)
    model: dict[bytes, bytes] = {}
    while store.statistics().log_bytes < 2 * store.statistics().live_bytes + 2 * 8192:
        overwrite(store, 1, model, random.Random(store.statistics().log_bytes))
    log.full = True
    for _ in range(20):
        store.sync()
    with pytest.raises(NoSpace):
        store.write([(b"refused", b"1")])
    assert store.get(b"refused") is None
    assert store.statistics().rewrites == 0
    log.full = False
    for _ in range(20):
        store.sync()
    assert store.statistics().rewrites == 1
    assert dict(store.scan(b"")) == model


def test_zeros_in_a_state_log_are_damage(tmp_path: Path) -> None:
    """Regression: zeros pass for empty batches with a right CRC and the offset 0, and opening
    restarted after them forever."""
    store = STATE_STORE.open(tmp_path, {}, 1)
    for number in range(3):
        store.write([(b"%d" % number, b"1")])
    store.close()
    (path,) = tmp_path.rglob("data.ninja")
    with path.open("r+b") as file:
        content = file.read(1000)
        file.seek(list(iter_headers(content))[2][0])
        file.write(bytes(1000))
    with pytest.raises(StoreFailed, match="offset 2 is damaged"):
        STATE_STORE.open(tmp_path, {}, 1)


def test_a_damaged_state_log_is_not_read_as_if_it_were_whole(tmp_path: Path) -> None:
    store = STATE_STORE.open(tmp_path, {}, 1)
    store.write([(b"a", b"1")])
    store.close()
    log = segment_store.LOG_STORE.open(tmp_path, {}, 1)
    end_offset = log.bounds(LOG).end_offset
    data = bytearray(b"".join(log.read(LOG, 0, max_bytes=1 << 20, end_offset=end_offset)))
    data[7] = end_offset
    data[-1] ^= 1
    log.write([StampedBatch(LOG, end_offset, end_offset, -1, data)], now_ms=0)
    with pytest.raises(StoreFailed, match="offset 1 is damaged"):
        LogStateStore(log)
    log.close()
