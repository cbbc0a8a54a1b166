"""Work queues under kill -9, on every engine and with both persisters, judged by the history checker; and brokers that are broken on
purpose, which it must catch.

`make crash` makes the long runs. A failure leaves all histories and the broker's log in pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.testing.queue_history import Statistics
from tests.crash.broken_queues import FAULTS
from tests.crash.harness import LAUNCHER
from tests.crash.queue_rounds import run
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES

ROUNDS = 50
PERSISTERS = ("default", "control-records")
CAUGHT_BY = {
    "loses-parked": {"unfinished"},
    "keeps-accepted": {"undone", "left"},
    "forgets-due-times": {"early"},
    "hurries-at-start": {"early"},
    "resets-counts": {"count fell"},
    "mixes-generations": {"passed over"},
    "keeps-lost": {"left"},
}
"""By fault, the rules of which at least one has to see it."""
QUICK = ("loses-parked",)
ATTEMPTS = 3


def was_busy(done: Statistics, rounds: int) -> bool:
    """Otherwise the absence of violations says little."""
    return (
        done.lives > rounds
        and done.confirmed_sends > 30 * rounds
        and done.delays > 10 * rounds
        and done.schedules > 10 * rounds
        and done.rejected > 0
        and done.passed_over > 0
    )


@pytest.mark.parametrize(("engine", "persister"), [("segment", "default")])
def test_a_queue_loses_nothing(engine: str, persister: str, tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, engine, rounds=2, seed=1, persister=persister, anew_before=1, progress=progress)
    assert report.ok, str(report)
    assert was_busy(report.statistics, 2), report


def test_jobs_of_one_key_keep_their_order(tmp_path: Path, progress: Progress) -> None:
    """Eight workers, a thousand keys, one of which has half of the jobs."""
    report = run(tmp_path, "segment", rounds=2, seed=4, ordered=True, progress=progress)
    assert report.ok, str(report)
    assert report.statistics.keyed > 100, report


@pytest.mark.full
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_of_one_key_keep_their_order_over_many_rounds(engine: str, persister: str, tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, engine, rounds=25, seed=5, persister=persister, ordered=True, progress=progress)
    assert report.ok, str(report)
    assert report.statistics.keyed > 1000, report


@pytest.mark.full
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_queue_loses_nothing_over_many_rounds(engine: str, persister: str, tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, engine, rounds=ROUNDS, seed=2, persister=persister, anew_before=3, progress=progress)
    assert report.ok, str(report)
    assert was_busy(report.statistics, ROUNDS), report
    assert report.statistics.exhausted > 10


@pytest.mark.full
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_kill_9_takes_nothing_of_a_queue_even_without_syncs(engine: str, persister: str, tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, engine, rounds=10, seed=3, persister=persister, durability="os", anew_before=3, progress=progress)
    assert report.ok, str(report)


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=() if fault in QUICK else pytest.mark.full) for fault in FAULTS])
def test_broken_parking_is_caught(fault: str, tmp_path: Path) -> None:
    """Some faults are seen only if a kill comes at the right time, hence the further attempts."""
    for attempt in range(ATTEMPTS):
        home = tmp_path / str(attempt)
        home.mkdir()
        anew_before = 1 if fault == "mixes-generations" else None
        rounds = 1 if fault in QUICK else 3
        report = run(home, "segment", rounds=rounds, seed=attempt, anew_before=anew_before, command=[*LAUNCHER, fault], patience_s=3)
        if not report.ok:
            break
    assert CAUGHT_BY[fault] & {violation.rule for violation in report.violations}, str(report)
