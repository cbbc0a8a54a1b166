"""How a request waits. A waiting request costs its connection's task and at most one timer; nothing
polls.

    Waiter    registered with everything that may end the wait (partitions, share-partitions)
    Pending   an answer whose commit is under way, so that the connection can handle the other
              requests of the burst
    Decision  one outcome for several tasks
"""

from __future__ import annotations

from collections.abc import Callable

import outcome
import trio


class Waiter:
    """One waiting request. It may be woken several times, and stays woken until `rearm`."""

    __slots__ = ("_task", "woken")

    def __init__(self) -> None:
        self.woken = False
        self._task: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        self.woken = True
        self.resume()

    def rearm(self) -> None:
        self.woken = False

    def resume(self) -> None:
        """End the wait, if there is one, without waking."""
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Returns at once if woken. Only one task may wait: the request's, or its Connection on its
        behalf."""
        if not self.woken:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Waiters(set[Waiter]):
    """The requests that wait for the same thing."""

    __slots__ = ()

    def wake_all(self) -> None:
        for waiter in self:
            waiter.wake()


class Pending:
    """Counts down the missing parts of an answer and resumes the waiting task at zero. `start` is
    called before a wait (GroupCommit.start)."""

    __slots__ = ("_start", "_task", "parts")

    def __init__(self, parts: int = 0, start: Callable[[], None] | None = None) -> None:
        self.parts = parts
        self._start = start
        self._task: trio.lowlevel.Task | None = None

    def part_done(self) -> None:
        self.parts -= 1
        if self.parts == 0 and self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    def start(self) -> None:
        """Do as `wait` does before it waits."""
        if self.parts and self._start is not None:
            self._start()

    async def wait(self, *, to_the_end: bool = False) -> None:
        """Returns at once if nothing is missing. Only one task may wait. Cancelling it leaves the
        parts under way; with `to_the_end` it waits for them first, like a shielded scope, which
        would cost more than everything else here."""
        if self.parts and self._start is not None:
            self._start()
        if self.parts == 0:
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            if to_the_end:
                return trio.lowlevel.Abort.FAILED
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)


class Decision:
    """One outcome, None or an error, for which several tasks may wait."""

    __slots__ = ("_error", "_tasks", "done")

    def __init__(self) -> None:
        self.done = False
        self._error: Exception | None = None
        self._tasks: list[trio.lowlevel.Task] = []

    def decide(self, error: Exception | None) -> None:
        self.done = True
        self._error = error
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            trio.lowlevel.reschedule(task, self._outcome())

    def _outcome(self) -> outcome.Outcome[None]:
        return outcome.Value(None) if self._error is None else outcome.Error(self._error)

    async def wait(self, *, to_the_end: bool = False) -> None:
        """Returns when decided; raises the error if there is one. `to_the_end`: cancelling has no
        effect."""
        if self.done:
            if self._error is not None:
                raise self._error
            return
        task = trio.lowlevel.current_task()
        self._tasks.append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            if to_the_end:
                return trio.lowlevel.Abort.FAILED
            self._tasks.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


OnDone = Callable[[Exception | None], None]
