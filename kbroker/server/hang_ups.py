"""Finds peers that have hung up: one look at all connections, not one for each waiting request."""

from __future__ import annotations

import select
from typing import cast

import trio

from kbroker.broker.connection import Connection

_CHECK_S = 1.0
_END_OF_STREAM = getattr(select, "POLLRDHUP", select.POLLHUP)


class HangUps:
    """Notifies connections whose peers have closed their side, even if bytes of later requests are
    unread: otherwise a fetch could wait for days. Without epoll it polls once a second."""

    def __init__(self, *, has_epoll: bool = hasattr(select, "epoll")) -> None:
        self._poller = select.epoll() if has_epoll else select.poll()
        self._has_epoll = has_epoll
        self._connections: dict[int, Connection] = {}

    def watch(self, fd: int, connection: Connection) -> None:
        self._connections[fd] = connection
        self._poller.register(fd, _END_OF_STREAM)

    def forget(self, fd: int) -> None:
        if self._connections.pop(fd, None) is not None:
            self._poller.unregister(fd)

    async def run(self) -> None:
        while True:
            if self._has_epoll:
                await trio.lowlevel.wait_readable(cast("select.epoll", self._poller))
            else:
                await trio.sleep(_CHECK_S)
            for fd, _ in self._poller.poll(0):
                connection = self._connections[fd]
                self.forget(fd)
                connection.hang_up()
