"""Records as a consumer gets them, and their decoding from the batches of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from .._shared.formats.batches import crc_is_valid, iter_headers, stored_records
from .._shared.formats.compression import CorruptPayload


class Outcome(IntEnum):
    """How a record is acknowledged (KIP-932, and KIP-1222 for RENEW).

    - ACCEPT: it was processed
    - RELEASE: it is to be delivered again
    - REJECT: it is not, and becomes a dead letter if the group has a queue for these
    - RENEW: its lock starts again. The record must still be acknowledged.
    """

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


NO_ID: Final = UUID(int=0)
GAP = 0
"""Of offsets that have no record; the client itself acknowledges them."""


class Lease:
    """One life of a share session: its records are this member's while it is open."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = True

    def __repr__(self) -> str:
        return "open" if self.is_open else "lost"


class Record(NamedTuple):
    """- `delivery_count`: 1 for the first delivery
    - `timestamp_ms`: since the epoch
    - `lease`: the session that holds the record
    - `topic_id`: that of the topic; a recreated topic has another one
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int
    lease: Lease
    topic_id: UUID = NO_ID

    def header(self, name: str) -> bytes | None:
        """The value of the last header of this name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


class Acquired(NamedTuple):
    """A run of offsets that the member has got."""

    first: int
    last: int
    delivery_count: int


class Decoded(NamedTuple):
    """- `gaps`: acquired offsets that have no record
    - `damaged`: runs of batches whose checksum is wrong
    - `unreadable`: runs of batches that are as the producer wrote them, and that this client cannot
      decode
    """

    records: list[Record]
    gaps: list[tuple[int, int]]
    damaged: list[tuple[int, int]]
    unreadable: list[tuple[int, int]]


def decode(
    topic: str,
    partition: int,
    data: memoryview | bytes,
    acquired: Sequence[Acquired],
    lease: Lease,
    topic_id: UUID = NO_ID,
) -> Decoded:
    """The acquired records of an answer's batches, in order."""
    runs = _Runs(acquired)
    records: list[Record] = []
    damaged: list[tuple[int, int]] = []
    unreadable: list[tuple[int, int]] = []
    for position, header in iter_headers(data):
        if not runs.has_any(header.base_offset, header.last_offset):
            continue
        if not crc_is_valid(data, position, header):
            damaged += runs.take(header.base_offset, header.last_offset)
            continue
        try:
            found = [] if header.is_control else list(stored_records(data, position))
        except CorruptPayload:
            unreadable += runs.take(header.base_offset, header.last_offset)
            continue
        for offset, timestamp_ms, key, value, headers in found:
            count = runs.take_one(offset)
            if count:
                records.append(
                    Record(
                        topic, partition, offset, timestamp_ms, key, value, headers, count, lease, topic_id
                    )
                )
    return Decoded(records, runs.left(), damaged, unreadable)


class _Runs:
    """The acquired offsets that no record was found for yet, in order."""

    def __init__(self, acquired: Sequence[Acquired]) -> None:
        self._runs = sorted(each for each in acquired if each.last >= each.first)
        self._at = 0
        self._gaps: list[tuple[int, int]] = []

    def has_any(self, first: int, last: int) -> bool:
        for at in range(self._at, len(self._runs)):
            run = self._runs[at]
            if run.first <= last and run.last >= first:
                return True
        return False

    def take_one(self, offset: int) -> int:
        """The delivery count of an acquired offset; 0: it is not acquired, or was taken before."""
        while self._at < len(self._runs):
            first, last, count = self._runs[self._at]
            if offset < first:
                return 0
            if offset <= last:
                if offset > first:
                    self._gaps.append((first, offset - 1))
                if offset < last:
                    self._runs[self._at] = Acquired(offset + 1, last, count)
                else:
                    self._at += 1
                return count
            self._gaps.append((first, last))
            self._at += 1
        return 0

    def take(self, first: int, last: int) -> list[tuple[int, int]]:
        """The acquired runs within the offsets of a batch."""
        taken: list[tuple[int, int]] = []
        left: list[Acquired] = []
        for run in self._runs[self._at :]:
            if run.last < first or run.first > last:
                left.append(run)
                continue
            taken.append((max(run.first, first), min(run.last, last)))
            if run.first < first:
                left.append(Acquired(run.first, first - 1, run.delivery_count))
            if run.last > last:
                left.append(Acquired(last + 1, run.last, run.delivery_count))
        self._runs, self._at = left, 0
        return taken

    def left(self) -> list[tuple[int, int]]:
        if self._at == len(self._runs):
            return self._gaps
        return self._gaps + [(run.first, run.last) for run in self._runs[self._at :]]
