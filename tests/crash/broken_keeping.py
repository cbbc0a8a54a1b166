"""Brokers that keep records beside a log incorrectly, on purpose; the judge of work queues has to
catch each.

    cuts-first        the log is trimmed before the kept records are saved
    drops-returned    a kept record is removed when it is redelivered, not when it is finished
    strips-headers    a kept record has lost its headers
    leaves-kept       a kept record stays when it is finished
    forgets-holders   retention removes records that no group has finished

`install` breaks the broker of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues import kept_records
from kbroker.broker.queues.held_logs import HeldLogs
from kbroker.broker.queues.kept_records import KeptRecords
from kbroker.formats.batches import BatchHeader, Record
from kbroker.share.parked import ParkingChange
from kbroker.storage.spi import SegmentInfo
from tests.crash.broken_queues import alter_changes

BETWEEN_S = 0.3


def _cuts_first() -> None:
    keep, save = KeptRecords._keep, KeptRecords._save

    async def cut_and_keep(
        self: Any,
        partition: Partition,
        segments: Sequence[SegmentInfo],
        ends: Sequence[int],
        groups: Sequence[Any],
    ) -> None:
        found: list[tuple[Any, Mapping[int, bytes]]] = []

        async def collect(group: Any, records: Mapping[int, bytes]) -> None:
            if records:
                found.append((group, records))

        self._save = collect
        try:
            await keep(self, partition, segments, ends, groups)
        finally:
            del self._save
        if found:
            highest = max(max(records) for _, records in found)
            await self._topics.move_log_start(
                partition, min(end for end in ends if end > highest), to_free_space=True
            )
            await trio.sleep(BETWEEN_S)
        for group, records in found:
            await save(self, group, records)

    KeptRecords._keep = cut_and_keep  # type: ignore[method-assign]


def _drops_returned() -> None:
    def drop(change: ParkingChange) -> ParkingChange:
        if (
            change.parked is None
            or not change.parked.kept
            or not change.parked.delivery_count
            or change.record is not None
        ):
            return change
        return change._replace(parked=change.parked._replace(kept=False), record=b"")

    alter_changes(drop)


def _strips_headers() -> None:
    copy = kept_records.copy_of

    def copy_without(record: Record, header: BatchHeader, **options: Any) -> bytes:
        return copy(record._replace(headers=()), header, **options)

    kept_records.copy_of = copy_without  # type: ignore[assignment]


def _leaves_kept() -> None:
    alter_changes(lambda change: change._replace(record=None) if change.record == b"" else change)


def _forgets_holders() -> None:
    async def nobody(*_: object) -> dict[str, Any]:
        return {}

    HeldLogs.holds = nobody  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    "cuts-first": _cuts_first,
    "drops-returned": _drops_returned,
    "strips-headers": _strips_headers,
    "leaves-kept": _leaves_kept,
    "forgets-holders": _forgets_holders,
}


def install(fault: str) -> None:
    FAULTS[fault]()
