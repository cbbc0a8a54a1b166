"""Power cuts around the segment engine's checkpoints. Here one is written at every sync; with the
default settings a script is too short for any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.powercut.engine_cuts import Judge, Work, record, run
from tests.powercut.recording import CREATED, Op

METHODS = ["fdatasync", "syncfs"]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


def work(sync: str, *, seed: int, steps: int, fault: str = "") -> Work:
    return Work("log", f"{fault}segment?sync={sync}&checkpoint_bytes=0", seed, steps)


def test_the_script_writes_and_removes_checkpoints(home: Path) -> None:
    entries = record(work("syncfs", seed=1, steps=60), home)
    touched = [entry for entry in entries if entry.path.endswith("/checkpoint")]
    assert any(entry.op is Op.OPEN and entry.flags & CREATED for entry in touched)
    assert any(entry.op is Op.UNLINK for entry in touched)


@pytest.mark.parametrize("sync", METHODS)
def test_what_checkpoints_say_survives_power_cuts(
    sync: str, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(work(sync, seed=1, steps=60), home, judge, count=15, seed=1, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("sync", METHODS)
@pytest.mark.parametrize("seed", range(2, 6))
def test_what_checkpoints_say_survives_many_power_cuts(
    sync: str, seed: int, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(work(sync, seed=seed, steps=250), home, judge, count=100, seed=seed, progress=progress)
    assert not wrong, "\n".join(wrong)


def test_a_checkpoint_before_the_sync_is_caught(home: Path, judge: Judge) -> None:
    wrong = run(
        work("syncfs", seed=2, steps=120, fault="notes-early:"),
        home,
        judge,
        count=60,
        seed=2,
        until_wrong=True,
    )
    assert wrong
