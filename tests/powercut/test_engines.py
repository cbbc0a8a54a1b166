"""Every engine alone under replayed power cuts: everything synced survives, nothing else appears,
and the store remains usable.

A failure prints the cut; its state is left in pytest's temporary directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker import plugins
from tests.crash.tally import Progress
from tests.powercut.disk import Disk, differences
from tests.powercut.engine_cuts import Judge, Work, record, run
from tests.powercut.recording import Op

ENGINES = [
    (kind, engine)
    for kind, group in (("log", plugins.LOG_STORE), ("state", plugins.STATE_STORE))
    for engine in plugins.names(group)
    if engine != "memory"
]
UNSEEN = ("LOG", "LOCK")
"""RocksDB's text log is written by stdio, which the recorder does not see; recovery does not use
it. Its lock file is empty."""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.mark.parametrize(("kind", "engine"), ENGINES)
def test_the_recorder_sees_every_byte(kind: str, engine: str, home: Path) -> None:
    """A replay that loses nothing rebuilds the real disk: the recorder missed no write, size, name
    or removal."""

    def is_seen(path: str) -> bool:
        name = path.split("/")[-1]
        return not name.startswith((*UNSEEN, "lock.mdb")) and not name.endswith("-shm")

    disk = Disk()
    entries = record(Work(kind, engine, seed=11, steps=80), home)
    for entry in entries:
        disk.apply(entry)
    assert differences(disk.latest(), home / "data", is_seen) == []
    assert any(entry.op is Op.SYNC_END or entry.op is Op.ALLSYNC_END for entry in entries)


@pytest.mark.parametrize(("kind", "engine"), ENGINES)
def test_synced_data_survives_power_cuts(
    kind: str, engine: str, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(Work(kind, engine, seed=1, steps=60), home, judge, count=10, seed=1, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize(("kind", "engine"), ENGINES)
def test_synced_data_survives_many_power_cuts(
    kind: str, engine: str, seed: int, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(
        Work(kind, engine, seed=seed, steps=250), home, judge, count=100, seed=seed, progress=progress
    )
    assert not wrong, "\n".join(wrong)


SKIPPED_SYNCS = [
    ("log", "segment"),
    ("state", "rocksdb"),
    pytest.param("log", "rocksdb", marks=pytest.mark.full),
    pytest.param("state", "segment", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("kind", "engine"), SKIPPED_SYNCS)
def test_a_skipped_sync_is_caught(kind: str, engine: str, home: Path, judge: Judge) -> None:
    """Not with LMDB: its commits are synced whether or not sync() is called."""
    wrong = run(
        Work(kind, f"skips-sync:{engine}", seed=1, steps=60), home, judge, count=12, seed=1, until_wrong=True
    )
    assert wrong


@pytest.mark.parametrize("fault", ["drops-writes", "answers-early"])
def test_a_lost_state_write_is_caught(fault: str, home: Path, judge: Judge) -> None:
    wrong = run(
        Work("state", f"{fault}:lmdb", seed=1, steps=60), home, judge, count=10, seed=1, until_wrong=True
    )
    assert wrong


def test_lmdb_survives_a_power_cut_while_it_is_made(home: Path, judge: Judge) -> None:
    """Regression: a new environment had its name before its first two pages were on disk, and could
    never be opened again."""
    wrong = run(Work("state", "lmdb", seed=1, steps=1), home, judge, count=15, seed=1)
    assert not wrong, "\n".join(wrong)
