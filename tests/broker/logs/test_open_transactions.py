"""Which transactions of a log are open, and which were aborted in a range."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.broker.logs.open_transactions import OpenTransactions
from kbroker.formats.transactions import AbortedTransaction


def test_the_oldest_open_transaction_holds_the_stable_offset() -> None:
    found = OpenTransactions()
    assert found.first_offset is None
    found.begin(7, 3)
    found.begin(8, 5)
    assert (found.first_offset, len(found)) == (3, 2)
    found.end(3, 9, is_abort=False)
    assert found.first_offset == 5
    found.end(5, 10, is_abort=False)
    assert found.first_offset is None
    assert found.aborted == []


def test_a_marker_without_a_transaction_changes_nothing() -> None:
    found = OpenTransactions()
    found.begin(7, 3)
    found.end(-1, 9, is_abort=True)
    assert (found.first_offset, found.aborted) == (3, [])


def test_an_aborted_transaction_notes_what_is_stable_then() -> None:
    found = OpenTransactions()
    found.begin(7, 3)
    found.begin(8, 5)
    found.end(3, 9, is_abort=True)
    found.end(5, 10, is_abort=True)
    assert found.aborted == [AbortedTransaction(7, 3, 9, 5), AbortedTransaction(8, 5, 10, 11)]
    assert found.unsaved == found.aborted


def test_what_begins_after_the_marker_does_not_count() -> None:
    """It may not be durable: a full disk refuses it, and another one begins at a lower offset."""
    found = OpenTransactions()
    found.begin(7, 0)
    found.begin(8, 21)
    found.end(0, 10, is_abort=True)
    found.reset([])
    found.begin(9, 11)
    found.end(11, 12, is_abort=True)
    assert [each.producer_id for each in found.aborted_in(0, 15)] == [7, 9]


def test_what_is_stored_is_not_stored_again() -> None:
    found = OpenTransactions([AbortedTransaction(7, 3, 9, 10)])
    found.begin(7, 3)
    found.end(3, 9, is_abort=True)  # A replay finds its marker again.
    assert (len(found.aborted), found.unsaved) == (1, [])
    found.begin(8, 12)
    found.end(12, 13, is_abort=True)
    found.saved_below(13)
    assert [each.last_offset for each in found.unsaved] == [13]
    found.saved_below(14)
    assert found.unsaved == []


def test_the_log_forgets_those_whose_marker_it_has_lost() -> None:
    found = OpenTransactions([AbortedTransaction(1, n, n + 1, n + 2) for n in range(0, 20, 2)])
    assert [each.last_offset for each in found.trim(4)] == [1, 3]
    assert found.aborted[0].last_offset == 5
    assert found.trim(4) == []


@pytest.mark.parametrize("seed", range(20))
def test_no_aborted_transaction_of_a_range_is_missing(seed: int) -> None:
    """Compared with all of them, for random interleaved transactions and all ranges."""
    chooser, found = Random(seed), OpenTransactions()
    open_at: dict[int, int] = {}
    for offset in range(120):
        producer_id = chooser.randrange(5)
        if producer_id not in open_at:
            open_at[producer_id] = offset
            found.begin(producer_id, offset)
        elif chooser.random() < 0.4:
            found.end(open_at.pop(producer_id), offset, is_abort=chooser.random() < 0.6)
    assert found.aborted
    for first in range(0, 120, 3):
        for end in range(first + 1, 122, 5):
            wanted = [each for each in found.aborted if each.last_offset >= first and each.first_offset < end]
            assert found.aborted_in(first, end) == wanted
