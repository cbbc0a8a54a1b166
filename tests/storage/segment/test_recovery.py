"""How the segment engine recovers from a crash: torn tails, unfinished removals, missing and wrong
indexes."""

from __future__ import annotations

import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.errors import OperatorError
from kbroker.formats.batches import iter_headers
from kbroker.storage.segment.log_store import LOG_STORE, SegmentLogStore
from kbroker.storage.spi import LogId, LogSettings
from kbroker.testing.log_store_model import (
    LOG,
    OTHER,
    TOPIC,
    batch,
    check_segments,
    joined,
    read_all,
    sized_batch,
)
from tests.storage.faulty_files import Crashed, FaultyFiles
from tests.storage.segment.crashing import crash, reopened

SMALL = LogSettings(segment_bytes=1)
"""A segment per batch."""
SETTINGS = LogSettings(segment_bytes=1 << 16)
THREE = [batch(0, 2), batch(2, 3), batch(5, 1)]
TWO_SEGMENTS = LogSettings(segment_bytes=len(joined(THREE[:2])))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def segment_path(directory: Path, base_offset: int, log: LogId = LOG) -> Path:
    return directory / f"{log.topic_id}-{log.partition}" / f"{base_offset:020d}"


def written(directory: Path, settings: LogSettings = SETTINGS) -> SegmentLogStore:
    store = SegmentLogStore(directory)
    store.create(LOG, settings)
    store.write(THREE, now_ms=0)
    return store


