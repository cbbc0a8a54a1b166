"""The demo's orders and the fate of each. They are generated from a seed, so every run is the same.

    kind        share     what a consumer does
    good        the rest  accepts it
    flaky       5 %       the payment fails at the first delivery (release), succeeds at the next
    hopeless    0.1 %     the payment fails at every delivery, up to the delivery limit
    poison      0.5 %     not readable as JSON: rejected at once

Consumers see only the record's bytes and its delivery count, not this table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from enum import IntEnum

SEED = 932
_ITEMS = ("keyboard", "lamp", "desk", "chair", "monitor", "notebook", "pen", "cable")
_CARDS = ("ok", "ok after retry", "expired")
_POISON_SHARE, _HOPELESS_SHARE, _FLAKY_SHARE = 0.005, 0.001, 0.05


class Verdict(IntEnum):
    """A consumer's acknowledgement of an order; the numbers are Kafka's acknowledge types."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


def orders(count: int, seed: int = SEED) -> Iterator[bytes]:
    """`count` orders, each a JSON object, some of them truncated."""
    chance = random.Random(seed)
    for number in range(count):
        fate = chance.random()
        card = (
            _CARDS[2]
            if fate < _HOPELESS_SHARE
            else _CARDS[1]
            if fate < _HOPELESS_SHARE + _FLAKY_SHARE
            else _CARDS[0]
        )
        order = {
            "order": number,
            "customer": f"customer-{chance.randrange(5000):04}",
            "item": chance.choice(_ITEMS),
            "cents": chance.randrange(100, 50_000),
            "card": card,
        }
        line = json.dumps(order, separators=(",", ":")).encode()
        yield line[: len(line) // 2] if fate > 1 - _POISON_SHARE else line


def handle(value: bytes, delivery_count: int) -> Verdict:
    """A consumer's work: read the order and charge the card."""
    try:
        order = json.loads(value)
    except ValueError:
        return Verdict.REJECT
    paid = order["card"] == "ok" or (order["card"] == "ok after retry" and delivery_count > 1)
    return Verdict.ACCEPT if paid else Verdict.RELEASE
