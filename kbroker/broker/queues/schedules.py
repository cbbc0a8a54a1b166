"""Reads the due times of records from the headers in stored batches (formats/schedule_headers.py).

looked_at   everything that a group needs from a batch before members get its records
due_now     which records of many batches are not scheduled, without decoding the others
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.broker.queues.record_places import Runs, is_sparse, runs_of_payload
from kbroker.broker.queues.sliced_batches import Walked
from kbroker.formats.batches import read_header, records_payload, stored_records
from kbroker.formats.compression import DEFAULT_MAX_BYTES, CorruptPayload, TooLarge
from kbroker.formats.record_keys import BatchKeys, keys_of
from kbroker.formats.schedule_headers import MARK, Oddity, offsets_without, schedule_of
from kbroker.formats.turns import Turn
from kbroker.share.effects import ShareSettings
from kbroker.share.runs import joined_runs

WALKS: Final = 3
"""How often looked_at() may walk over the records of a batch."""


class Schedules(NamedTuple):
    """One batch: `due` has the offsets of records that are due later, and their due times; `odd`
    counts malformed schedules; `keys` are given where they matter, and `runs` of offsets with
    records for a batch with holes."""

    due: list[tuple[int, int]]
    odd: Counter[Oddity]
    keys: BatchKeys | None = None
    runs: Runs | None = None


def looked_at(
    stored: memoryview, wall_ms: int, settings: ShareSettings, turn: Turn | None = None
) -> Schedules | None:
    """`turn`: that of the loop, if it is called there. None: the batch must be opened in a thread.
    A batch that cannot be read has no schedules; the member that gets it notices that."""
    header = read_header(stored)
    try:
        max_bytes = turn.bytes_left if turn else DEFAULT_MAX_BYTES
        payload = bytes(records_payload(stored, header, max_bytes=max_bytes))
    except CorruptPayload as error:
        if turn is not None:
            turn.end()
            if isinstance(error, TooLarge):
                return None
        return Schedules([], Counter(), BatchKeys(header.base_offset) if settings.ordered else None)
    if turn is not None:
        turn.spend(header, len(payload), WALKS * header.record_count)
    due, odd = _schedules_of(stored, payload, wall_ms, settings) if settings.schedules else ([], Counter())
    runs = runs_of_payload(payload, header) if is_sparse(stored) else None
    return Schedules(due, odd, keys_of(stored, payload) if settings.ordered else None, runs)


def _schedules_of(
    stored: memoryview, payload: bytes, wall_ms: int, settings: ShareSettings
) -> tuple[list[tuple[int, int]], Counter[Oddity]]:
    due: list[tuple[int, int]] = []
    odd: Counter[Oddity] = Counter()
    try:
        for record in stored_records(stored, payload=payload) if MARK in payload else ():
            due_ms, oddity = schedule_of(record, wall_ms, settings.max_delay_ms)
            if due_ms is not None:
                due.append((record.offset, due_ms))
            if oddity is not None:
                odd[oddity] += 1
    except CorruptPayload:
        due.clear()
    return due, odd


def due_now(batches: Sequence[Walked]) -> list[tuple[int, int]]:
    """Runs of records that have no schedule, by their first and last offset. Records that may have
    one are left out: decoding them takes as long as parking them."""
    found: list[tuple[int, int]] = []
    for base_offset, last_offset, is_control, view, start, end in batches:
        stored = view[start:end]
        header = read_header(stored)
        try:
            payload = bytes(records_payload(stored, header))
            marks = payload.count(MARK)
            if is_control or marks >= header.record_count:
                continue
            if marks:
                offsets = offsets_without(MARK, stored, payload)
                found += joined_runs([(offset, offset) for offset in offsets])
            else:
                found.append((base_offset, last_offset))
        except CorruptPayload:
            continue
    return found
