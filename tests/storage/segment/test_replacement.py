"""How the segment engine replaces the contents of a segment: crashes at every operation, full and
broken disks, readers in other processes, and files that are left over."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.errors import NoSpace, StoreFailed
from kbroker.formats.batches import crc_is_valid, iter_headers
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.segment.reader import SegmentLogReader
from kbroker.storage.spi import LogSettings, StampedBatch
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    batch,
    check_segments,
    everything,
    joined,
    read_all,
    replace,
    sized_batch,
    smaller,
)
from tests.storage.faulty_files import Crashed, FaultyFiles
from tests.storage.segment.crashing import crash, reopened

WRITTEN = [batch(offset, 10, timestamp_ms=offset, value=b"%05d" % offset) for offset in range(0, 90, 10)]
SETTINGS = LogSettings(segment_bytes=3 * len(WRITTEN[0].data))
SAME_SIZE = [batch(30, 10, timestamp_ms=30, value=b"x" * 9), batch(40, 10, timestamp_ms=40, value=b"x")]
CONTENTS: dict[str, Sequence[StampedBatch]] = {
    "none": [],
    "the first": WRITTEN[3:4],
    "the last": WRITTEN[5:6],
    "a smaller one": [smaller(WRITTEN[4])],
    "as many bytes": [*SAME_SIZE, WRITTEN[5]],
    "the same": WRITTEN[3:6],
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def prepare(directory: Path, files: FaultyFiles | None = None, syncs: int = 1) -> SegmentLogStore:
    """LOG in three segments of three batches. Without syncs none of them is sealed."""
    store = SegmentLogStore(directory, {"checkpoint_bytes": "0"}, files=files)
    store.create(LOG, SETTINGS)
    store.write(WRITTEN, now_ms=0)
    for _ in range(syncs):
        store.sync()
    assert [each.base_offset for each in store.segments(LOG)] == [0, 30, 60]
    return store


def with_second(contents: Sequence[StampedBatch]) -> list[StampedBatch]:
    return [*WRITTEN[:3], *contents, *WRITTEN[6:]]


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{LOG.topic_id}-{LOG.partition}" / f"{base_offset:020d}"


def check_log(store: SegmentLogStore, possible: Sequence[Sequence[StampedBatch]]) -> None:
    """Assert that the log has one of the contents, takes more, and still has it all when it is
    opened again."""
    assert store.bounds(LOG) == (0, 90)
    found = read_all(store)
    assert found in [joined(each) for each in possible]
    check_segments(store, replaced=True)
    assert [(each.base_offset, each.end_offset) for each in store.segments(LOG)][:2] == [(0, 30), (30, 60)]
    for offset in range(0, 90, 10):
        headers = [each for _, each in iter_headers(found) if each.last_offset >= offset]
        data = read_all(store, offset=offset, max_bytes=1)
        assert [each.base_offset for _, each in iter_headers(data)] == [headers[0].base_offset]


@pytest.mark.parametrize("syncs", [0, 1])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_crash_at_many_operations(tmp_path: Path, name: str, syncs: int) -> None:
    crash_at_each(tmp_path, name, syncs, every=5)


@pytest.mark.full
@pytest.mark.parametrize("syncs", [0, 1])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_crash_at_every_operation(tmp_path: Path, name: str, syncs: int) -> None:
    crash_at_each(tmp_path, name, syncs, every=1)


def crash_at_each(tmp_path: Path, name: str, syncs: int, every: int) -> None:
    """Recovery finds the old contents or the new ones, also if it is killed itself; the later
    segments stay, though they are not sealed."""
    new, old = with_second(CONTENTS[name]), WRITTEN
    for after in itertools.count(list(CONTENTS).index(name) % every, every):
        directory, files = tmp_path / str(after), FaultyFiles()
        store = prepare(directory, files, syncs)
        files.crash(after=after)
        finished = False
        with suppress(Crashed):
            replace(store, LOG, 30, CONTENTS[name])
            finished = True
        files.heal()
        crash(store)
        again = FaultyFiles()
        again.crash(after=after)
        with suppress(Crashed):
            crash(SegmentLogStore(directory, files=again))
        with reopened(directory) as store:
            check_log(store, [new] if finished else [old, new])
            assert not list(directory.glob("*/*.cleaned.tmp"))
            store.sync()
        with reopened(directory) as store:
            check_log(store, [new] if finished else [old, new])
            replace(store, LOG, 30, [])
            check_log(store, [with_second([])])
        shutil.rmtree(directory)
        if finished:
            return


@pytest.mark.parametrize("name", CONTENTS)
def test_a_bad_index_of_a_replaced_segment(directory: Path, name: str) -> None:
    """It is rebuilt, with the same end."""
    store = prepare(directory)
    replace(store, LOG, 30, CONTENTS[name])
    crash(store)
    (segment_path(directory, 30) / ".index" / "shape.ninja").unlink()
    reader = SegmentLogReader(directory)
    assert read_all(reader) == joined(with_second(CONTENTS[name]))
    assert reader.segments(LOG)[1].end_offset == 60
    for _ in range(2):
        with reopened(directory) as store:
            check_log(store, [with_second(CONTENTS[name])])
            store.sync()
    assert (segment_path(directory, 30) / ".index" / "shape.ninja").exists()


@pytest.mark.parametrize("name", ["none", "the first", "as many bytes"])
def test_no_space_anywhere(directory: Path, name: str) -> None:
    for operation in ("mkdir", "pwritev", "write_atomically", "save_rows"):
        files = FaultyFiles()
        store = prepare(directory, files)
        files.fail(operation, errno.ENOSPC)
        if operation == "pwritev" and name == "none":
            files.heal()
        else:
            with pytest.raises(NoSpace):
                replace(store, LOG, 30, CONTENTS[name])
        check_log(store, [WRITTEN])
        assert not list(directory.glob("*/*.cleaned.tmp"))
        replace(store, LOG, 30, CONTENTS[name])
        check_log(store, [with_second(CONTENTS[name])])
        store.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("operation", ["fdatasync", "fsync_dir", "rename", "unlink"])
def test_any_other_error_stops_the_store(directory: Path, operation: str) -> None:
    """Wherever it happens. Reading continues; after a restart the old or the new contents are
    there."""
    for after in itertools.count():
        files = FaultyFiles()
        store = prepare(directory, files)
        files.fail(operation, after=after)
        try:
            replace(store, LOG, 30, SAME_SIZE + WRITTEN[5:6])
        except StoreFailed:
            with pytest.raises(StoreFailed):
                store.write([batch(90)], now_ms=0)
            with pytest.raises(StoreFailed):
                store.replacing(LOG, 0)
        failed = files.failed
        files.heal()
        check_log(store, [WRITTEN, with_second(CONTENTS["as many bytes"])])
        store.close()
        with reopened(directory) as store:
            check_log(store, [WRITTEN, with_second(CONTENTS["as many bytes"])])
        shutil.rmtree(directory)
        if not failed:
            assert after
            return


def test_a_leftover_that_cannot_be_removed_is_no_failure(directory: Path) -> None:
    files = FaultyFiles()
    store = prepare(directory, files)
    replacement = store.replacing(LOG, 30)
    replacement.add(60, [])
    files.fail("remove_tree", errno.EIO)
    replacement.abandon()
    assert list(directory.glob("*/*.cleaned.tmp"))
    store.write([batch(90)], now_ms=0)
    replace(store, LOG, 30, WRITTEN[3:4])
    store.close()
    assert not list(directory.glob("*/*.cleaned.tmp"))


def test_an_abandoned_replacement_is_over(directory: Path) -> None:
    store = prepare(directory)
    replacement = store.replacing(LOG, 30)
    replacement.abandon()
    with pytest.raises(ValueError, match="abandoned"):
        replacement.add(60, [])
    store.close()


def test_replaced_files_are_given_back(directory: Path) -> None:
    """Neither the old mapping nor its file stay when no view needs them."""
    store = prepare(directory)
    for _ in range(5):
        assert read_all(store)
        for base_offset in (0, 30):
            replace(store, LOG, base_offset, WRITTEN[base_offset // 10 :][:2])
    assert store.statistics().open_maps <= 3
    assert store.statistics().open_files <= 3
    assert store.statistics().bytes == len(read_all(store))
    store.close()
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        assert str(directory) not in mapped.read_text()


@pytest.mark.parametrize("has_reader", [False, True])
def test_old_contents_are_freed_in_steps(directory: Path, has_reader: bool) -> None:
    """After the new ones are in place, and only if no reader needs them."""
    files = FaultyFiles()
    store = SegmentLogStore(directory, {"checkpoint_bytes": "0"}, files=files)
    large = [sized_batch(offset, 1_500_000) for offset in range(5)]
    store.create(LOG, LogSettings(segment_bytes=3 * len(large[0].data)))
    store.write(large, now_ms=0)
    store.sync()
    views = store.read(LOG, 0, max_bytes=EVERYTHING, end_offset=3) if has_reader else []
    replacement = store.replacing(LOG, 0)
    replacement.add(3, large[1:2])
    replacement.prepare()
    files.counts.clear()
    replacement.finish()
    assert files.counts["ftruncate"] == 0
    replacement.abandon()
    # The old file has 4.5 MB and a bit: what is left after four steps of a MiB is closed.
    assert files.counts["ftruncate"] == (0 if has_reader or sys.platform != "linux" else 4)
    assert b"".join(views) == (joined(large[:3]) if has_reader else b"")
    assert read_all(store) == joined([large[1], *large[3:]])
    del views
    store.close()


@pytest.mark.parametrize("when", ["before the index is read", "before the data is mapped"])
def test_a_reader_whose_segment_is_replaced_between_two_steps(
    directory: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again, and never uses the index of one file for the other."""
    store = prepare(directory)
    new = [*SAME_SIZE, WRITTEN[5]]
    reader = SegmentLogReader(directory)
    step = "read" if when == "before the index is read" else "map"
    original: Callable[..., object] = getattr(reader._files, step)
    turns = iter([new, [], WRITTEN[3:6], SAME_SIZE[:1]])

    def replace_first(*arguments: object) -> object:
        contents = next(turns, None)
        if contents is not None:
            replace(store, LOG, 30, contents)
        return original(*arguments)

    monkeypatch.setattr(reader._files, step, replace_first)
    data = read_all(reader, offset=30, end_offset=60)
    possible = [joined(each) for each in (WRITTEN[3:6], new, [], SAME_SIZE[:1])]
    assert data in possible
    assert next(turns, None) is None or step == "map"
    for each in turns:
        replace(store, LOG, 30, each)
    assert everything(reader, LOG) == everything(store, LOG)
    store.close()


