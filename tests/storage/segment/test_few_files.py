"""Many logs, few open files: what the segment engine opens and closes, and what it does when the
process may open no more.

`WatchedFiles` follows the kernel's rule: a file that is closed with unsynced bytes may lose the
report of a failed write-back. So no such file may be closed, unless it is removed.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker.errors import NoFiles, NoSpace, StoreFailed
from kbroker.storage.files import Buffer
from kbroker.storage.segment.log_store import SegmentLogStore, limits_of
from kbroker.storage.spi import LogId, LogSettings, StampedBatch
from kbroker.testing.log_store_model import TOPIC, batch, check_segments, joined, read_all, sized_batch
from tests.storage.faulty_files import Crashed, FaultyFiles
from tests.storage.segment.crashing import crash, reopened

MOST = 8
LOGS = [LogId(TOPIC, partition) for partition in range(5 * MOST)]
FEW = {"max_open_files": str(MOST), "max_maps": str(MOST)}
TWO_BATCHES = LogSettings(segment_bytes=2000)
"""Segments that take two batches of 900 bytes."""


class WatchedFiles(FaultyFiles):
    """`most`: the data files that were open for writing at one time. `lost`: those that were closed
    with unsynced bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[int, Path] = {}
        self._unsynced: set[int] = set()
        self._lost: list[tuple[Path, int]] = []
        self.most = 0
        self.at_sync: Callable[[], None] = lambda: None

    @property
    def lost(self) -> list[Path]:
        return [path for path, inode in self._lost if path.exists() and path.stat().st_ino == inode]

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        if path.name == "data.ninja" and flags & os.O_RDWR:
            self._data[fd] = path
            self.most = max(self.most, len(self._data))
        return fd

    def close(self, fd: int) -> None:
        path = self._data.pop(fd, None)
        if path is not None and fd in self._unsynced:
            self._lost.append((path, os.fstat(fd).st_ino))
        self._unsynced.discard(fd)
        super().close(fd)
        if self._faults:  # The system closes the file, whatever it reports.
            self._enter("close")

    def forget(self) -> None:
        """A process that died closes nothing."""
        self._lost.clear()

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._unsynced.add(fd)
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self.at_sync()
        super().fdatasync(fd)
        self._unsynced.discard(fd)

    def syncfs(self, fd: int) -> None:
        self.at_sync()
        super().syncfs(fd)
        self._unsynced.clear()


@pytest.fixture(params=[True, False], ids=["syncfs", "fdatasync"])
def files(request: pytest.FixtureRequest) -> WatchedFiles:
    files = WatchedFiles()
    files.has_syncfs = request.param
    return files


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is such a file system: thousands of syncs would take minutes."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(prefix="kbroker-files-", dir=parent) as home:
        yield Path(home, "log")


def opened(directory: Path, files: FaultyFiles | None = None) -> SegmentLogStore:
    return SegmentLogStore(directory, FEW, files=files)


def created(
    directory: Path, files: FaultyFiles | None = None, settings: LogSettings = TWO_BATCHES
) -> SegmentLogStore:
    store = opened(directory, files)
    for log in LOGS:
        store.create(log, settings)
    return store


def batches(offset: int, logs: Sequence[LogId] = LOGS) -> list[StampedBatch]:
    return [sized_batch(offset, 900, log=log) for log in logs]


def contents(store: SegmentLogStore, logs: Sequence[LogId] = LOGS) -> list[bytes]:
    return [read_all(store, log) for log in logs]


def expected(count: int, logs: Sequence[LogId] = LOGS) -> list[bytes]:
    """Each log has so many batches."""
    return [joined(sized_batch(offset, 900, log=log) for offset in range(count)) for log in logs]


def make(directory: Path) -> None:
    """One batch in each log, synced and not shut down cleanly."""
    store = created(directory)
    store.write(batches(0), now_ms=0)
    store.sync()
    crash(store)


# Bounds


