"""Work queues under kill -9, on every engine and with both persisters, judged by the history
checker; and brokers that are broken on purpose, which it must catch.

`make crash` makes the long runs. A failure leaves all histories and the broker's log in pytest's
temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import broken_keeping
from tests.crash.broken_queues import FAULTS, ORDER_FAULTS
from tests.crash.harness import LAUNCHER
from tests.crash.queue_rounds import run
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.judges.queue_history import QueueStatistics, Report

ROUNDS, CUT_LOG_ROUNDS = 25, 13
"""Per persister, and per persister and retention: about 50 for an engine."""
PERSISTERS = ("default", "control-records")
CAUGHT_BY = {
    "loses-parked": {"unfinished"},
    "keeps-accepted": {"undone", "left"},
    "forgets-due-times": {"early"},
    "hurries-at-start": {"early"},
    "resets-counts": {"count fell"},
    "mixes-generations": {"passed over"},
    "keeps-lost": {"left"},
    "forgets-keys": {"key order", "two of a key"},
    "frees-parked-keys": {"key order"},
}
"""By fault: the rules of which at least one must be violated."""
KEEPING_CAUGHT_BY = {
    "cuts-first": {"unfinished"},
    "drops-returned": {"unfinished"},
    "strips-headers": {"altered"},
    "leaves-kept": {"left"},
    "forgets-holders": {"unfinished"},
}
"""Of the brokers of tests.crash.broken_keeping."""
RETENTIONS = ("workqueue", "unfinished")
QUICK = ("loses-parked",)
ATTEMPTS = 3


def was_busy(done: QueueStatistics, rounds: int) -> bool:
    """Otherwise the absence of violations means little."""
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


def check_was_cut(report: Report, rounds: int) -> None:
    """Logs were trimmed, and jobs were read from beside them."""
    assert report.ok, str(report)
    done = report.statistics
    assert done.confirmed_sends > 30 * rounds, report
    assert done.cut > done.confirmed_sends / 4, report
    assert done.kept > 2 * rounds, report


@pytest.mark.parametrize(("engine", "retention"), [("segment", "workqueue")])
def test_a_cut_log_loses_nothing(engine: str, retention: str, tmp_path: Path, progress: Progress) -> None:
    check_was_cut(
        run(tmp_path, engine, rounds=1, seed=1, retention=retention, load_s=(1, 1), progress=progress), 1
    )


@pytest.mark.full
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_log_loses_nothing_over_many_rounds(
    engine: str, persister: str, retention: str, tmp_path: Path, progress: Progress
) -> None:
    """Meanwhile the group is deleted and recreated, and one of the logs is purged."""
    options = {"persister": persister, "retention": retention, "anew_before": 3, "progress": progress}
    check_was_cut(run(tmp_path, engine, rounds=CUT_LOG_ROUNDS, seed=4, **options), CUT_LOG_ROUNDS)


@pytest.mark.full
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_log_loses_nothing_without_syncs(
    engine: str, persister: str, retention: str, tmp_path: Path, progress: Progress
) -> None:
    options = {"persister": persister, "durability": "os", "retention": retention, "progress": progress}
    check_was_cut(run(tmp_path, engine, rounds=3, seed=6, **options), 3)


@pytest.mark.full
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_of_one_key_keep_their_order(
    engine: str, persister: str, tmp_path: Path, progress: Progress
) -> None:
    """Eight workers and a thousand keys; one of the keys has half of the jobs."""
    report = run(
        tmp_path, engine, rounds=ROUNDS, seed=5, persister=persister, ordered=True, progress=progress
    )
    assert report.ok, str(report)
    assert report.statistics.keyed > 1000, report


@pytest.mark.full
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_queue_loses_nothing_over_many_rounds(
    engine: str, persister: str, tmp_path: Path, progress: Progress
) -> None:
    report = run(
        tmp_path, engine, rounds=ROUNDS, seed=2, persister=persister, anew_before=3, progress=progress
    )
    assert report.ok, str(report)
    assert was_busy(report.statistics, ROUNDS), report
    assert report.statistics.exhausted > 5


@pytest.mark.full
@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_kill_9_takes_nothing_of_a_queue_even_without_syncs(
    engine: str, persister: str, tmp_path: Path, progress: Progress
) -> None:
    report = run(
        tmp_path,
        engine,
        rounds=5,
        seed=3,
        persister=persister,
        durability="os",
        anew_before=3,
        progress=progress,
    )
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in QUICK else pytest.mark.full) for fault in FAULTS]
)
def test_broken_parking_is_caught(fault: str, tmp_path: Path) -> None:
    """Some faults are seen only if a kill happens at the right time, hence the further attempts."""
    for attempt in range(ATTEMPTS):
        home = tmp_path / str(attempt)
        home.mkdir()
        anew_before = 1 if fault == "mixes-generations" else None
        rounds = 1 if fault in QUICK else 3
        options = {"anew_before": anew_before, "patience_s": 3, "ordered": fault in ORDER_FAULTS}
        report = run(home, "segment", rounds=rounds, seed=attempt, command=[*LAUNCHER, fault], **options)
        if not report.ok:
            break
    assert CAUGHT_BY[fault] & {violation.rule for violation in report.violations}, str(report)


@pytest.mark.full
@pytest.mark.parametrize("fault", broken_keeping.FAULTS)
def test_broken_keeping_is_caught(fault: str, tmp_path: Path) -> None:
    retention = "unfinished" if fault == "forgets-holders" else "workqueue"
    for attempt in range(ATTEMPTS):
        home = tmp_path / str(attempt)
        home.mkdir()
        command = [*LAUNCHER, fault]
        report = run(
            home, "segment", rounds=2, seed=attempt, command=command, patience_s=3, retention=retention
        )
        if not report.ok:
            break
    assert KEEPING_CAUGHT_BY[fault] & {violation.rule for violation in report.violations}, str(report)
