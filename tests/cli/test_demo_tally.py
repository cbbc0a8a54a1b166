"""The demo's tally: exact whatever was killed, and wrong for a broker that delivers finished
records."""

from __future__ import annotations

import pytest

from kbroker.cli.demo.orders import Verdict
from kbroker.cli.demo.tally import FinishedTwice, Tally
from kbroker.cli.demo.worker import Order

LIMIT = 3


def take(
    tally: Tally, worker: int, *offsets: int, verdict: Verdict = Verdict.ACCEPT, delivery_count: int = 1
) -> None:
    tally.taken(worker, [Order(offset, delivery_count, verdict) for offset in offsets])


def test_fates_of_confirmed_orders() -> None:
    tally = Tally(3, LIMIT)
    for offset, verdict in enumerate((Verdict.ACCEPT, Verdict.REJECT)):
        take(tally, 1, offset, verdict=verdict)
        tally.answered(1, confirmed=True)
    for delivery_count in range(1, LIMIT + 1):
        assert tally.finished == 2
        take(tally, 2, 2, verdict=Verdict.RELEASE, delivery_count=delivery_count)
        tally.answered(2, confirmed=True)
    assert tally.fates == {0: "accepted", 1: "rejected", 2: "gave_up"}
    assert (tally.again, dict(tally.by_worker)) == (LIMIT - 1, {1: 2, 2: LIMIT})


def test_a_lost_confirmation_is_open_until_the_order_comes_again_or_nothing_is_left() -> None:
    tally = Tally(2, LIMIT)
    take(tally, 1, 0, 1)
    tally.answered(1, confirmed=False)
    assert (tally.finished, tally.open) == (0, {0: "accepted", 1: "accepted"})
    take(tally, 2, 0, verdict=Verdict.REJECT)
    assert tally.open == {1: "accepted"}
    tally.answered(2, confirmed=True)
    tally.nothing_is_left()
    assert (tally.fates, tally.open) == ({0: "rejected", 1: "accepted"}, {})


def test_a_release_whose_confirmation_was_lost_is_not_the_end() -> None:
    tally = Tally(1, LIMIT)
    take(tally, 1, 0, verdict=Verdict.RELEASE)
    tally.answered(1, confirmed=False)
    assert tally.open == {}


def test_a_strike_knows_what_was_in_hand_and_came_again() -> None:
    tally = Tally(4, LIMIT)
    take(tally, 1, 0, 1)
    take(tally, 2, 2)
    take(tally, 3, 3)
    tally.answered(3, confirmed=True)
    strike = tally.struck(1, 2, 3)
    assert strike.held == {0, 1, 2}
    take(tally, 3, 1, 2)
    assert str(strike) == "3: 2 delivered again, the rest had been acknowledged"
    tally.answered(3, confirmed=True)
    take(tally, 3, 0)
    assert str(strike) == "3, all delivered again"


def test_a_finished_order_must_not_come_again() -> None:
    tally = Tally(2, LIMIT)
    take(tally, 1, 0)
    tally.answered(1, confirmed=True)
    with pytest.raises(FinishedTwice, match="order 0 was delivered again"):
        take(tally, 2, 1, 0)
