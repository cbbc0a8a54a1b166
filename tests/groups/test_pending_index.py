"""The end of a transaction costs what its own offsets cost, whatever others have pending."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any
from uuid import UUID

from kbroker.groups.offsets.pending import PendingOf, PendingOffsets
from kbroker.groups.outcome import EndPending

TOPIC = UUID(int=1)
OFFSET: Any = object()


def filled(others: int) -> PendingOffsets:
    pending = PendingOffsets()
    for number in range(others):
        pending.put(number + 10, f"g{number % 7}", {(TOPIC, number): OFFSET})
    pending.put(1, "g1", {(TOPIC, 0): OFFSET, (TOPIC, 1): OFFSET})
    return pending


def calls_of_an_end(pending: PendingOffsets) -> int:
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        own = pending.of_producer(1)
        pending.committed_by(own)
        pending.end(EndPending(1, ()))
    finally:
        sys.setprofile(None)
    assert pending.of_producer(1) == []
    return calls


def test_an_end_does_not_look_at_the_offsets_of_others() -> None:
    assert calls_of_an_end(filled(5000)) == calls_of_an_end(filled(5))


def test_producers_are_those_with_offsets() -> None:
    pending = filled(3)
    assert pending.producer_ids() == {1, 10, 11, 12}
    assert sorted(pending.of_producer(1)) == [PendingOf(1, "g1", (TOPIC, each)) for each in (0, 1)]
    pending.drop(pending.of_group("g1"))
    assert pending.producer_ids() == {10, 12}
    pending.drop(list(pending))
    assert not pending
    assert vars(pending) == {**vars(PendingOffsets()), "_saves": 4}
