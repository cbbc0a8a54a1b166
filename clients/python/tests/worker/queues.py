"""What the tests of workers share: queues of their own, and waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import anyio

NewQueue: TypeAlias = Callable[..., str]
"""Makes a queue with these settings of its group; returns its name."""
QUICK: Final = {
    "kbroker.queue.prefetch": "0",
    "kbroker.queue.redelivery.delay.ms": "0",
    "kbroker.queue.redelivery.max.ms": "0",
}
"""A queue that redelivers at once."""


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)
