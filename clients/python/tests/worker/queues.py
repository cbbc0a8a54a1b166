"""What the tests of workers share: queues of their own, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import anyio

from kbroker_client.worker import Job

NewQueue: TypeAlias = Callable[..., str]
"""Makes a queue with these settings of its group; returns its name."""
QUICK: Final = {
    "kbroker.queue.prefetch": "0",
    "kbroker.queue.redelivery.delay.ms": "0",
    "kbroker.queue.redelivery.max.ms": "0",
}
"""A queue that redelivers at once."""


def sleeper(seconds: float, attempts: list[int], *, is_plain: bool) -> Callable[[object, Job], Any]:
    """A job that sleeps, on the loop or in a thread, after it has noted its attempt."""

    def plain(payload: object, job: Job) -> None:
        attempts.append(job.attempt)
        time.sleep(seconds)

    async def on_loop(payload: object, job: Job) -> None:
        attempts.append(job.attempt)
        await anyio.sleep(seconds)

    return plain if is_plain else on_loop


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)
