"""Estimates the duration of a run of the suite from its rows and candidates: for the line at its
start, and for the choice of rows.

The constants are from runs on two virtual CPUs. A busy machine, or one with a slow disk, takes
longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perf.suite.candidates import KINDS
from perf.suite.rows import Row

_START_S = 2.0
_FILL_S = 1.5
"""Filling one topic on one broker: half a second to four."""
_AROUND_S = 0.7
"""Starting and ending clients, creating and deleting a topic, the sync between two windows."""
PAUSE_S = 0.25
"""The pause between that sync and each measured window."""
_WARM_MEMORY_S = 0.6
"""Touching memory before a produce window, if the last such window was recent."""
_KAFKA_JOINS_S = 5.0
"""A member of a new share group receives its assignment with its second heartbeat."""
_JOINING = ("share", "queue", "scale")
_JOINING_ROWS = ("ack-round-trip", "first-record")
"""Rows of latency with a group; the others have consumers without one."""
_WARMING = "warming"


class Lengths(NamedTuple):
    """The lengths of windows and of their warm-ups. `warming_s`: windows of the warm-up round."""

    seconds: float
    warming_s: float
    warm_up_s: float


def expected_s(rows: Iterable[Row], keys: Sequence[str], rounds: int, lengths: Lengths) -> float:
    """The seconds from the start to the last reading."""
    each = by_part(rows, keys, rounds, lengths)
    return sum(each.values()) + _START_S * len(keys)


def by_part(rows: Iterable[Row], keys: Sequence[str], rounds: int, lengths: Lengths) -> Mapping[str, float]:
    """The seconds of all rounds by row, and of the warm-up round under "warming"."""
    found, fills = {_WARMING: 0.0}, set()
    for row in rows:
        suited = [key for key in keys if row.suits(key)]
        found[row.key] = min(rounds, row.rounds or rounds) * sum(
            PAUSE_S + _cell_s(row, key, lengths.seconds, lengths.warm_up_s) for key in suited
        )
        for key in suited:
            if _is_kafka(key) and row.warms:
                found[_WARMING] += _cell_s(row, key, lengths.warming_s, lengths.warm_up_s)
            fills.add((row.prepare, key))
    found[_WARMING] += _FILL_S * sum(prepare is not None for prepare, _ in fills)
    return found


def _cell_s(row: Row, key: str, seconds: float, warm_up_s: float) -> float:
    joins = row.group in _JOINING or row.key in _JOINING_ROWS
    joins_s = _KAFKA_JOINS_S if joins and _is_kafka(key) else 0.0
    warm_s = _WARM_MEMORY_S if row.group == "produce" else 0.0
    return joins_s + warm_s + _AROUND_S + (seconds + warm_up_s if row.takes_s is None else row.takes_s)


def _is_kafka(key: str) -> bool:
    return KINDS[key].family == "kafka"
