"""Transactions on every engine under kill -9, judged by the history checker; and brokers that are
broken on purpose.

`make crash` runs 50 rounds per engine, and fewer without syncs. A failure leaves all histories and
the broker's log in pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import LAUNCHER, ClientFailed
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.crash.transaction_rounds import run

BROKEN = [
    pytest.param("lists-no-aborted", {"aborted"}, id="lists-no-aborted"),
    *(
        pytest.param(fault, rules, id=fault, marks=pytest.mark.full)
        for fault, rules in {
            "skips-a-marker": {"stuck"},
            "completes-early": {"stuck", "torn", "lost", "skipped"},
            "commits-aborts": {"aborted"},
            "takes-aborted-offsets": {"unprocessed"},
        }.items()
    ),
]
"""A fault of tests.crash.broken_transactions, and rules of which one is violated."""


def test_transactions_are_exact(tmp_path: Path, progress: Progress) -> None:
    report = run(tmp_path, "segment", rounds=2, seed=1, progress=progress)
    assert report.ok, str(report)
    done = report.statistics
    assert done.lives >= 4
    assert done.committed > 10
    assert done.aborted > 5
    assert done.outputs > 20


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_transactions_are_exact_over_many_rounds(
    engine: str, seed: int, tmp_path: Path, progress: Progress
) -> None:
    report = run(tmp_path, engine, rounds=25, seed=seed, progress=progress)
    assert report.ok, str(report)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_transactions_are_exact_without_syncs(engine: str, tmp_path: Path, progress: Progress) -> None:
    """kill -9 removes nothing that the operating system has."""
    report = run(tmp_path, engine, rounds=15, seed=3, durability="os", progress=progress)
    assert report.ok, str(report)


@pytest.mark.parametrize(("fault", "rules"), BROKEN)
def test_a_fault_is_caught(fault: str, rules: set[str], tmp_path: Path) -> None:
    """By the judge, or by a client that cannot continue. There are several attempts, since a kill
    may miss the moment."""
    for attempt in range(4):
        home = tmp_path / str(attempt)
        home.mkdir()
        try:
            report = run(home, "segment", rounds=1, seed=attempt, command=[*LAUNCHER, fault], is_brief=True)
        except ClientFailed:
            continue
        if not report.ok:
            break
    assert rules & {violation.rule for violation in report.violations}, str(report)
