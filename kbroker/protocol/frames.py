"""Cuts frames (a four-byte size, then that many bytes) out of received bytes, without trusting the
size.

A frame that is whole in the shared receive buffer is yielded as a slice of it. A frame that arrived
in part moves to a private buffer, which doubles as bytes arrive: a client that announces 100 MiB
and sends nothing costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator

_SIZE = struct.Struct(">i")
_SIZE_BYTES = _SIZE.size


class BadFrame(ValueError):
    """The size is negative, zero or above the limit, so nothing after it can be understood.

    `head`: the four bytes of the size, which may be the start of another protocol."""

    def __init__(self, frame_size: int, max_frame_bytes: int) -> None:
        super().__init__(f"frame size {frame_size} is not between 1 and {max_frame_bytes}")
        self.head = _SIZE.pack(frame_size)


class FrameReader:
    """Cuts frames for one connection. `max_frame_bytes` is Kafka's socket.request.max.bytes."""

    __slots__ = ("_max_frame_bytes", "_partial")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._partial = bytearray()

    @property
    def expected_bytes(self) -> int:
        """The size of the frame that has arrived in part; 0 if there is none, or its size is not
        known yet."""
        return int.from_bytes(self._partial[:_SIZE_BYTES], "big") if len(self._partial) >= _SIZE_BYTES else 0

    def feed(self, data: memoryview) -> Iterator[memoryview]:
        """The whole frames, without their sizes. A slice of `data` is read-only and valid as long
        as `data`; a frame that came in pieces is writable and belongs to the caller. An incomplete
        frame at the end is kept. Raises BadFrame."""
        data = data.toreadonly()
        position = 0
        if self._partial:
            position = yield from self._complete_partial(data)
        size = len(data)
        while size - position >= _SIZE_BYTES:
            (frame_size,) = _SIZE.unpack_from(data, position)
            if not 0 < frame_size <= self._max_frame_bytes:
                raise self._bad_frame(frame_size)
            begin = position + _SIZE_BYTES
            if begin + frame_size > size:
                break
            position = begin + frame_size
            yield data[begin:position]
        if position < size:
            self._partial += data[position:]

    def _complete_partial(self, data: memoryview) -> Generator[memoryview, None, int]:
        partial = self._partial
        position = 0
        if len(partial) < _SIZE_BYTES:
            position = _SIZE_BYTES - len(partial)
            partial += data[:position]
            if len(partial) < _SIZE_BYTES:
                return len(data)
        (frame_size,) = _SIZE.unpack_from(partial)
        if not 0 < frame_size <= self._max_frame_bytes:
            raise self._bad_frame(frame_size)
        wanted = _SIZE_BYTES + frame_size - len(partial)
        taken = data[position : position + wanted]
        partial += taken
        position += len(taken)
        if len(taken) == wanted:
            self._partial = bytearray()
            yield memoryview(partial)[_SIZE_BYTES:]
        return position

    def _bad_frame(self, frame_size: int) -> BadFrame:
        return BadFrame(frame_size, self._max_frame_bytes)
