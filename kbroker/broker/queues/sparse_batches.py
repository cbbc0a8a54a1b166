"""Which offsets of a batch still have a record: compaction removes records, and the batch keeps its
range of offsets.

    header   base 100, last delta 9, 3 records
    records  101, 104, 105
    holes    100, 102..103, 106..109

A member that takes exact numbers of records gets none for a hole, so the broker passes over holes
as it does over control batches. Other members get the batch whole and acknowledge its holes as
gaps, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from kbroker.broker.queues.opened_batches import BatchOpener, OpenedBatch, must_be_opened
from kbroker.broker.queues.record_places import UNWALKABLE, deltas_of
from kbroker.formats.batches import HEADER_SIZE, BatchHeader, crc_is_valid, read_header
from kbroker.share.acquire import Control

Runs: TypeAlias = Sequence[tuple[int, int]]

_counts = struct.Struct(">23xi30xi").unpack_from
"""Last offset delta and record count of a batch header."""
_REMEMBERED = 64


def is_sparse(view: memoryview, start: int) -> bool:
    last_delta, record_count = _counts(view, start)
    return bool(record_count <= last_delta)


def runs_in(stored: memoryview, opener: BatchOpener) -> Runs | None:
    """The offsets of a batch that have records. None: they are not known, because the batch is not
    opened or cannot be read."""
    header = read_header(stored)
    payload: bytes | memoryview
    if must_be_opened(header):
        opened = opener.find(header.base_offset, header.crc)
        if not isinstance(opened, OpenedBatch):
            return None
        payload = opened.payload
    elif crc_is_valid(stored, 0, header):
        payload = bytes(stored[HEADER_SIZE:])
    else:
        return None
    return runs_of_payload(payload, header)


def runs_of_payload(payload: bytes | memoryview, header: BatchHeader) -> Runs | None:
    """As runs_in(), from the uncompressed records."""
    found: list[tuple[int, int]] = []
    try:
        for delta in deltas_of(payload, header.record_count, header.last_offset_delta):
            offset = header.base_offset + delta
            if found and found[-1][1] + 1 == offset:
                found[-1] = found[-1][0], offset
            else:
                found.append((offset, offset))
    except UNWALKABLE:
        return None
    return found


def holes_of(base: int, last: int, runs: Runs) -> list[Control]:
    """The offsets of the batch base..last that are in none of the runs."""
    edges = [(base - 1, base - 1), *runs, (last + 1, last + 1)]
    return [
        Control(before[1] + 1, after[0] - 1, True)
        for before, after in pairwise(edges)
        if before[1] + 1 < after[0]
    ]


class SparseBatches:
    """The runs of the sparse batches that one share-partition has used last."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Runs] = {}

    def split(
        self, batches: Sequence[tuple[int, int, bool, memoryview, int, int]], offset: int, opener: BatchOpener
    ) -> tuple[Runs, list[Control]]:
        """From `offset` on: what members may get of these batches, and the holes in them."""
        runs: list[tuple[int, int]] = []
        holes: list[Control] = []
        for base, last, _, view, start, end in batches:
            here = self._runs(view[start:end], opener) if is_sparse(view, start) else None
            if not here:
                runs.append((base, last))
                continue
            runs += [run for run in here if run[1] >= offset]
            holes += [hole for hole in holes_of(base, last, here) if hole.last_offset >= offset]
        return runs, holes

    def _runs(self, stored: memoryview, opener: BatchOpener) -> Runs | None:
        header = read_header(stored)
        key = header.base_offset, header.crc
        found = self._known.pop(key, None) or runs_in(stored, opener)
        if found is not None:
            while len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return found
