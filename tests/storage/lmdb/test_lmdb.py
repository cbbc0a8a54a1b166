"""LMDB: the shipped contracts, then its specifics: handles, the map, keys beyond its limit,
readers, failures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import lmdb
import pytest

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.lmdb import followed_changes
from kbroker.storage.lmdb import log_store as lmdb_log_store
from kbroker.storage.lmdb.engine import LOG_STORE, STATE_STORE
from kbroker.storage.lmdb.environment import LmdbEnvironment, open_environment
from kbroker.storage.lmdb.log_store import LmdbLogStore
from kbroker.storage.lmdb.state_map import StateMap, open_map
from kbroker.storage.lmdb.state_store import REDO, LmdbStateReader, LmdbStateStore
from kbroker.storage.segment.reader import SegmentLogReader
from kbroker.storage.segment.state_log import read_changes
from kbroker.storage.spi import Change, LogId, LogReader, LogSettings
from kbroker.testing.log_store_contract import LogStoreContract
from kbroker.testing.log_store_model import (
    LOG,
    OTHER,
    SETTINGS,
    TOPIC,
    batch,
    check_segments,
    joined,
    read_all,
    sized_batch,
)
from kbroker.testing.state_store_contract import StateStoreContract


class TestLmdbLogStore(LogStoreContract):
    factory = LOG_STORE


class TestLmdbStateStore(StateStoreContract):
    factory = STATE_STORE


class TestLmdbStateStoreThatMovesAtEverySync(StateStoreContract):
    factory = STATE_STORE
    options: ClassVar = {"redo_bytes": "0"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbLogStore]:
    store = LOG_STORE.open(tmp_path / "log", {}, 1)
    assert isinstance(store, LmdbLogStore)
    yield store
    store.close()


def test_commits_are_synced_and_nothing_is_written_through_the_map(store: LmdbLogStore) -> None:
    flags = store._env._env.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert flags["lock"]
    assert not flags["writemap"]


def test_the_batches_of_a_call_are_one_value(store: LmdbLogStore) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(offset) for offset in range(100)], now_ms=0)
    store.write([batch(100)], now_ms=0)
    with store._env._env.begin() as transaction:
        assert transaction.stat(store._env._env.open_db(b"s1", txn=transaction))["entries"] == 2


def test_removed_segments_give_their_pages_back(store: LmdbLogStore) -> None:
    store.create(LOG, LogSettings(segment_bytes=1 << 20))
    size_after_first_round = 0
    for round_number in range(6):
        for offset in range(round_number * 80, round_number * 80 + 80):
            store.write([sized_batch(offset, 100_000)], now_ms=0)
        store.trim(LOG, round_number * 80 + 80)
        assert len(store.segments(LOG)) == 1
        size_after_first_round = size_after_first_round or store.statistics().environment.file_bytes
    assert store.statistics().environment.file_bytes < 1.5 * size_after_first_round


def test_what_was_removed_but_not_freed_is_freed_at_the_next_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, LogSettings(segment_bytes=1))
    store.write([batch(offset) for offset in range(10)], now_ms=0)
    with monkeypatch.context() as patch:
        patch.setattr(LmdbLogStore, "_free", lambda *_: None)
        store.trim(LOG, 8)
    store.close()
    store = LOG_STORE.open(tmp_path, {}, 2)
    assert isinstance(store, LmdbLogStore)
    assert store.bounds(LOG) == (8, 10)
    with store._env._env.begin() as transaction:
        names = sorted(bytes(key) for key, _ in transaction.cursor())
        assert names == [b"meta", b"s9", b"sa"]
        assert list(store._meta(transaction, b"G")) == []
    store.write([batch(10)], now_ms=0)
    assert read_all(store) == joined([batch(8), batch(9), batch(10)])
    store.close()


def test_handles_are_given_back_before_they_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More segments are read than handles may be open."""
    monkeypatch.setattr(lmdb_log_store, "MAX_HANDLES", 100)
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, LogSettings(segment_bytes=1))
    written = [batch(offset, timestamp_ms=offset) for offset in range(200)]
    for number in range(0, 200, 20):
        store.write(written[number : number + 20], now_ms=0)
        store.close()
        store = LOG_STORE.open(tmp_path, {}, 1)
    for offset in range(200):
        assert store.read(LOG, offset, max_bytes=1, end_offset=200)[0] == written[offset].data
        if offset % 20 == 0:
            store.trim(LOG, offset // 2)
    assert store.statistics().environment.open_handles <= 100
    store.close()


def test_the_first_read_of_many_small_segments_starts_over_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader after a restart waited for 7 s at 1200 segments, and four times as long at twice as
    many."""
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, LogSettings(segment_bytes=1))
    written = [batch(offset) for offset in range(300)]
    store.write(written, now_ms=0)
    store.close()
    times = 0
    read_chunks = lmdb_log_store.read_chunks

    def counted(*args: Any, **options: Any) -> list[memoryview]:
        nonlocal times
        times += 1
        return read_chunks(*args, **options)

    monkeypatch.setattr(lmdb_log_store, "read_chunks", counted)
    store = LOG_STORE.open(tmp_path, {}, 1)
    assert read_all(store) == joined(written)
    assert times <= 1 + (300).bit_length()
    monkeypatch.setattr(lmdb_log_store, "MAX_HANDLES", 364)
    store.close()
    store = LOG_STORE.open(tmp_path, {}, 1)
    assert read_all(store) == joined(written), "with hardly a handle more than needed"
    store.close()


def test_many_logs_are_there_at_once(tmp_path: Path) -> None:
    logs = [LogId(TOPIC, number) for number in range(300)]
    store = LOG_STORE.open(tmp_path, {}, 1)
    for log in logs:
        store.create(log, SETTINGS)
    store.write([batch(0, 3, log=log) for log in logs], now_ms=0)
    store.close()
    store = LOG_STORE.open(tmp_path, {}, 2)
    assert {store.bounds(log) for log in logs} == {(0, 3)}
    store.close()


def test_a_small_map_is_a_full_disk(tmp_path: Path) -> None:
    store = LOG_STORE.open(tmp_path, {"map_size": str(1 << 20)}, 1)
    store.create(LOG, LogSettings(segment_bytes=200_000))

    def fill() -> None:
        for number in range(100):
            store.write([sized_batch(number, 20_000)], now_ms=0)

    with pytest.raises(NoSpace):
        fill()
    offset = store.bounds(LOG).end_offset
    assert offset > 20
    check_segments(store)
    store.sync()
    store.trim(LOG, offset // 2)
    store.write([sized_batch(offset, 20_000)], now_ms=0)
    check_segments(store)
    store.close()


def test_a_smaller_map_is_taken_where_a_large_one_is_refused(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; resource.setrlimit(resource.RLIMIT_AS, (1 << 33, "
        "1 << 33));"
        "from kbroker.storage.lmdb.engine import STATE_STORE; store = STATE_STORE.open(Path(sys.argv[1]), "
        "{}, 1);"
        "store.write([(b'a', b'1')]); print(store.get(b'a'), store.statistics().map_bytes)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["b'1'", str(1 << 32)]


class _FailingEnvironment:
    """An lmdb.Environment whose write transactions fail."""

    def __init__(self, env: lmdb.Environment, errors: list[Exception]) -> None:
        self._env = env
        self._errors = errors

    def begin(self, write: bool = False, **rest: object) -> object:
        if write:
            raise self._errors.pop(0)
        return self._env.begin(**rest)  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)


def test_any_other_error_stops_all_writes(store: LmdbLogStore) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    real = store._env._env
    store._env._env = _FailingEnvironment(real, [lmdb.Error("mdb_txn_commit: Input/output error")])  # type: ignore[assignment]
    with pytest.raises(StoreFailed, match="Input/output error"):
        store.write([batch(1)], now_ms=0)
    store._env._env = real
    for again in (
        lambda: store.write([batch(1)], now_ms=0),
        store.sync,
        lambda: store.trim(LOG, 1),
        lambda: store.truncate(LOG, 0),
        lambda: store.drop(LOG),
        lambda: store.create(OTHER, SETTINGS),
    ):
        with pytest.raises(StoreFailed, match="Input/output error"):
            again()
    assert store.bounds(LOG) == (0, 1)
    assert read_all(store) == batch(0).data


def test_a_full_disk_that_broke_the_environment_stops_all_writes(store: LmdbLogStore) -> None:
    """LMDB panics when it could not write its meta page: whatever the first error was, all later
    writes must be refused."""
    store.create(LOG, SETTINGS)
    real = store._env._env
    errors: list[Exception] = [lmdb.DiskError("mdb_txn_commit"), lmdb.PanicError("mdb_txn_begin")]
    store._env._env = _FailingEnvironment(real, errors)  # type: ignore[assignment]
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)
    store._env._env = real
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)


def test_a_reader_in_another_process_follows_a_live_store(store: LmdbLogStore, tmp_path: Path) -> None:
    """Also over trims: names of dropped sub-databases are no longer looked up."""
    store.create(LOG, LogSettings(segment_bytes=1000))
    program = (
        "import sys; from pathlib import Path; from kbroker.storage.lmdb.engine import LOG_STORE;"
        "reader = LOG_STORE.open_reader(Path(sys.argv[1]))\n"
        "for _ in sys.stdin:\n"
        " log = next(iter(reader.logs())); start, end = reader.bounds(log)\n"
        " size = sum(map(len, reader.read(log, start, max_bytes=1 << 20, end_offset=end)))\n"
        " print(start, end, size, len(reader.segments(log)), flush=True)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for offset in range(0, 60, 3):
            store.write([batch(offset + number) for number in range(3)], now_ms=0)
            if offset % 9 == 0:
                store.trim(LOG, offset - 10)
            child.stdin.write("\n")
            child.stdin.flush()
            start, end = store.bounds(LOG)
            expected = [start, end, len(read_all(store, offset=start)), len(store.segments(LOG))]
            assert list(map(int, child.stdout.readline().split())) == expected
        child.stdin.close()
    assert child.returncode == 0


def test_store_and_readers_of_one_process_share_the_environment(tmp_path: Path) -> None:
    store = LOG_STORE.open(tmp_path, {}, 1)
    readers = [LOG_STORE.open_reader(tmp_path) for _ in range(3)]
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    store.close()
    assert read_all(readers[0]) == batch(0).data
    for reader in readers:
        reader.close()
    reader = LOG_STORE.open_reader(tmp_path)
    with pytest.raises(OperatorError, match="close that reader first"):
        LOG_STORE.open(tmp_path, {}, 2)
    reader.close()
    LOG_STORE.open(tmp_path, {}, 2).close()


def test_a_directory_without_an_environment_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot open the LMDB environment"):
        LOG_STORE.open_reader(tmp_path / "none")


@pytest.mark.parametrize("length", [479, 480, 481, 482, 511, 512, 3000])
def test_keys_of_any_length_keep_their_order(tmp_path: Path, length: int) -> None:
    """LMDB itself takes no key beyond 511 bytes."""
    store = STATE_STORE.open(tmp_path, {}, 1)
    stem = b"k" * length
    keys = sorted(
        [
            stem,
            stem[:-1],
            stem[:-1] + b"a",
            stem + b"\0",
            stem + b"\0\0",
            stem + b"a",
            stem + b"\xff",
            b"j",
            b"l",
            stem[:100],
        ]
    )
    store.write([(key, key[-9:]) for key in reversed(keys)])
    assert list(store.scan(b"")) == [(key, key[-9:]) for key in keys]
    for prefix in (stem, stem[:-1], stem + b"\0", stem + b"b", b"k"):
        assert [key for key, _ in store.scan(prefix)] == [key for key in keys if key.startswith(prefix)]
    for key in keys:
        assert store.get(key) == key[-9:]
        store.write([(key, None)])
        assert store.get(key) is None
    assert list(store.scan(b"")) == []
    store.close()


def _left_as_by_a_kill(directory: Path, copy: Path) -> LmdbStateStore:
    shutil.copytree(directory, copy)
    store = STATE_STORE.open(copy, {}, 2)
    assert isinstance(store, LmdbStateStore)
    return store


def test_state_that_is_only_in_the_redo_log_is_there_after_a_kill(tmp_path: Path) -> None:
    store = STATE_STORE.open(tmp_path / "state", {}, 1)
    store.write([(b"a", b"1"), (b"b", b"2")])
    store.write([(b"a", None), (b"c", b"3")])
    again = _left_as_by_a_kill(tmp_path / "state", tmp_path / "copy")
    assert dict(again.scan(b"")) == {b"b": b"2", b"c": b"3"}
    again.close()
    reader = LmdbStateReader(
        open_map(tmp_path / "state", read_only=True, map_bytes=1 << 30),
        SegmentLogReader(tmp_path / "state" / REDO),
    )
    assert (dict(reader.scan(b"")), reader.get(b"a"), reader.get(b"c")) == (
        {b"b": b"2", b"c": b"3"},
        None,
        b"3",
    )
    reader.close()
    store.close()


@pytest.mark.parametrize("redo_bytes", ["0", "500", "100000"])
def test_a_reader_reads_each_part_of_the_redo_log_once(
    redo_bytes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each get() of a reader read the redo log whole. Moves and trims come between."""
    read = 0

    def counting(log: LogReader, offset: int, end_offset: int) -> tuple[list[Change], int]:
        nonlocal read
        read += end_offset - offset
        return read_changes(log, offset, end_offset)

    monkeypatch.setattr(followed_changes, "read_changes", counting)
    store = STATE_STORE.open(tmp_path, {"redo_bytes": redo_bytes}, 1)
    reader = STATE_STORE.open_reader(tmp_path)
    model: dict[bytes, bytes] = {}
    for number in range(60):
        key = b"%02d" % (number % 25)
        store.write([(key, b"%d" % number), (b"gone", None)])
        model[key] = b"%d" % number
        if number % 3 == 0:
            store.sync()
        for _ in range(3):
            assert (reader.get(key), reader.get(b"gone")) == (b"%d" % number, None)
        assert dict(reader.scan(b"")) == model
    store.close()
    assert dict(reader.scan(b"")) == model
    reader.close()
    assert read <= 2 * 60 * (1 if redo_bytes != "500" else 2), "changes behind a move are read again"


def test_a_redo_log_that_lost_what_the_map_has_goes_on_behind_it(tmp_path: Path) -> None:
    """A power cut may lose unsynced writes of the log that were moved to the map meanwhile."""
    store = STATE_STORE.open(tmp_path / "state", {"redo_bytes": "0"}, 1)
    store.write([(b"%d" % number, b"1") for number in range(10)])
    store.sync()
    store.close()
    shutil.rmtree(tmp_path / "state" / REDO)
    for number in range(3):
        store = STATE_STORE.open(tmp_path / "state", {}, 2)
        store.write([(b"0", b"again %d" % number)])
        copy = _left_as_by_a_kill(tmp_path / "state", tmp_path / f"copy {number}")
        assert copy.get(b"0") == b"again %d" % number
        assert len(list(copy.scan(b""))) == 10
        copy.close()
        store.close()


def test_a_map_that_is_older_than_its_redo_log_is_refused(tmp_path: Path) -> None:
    store = STATE_STORE.open(tmp_path / "state", {}, 1)
    shutil.copy(tmp_path / "state" / "data.mdb", tmp_path / "old.mdb")
    store.write([(b"a", b"1")])
    store.close()
    shutil.copy(tmp_path / "old.mdb", tmp_path / "state" / "data.mdb")
    with pytest.raises(OperatorError, match="older copy"):
        STATE_STORE.open(tmp_path / "state", {}, 2)
    reader = STATE_STORE.open_reader(tmp_path / "state")
    with pytest.raises(StoreFailed, match="older copy"):
        reader.get(b"a")
    reader.close()


def test_a_full_map_postpones_the_move_and_state_is_kept(tmp_path: Path) -> None:
    store = STATE_STORE.open(tmp_path / "state", {"redo_bytes": "0", "map_size": str(64 << 10)}, 1)
    assert isinstance(store, LmdbStateStore)
    expected = {b"%03d" % number: bytes(1000) for number in range(100)}
    for key, value in expected.items():
        store.write([(key, value)])
        store.sync()
    assert dict(store.scan(b"")) == expected
    assert store.statistics().file_bytes <= 64 << 10
    store.close()
    store = STATE_STORE.open(tmp_path / "state", {}, 2)
    assert dict(store.scan(b"")) == expected
    store.close()


@pytest.mark.parametrize("kept_bytes", [20_000, -4096])
def test_a_file_whose_end_is_missing_is_refused(tmp_path: Path, kept_bytes: int) -> None:
    store = STATE_STORE.open(tmp_path, {}, 0)
    store.write([(b"%05d" % number, b"v" * 900) for number in range(300)])
    store.close()
    _cut(tmp_path / "data.mdb", kept_bytes)
    for open_again in (lambda: STATE_STORE.open(tmp_path, {}, 0), lambda: STATE_STORE.open_reader(tmp_path)):
        with pytest.raises(OperatorError, match=r"its end is missing.*restore a backup"):
            open_again()


def test_a_log_whose_last_chunk_is_missing_is_refused(tmp_path: Path) -> None:
    """The chunk has its own pages, which only a read of that chunk touches."""
    store = LOG_STORE.open(tmp_path, {}, 0)
    store.create(LOG, SETTINGS)
    store.write([sized_batch(0, 1 << 20)], now_ms=0)
    store.close()
    size_bytes = (tmp_path / "data.mdb").stat().st_size
    _cut(tmp_path / "data.mdb", size_bytes - (512 << 10))
    for open_again in (lambda: LOG_STORE.open(tmp_path, {}, 0), lambda: LOG_STORE.open_reader(tmp_path)):
        with pytest.raises(OperatorError, match="its end is missing"):
            open_again()


def test_free_pages_may_be_missing_at_the_end(tmp_path: Path) -> None:
    """LMDB does not write pages that were freed by the transaction that allocated them."""
    env = open_environment(tmp_path, read_only=False, map_bytes=1 << 30, max_handles=0)
    keys = [b"%05d" % number for number in range(300)]
    for changes in (
        [(key, bytes(900)) for key in keys],
        [(key, None) for key in keys],
        [(b"a", b"0")],
        [(b"a", b"0")],
    ):
        # leaves free pages, so that only the large value extends the file
        _put(env, changes)
    _put(env, [(b"a", b"1"), (b"b", bytes(8 << 20)), (b"b", None)])
    file_bytes = env.statistics().file_bytes
    env.close()
    assert (tmp_path / "data.mdb").stat().st_size < file_bytes
    for open_again in (lambda: STATE_STORE.open(tmp_path, {}, 0), lambda: STATE_STORE.open_reader(tmp_path)):
        again = open_again()
        assert list(again.scan(b"")) == [(b"a", b"1")]
        again.close()


def _put(env: LmdbEnvironment, changes: list[Change]) -> None:
    with env.write() as transaction:
        for key, value in changes:
            StateMap(transaction).put(key, value)


def _cut(file: Path, kept_bytes: int) -> None:
    os.truncate(file, kept_bytes if kept_bytes > 0 else file.stat().st_size + kept_bytes)
