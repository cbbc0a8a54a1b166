"""The sqlite engine keeps every promise of the storage SPIs, and kbroker finds it by its entry
points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.errors import OperatorError
from kbroker.testing.log_store_contract import LogStoreContract
from kbroker.testing.log_store_model import LOG, SETTINGS, batch, joined
from kbroker.testing.state_store_contract import StateStoreContract
from kbroker_sqlite import LOG_STORE, STATE_STORE


class TestSqliteLogStore(LogStoreContract):
    factory = LOG_STORE


class TestSqliteStateStore(StateStoreContract):
    factory = STATE_STORE


def test_kbroker_finds_it_by_its_entry_points() -> None:
    assert plugins.log_store_factory("sqlite") is LOG_STORE
    assert plugins.state_store_factory("sqlite") is STATE_STORE


def test_a_reader_in_another_process_sees_a_live_store(tmp_path: Path) -> None:
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, SETTINGS)
    written = [batch(0, 2), batch(2, 3)]
    store.write(written, now_ms=0)
    program = (
        "import sys; from pathlib import Path; from kbroker_sqlite import LOG_STORE;"
        "reader = LOG_STORE.open_reader(Path(sys.argv[1])); log = next(iter(reader.logs()));"
        "sys.stdout.buffer.write(b''.join(reader.read(log, 0, max_bytes=1 << 20, "
        "end_offset=reader.bounds(log).end_offset)))"
    )
    shown = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=True)
    assert shown.stdout == joined(written)
    store.close()


def test_what_removed_records_leave_can_be_reused(tmp_path: Path) -> None:
    store = LOG_STORE.open(tmp_path, {}, 1)
    store.create(LOG, SETTINGS)
    store.write([batch(0, 2)], now_ms=0)
    assert store.reusable_bytes() == 0
    size_bytes = 1 << 20
    store.write([batch(2, 3)._replace(data=bytes(size_bytes))], now_ms=0)
    store.drop(LOG)
    assert store.reusable_bytes() >= size_bytes
    store.close()


def test_a_directory_without_a_store_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"log\.sqlite does not exist"):
        LOG_STORE.open_reader(tmp_path)


def test_commits_are_synced(tmp_path: Path) -> None:
    store = STATE_STORE.open(tmp_path, {}, 1)
    writer = store._database._writer
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