def test_a_write_to_more_logs_than_files(directory: Path, files: WatchedFiles) -> None:
    """Nothing is published before the last slice is written."""
    store = created(directory, files)
    seen: list[set[int]] = []
    for offset in range(5):
        files.at_sync = lambda: seen.append({store.bounds(log).end_offset for log in LOGS})
        store.write(batches(offset), now_ms=0)
        files.at_sync = lambda: None
        assert {ends for each in seen for ends in each} == {offset}
        seen.clear()
        assert contents(store) == expected(offset + 1)
        if offset != 2:
            store.sync()
    assert files.most <= MOST + 1
    assert files.lost == []
    crash(store)
    with reopened(directory) as store:
        assert contents(store) == expected(5)
        for log in LOGS:
            check_segments(store, log)


def test_many_writes_between_two_syncs(directory: Path, files: WatchedFiles) -> None:
    """As with the durability `os`."""
    store = created(directory, files)
    for offset in range(5):
        for each in batches(offset):
            store.write([each], now_ms=0)
    assert files.most <= MOST + 1
    assert files.lost == []
    assert contents(store) == expected(5)
    store.sync()
    assert store.statistics().dirty_files == 0
    store.close()
    with reopened(directory) as store:
        assert contents(store) == expected(5)


def test_what_a_write_has_synced_counts_for_checkpoints(directory: Path) -> None:
    store = SegmentLogStore(directory, FEW | {"checkpoint_bytes": str(1 << 30)})
    for log in LOGS:
        store.create(log, LogSettings())
    store.write(batches(0), now_ms=0)
    store.sync()
    assert store.statistics().unrecorded_bytes == len(joined(batches(0)))
    store.truncate(LOGS[0], 0)
    store.sync()
    assert store.statistics().unrecorded_bytes == len(joined(batches(0)[1:]))
    store.close()


def test_recovery_of_more_logs_than_files(directory: Path, files: WatchedFiles) -> None:
    """Regression: a start after kill -9 opened all of them."""
    make(directory)
    store = opened(directory, files)
    assert files.most <= MOST
    assert files.counts["syncfs"] == 1 if files.has_syncfs else files.counts["fdatasync"] >= len(LOGS)
    assert contents(store) == expected(1)
    store.close()


def test_truncating_opens_no_files_for_the_next_sync(directory: Path, files: WatchedFiles) -> None:
    store = created(directory, files, settings=LogSettings())
    store.write(batches(0), now_ms=0)
    store.write(batches(1), now_ms=0)
    store.sync()
    for log in LOGS:
        store.truncate(log, 1)
    store.sync()
    assert files.most <= MOST + 1
    store.close()
    with reopened(directory) as store:
        assert contents(store) == expected(1)


@pytest.mark.parametrize(("count", "waits"), [(MOST, False), (MOST + 1, True)])
def test_a_write_that_has_to_sync_says_so(directory: Path, count: int, waits: bool) -> None:
    store = created(directory)
    assert store.write_waits(batches(0, LOGS[:count])) is waits
    store.write(batches(0, LOGS[:MOST]), now_ms=0)
    assert store.write_waits([sized_batch(0, 900, log=LOGS[MOST])])
    assert not store.write_waits(batches(1, LOGS[:MOST]))
    store.sync()
    assert not store.write_waits([sized_batch(0, 900, log=LOGS[MOST])])
    store.close()


# Faults


class SyncsBeforeItCuts(WatchedFiles):
    """As if another thread synced, and sealed full segments, before a new file gets its length."""

    store: SegmentLogStore | None = None

    def ftruncate(self, fd: int, size: int) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.sync()
        super().ftruncate(fd, size)


def test_a_sync_while_a_segment_is_created(directory: Path) -> None:
    """It needs the place of an open file, and closes one. If it closed that of the new segment, it
    would get the same number for a full segment, which would get the new one's length."""
    files = SyncsBeforeItCuts()
    store = SegmentLogStore(directory, {"max_open_files": "1", "sync": "fdatasync"}, files=files)
    store.create(LOGS[0], TWO_BATCHES)
    for offset in range(6):
        if offset % 2 == 0:
            files.store = store
        store.write(batches(offset, LOGS[:1]), now_ms=0)
    store.sync()
    store.close()
    assert not files.lost
    with reopened(directory) as again:
        assert contents(again, LOGS[:1]) == expected(6, LOGS[:1])


