"""The largest request of each API: rows, which are the elements of all of its arrays, and bytes of
the frame. A larger request ends its connection before its body is decoded.

A bound is ten times what Kafka's own tools and MirrorMaker 2 send for 25 000 partitions. The worst
case is 25 000 topics of one partition with names of 249 bytes, each with a group of its own. Those
clients send all topics, all groups or all partitions in one request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_TEN_TIMES: Final = 10
_PARTITIONS: Final = 25_000


class Bound(NamedTuple):
    rows: int
    frame_bytes: int


def _ten_times(rows: int) -> int:
    return _TEN_TIMES * rows


_LARGE_BYTES: Final = 64 << 20
"""Ten times 25 000 names of 249 bytes, with some numbers each."""
_NO_BOUND_BYTES: Final = (1 << 31) - 1
"""socket.request.max.bytes is the only bound."""

_ONE: Final = Bound(_ten_times(10), _ten_times(4 * (32 << 10)))
"""One thing: at most four texts of 32 KiB, and ten rows, such as filters."""
_NAMES: Final = Bound(_ten_times(_PARTITIONS), _LARGE_BYTES)
"""Topics, groups or ids by name."""
_BY_TOPIC: Final = Bound(_ten_times(2 * _PARTITIONS), _LARGE_BYTES)
"""Topics, and their partitions."""
_TWO_LISTS: Final = Bound(_ten_times(4 * _PARTITIONS), _LARGE_BYTES)
"""Two lists of topics and partitions, or partitions with as many rows about them."""
_SETTINGS: Final = Bound(_ten_times(5 * _PARTITIONS), _LARGE_BYTES)
"""Topics with four settings each. More are rare: MirrorMaker 2 copies those that are not
defaults."""

_BOUNDS: Final[dict[Bound, tuple[int, ...]]] = {
    _ONE: (12, 16, 17, 18, 22, 25, 26, 29, 38, 39, 40, 48, 55, 57, 60, 71, 74),
    _NAMES: (3, 10, 13, 14, 15, 20, 41, 42, 49, 50, 51, 65, 66, 69, 75, 76, 77),
    _BY_TOPIC: (2, 8, 9, 21, 23, 24, 27, 28, 32, 34, 35, 37, 43, 46, 47, 61, 90, 91, 92),
    _TWO_LISTS: (1, 30, 31, 45, 68, 78, 79, 83, 84, 85, 86, 87),
    _SETTINGS: (19, 33, 44),
    # Produce: a request of 1 MiB (a producer's max.request.size) has 15 000 batches of one small
    # record each, each with its topic.
    Bound(_ten_times(30_000), _NO_BOUND_BYTES): (0,),
    # JoinGroup: a subscription for each assignor, each with all topics.
    Bound(_ten_times(10), _LARGE_BYTES): (11,),
    # SaslAuthenticate and PushTelemetry: bytes, for which there are settings.
    Bound(_ten_times(10), 10 << 20): (36, 72),
}

BOUNDS: Final[dict[int, Bound]] = {key: bound for bound, keys in _BOUNDS.items() for key in keys}
"""By API key."""
