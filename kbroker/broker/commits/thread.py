"""The thread of a store: it runs calls that would block the loop, and notifies the loop when they
end.

The notification goes through a pipe that one task reads. trio's run_sync_soon (a lock, a queue, and
a socket that is drained until it is empty) takes twice as many calls, for every commit that waits
for a sync.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import outcome
import trio

Answer = TypeVar("Answer")
Ended = Callable[[BaseException | None], None]


class CommitThread:
    """One worker thread that runs calls for the loop, one at a time, in the order of `begin`. No
    call is abandoned."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], Ended] | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Ended, BaseException | None]] = deque()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the calls. All calls of the block are run and reported, even if it is cancelled."""
        reads, writes = os.pipe()
        thread = threading.Thread(target=self._work, args=(writes,), name=self._name, daemon=True)
        thread.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._notify, reads)
                try:
                    yield
                finally:
                    self._calls.put(None)
        finally:
            thread.join()
            os.close(reads)

    def begin(self, call: Callable[[], object], ended: Ended) -> None:
        """`ended` runs on the loop, in the first turn after the call has ended, with the exception
        that it raised. It must not raise anything itself."""
        self._calls.put((call, ended))

    async def call(self, function: Callable[[], Answer]) -> Answer:
        task = trio.lowlevel.current_task()
        results: list[outcome.Outcome[Answer]] = []
        self.begin(
            lambda: results.append(outcome.capture(function)),
            lambda _: trio.lowlevel.reschedule(task, results[0]),
        )
        answer: Answer = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return answer

    def _work(self, writes: int) -> None:
        try:
            while (taken := self._calls.get()) is not None:
                call, ended = taken
                error: BaseException | None = None
                try:
                    call()
                except BaseException as raised:  # A panic of an engine in Rust is no Exception.
                    error = raised
                self._ended.append((ended, error))
                # Drop the references: the written bytes must not live on in this thread.
                del taken, call, ended, error
                os.write(writes, b"\0")
        finally:
            os.close(writes)

    async def _notify(self, reads: int) -> None:
        with trio.CancelScope(shield=True):
            while True:
                await trio.lowlevel.wait_readable(reads)
                # A byte for each call; further ones are read in the next turn.
                if not os.read(reads, 64):
                    return
                while self._ended:
                    ended, error = self._ended.popleft()
                    ended(error)
                    del ended, error
