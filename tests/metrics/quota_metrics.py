"""Quotas that move the metrics of a World's broker."""

from __future__ import annotations

import trio

from kbroker.client.rpc import Connection, ConnectionClosed
from tests.metrics.world import World


async def alter(world: World, kind: str, name: str, key: str, value: float | None) -> None:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name}],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None}],
    }
    answer = await world.client.call("alter_client_quotas", 1, entries=[entry], validate_only=False)
    assert answer.entries[0].error_code == 0


async def quotas(world: World) -> None:
    """A client that must wait, and one whose address connects too fast.

    A connection is muted for a second at most. On a busy machine a scrape may come later than that,
    so that the client asks again. Not every request need be over the quota: it may take little
    time."""
    await alter(world, "client-id", "greedy", "request_percentage", 0.001)
    await alter(world, "ip", "127.0.0.1", "connection_creation_rate", 1)
    with trio.fail_after(90):
        throttled = 0
        with Connection(*world.address, client_id="greedy") as greedy:
            while not await world.value("kbroker_muted_connections"):
                answer = await trio.to_thread.run_sync(
                    lambda: greedy.call("metadata", 4, topics=None, allow_auto_topic_creation=False)
                )
                throttled += bool(answer.throttle_time)
        assert await world.value("kbroker_throttled_requests_total", quota="request_percentage") == throttled
        while await trio.to_thread.run_sync(_is_served, world):
            await world.scrape()
    await alter(world, "client-id", "greedy", "request_percentage", None)
    await alter(world, "ip", "127.0.0.1", "connection_creation_rate", None)
    await world.scrape()


def _is_served(world: World) -> bool:
    with Connection(*world.address) as connection:
        try:
            connection.call("api_versions", 0)
        except ConnectionClosed:
            return False
    return True
