"""kill -9 on every engine, judged by the history checker; and engines that are broken on purpose,
which it must catch.

`make crash` runs 100 rounds per engine, and per pair of engines. A failure leaves all histories and
the broker's log in pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker import plugins
from tests.crash.harness import LAUNCHER, ClientFailed, run
from tests.crash.tally import Progress

ENGINES = sorted(set(plugins.names(plugins.LOG_STORE)) & set(plugins.names(plugins.STATE_STORE)) - {"memory"})
PAIRS = [
    *((engine, engine) for engine in ENGINES),
    ("segment", "lmdb"),
    ("lmdb", "rocksdb"),
    ("rocksdb", "segment"),
]


@pytest.mark.parametrize(("storage", "state_storage"), [("segment", "segment"), ("lmdb", "rocksdb")])
def test_nothing_is_lost_and_nothing_undone(
    storage: str, state_storage: str, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, storage, state_storage, rounds=2, seed=1, progress=progress)
    assert report.ok, str(report)
    assert report.statistics.lives >= 3
    assert report.statistics.confirmed_sends > 100
    assert report.statistics.confirmed_acknowledgements > 100
    assert report.statistics.redeliveries > 10
    assert report.statistics.excused <= report.statistics.records * 0.01


@pytest.mark.parametrize(
    "engine",
    ["segment", *(pytest.param(name, marks=pytest.mark.full) for name in ENGINES if name != "segment")],
)
def test_share_state_in_control_records(engine: str, tmp_path: Path, progress: Progress) -> None:
    report = run(
        tmp_path,
        engine,
        engine,
        rounds=2 if engine == "segment" else 10,
        seed=2,
        persister="control-records",
        progress=progress,
    )
    assert report.ok, str(report)
    assert report.statistics.lives >= 3
    assert report.statistics.confirmed_acknowledgements > 100


@pytest.mark.full
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_share_state_in_control_records_over_many_rounds(
    durability: str, tmp_path: Path, progress: Progress
) -> None:
    report = run(
        tmp_path,
        "segment",
        "segment",
        rounds=20,
        seed=4,
        durability=durability,
        persister="control-records",
        progress=progress,
    )
    assert report.ok, str(report)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("storage", "state_storage"), PAIRS)
def test_nothing_is_lost_over_many_rounds(
    storage: str, state_storage: str, seed: int, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, storage, state_storage, rounds=20, seed=seed, progress=progress)
    assert report.ok, str(report)
    assert report.statistics.excused <= report.statistics.records * 0.01


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_kill_9_takes_nothing_even_without_syncs(engine: str, tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, engine, engine, rounds=20, seed=6, durability="os", progress=progress)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "state_storage", ["drops-writes:lmdb", pytest.param("answers-early:segment", marks=pytest.mark.full)]
)
def test_a_broken_state_store_is_caught(state_storage: str, tmp_path: Path) -> None:
    """A kill reveals the fault only if it happens before a later write covers the lost one, hence
    the further attempts."""
    for attempt in range(4):
        home = tmp_path / str(attempt)
        home.mkdir()
        report = run(home, "segment", state_storage, rounds=3, seed=attempt, command=LAUNCHER)
        if not report.ok:
            break
    assert {"undone", "count fell"} & {violation.rule for violation in report.violations}, str(report)


@pytest.mark.full
@pytest.mark.parametrize("storage", ["drops-writes:lmdb", "answers-early:segment"])
def test_a_broken_log_store_is_caught(storage: str, tmp_path: Path) -> None:
    """By the checker, or earlier by a client that gets contradicting responses."""
    try:
        report = run(tmp_path, storage, "lmdb", rounds=5, seed=1, command=LAUNCHER)
    except ClientFailed:
        return
    assert {"missing", "contradiction"} & {violation.rule for violation in report.violations}, str(report)


@pytest.mark.full
def test_a_skipped_sync_is_not_seen_by_kill_9(tmp_path: Path) -> None:
    """kill -9 cannot remove data that the operating system has: only a power cut reveals this fault
    (tests/powercut)."""
    assert run(tmp_path, "skips-sync:segment", "skips-sync:segment", rounds=5, seed=1, command=LAUNCHER).ok