def overwrite(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


# Torn tails


def test_every_torn_end_of_the_last_batch_is_cut(tmp_path: Path) -> None:
    crash(written(tmp_path / "original"))
    kept = joined(THREE[:2])
    size = len(THREE[2].data)
    for torn in range(size):
        directory = tmp_path / "copy"
        shutil.copytree(tmp_path / "original", directory)
        overwrite(segment_path(directory, 0) / "data.ninja", len(kept) + torn, bytes(size - torn))
        expected = joined(THREE) if not any(THREE[2].data[torn:]) else kept
        with reopened(directory) as store:
            assert read_all(store) == expected, f"{torn} of {size} bytes written"
            assert store.bounds(LOG).end_offset == (6 if expected != kept else 5)
        shutil.rmtree(directory)


def test_what_was_cut_does_not_come_back(directory: Path) -> None:
    """After a shorter batch has overwritten a torn one, the rest of the torn one must not look like
    batches."""
    store = SegmentLogStore(directory)
    store.create(LOG, SETTINGS)
    inner = joined(batch(offset) for offset in range(10, 20))
    store.write([batch(0), batch(1, value=bytes(200) + inner)], now_ms=0)
    crash(store)
    overwrite(segment_path(directory, 0) / "data.ninja", len(batch(0).data) + 17, b"\0\0\0\0")
    crash(store := SegmentLogStore(directory))
    data = (segment_path(directory, 0) / "data.ninja").read_bytes()
    assert data.rstrip(b"\0") == bytes(batch(0).data).rstrip(b"\0")
    with reopened(directory) as store:
        store.create(LOG, SETTINGS)
        store.write([batch(1)], now_ms=0)
        assert read_all(store) == joined([batch(0), batch(1)])


@pytest.mark.parametrize("position", [0, 8, 16, 17, 23, 60, 70])
def test_a_damaged_batch_ends_the_log(
    directory: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    crash(written(directory))
    at = len(THREE[0].data) + position
    overwrite(segment_path(directory, 0) / "data.ninja", at, b"\xee")
    with caplog.at_level(logging.INFO), reopened(directory) as store:
        assert read_all(store) == THREE[0].data
        assert store.bounds(LOG) == (0, 2)
        check_segments(store)
    assert any("whole batches among them" in record.message for record in caplog.records)
    assert any("was not shut down cleanly" in record.message for record in caplog.records)


def test_offsets_that_fall_end_the_log(directory: Path) -> None:
    crash(written(directory))
    overwrite(segment_path(directory, 0) / "data.ninja", len(joined(THREE[:2])), bytes(8))
    with reopened(directory) as store:
        assert read_all(store) == joined(THREE[:2])


@pytest.mark.parametrize("size", [0, 61, 4096])
def test_a_file_that_lost_its_length(directory: Path, size: int) -> None:
    """After a power cut the file may be as short as when it was created."""
    crash(written(directory))
    with (segment_path(directory, 0) / "data.ninja").open("r+b") as file:
        file.truncate(size)
    with reopened(directory) as store:
        expected = joined(THREE) if size == 4096 else b""
        assert read_all(store) == expected
        store.create(LOG, SETTINGS)
        store.write([batch(6)], now_ms=0)
        assert read_all(store) == expected + batch(6).data
    with reopened(directory) as store:
        assert read_all(store) == expected + batch(6).data


def test_large_batches_are_read_again(directory: Path) -> None:
    store = SegmentLogStore(directory)
    store.create(LOG, SETTINGS)
    large = [
        sized_batch(0, 3_000_000),
        *(batch(offset) for offset in range(1, 3000)),
        sized_batch(3000, 9_000_000),
        batch(3001),
    ]
    store.write(large, now_ms=0)
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == joined(large)


def test_what_was_recovered_is_synced_before_open_returns(directory: Path) -> None:
    """The process that wrote it did not live to sync it, and from now on readers see it."""
    crash(written(directory, SMALL))
    files = FaultyFiles()
    files.has_syncfs = False
    with reopened(directory, files) as store:
        assert files.counts["fdatasync"] >= 3
        assert files.counts["fsync_dir"] >= 3
        assert store.statistics().dirty_files == 0


# Closed in good order


def test_after_a_clean_close_nothing_is_read_again(directory: Path) -> None:
    written(directory, SMALL).close()
    files = FaultyFiles()
    with reopened(directory, files) as store:
        assert files.counts["preadv"] == files.counts["fdatasync"] == files.counts["syncfs"] == 0
        assert not (directory / "clean-shutdown").exists()
        assert read_all(store) == joined(THREE)
        check_segments(store)


@pytest.mark.parametrize("damage", [b"", b"kbroker", b"\xff" * 40])
def test_a_damaged_marker_is_not_believed(directory: Path, damage: bytes) -> None:
    written(directory).close()
    content = (directory / "clean-shutdown").read_bytes()
    (directory / "clean-shutdown").write_bytes(damage and content[: -len(damage)] + damage)
    with reopened(directory) as store:
        assert read_all(store) == joined(THREE)


def test_the_marker_counts_once(directory: Path) -> None:
    written(directory).close()
    store = SegmentLogStore(directory)
    store.create(LOG, SETTINGS)
    store.write([batch(6)], now_ms=0)
    crash(store)
    with reopened(directory) as again:
        assert read_all(again) == joined([*THREE, batch(6)])


def test_a_full_disk_at_close_only_costs_time(directory: Path) -> None:
    files = FaultyFiles()
    store = SegmentLogStore(directory, files=files)
    store.create(LOG, SETTINGS)
    store.write(THREE, now_ms=0)
    files.fill(after_bytes=0)
    store.close()
    with reopened(directory) as again:
        assert read_all(again) == joined(THREE)


def test_time_rolls_go_on_after_restart(directory: Path) -> None:
    store = SegmentLogStore(directory)
    store.create(LOG, LogSettings(segment_ms=1000))
    store.write([batch(0, timestamp_ms=5000)], now_ms=5000)
    store.close()
    with reopened(directory) as store:
        store.create(LOG, LogSettings(segment_ms=1000))
        store.write([batch(1, timestamp_ms=5900)], now_ms=5900)
        assert len(store.segments(LOG)) == 1
        store.write([batch(2, timestamp_ms=6001)], now_ms=5900)
        assert len(store.segments(LOG)) == 2


# Segments that were never on disk


def test_segments_behind_lost_bytes_are_removed(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A power cut may keep a later file and lose an earlier one; the recovered log must be a
    prefix."""
    crash(written(directory, TWO_SEGMENTS))
    assert segment_path(directory, 5).exists()
    overwrite(segment_path(directory, 0) / "data.ninja", len(THREE[0].data), bytes(len(THREE[1].data)))
    with reopened(directory) as store:
        assert read_all(store) == THREE[0].data
        assert store.bounds(LOG) == (0, 2)
    assert not segment_path(directory, 5).exists()
    assert any("was not synced" in record.message for record in caplog.records)


def test_holes_between_segments_are_no_loss(directory: Path) -> None:
    store = SegmentLogStore(directory)
    store.create(LOG, SMALL)
    batches = [batch(0), batch(10), batch(20)]
    store.write(batches, now_ms=0)
    crash(store)
    with reopened(directory) as store:
        assert read_all(store) == joined(batches)


def test_a_segment_without_data_was_not_finished(directory: Path) -> None:
    crash(written(directory, SMALL))
    (segment_path(directory, 5) / "data.ninja").unlink()
    with reopened(directory) as store:
        assert read_all(store) == joined(THREE[:2])


def test_a_log_without_segments_was_not_finished(directory: Path) -> None:
    crash(written(directory))
    (segment_path(directory, 0) / "data.ninja").unlink()
    with reopened(directory) as store:
        assert list(store.logs()) == []
        store.create(LOG, SETTINGS)
        assert store.bounds(LOG) == (0, 0)


def test_damage_before_complete_segments_is_not_repaired_silently(directory: Path) -> None:
    store = written(directory, SMALL)
    store.sync()
    store.close()
    (segment_path(directory, 0) / "data.ninja").unlink()
    with pytest.raises(OperatorError, match="damaged, yet later segments are complete"):
        SegmentLogStore(directory)


def test_unfinished_removals_are_finished(directory: Path) -> None:
    crash(written(directory, SMALL))
    log_path = segment_path(directory, 0).parent
    segment_path(directory, 0).rename(log_path / f"{0:020d}.deleted")
    shutil.copytree(log_path, directory / f"{OTHER.topic_id}-1.deleted")
    (log_path / f"{5:020d}.data.tmp").write_bytes(b"half a copy")
    with reopened(directory) as store:
        assert list(store.logs()) == [LOG]
        assert store.bounds(LOG) == (2, 6)
    assert sorted(path.name for path in log_path.iterdir()) == [f"{2:020d}", f"{5:020d}"]
    assert sorted(path.name for path in directory.iterdir()) == [log_path.name, "clean-shutdown"]


# Stored indexes


def no_index(index: Path) -> None:
    shutil.rmtree(index)


def short_index(index: Path) -> None:
    with (index / "data.ninja").open("r+b") as file:
        file.truncate(8)


def other_rows(index: Path) -> None:
    (index / "shape.ninja").write_bytes(bytes([3]) + bytes(15))


def other_type(index: Path) -> None:
    (index / "dtype.ninja").write_bytes(b"float64")


def other_end(index: Path) -> None:
    overwrite(index / "data.ninja", 16, b"\x07")


@pytest.mark.parametrize("damage", [no_index, short_index, other_rows, other_type, other_end])
def test_a_bad_index_is_made_anew(directory: Path, damage: Callable[[Path], None]) -> None:
    store = written(directory, SMALL)
    store.sync()
    store.close()
    damage(segment_path(directory, 0) / ".index")
    with reopened(directory) as store:
        assert read_all(store) == joined(THREE)
        check_segments(store)
        store.sync()
    files = FaultyFiles()
    with reopened(directory, files) as store:
        assert read_all(store) == joined(THREE)
        assert files.counts["preadv"] == 0


def test_bytes_that_are_no_batches_stay_in_a_sealed_segment(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were synced once, so it is damage and not a torn write: nothing is cut, and the log
    reports it."""
    store = written(directory, TWO_SEGMENTS)
    store.sync()
    store.close()
    data = segment_path(directory, 0) / "data.ninja"
    overwrite(data, len(THREE[0].data) + 70, b"\xee")
    short_index(segment_path(directory, 0) / ".index")
    before = data.read_bytes()
    with reopened(directory) as store:
        assert read_all(store) == joined([THREE[0], THREE[2]])
        store.sync()
    assert data.read_bytes() == before
    assert any(
        f"{len(THREE[1].data)} bytes at its end are not batches" in record.message
        for record in caplog.records
    )


# A crash at every operation

Step = Callable[[SegmentLogStore], None]
STEPS: dict[str, tuple[Step, dict[LogId, set[int]]]] = {
    "create": (lambda store: store.create(LogId(TOPIC, 2), SETTINGS), {}),
    "write": (
        lambda store: store.write([batch(60, 2), batch(60, log=OTHER)], now_ms=0),
        {LOG: {60, 62}, OTHER: {60, 61}},
    ),
    "roll": (
        lambda store: store.write(
            [*(batch(offset, 10) for offset in range(60, 100, 10)), batch(60, log=OTHER)], now_ms=0
        ),
        {LOG: {60, 70, 80, 90, 100}, OTHER: {60, 61}},
    ),
    "begin elsewhere": (lambda store: store.write([batch(7, log=LogId(TOPIC, 3))], now_ms=0), {}),
    "seal": (lambda store: store.sync(), {}),
    "truncate": (lambda store: store.truncate(LOG, 20), {LOG: {20, 30, 40, 50, 60}}),
    "truncate in a segment": (lambda store: store.truncate(OTHER, 20), {OTHER: {20, 60}}),
    "truncate to nothing": (lambda store: store.truncate(LOG, 0), {LOG: {0, 10, 20, 30, 40, 50, 60}}),
    "trim": (lambda store: store.trim(LOG, 30), {}),
    "trim everything": (lambda store: store.trim(LOG, 60), {}),
    "drop": (lambda store: store.drop(LOG), {}),
    "close": (lambda store: store.close(), {}),
}
STARTS: dict[str, set[int]] = {"trim": {0, 10, 20, 30}, "trim everything": {0, 10, 20, 30, 40, 50, 60}}


@pytest.mark.parametrize("syncs", [0, 1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_a_crash_at_many_operations(tmp_path: Path, name: str, syncs: int) -> None:
    crash_at_each(tmp_path, name, syncs, every=5)


@pytest.mark.full
@pytest.mark.parametrize("syncs", [0, 1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_a_crash_at_every_operation(tmp_path: Path, name: str, syncs: int) -> None:
    crash_at_each(tmp_path, name, syncs, every=1)


def crash_at_each(tmp_path: Path, name: str, syncs: int, every: int) -> None:
    """The step is aborted at its first operation, its second, and so on. Afterwards recovery finds
    the state before the step, the one after it, or an intermediate one that promises nothing more
    than before."""
    step, ends = STEPS[name]
    for after in range(0, 1000, every):
        directory = tmp_path / str(after)
        files = FaultyFiles()
        store = prepare(directory, files, syncs)
        files.crash(after=after)
        try:
            step(store)
            finished = True
        except Crashed:
            finished = False
        files.heal()
        crash(store)
        check_after_crash(directory, name, ends)
        if finished:
            assert after > 1 or (name, syncs) == ("seal", 2), "the step did nothing"
            return


def prepare(directory: Path, files: FaultyFiles, syncs: int) -> SegmentLogStore:
    """LOG in six segments, OTHER in one; a third log is empty. The first sync seals some segments,
    two syncs seal all, and every sync writes checkpoints."""
    store = SegmentLogStore(directory, {"checkpoint_bytes": "0"}, files=files)
    for log, settings in ((LOG, SMALL), (OTHER, SETTINGS), (LogId(TOPIC, 3), SETTINGS)):
        store.create(log, settings)
    store.write([batch(offset, 10, log=log) for log in (LOG, OTHER) for offset in range(0, 60, 10)], now_ms=0)
    for _ in range(syncs):
        store.sync()
    assert store.statistics().unsealed_segments == (5, 1, 0)[syncs]
    return store


def check_after_crash(directory: Path, name: str, ends: dict[LogId, set[int]]) -> None:
    found = LOG_STORE.open(directory, {}, 1)
    logs = set(found.logs())
    assert logs >= {OTHER, LogId(TOPIC, 3)}
    assert LOG in logs or name == "drop"
    for log in logs & {LOG, OTHER}:
        start, end = found.bounds(log)
        assert end in ends.get(log, {60}), f"{name}: {log.partition} ends at {end}"
        assert start in (STARTS.get(name, {0}) if log == LOG else {0}), f"{name}: starts at {start}"
        offsets = [header.base_offset for _, header in iter_headers(read_all(found, log))]
        assert (
            offsets
            == [
                offset
                for offset in [*range(0, 60, 10), *sorted(ends.get(log, {60}))]
                if start <= offset < end
            ][: len(offsets)]
        )
        assert len(set(offsets)) == len(offsets)
        check_segments(found, log)
        found.create(log, SETTINGS)
        found.write([batch(end, 3, log=log)], now_ms=0)
        found.truncate(log, end + 1)
    before = {log: (found.bounds(log), read_all(found, log)) for log in found.logs()}
    found.close()
    again = LOG_STORE.open(directory, {}, 1)
    assert {log: (again.bounds(log), read_all(again, log)) for log in again.logs()} == before
    again.close()


WRITER = """
import sys
from pathlib import Path
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.spi import LogSettings
from kbroker.testing.log_store_model import LOG, OTHER, sized_batch
store = SegmentLogStore(Path(sys.argv[1]))
for log in (LOG, OTHER):
    store.create(log, LogSettings(segment_bytes=200_000))
offset = store.bounds(LOG).end_offset
other = store.bounds(OTHER).end_offset
while True:
    store.write([sized_batch(offset, 20_000), sized_batch(other, 3_000, log=OTHER)], now_ms=0)
    print(offset, other, flush=True)
    offset, other = offset + 1, other + 1
    if offset % 7 == 0:
        store.sync()
"""


def test_kill_9_loses_nothing_that_was_written(directory: Path) -> None:
    for seed in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(random.Random(seed).randrange(20, 60)):
                writer.stdout.readline()
            writer.kill()
            whole_lines = writer.stdout.read().rpartition("\n")[0]  # The kill may cut the last one.
            offset, other = map(int, whole_lines.rpartition("\n")[2].split() or (0, 0))
        with reopened(directory) as store:
            assert store.bounds(LOG).end_offset > offset
            assert store.bounds(OTHER).end_offset > other
            for log, size in ((LOG, 20_000), (OTHER, 3_000)):
                end = store.bounds(log).end_offset
                assert read_all(store, log) == joined(sized_batch(each, size, log=log) for each in range(end))
                check_segments(store, log)
