"""What the connections of a server share: the receive buffer, and the bounds on what they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from kbroker.settings.altering import BrokerConfig

RECEIVE_BYTES = 1 << 20
_LARGE_LOG_IN_BYTES = 20_480
"""No genuine frame of a log-in is larger: the largest bearer token has 16 KiB."""
_LARGE_LOG_INS_BYTES = 32 << 20
"""Of larger frames of clients that have not logged in, together."""


class Reserves(Protocol):
    reserved_bytes: int


class Intake:
    """`buffer` is valid between a receive and the next wait of any task. `stopping`: connections
    answer the requests that they have received, and end."""

    def __init__(self, config: BrokerConfig) -> None:
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.max_frame_bytes: int = config["socket.request.max.bytes"]
        self.requests = 0
        self.reserved_bytes = 0
        self.stopping = False
        self._max_queued_bytes: int = config["queued.max.request.bytes"]
        self._room = trio.lowlevel.ParkingLot()
        self._large_log_ins_bytes = 0

    @contextmanager
    def log_in_frame(self, frame_bytes: int) -> Iterator[bool]:
        """While a frame of a log-in is in memory. False: it is large, and there is no room for one
        more of strangers, since each of their connections may send one."""
        is_large = frame_bytes > _LARGE_LOG_IN_BYTES
        fits = not is_large or self._large_log_ins_bytes + frame_bytes <= _LARGE_LOG_INS_BYTES
        taken = frame_bytes if is_large and fits else 0
        self._large_log_ins_bytes += taken
        try:
            yield fits
        finally:
            self._large_log_ins_bytes -= taken

    async def reserve(self, peer: Reserves, frame_bytes: int) -> None:
        """Count a frame that has arrived in part against queued.max.request.bytes. At the limit,
        wait before more of it is read.

        As in Kafka, a frame may begin while anything of the limit is left, so that every frame that
        has begun can end.
        """
        self.release(peer)
        while frame_bytes and 0 < self._max_queued_bytes <= self.reserved_bytes:
            await self._room.park()
        peer.reserved_bytes = frame_bytes
        self.reserved_bytes += frame_bytes

    def release(self, peer: Reserves) -> None:
        self.reserved_bytes -= peer.reserved_bytes
        peer.reserved_bytes = 0
        self._room.unpark_all()
