"""The tasks that the broker's parts start for themselves, all in one nursery.

A part takes the Background at construction and starts a task whenever it has something to do that
no client waits for. A task that is started before the nursery is open, while the broker is put
together and loads its state, begins as soon as it opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


class Background:
    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._early: list[tuple[Callable[..., Awaitable[object]], tuple[Any, ...]]] = []

    def start(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> None:  # noqa: ANN401
        """Run `function` in a task of its own. An exception that it raises ends the broker."""
        if self._nursery is None:
            self._early.append((function, arguments))
        else:
            self._nursery.start_soon(function, *arguments)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tasks run inside the block. At its end all of them are cancelled and waited for."""
        async with trio.open_nursery() as self._nursery:
            for function, arguments in self._early:
                self._nursery.start_soon(function, *arguments)
            self._early.clear()
            yield
            self._nursery.cancel_scope.cancel()
