"""Checkpoints of unsealed segments: they save reading after a crash, and however they are damaged,
no record is lost or invented."""

from __future__ import annotations

import errno
import logging
import random
import shutil
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kbroker.errors import StoreFailed
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.spi import LogId, LogSettings
from kbroker.testing.log_store_model import LOG, OTHER, TOPIC, check_segments, joined, read_all, sized_batch
from tests.storage.faulty_files import FaultyFiles
from tests.storage.segment import crashing as segment_crash
from tests.storage.segment.crashing import crash

SETTINGS = LogSettings(segment_bytes=1 << 20)
BATCHES = [sized_batch(offset, 5000) for offset in range(8)]
ALWAYS = {"checkpoint_bytes": "0"}
SEVERAL = [LogId(TOPIC, partition) for partition in range(8)]


class CountingFiles(FaultyFiles):
    """Counts the bytes that were read from segments, up to byte `end`. Behind the batches, a start
    also looks at space that tmpfs cannot tell from data."""

    def __init__(self, end: int = sys.maxsize) -> None:
        super().__init__()
        self.bytes_read = 0
        self._end = end

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        self.bytes_read += max(min(position + count, self._end) - position, 0)
        return count


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def reopened(directory: Path, files: FaultyFiles | None = None) -> AbstractContextManager[SegmentLogStore]:
    return segment_crash.reopened(directory, files, ALWAYS)


def synced(
    directory: Path, files: FaultyFiles | None = None, options: dict[str, str] = ALWAYS
) -> SegmentLogStore:
    """BATCHES in LOG, with the checkpoint written in several pieces."""
    store = SegmentLogStore(directory, options, files=files)
    store.create(LOG, SETTINGS)
    for start in range(0, len(BATCHES), 3):
        store.write(BATCHES[start : start + 3], now_ms=0)
        store.sync()
    return store


def segment_path(directory: Path, base_offset: int = 0, log: LogId = LOG) -> Path:
    return directory / f"{log.topic_id}-{log.partition}" / f"{base_offset:020d}"


def checkpoint_path(directory: Path, base_offset: int = 0, log: LogId = LOG) -> Path:
    return segment_path(directory, base_offset, log) / "checkpoint"


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


# What they save


def test_a_start_after_a_crash_reads_from_the_last_batch_of_the_checkpoint(directory: Path) -> None:
    store = synced(directory)
    store.write([sized_batch(8, 700)], now_ms=0)
    crash(store)
    expected = joined(BATCHES) + sized_batch(8, 700).data
    files = CountingFiles(end=len(expected))
    with reopened(directory, files) as store:
        assert read_all(store) == expected
        check_segments(store)
    assert len(BATCHES[-1].data) < files.bytes_read < 3 * 5000


def test_checkpoints_are_written_when_the_rest_outgrows_the_budget(directory: Path) -> None:
    store = SegmentLogStore(directory, {"checkpoint_bytes": "20000"})
    for log in SEVERAL:
        store.create(log, SETTINGS)
    chooser = random.Random(1)
    ends = dict.fromkeys(SEVERAL, 0)
    for _ in range(60):
        for log in chooser.sample(SEVERAL, 2):
            store.write([sized_batch(ends[log], 1500, log=log)], now_ms=0)
            ends[log] += 1
        store.sync()
        assert store.statistics().unrecorded_bytes <= 20_000
    assert all(checkpoint_path(directory, 0, log).exists() for log in SEVERAL)
    crash(store)
    counting = CountingFiles()
    with reopened(directory, counting) as store:
        for log in SEVERAL:
            assert read_all(store, log) == joined(
                sized_batch(offset, 1500, log=log) for offset in range(ends[log])
            )
    assert counting.bytes_read < sum(ends.values()) * 1500 / 2


def test_below_the_budget_a_sync_does_nothing_more(directory: Path) -> None:
    files = FaultyFiles()
    store = synced(directory, files, {})
    assert store.statistics().unrecorded_bytes == len(joined(BATCHES))
    assert not checkpoint_path(directory).exists()
    store.write([sized_batch(8, 700)], now_ms=0)
    before = files.counts.copy()
    store.sync()
    assert files.counts - before == {"fdatasync": 1}
    store.close()


def test_no_sync_is_made_for_a_checkpoint(directory: Path) -> None:
    files = FaultyFiles()
    files.has_syncfs = False
    store = synced(directory, files)
    store.write([sized_batch(8, 700)], now_ms=0)
    before = files.counts.copy()
    store.sync()
    assert files.counts - before == {"fdatasync": 1, "open": 1, "pwritev": 1}
    store.close()


