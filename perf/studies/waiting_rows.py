"""What a record outside of the window costs, with its reason and its bytes in rows of their own and
in one row: what decided docs/decisions/0028-rows-of-their-own.md.

    python -m perf.studies.waiting_rows

The share coordinator makes the changes of today. Those of one row are the same with its fields put
together: `together` has the reason and the kept bytes in the row by offset, `with reason` only the
reason. In both, a record that is rejected with a reason leaves the window, because a reason has no
row but that of a record outside of it. Counts are exact. Memory is what tracemalloc sees of a
record that waits for its dead letter: in the window, and outside.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from rich.console import Console
from rich.table import Table

from kbroker.formats.parked_records import ParkedKey, RejectionReason
from kbroker.formats.state import parse_key
from kbroker.share.effects import ShareSettings, StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.parking import Parking
from kbroker.share.persister import InitializeRequest, TopicPartition, WriteRequest
from kbroker.share.reasons import Reason, ReasonChange
from kbroker.share.record_state import RecordState
from kbroker.share.share_partition import SharePartition
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.parked import ParkingStore

PLACE = TopicPartition(UUID(int=7), 0)
REASON = Reason("ValueError", "no such order", "Traceback (most recent call last):\n" + 8 * "  File x\n")
RECORDS = 100_000
_GROUP = "orders"


class Cost(NamedTuple):
    changes: int
    size: int

    def __str__(self) -> str:
        return f"{self.changes} changes, {self.size} bytes"


def cost(steps: Iterable[dict[str, object]], *, saved: int = 0, more: int = 0) -> Cost:
    """Of these writes to one share-partition. `saved`: changes of today that one row does not have,
    each a key with a flag; `more`: bytes that it has beside them."""
    stored: dict[bytes, bytes] = {}
    coordinator = ShareStateCoordinator(
        lambda _: iter(()), lambda *_: True, parking=ParkingStore(stored.get, iter(range(1, 10)))
    )
    coordinator.states.confirm(coordinator.initialize(_GROUP, [InitializeRequest(PLACE, 0, 0)], now_ms=0))
    first = _write(parking=(ParkingChange(9, (), _parked(9, Lane.SCHEDULE)),), waiting=1)
    coordinator.states.confirm(coordinator.write(_GROUP, [first], now_ms=0))  # Its generation is stored.
    changes = []
    for step in steps:
        outcome = coordinator.write(_GROUP, [_write(**step)], now_ms=0)
        assert not any(result.code for result in outcome.results), outcome.results
        coordinator.states.confirm(outcome)
        changes += outcome.changes
    size = sum(len(key) + len(value or b"") for key, value in changes)
    one_key = next((len(key) for key, _ in changes if _kind(key) == 1), 0)
    return Cost(len(changes) - saved, size - saved * one_key + more)


def _kind(key: bytes) -> int | None:
    parsed = parse_key(key)
    return parsed.kind if isinstance(parsed, ParkedKey) else None


def _write(
    batches: Sequence[StateBatch] = (),
    parking: Sequence[ParkingChange] = (),
    waiting: int = 1,
    reasons: Sequence[ReasonChange] = (),
) -> WriteRequest:
    return WriteRequest(PLACE, 0, 0, -1, -1, batches, parking, waiting, reasons)


def _parked(offset: int, lane: Lane, due_ms: int = 0, count: int = 1, *, kept: bool = False) -> Parked:
    return Parked(offset, lane, due_ms, count, 0, rejected=lane is Lane.ARCHIVING, kept=kept)


def _moved_out(parked: Parked) -> list[dict[str, object]]:
    """The record leaves the window for this row, and then the row is removed."""
    batches = [StateBatch(1, 1, RecordState.ARCHIVED, 1)]
    return [
        {"batches": batches, "parking": (ParkingChange(1, (), parked),), "waiting": 2},
        {"parking": (ParkingChange(1, (parked.place,), None),)},
    ]


def _given_up(state: RecordState) -> list[StateBatch]:
    return [StateBatch(1, 1, state, 1)]


def kept_and_delivered_again(times: int, size: int) -> tuple[Cost, Cost, Cost]:
    """A parked job whose `size` bytes are kept comes back so often, and is done."""
    steps: list[dict[str, object]] = []
    place = _parked(1, Lane.REDELIVERY, 1, kept=True)
    steps.append({"parking": (ParkingChange(1, (), place, bytes(size)),), "waiting": 2})
    for number in range(times):
        after = _parked(1, Lane.REDELIVERY, 2 + number, kept=True)
        steps.append({"parking": (ParkingChange(1, (place.place,), after),), "waiting": 2})
        place = after
    steps.append({"parking": (ParkingChange(1, (place.place,), None, b""),)})
    today = cost(steps)
    return today, cost(steps, saved=2, more=times * size), today


def parked_job() -> tuple[Cost, Cost, Cost]:
    """A job for later is parked, and done."""
    both = cost(_moved_out(_parked(1, Lane.SCHEDULE, 5, 0)))
    return both, both, both


def rejected_in_window() -> tuple[Cost, Cost, Cost]:
    """A member rejects a record of the window with a reason, and its dead letter is written."""
    today = cost([
        {"batches": _given_up(RecordState.ARCHIVING), "reasons": [ReasonChange(1, REASON)]},
        {"batches": _given_up(RecordState.ARCHIVED), "reasons": [ReasonChange(1, None)]},
    ])  # fmt: skip
    one = cost(_moved_out(_parked(1, Lane.ARCHIVING)), more=len(RejectionReason(*REASON).encode()))
    return today, one, one


def rejected_outside() -> tuple[Cost, Cost, Cost]:
    """A member rejects a parked record with a reason, and its dead letter is written."""
    before, row = _parked(9, Lane.SCHEDULE), _parked(9, Lane.ARCHIVING)
    steps: list[dict[str, object]] = [
        {"parking": (ParkingChange(9, (before.place,), row),), "reasons": [ReasonChange(9, REASON)]},
        {
            "parking": (ParkingChange(9, (row.place,), None),),
            "waiting": 0,
            "reasons": [ReasonChange(9, None)],
        },
    ]
    one = cost(steps, saved=2)
    return cost(steps), one, one


def memory() -> tuple[str, str, str]:
    """A record that waits for its dead letter, while the topic of dead letters has no room."""
    settings = ShareSettings(dead_letter_queue=True)
    archiving = [StateBatch(0, RECORDS - 1, RecordState.ARCHIVING, 1)]
    rows = [_parked(offset, Lane.ARCHIVING) for offset in range(RECORDS)]
    parking = Parking(RECORDS, leader_epoch=0, life_ahead_ms=0, now_ms=0)

    def load() -> object:
        return SharePartition.load(
            settings, start_offset=0, state_batches=archiving, state_epoch=0, leader_epoch=0
        )

    def read() -> object:
        parking.end_read(Lane.ARCHIVING, rows, settings, lambda _: False, RECORDS + 1)
        assert parking.archiving == RECORDS
        return parking

    inside, outside = _bytes_of(load) / RECORDS, _bytes_of(read) / RECORDS
    return f"{inside:.0f} bytes", f"{outside:.0f} bytes", f"{outside:.0f} bytes"


def _bytes_of(build: Callable[[], object]) -> int:
    tracemalloc.start()
    built = build()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert built is not None
    return size


def main() -> None:
    table = Table("a record that is", "today", "together", "with reason")
    rows = {
        "parked for later, and done": parked_job(),
        "kept (1 KiB), delivered 4 times more, and done": kept_and_delivered_again(4, 1 << 10),
        "kept (100 KiB), delivered 4 times more, and done": kept_and_delivered_again(4, 100 << 10),
        "rejected in the window, with its letter": rejected_in_window(),
        "rejected outside of it, with its letter": rejected_outside(),
        "waiting for its letter, memory": memory(),
    }
    for name, costs in rows.items():
        table.add_row(name, *map(str, costs))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
