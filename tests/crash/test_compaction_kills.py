"""Compacted topics on every engine under kill -9, judged by the history checker; cleaners that are
broken on purpose; and a backup that is taken in the middle of a pass.

`make crash` runs 50 rounds per engine, and fewer without syncs. A failure leaves all histories and
the broker's log in pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.compaction_rounds import broker_of, judge_state, run, settings_of, tormented
from tests.crash.harness import ClientFailed
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES

BROKEN = [
    pytest.param("drops-newest", {"lost"}, id="drops-newest"),
    *(
        pytest.param(fault, rules, id=fault, marks=pytest.mark.full)
        for fault, rules in {
            "drops-tombstones": {"resurrected"},
            "forgets-aborted": {"lost", "resurrected"},
            "keeps-tombstones": {"late"},
            "last-segment-first": {"resurrected", "early", "lost"},  # lost: it meets markers first
        }.items()
    ),
]
"""A fault of tests.crash.broken_compaction, and rules of which one is violated."""


def test_the_latest_values_stay(tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, "segment", rounds=2, seed=1, progress=progress)
    assert report.ok, str(report)
    done = report.statistics
    assert done.lives >= 3
    assert done.kills_in_passes >= 1
    assert done.confirmed > 200
    assert done.cleaned > 100
    assert done.checked > 100
    assert done.excused <= done.checked * 0.01
    assert done.acknowledgements > 50


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_latest_values_stay_over_many_rounds(
    engine: str, seed: int, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, engine, rounds=25, seed=seed, progress=progress)
    assert report.ok, str(report)
    done = report.statistics
    assert done.kills_in_passes >= 15
    assert done.kills_in_replacements >= 5
    assert done.trimmed
    assert done.excused <= done.checked * 0.01


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_the_latest_values_stay_without_syncs(engine: str, tmp_path: Path, progress: Progress) -> None:
    """kill -9 removes nothing that the operating system has."""
    report = run(tmp_path, engine, rounds=10, seed=3, durability="os", progress=progress)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "engine",
    ["segment", *(pytest.param(name, marks=pytest.mark.full) for name in ENGINES if name != "segment")],
)
def test_a_backup_from_the_middle_of_a_pass_has_the_latest_values(engine: str, tmp_path: Path) -> None:
    """A snapshot of the file system, as docs/backup.md says: here a copy while the broker is
    frozen."""
    home, restored = tmp_path / "broker", tmp_path / "restored"
    home.mkdir()
    restored.mkdir()
    with tormented(broker_of(home, engine), home, 1) as torment:
        torment.load(1.0)
        before = torment.back_up(restored / "data")
        life = torment.torment.life
    broker = broker_of(restored, engine)
    report = judge_state(broker, restored, before, life, settings_of(), is_settled=True)
    assert report.ok, str(report)
    assert report.statistics.kills_in_replacements == 1
    assert report.statistics.confirmed > 50


@pytest.mark.parametrize(("fault", "rules"), BROKEN)
def test_a_fault_is_caught(fault: str, rules: set[str], tmp_path: Path) -> None:
    """There are several attempts, since a kill may miss the moment."""
    for attempt in range(4):
        home = tmp_path / str(attempt)
        home.mkdir()
        try:
            report = run(home, "segment", rounds=1, seed=attempt, fault=fault)
        except ClientFailed:
            continue
        if not report.ok:
            break
    assert rules & {violation.rule for violation in report.violations}, str(report)
