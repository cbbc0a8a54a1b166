"""Acknowledgements of one share-partition (KIP-932, ShareAcknowledge): first everything is checked, then everything is applied.

An acknowledgement list is atomic: one batch that does not fit refuses all of it, and because nothing was touched before that,
renewals of earlier batches need no undoing either. What is applied is pending (record_state.py) until its Persist has succeeded;
a renewal only changes the lock and is done at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch, ShareSettings
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.record_state import ACK_CODES, HOLE, Event, given_back_pending

RENEW_DISABLED = "Renewing acquisition locks is not enabled for the group."


class CheckedAck(NamedTuple):
    """Offsets first..last are all held by the member. `types` as in AckBatch, but beginning at `first`."""

    first: int
    last: int
    types: Sequence[int]


def check(window: InFlightWindow, settings: ShareSettings, member_id: str, batches: Sequence[AckBatch]) -> list[CheckedAck]:
    """What there is to apply. Offsets below the SPSO are skipped silently, and so are natural holes.

    Raises KafkaError: invalid_record_state where the member does not hold a record (any more), invalid_request where a batch
    reaches beyond what was acquired.
    """
    if not settings.renew_enabled and any(Event.RENEW in batch.types for batch in batches):
        raise KafkaError(ErrorCode.invalid_record_state, RENEW_DISABLED)
    checked: list[CheckedAck] = []
    taken_to = -1  # highest offset that an earlier batch of this list has taken out of ACQUIRED
    for batch in batches:
        if batch.last_offset < window.start_offset:
            continue
        for first, last in _known_runs(window, batch):
            if first <= taken_to or not window.held_by(member_id, first - window.base, last + 1 - window.base):
                raise KafkaError(ErrorCode.invalid_record_state, f"Offsets {first} to {last} are not all acquired by this member.")
            types = batch.types if len(batch.types) == 1 else batch.types[first - batch.first_offset : last + 1 - batch.first_offset]
            checked.append(CheckedAck(first, last, types))
        if checked:
            taken_to = max(taken_to, _last_taken(checked[-1]))
    return checked


def _known_runs(window: InFlightWindow, batch: AckBatch) -> Iterator[tuple[int, int]]:
    """The offsets of the batch from the SPSO on, without the holes between cached batches."""
    first, last = max(batch.first_offset, window.start_offset), batch.last_offset
    if not window.states or not (first > window.end_offset or window.cached_below(first + 1)):
        raise KafkaError(ErrorCode.invalid_record_state, f"No record at or below offset {first} is acquired.")
    if last > window.end_offset or window.states[last - window.base] == HOLE:
        word = "first" if first > window.end_offset else "last"
        raise KafkaError(ErrorCode.invalid_request, f"The {word} offset of {batch.first_offset} to {last} is beyond the acquired records.")
    states = window.states
    i, j = first - window.base, last + 1 - window.base
    while i < j:
        stop = states.find(HOLE, i, j)
        stop = j if stop < 0 else stop
        if i < stop:
            yield window.base + i, window.base + stop - 1
        i = stop + 1


def _last_taken(ack: CheckedAck) -> int:
    types = ack.types
    if len(types) == 1:
        return ack.last if types[0] != Event.RENEW else -1
    kept = next((n for n, ack_type in enumerate(reversed(types)) if ack_type != Event.RENEW), None)
    return -1 if kept is None else ack.last - kept


def apply(
    window: InFlightWindow, settings: ShareSettings, member_id: str, checked: Sequence[CheckedAck], *, now_ms: float
) -> list[tuple[int, int]]:
    """Carry out what check() gave. The runs (first, last) that are pending now; none if there were only renewals."""
    pending: list[tuple[int, int]] = []
    for first, last, types in checked:
        for ack_type, size in _equal_types(types, last - first + 1):
            run_last = first + size - 1
            if ack_type == Event.RENEW:
                window.renew(member_id, first, run_last, now_ms + settings.lock_duration_ms)
            else:
                if ack_type == Event.RELEASE:
                    window.give_back(first, run_last, given_back_pending(settings.delivery_count_limit))
                else:
                    window.set_code(first, run_last, ACK_CODES[Event(ack_type)])
                if pending and pending[-1][1] == first - 1:
                    pending[-1] = (pending[-1][0], run_last)
                else:
                    pending.append((first, run_last))
            first = run_last + 1
    return pending


def _equal_types(types: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """(type, how many offsets) runs of a list of acknowledge types."""
    if len(types) == 1:
        yield types[0], size
        return
    for ack_type, run in groupby(types):
        yield ack_type, sum(1 for _ in run)
