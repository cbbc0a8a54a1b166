"""Share consumers of kbroker-client and their broker under kill -9, with lost answers and slow
links: no record is lost, and records are repeated only where that is allowed.

A failure names its seed, and leaves the notes of all processes: judging.py judges them again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from clients.python.tests.chaos.judging import Verdict
from clients.python.tests.chaos.rounds import Plan, chaos

full = pytest.mark.full
LONGEST_S = 1800


def run(home: Path, plan: Plan, seed: int) -> tuple[Verdict, Counter[str]]:
    """Returns the verdict, and what was done to the processes and on the network."""
    with chaos(home, plan, seed) as running:
        running.disturb(time.monotonic() + LONGEST_S)
        verdict = running.finish()
        return verdict, running.done + running.network()


def lost_answers(done: Counter[str], *requests: str) -> int:
    return sum(count for what, count in done.items() if what.startswith("lost") and what.endswith(requests))


def judged(home: Path, plan: Plan, seed: int | None = None) -> tuple[Counter[str], Counter[str]]:
    """Returns what the judge has seen, and what was done."""
    seed = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    began_s = time.monotonic()
    verdict, done = run(home, plan, seed)
    print(f"{plan}, seed {seed}: {time.monotonic() - began_s:.0f} s")
    print(f"{verdict}\n{dict(done)}")
    assert not verdict.violations, f"seed {seed}: {verdict}"
    seen = verdict.statistics
    assert seen["confirmed_sends"] >= plan.records
    assert seen["redeliveries"] > 0
    assert seen["excused"] <= seen["records"] // 100
    assert done["kills of the broker"] > 0
    assert done["kills of consuming processes"] > 0
    assert done["held up"] > 0
    return seen, done


def test_no_record_is_lost_and_repeats_are_allowed(tmp_path: Path) -> None:
    judged(tmp_path, Plan(2000))


@full
@pytest.mark.parametrize("storage", ["segment", "lmdb", "rocksdb"])
def test_many_records_on_every_engine(tmp_path: Path, storage: str) -> None:
    plan = Plan(100_000, storage=storage, partitions=6, per_second=2000, pause_s=(0.5, 4.0))
    seen, done = judged(tmp_path, plan)
    assert seen["unknown_acknowledgements"] > 0
    assert lost_answers(done, "share_acknowledge", "share_fetch") > 5
    assert lost_answers(done, "produce") > 0


@full
def test_a_million_records(tmp_path: Path) -> None:
    plan = Plan(1_000_000, partitions=8, per_second=4000, pause_s=(0.5, 6.0), lock_ms=2000)
    seen, done = judged(tmp_path, plan)
    assert seen["unknown_acknowledgements"] > 0
    assert lost_answers(done, "share_acknowledge", "share_fetch") > 20
    assert lost_answers(done, "produce") > 5


# -- the proof of the judge: clients that lie
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "fault", "rules"),
    [
        ("consuming", "early", {"undone"}),
        ("consuming", "twice", {"count"}),
        ("producing", "early", {"missing", "contradiction"}),
    ],
)
def test_the_judge_finds_clients_that_lie(tmp_path: Path, role: str, fault: str, rules: set[str]) -> None:
    plan = Plan(
        1000, storage="memory", consumers=3, per_second=1000, pause_s=(0.1, 0.3), faults={role: fault},
        is_disturbed=False,
    )  # fmt: skip
    verdict, _ = run(tmp_path, plan, seed=1)
    assert verdict.rules & rules, str(verdict)
