"""Defers signals while code runs that no exception may interrupt.

A handler that raises may run inside a callback of the client library, which then loses the
exception (SystemError: returned NULL without setting an exception). It may also run after a process
is started and before the process is recorded.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Self, TypeAlias, cast

_Handler: TypeAlias = Callable[[int, FrameType | None], object]


class Deferred:
    """Between `install` and `remove`, a `with` block of this object delays the handlers of these
    signals until its end.

    For the main thread only, as signal handlers are. Do not nest the blocks: the end of the inner
    one would end the outer one.
    """

    def __init__(self, numbers: Iterable[int] = (signal.SIGINT,)) -> None:
        self._numbers = tuple(numbers)
        self._handlers: dict[int, _Handler] = {}
        self._is_open = False
        self._waiting: int | None = None

    def install(self) -> Self:
        """Leaves signals alone that have the default action or are ignored."""
        for number in self._numbers:
            if callable(handler := signal.getsignal(number)):
                self._handlers[number] = cast("_Handler", handler)
                signal.signal(number, self._handle)
        return self

    def remove(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_open:
            self._waiting = number
        else:
            self._handlers[number](number, frame)

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        if self._waiting is not None:
            number, self._waiting = self._waiting, None
            self._handlers[number](number, None)
