"""The demo's orders: the same in every run, and every outcome is among them."""

from __future__ import annotations

from collections import Counter

from kbroker.cli.demo.orders import Verdict, handle, orders


def test_the_same_orders_in_every_run() -> None:
    assert list(orders(500)) == list(orders(1000))[:500]


def test_every_fate_occurs_in_about_its_share() -> None:
    fates = Counter((handle(order, 1), handle(order, 2), handle(order, 5)) for order in orders(50_000))
    good, flaky, hopeless, poison = (
        Verdict.ACCEPT,
        (Verdict.RELEASE, Verdict.ACCEPT),
        Verdict.RELEASE,
        Verdict.REJECT,
    )
    assert set(fates) == {(good,) * 3, (*flaky, Verdict.ACCEPT), (hopeless,) * 3, (poison,) * 3}
    assert 2000 < fates[(*flaky, Verdict.ACCEPT)] < 3000
    assert 20 < fates[(hopeless,) * 3] < 80
    assert 150 < fates[(poison,) * 3] < 350