def test_a_checkpoint_goes_on_after_a_clean_stop(directory: Path) -> None:
    synced(directory).close()
    before = checkpoint_path(directory).read_bytes()
    store = SegmentLogStore(directory, ALWAYS)
    store.create(LOG, SETTINGS)
    store.write([sized_batch(8, 700)], now_ms=0)
    store.sync()
    assert checkpoint_path(directory).read_bytes()[: len(before)] == before
    crash(store)
    expected = joined(BATCHES) + sized_batch(8, 700).data
    files = CountingFiles(end=len(expected))
    with reopened(directory, files) as store:
        assert read_all(store) == expected
    assert files.bytes_read < 5000


def test_what_a_start_had_to_read_is_not_read_by_the_next(directory: Path) -> None:
    crash(synced(directory, options={}))
    crash(SegmentLogStore(directory, ALWAYS))
    files = CountingFiles()
    with reopened(directory, files) as store:
        assert read_all(store) == joined(BATCHES)
    assert files.bytes_read < 2 * 5000


# What becomes of them


def test_every_torn_checkpoint_costs_reading_only(tmp_path: Path) -> None:
    store = synced(tmp_path / "original")
    crash(store)
    size = checkpoint_path(tmp_path / "original").stat().st_size
    for kept in range(size):
        directory = tmp_path / "copy"
        shutil.copytree(tmp_path / "original", directory)
        with checkpoint_path(directory).open("r+b") as file:
            file.truncate(kept)
        go_on(directory)
        shutil.rmtree(directory)


def test_every_damaged_byte_of_a_checkpoint_costs_reading_only(tmp_path: Path) -> None:
    crash(synced(tmp_path / "original"))
    content = checkpoint_path(tmp_path / "original").read_bytes()
    for position, byte in enumerate(content):
        directory = tmp_path / "copy"
        shutil.copytree(tmp_path / "original", directory)
        overwrite(checkpoint_path(directory), position, bytes([byte ^ 0x10]))
        go_on(directory)
        shutil.rmtree(directory)


def go_on(directory: Path) -> None:
    """All batches are there, and later writes survive a crash as well."""
    store = SegmentLogStore(directory, ALWAYS)
    assert read_all(store) == joined(BATCHES)
    store.create(LOG, SETTINGS)
    store.write([sized_batch(8, 300)], now_ms=0)
    store.sync()
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == joined(BATCHES) + sized_batch(8, 300).data


def test_a_piece_behind_a_torn_one_never_counts_again(directory: Path) -> None:
    """When the torn piece is rewritten byte for byte, the pieces after the old one must not become
    valid again: other batches are in the log by now."""
    crash(synced(directory))
    content = checkpoint_path(directory).read_bytes()
    end = len(content) - (8 + 2 * 32)
    overwrite(checkpoint_path(directory), end - (8 + 3 * 32) + 4, bytes(4))
    data = segment_path(directory) / "data.ninja"
    batch_6 = len(joined(BATCHES[:6]))
    overwrite(data, batch_6 + 70, b"\xee")
    store = SegmentLogStore(directory, ALWAYS)
    assert store.bounds(LOG).end_offset == 6
    assert checkpoint_path(directory).read_bytes() == content[:end]
    store.write(BATCHES[6:], now_ms=0)
    crash(store)
    overwrite(data, batch_6, bytes(len(BATCHES[6].data)))
    with reopened(directory) as store:
        assert read_all(store) == joined(BATCHES[:6])


