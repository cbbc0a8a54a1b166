"""The lag of a share-partition (KIP-1226): how many records of its log the group has not finished.
Pure.

    lag = log end - start offset - finished offsets from there on

This holds while the log has the start offset. Retention and DeleteRecords may move the log's start
past it without a change to the state. Offsets below the log's start are no lag then, and those that
were finished must not be subtracted. So everything is counted from the log's start:

    state     start |done|....|done|......|done|..
    log                          | log start             end |
    lag                          |  ......      .............|

Parked records (share/parked.py) from the log's start on are lag, although their places in the
window are finished.

A start offset beyond the log's end, which AlterShareGroupOffsets may set, gives a negative lag, as
in Kafka. Any other negative lag is a miscount. It is returned as it is, so that it shows, and the
broker logs it. Stored start offsets below -1, which earlier versions accepted, mean the log's
start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kbroker.share.effects import StateBatch
from kbroker.share.record_state import TERMINAL
from kbroker.share.state_batches import clip

UNKNOWN: Final = -1
"""An undecided start offset, an unknown count, an unknown lag."""
_INT64_MIN: Final = -(1 << 63)


class Standing(NamedTuple):
    """From a given offset on: `first_open` is the first unfinished offset, `done` counts the
    finished ones."""

    first_open: int
    done: int


class Left(NamedTuple):
    """`lag` -1: unknown. `first_open`: the first offset that counts as lag, if there is one."""

    lag: int
    first_open: int


class ParkedLeft(NamedTuple):
    """Of the parked records that the log still has: their number, the first offset, and the
    earliest due time (ms since 1970)."""

    number: int
    first_offset: int = UNKNOWN
    next_due_ms: int | None = None


NOTHING_PARKED: Final = ParkedLeft(0)


def with_parked(left: Left, parked: ParkedLeft, *, is_known: bool) -> Left:
    """Adds the parked records. `is_known`: whether the lag is known."""
    if not parked.number or not is_known:
        return left
    first_open = left.first_open if left.lag > 0 else parked.first_offset
    return Left(left.lag + parked.number, min(first_open, parked.first_offset))


def what_is_left(
    start_offset: int,
    complete: int,
    log_start_offset: int,
    end_offset: int,
    stands_from: Callable[[int], Standing],
) -> Left:
    """`complete`: the delivery complete count, for offsets from `start_offset` on. `stands_from` is
    called only where the log begins above the start offset. The lag always fits into 64 bits."""
    if start_offset == UNKNOWN or complete < 0:
        return Left(UNKNOWN, start_offset)
    if start_offset >= log_start_offset:
        return Left(max(end_offset - start_offset - complete, _INT64_MIN), start_offset)
    first_open, done = stands_from(log_start_offset)
    return Left(end_offset - log_start_offset - done, first_open)


def is_miscount(lag: int, start_offset: int, end_offset: int) -> bool:
    """Of a known lag, without parked records: whether it cannot be right. `start_offset` is the
    group's, `end_offset` the log's."""
    return lag < 0 and start_offset <= end_offset


def standing_of(batches: Iterable[StateBatch], offset: int) -> Standing:
    """From saved batches in offset order, without overlaps."""
    first_open, done = offset, 0
    for first, last, state, _ in clip(batches, offset):
        if state in TERMINAL:
            done += last + 1 - first
            if first == first_open:
                first_open = last + 1
    return Standing(first_open, done)


def saved_standing(batches: Sequence[StateBatch], start_offset: int, complete: int, offset: int) -> Standing:
    """standing_of(), from an offset >= `start_offset` on. `complete`: the saved count.

    Earlier versions did not save at which offsets markers and aborted records were finished, and
    the count alone has them. They are those below `offset` first, as far as there is room."""
    first_open, done = standing_of(batches, offset)
    everywhere = standing_of(batches, start_offset).done
    room = offset - start_offset - (everywhere - done)
    return Standing(first_open, done + max(0, complete - everywhere - room))


def least_standing(start_offset: int, complete: int, offset: int) -> Standing:
    """For state that does not show which offsets are finished: what surely is, if everything from
    `start_offset` to `offset` was."""
    return Standing(offset, max(0, complete - (offset - start_offset)))
