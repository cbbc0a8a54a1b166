"""Runs of offsets (first, last), and the consistency check of stored state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.record_state import MAX_DELIVERY_COUNT, RecordState

Runs: TypeAlias = list[tuple[int, int]]


def size_of(runs: Runs) -> int:
    """How many offsets the runs have."""
    return sum(last - first + 1 for first, last in runs)


def joined_runs(runs: Sequence[tuple[int, int]]) -> Runs:
    """Runs in offset order, neighbours joined."""
    if len(runs) < 2:
        return list(runs)
    found: Runs = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def runs_of(offsets: Iterable[int]) -> Runs:
    """The runs of these offsets, in order."""
    return joined_runs([(offset, offset) for offset in offsets])


def check_state(start_offset: int, batches: Sequence[StateBatch]) -> None:
    """Raises ValueError for an inconsistent state. `batches` are in order of their first
    offsets."""
    if start_offset < 0:
        raise ValueError(f"start offset {start_offset}")
    next_offset = start_offset
    for batch in batches:
        if batch.first_offset < next_offset or batch.last_offset < batch.first_offset:
            raise ValueError(f"{batch}: below the start offset, reversed, or overlapping the batch before")
        if batch.state not in RecordState.__members__.values():
            raise ValueError(f"{batch}: unknown record state")
        if not 0 <= batch.delivery_count <= MAX_DELIVERY_COUNT:
            raise ValueError(f"{batch}: delivery count out of range")
        next_offset = batch.last_offset + 1
    if next_offset - start_offset > MAX_SPAN:
        raise ValueError(
            f"state for {next_offset - start_offset} offsets from {start_offset} on, more than {MAX_SPAN}"
        )
