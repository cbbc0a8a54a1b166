"""The plain model of parked records with which the contract suite compares a persister, and helpers
to park records.

This module must not know any persister.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange, Place
from kbroker.share.persister import (
    KEPT,
    PARKED,
    Persister,
    TopicPartition,
    WaitingRows,
    WriteRequest,
)
from kbroker.testing.persister_model import GROUP, LEADER, Asked, R

OK, INVALID = ErrorCode.none, ErrorCode.invalid_request
START = 100
_HASHES = (None, 0, (1 << 64) - 1, 7, 7)
FINAL = 9
"""A delivery count higher than that of any other batch in these tests. A batch with it makes the
window's entry of a parked record final."""


def waiting_rows(persister: Persister) -> WaitingRows:
    """Skips the test if the persister has none."""
    if persister.waiting_rows is None:
        pytest.skip("this persister has no waiting rows")
    return persister.waiting_rows


def parked(
    offset: int, due_ms: int, *, lane: Lane = Lane.REDELIVERY, count: int = 1, rejected: bool = False
) -> Parked:
    return Parked(offset, lane, due_ms, count, LEADER, rejected)


def keyed(
    offset: int, due_ms: int, *, lane: Lane = Lane.REDELIVERY, count: int = 1, rejected: bool = False
) -> Parked:
    """A parked record with a key hash that depends on the offset: one of few, or none."""
    return parked(offset, due_ms, lane=lane, count=count, rejected=rejected)._replace(
        key_hash=_HASHES[offset % 5]
    )


def park(new: Parked, *stale: Place) -> ParkingChange:
    return ParkingChange(new.offset, stale, new)


def unpark(old: Parked) -> ParkingChange:
    return ParkingChange(old.offset, (old.place,), None, b"" if old.kept else None)


def keep(old: Parked, record: bytes) -> ParkingChange:
    return ParkingChange(old.offset, (old.place,), old._replace(kept=True), record)


@dataclass
class Shelf:
    """The model of one share-partition: its parked records and the bytes of kept records, by
    offset."""

    asked: Asked
    group: str = GROUP
    at: TopicPartition | None = None
    start: int = START
    state_epoch: int = 5
    there: dict[int, Parked] = field(default_factory=dict)
    records: dict[int, bytes] = field(default_factory=dict)

    @property
    def partition(self) -> TopicPartition:
        return self.at or self.asked.P

    async def write(
        self, *changes: ParkingChange, archived: Sequence[int] = (), start: int | None = None
    ) -> ErrorCode:
        """Write changes, with batches that make the window's entries of newly parked records final.
        If the write succeeds, the model follows."""
        new = {
            change.offset
            for change in changes
            if change.parked is not None and change.offset not in self.there
        }
        after = dict(self.there)
        for change in changes:
            after.pop(change.offset, None)
            if change.parked is not None:
                after[change.offset] = change.parked
        batches = [StateBatch(offset, offset, R, FINAL) for offset in sorted({*new, *archived})]
        start = self.start if start is None else start
        request = WriteRequest(
            self.partition, self.state_epoch, LEADER, start, 0, batches, changes, len(after)
        )
        (result,) = await self.asked.persister.write(self.group, [request])
        if result.code is OK:
            self.there, self.start = after, max(start, self.start)
            self.records.update(
                {change.offset: change.record for change in changes if change.record is not None}
            )
            self.records = {offset: record for offset, record in self.records.items() if record}
        return result.code

    async def check(self, *, piece: int = 3) -> None:
        """Assert that the persister returns the model's records in every order, in pieces of
        `piece`, and with the right counts."""
        rows, key = waiting_rows(self.asked.persister), (self.group, self.partition)
        for lane in Lane:
            expected = sorted(
                (each for each in self.there.values() if each.lane is lane), key=lambda each: each.place
            )
            found: list[Parked] = []
            after = -1, -1
            while some := await rows.read_due(*key, lane, after, piece):
                assert len(some) <= piece
                found += some
                after = some[-1].due_ms, some[-1].offset
            assert found == expected
        waiting: dict[int, list[int]] = {}
        for _, each in sorted(self.there.items()):
            if each.lane is Lane.REDELIVERY and each.key_hash is not None:
                waiting.setdefault(each.key_hash, []).append(each.offset)
        assert await rows.read_keys(*key, (0, 7, 8, (1 << 64) - 1)) == waiting
        assert await rows.read_keys(*key, (7, 8)) == {each: waiting[each] for each in (7,) if each in waiting}
        by_offset = [self.there[offset] for offset in sorted(self.there)]
        assert await rows.read_from(*key, PARKED, 0, None, len(by_offset) + 1) == by_offset
        assert await rows.read_from(*key, PARKED, 0, None, 2) == by_offset[:2]
        if by_offset:
            middle = by_offset[len(by_offset) // 2].offset
            above = [each for each in by_offset if each.offset >= middle]
            assert await rows.read_from(*key, PARKED, middle, None, len(by_offset)) == above
            below = [each for each in by_offset if each.offset < middle]
            assert await rows.read_from(*key, PARKED, 0, middle, len(by_offset)) == below
            left = sum(each.offset >= middle or each.kept for each in by_offset)
            assert await rows.count(*key, middle, None) == left
            assert await rows.count(*key, 0, middle) == len(below)
        assert await rows.count(*key, 0, None) == len(by_offset)
        assert (await self.asked.summary(at=self.at, group=self.group)).waiting == len(by_offset)
        assert (await self.asked.read(at=self.at, group=self.group)).waiting == len(by_offset)
        kept = await rows.read_from(*key, KEPT, 0, None, len(self.records) + 1)
        assert kept == sorted(self.records.items())
        for each in by_offset:
            at = await rows.read_from(*key, KEPT, each.offset, each.offset + 1, 1)
            assert dict(at) == {o: r for o, r in self.records.items() if o == each.offset}
        assert await rows.count(*key, 0, 1 << 40, kept=True) == len(self.records)
        assert await rows.count(*key, 0, 1 << 40, kept=False) == len(by_offset) - len(self.records)
        assert await rows.count(*key, 101, 105, kept=True) == sum(
            101 <= offset < 105 for offset in self.records
        )


async def begun(asked: Asked) -> Shelf:
    waiting_rows(asked.persister)
    await asked.begin()
    return Shelf(asked)
