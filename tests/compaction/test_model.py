"""Random logs, passes and restarts of passes beside a model that knows all records."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from kbroker.formats.batches import ProducerInfo, Record
from kbroker.formats.compression import Codec
from kbroker.formats.transactions import MarkerType
from tests.compaction.logs import NOW_MS, RETENTION_MS, MemoryLog, record


class Appended(NamedTuple):
    """`transaction`: its number, or None."""

    record: Record
    offset: int
    transaction: int | None


class World:
    """A log, and what was appended to it. `outcome`: by transaction, True for committed, False for
    aborted; one that is missing is open."""

    def __init__(self, seed: int) -> None:
        self.chooser = random.Random(seed)
        self.log = MemoryLog()
        self.all: list[Appended] = []
        self.outcome: dict[int, bool] = {}
        self.open: dict[int, tuple[int, int]] = {}
        """By producer: transaction number, first offset."""
        self.now_ms = NOW_MS
        self.first_cleaned_ms: dict[int, int] = {}
        """By offset of a tombstone: when a pass first took it in."""

    def append(self) -> None:
        choose = self.chooser
        producer_id = choose.randrange(4)
        is_transactional = producer_id >= 2
        records = [
            record(
                None if choose.random() < 0.03 else f"k{choose.randrange(12)}",
                None if choose.random() < 0.2 else f"v{len(self.all)}-{number}",
                NOW_MS + choose.randrange(-500, 500),
            )
            for number in range(choose.randrange(1, 6))
        ]
        transaction = None
        if is_transactional:
            count = len(self.outcome) + len(self.open)
            transaction, _ = self.open.setdefault(producer_id, (count, self.log.next_offset))
        base = self.log.next_offset
        self.all += [Appended(each, base + at, transaction) for at, each in enumerate(records)]
        self.log.append(
            *records,
            codec=choose.choice(list(Codec)),
            producer=ProducerInfo(producer_id, 0, 0),
            is_transactional=is_transactional,
        )

    def end(self) -> None:
        if not self.open:
            return
        producer_id = self.chooser.choice(list(self.open))
        transaction, _ = self.open.pop(producer_id)
        is_commit = self.chooser.random() < 0.5
        self.outcome[transaction] = is_commit
        self.log.end(MarkerType.COMMIT if is_commit else MarkerType.ABORT, producer_id)

    def clean(self) -> None:
        stable = min((first for _, first in self.open.values()), default=self.log.next_offset)
        # A pass stops at a batch boundary, as a segment does.
        bases = [each.base_offset for each in self.log.headers()]
        fitting = [base for base in (*bases, self.log.next_offset) if self.log.cleaned_to <= base <= stable]
        if not fitting:
            return
        end = self.chooser.choice(fitting)
        self.log.clean(now_ms=self.now_ms, end=end, producers={} if self.chooser.random() < 0.5 else None)
        for each in self.all:
            if each.record.value is None and each.offset < self.log.cleaned_to:
                self.first_cleaned_ms.setdefault(each.offset, self.now_ms)

    def check(self) -> None:
        found = {each.offset: each for each in self.log.records()}
        assert list(found) == sorted(found), "in order"
        appended = {each.offset: each for each in self.all}
        for offset, stored in found.items():
            assert stored == appended[offset].record._replace(offset=offset), "as it was appended"
        cleaned_to = self.log.cleaned_to
        latest: dict[bytes, Appended] = {}
        for each in self.all:
            if each.offset >= cleaned_to:
                assert each.offset in found, "nothing beyond the passes goes"
            elif each.record.key is not None and self.counts(each):
                latest[each.record.key] = each
        for each in latest.values():
            is_old_tombstone = each.record.value is None and (
                self.now_ms >= self.first_cleaned_ms[each.offset] + RETENTION_MS
            )
            assert each.offset in found or is_old_tombstone, f"the latest value at {each.offset} is gone"
        for offset in found:
            each = appended[offset]
            if offset < cleaned_to:
                assert self.counts(each), "an aborted record stays"
                assert each.record.key is not None, "a record without key stays"

    def counts(self, each: Appended) -> bool:
        return each.transaction is None or self.outcome.get(each.transaction, False)


@pytest.mark.parametrize("seed", range(40))
def test_random_logs_keep_the_latest_of_each_key(seed: int) -> None:
    world = World(seed)
    steps = [world.append] * 8 + [world.end] * 3 + [world.clean]
    for _ in range(120):
        world.chooser.choice(steps)()
        if world.chooser.random() < 0.1:
            world.now_ms += RETENTION_MS // 3
        world.check()


@pytest.mark.parametrize("seed", range(10))
def test_a_log_that_is_cleaned_whole_has_one_record_a_key_and_a_second_pass_changes_nothing(
    seed: int,
) -> None:
    world = World(seed)
    for _ in range(60):
        world.chooser.choice([world.append, world.append, world.end])()
    while world.open:
        world.end()
    world.log.clean(now_ms=world.now_ms)
    keys = [each.key for each in world.log.records()]
    assert len(keys) == len(set(keys))
    world.log.clean(now_ms=world.now_ms)
    before = list(world.log.batches)
    world.log.clean(now_ms=world.now_ms)
    assert world.log.batches == before
    world.log.clean(now_ms=world.now_ms + RETENTION_MS)
    assert all(each.value is not None for each in world.log.records())