WRITER = """
import random, sys
from pathlib import Path
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.testing.log_store_model import LOG, replace, smaller
from tests.storage.segment.test_replacement import WRITTEN, with_second
store = SegmentLogStore(Path(sys.argv[1]))
chooser = random.Random(int(sys.argv[2]))
for turn in range(int(sys.argv[3])):
    segment = chooser.randrange(2)
    old = WRITTEN[3 * segment : 3 * segment + 3]
    kept = [each for each in old if each.base_offset % 20 or chooser.random() < 0.5]
    replace(store, LOG, 30 * segment, [smaller(each) if chooser.random() < 0.5 else each for each in kept])
    print(turn, flush=True)
"""


def writer(directory: Path, seed: int, turns: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(directory), str(seed), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check_batches(data: bytes) -> None:
    """Those at odd tens stay in one of two forms, the others may be gone."""
    found = {each.base_offset: data[at : at + each.size_bytes] for at, each in iter_headers(data)}
    assert all(crc_is_valid(data, at, each) for at, each in iter_headers(data))
    for each in WRITTEN:
        if each.base_offset >= 60 or each.base_offset % 20:
            assert each.base_offset in found, f"{each.base_offset} is missing"
    for base_offset, content in found.items():
        old = WRITTEN[base_offset // 10]
        assert content in (old.data, smaller(old).data)


def test_a_reader_beside_replacements_in_another_process(directory: Path) -> None:
    prepare(directory).close()
    reader = SegmentLogReader(directory)
    with writer(directory, seed=1, turns=150) as child:
        while child.poll() is None:
            check_batches(read_all(reader))
            assert reader.bounds(LOG) == (0, 90)
            assert [each.base_offset for each in reader.segments(LOG)] == [0, 30, 60]
            assert reader.find_by_timestamp(LOG, 55) == 60 or reader.find_by_timestamp(LOG, 55) == 50
            views = reader.read(LOG, 30, max_bytes=EVERYTHING, end_offset=60)
            before = b"".join(views)
            reader.bounds(LOG)
            assert b"".join(views) == before
        assert child.returncode == 0


def test_kill_9_during_replacements(directory: Path) -> None:
    prepare(directory).close()
    rng = random.Random()
    for seed in range(3):
        with writer(directory, seed, turns=10_000) as child:
            assert child.stdout is not None
            for _ in range(rng.randrange(1, 40)):
                child.stdout.readline()
            child.kill()
        with reopened(directory) as store:
            check_batches(read_all(store))
            assert store.bounds(LOG) == (0, 90)
            check_segments(store, replaced=True)
            assert [each.end_offset for each in store.segments(LOG)] == [30, 60, 90]
