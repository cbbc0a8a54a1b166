"""Power cuts of a segment store with three times as many logs as it may open files: between the
slices of a large write, too.

A cut between two slices may leave whole batches of some logs: the write has not returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.powercut.engine_cuts import Judge, Work, record, run
from tests.powercut.recording import Op

SYNCS = pytest.mark.parametrize("sync", ["auto", "fdatasync"])


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


def many(sync: str, seed: int, steps: int, fault: str = "") -> Work:
    return Work("many", f"{fault}segment?max_open_files=8&sync={sync}", seed, steps)


@SYNCS
def test_large_writes_survive_power_cuts(sync: str, home: Path, judge: Judge, progress: Progress) -> None:
    wrong = run(many(sync, 1, 50), home, judge, count=12, seed=1, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@SYNCS
@pytest.mark.parametrize("seed", range(2, 5))
def test_large_writes_survive_many_power_cuts(
    sync: str, seed: int, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(many(sync, seed, 200), home, judge, count=100, seed=seed, progress=progress)
    assert not wrong, "\n".join(wrong)


def test_the_script_has_writes_in_slices(home: Path) -> None:
    """There are more syncs than calls of sync(); otherwise the cuts would test nothing new."""
    entries = record(many("auto", 1, 50), home)
    script_syncs = sum(b'"sync"' in entry.data for entry in entries if entry.op is Op.MARK)
    assert sum(entry.op is Op.ALLSYNC_END for entry in entries) > script_syncs + 20


def test_a_slice_that_is_closed_unsynced_is_caught(home: Path, judge: Judge) -> None:
    """Not with syncfs: the one of sync() covers files that were closed before it."""
    wrong = run(many("fdatasync", 1, 50, "skips-slices:"), home, judge, count=30, seed=1, until_wrong=True)
    assert wrong
