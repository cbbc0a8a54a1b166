"""What clients have learned shortly before a power cut, where the durability is `os`.

The cut may have taken what was written then, or not. So a history of such a broker proves nothing
about these moments. This module must not know what a checker looks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.judges.compaction_events import EntriesRead, EntryConfirmed, LogScanned
from tests.judges.history_events import (
    AckAnswered,
    AckKind,
    AckSent,
    Delivered,
    Event,
    Outcome,
    PowerLost,
    Record,
)
from tests.judges.transaction_events import TransactionEnded

_MS = 1_000_000


def without_what_a_cut_may_take(
    events: Sequence[Event], last_ms: int, maybe_finished: dict[Record, str]
) -> Iterator[Event]:
    """The events, but for those of the last `last_ms` before a cut that are not certain then.
    `maybe_finished` gets the records, with their values, whose delivery is left out and that their
    consumer finished: the group need not deliver them again."""
    cuts = [event.at_ns for event in events if isinstance(event, PowerLost) and event.promises_end]
    left_out: dict[tuple[str, Record], str] = {}
    """Deliveries with their values, of which the acknowledgements are left out, too."""
    for event in events:
        if isinstance(event, Delivered):
            left_out.pop((event.consumer, event.record), None)
        elif isinstance(event, AckSent | AckAnswered) and (event.consumer, event.record) in left_out:
            if isinstance(event, AckSent) and event.kind in (AckKind.ACCEPT, AckKind.REJECT):
                maybe_finished[event.record] = left_out[event.consumer, event.record]
            continue
        if any(cut - last_ms * _MS <= event.at_ns <= cut for cut in cuts):
            if isinstance(event, AckAnswered):
                yield replace(event, outcome=Outcome.UNKNOWN)
                continue
            if isinstance(event, Delivered):
                left_out[event.consumer, event.record] = event.value
            if isinstance(event, EntryConfirmed | TransactionEnded | EntriesRead | LogScanned | Delivered):
                continue
        yield event
