"""Acknowledgements of one share-partition (KIP-932, ShareAcknowledge): a list is checked as a
whole, then applied as a whole.

    list --check()--> runs that the member holds --apply()--> pending runs --> Persist

A list is atomic: one batch that does not fit refuses all of it. Nothing is changed before the check
ends, so that renewals by earlier batches need no undoing. Applied records are pending
(record_state.py) until their Persist has succeeded. A renewal only changes the lock, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch, ShareSettings
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.record_state import HOLE
from kbroker.share.rules import Event
from kbroker.share.runs import Runs, joined_runs

RENEW_DISABLED = "Renewing acquisition locks is not enabled for the group."

_RENEW = int(Event.RENEW)


def check_renewals(settings: ShareSettings, batches: Sequence[AckBatch]) -> None:
    """Raises KafkaError(invalid_record_state) if the list renews and the group has disabled
    renewals."""
    if not settings.renew_enabled and any(_RENEW in batch.types for batch in batches):
        raise KafkaError(ErrorCode.invalid_record_state, RENEW_DISABLED)


def check(
    window: InFlightWindow, settings: ShareSettings, member_id: str, batches: Sequence[AckBatch]
) -> list[AckBatch]:
    """Returns the runs to apply: offsets that the member holds, neighbours of one type joined.
    Offsets below the SPSO and natural holes are skipped without an error.

    Raises KafkaError: invalid_record_state where the member does not (or no longer) hold a record,
    invalid_request where a batch reaches beyond the acquired records.
    """
    check_renewals(settings, batches)
    start_offset, base = window.start_offset, window.base
    checked: list[AckBatch] = []
    taken_to = -1  # The highest offset that an earlier batch takes out of ACQUIRED.
    for batch in batches:
        if batch.last_offset < start_offset:
            continue
        if (
            start_offset > batch.first_offset
            or batch.first_offset <= taken_to
            or not window.holds(member_id, batch, base)
        ):
            runs = list(_known_runs(window, batch))
            for run in runs:
                if run.first_offset <= taken_to or not window.holds(member_id, run, base):
                    message = (
                        f"Offsets {run.first_offset} to {run.last_offset} are not all acquired by "
                        "this member."
                    )
                    raise KafkaError(ErrorCode.invalid_record_state, message)
            checked += runs
        elif checked and _continues(checked[-1], batch):
            checked[-1] = AckBatch(checked[-1].first_offset, batch.last_offset, batch.types)
        else:
            checked.append(batch)
        if _RENEW not in batch.types:
            if batch.last_offset > taken_to:
                taken_to = batch.last_offset
        elif len(batch.types) > 1:
            taken_to = max(taken_to, _last_taken(batch))
    return checked


def runs_without_renewals(batches: Iterable[AckBatch]) -> Runs:
    """The offsets of a list, except those that are only renewed."""
    found = []
    for first, last, types in batches:
        if len(types) == 1:
            found += [] if types[0] == _RENEW else [(first, last)]
        else:
            found += [(first + n, first + n) for n, ack_type in enumerate(types) if ack_type != _RENEW]
    return joined_runs(found)


def check_passed(batches: Iterable[AckBatch], log_start_offset: int, start_offset: int) -> None:
    """Raises KafkaError(invalid_record_state) for a record of the log below the SPSO. Where records
    are parked, the SPSO has passed unfinished ones, and not all of these are in memory. A record
    there that the member does not hold was lost with its lock: it is redelivered, or a dead letter.
    Its acknowledgement must not be confirmed."""
    for first, last, _ in batches:
        if last >= log_start_offset and max(first, log_start_offset) < start_offset:
            raise KafkaError(
                ErrorCode.invalid_record_state,
                f"Offset {max(first, log_start_offset)} is not acquired by this member.",
            )


def _continues(before: AckBatch, batch: AckBatch) -> bool:
    return (
        before.last_offset + 1 == batch.first_offset
        and len(batch.types) == 1
        and len(before.types) == 1
        and before.types[0] == batch.types[0]
    )


def _known_runs(window: InFlightWindow, batch: AckBatch) -> Iterator[AckBatch]:
    """The batch from the SPSO on, without the holes between cached batches. Raises KafkaError as
    check() does."""
    first, last = max(batch.first_offset, window.start_offset), batch.last_offset
    if not window.states or not (first > window.end_offset or window.cached_below(first + 1)):
        raise KafkaError(ErrorCode.invalid_record_state, f"No record at or below offset {first} is acquired.")
    if last > window.end_offset or window.states[last - window.base] == HOLE:
        word = "first" if first > window.end_offset else "last"
        raise KafkaError(
            ErrorCode.invalid_request,
            f"The {word} offset of {batch.first_offset} to {last} is beyond the acquired records.",
        )
    states = window.states
    i, j, to_types = first - window.base, last + 1 - window.base, window.base - batch.first_offset
    while i < j:
        stop = states.find(HOLE, i, j)
        stop = j if stop < 0 else stop
        if i < stop:
            types = batch.types if len(batch.types) == 1 else batch.types[i + to_types : stop + to_types]
            yield AckBatch(window.base + i, window.base + stop - 1, types)
        i = stop + 1


def _last_taken(batch: AckBatch) -> int:
    """The last offset that is not only renewed."""
    return max(
        (batch.first_offset + n for n, ack_type in enumerate(batch.types) if ack_type != _RENEW), default=-1
    )


def apply(
    window: InFlightWindow,
    settings: ShareSettings,
    member_id: str,
    checked: Sequence[AckBatch],
    *,
    now_ms: float,
) -> list[tuple[int, int]]:
    """Carry out the result of check(). Returns the runs (first, last) that are pending now: none if
    the list only renews."""
    pending: list[tuple[int, int]] = []
    for first, last, types in checked:
        if _RENEW not in types:
            window.answer(first, last, types, settings)
            pending.append((first, last))
            continue
        deadline_ms = now_ms + settings.lock_duration_ms
        if len(types) == 1:
            window.renew(member_id, first, last, deadline_ms)
            continue
        for is_renewal, run in groupby(types, key=_RENEW.__eq__):
            part = tuple(run)
            run_last = first + len(part) - 1
            if is_renewal:
                window.renew(member_id, first, run_last, deadline_ms)
            else:
                window.answer(first, run_last, part, settings)
                pending.append((first, run_last))
            first = run_last + 1
    return pending
