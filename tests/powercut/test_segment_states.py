"""Regressions: hand-made states of the segment engine's files that replayed power cuts produced and
recovery once handled wrongly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbroker.storage.segment.log_store import LOG_STORE, SegmentLogStore
from kbroker.storage.spi import LogBounds, LogSettings
from kbroker.testing.log_store_model import LOG, read_all, sized_batch
from tests.powercut.engine_script import go_on_with_logs
from tests.storage.faulty_files import FaultyFiles


@pytest.fixture
def unsynced(home: Path) -> Path:
    """Files of a log with three segments, none of them synced, of which the first has lost its
    bytes."""
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
    """Recovery reopened the removed segments; and a segment whose `follows` was lost as well stayed
    behind a hole."""
    if follows == "lost":
        for path in unsynced.rglob("follows"):
            path.write_bytes(b"")
    store = LOG_STORE.open(unsynced, {}, 0)
    assert store.bounds(LOG) == LogBounds(0, 0)
    assert read_all(store) == b""
    go_on_with_logs(store)
    store.close()


class NotingFiles(FaultyFiles):
    """Records which directories are synced before the first removal."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_first: list[Path] = []
        self.has_removed = False

    def fsync_dir(self, path: Path) -> None:
        if not self.has_removed:
            self.synced_first.append(path)
        super().fsync_dir(path)

    def rename(self, source: Path, target: Path) -> None:
        self.has_removed = True
        super().rename(source, target)

    def remove_tree(self, path: Path) -> None:
        self.has_removed = True
        super().remove_tree(path)


@pytest.mark.parametrize("what", ["trim", "write elsewhere"])
def test_a_log_keeps_a_segment_when_older_ones_are_removed(home: Path, what: str) -> None:
    """All segments with durable names were removed, and the log was to be one whose name no sync
    had covered."""
    files = NotingFiles()
    store = SegmentLogStore(home / "living", files=files)
    store.create(LOG, LogSettings(segment_bytes=1))
    if what == "trim":
        store.write([sized_batch(0, 300), sized_batch(1, 300)], now_ms=0)
    files.synced_first.clear()
    if what == "trim":
        store.trim(LOG, 1)
    else:
        store.write([sized_batch(5, 300)], now_ms=0)
    kept = home / "living" / f"{LOG.topic_id}-{LOG.partition}" / f"{store.bounds(LOG).start_offset:020d}"
    assert files.has_removed
    assert files.synced_first == [kept, kept.parent]
    store.close()
