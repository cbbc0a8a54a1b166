"""LMDB: the shipped contracts, then what is LMDB's own: handles, the map, keys beyond its limit, readers, failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage import lmdb_log_store
from kbroker.storage.lmdb_log_store import LmdbLogStore
from kbroker.storage.lmdb_store import LOG_STORE, STATE_STORE
from kbroker.storage.spi import LogId, LogSettings
from kbroker.testing.log_store_contract import LogStoreContract
from kbroker.testing.log_store_model import LOG, OTHER, SETTINGS, TOPIC, batch, check_segments, joined, read_all, sized_batch
from kbroker.testing.state_store_contract import StateStoreContract


class TestLmdbLogStore(LogStoreContract):
    factory = LOG_STORE


class TestLmdbStateStore(StateStoreContract):
    factory = STATE_STORE


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


def test_what_was_removed_but_not_freed_is_freed_at_the_next_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        "import sys, pathlib; from kbroker.storage.lmdb_store import STATE_STORE as engine; "
        "list(engine.open(pathlib.Path(sys.argv[1]), {}, 0).scan(b''))"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "its pages need" in done.stderr.splitlines()[0]
