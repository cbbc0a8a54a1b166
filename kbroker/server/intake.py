"""What the connections of a server share: the receive buffer, and the bounds on what they read."""

from __future__ import annotations

from typing import Protocol

import trio

from kbroker.settings.altering import BrokerConfig

RECEIVE_BYTES = 1 << 20


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
