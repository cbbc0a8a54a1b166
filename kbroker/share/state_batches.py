"""The batch combiner: stored and incoming state batches of a share-partition become one list (share coordinator, KIP-932).

Per offset the highest delivery count wins, and at the same count the highest state id (ARCHIVED 4 > ARCHIVING 3 >
ACKNOWLEDGED 2 > AVAILABLE 0). The order of arrival never matters, so writes may be merged one by one or all at once.

    stored     |----- AVAILABLE 1 -----|
    incoming             |---- ACKNOWLEDGED 1 ----|
    result     |- AVAIL -|---- ACKNOWLEDGED 1 ----|

The usual case is a handful of batches that do not overlap; only where they do is the sweep paid for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain, pairwise

from kbroker.share.effects import StateBatch
from kbroker.share.record_state import MAX_DELIVERY_COUNT, TERMINAL, RecordState

MANY = 1000
_FINAL = int(RecordState.ARCHIVED)
NOT_DECIDED = -1
"""A start offset that clips nothing."""


def combine(stored: Sequence[StateBatch], incoming: Sequence[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Merge by the rule above; what lies below `start_offset` is cut off (-1: nothing). A single remaining batch is given back as
    it is. The result is in offset order, without overlaps, and neighbours that touch differ; offsets nobody mentions stay out."""
    batches = clip(chain(stored, incoming), start_offset)
    if len(batches) < 2:
        return tuple(batches)
    batches.sort()
    if any(after.first_offset <= before.last_offset for before, after in pairwise(batches)):
        batches = _sweep(batches)
    return _join(batches)


def shortened(batches: tuple[StateBatch, ...]) -> tuple[StateBatch, ...]:
    """The same, if there are few; else in all final runs one state and one count, so that neighbours join: a record that is held for
    hours may have half a million final ones behind it, delivered once or twice, accepted or parked. The count is the highest, so that
    no batch overrules what is final."""
    if len(batches) <= MANY:
        return batches
    alike = {"state": _FINAL, "delivery_count": MAX_DELIVERY_COUNT}
    return _join([batch._replace(**alike) if batch.state in TERMINAL else batch for batch in batches])


def clip(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """The parts at or above `start_offset`, in the order given; all of them where it is -1."""
    if start_offset == NOT_DECIDED:
        return list(batches)
    return [
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in batches
        if batch.last_offset >= start_offset
    ]


def _sweep(batches: list[StateBatch]) -> list[StateBatch]:
    """Cut overlapping batches, sorted by first offset, into pieces that do not overlap: in each piece the winner's state.

    `active` holds the batches that began, best first; one that has ended leaves when it comes to the top.
    """
    pieces: list[StateBatch] = []
    active: list[tuple[int, int, int]] = []  # (-delivery count, -state, last offset)
    edges = sorted({batch.first_offset for batch in batches} | {batch.last_offset + 1 for batch in batches})
    begun = 0
    for edge, next_edge in pairwise(edges):
        while begun < len(batches) and batches[begun].first_offset == edge:
            batch = batches[begun]
            heappush(active, (-batch.delivery_count, -batch.state, batch.last_offset))
            begun += 1
        while active and active[0][2] < edge:
            heappop(active)
        if active:
            count, state, _ = active[0]
            pieces.append(StateBatch(edge, next_edge - 1, -state, -count))
    return pieces


def _join(batches: list[StateBatch]) -> tuple[StateBatch, ...]:
    """Join neighbours that touch and agree."""
    joined = [batches[0]]
    for batch in batches[1:]:
        last = joined[-1]
        if batch.first_offset == last.last_offset + 1 and batch.state == last.state and batch.delivery_count == last.delivery_count:
            joined[-1] = last._replace(last_offset=batch.last_offset)
        else:
            joined.append(batch)
    return tuple(joined)
