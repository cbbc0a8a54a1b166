"""Idempotent producers and purged logs under replayed power cuts, with both durabilities; and
stores that are broken on purpose.

`make powercut` makes the long runs. A failure leaves the states of the disk, and the histories, in
pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES, PAIRS
from tests.powercut.purge_cuts import Setup, Where, rules_of, run, told

BROKEN = [
    pytest.param("segment", "ids-unsynced:lmdb", Where.IDS, "id twice", id="ids-unsynced"),
    pytest.param(
        "skips-sync:segment", "keeps-snapshots:lmdb", Where.ENDS, "stored twice", id="keeps-snapshots"
    ),
    pytest.param("skips-sync:segment", "keeps-starts:lmdb", Where.PURGES, "removed", id="keeps-starts"),
    pytest.param("segment", "ids-unsynced:segment", Where.IDS, "id twice", marks=pytest.mark.full),
    pytest.param(
        "skips-sync:rocksdb", "keeps-snapshots:rocksdb", Where.ENDS, "stored twice", marks=pytest.mark.full
    ),
    pytest.param(
        "skips-sync:rocksdb", "keeps-starts:segment", Where.PURGES, "removed", marks=pytest.mark.full
    ),
]
"""Storage, state storage, where to cut, and the rule that is violated. Engines that sync every
write have nothing to lose."""


@pytest.mark.parametrize(
    ("setup", "count"),
    [(Setup("segment", "segment", "os"), 5), (Setup("rocksdb", "lmdb", "disk"), 3)],
    ids=str,
)
def test_producers_go_on_after_a_cut(setup: Setup, count: int, home: Path, progress: Progress) -> None:
    wrong = run(setup, home, count=count, seed=1, progress=progress)
    assert not wrong, told(wrong)


@pytest.mark.full
@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize("engine", ENGINES)
def test_producers_go_on_after_many_cuts(
    engine: str, durability: str, home: Path, progress: Progress
) -> None:
    wrong = run(Setup(engine, engine, durability), home, count=20, seed=2, progress=progress)
    assert not wrong, told(wrong)


@pytest.mark.full
@pytest.mark.parametrize(("storage", "state_storage"), [pair for pair in PAIRS if pair[0] != pair[1]])
def test_producers_go_on_with_two_engines(
    storage: str, state_storage: str, home: Path, progress: Progress
) -> None:
    wrong = run(Setup(storage, state_storage, "os"), home, count=15, seed=3, progress=progress)
    assert not wrong, told(wrong)


@pytest.mark.parametrize(("storage", "state_storage", "where", "rule"), BROKEN)
def test_a_mistake_is_caught(storage: str, state_storage: str, where: Where, rule: str, home: Path) -> None:
    """With durability `os`, since only it can lose the data that these faults concern. The broker's
    own repairs must not hide them."""
    wrong = run(Setup(storage, state_storage, "os"), home, count=12, seed=1, where=[where], until=rule)
    assert rule in rules_of(wrong), told(wrong)
