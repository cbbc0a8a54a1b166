"""The model of a power cut: what must survive does, what may be lost sometimes is, and nothing
impossible appears."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.powercut.disk import PAGE, Content, Disk, State, save
from tests.powercut.recording import CREATED, DSYNC, Entry, Op

A, B = b"a" * PAGE, b"b" * PAGE
STATES = 300


def entry(
    op: Op,
    path: str = "",
    path2: str = "",
    *,
    flags: int = 0,
    number: int = 0,
    offset: int = 0,
    result: int = 0,
    data: bytes = b"",
) -> Entry:
    return Entry(op, flags, number, offset, result, 0, path, path2, data)


def create(path: str, number: int = 1) -> Entry:
    return entry(Op.OPEN, path, flags=CREATED, number=number)


def write(data: bytes, at: int = 0, number: int = 1, *, flags: int = 0) -> Entry:
    return entry(Op.WRITE, number=number, offset=at, data=data, flags=flags)


def truncate(size: int, number: int = 1) -> Entry:
    return entry(Op.TRUNCATE, number=number, offset=size)


def sync(number: int = 1, error: int = 0) -> list[Entry]:
    return [
        entry(Op.SYNC_BEGIN, number=number, offset=77),
        entry(Op.SYNC_END, number=number, offset=77, result=error),
    ]


def sync_names(path: str = "") -> list[Entry]:
    return [entry(Op.DIRSYNC_BEGIN, path, offset=78), entry(Op.DIRSYNC_END, path, offset=78)]


def flat(*entries: Entry | list[Entry]) -> list[Entry]:
    """A NamedTuple is not a list: nested lists become one."""
    return [each for one in entries for each in (flat(*one) if isinstance(one, list) else [one])]


def read(content: Content) -> bytes:
    return b"".join(content.pages.get(page, bytes(PAGE)) for page in range(-(-content.size // PAGE)))[
        : content.size
    ]


def seen(entries: Iterable[Entry]) -> set[tuple[tuple[str, bytes | None], ...]]:
    """The states that a few hundred cuts leave."""
    disk = Disk()
    for each in entries:
        disk.apply(each)
    return {as_bytes(disk.survivor(random.Random(seed))) for seed in range(STATES)}


def as_bytes(state: State) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((path, None if content is None else read(content)) for path, content in state.items())


def contents(*entries: Entry | list[Entry]) -> set[bytes | None]:
    """The contents of one file whose name is durable."""
    return {dict(state)["f"] for state in seen(flat(create("f"), sync_names(), *entries))}


def names(*entries: Entry | list[Entry]) -> set[str]:
    return {" ".join(path for path, _ in state) for state in seen(flat(*entries))}


def test_unsynced_pages_and_sizes_go_their_own_ways() -> None:
    assert contents(write(A + B)) == {b"", bytes(2 * PAGE), A + B, A + bytes(PAGE), bytes(PAGE) + B}


def test_a_page_may_be_any_of_its_versions() -> None:
    assert contents(write(A), sync(), write(b"x"), write(b"y", 1)) == {A, b"x" + A[1:], b"xy" + A[2:]}


def test_what_was_synced_stays() -> None:
    assert contents(write(A), sync(), write(B, PAGE)) == {A, A + bytes(PAGE), A + B}


def test_what_was_written_during_a_sync_is_not_synced() -> None:
    begin, end = sync()
    assert contents(begin, write(A), end) == {b"", bytes(PAGE), A}


def test_a_failed_sync_makes_nothing_safe() -> None:
    assert contents(write(A), sync(error=5)) == {b"", bytes(PAGE), A}


def test_a_synchronous_write_is_safe_alone() -> None:
    assert contents(write(B, PAGE), write(A, flags=DSYNC)) == {A, A + bytes(PAGE), A + B}


def test_a_truncation_is_ordered_with_what_is_written_after_it() -> None:
    assert contents(write(A + A), sync(), truncate(10), write(B, PAGE)) == {
        A + A,
        A[:10],
        A[:10] + bytes(2 * PAGE - 10),
        A[:10] + bytes(PAGE - 10) + B,
    }


def test_a_synced_truncation_stays() -> None:
    assert contents(write(A + A), truncate(10), sync()) == {A[:10]}


def test_an_allocation_may_be_lost() -> None:
    assert contents(truncate(PAGE)) == {b"", bytes(PAGE)}


def test_a_new_name_needs_its_directory_synced() -> None:
    assert names(create("f"), write(A), sync()) == {"", "f"}
    assert names(create("f"), write(A), sync(), sync_names()) == {"f"}


def test_a_file_whose_fsync_keeps_its_name() -> None:
    disk = Disk(names_by_fsync=lambda path: path == "f")
    for each in flat(create("f"), sync(), create("g", 2), sync(2)):
        disk.apply(each)
    found = {" ".join(disk.survivor(random.Random(seed))) for seed in range(STATES)}
    assert found == {"f", "f g"}


def test_syncfs_covers_everything() -> None:
    whole = [entry(Op.ALLSYNC_BEGIN, offset=5), entry(Op.ALLSYNC_END, offset=5)]
    assert seen(flat(entry(Op.MKDIR, "d"), create("d/f"), write(A), whole)) == {(("d", None), ("d/f", A))}


def test_a_lost_unlink_brings_the_file_back() -> None:
    assert names(create("f"), create("g", 2), sync_names(), entry(Op.UNLINK, "f"), entry(Op.UNLINK, "g")) == {
        "",
        "f",
        "g",
        "f g",
    }


def test_a_rename_is_atomic() -> None:
    base = flat(create("f"), write(A), sync(), create("t", 2), write(B, number=2), sync(2), sync_names())
    assert seen(flat(base, entry(Op.RENAME, "t", "f"))) == {(("f", A), ("t", B)), (("f", B),)}


def test_a_rename_brings_its_file_along_and_never_two_names() -> None:
    assert names(create("t"), entry(Op.RENAME, "t", "f"), entry(Op.RENAME, "f", "g")) == {"", "t", "f", "g"}


def test_what_lies_in_a_lost_directory_is_lost() -> None:
    inner = flat(entry(Op.MKDIR, "d"), create("d/f"), write(A), sync(), sync_names("d"))
    assert names(inner) == {"", "d d/f"}
    assert names(inner, sync_names()) == {"d d/f"}


def test_a_renamed_directory_keeps_its_files() -> None:
    assert names(
        entry(Op.MKDIR, "d"), create("d/f"), sync_names(), sync_names("d"), entry(Op.RENAME, "d", "e")
    ) == {"d d/f", "e e/f"}


def test_what_was_there_before_is_safe(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(A)
    disk = Disk(tmp_path)
    disk.apply(entry(Op.OPEN, "d/f", number=9, offset=PAGE))
    disk.apply(write(b"x", number=9))
    states = {as_bytes(disk.survivor(random.Random(seed))) for seed in range(STATES)}
    assert states == {(("d", None), ("d/f", A)), (("d", None), ("d/f", b"x" + A[1:]))}
    save(disk.latest(), tmp_path / "copy")
    assert (tmp_path / "copy" / "d" / "f").read_bytes() == b"x" + A[1:]


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(AssertionError, match="could not record"):
        Disk().apply(entry(Op.UNSUPPORTED, "f", "symbolic link"))


def test_some_paths_are_kept_whole_and_of_others_nothing_unsynced() -> None:
    """Synced bytes and names survive at all paths, and so do writes through O_DSYNC."""
    made = [entry(Op.MKDIR, "kept"), entry(Op.MKDIR, "lost"), *sync_names()]
    files = [
        create("kept/f", 1),
        create("lost/f", 2),
        create("lost/forced", 3),
        *sync_names("kept"),
        *sync_names("lost"),
    ]
    written = [
        write(A, number=1),
        *sync(1),
        write(A, number=2),
        *sync(2),
        write(B, number=1),
        write(B, number=2),
    ]
    unsynced = [write(A, number=3, flags=DSYNC), create("kept/new", 4), create("lost/new", 5)]
    disk = Disk()
    for each in [*made, *files, *written, *unsynced, entry(Op.UNLINK, "lost/f")]:
        disk.apply(each)
    state = disk.survivor_of_parts(random.Random(0), lambda path: path.startswith("kept"))
    assert dict(as_bytes(state)) == {
        "kept": None,
        "kept/f": B,
        "kept/new": b"",
        "lost": None,
        "lost/f": A,
        "lost/forced": A,
    }
    assert as_bytes(state) in {as_bytes(disk.survivor(random.Random(seed))) for seed in range(STATES * 10)}
