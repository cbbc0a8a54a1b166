"""The engine of the working tree stores the same rows as that of an earlier commit, and shows
members the same.

`KBROKER_SHADOW_STEPS=n pytest -m full tests/share/shadow` leads lives of n commands in all (a
million unless told otherwise) from `KBROKER_SHADOW_SEED`. `python -m tests.share.shadow` shows its
progress, and shrinks a life in which the engines differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields

import pytest

from kbroker.share.statistics import SharePartitionStatistics
from tests.share.shadow import coverage, pair
from tests.share.shadow.faults import FAULTS
from tests.share.shadow.old_tree import NoHistory, plain
from tests.share.shadow.pair import Decided, Difference, Judge
from tests.share.shadow.run import alike, commands_of, lead, run, search, shrunk

_FIRST, _SHORT = 60, 8_000
"""The first life, and steps: all hard cases happen in these lives."""
_LIVES = 200
_SEEDS = {"waits are not capped after a restart": 8, "keys are not looked up": 41}
"""Where the search for a fault begins that only few lives find."""
_RARE = ("rows removed during a read come back",)
"""Found in one life of a hundred."""
_INSIDE = (
    "has_unsaved", "is_settled", "has_archiving", "has_unsaved_archiving", "has_dead_letters",
    "knows_archiving", "knows_redeliveries", "needs_sweep", "floor", "kept_from", "begin_read",
    "next_deadline_ms", "ran_out", "scan_from", "has_to_scan",
    *(f"statistics.{field.name}" for field in fields(SharePartitionStatistics)),
)  # fmt: skip
"""What neither the store nor a member sees."""


@pytest.fixture(autouse=True)
def _alike() -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(alike())
        except NoHistory as error:
            pytest.skip(str(error))
        yield


def test_the_engines_agree() -> None:
    found = run(_FIRST, _SHORT)
    assert found is None, str(found)
    assert coverage.missing(_SHORT) == {}


@pytest.mark.full
def test_the_engines_agree_in_a_million_steps() -> None:
    steps = int(os.environ.get("KBROKER_SHADOW_STEPS", "1000000"))
    found = run(int(os.environ.get("KBROKER_SHADOW_SEED", "1000")), steps, shows=True)
    assert found is None, str(found)
    print(coverage.report())
    assert coverage.missing(steps) == {}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.full if fault in _RARE else ()) for fault in FAULTS]
)
def test_a_broken_engine_is_told_apart(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows, or by what members see."""
    monkeypatch.setattr(pair, "DECIDED", {name: Decided("not seen outside") for name in _INSIDE})
    FAULTS[fault](monkeypatch)
    assert search(_SEEDS.get(fault, 0), _LIVES) is not None


def test_a_difference_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["a due time is off by one"](monkeypatch)
    found = search(0, _LIVES)
    assert found is not None
    fewer = shrunk(found)
    assert len(fewer.commands) < len(found.commands)
    assert fewer.kind == found.kind
    assert "rows.parked " in str(fewer)


def test_a_life_can_be_led_again() -> None:
    assert commands_of(3, 50) == commands_of(3, 50)
    assert lead(3, commands_of(3, 50)[::2]) is None


def test_decided_differences_are_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge()
    with pytest.raises(Difference, match=r"statistics\.locks: new 2, old 1"):
        judge.same("statistics", {"locks": 2}, {"locks": 1})
    only_more = Decided("locks of both windows", lambda new, old: new > old)
    monkeypatch.setattr(pair, "DECIDED", {"statistics.locks": only_more})
    judge.same("statistics", {"locks": 2}, {"locks": 1})
    with pytest.raises(Difference, match="locks"):
        judge.same("statistics", {"locks": 1}, {"locks": 2})


def test_every_decided_difference_has_a_reason() -> None:
    assert all(decided.reason for decided in pair.DECIDED.values())


def test_values_lose_their_classes() -> None:
    assert plain([Decided]) == [Decided]
    assert plain({3, 1}) == [1, 3]
