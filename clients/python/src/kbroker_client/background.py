"""Tasks of a client that run while the caller's body of `async with` does.

A task group's own cancel scope has the caller's body in it, and its exit wraps the body's error in
a group. So each task has a scope of its own, and the group is left without the error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup


class Background:
    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()

    @property
    def is_open(self) -> bool:
        return self._tasks is not None

    async def open(self) -> None:
        """To be called by __aenter__."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        scope = anyio.CancelScope()
        self._scopes.add(scope)

        async def scoped() -> None:
            try:
                with scope:
                    await task()
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()

        self._tasks.start_soon(scoped)

    def cancel(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def stop(self) -> None:
        """Cancel the tasks and wait until they have ended: afterwards none of them makes a
        connection that nobody closes."""
        self.cancel()
        while self._scopes:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def wait(self) -> None:
        """To be called by __aexit__, outside of any other scope, when the tasks have been
        cancelled."""
        assert self._tasks is not None
        await self._tasks.__aexit__(None, None, None)


class Signal:
    """An event that can be used again. It belongs to one waiting task, which clears it before it
    looks at what it waits for."""

    def __init__(self) -> None:
        self._event: anyio.Event = anyio.Event()
        self._kind: type[anyio.Event] | None = None

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._kind is None:
            self._kind = type(anyio.Event())  # That of the running loop: no need to look for it again.
        self._event = self._kind()

    async def wait(self) -> None:
        await self._event.wait()
