"""The records in flight of a share-partition, read from its window: a state that only tests look
at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from kbroker.share.record_state import HOLE, PENDING, STATE, RecordState
from kbroker.share.share_partition import SharePartition


class Holding(NamedTuple):
    """A run of equal offsets. `pending`: the state is being persisted. Without a member: no member
    holds it."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str | None
    deadline_ms: float | None
    pending: bool


def holdings(share_partition: SharePartition) -> Iterator[Holding]:
    """Every known offset from the SPSO on, as runs in offset order."""
    window = share_partition.window
    first, head = window.start_offset, window.start_offset - window.base
    columns = zip(window.states[head:], window.counts[head:], window.lock_numbers[head:], strict=True)
    visible = ((code & (STATE | PENDING), count, number) for code, count, number in columns)
    with_lock = (
        (code, count, number if code == RecordState.ACQUIRED or code & PENDING else 0)
        for code, count, number in visible
    )
    for (code, count, number), run in groupby(with_lock):
        last = first + len(list(run)) - 1
        if code != HOLE:
            lock = window.locks.by_number.get(number)
            member_id, deadline_ms = (None, None) if lock is None else (lock.member_id, lock.deadline_ms)
            yield Holding(
                first, last, RecordState(code & STATE), count, member_id, deadline_ms, bool(code & PENDING)
            )
        first = last + 1
