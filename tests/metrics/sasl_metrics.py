"""Log-ins that move the metrics of a World's broker."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import trio
import trio.testing

from kbroker.client.rpc import Connection, ConnectionClosed
from kbroker.server.listener import Door, Server
from kbroker.server.run import bind
from tests.metrics.world import World
from tests.server.sasl_world import SETTINGS, log_in, upsertion


async def log_ins(world: World) -> None:
    """One that succeeds, one that fails, one whose session ends, and passwords that wait."""
    row = upsertion("alice", "canary-alice", 1)
    await world.client.call("alter_user_scram_credentials", 0, deletions=(), upsertions=[row])
    with bind(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        async with trio.open_nursery() as nursery:
            settings = replace(SETTINGS, max_session_ms=1)
            nursery.start_soon(Server(world.broker).serve, Door(listener, sasl=settings))
            with Connection(*address) as connection:
                await trio.testing.wait_all_tasks_blocked()
                await world.scrape()  # Its counters begin with 0.
                in_thread = partial(trio.to_thread.run_sync, log_in, connection, "alice")
                assert (await in_thread()).error_code == 0
                await world.scrape()
                await trio.to_thread.run_sync(_use_after_the_end, connection)
            await world.until("kbroker_expired_sessions_total")
            await _wait_for_passwords(world, address)
            nursery.cancel_scope.cancel()


def _use_after_the_end(connection: Connection) -> None:
    try:
        while True:
            connection.call("list_groups", 0)
    except ConnectionClosed:
        return


async def _wait_for_passwords(world: World, address: tuple[str, int]) -> None:
    gate = threading.Event()

    def wrong() -> None:
        with Connection(*address) as connection:
            assert log_in(connection, "alice", "wrong").error_code != 0

    with patch("kbroker.broker.security.derivations.salt_password", lambda *_: gate.wait(60) and bytes(32)):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.to_thread.run_sync, wrong)
            await world.until("kbroker_password_checks", 2)
            with patch("kbroker.broker.security.derivations.QUEUED", -2):
                await trio.to_thread.run_sync(wrong)
            gate.set()
    await world.scrape()
