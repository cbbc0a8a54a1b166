"""Transactions under replayed power cuts, judged by the history checker, with both durabilities.

`make powercut` makes the long runs. A failure leaves the states of the disk, and the histories, in
pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.powercut.broker_cuts import run
from tests.powercut.transaction_cuts import TRANSACTIONS, UNSYNCED, TransactionSetup

PAIRS = [("segment", "segment"), ("lmdb", "lmdb"), ("rocksdb", "rocksdb"), ("segment", "lmdb")]


def test_transactions_are_exact_after_a_cut(home: Path, progress: Progress) -> None:
    setup = TransactionSetup("segment", "segment")
    wrong = run(setup, home, count=4, seed=1, load_s=3, scene=TRANSACTIONS, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("storage", "state_storage"), PAIRS)
def test_transactions_are_exact_after_many_cuts(
    storage: str, state_storage: str, seed: int, home: Path, progress: Progress
) -> None:
    setup = TransactionSetup(storage, state_storage)
    wrong = run(setup, home, count=50, seed=seed, load_s=8, kills=2, scene=TRANSACTIONS, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize(("storage", "state_storage"), PAIRS)
def test_transactions_are_whole_even_without_syncs(
    storage: str, state_storage: str, home: Path, progress: Progress
) -> None:
    setup = TransactionSetup(storage, state_storage, durability="os")
    wrong = run(setup, home, count=40, seed=3, load_s=8, kills=2, scene=UNSYNCED, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
def test_a_skipped_sync_is_caught(home: Path) -> None:
    """Of the logs: a commit is decided, and its records are lost."""
    setup = TransactionSetup("skips-sync:segment", "lmdb")
    assert run(setup, home, count=40, seed=1, load_s=4, scene=TRANSACTIONS)
