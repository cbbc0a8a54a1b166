"""What recovery keeps of the bytes that it cuts off a log: whole batches are never destroyed,
whatever damaged the bytes before them."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from kbroker.errors import OperatorError
from kbroker.formats.batches import HEADER
from kbroker.storage.segment.cut import kept_files
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.spi import LogSettings
from kbroker.testing.log_store_model import LOG, joined, read_all, sized_batch
from tests.storage.faulty_files import FaultyFiles
from tests.storage.segment.crashing import crash, reopened

SETTINGS = LogSettings(segment_bytes=1 << 20)
BATCHES = [sized_batch(offset, 5000) for offset in range(40)]
KEPT = joined(BATCHES[:10])


class CountingFiles(FaultyFiles):
    """Counts the bytes that were read from segments."""

    bytes_read = 0

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        self.bytes_read += count
        return count


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def data(directory: Path) -> Path:
    """Data of a log with BATCHES whose process has died."""
    store = SegmentLogStore(directory)
    store.create(LOG, SETTINGS)
    store.write(BATCHES, now_ms=0)
    crash(store)
    return directory / f"{LOG.topic_id}-0" / f"{0:020d}" / "data.ninja"


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


@pytest.mark.parametrize(
    "damage",
    [b"\x5a" * 40, bytes(4096), b"\x02" * 6000],
    ids=["garbage", "a lost page", "what looks like headers"],
)
def test_batches_behind_damage_are_kept_aside(
    directory: Path, data: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    overwrite(data, len(KEPT), damage)
    rest = data.read_bytes()[len(KEPT) :]
    with reopened(directory) as store:
        assert read_all(store) == KEPT
        (kept,) = kept_files(directory)
        assert kept == data.parent.with_name(f"{0:020d}.cut")
        content = kept.read_bytes()
        assert content == rest[: len(content)]
        assert BATCHES[-1].data in content
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.levelno == logging.ERROR
    assert line.message.startswith(f"cut {len(content)} bytes, from byte {len(KEPT)} to the end of {data}")
    assert str(kept) in line.message


def test_a_torn_end_is_cut_without_a_word_of_batches(
    directory: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What any kill -9 may leave."""
    overwrite(data, len(joined(BATCHES)) - 1000, bytes(900) + b"x" * 100)
    with reopened(directory) as store:
        assert read_all(store) == joined(BATCHES[:-1])
    assert not kept_files(directory)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_reserved_space_is_not_searched(directory: Path, data: Path) -> None:
    """Many MiB that were preallocated and never written."""
    with data.open("r+b") as file:
        file.truncate(64 << 20)
    overwrite(data, len(joined(BATCHES)), b"torn")
    files = CountingFiles()
    with reopened(directory, files) as store:
        assert read_all(store) == joined(BATCHES)
    assert files.bytes_read < 3 * len(joined(BATCHES)) + (2 << 16)
    assert not kept_files(directory)


def test_the_search_is_bounded(directory: Path, data: Path) -> None:
    """Bytes that look like headers of large batches everywhere: bytes that would take too long to
    search are kept."""
    size = 600_000
    header = HEADER.pack(50, 300_000, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    overwrite(data, len(KEPT), header * (size // len(header)))
    files = CountingFiles()
    with reopened(directory, files) as store:
        assert read_all(store) == KEPT
    assert files.bytes_read < 10 * (1 << 20)
    assert len(kept_files(directory)) == 1


def test_nothing_kept_is_overwritten_or_read_and_a_drop_removes_it(directory: Path, data: Path) -> None:
    for _ in range(2):
        overwrite(data, len(KEPT), b"\x5a" * 40)
        store = SegmentLogStore(directory)
        store.create(LOG, SETTINGS)
        assert read_all(store) == KEPT
        store.write(BATCHES[10:], now_ms=0)
        crash(store)
    assert [path.name for path in kept_files(directory)] == [f"{0:020d}.1.cut", f"{0:020d}.cut"]
    with reopened(directory) as store:
        assert read_all(store) == joined(BATCHES)
        store.drop(LOG)
        assert not kept_files(directory)


def test_a_full_disk_refuses_the_start_and_changes_nothing(directory: Path, data: Path) -> None:
    overwrite(data, len(KEPT), b"\x5a" * 40)
    before = data.read_bytes()
    files = FaultyFiles()
    files.fail("pwritev", errno.ENOSPC, after=1)
    with pytest.raises(OperatorError, match="no space to keep the bytes after it"):
        SegmentLogStore(directory, files=files)
    assert data.read_bytes() == before
    assert [path.name for path in data.parent.parent.iterdir()] == [data.parent.name]


def test_segments_behind_the_damage_are_kept_as_well(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SegmentLogStore(directory)
    store.create(LOG, LogSettings(segment_bytes=4 * len(BATCHES[0].data)))
    store.write(BATCHES[:10], now_ms=0)
    crash(store)
    log_path = directory / f"{LOG.topic_id}-0"
    overwrite(log_path / f"{0:020d}" / "data.ninja", len(BATCHES[0].data), b"\x5a" * 40)
    with reopened(directory) as store:
        assert read_all(store) == BATCHES[0].data
    kept = [path.read_bytes() for path in kept_files(directory)]
    assert all(any(batch.data in content for content in kept) for batch in BATCHES[2:10])
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 3


def test_a_first_segment_that_is_gone_stops_the_start(directory: Path) -> None:
    """The alternative would be to remove a log with records."""
    store = SegmentLogStore(directory)
    store.create(LOG, LogSettings(segment_bytes=1))
    store.write(BATCHES[:3], now_ms=0)
    crash(store)
    (directory / f"{LOG.topic_id}-0" / f"{0:020d}" / "data.ninja").unlink()
    for _ in range(2):
        with pytest.raises(OperatorError, match="has lost its first segment"):
            SegmentLogStore(directory)
    assert len(kept_files(directory)) == 2
