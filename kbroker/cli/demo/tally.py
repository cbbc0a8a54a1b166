"""The fate of each order of the demo. The tally is exact, whichever processes are killed.

An order is finished when its acceptance, its rejection or its release at the delivery limit is
confirmed. If the confirmation is lost with a broker or a consumer, the fate of the order is open.
Then either the order is redelivered, or the lag on disk is 0, which shows that it was finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kbroker.cli.demo.orders import Verdict
from kbroker.cli.demo.worker import Order

Fate: TypeAlias = Literal["accepted", "rejected", "gave_up"]


class FinishedTwice(Exception):
    """A finished order was delivered again, which a broker must never do."""


@dataclass(slots=True)
class Strike:
    """A kill -9, and the orders that the killed process, or its clients, held at that moment."""

    held: frozenset[int]
    again: set[int] = field(default_factory=set)
    """Those of `held` that were redelivered later."""

    def __str__(self) -> str:
        if len(self.again) == len(self.held):
            return f"{len(self.held):,}, all delivered again"
        return f"{len(self.held):,}: {len(self.again):,} delivered again, the rest had been acknowledged"


@dataclass(slots=True)
class Tally:
    count: int
    delivery_limit: int
    by_worker: Counter[int] = field(default_factory=Counter)
    """Deliveries."""
    again: int = 0
    """Redeliveries."""
    seen: set[int] = field(default_factory=set)
    fates: dict[int, Fate] = field(default_factory=dict)
    """Of finished orders."""
    open: dict[int, Fate] = field(default_factory=dict)
    """Fates of orders whose confirmation was lost."""
    in_hand: dict[int, Sequence[Order]] = field(default_factory=dict)
    """By worker: orders that it holds and has not acknowledged."""
    strikes: list[Strike] = field(default_factory=list)

    @property
    def finished(self) -> int:
        return len(self.fates)

    @property
    def total(self) -> Counter[Fate]:
        return Counter(self.fates.values())

    def taken(self, worker: int, orders: Sequence[Order]) -> None:
        """Raises FinishedTwice."""
        offsets = {order.offset for order in orders}
        if offsets & self.fates.keys():
            raise FinishedTwice(
                f"order {min(offsets & self.fates.keys())} was delivered again after it was finished"
            )
        for offset in offsets & self.open.keys():
            del self.open[offset]
        for strike in self.strikes:
            strike.again |= strike.held & offsets
        self.again += len(offsets & self.seen)
        self.seen |= offsets
        self.by_worker[worker] += len(orders)
        self.in_hand[worker] = orders

    def answered(self, worker: int, *, confirmed: bool) -> None:
        fates = self.fates if confirmed else self.open
        for order in self.in_hand.pop(worker):
            if fate := self._fate(order):
                fates[order.offset] = fate

    def struck(self, *workers: int) -> Strike:
        """Record a kill: these workers lose the orders that they hold. Call it before any
        redelivery."""
        strike = Strike(
            frozenset(order.offset for worker in workers for order in self.in_hand.get(worker, ()))
        )
        self.strikes.append(strike)
        return strike

    def nothing_is_left(self) -> None:
        """The lag is 0, so all open orders were finished."""
        self.fates.update(self.open)
        self.open.clear()

    def _fate(self, order: Order) -> Fate | None:
        """None: it will be redelivered."""
        match order.verdict:
            case Verdict.ACCEPT:
                return "accepted"
            case Verdict.REJECT:
                return "rejected"
            case Verdict.RELEASE:
                return "gave_up" if order.delivery_count >= self.delivery_limit else None
