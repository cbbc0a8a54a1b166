"""The producer: calls that wait for room, records that cannot be sent, late answers."""

from __future__ import annotations

import anyio
import pytest

from clients.python.tests.targets import Target
from kbroker_client import Producer, producer

pytestmark = pytest.mark.anyio


async def test_all_calls_that_wait_for_room_go_on(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "_MAX_BUFFERED_BYTES", 1000)
    topic = target.topic()
    async with Producer(target.bootstrap) as sending:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(sending.send, topic, b"x" * 800)
