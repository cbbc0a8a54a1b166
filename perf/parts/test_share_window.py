"""The queue of one share-partition, without network or store: acquire, acknowledge, release,
expire.

All work is timed through `SharePartition`, which includes checks, locks and the Persist;
`persisted()` is called immediately. Records are in batches of 500 or one. The three byte columns of
share/in_flight.py are designed for ranges. Single records, many records in flight and
acknowledgements in random order are the hard cases of a queue design, so they are measured too.
"""

from __future__ import annotations

import random

import pytest

from kbroker.share.effects import AckBatch, ShareSettings
from kbroker.share.share_partition import AcquireMode, SharePartition
from perf.parts.part import Part

_ACCEPT, _RELEASE = 1, 2
_MEMBER = "consumer-1"
_MANY = 100_000


def queue(*, max_record_locks: int = 2000, delivery_count_limit: int = 1 << 30) -> SharePartition:
    settings = ShareSettings(max_record_locks=max_record_locks, delivery_count_limit=delivery_count_limit)
    return SharePartition(settings, start_offset=0, state_epoch=0, leader_epoch=1)


def acquire(queue: SharePartition, records: int, *, batch: int = 500, now_ms: float = 0) -> int:
    """Acquires this many new records and returns the first offset."""
    first = queue.window.next_fetch_offset()
    batches = [(offset, offset + batch - 1) for offset in range(first, first + records, batch)]
    ranges = queue.acquire(
        _MEMBER,
        mode=AcquireMode.BATCH_OPTIMIZED,
        batch_size=batch,
        max_records=records,
        fetch_offset=first,
        batches=batches,
        now_ms=now_ms,
    )
    assert ranges, "nothing was acquired"
    return first


def acknowledge(queue: SharePartition, batches: list[AckBatch]) -> None:
    persist = queue.acknowledge(_MEMBER, batches, now_ms=0)
    assert persist is not None
    queue.persisted(persist.token)


@pytest.mark.parametrize("records", [1, 500])
def test_acquire_and_acknowledge_a_range(part: Part, records: int) -> None:
    partition = queue()

    def cycle() -> None:
        first = acquire(partition, records, batch=records)
        acknowledge(partition, [AckBatch(first, first + records - 1, (_ACCEPT,))])

    part.repeat(cycle, thing="cycle", group=f"share: acquire and accept {records}", name="as a range")


@pytest.mark.parametrize(
    "way", ["a type for each record", "a batch for each record", "a batch for each, records in batches of 1"]
)
def test_acknowledge_by_record(part: Part, way: str) -> None:
    """500 records in one list of acknowledgements."""
    partition = queue()
    batch = 1 if way.endswith("of 1") else 500

    def prepare() -> tuple[list[AckBatch]]:
        first = acquire(partition, 500, batch=batch)
        if way == "a type for each record":
            return ([AckBatch(first, first + 499, (_ACCEPT,) * 499 + (3,))],)  # not all of one type
        return ([AckBatch(offset, offset, (_ACCEPT,)) for offset in range(first, first + 500)],)

    part.rounds(
        prepare, lambda batches: acknowledge(partition, batches), rounds=200, things=500, thing="record",
        group="share: accept 500 records in a list", name=way,
    )  # fmt: skip


@pytest.mark.parametrize("in_flight", [2_000, _MANY])
@pytest.mark.parametrize("order", ["in order", "random"])
def test_acknowledge_one_by_one(part: Part, order: str, in_flight: int) -> None:
    """One request per record, each with its Persist, as clients with slow work send them. At most 1
    000 of the records in flight are acknowledged."""
    offsets = list(range(in_flight))
    if order == "random":
        random.Random(3).shuffle(offsets)
    offsets = offsets[:1000]

    def prepare() -> tuple[SharePartition]:
        partition = queue(max_record_locks=in_flight)
        acquire(partition, in_flight)
        return (partition,)

    def work(partition: SharePartition) -> None:
        for offset in offsets:
            acknowledge(partition, [AckBatch(offset, offset, (_ACCEPT,))])

    part.rounds(
        prepare,
        work,
        rounds=10,
        things=1000,
        thing="record",
        group=f"share: accept one by one, {in_flight} in flight",
        name=order,
    )


@pytest.mark.parametrize("step", [1, 2], ids=["all", "every second"])
def test_release_and_deliver_again(part: Part, step: int) -> None:
    """500 or 250 records in flight are released and acquired again."""
    partition = queue()
    acquire(partition, 500)
    come_back = 500 // step

    def cycle() -> None:
        if step == 1:
            acknowledge(partition, [AckBatch(0, 499, (_RELEASE,))])
        else:
            acknowledge(partition, [AckBatch(offset, offset, (_RELEASE,)) for offset in range(0, 500, step)])
        ranges = partition.acquire(
            _MEMBER,
            mode=AcquireMode.BATCH_OPTIMIZED,
            batch_size=500,
            max_records=500,
            fetch_offset=0,
            batches=[(0, 499)],
            now_ms=0,
        )
        assert len(ranges) == (1 if step == 1 else come_back)

    name = "all of 500" if step == 1 else "every second of 500"
    part.repeat(cycle, things=come_back, thing="record", group="share: release and deliver again", name=name)


@pytest.mark.parametrize("step", [1, 2], ids=["all", "every second"])
def test_expire(part: Part, step: int) -> None:
    """2 000 record locks expire at once: all of them, or every second one, if the others were
    accepted before."""

    def prepare() -> tuple[SharePartition]:
        partition = queue()
        acquire(partition, 2000)
        if step == 2:
            acknowledge(partition, [AckBatch(offset, offset, (_ACCEPT,)) for offset in range(1, 2000, 2)])
        return (partition,)

    def expire(partition: SharePartition) -> None:
        persist = partition.expire(1e9)
        assert persist is not None
        partition.persisted(persist.token)

    name = "all of 2 000" if step == 1 else "every second of 2 000"
    part.rounds(
        prepare,
        expire,
        rounds=50,
        things=2000 // step,
        thing="record",
        group="share: locks run out",
        name=name,
    )


def test_acquire_beside_many(part: Part) -> None:
    """With 100 000 records in flight, one more after them is acquired and accepted."""
    partition = queue(max_record_locks=_MANY + 1000)
    acquire(partition, _MANY)

    def cycle() -> None:
        first = acquire(partition, 1, batch=1)
        acknowledge(partition, [AckBatch(first, first, (_RELEASE,))])
        ranges = partition.acquire(
            _MEMBER,
            mode=AcquireMode.BATCH_OPTIMIZED,
            batch_size=1,
            max_records=1,
            fetch_offset=first,
            batches=[(first, first)],
            now_ms=0,
        )
        assert ranges
        acknowledge(partition, [AckBatch(first, first, (_ACCEPT,))])

    group = f"share: acquire, release, acquire and accept 1 beside {_MANY}"
    part.rounds(tuple, cycle, rounds=200, thing="cycle", group=group, name="as a range")
