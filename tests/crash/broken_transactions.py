"""Brokers whose transactions are broken on purpose; the judge of transactions has to catch each.

    skips-a-marker         one log of each transaction gets no marker
    completes-early        a transaction is saved as complete before its markers are written
    commits-aborts         an aborted transaction gets markers that commit it
    lists-no-aborted       readers with read_committed do not receive the aborted ones
    takes-aborted-offsets  the offsets of an aborted transaction are committed

`install` breaks the broker of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.transactions import markers
from kbroker.broker.transactions.ending import TransactionEnding
from kbroker.broker.transactions.markers import Markers
from kbroker.broker.transactions.saving import now
from kbroker.formats.transactions import MarkerType

LATE_S = 0.2


def _skips_a_marker() -> None:
    write = Markers._try

    async def write_most(self: Any, record: Any, _: Any) -> Any:
        return await write(self, record, sorted(record.partitions)[1:])

    Markers._try = write_most  # type: ignore[method-assign]


def _completes_early() -> None:
    async def finish(self: Any, transactional_id: str) -> None:
        record = self._coordinator.record(transactional_id)
        transition = self._coordinator.complete(transactional_id, now())
        self._saving.save_complete(transition, lambda synced: synced(None))
        await trio.sleep(LATE_S)
        await self.markers.write(record)
        await self._end_offsets(record)

    async def is_left_to_finish(*_: Any) -> bool:
        return False

    TransactionEnding.finish = finish  # type: ignore[method-assign]
    TransactionEnding._finished_at_once = is_left_to_finish  # type: ignore[method-assign]


def _commits_aborts() -> None:
    append = markers.append_marker

    async def append_commit(partition: Any, kind: Any, *args: Any, **options: Any) -> None:
        await append(partition, MarkerType.COMMIT, *args, **options)

    markers.append_marker = append_commit


def _lists_no_aborted() -> None:
    Partition.aborted_in = lambda *_: ()  # type: ignore[method-assign]


def _takes_aborted_offsets() -> None:
    end = TransactionEnding._end_offsets

    async def commit(self: Any, record: Any) -> None:
        if not await self.end_offsets(record.producer_id, True):
            await end(self, record)

    TransactionEnding._end_offsets = commit  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    "skips-a-marker": _skips_a_marker,
    "completes-early": _completes_early,
    "commits-aborts": _commits_aborts,
    "lists-no-aborted": _lists_no_aborted,
    "takes-aborted-offsets": _takes_aborted_offsets,
}


def install(fault: str) -> None:
    FAULTS[fault]()
