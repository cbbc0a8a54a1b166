"""Consumer groups on every engine under kill -9, judged by the history checker; and brokers that
are broken on purpose.

`make crash` runs 50 rounds per engine with a classic and a new group side by side, and fewer with
cooperative members and a group between the protocols, and without syncs. A failure leaves all
histories and the broker's log in pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.testing.broker import BrokerStartFailed
from tests.crash.group_rounds import BETWEEN_BOTH, BOTH_PROTOCOLS, run
from tests.crash.harness import LAUNCHER, ClientFailed
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.crash.worker import PARTITIONS
from tests.judges.group_history import Report


def all_well(reports: dict[str, Report]) -> bool:
    return all(report.ok for report in reports.values())


def told(reports: dict[str, Report]) -> str:
    return "\n".join(f"group {group}: {report}" for group, report in reports.items())


def rules(reports: dict[str, Report]) -> set[str]:
    return {violation.rule for report in reports.values() for violation in report.violations}


def test_groups_lose_nothing(tmp_path: Path, progress: Progress) -> None:
    reports = run(tmp_path, "segment", BOTH_PROTOCOLS, rounds=2, seed=1, progress=progress)
    assert all_well(reports), told(reports)
    for report in reports.values():
        assert report.statistics.lives >= 4
        assert report.statistics.records > 100
        assert report.statistics.confirmed_commits >= PARTITIONS, "each log was worked off"


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_groups_lose_nothing_over_many_rounds(
    engine: str, seed: int, tmp_path: Path, progress: Progress
) -> None:
    reports = run(tmp_path, engine, BOTH_PROTOCOLS, rounds=25, seed=seed, progress=progress)
    assert all_well(reports), told(reports)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_cooperating_members_and_both_protocols_in_one_group(
    engine: str, tmp_path: Path, progress: Progress
) -> None:
    reports = run(tmp_path, engine, BETWEEN_BOTH, rounds=15, seed=3, progress=progress)
    assert all_well(reports), told(reports)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_groups_lose_nothing_without_syncs(engine: str, tmp_path: Path, progress: Progress) -> None:
    """kill -9 removes nothing that the operating system has."""
    reports = run(tmp_path, engine, BOTH_PROTOCOLS, rounds=6, seed=4, durability="os", progress=progress)
    assert all_well(reports), told(reports)


@pytest.mark.full
@pytest.mark.parametrize(
    "state_storage",
    ["loses-offsets:segment", "loses-offsets:lmdb", "drops-writes:rocksdb", "answers-early:segment"],
)
def test_a_state_store_that_loses_offsets_is_caught(state_storage: str, tmp_path: Path) -> None:
    """A kill reveals it only if it happens before a later commit covers the lost one, hence the
    further attempts."""
    for attempt in range(12):
        home = tmp_path / str(attempt)
        home.mkdir()
        try:
            reports = run(
                home,
                "segment",
                BOTH_PROTOCOLS,
                rounds=3,
                seed=attempt,
                state_storage=state_storage,
                command=LAUNCHER,
            )
        except ClientFailed:
            return  # the topic itself is lost
        except BrokerStartFailed as refused:
            if "cannot use the data in" not in str(refused):
                raise
            return  # the remaining state contradicts itself
        if not all_well(reports):
            break
    assert "start" in rules(reports), told(reports)


@pytest.mark.full
def test_skipped_syncs_are_not_seen_by_kill_9(tmp_path: Path) -> None:
    """Only a power cut reveals them (tests/powercut)."""
    reports = run(tmp_path, "skips-sync:segment", BOTH_PROTOCOLS, rounds=5, seed=1, command=LAUNCHER)
    assert all_well(reports), told(reports)
