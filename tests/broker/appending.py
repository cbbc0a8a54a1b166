"""Appending to a partition and waiting until the records are visible."""

from __future__ import annotations

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.clock import wall_clock_ms


async def append(partition: Partition, batch: bytes) -> int:
    """Returns the base offset. Raises the store's exception."""
    outcome: list[Exception | None] = []
    done = trio.Event()

    def on_done(error: Exception | None) -> None:
        outcome.append(error)
        done.set()

    await partition.load_producers()
    appended = partition.append(batch, wall_clock_ms(), on_done)
    await done.wait()
    if outcome[0] is not None:
        raise outcome[0]
    return appended.base_offset
