"""The batch combiner: stored and incoming state batches of a share-partition become one list (share
coordinator, KIP-932).

Per offset the highest delivery count wins, and at the same count the highest state id (ARCHIVED 4 >
ARCHIVING 3 > ACKNOWLEDGED 2 > AVAILABLE 0). The order of arrival does not matter, so writes may be
merged one by one or all at once.

    stored     |----- AVAILABLE 1 -----|
    incoming             |---- ACKNOWLEDGED 1 ----|
    result     |- AVAIL -|---- ACKNOWLEDGED 1 ----|

Usually batches do not overlap, or have the same offsets. Only the others pay for the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain, islice, pairwise
from operator import itemgetter

from kbroker.share.effects import StateBatch
from kbroker.share.record_state import MAX_DELIVERY_COUNT, TERMINAL, RecordState

MANY = 1000
_FINAL = int(RecordState.ARCHIVED)
_COUNT_AND_STATE = itemgetter(3, 2)
NOT_DECIDED = -1
"""A start offset that clips nothing."""


def combine(
    stored: Sequence[StateBatch], incoming: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Merge by the rule above. Offsets below `start_offset` are cut off (-1: none). The result is
    in offset order, without overlaps, and neighbours that touch differ; offsets in no batch stay
    out. A single remaining batch is returned unchanged."""
    batches = clip(chain(stored, incoming), start_offset)
    if len(batches) < 2:
        return tuple(batches)
    batches.sort()
    pieces: list[StateBatch] = []
    overlapping = [batches[0]]
    first, last, _, _ = batches[0]
    are_alike = True
    for batch in islice(batches, 1, None):
        next_first, next_last, _, _ = batch
        if next_first > last:
            pieces += _pieces(overlapping, are_alike=are_alike)
            overlapping, are_alike = [batch], True
            first, last = next_first, next_last
            continue
        overlapping.append(batch)
        if next_first != first or next_last != last:
            are_alike = False
            last = max(last, next_last)
    pieces += _pieces(overlapping, are_alike=are_alike)
    return _join(pieces)


def shortened(batches: tuple[StateBatch, ...]) -> tuple[StateBatch, ...]:
    """The same batches, if they are few. Otherwise all final runs get one state and the highest
    count, so that neighbours join and no batch overrules them. A record that is held for hours may
    have half a million final ones behind it, delivered once or twice, accepted or parked."""
    if len(batches) <= MANY:
        return batches
    return _join(
        [
            StateBatch(batch[0], batch[1], _FINAL, MAX_DELIVERY_COUNT) if batch[2] in TERMINAL else batch
            for batch in batches
        ]
    )


def clip(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """The parts at or above `start_offset`, in the given order; all of them where it is -1."""
    if start_offset == NOT_DECIDED:
        return list(batches)
    return [
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in batches
        if batch.last_offset >= start_offset
    ]


def _pieces(overlapping: list[StateBatch], *, are_alike: bool) -> Sequence[StateBatch]:
    """The result for batches that overlap one another. `are_alike`: all have the same offsets."""
    if len(overlapping) == 1:
        return overlapping
    if are_alike:
        return (max(overlapping, key=_COUNT_AND_STATE),)
    return _sweep(overlapping)


def _sweep(batches: list[StateBatch]) -> list[StateBatch]:
    """Cut overlapping batches, sorted by first offset, into pieces that do not overlap, each with
    the winner's state.

    `active` holds the batches that have begun, best first. One that has ended is removed when it
    reaches the top.
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
    first, last, state, count = batches[0]
    for batch in islice(batches, 1, None):
        next_first, next_last, next_state, next_count = batch
        if next_first == last + 1 and next_state == state and next_count == count:
            last = next_last
            joined[-1] = StateBatch(first, last, state, count)
        else:
            joined.append(batch)
            first, last, state, count = batch
    return tuple(joined)
