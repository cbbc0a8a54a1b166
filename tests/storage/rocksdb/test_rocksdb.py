"""RocksDB: the shipped contracts, then its specifics: chunks, readers' snapshots, failures,
recovery from a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict, WriteBatch, WriteOptions

from kbroker.errors import NoFiles, NoSpace, OperatorError, StoreFailed
from kbroker.storage.rocksdb import database as rocksdb_database
from kbroker.storage.rocksdb.engine import LOG_STORE, STATE_STORE
from kbroker.storage.rocksdb.log_store import RocksdbLogStore
from kbroker.storage.rocksdb.state_store import RocksdbStateStore
from kbroker.storage.spi import LogSettings
from kbroker.testing.log_store_contract import LogStoreContract
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    OTHER,
    SETTINGS,
    base_offsets,
    batch,
    joined,
    read_all,
    sized_batch,
)
from kbroker.testing.state_store_contract import StateStoreContract
from tests.small_disk import fill_the_rest, small_disk

FULL = "IO error: No space left on device: While appending to file: 000004.log: No space left on device"


class TestRocksdbLogStore(LogStoreContract):
    factory = LOG_STORE


class TestRocksdbStateStore(StateStoreContract):
    factory = STATE_STORE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksdbLogStore]:
    store = LOG_STORE.open(tmp_path, {}, 1)
    assert isinstance(store, RocksdbLogStore)
    store.create(LOG, SETTINGS)
    yield store
    store.close()


class FailingRdict:
    """A database some of whose calls fail."""

    def __init__(self, db: Rdict, **failing: str) -> None:
        self._db = db
        self._failing = failing

    def __getattr__(self, name: str) -> object:
        if name not in self._failing:
            return getattr(self._db, name)

        def fail(*_: object) -> None:
            raise Exception(self._failing[name])

        return fail


def break_database(store: RocksdbLogStore | RocksdbStateStore, **failing: str) -> Callable[[], None]:
    database = store._database
    real = database._db
    assert real is not None
    database._db = FailingRdict(real, **failing)  # type: ignore[assignment]
    return lambda: setattr(database, "_db", real)


def test_the_batches_of_a_call_are_one_value(store: RocksdbLogStore) -> None:
    store.write([batch(offset) for offset in range(100)], now_ms=0)
    store.write([batch(100)], now_ms=0)
    with store._database.reading() as db:
        assert list(db.keys()) == [
            bytes.fromhex("00000001" + "00" * 8),
            bytes.fromhex("00000001" + "00" * 7 + "64"),
        ]


def test_a_failed_sync_stops_all_writes(store: RocksdbLogStore) -> None:
    store.write([batch(0)], now_ms=0)
    repair = break_database(store, flush_wal="IO error: Input/output error: While fdatasync: 000004.log")
    with pytest.raises(StoreFailed, match="fdatasync"):
        store.sync()
    repair()
    for again in (
        store.sync,
        lambda: store.write([batch(1)], now_ms=0),
        lambda: store.trim(LOG, 1),
        lambda: store.truncate(LOG, 0),
        lambda: store.drop(LOG),
        lambda: store.create(OTHER, SETTINGS),
    ):
        with pytest.raises(StoreFailed, match="fdatasync"):
            again()
    assert store.bounds(LOG) == (0, 1)
    assert read_all(store) == batch(0).data


def test_a_sync_that_meets_a_full_disk_is_a_failed_sync(store: RocksdbLogStore) -> None:
    """Data that could not be synced may be gone: a later successful sync proves nothing."""
    repair = break_database(store, flush_wal="IO error: No space left on device: While fdatasync: 000004.log")
    with pytest.raises(StoreFailed):
        store.sync()
    repair()
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)


def test_a_failed_write_stops_all_writes(store: RocksdbLogStore) -> None:
    repair = break_database(store, write="IO error: Input/output error: While appending to file: 000004.log")
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)
    repair()
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)
    assert store.bounds(LOG) == (0, 0)


class HeldUpRdict(FailingRdict):
    """Delays `count` writes before it lets them through."""

    def __init__(self, db: Rdict, count: int) -> None:
        super().__init__(db)
        self.count = count

    def write(self, batch: WriteBatch, options: WriteOptions) -> None:
        assert options.no_slowdown
        if self.count:
            self.count -= 1
            raise Exception("Result incomplete: Write stall")
        self._db.write(batch, options)


@pytest.mark.parametrize("count", [1, 5, 10])
def test_a_held_up_write_is_tried_again(
    store: RocksdbLogStore, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """As when memtables fill faster than they are flushed. Left to RocksDB, a full disk stalled a
    write forever."""
    monkeypatch.setattr(rocksdb_database, "MAX_STALLS", 10)
    database = store._database
    real = database._db
    assert real is not None
    database._db = HeldUpRdict(real, count)  # type: ignore[assignment]
    if count < 10:
        store.write([batch(0)], now_ms=0)
        assert read_all(store) == batch(0).data
    else:
        with pytest.raises(StoreFailed, match="held up"):
            store.write([batch(0)], now_ms=0)
        assert store.bounds(LOG) == (0, 0)
    database._db = real


def test_what_was_written_before_the_disk_was_full_is_still_synced(
    store: RocksdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write([batch(0)], now_ms=0)
    break_database(
        store,
        write=FULL,
        flush_wal="IO error: Writer has previous error.",
        close="IO error: Writer has previous error.",
    )
    with pytest.raises(NoSpace):
        store.write([batch(1)], now_ms=0)
    synced: list[int] = []
    files = store._database._files
    real_sync = files.fdatasync

    def count(fd: int) -> None:
        synced.append(fd)
        real_sync(fd)

    monkeypatch.setattr(files, "fdatasync", count)
    store.sync()
    assert synced

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "fdatasync", fail)
    with pytest.raises(StoreFailed):
        store.sync()
    with pytest.raises(StoreFailed):
        store.write([batch(1)], now_ms=0)


def test_reads_go_on_when_it_cannot_be_opened_again_at_once(
    store: RocksdbLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write([batch(0)], now_ms=0)
    repair = break_database(store, write=FULL)
    with pytest.raises(NoSpace):
        store.write([batch(1)], now_ms=0)
    repair()
    real_open = rocksdb_database.open_rdict
    no_room = [True, True]

    def still_full(directory: Path, access: AccessType) -> Rdict:
        if no_room:
            no_room.pop()
            if len(no_room) == 1:
                raise Exception(FULL)
        return real_open(directory, access)

    monkeypatch.setattr(rocksdb_database, "open_rdict", still_full)
    with pytest.raises(NoSpace):
        store.write([batch(1)], now_ms=0)
    assert store.statistics().database.full
    assert read_all(store) == batch(0).data
    store.sync()
    store.write([batch(1)], now_ms=0)
    store.sync()
    assert not store.statistics().database.full
    assert read_all(store) == joined([batch(0), batch(1)])


def test_a_lack_of_open_files_refuses_writes_only_as_long_as_it_lasts(store: RocksdbLogStore) -> None:
    """Regression: it failed the store until a restart."""
    store.write([batch(0)], now_ms=0)
    repair = break_database(store, write="IO error: While open a file for appending: Too many open files")
    with pytest.raises(NoFiles, match="ulimit -n"):
        store.write([batch(1)], now_ms=0)
    repair()
    store.write([batch(1)], now_ms=0)
    store.sync()
    assert read_all(store) == joined([batch(0), batch(1)])


def test_a_process_without_open_files(store: RocksdbLogStore, no_files: Callable[[], ExitStack]) -> None:
    """Regression: the sync after the first refused write opened files, and failed the store."""
    written = []

    def write(count: int = 1) -> None:
        for _ in range(count):
            new = batch(len(written), value=os.urandom(900_000))
            store.write([new], now_ms=0)
            written.append(new)

    write()
    with no_files():
        with pytest.raises(NoFiles, match="ulimit -n"):
            write(40)  # More than the buffers take: it needs a new file.
        store.sync()
        assert read_all(store) == joined(written)
        for refused in (write, lambda: store.create(OTHER, SETTINGS)):
            with pytest.raises(NoFiles, match="ulimit -n"):
                refused()
    write()
    store.sync()
    assert read_all(store) == joined(written)


READ = """
import sys
from pathlib import Path
from kbroker.storage.rocksdb.engine import STATE_STORE

