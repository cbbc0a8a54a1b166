"""Whole brokers under replayed power cuts, judged by the history checker. `make powercut` makes the
long runs: each engine is cut at least 200 times, as log and as state store, alone and in pairs.
(The default run of tests/crash pairs the engines the other way round.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.crash.test_crash import PAIRS
from tests.powercut.broker_cuts import Setup, run


@pytest.mark.parametrize(("storage", "state_storage"), [("segment", "segment"), ("rocksdb", "lmdb")])
def test_nothing_confirmed_is_lost_or_undone(
    storage: str, state_storage: str, home: Path, progress: Progress
) -> None:
    wrong = run(Setup(storage, state_storage), home, count=4, seed=1, load_s=2, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
def test_share_state_in_control_records(engine: str, home: Path, progress: Progress) -> None:
    wrong = run(
        Setup(engine, engine, "control-records"), home, count=40, seed=3, load_s=4, kills=1, progress=progress
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("storage", "state_storage"), PAIRS)
def test_nothing_confirmed_is_lost_over_many_cuts(
    storage: str, state_storage: str, seed: int, home: Path, progress: Progress
) -> None:
    count = 100 if storage == state_storage else 50
    wrong = run(
        Setup(storage, state_storage), home, count=count, seed=seed, load_s=6, kills=2, progress=progress
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize(
    ("storage", "state_storage"), [("skips-sync:segment", "lmdb"), ("lmdb", "skips-sync:rocksdb")]
)
def test_a_skipped_sync_is_caught(storage: str, state_storage: str, home: Path) -> None:
    """(tests/powercut/test_engines.py does the same, faster, for each engine alone.)"""
    assert run(Setup(storage, state_storage), home, count=40, seed=1, load_s=2.5)