class Faults:
    """Breaks one write after the other in a store of more logs than files. Before each, every log
    has `count` batches, and the write would be the next one of each."""

    def __init__(self, directory: Path, files: WatchedFiles, count: int) -> None:
        self.directory, self.files, self.count = directory, files, count
        self.old, self.new = expected(count, FAULTY_LOGS), expected(count + 1, FAULTY_LOGS)
        self.store = self._opened()
        for offset in range(count):
            self.store.write(batches(offset, FAULTY_LOGS), now_ms=0)
        self.store.sync()

    def _opened(self) -> SegmentLogStore:
        store = SegmentLogStore(
            self.directory, {"max_open_files": "3", "checkpoint_bytes": "0"}, files=self.files
        )
        for log in FAULTY_LOGS:
            store.create(log, TWO_BATCHES)
        return store

    def found(self) -> list[bytes]:
        return contents(self.store, FAULTY_LOGS)

    def outcome(self, *, in_sync: bool = False) -> type[Exception] | None:
        """Write with the faults that are armed, and check the contents, now and after a crash. Ends
        with a store that works."""
        error: type[Exception] | None = None
        try:
            if in_sync:
                self.store.sync()
            else:
                self.store.write(batches(self.count, FAULTY_LOGS), now_ms=0)
        except (NoSpace, StoreFailed) as raised:
            error = type(raised)
        self.files.heal()
        assert self.files.lost == []
        written = error is None or in_sync
        assert self.found() == (self.new if written else self.old)
        assert self.store.statistics().failed == (error is StoreFailed)
        crash(self.store)
        self.files.forget()
        self.store = self._opened()
        if error is StoreFailed:
            assert all(
                each in (old, new) for each, old, new in zip(self.found(), self.old, self.new, strict=True)
            )
        else:
            assert self.found() == (self.new if written else self.old)
        return error

    def go_back(self) -> None:
        for log in FAULTY_LOGS:
            self.store.truncate(log, self.count)
        self.store.sync()
        assert self.found() == self.old


FAULTY_LOGS = LOGS[:8]
COUNTS = pytest.mark.parametrize("count", [1, 2], ids=["append", "roll"])
REFUSED = {None, NoFiles, NoSpace}


def outcomes(faults: Faults, operation: str, number: int, times: float = 1) -> list[type[Exception] | None]:
    """Of a write for each call of `operation` that it makes."""
    found: list[type[Exception] | None] = []
    while True:
        faults.files.fail(operation, number, after=len(found), times=times)
        before = faults.files.failed
        outcome = faults.outcome()
        if faults.files.failed == before:
            assert outcome is None
            return found
        found.append(outcome)
        faults.go_back()


@COUNTS
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("operation", ["open", "write"])
def test_a_file_that_cannot_be_opened_refuses_the_write(
    directory: Path, files: WatchedFiles, operation: str, number: int, count: int
) -> None:
    """Regression: it failed the store until a restart."""
    found = outcomes(Faults(directory, files, count), operation, number)
    assert set(found) <= {None, NoFiles}
    assert operation == "write" or len(found) >= 2 * len(FAULTY_LOGS)


def test_without_any_file_only_what_is_written_fails_the_store(directory: Path, files: WatchedFiles) -> None:
    """All opens fail from some moment on. A slice that was written cannot be undone then."""
    found = outcomes(Faults(directory, files, 1), "open", errno.EMFILE, float("inf"))
    assert set(found) == {NoFiles, StoreFailed}
    first = found.index(StoreFailed)
    assert first >= len(FAULTY_LOGS)
    assert NoFiles not in found[first:]


@COUNTS
@pytest.mark.parametrize(("operation", "times"), [("allocate", float("inf")), ("pwritev", 1)])
def test_a_full_disk_in_any_slice_refuses_the_write(
    directory: Path, files: WatchedFiles, operation: str, times: float, count: int
) -> None:
    found = outcomes(Faults(directory, files, count), operation, errno.ENOSPC, times)
    assert set(found) <= {None, NoSpace}
    assert NoSpace in found or (operation, count) == ("allocate", 1)  # The space is reserved already.


@COUNTS
@pytest.mark.parametrize("operation", ["fdatasync", "syncfs", "close", "pwritev", "open"])
def test_a_broken_disk_in_any_slice_fails_the_store(
    directory: Path, files: WatchedFiles, operation: str, count: int
) -> None:
    found = outcomes(Faults(directory, files, count), operation, errno.EIO)
    assert set(found) <= {StoreFailed}
    assert found or operation == ("fdatasync" if files.has_syncfs else "syncfs")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("operation", ["open", "fdatasync", "syncfs", "close", "fsync_dir", "save_rows"])
