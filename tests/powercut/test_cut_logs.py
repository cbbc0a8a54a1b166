"""Logs with kbroker.queue.retention under replayed power cuts, judged by the history checker:
unfinished records are in the log or beside it, whatever a cut leaves of both. `make powercut` makes
the long runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.powercut.broker_cuts import run
from tests.powercut.queue_cuts import CUT_LOGS, QueueSetup


def check(setup: QueueSetup, home: Path, progress: Progress, **options: Any) -> None:
    """Nothing was lost, and the run had records that could have been."""
    wrong = run(setup, home, scene=CUT_LOGS, progress=progress, **options)
    assert not wrong, "\n".join(wrong)
    assert progress.counted("cut") > 0
    assert progress.counted("kept") > 0


@pytest.mark.parametrize("engine", ["segment"])
def test_a_power_cut_takes_nothing_of_a_cut_log(engine: str, home: Path, progress: Progress) -> None:
    setup = QueueSetup(engine, engine, roles=("produce-all", "consume-slowly"))
    check(setup, home, progress, count=2, seed=1, load_s=0.5, kills=0)


@pytest.mark.full
@pytest.mark.parametrize("retention", ["workqueue", "unfinished"])
@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize("engine", ENGINES)
def test_many_power_cuts_take_nothing_of_a_cut_log(
    engine: str, persister: str, retention: str, home: Path, progress: Progress
) -> None:
    """About 50 cuts of each engine."""
    check(
        QueueSetup(engine, engine, persister, retention), home, progress, count=13, seed=2, load_s=8, kills=1
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("storage", "state_storage"), [("segment", "skips-sync:lmdb"), ("lmdb", "skips-sync:rocksdb")]
)
def test_a_skipped_sync_is_caught(storage: str, state_storage: str, home: Path) -> None:
    assert run(QueueSetup(storage, state_storage), home, scene=CUT_LOGS, count=40, seed=1, load_s=4)
