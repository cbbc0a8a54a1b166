"""Idempotent producers on purged logs under kill -9, on every engine; and a store that is broken on
purpose.

`make crash` makes the long runs. A failure leaves all histories and the broker's log in pytest's
temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import LAUNCHER, ClientFailed
from tests.crash.purge_rounds import run
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES, PAIRS


@pytest.mark.parametrize(
    ("storage", "state_storage", "rounds"), [("segment", "segment", 4), ("rocksdb", "lmdb", 2)]
)
def test_producers_outlive_broker_and_records(
    storage: str, state_storage: str, rounds: int, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, storage, state_storage, rounds=rounds, seed=1, progress=progress)
    assert report.ok, str(report)
    done = report.statistics
    assert done.lives >= rounds + 2
    assert done.crashes >= 2
    assert done.confirmed_batches > 50
    assert done.confirmed_sends > 50
    assert done.purges > 5
    assert done.repeats_known > 10


@pytest.mark.full
@pytest.mark.parametrize(("storage", "state_storage"), PAIRS)
def test_producers_outlive_many_rounds(
    storage: str, state_storage: str, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, storage, state_storage, rounds=15, seed=2, progress=progress)
    assert report.ok, str(report)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_kill_9_takes_nothing_of_producers_even_without_syncs(
    engine: str, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, engine, engine, rounds=10, seed=3, durability="os", progress=progress)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("storage", "state_storage"),
    [
        ("segment", "believes-purged:segment"),
        *(pytest.param(e, f"believes-purged:{e}", marks=pytest.mark.full) for e in ENGINES[:3]),
    ],
)
def test_a_snapshot_from_below_the_start_is_caught(storage: str, state_storage: str, tmp_path: Path) -> None:
    """librdkafka's producer ends with a fatal error if it meets the fault first. Several attempts,
    as a life may be too short."""
    for attempt in range(3):
        home = tmp_path / str(attempt)
        home.mkdir()
        try:
            report = run(home, storage, state_storage, rounds=2, seed=attempt, command=LAUNCHER)
        except ClientFailed as failure:
            if "fatal" not in str(failure).lower():
                raise
            return
        if not report.ok:
            break
    assert "refused" in {violation.rule for violation in report.violations}, str(report)
