"""States of the segment engine's files that replayed power cuts once found it unprepared for, made by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbroker.storage.segment_store import LOG_STORE
from kbroker.storage.spi import LogBounds, LogSettings
from kbroker.testing.log_store_model import LOG, read_all, sized_batch
from tests.powercut.engine_script import go_on_with_logs


@pytest.fixture
def unsynced(home: Path) -> Path:
    """Files of a log with three segments, none of them synced, of which the first has lost its bytes."""
    store = LOG_STORE.open(home / "living", {}, 0)
    store.create(LOG, LogSettings(segment_bytes=4000))
    for offset in range(3):
        store.write([sized_batch(offset, 3000)], now_ms=0)
    shutil.copytree(home / "living", home / "left")
    store.close()
    data = sorted((home / "left").rglob("data.ninja"))
    assert len(data) == 3
    data[0].write_bytes(bytes(data[0].stat().st_size))
    return home / "left"


@pytest.mark.parametrize("follows", ["kept", "lost"])
def test_segments_behind_lost_bytes_are_removed(unsynced: Path, follows: str) -> None:
    """Once wrong: recovery opened the removed segments again; and a segment whose `follows` was lost as well stayed behind a hole."""
    if follows == "lost":
        for path in unsynced.rglob("follows"):
            path.write_bytes(b"")
    store = LOG_STORE.open(unsynced, {}, 0)
    assert store.bounds(LOG) == LogBounds(0, 0)
    assert read_all(store) == b""
    go_on_with_logs(store)
    store.close()
