"""The access to the file system, and the variant that fails on demand."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen

import mmap_ninja.numpy
import numpy
import pytest

from kbroker.storage.files import Files, after
from tests.storage.faulty_files import Crashed, FaultyFiles

_PAGE = 4096


@pytest.fixture
def files() -> Files:
    return Files()


def test_what_is_left_of_buffers() -> None:
    buffers = [memoryview(each) for each in (b"abc", b"", b"de", b"f")]
    for count, expected in ((0, b"abcdef"), (1, b"bcdef"), (3, b"def"), (4, b"ef"), (5, b"f"), (6, b"")):
        assert b"".join(after(buffers, count)) == expected


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    for operation in ("open", "pwritev", "fdatasync", "rename"):
        files = FaultyFiles()
        files.fail(operation)
        with pytest.raises(OSError, match="Input/output error"):
            files.write_atomically(path, [b"new ", b"content"])
        assert path.read_bytes() == b"old"
    Files().write_atomically(path, [b"new ", b"", b"content"])
    assert path.read_bytes() == b"new content"


def test_space_that_was_taken_is_no_data(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.ftruncate(fd, 1 << 24)
    files.write_all(fd, [b"x" * 5000], 0)
    files.allocate(fd, 5000, 1 << 20)
    assert files.size(fd) == 1 << 24
    assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    assert 5000 <= files.data_end(fd, 0) <= 1 << 16
    assert not files.has_data_behind(fd, 1 << 16)
    assert not files.has_data_behind(fd, 1 << 24)
    files.write_all(fd, [b"y"], 1 << 23)
    assert files.has_data_behind(fd, 1 << 16)
    files.close(fd)


def test_more_buffers_than_one_call_takes(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.write_all(fd, [b"%04d" % number for number in range(3000)], 10)
    files.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(10) + b"".join(
        b"%04d" % number for number in range(3000)
    )


def test_load_reads_what_is_not_resident(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(300_000))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    files.load(path, 0, 300_000)
    files.load(path, 299_999, 400_000)


def test_load_reads_nothing_behind_the_range(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the disk's read-ahead is. The kernel would use it even to answer whether a page is
    cached."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    calls: list[tuple[object, ...]] = []
    advise, preadv = os.posix_fadvise, os.preadv

    def noted_advise(fd: int, start: int, size: int, advice: int) -> None:
        calls.append((advice, start, size))
        advise(fd, start, size, advice)

    def noted_preadv(fd: int, buffers: Sequence[bytearray], position: int) -> int:
        calls.append((position, sum(map(len, buffers))))
        return preadv(fd, buffers, position)

    def is_resident(fd: int, position: int, size: int) -> bool:
        calls.append((position,))
        return position == 1000

    monkeypatch.setattr(os, "posix_fadvise", noted_advise)
    monkeypatch.setattr(os, "preadv", noted_preadv)
    monkeypatch.setattr("kbroker.storage.files._is_resident", is_resident)
    step = 1 << 16
    files.load(path, 1000, 2 * step + 500)
    assert calls == [
        (os.POSIX_FADV_RANDOM, 0, 0), (1000,), (1000 + step,),
        (os.POSIX_FADV_WILLNEED, 1000 + step, step - 500), (1000 + step, step - 500),
    ]  # fmt: skip


def test_a_step_is_loaded_though_its_first_page_is_there(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of a small range makes the kernel read that range alone."""
    path, step = tmp_path / "file", 1 << 16
    path.write_bytes(bytes(2 * step + 100))
    loaded: list[int] = []
    preadv = os.preadv

    def noted_preadv(fd: int, buffers: Sequence[bytearray], position: int) -> int:
        loaded.append(position)
        return preadv(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", noted_preadv)
    monkeypatch.setattr(
        "kbroker.storage.files._is_resident", lambda fd, position, size: position + size <= step + _PAGE
    )
    files.load(path, 0, 2 * step + 100)
    assert loaded == [step, 2 * step]


def test_loads_one_behind_the_other_leave_nothing_out(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second range begins in the page in which the first ended: that this page is cached says
    nothing about the next ones."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    loaded: set[int] = set()
    preadv = os.preadv

    def noted_preadv(fd: int, buffers: Sequence[bytearray], position: int) -> int:
        count = preadv(fd, buffers, position)
        loaded.update(range(position // _PAGE, (position + count - 1) // _PAGE + 1))
        return count

    monkeypatch.setattr(os, "preadv", noted_preadv)
    monkeypatch.setattr(
        "kbroker.storage.files._is_resident",
        lambda fd, position, size: {position // _PAGE, (position + size - 1) // _PAGE} <= loaded,
    )
    files.load(path, 100, 100_000)
    files.load(path, 100_000, 400_000)
    assert loaded >= set(range(400_000 // _PAGE + 1))


@pytest.mark.usefixtures("page_cache_tells")
def test_what_is_cached_is_known(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(300_000))
    assert files.is_cached(path, 100, 300_000)
    assert not files.is_cached(path, 100, 300_001), "it has no such byte"


@pytest.mark.usefixtures("page_cache_tells")
def test_a_page_that_is_missing_is_not_cached(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * _PAGE))
    preadv = os.preadv

    def up_to_a_page(fd: int, buffers: Sequence[bytearray], position: int, flags: int = 0) -> int:
        """As the kernel answers if the second page is missing."""
        assert flags == os.RWF_NOWAIT
        return min(_PAGE - position, preadv(fd, buffers, position, flags))

    monkeypatch.setattr(os, "preadv", up_to_a_page)
    assert files.is_cached(path, 100, _PAGE)
    assert not files.is_cached(path, 100, _PAGE + 1)


def test_a_file_that_others_use_is_not_ours_alone(files: Files, tmp_path: Path) -> None:
    """The lease sees other descriptors and mappings, in this process and in another one."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * _PAGE)
    fd = files.open(path, os.O_RDWR)
    assert files.is_ours_alone(fd) == (sys.platform == "linux")
    other = files.open(path, os.O_RDONLY)
    assert not files.is_ours_alone(fd)
    view = files.map(other, _PAGE)
    files.close(other)
    assert not files.is_ours_alone(fd)
    del view
    assert files.is_ours_alone(fd) == (sys.platform == "linux")
    reading = "import sys, mmap; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)"
    script = f"{reading}; print(len(m), flush=True); sys.stdin.read()"
    with Popen([sys.executable, "-c", script, path], stdin=PIPE, stdout=PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert int(reader.stdout.readline()) == _PAGE
        assert not files.is_ours_alone(fd)
        reader.stdin.close()
    assert files.is_ours_alone(fd) == (sys.platform == "linux")
    files.close(fd)


def test_rows_are_a_mmap_ninja_array(files: Files, tmp_path: Path) -> None:
    files.save_rows(tmp_path / "rows", [bytes(16), b"\1" + bytes(15)])
    assert mmap_ninja.numpy.open_existing(tmp_path / "rows").tolist() == [[0, 0], [1, 0]]
    mmap_ninja.numpy.from_ndarray(tmp_path / "same", numpy.array([[0, 0], [1, 0]], dtype=numpy.int64))
    names = sorted(path.name for path in (tmp_path / "same").iterdir())
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == names
    assert all(
        (tmp_path / "rows" / name).read_bytes() == (tmp_path / "same" / name).read_bytes() for name in names
    )


def test_syncfs_where_there_is_one(files: Files, tmp_path: Path) -> None:
    fd = files.open(tmp_path, os.O_RDONLY)
    if files.can_syncfs():
        files.syncfs(fd)
        os.close(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            files.syncfs(fd)
    else:
        os.close(fd)


def test_remove_tree_minds_everything_but_absence(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.remove_tree(tmp_path / "nothing")
    (tmp_path / "tree" / "branch").mkdir(parents=True)
    files.fail("remove_tree", errno.EACCES)
    with pytest.raises(PermissionError):
        files.remove_tree(tmp_path / "tree")
    files.remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_faults_strike_when_they_should(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fail("mkdir", errno.ENOSPC, after=1, times=2)
    files.mkdir(tmp_path / "0")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            files.mkdir(tmp_path / "1")
    files.mkdir(tmp_path / "1")
    assert files.counts["mkdir"] == 4
    assert files.failed == 2


def test_a_full_disk_takes_what_fits(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.can_allocate = False
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.fill(after_bytes=10)
    assert files.pwritev(fd, [b"12345678"], 0) == 8
    assert files.pwritev(fd, [b"12345678"], 8) == 2
    with pytest.raises(OSError, match="No space left"):
        files.pwritev(fd, [b"1"], 10)
    assert files.pwritev(fd, [b"over"], 0) == 4
    files.heal()
    assert files.pwritev(fd, [b"12345678"], 10) == 8
    os.close(fd)


def test_after_a_crash_nothing_works(tmp_path: Path) -> None:
    files = FaultyFiles()
    fd = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.crash(after=1)
    files.pwritev(fd, [b"1234"], 0)
    with pytest.raises(Crashed):
        files.pwritev(fd, [b"5678"], 4)
    with pytest.raises(Crashed):
        files.fdatasync(fd)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"123456"