store = STATE_STORE.open(Path(sys.argv[1]), {}, 1)
print(sum(store.get(b"%d" % number) == bytes(100) for number in range(150)))
store.close()
"""


def test_more_tables_than_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 512 tables were kept open, whatever the process may open."""
    real_options = rocksdb_database._options

    def no_compaction(write_buffer_bytes: int) -> Options:
        options = real_options(write_buffer_bytes)
        options.set_disable_auto_compactions(True)
        return options

    monkeypatch.setattr(rocksdb_database, "_options", no_compaction)
    store = STATE_STORE.open(tmp_path, {}, 1)
    assert isinstance(store, RocksdbStateStore)
    for number in range(150):
        store.write([(b"%d" % number, bytes(100))])
        with store._database.reading(meta=True) as db:
            db.flush()
    store.close()
    assert len(list(tmp_path.rglob("*.sst"))) >= 150
    command = ["sh", "-c", 'ulimit -n 100 && exec "$0" "$@"', sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "150\n", done.stderr


def test_it_is_not_opened_again_under_a_snapshot(tmp_path: Path) -> None:
    store = STATE_STORE.open(tmp_path, {}, 1)
    assert isinstance(store, RocksdbStateStore)
    store.write([(b"a", b"1")])
    repair = break_database(store, write=FULL)
    with pytest.raises(NoSpace):
        store.write([(b"a", b"2")])
    repair()
    with store.snapshot() as snapshot:
        with pytest.raises(NoSpace, match="in use"):
            store.write([(b"a", b"2")])
        assert snapshot.get(b"a") == b"1"
    del snapshot
    store.write([(b"a", b"2")])
    assert store.get(b"a") == b"2"
    store.close()


def test_reading_state_writes_no_tables(tmp_path: Path) -> None:
    """Regression: each read waited for a table file to be written and synced, and the whole broker
    with it, since the GIL was held meanwhile."""
    store = STATE_STORE.open(tmp_path, {}, 1)
    for number in range(5):
        store.write([(b"%d" % number, b"value")])
        assert store.get(b"%d" % number) == b"value"
        assert len(list(store.scan(b""))) == number + 1
        with store.snapshot() as snapshot:
            assert snapshot.get(b"0") == b"value"
        del snapshot
    assert list(tmp_path.rglob("*.sst")) == []
    store.close()


def test_snapshots_of_readers_are_removed(tmp_path: Path) -> None:
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, SETTINGS)
    program = (
        "import os, sys; from pathlib import Path; from kbroker.storage.rocksdb.engine import LOG_STORE; "
    )
    killed = program + "reader = LOG_STORE.open_reader(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    left_over = set((tmp_path / "readers").iterdir())
    assert len(left_over) == 1
    reader = LOG_STORE.open_reader(tmp_path)
    store.close()
    store = LOG_STORE.open(tmp_path, {}, 2)
    live = set((tmp_path / "readers").iterdir())
    assert len(live) == 1
    assert not live & left_over
    reader.close()
    reader.close()
    assert not list((tmp_path / "readers").iterdir())
    store.close()