def test_a_fault_in_the_sync_after_a_write(
    directory: Path, files: WatchedFiles, operation: str, number: int
) -> None:
    """The last slice is written and not synced, so what was refused elsewhere may fail the store
    here."""
    faults = Faults(directory, files, 2)
    for after in range(200):
        faults.store.write(batches(2, FAULTY_LOGS), now_ms=0)
        files.fail(operation, number, after=after)
        before = files.failed
        outcome = faults.outcome(in_sync=True)
        assert outcome in (None, StoreFailed)
        if files.failed == before:
            return
        faults.go_back()
    raise AssertionError("the fault never ended")


@COUNTS
def test_a_crash_at_any_moment_of_a_large_write(directory: Path, files: WatchedFiles, count: int) -> None:
    """Each log has its earlier batches, and the new one or nothing of it."""
    faults = Faults(directory, files, count)
    for after in range(1000):
        files.crash(after=after)
        try:
            faults.store.write(batches(count, FAULTY_LOGS), now_ms=0)
            faults.store.sync()
        except Crashed:
            files.heal()
            crash(faults.store)
        else:
            files.heal()
            assert faults.found() == faults.new
            return
        files.forget()
        faults.store = faults._opened()
        for each, old, new in zip(faults.found(), faults.old, faults.new, strict=True):
            assert each in (old, new)
        faults.go_back()
    raise AssertionError("the write never ended")


# A process without open files


@pytest.mark.parametrize("sync", ["auto", "fdatasync"])
def test_a_process_without_open_files(directory: Path, sync: str, no_files: Callable[[], ExitStack]) -> None:
    """Removals work, with files that the store holds in reserve; nothing is marked as failed."""
    store = SegmentLogStore(directory, FEW | {"sync": sync})
    for log in LOGS:
        store.create(log, TWO_BATCHES)
    for offset in range(3):
        store.write(batches(offset), now_ms=0)
    store.sync()
    before = contents(store)
    new_log = LogId(TOPIC, len(LOGS))
    with no_files():
        # The files of some logs may be used for others.
        assert contents(store) == before
        with no_files(), pytest.raises(NoFiles, match="ulimit -n"):
            store.create(new_log, TWO_BATCHES)
        store.trim(LOGS[0], 2)
        store.drop(LOGS[1])
    assert not store.statistics().failed
    store.write(batches(3, [LOGS[0], *LOGS[2:]]), now_ms=0)
    store.write(batches(4, LOGS[2:]), now_ms=0)
    store.create(new_log, TWO_BATCHES)
    store.write([batch(0, log=new_log)], now_ms=0)
    store.close()
    with reopened(directory) as store:
        assert LOGS[1] not in store.logs()
        assert store.bounds(LOGS[0]) == (2, 4)
        assert [read_all(store, log) for log in LOGS[2:]] == expected(5)[2:]


def test_defaults_fit_the_limit_of_the_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for files in (100, 256, 1024, 4096):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            limits = limits_of({})
            assert int(limits["max_open_files"]) <= max(8, files // 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


READ = """
import sys
from pathlib import Path
from kbroker.storage.segment.reader import SegmentLogReader

reader = SegmentLogReader(Path(sys.argv[1]))
kept = []
for log in reader.logs():
    for segment in reader.segments(log):
        (view,) = reader.read(log, segment.base_offset, max_bytes=1, end_offset=segment.end_offset)
        kept.append(view)
        print(len(view))
"""


def test_a_reader_of_more_segments_than_files(directory: Path) -> None:
    """Regression: a mapping took an open file for as long as a view of it was in use."""
    count = 120
    store = SegmentLogStore(directory)
    store.create(LOGS[0], LogSettings(segment_bytes=1))
    store.write([batch(offset, log=LOGS[0]) for offset in range(count)], now_ms=0)
    while store.statistics().unsealed_segments:
        store.sync()
    store.close()
    command = ["sh", "-c", 'ulimit -n 100 && exec "$0" "$@"', sys.executable, "-c", READ, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert list(map(int, done.stdout.split())) == [len(batch(offset).data) for offset in range(count)], (
        done.stderr
    )
