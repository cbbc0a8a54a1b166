"""A really full disk, on every engine: the refused call changes nothing, reads still work, and
writes work again when there is space.

Uses a small tmpfs, so it needs the right to mount one; skipped without it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.errors import NoSpace
from kbroker.storage.files import Files
from kbroker.storage.spi import LogSettings, LogStore, StateStore
from kbroker.testing.log_store_model import LOG, OTHER, base_offsets, check_segments, read_all, sized_batch
from tests.small_disk import small_disk

ENGINES = ["segment", "lmdb", "rocksdb"]
DISK_BYTES = 56 << 20
BALLAST_BYTES = 32 << 20
"""Once it is removed, there is room to write everything again, plus an eighth of the disk, which
RocksDB needs to be reopened."""
SETTINGS = LogSettings(segment_bytes=1 << 20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


def test_an_index_on_a_full_disk(disk: Path) -> None:
    """In a separate process: through a mapping it would be a SIGBUS."""
    ballast = disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(bytes(2 * DISK_BYTES))
    save = (
        "import sys; from pathlib import Path; from kbroker.storage.files import Files; "
        "Files().save_rows(Path(sys.argv[1]), [bytes(1 << 20)] * 4)"
    )
    command = [sys.executable, "-c", save, str(disk / "rows")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1, "no signal"
    assert "No space left on device" in ran.stderr
    ballast.unlink()
    Files().remove_tree(disk / "rows")
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_logs_on_a_full_disk(engine: str, disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    store: LogStore = plugins.log_store_factory(engine).open(disk / "log", {}, 1)
    for log in (LOG, OTHER):
        store.create(log, SETTINGS)
    with pytest.raises(NoSpace):
        fill_logs(store)
    offset = store.bounds(LOG).end_offset
    assert offset > 50
    for _ in range(3):  # still full, and still unchanged
        with pytest.raises(NoSpace):
            store.write([sized_batch(offset + number, 500_000) for number in range(8)], now_ms=0)
        check_as_written(store, offset)
        store.sync()
    ballast.unlink()
    for later in range(offset, offset + 20):
        store.write([sized_batch(later, 30_000), sized_batch(later, 30_000, log=OTHER)], now_ms=0)
    store.sync()
    check_as_written(store, offset + 20)
    store.trim(LOG, offset)
    assert store.bounds(LOG).start_offset > 0
    store.close()
    again: LogStore = plugins.log_store_factory(engine).open(disk / "log", {}, 2)
    assert base_offsets(read_all(again, OTHER)) == list(range(offset + 20))
    again.close()


def fill_logs(store: LogStore) -> None:
    for offset in range(10_000):
        store.write([sized_batch(offset, 30_000), sized_batch(offset, 30_000, log=OTHER)], now_ms=0)
        if offset % 10 == 0:
            store.sync()


def check_as_written(store: LogStore, end_offset: int) -> None:
    for log in (LOG, OTHER):
        assert store.bounds(log) == (0, end_offset)
        assert base_offsets(read_all(store, log)) == list(range(end_offset))
        check_segments(store, log)


@pytest.mark.parametrize("engine", ENGINES)
def test_state_on_a_full_disk(engine: str, disk: Path) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    store: StateStore = plugins.state_store_factory(engine).open(disk / "state", {}, 1)
    with pytest.raises(NoSpace):
        fill_state(store)
    number = int(store.get(b"last") or b"") + 1
    assert number > 50
    with pytest.raises(NoSpace):
        store.write(
            [(b"key%06d" % each, bytes(500_000)) for each in range(1000, 1010)] + [(b"last", b"refused")]
        )
    assert store.get(b"last") == b"%d" % (number - 1)
    assert len(list(store.scan(b"key"))) == number
    store.sync()
    ballast.unlink()
    store.write([(b"last", b"again"), (b"key%06d" % number, b"")])
    store.sync()
    store.close()
    again: StateStore = plugins.state_store_factory(engine).open(disk / "state", {}, 2)
    assert again.get(b"last") == b"again"
    assert len(list(again.scan(b"key"))) == number + 1
    again.close()


def fill_state(store: StateStore) -> None:
    for number in range(10_000):
        store.write([(b"key%06d" % number, bytes(50_000)), (b"last", b"%d" % number)])


@pytest.mark.parametrize("engine", ["segment", "lmdb"])
def test_retention_makes_space_on_a_full_disk(engine: str, disk: Path) -> None:
    """Not with RocksDB: its deletions need space first."""
    store: LogStore = plugins.log_store_factory(engine).open(disk / "log", {}, 1)
    for log in (LOG, OTHER):
        store.create(log, SETTINGS)
    with pytest.raises(NoSpace):
        fill_logs(store)
    offset = store.bounds(LOG).end_offset
    for log in (LOG, OTHER):
        store.trim(log, offset // 2)
    for later in range(offset, offset + offset // 4):
        store.write([sized_batch(later, 30_000), sized_batch(later, 30_000, log=OTHER)], now_ms=0)
    check_segments(store)
    store.close()