def test_what_a_killed_reader_left_goes_with_the_next_reader(tmp_path: Path) -> None:
    """Beside a broker that runs for months. Ownership is decided by a lock, as process ids mean
    nothing in another container."""
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, SETTINGS)
    left_over = tmp_path / "readers" / f"{os.getpid()}-left-over"
    left_over.mkdir(parents=True)
    first = LOG_STORE.open_reader(tmp_path)
    second = LOG_STORE.open_reader(tmp_path)
    assert not left_over.exists()
    assert len(list((tmp_path / "readers").iterdir())) == 2
    assert first.bounds(LOG) == second.bounds(LOG) == (0, 0)
    first.close()
    second.close()
    assert not list((tmp_path / "readers").iterdir())
    store.close()


def test_readers_in_other_processes_see_no_holes(
    store: RocksdbLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memtables are flushed and compacted while the reader makes its copies."""
    program = (
        "import sys; from pathlib import Path; from kbroker.storage.rocksdb.engine import LOG_STORE\n"
        "from kbroker.testing.log_store_model import base_offsets\n"
        "print('ready', flush=True)\n"
        "for line in range(6):\n"
        " reader = LOG_STORE.open_reader(Path(sys.argv[1])); log = next(iter(reader.logs())); start, end = "
        "reader.bounds(log)\n"
        " found = base_offsets(b''.join(reader.read(log, 0, max_bytes=1 << 40, end_offset=end)))\n"
        " assert found == list(range(start, end)), (start, end, len(found)); reader.close()\n"
        " print(end, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        store.create(LOG, LogSettings(segment_bytes=1 << 20))
        offset = 0
        while child.poll() is None:
            store.write([sized_batch(offset + number, 10_000) for number in range(20)], now_ms=0)
            offset += 20
            if offset % 500 == 0:
                store.trim(LOG, offset - 1000)
                with store._database.reading(meta=True) as db:
                    db.flush()
        ends = list(map(int, child.stdout.read().split()))
    assert child.returncode == 0
    assert len(ends) == 6
    assert ends == sorted(ends)


def test_a_directory_without_a_database_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="holds no RocksDB database"):
        LOG_STORE.open_reader(tmp_path)


def test_a_reader_that_asks_again_sees_what_is_new(store: RocksdbLogStore, tmp_path: Path) -> None:
    """Querying every log once costs one copy, however many logs there are."""
    store.create(OTHER, LogSettings())
    reader = LOG_STORE.open_reader(tmp_path)
    store.write([batch(0), batch(0, log=OTHER)], now_ms=0)
    assert sorted(reader.logs()) == [LOG, OTHER]
    copies = list((tmp_path / "readers").iterdir())
    for log in (LOG, OTHER):
        store.write([batch(store.bounds(log).end_offset, log=log)], now_ms=0)
        assert reader.bounds(log) == (0, 1)
        assert len(reader.segments(log)) == 1
        assert base_offsets(read_all(reader, log, end_offset=EVERYTHING)) == [0]
    assert list((tmp_path / "readers").iterdir()) == copies
    assert reader.bounds(LOG) == (0, 2)
    assert reader.bounds(OTHER) == (0, 2)
    reader.close()


def test_a_removal_goes_on_where_there_is_no_room_to_free_its_space_at_once(tmp_path: Path) -> None:
    """Another program has taken what a flush needs."""
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        store = LOG_STORE.open(disk / "log", {}, 1)
        try:
            for log in (LOG, OTHER):
                store.create(log, SETTINGS)
            store.write([batch(0)], now_ms=0)
            for number in range(12):
                store.write([batch(number, log=OTHER, value=os.urandom(400_000))], now_ms=0)
            ballast = fill_the_rest(disk, but_bytes=256 << 10)
            store.drop(LOG)
            assert LOG not in store.logs()
            ballast.unlink()
            store.write([batch(12, log=OTHER)], now_ms=0)
            store.sync()
            assert store.bounds(OTHER) == (0, 13)
        finally:
            store.close()
