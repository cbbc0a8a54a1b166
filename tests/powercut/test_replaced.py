"""Every engine that replaces segments, under replayed power cuts: each batch has its old or its new
form, and everything that was synced is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker import plugins
from tests.crash.tally import Progress
from tests.powercut.engine_cuts import Judge, Work, run

ENGINES = [engine for engine in plugins.names(plugins.LOG_STORE) if engine != "memory"]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_replaced_segments_survive_power_cuts(
    engine: str, home: Path, judge: Judge, progress: Progress
) -> None:
    wrong = run(Work("replaced", engine, seed=1, steps=60), home, judge, count=20, seed=1, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("engine", [*ENGINES, "segment?sync=fdatasync&checkpoint_bytes=0"])
def test_replaced_segments_survive_many_power_cuts(
    engine: str, seed: int, home: Path, judge: Judge, progress: Progress
) -> None:
    work = Work("replaced", engine, seed=seed, steps=150)
    wrong = run(work, home, judge, count=100, seed=seed, progress=progress)
    assert not wrong, "\n".join(wrong)
