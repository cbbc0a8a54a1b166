"""Many share-partitions that are loaded at once do not hold other clients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from kbroker.broker.queues import loading
from tests.api.conftest import Connect
from tests.api.share_consumers import Member, prepare
from tests.api.test_work_queue import FAST, heartbeat

PARTITIONS = 20


@pytest.mark.parametrize("are_large", [True, False])
async def test_other_tasks_run_between_large_pieces(
    are_large: bool, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of a large state and each load of its engine has a turn of the loop for itself. A
    fetch finds all small ones at once."""
    turns = 0
    pieces: Counter[tuple[str, int]] = Counter()
    load = loading.SharePartition.load

    def loaded(*arguments: Any, **more: Any) -> Any:
        pieces["load", turns] += 1
        return load(*arguments, **more)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with connect(config=FAST) as client:
        topic_id, _ = await prepare(client, partitions=PARTITIONS)
        persister = client.broker.share_partitions._persister
        read = persister.read

        async def counted(*arguments: Any) -> Any:
            pieces["read", turns] += 1
            return await read(*arguments)

        monkeypatch.setattr(loading.SharePartition, "load", loaded)
        monkeypatch.setattr(persister, "read", counted)
        if are_large:
            monkeypatch.setattr(loading, "_BATCHES_A_TURN", 1)
        await heartbeat(client, "m1", 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            keys = [(topic_id, number) for number in range(PARTITIONS)]
            with trio.fail_after(60):
                await Member(client, "m1").fetch(keys, wait_ms=0)
                while sum(pieces.values()) < 2 * PARTITIONS:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert sum(pieces.values()) == 2 * PARTITIONS
    in_turns = Counter(name for name, _ in pieces)
    if are_large:
        assert in_turns == {"read": PARTITIONS, "load": PARTITIONS}
    else:  # `others` may run in the middle of a turn.
        assert max(in_turns.values()) <= 2
