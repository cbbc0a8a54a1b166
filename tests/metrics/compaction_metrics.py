"""Compacted topics that move the metrics of a World's broker."""

from __future__ import annotations

from tests.api.test_compaction import SMALL, keyed
from tests.metrics.world import World
from tests.odd_batches import with_header


async def compaction(world: World) -> None:
    """A log that is compacted, one that is not due, and one that cannot be read."""
    client = world.client
    await client.create_topic("compacted", configs=SMALL)
    await client.create_topic("waiting", configs={**SMALL, "min.cleanable.dirty.ratio": "1"})
    await client.create_topic("unreadable", configs=SMALL)
    odd = with_header(keyed(("k", "x")), record_count=2, last_offset_delta=1)
    await client.append_raw("unreadable", odd)
    for number in range(8):
        for topic in ("compacted", "waiting", "unreadable"):
            await client.append_raw(topic, keyed(("k", f"{number}")))
    await world.broker.log_cleaner.clean_all()
    await world.scrape()
