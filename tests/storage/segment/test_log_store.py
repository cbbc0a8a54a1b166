"""The segment engine beyond the contract: its files, full and broken disks, bounds on handles."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import mmap_ninja.numpy
import pytest

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.segment.log_store import LOG_STORE, SegmentLogStore
from kbroker.storage.spi import LogId, LogSettings
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
from tests.storage.faulty_files import FaultyFiles
from tests.storage.segment.crashing import crash

SMALL = LogSettings(segment_bytes=1)
"""A segment per batch."""


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def store(directory: Path, files: FaultyFiles) -> Iterator[SegmentLogStore]:
    store = SegmentLogStore(directory, files=files)
    yield store
    files.heal()
    if not store.statistics().failed:
        store.close()


def segment_path(directory: Path, base_offset: int, log: LogId = LOG) -> Path:
    return directory / f"{log.topic_id}-{log.partition}" / f"{base_offset:020d}"


# Files


def test_a_segment_is_a_mmap_ninja_array(store: SegmentLogStore, directory: Path) -> None:
    store.create(LOG, LogSettings(segment_bytes=1000))
    written = [sized_batch(offset, 600, timestamp_ms=100 - offset) for offset in range(3)]
    store.write(written, now_ms=0)
    active = mmap_ninja.numpy.open_existing(segment_path(directory, 2))
    assert active.shape == (1000,)
    assert bytes(active[: len(written[2].data)]) == written[2].data
    store.sync()
    sealed = mmap_ninja.numpy.open_existing(segment_path(directory, 0))
    assert bytes(sealed) == written[0].data
    index = mmap_ninja.numpy.open_existing(segment_path(directory, 0) / ".index")
    assert index.tolist() == [[0], [0], [len(written[0].data)], [100]]


def test_sealing_shortens_files_and_keeps_content(store: SegmentLogStore, directory: Path) -> None:
    store.create(LOG, LogSettings(segment_bytes=1 << 20))
    store.write([sized_batch(0, 1000)], now_ms=0)
    assert (segment_path(directory, 0) / "data.ninja").stat().st_size == 1 << 20
    before = store.read(LOG, 0, max_bytes=10_000, end_offset=1)
    store.write([sized_batch(1, 1 << 20)], now_ms=0)
    store.sync()
    assert (segment_path(directory, 0) / "data.ninja").stat().st_size == len(sized_batch(0, 1000).data)
    assert store.statistics().unsealed_segments == 0
    assert b"".join(before) == sized_batch(0, 1000).data
    check_segments(store)


def test_sealing_is_spread_over_syncs(store: SegmentLogStore) -> None:
    store.create(LOG, SMALL)
    store.write([batch(offset) for offset in range(20)], now_ms=0)
    waiting = store.statistics().unsealed_segments
    assert waiting == 19
    store.sync()
    assert 0 < store.statistics().unsealed_segments < waiting
    while store.statistics().unsealed_segments:
        store.sync()
    check_segments(store)


def test_reads_are_views_of_the_mapping(store: SegmentLogStore) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0), batch(1)], now_ms=0)
    (view,) = store.read(LOG, 0, max_bytes=1000, end_offset=10)
    (again,) = store.read(LOG, 0, max_bytes=1000, end_offset=10)
    assert view.obj is again.obj


def test_what_was_written_is_loaded_before_it_is_mapped(
    store: SegmentLogStore, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have left the page cache, and through the mapping the kernel would read zeros around
    it. Loaded once for each mapping."""
    loaded: list[tuple[int, int]] = []
    monkeypatch.setattr(files, "load", lambda path, start, end: loaded.append((start, end)))
    store.create(LOG, LogSettings(segment_bytes=1 << 20))
    written = [sized_batch(offset, 600) for offset in range(3)]
    store.write(written, now_ms=0)
    for offset in (1, 0, 2):
        store.read(LOG, offset, max_bytes=600, end_offset=3)
    assert loaded == [(len(written[0].data), sum(len(each.data) for each in written))]


