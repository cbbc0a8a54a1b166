"""Who has hung up: one look at all connections, instead of one of each request that waits."""

from __future__ import annotations

import select
from typing import cast

import trio

from kbroker.broker.connection import Connection

_CHECK_S = 1.0
_END_OF_STREAM = getattr(select, "POLLRDHUP", select.POLLHUP)


class HangUps:
    """Tells connections that their peers have closed their side, also behind bytes of later
    requests: a fetch that waits for days would be held as long. Where there is no epoll, somebody
    looks from time to time."""

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
