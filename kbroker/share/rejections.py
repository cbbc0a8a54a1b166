"""Which reasons of rejections (reasons.py) a write saves, and which it removes. Pure.

A write that fails may have stored its reasons nevertheless. The caller notes these offsets, and
lets the next write remove them: no other rejection may get them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kbroker.share.effects import AckBatch, Persist
from kbroker.share.parked import Lane
from kbroker.share.reasons import Reason, ReasonChange
from kbroker.share.record_state import RecordState
from kbroker.share.rules import Event


def attached(
    persist: Persist, acks: Iterable[AckBatch], reasons: Mapping[int, Reason]
) -> tuple[ReasonChange, ...]:
    """`acks`: the list that was carried out and is saved with `persist`. `reasons`: by offset."""
    rejected: set[int] = set()
    for first, last, types in acks:
        if Event.REJECT not in types:
            continue
        for offset in _between(first, last, reasons):
            if types[0 if len(types) == 1 else offset - first] == Event.REJECT:
                rejected.add(offset)
    archiving = {
        offset
        for batch in persist.batches
        if batch.state == RecordState.ARCHIVING
        for offset in _between(batch.first_offset, batch.last_offset, reasons)
    }
    archiving.update(
        change.offset
        for change in persist.parking
        if change.parked is not None and change.parked.lane is Lane.ARCHIVING
    )
    return tuple(ReasonChange(offset, reasons[offset]) for offset in sorted(rejected & archiving))


def without_reasons(offsets: Iterable[int], changes: Sequence[ReasonChange]) -> tuple[ReasonChange, ...]:
    """The changes, behind removals at the other offsets."""
    named = {change.offset for change in changes}
    return (*(ReasonChange(offset, None) for offset in offsets if offset not in named), *changes)


def _between(first: int, last: int, reasons: Mapping[int, Reason]) -> Iterator[int]:
    """A client may name any number of offsets below the start offset."""
    if last - first < len(reasons):
        return (offset for offset in range(first, last + 1) if offset in reasons)
    return (offset for offset in reasons if first <= offset <= last)
