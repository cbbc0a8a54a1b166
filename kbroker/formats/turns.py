"""How much of stored payloads may be opened in one turn of the event loop.

A batch of 2 KB may inflate to 64 MiB, and one of 1 MB may have 150 000 records. All connections
wait while the loop opens it. So in one turn, that is until its next wait, a task inflates at most
`TURN_BYTES` and walks over at most `TURN_RECORDS` records: about 0.5 ms. A plain payload that is
walked over counts by its size, as one record may have thousands of headers. Anything larger is
opened in a thread, with a CapacityLimiter. Of several requests that one connection sends at once,
each has this bound; the server ends such a burst by the clock (server/peer.py).

Handing a batch to a thread costs 0.08 ms of CPU. So a small compressed batch is tried on the loop,
with the rest of the turn as the limit of its plain size.

`tests/turns.py` counts what each turn opens, in all tests.
"""

from __future__ import annotations

from typing import Final

from kbroker.formats.batches import BatchHeader
from kbroker.formats.compression import Codec

TURN_BYTES: Final = 64 << 10
TURN_RECORDS: Final = 1024
_MOST_COMPRESSED_BYTES = 32 << 10
_MOST_SNAPPY_BYTES = 4 << 10
"""A larger batch is likely not to fit when it is inflated, and would be inflated in vain. A payload
of snappy may consist of thousands of blocks, each of which costs two calls."""


class Turn:
    """The payloads that a task may still open in this turn. A task that waits begins another."""

    __slots__ = ("bytes_left", "records_left")

    def __init__(self) -> None:
        self.bytes_left = TURN_BYTES
        self.records_left = TURN_RECORDS

    def renew(self) -> None:
        """The task has waited."""
        self.bytes_left, self.records_left = TURN_BYTES, TURN_RECORDS

    def allows(self, header: BatchHeader, *, walks: int = 1) -> bool:
        """Whether this batch may be opened now, with `bytes_left` as its `max_bytes`, and walked
        over so many times."""
        codec, size, count = header.codec_id, header.size_bytes, walks * header.record_count
        if not 0 < count <= self.records_left:
            return False
        if codec == Codec.NONE:
            return size <= self.bytes_left
        return self.bytes_left > 0 and size <= (
            _MOST_SNAPPY_BYTES if codec == Codec.SNAPPY else _MOST_COMPRESSED_BYTES
        )

    def spend(self, header: BatchHeader, plain_bytes: int, records: int) -> None:
        """Note what was opened. A payload may be larger than what it inflates to."""
        self.bytes_left -= max(plain_bytes, header.size_bytes)
        self.records_left -= records

    def end(self) -> None:
        """Note that a batch was inflated in vain: nothing more may be opened."""
        self.bytes_left = self.records_left = 0
