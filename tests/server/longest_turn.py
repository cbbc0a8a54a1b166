"""A broker whose longest turn is measured: the most work that one task does before it lets others
run.

The work of a turn is counted, not timed: calls of Python and C functions, plus the memory blocks
that it leaves behind, since kio's native decoder makes thousands of objects in one call. A broker
runs in a thread of this process, under a trio instrument.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from tests.server.broker_in_thread import broker_in_thread


class Turns(trio.abc.Instrument):
    """`longest`: the work of the longest turn between `begin` and `end`."""

    def __init__(self) -> None:
        self.longest = 0
        self._is_wanted = self._is_counting = False
        self._calls = 0
        self._began = 0, 0

    def begin(self) -> None:
        self.longest = 0
        self._is_wanted = True

    def end(self) -> None:
        """Waits for the end of the turn that has answered. Calls are no longer counted, which makes
        a broker slow."""
        self._is_wanted = False
        is_over = threading.Event()
        self._token.run_sync_soon(is_over.set)
        is_over.wait()

    def before_run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def _count(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_counting is not self._is_wanted:
            self._is_counting = self._is_wanted
            sys.setprofile(self._count if self._is_counting else None)
        self._began = self._calls, sys.getallocatedblocks()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_counting:
            calls, blocks = self._began
            work = self._calls - calls + max(0, sys.getallocatedblocks() - blocks)
            self.longest = max(self.longest, work)


@contextmanager
def measured_broker(
    data_dir: Path, config: Mapping[str, str] | None = None
) -> Iterator[tuple[tuple[str, int], Turns]]:
    """A broker, and its address."""
    turns = Turns()
    with broker_in_thread(data_dir, "memory", "os", config, [turns]) as address:
        yield address, turns