def test_a_range_that_cannot_be_loaded_is_not_mapped(
    store: SegmentLogStore, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages would end the process with SIGBUS."""

    def fail(path: Path, start: int, end: int) -> None:
        raise OSError(errno.EIO, "damaged")

    monkeypatch.setattr(files, "load", fail)
    store.create(LOG, SETTINGS)
    store.write([sized_batch(0, 600)], now_ms=0)
    with pytest.raises(StoreFailed, match="cannot read"):
        store.read(LOG, 0, max_bytes=600, end_offset=1)


def test_the_disk_space_of_an_empty_log_is_small(store: SegmentLogStore, directory: Path) -> None:
    store.create(LOG, LogSettings(segment_bytes=1 << 30))
    store.write([batch(0)], now_ms=0)
    status = (segment_path(directory, 0) / "data.ninja").stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 <= 1 << 17


# Full disks


@pytest.mark.parametrize("can_allocate", [True, False])
def test_no_space_keeps_nothing_of_the_call(
    store: SegmentLogStore, files: FaultyFiles, directory: Path, can_allocate: bool
) -> None:
    files.can_allocate = can_allocate
    for log in (LOG, OTHER):
        store.create(log, LogSettings(segment_bytes=1 << 20))
        store.write([sized_batch(0, 1000, log=log)], now_ms=0)
    expected = {log: read_all(store, log) for log in (LOG, OTHER)}
    files.fill(after_bytes=60_000 if can_allocate else 150_000)
    with pytest.raises(NoSpace):
        store.write([sized_batch(1, 100_000), sized_batch(1, 100_000, log=OTHER)], now_ms=0)
    assert {log: read_all(store, log) for log in (LOG, OTHER)} == expected
    assert store.bounds(LOG) == store.bounds(OTHER) == (0, 1)
    crash(store)
    again = LOG_STORE.open(directory, {}, 1)
    assert {log: read_all(again, log) for log in (LOG, OTHER)} == expected
    again.close()


@pytest.mark.parametrize("can_allocate", [True, False])
def test_no_space_in_a_new_segment_leaves_no_trace(
    store: SegmentLogStore, files: FaultyFiles, directory: Path, can_allocate: bool
) -> None:
    files.can_allocate = can_allocate
    store.create(LOG, LogSettings(segment_bytes=100_000))
    store.write([sized_batch(0, 60_000)], now_ms=0)
    files.fill(after_bytes=150_000)
    with pytest.raises(NoSpace):
        store.write([sized_batch(1, 30_000), sized_batch(2, 80_000), sized_batch(3, 80_000)], now_ms=0)
    assert sorted(path.name for path in segment_path(directory, 0).parent.iterdir()) == [f"{0:020d}"]
    assert store.bounds(LOG) == (0, 1)
    files.heal()
    written = [sized_batch(1, 90_000), sized_batch(2, 20_000)]
    store.write(written, now_ms=0)
    assert read_all(store) == joined([sized_batch(0, 60_000), *written])
    check_segments(store)


@pytest.mark.parametrize("operation", ["mkdir", "open", "write", "ftruncate", "allocate", "pwritev"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("after", range(6))
def test_no_space_anywhere_in_a_roll(
    store: SegmentLogStore, files: FaultyFiles, operation: str, number: int, after: int
) -> None:
    """Wherever the space ends: either no space was needed there, or the call is refused as a
    whole."""
    store.create(LOG, LogSettings(segment_bytes=300))
    store.create(OTHER, LogSettings(segment_bytes=300))
    store.write([sized_batch(0, 200)], now_ms=0)
    fresh = [sized_batch(1, 200), sized_batch(2, 200), sized_batch(5, 200, log=OTHER)]
    files.fail(operation, number, after=after, times=1)
    try:
        store.write(fresh, now_ms=0)
    except NoSpace:
        assert store.bounds(LOG) == (0, 1)
        assert store.bounds(OTHER) == (0, 0)
        assert store.statistics().refused_writes == 1
        files.heal()
        store.write(fresh, now_ms=0)
    files.heal()
    assert read_all(store) == joined([sized_batch(0, 200), *fresh[:2]])
    assert read_all(store, OTHER) == fresh[2].data
    store.sync()
    check_segments(store)
    check_segments(store, OTHER)


def test_a_short_write_is_continued(store: SegmentLogStore, files: FaultyFiles) -> None:
    store.create(LOG, SETTINGS)
    written = [sized_batch(offset, 500) for offset in range(5)]
    for size in (1, 700, 3, 499):
        files.shorten("pwritev", size)
    store.write(written, now_ms=0)
    assert read_all(store) == joined(written)


def test_a_short_write_on_a_full_disk_is_undone(
    store: SegmentLogStore, files: FaultyFiles, directory: Path
) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    written = [sized_batch(offset, 500) for offset in range(1, 6)]
    files.shorten("pwritev", 1300)
    files.fail("pwritev", errno.ENOSPC, after=1)
    with pytest.raises(NoSpace):
        store.write(written, now_ms=0)
    assert read_all(store) == batch(0).data
    crash(store)
    again = LOG_STORE.open(directory, {}, 1)
    assert read_all(again) == batch(0).data
    again.close()


def test_what_cannot_be_undone_stops_the_store(store: SegmentLogStore, files: FaultyFiles) -> None:
    store.create(LOG, SETTINGS)
    files.shorten("pwritev", 10)
    files.fail("pwritev", errno.ENOSPC, after=1)
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)
    with pytest.raises(StoreFailed):
        store.write([batch(0)], now_ms=0)


def test_reading_and_trimming_go_on_without_space(store: SegmentLogStore, files: FaultyFiles) -> None:
    store.create(LOG, SMALL)
    written = [batch(offset) for offset in range(5)]
    store.write(written, now_ms=0)
    files.fill(after_bytes=0)
    with pytest.raises(NoSpace):
        store.write([batch(5)], now_ms=0)
    with pytest.raises(NoSpace):
        store.create(OTHER, SETTINGS)
    assert list(store.logs()) == [LOG]
    assert read_all(store) == joined(written)
    store.sync()
    store.trim(LOG, 3)
    store.drop(OTHER)
    assert store.bounds(LOG) == (3, 5)
    files.heal()
    store.create(OTHER, SETTINGS)
    store.write([batch(5), batch(0, log=OTHER)], now_ms=0)
    assert store.bounds(LOG) == (3, 6)


def test_no_space_for_an_index_waits(store: SegmentLogStore, files: FaultyFiles) -> None:
    store.create(LOG, SMALL)
    store.write([batch(0), batch(1)], now_ms=0)
    for operation in ("save_rows", "write_atomically"):
        files.fail(operation, errno.ENOSPC)
        store.sync()
        assert store.statistics().unsealed_segments == 1
    store.sync()
    assert store.statistics().unsealed_segments == 0
    assert read_all(store) == joined([batch(0), batch(1)])


@pytest.mark.parametrize("after", range(3))
def test_truncate_without_space_changes_nothing(
    store: SegmentLogStore, files: FaultyFiles, after: int
) -> None:
    store.create(LOG, SETTINGS)
    written = [batch(offset) for offset in range(5)]
    store.write(written, now_ms=0)
    files.fail("write_atomically" if after == 2 else "pwritev", errno.ENOSPC, after=after)
    with pytest.raises(NoSpace):
        store.truncate(LOG, 3)
    assert read_all(store) == joined(written)
    files.heal()
    store.truncate(LOG, 3)
    assert read_all(store) == joined(written[:3])


# Broken disks


@pytest.mark.parametrize("operation", ["pwritev", "allocate", "open", "mkdir", "ftruncate"])
def test_any_other_error_of_a_write_stops_the_store(
    store: SegmentLogStore, files: FaultyFiles, operation: str
) -> None:
    store.create(LOG, SMALL)
    store.write([batch(0)], now_ms=0)
    files.fail(operation, errno.EIO)
    with pytest.raises(StoreFailed, match=os.strerror(errno.EIO)):
        store.write([batch(1)], now_ms=0)
    for again in (
        lambda: store.write([batch(1)], now_ms=0),
        store.sync,
        lambda: store.trim(LOG, 1),
        lambda: store.create(OTHER, SMALL),
    ):
        with pytest.raises(StoreFailed):
            again()
    assert read_all(store) == batch(0).data
    assert store.statistics().failed


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("logs", [1, 3])
@pytest.mark.parametrize("has_syncfs", [True, False])
def test_an_error_of_sync_stops_the_store_for_ever(
    directory: Path, files: FaultyFiles, number: int, logs: int, has_syncfs: bool
) -> None:  # fmt: skip
    files.has_syncfs = has_syncfs
    store = SegmentLogStore(directory, files=files)
    for partition in range(logs):
        store.create(LogId(TOPIC, partition), SETTINGS)
    store.write([batch(0, log=LogId(TOPIC, partition)) for partition in range(logs)], now_ms=0)
    operation = "syncfs" if store._unsynced.use_syncfs and logs > 1 else "fdatasync"
    files.fail(operation, number)
    with pytest.raises(StoreFailed):
        store.sync()
    with pytest.raises(StoreFailed):
        store.sync()
    with pytest.raises(StoreFailed):
        store.write([batch(1)], now_ms=0)
    store.close()
    assert not (directory / "clean-shutdown").exists()


def test_sync_touches_what_is_dirty_and_nothing_else(store: SegmentLogStore, files: FaultyFiles) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    files.counts.clear()
    store.sync()
    assert files.counts["fdatasync"] == 1
    assert store.statistics().dirty_files == 0
    store.sync()
    assert files.counts["fdatasync"] + files.counts["syncfs"] == 1


def test_a_write_during_a_sync_waits_for_the_next_one(
    store: SegmentLogStore, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may overlap with the durability `os`: the second write must not be treated as synced."""
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    real = files.fdatasync

    def write_meanwhile(fd: int) -> None:
        monkeypatch.undo()
        real(fd)
        store.write([batch(1)], now_ms=0)

    monkeypatch.setattr(files, "fdatasync", write_meanwhile)
    store.sync()
    assert store.statistics().dirty_files == 1
    files.counts.clear()
    store.sync()
    assert files.counts["fdatasync"] == 1


@pytest.mark.parametrize("has_syncfs", [True, False])
def test_new_segments_have_their_names_synced(directory: Path, files: FaultyFiles, has_syncfs: bool) -> None:
    files.has_syncfs = has_syncfs
    store = SegmentLogStore(directory, files=files)
    store.create(LOG, SMALL)
    store.write([batch(0)], now_ms=0)
    store.sync()
    store.write([batch(1)], now_ms=0)
    files.counts.clear()
    files.fail("save_rows", errno.ENOSPC)  # sealing would sync directories as well
    store.sync()
    if store._unsynced.use_syncfs:
        assert files.counts["syncfs"] == 1
    else:
        assert files.counts["fsync_dir"] == 2
        assert files.counts["fdatasync"] == 3  # the data, `follows`, and sealing's own
    store.close()


# Bounds on handles


def test_open_files_and_maps_are_bounded(directory: Path) -> None:
    store = SegmentLogStore(directory, {"max_maps": "5", "max_open_files": "5"})
    logs = [LogId(TOPIC, partition) for partition in range(40)]
    for log in logs:
        store.create(log, SMALL)
    views = []
    for offset in range(3):
        for log in logs:
            store.write([batch(offset, log=log)], now_ms=0)
            store.sync()
            views += store.read(log, 0, max_bytes=1 << 20, end_offset=10)
    statistics = store.statistics()
    assert statistics.open_maps <= 5
    assert statistics.open_files <= 6
    for log in logs:
        assert read_all(store, log) == joined(batch(offset, log=log) for offset in range(3))
        check_segments(store, log)
    assert len(views) == 40 * 6
    store.close()
    assert b"".join(views[:6]) == joined(batch(0, log=log) for log in logs[:6])


def test_closing_gives_everything_back(directory: Path) -> None:
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    store = SegmentLogStore(directory)
    store.create(LOG, SMALL)
    store.write([batch(offset) for offset in range(10)], now_ms=0)
    store.sync()
    read_all(store)
    store.close()
    after = set(os.listdir("/proc/self/fd")) if before else set()
    assert len(after) == len(before)


# Options and odds


@pytest.mark.parametrize(
    "options", [{"speed": "high"}, {"sync": "never"}, {"max_maps": "-1"}, {"max_open_files": "many"}]
)
def test_wrong_options_are_the_operators_business(directory: Path, options: dict[str, str]) -> None:
    with pytest.raises(OperatorError, match=next(iter(options))):
        SegmentLogStore(directory, options)


@pytest.mark.parametrize("operation", ["open", "listdir", "stat", "preadv", "fsync_dir"])
def test_an_error_while_opening_is_one_line(directory: Path, files: FaultyFiles, operation: str) -> None:
    store = SegmentLogStore(directory)
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    if operation in ("preadv", "fsync_dir"):
        crash(store)
    else:
        store.close()
    files.has_syncfs = False
    files.fail(operation, errno.EIO)
    with pytest.raises(OperatorError, match=os.strerror(errno.EIO)):
        SegmentLogStore(directory, files=files)


def test_foreign_files_are_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "notes").write_text("mine")
    store = SegmentLogStore(directory)
    assert list(store.logs()) == []
    store.close()
    assert (directory / "notes").read_text() == "mine"


def test_statistics_count(store: SegmentLogStore) -> None:
    store.create(LOG, SMALL)
    store.write([batch(0), batch(1)], now_ms=0)
    store.sync()
    statistics = store.statistics()
    assert (statistics.logs, statistics.segments, statistics.writes, statistics.syncs) == (1, 2, 1, 1)
    assert statistics.bytes == statistics.written_bytes == len(joined([batch(0), batch(1)]))
