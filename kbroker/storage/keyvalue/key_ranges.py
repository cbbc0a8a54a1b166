"""For engines whose `scan_range` (spi.py) reads in bounded pieces, and which keep the newest
changes in memory.

Each piece is read in one go. Between two pieces the scan holds nothing of the engine: no
transaction, no iterator, no lock. The first pieces are small, for callers that take few entries.
This module must not know any engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from kbroker.storage.keyvalue.sorted_keys import SortedKeys
from kbroker.storage.spi import ON_DISK, Change

ON_DISK_END = ON_DISK[:-1] + bytes((ON_DISK[-1] + 1,))
"""The first key after those of the namespace."""
RECORD_BYTES = 12
"""About how many bytes a change takes in a log besides its key and value."""
SMALLEST_PIECE = 64
LARGEST_PIECE = 1024

Entries: TypeAlias = list[tuple[bytes, bytes]]
ReadPiece: TypeAlias = Callable[[bytes, bytes, int], tuple[Entries, bytes | None]]
"""(first, end, count) -> about `count` entries of the range, and the key at which the next piece
begins; None if nothing is left."""


def scan_in_pieces(
    read: ReadPiece, first: bytes, end: bytes, *, largest: int = LARGEST_PIECE
) -> Iterator[tuple[bytes, bytes]]:
    """Implements `scan_range` with a function that reads one piece. Raises ValueError at once for a
    range outside of the namespace."""
    check_range(first, end)
    return _pieces(read, first, end, largest)


def check_range(first: bytes, end: bytes) -> None:
    if not first.startswith(ON_DISK) or end > ON_DISK_END:
        raise ValueError(
            f"scan_range is for keys that begin with {ON_DISK!r}: {first!r} to {end!r} is another range"
        )


def _pieces(read: ReadPiece, first: bytes, end: bytes, largest: int) -> Iterator[tuple[bytes, bytes]]:
    count = SMALLEST_PIECE
    at: bytes | None = first
    while at is not None and at < end:
        entries, at = read(at, end, count)
        yield from entries
        count = min(2 * count, largest)


def piece_of(entries: Entries, count: int) -> tuple[Entries, bytes | None]:
    """A piece from at most `count` entries that an engine has read."""
    return entries, entries[-1][0] + b"\0" if len(entries) >= count else None


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all that start with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def lay_over(layers: Sequence[Sequence[Change]], count: int) -> tuple[list[Change], bytes | None]:
    """Merge several layers, the lowest first, into one piece. Each layer has its first `count`
    changes from one key on, or fewer if it has no more. So keys after the last one of a full layer
    are left to the next piece. Removals are included."""
    last = min((layer[-1][0] for layer in layers if len(layer) >= count), default=None)
    found: dict[bytes, bytes | None] = {}
    for layer in layers:
        found.update(layer)
    if last is None:
        return sorted(found.items()), None
    return sorted(change for change in found.items() if change[0] <= last), last + b"\0"


def without_removals(changes: Iterable[Change]) -> Entries:
    return [(key, value) for key, value in changes if value is not None]


def part_of(changes: Sequence[Change], first: bytes, end: bytes, count: int) -> Sequence[Change]:
    """At most `count` changes from `first` up to but without `end`. `changes` are in the order of
    their keys, one for each."""
    begin = bisect_left(changes, first, key=itemgetter(0))
    return changes[begin : min(begin + count, bisect_left(changes, end, key=itemgetter(0)))]


class Overlay:
    """The last change of each key, removals included, in key order. `size_bytes`: about how much
    they take in a log."""

    def __init__(self, changes: dict[bytes, bytes | None] | None = None) -> None:
        """`changes` belong to the overlay from now on."""
        self.changes = {} if changes is None else changes
        self._keys = SortedKeys(self.changes)
        self.size_bytes = sum(
            len(key) + len(value or b"") + RECORD_BYTES for key, value in self.changes.items()
        )

    def __len__(self) -> int:
        return len(self.changes)

    def update(self, changes: Iterable[Change]) -> None:
        known = self.changes
        for key, value in changes:
            if key in known:
                self.size_bytes -= len(known[key] or b"")
            else:
                self._keys.add(key)
                self.size_bytes += len(key) + RECORD_BYTES
            known[key] = value = None if value is None else bytes(value)
            self.size_bytes += len(value or b"")

    def of(self, prefix: bytes) -> dict[bytes, bytes | None]:
        """A copy of the changes whose keys start with `prefix`."""
        if not prefix:
            return dict(self.changes)
        return {key: self.changes[key] for key in self._keys.between(prefix, prefix_end(prefix))}

    def piece(self, first: bytes, end: bytes, count: int) -> list[Change]:
        """At most `count` changes from `first` up to but without `end`."""
        found: list[Change] = []
        for key in islice(self._keys.since(first), count):
            if key >= end:
                break
            found.append((key, self.changes[key]))
        return found

    def in_order(self) -> Iterator[Change]:
        """All changes. The overlay must not change meanwhile."""
        return ((key, self.changes[key]) for key in self._keys.since(b""))
