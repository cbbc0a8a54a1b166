"""Brokers whose parked records are broken on purpose; the judge of work queues has to catch each.

    loses-parked        every third parked record is not written
    keeps-accepted      records that are no longer parked stay in the store
    forgets-due-times   parked records are due at once
    hurries-at-start    records that were parked before a restart are due at once
    resets-counts       delivery counts of parked records are not written
    mixes-generations   a recreated group has the parked records of the deleted one
    keeps-lost          parked records below the log's start stay
    forgets-keys        records of one key do not wait for each other
    frees-parked-keys   a record that is parked for its redelivery frees its key

`install` breaks the broker of this process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappush
from itertools import count
from typing import Any

from kbroker.broker.persisters.parked_cleaner import ParkedCleaner
from kbroker.broker.queues.loading import Load
from kbroker.share import returning, row_writes
from kbroker.share.key_order import KeyOrder
from kbroker.share.parked import ParkingChange
from kbroker.share.parking import Parking
from kbroker.share.persister import ReadResult
from kbroker.share.returned import NO_SLOT
from kbroker.share_state import parked as parked_state


def _replace(name: str, broken: Callable[..., Any]) -> None:
    """Replace a function of parked_state, also in each module that has imported it."""
    whole = getattr(parked_state, name)
    for module in [each for path, each in sys.modules.items() if path.startswith("kbroker.")]:
        if getattr(module, name, None) is whole:
            setattr(module, name, broken)


def alter_changes(alter: Callable[[ParkingChange], ParkingChange | None]) -> None:
    changes_of = parked_state.changes_of

    def altered(prefix: bytes, parking: Sequence[ParkingChange]) -> dict[bytes, bytes | None]:
        return changes_of(prefix, [change for change in map(alter, parking) if change is not None])

    _replace("changes_of", altered)


def _loses_parked() -> None:
    numbers = count()
    alter_changes(lambda change: None if change.parked is not None and next(numbers) % 3 == 2 else change)


def _keeps_accepted() -> None:
    alter_changes(lambda change: None if change.parked is None else change)


def _forgets_due_times() -> None:
    new = Parking.new
    Parking.new = lambda *args, **options: new(*args, **options)._replace(due_ms=0)  # type: ignore[method-assign]


def _hurries_at_start() -> None:
    end_read = Parking.end_read

    def end_and_hurry(self: Any, *args: Any, **options: Any) -> None:
        end_read(self, *args, **options)
        for row in self.rows.values():
            if row.slot == NO_SLOT:
                row.due_ms = 0
                heappush(self._queues[row.lane], (0, row.offset))

    Parking.end_read = end_and_hurry  # type: ignore[method-assign]


def _resets_counts() -> None:
    def reset(change: ParkingChange) -> ParkingChange:
        return (
            change
            if change.parked is None
            else change._replace(parked=change.parked._replace(delivery_count=0))
        )

    alter_changes(reset)


def _mixes_generations() -> None:
    prefix_of = parked_state.prefix_of
    _replace("prefix_of", lambda group_id, partition, generation: prefix_of(group_id, partition, 1))

    async def keep(*_: object) -> None:
        pass

    ParkedCleaner._remove = keep  # type: ignore[method-assign]


def _keeps_lost() -> None:
    """Four places remove them, and all are disabled: at once, in pieces after the log's start
    moves, when nothing is left to deliver, and at each load."""

    drop_below = Parking.drop_below

    def forgetting(self: Any, *args: Any) -> Any:
        self.remove = self._forget
        try:
            return drop_below(self, *args)
        finally:
            del self.remove

    def forget(parking: Parking, offsets: Iterable[int]) -> int:
        rows = [parking.returned.ready[offset] for offset in offsets if parking.is_ready(offset)]
        for row in rows:
            parking._forget(row)
        return len(rows)

    Parking.drop_below = forgetting  # type: ignore[method-assign]
    Parking.sweep = lambda *_: 0  # type: ignore[method-assign]
    returning.lost = forget

    async def keep(_: object, state: ReadResult, *__: object) -> ReadResult:
        return state

    Load._drop_parked = keep  # type: ignore[method-assign]


def _forgets_keys() -> None:
    KeyOrder.admit = lambda *_: True  # type: ignore[method-assign]


def _frees_parked_keys() -> None:
    park_keys = row_writes._park_keys

    def end(parking: Parking, order: KeyOrder, write: row_writes.ParkingWrite) -> None:
        park_keys(parking, order, write)
        for parked, _ in write.new:
            order.end(parked.offset)

    row_writes._park_keys = end


ORDER_FAULTS: Mapping[str, Callable[[], None]] = {
    "forgets-keys": _forgets_keys,
    "frees-parked-keys": _frees_parked_keys,
}
FAULTS: Mapping[str, Callable[[], None]] = {
    "loses-parked": _loses_parked,
    "keeps-accepted": _keeps_accepted,
    "forgets-due-times": _forgets_due_times,
    "hurries-at-start": _hurries_at_start,
    "resets-counts": _resets_counts,
    "mixes-generations": _mixes_generations,
    "keeps-lost": _keeps_lost,
    **ORDER_FAULTS,
}


def install(fault: str) -> None:
    FAULTS[fault]()
