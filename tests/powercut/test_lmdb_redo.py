"""Power cuts during the move of state from the redo log into LMDB. Here it happens at every sync;
with the default settings a script is too short for any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.powercut.engine_cuts import Judge, Work, record, run
from tests.powercut.recording import DSYNC, Op

AT_EVERY_SYNC = "lmdb?redo_bytes=0"
NOW_AND_THEN = "lmdb?redo_bytes=2000"


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


def test_the_script_moves_and_trims(home: Path) -> None:
    entries = record(Work("state", AT_EVERY_SYNC, seed=1, steps=60), home)
    assert sum(entry.op is Op.WRITE and bool(entry.flags & DSYNC) for entry in entries) > 10, (
        "LMDB writes its meta pages so"
    )
    assert sum(entry.op is Op.UNLINK and entry.path.endswith("/data.ninja") for entry in entries) > 10


@pytest.mark.parametrize("engine", [AT_EVERY_SYNC, NOW_AND_THEN])
def test_what_was_synced_survives_power_cuts(
    engine: str, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(Work("state", engine, seed=1, steps=60), home, judge, count=15, seed=1, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("engine", [AT_EVERY_SYNC, NOW_AND_THEN])
@pytest.mark.parametrize("seed", range(2, 6))
def test_what_was_synced_survives_many_power_cuts(
    engine: str, seed: int, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(
        Work("state", engine, seed=seed, steps=250), home, judge, count=100, seed=seed, progress=progress
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("engine", ["skips-sync:lmdb?redo_bytes=2000"])
def test_a_redo_log_without_syncs_is_caught(engine: str, home: Path, judge: Judge) -> None:
    assert run(Work("state", engine, seed=2, steps=60), home, judge, count=60, seed=2, until_wrong=True)
