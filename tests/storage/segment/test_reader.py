"""A reader on the segment engine's files: beside a live writer, over torn ends, while segments are
added and removed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.formats.batches import crc_is_valid, iter_headers
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.segment.reader import SegmentLogReader
from kbroker.storage.spi import LogSettings
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    OTHER,
    batch,
    check_segments,
    everything,
    joined,
    read_all,
)

SETTINGS = LogSettings(segment_bytes=1 << 16)
SMALL = LogSettings(segment_bytes=1)
"""A segment per batch."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def store(directory: Path) -> Iterator[SegmentLogStore]:
    store = SegmentLogStore(directory)
    yield store
    store.close()


@pytest.fixture
def reader(directory: Path) -> Iterator[SegmentLogReader]:
    reader = SegmentLogReader(directory)
    yield reader
    reader.close()


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{LOG.topic_id}-{LOG.partition}" / f"{base_offset:020d}"


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def test_no_directory_no_logs(reader: SegmentLogReader) -> None:
    assert list(reader.logs()) == []
    with pytest.raises(KeyError):
        reader.bounds(LOG)


def test_a_write_under_way_is_not_seen(
    store: SegmentLogStore, reader: SegmentLogReader, directory: Path
) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    data, at = batch(1).data, len(batch(0).data)
    for written in range(1, len(data)):
        overwrite(segment_path(directory, 0) / "data.ninja", at, bytes(data[:written]))
        assert reader.bounds(LOG) == (0, 2 if not any(data[written:]) else 1), (
            f"{written} of {len(data)} bytes"
        )
    overwrite(segment_path(directory, 0) / "data.ninja", at, bytes(len(data)))
    store.write([batch(1)], now_ms=0)
    assert read_all(reader) == joined([batch(0), batch(1)])


def test_a_torn_end_is_not_seen_and_not_changed(
    store: SegmentLogStore, reader: SegmentLogReader, directory: Path
) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0), batch(1)], now_ms=0)
    path = segment_path(directory, 0) / "data.ninja"
    overwrite(path, len(batch(0).data) + 70, b"\xee")
    before = path.read_bytes()
    assert read_all(reader) == batch(0).data
    assert path.read_bytes() == before


def test_sealing_goes_unnoticed(store: SegmentLogStore, reader: SegmentLogReader) -> None:
    store.create(LOG, SMALL)
    store.write([batch(offset, timestamp_ms=offset) for offset in range(6)], now_ms=0)
    views = reader.read(LOG, 0, max_bytes=EVERYTHING, end_offset=6)
    before = everything(reader, LOG)
    while store.statistics().unsealed_segments:
        store.sync()
        assert everything(reader, LOG) == before
        check_segments(reader)
    assert b"".join(views) == joined(batch(offset, timestamp_ms=offset) for offset in range(6))


def test_a_new_segment_waits_for_the_end_of_the_one_before(
    store: SegmentLogStore, reader: SegmentLogReader, directory: Path
) -> None:
    """write() creates new segments first: until the last bytes of the old one are written, readers
    must not see a gap."""
    store.create(LOG, LogSettings(segment_bytes=len(joined([batch(0), batch(1)]))))
    written = [batch(offset) for offset in range(3)]
    store.write(written, now_ms=0)
    path = segment_path(directory, 0) / "data.ninja"
    overwrite(path, len(batch(0).data), bytes(len(batch(1).data)))
    assert read_all(reader) == batch(0).data
    assert reader.bounds(LOG) == (0, 1)
    overwrite(path, len(batch(0).data), bytes(batch(1).data))
    assert read_all(reader) == joined(written)


def test_a_segment_without_data_is_not_there_yet(
    store: SegmentLogStore, reader: SegmentLogReader, directory: Path
) -> None:
    store.create(LOG, SETTINGS)
    store.write([batch(0)], now_ms=0)
    segment_path(directory, 1).mkdir()
    assert reader.bounds(LOG) == (0, 1)
    (directory / f"{OTHER.topic_id}-{OTHER.partition}").mkdir()
    assert list(reader.logs()) == [LOG]
    with pytest.raises(KeyError):
        reader.bounds(OTHER)
    segment_path(directory, 1).rmdir()
    shutil.rmtree(directory / f"{OTHER.topic_id}-{OTHER.partition}")


def test_a_recreated_log_is_another_one(store: SegmentLogStore, reader: SegmentLogReader) -> None:
    for value in (b"first", b"second and longer"):
        store.create(LOG, SETTINGS)
        store.write([batch(0, value=value), batch(1, value=value)], now_ms=0)
        assert read_all(reader) == joined([batch(0, value=value), batch(1, value=value)])
        store.drop(LOG)


def test_a_segment_that_grows_is_mapped_again(store: SegmentLogStore, reader: SegmentLogReader) -> None:
    store.create(LOG, LogSettings(segment_bytes=200))
    store.write([batch(0)], now_ms=0)
    assert read_all(reader) == batch(0).data
    store.create(LOG, SETTINGS)
    written = [batch(0), *(batch(offset) for offset in range(1, 100))]
    store.write(written[1:], now_ms=0)
    assert read_all(reader) == joined(written)
    assert len(reader.segments(LOG)) == 1


def test_a_bad_index_is_read_over(store: SegmentLogStore, reader: SegmentLogReader, directory: Path) -> None:
    store.create(LOG, SMALL)
    store.write([batch(0), batch(1)], now_ms=0)
    store.sync()
    index = segment_path(directory, 0) / ".index" / "data.ninja"
    index.unlink()  # not shortened: the store has it mapped
    assert read_all(reader) == joined([batch(0), batch(1)])
    assert not index.exists()


WRITER = """
import sys
from pathlib import Path
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.spi import LogSettings
from kbroker.testing.log_store_model import LOG, batch
store = SegmentLogStore(Path(sys.argv[1]))
store.create(LOG, LogSettings(segment_bytes=2000))
store.write([batch(0)], now_ms=0)
print("ready", flush=True)
for offset in range(1, 800):
    store.write([batch(offset)], now_ms=0)
    if offset % 10 == 0:
        store.sync()
    if offset % 50 == 0:
        store.trim(LOG, offset - 60)
store.close()
"""


def test_reading_beside_writing_sealing_and_retention(directory: Path, reader: SegmentLogReader) -> None:
    """The reader's records are whole and without gaps, from the log's start at that moment."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        end_offset, rounds = 0, 0
        while end_offset < 800:
            assert writer.poll() in (None, 0)
            bounds = reader.bounds(LOG)
            assert bounds.end_offset >= end_offset
            end_offset = bounds.end_offset
            views = reader.read(LOG, bounds.start_offset, max_bytes=EVERYTHING, end_offset=EVERYTHING)
            offsets = []
            for view in views:
                for position, header in iter_headers(view):
                    assert crc_is_valid(view, position, header)
                    offsets.append(header.base_offset)
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
            assert offsets[0] >= bounds.start_offset
            assert offsets[-1] >= end_offset - 1
            rounds += 1
        assert rounds > 3


def test_statistics(store: SegmentLogStore, reader: SegmentLogReader) -> None:
    store.create(LOG, SMALL)
    store.write([batch(0), batch(1)], now_ms=0)
    read_all(reader)
    assert (reader.statistics().logs, reader.statistics().segments, reader.statistics().maps) == (1, 2, 2)