@pytest.mark.parametrize("damage", ["zeros", "garbage", "other batches"])
def test_data_that_does_not_fit_its_checkpoint_is_left_as_it_is(
    directory: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was on disk once, so something other than a crash changed it: nothing is cut, and new
    records are written after it."""
    crash(synced(directory))
    data = segment_path(directory) / "data.ninja"
    size = len(joined(BATCHES))
    others = joined(sized_batch(offset, 3000) for offset in range(5))
    kept = {"zeros": joined(BATCHES[:2]), "garbage": joined(BATCHES[:7]), "other batches": others}
    content = kept[damage].ljust(size, b"\x5a" if damage == "garbage" else b"\0")
    overwrite(data, 0, content)
    store = SegmentLogStore(directory, ALWAYS)
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.levelno == logging.ERROR
    assert f"{data} is damaged at byte {len(joined(BATCHES[:7]))}" in line.message
    store.create(LOG, SETTINGS)
    store.write([sized_batch(8, 700)], now_ms=0)
    store.sync()
    crash(store)
    with reopened(directory) as store:
        assert store.bounds(LOG) == (0, 9)
        assert read_all(store) == content + sized_batch(8, 700).data
        assert data.read_bytes()[:size] == content


def test_a_file_that_is_shorter_than_its_checkpoint_is_read_as_a_whole(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crash(synced(directory))
    kept = joined(BATCHES[:2])
    with (segment_path(directory) / "data.ninja").open("r+b") as file:
        file.truncate(len(kept) + 100)
    with reopened(directory) as store:
        assert read_all(store) == kept
    assert [record.levelno for record in caplog.records if "was cut from outside" in record.message] == [
        logging.ERROR
    ]
    with reopened(directory) as store:
        assert read_all(store) == kept


def test_a_truncated_segment_begins_a_new_checkpoint(directory: Path) -> None:
    """Batches of the same size and time replace others: only their bytes differ."""
    store = synced(directory)
    old = checkpoint_path(directory).read_bytes()
    store.truncate(LOG, 3)
    assert not checkpoint_path(directory).exists()
    others = [sized_batch(offset, 5000, log=OTHER)._replace(log=LOG) for offset in range(3, 6)]
    store.write(others, now_ms=0)
    store.sync()
    assert len(checkpoint_path(directory).read_bytes()) < len(old)
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == joined([*BATCHES[:3], *others])


def test_a_recreated_log_begins_a_new_checkpoint(directory: Path) -> None:
    store = synced(directory)
    store.drop(LOG)
    store.create(LOG, SETTINGS)
    store.write([sized_batch(0, 900)], now_ms=0)
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == sized_batch(0, 900).data


def test_a_sealed_segment_has_none(directory: Path) -> None:
    store = synced(directory)
    assert checkpoint_path(directory).exists()
    store.create(LOG, LogSettings(segment_bytes=1))
    store.write([sized_batch(8, 900)], now_ms=0)
    store.sync()
    assert sorted(
        path.name for path in segment_path(directory).iterdir() if not path.name.endswith(".ninja")
    ) == [".index"]
    assert checkpoint_path(directory, 8).exists()
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == joined(BATCHES) + sized_batch(8, 900).data


# Errors


def test_a_full_disk_only_delays_a_checkpoint(directory: Path) -> None:
    files = FaultyFiles()
    store = synced(directory, files)
    before = checkpoint_path(directory).read_bytes()
    store.write([sized_batch(8, 900)], now_ms=0)
    files.shorten("pwritev", 10)
    files.fail("pwritev", errno.ENOSPC, after=1)
    store.sync()
    assert files.failed == 1
    assert checkpoint_path(directory).stat().st_size == len(before) + 10
    assert store.statistics().unrecorded_bytes == len(sized_batch(8, 900).data)
    store.sync()
    assert store.statistics().unrecorded_bytes == 0
    crash(store)
    counting = CountingFiles()
    with reopened(directory, counting) as store:
        assert read_all(store) == joined(BATCHES) + sized_batch(8, 900).data
    assert counting.bytes_read < 5000


def test_any_other_error_stops_the_store(directory: Path) -> None:
    files = FaultyFiles()
    store = synced(directory, files)
    store.write([sized_batch(8, 900)], now_ms=0)
    files.fail("pwritev", errno.EIO)
    with pytest.raises(StoreFailed, match="cannot write a checkpoint"):
        store.sync()
    store.close()


def test_what_a_failed_sync_leaves_is_not_recorded(directory: Path) -> None:
    files = FaultyFiles()
    store = synced(directory, files)
    before = checkpoint_path(directory).read_bytes()
    store.write([sized_batch(8, 900)], now_ms=0)
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(StoreFailed):
        store.sync()
    store.close()
    assert checkpoint_path(directory).read_bytes() == before


def test_a_write_during_a_sync_is_not_recorded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles()
    store = synced(directory, files)
    store.write([sized_batch(8, 900)], now_ms=0)
    original = files.fdatasync

    def slow(fd: int) -> None:
        original(fd)
        store.write([sized_batch(9, 800)], now_ms=0)

    monkeypatch.setattr(files, "fdatasync", slow)
    store.sync()
    monkeypatch.undo()
    assert store.statistics().unrecorded_bytes == 0
    before = checkpoint_path(directory).stat().st_size
    store.sync()
    assert checkpoint_path(directory).stat().st_size > before
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == joined([*BATCHES, sized_batch(8, 900), sized_batch(9, 800)])
