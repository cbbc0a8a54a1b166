"""The contract suite of parked records and of their kept bytes: of the rows that a persister with
WaitingRows stores outside the in-flight window.

    from kbroker.testing.parking_contract import ParkingContract
    class TestMyParking(ParkingContract):
        name = "mine"

Persisters without WaitingRows skip the suite. `test_parking_model` compares a persister with a
plain model under random writes and restarts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import trio

from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange, Place
from kbroker.share.persister import (
    KEPT,
    InitializeRequest,
    WriteRequest,
    begin_anew,
)
from kbroker.share.record_state import MAX_DELIVERY_COUNT
from kbroker.testing.parking_model import (
    FINAL,
    INVALID,
    OK,
    START,
    Shelf,
    begun,
    keep,
    keyed,
    park,
    parked,
    unpark,
    waiting_rows,
)
from kbroker.testing.persister_contract import PersisterAnswers, Restarted, with_broker
from kbroker.testing.persister_model import GROUP, LEADER, Asked, R


class ParkingContract(PersisterAnswers):
    """Subclass it, set `name`, run pytest."""

    @with_broker
    async def test_parked_records_are_read_by_due_time_and_by_offset(
        self, asked: Asked, restarted: Restarted
    ) -> None:
        shelf = await begun(asked)
        await shelf.check()
        assert (
            await shelf.write(park(keyed(100, 900)), park(keyed(101, 300)), park(keyed(109, 300, count=7)))
            is OK
        )
        far = keyed(105, (1 << 63) - 1, lane=Lane.SCHEDULE, count=0)
        assert await shelf.write(park(keyed(102, 5, lane=Lane.SCHEDULE)), park(far)) is OK
        rejected = keyed(103, 0, lane=Lane.ARCHIVING, count=MAX_DELIVERY_COUNT, rejected=True)
        assert await shelf.write(park(rejected), park(keyed(104, 0, lane=Lane.ARCHIVING))) is OK
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check(piece=1)
        rows = waiting_rows(shelf.asked.persister)
        for after, expected in (((300, 101), [109, 100]), ((300, -1), [101, 109, 100]), ((900, 100), [])):
            found = await rows.read_due(GROUP, shelf.partition, Lane.REDELIVERY, after, 9)
            assert [each.offset for each in found] == expected

    @with_broker
    async def test_parked_records_move_and_are_removed(self, asked: Asked, restarted: Restarted) -> None:
        shelf = await begun(asked)
        old = [keyed(100 + number, 1000) for number in range(4)]
        assert await shelf.write(*(park(each) for each in old)) is OK
        later = keyed(101, 5000, count=2)
        assert await shelf.write(park(later, old[1].place), unpark(old[2])) is OK
        await shelf.check()
        same = old[0]._replace(delivery_count=3)
        letter = keyed(103, 0, lane=Lane.ARCHIVING, count=5)
        assert (
            await shelf.write(
                park(same, old[0].place), park(letter, old[3].place, later.place._replace(offset=103))
            )
            is OK
        )
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()
        assert await shelf.write(*(unpark(each) for each in shelf.there.values())) is OK
        assert shelf.there == {}
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()

    @with_broker
    async def test_a_kept_record_is_removed_with_its_parked_record(
        self, asked: Asked, restarted: Restarted
    ) -> None:
        shelf = await begun(asked)
        waiting_rows(asked.persister)
        old = [parked(100 + number, 1000 + number) for number in range(5)]
        assert await shelf.write(*(park(each) for each in old)) is OK
        assert (
            await shelf.write(keep(old[1], b"one"), keep(old[3], bytes(1 << 20)), keep(old[4], b"four")) is OK
        )
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()
        later = old[1]._replace(due_ms=9000, delivery_count=2, kept=True)
        letter = parked(104, 0, lane=Lane.ARCHIVING, rejected=True)._replace(kept=True)
        assert (
            await shelf.write(park(later, old[1].place), park(letter, old[4].place), unpark(shelf.there[103]))
            is OK
        )
        assert sorted(shelf.records) == [101, 104]
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()
        assert await shelf.write(*(unpark(each) for each in shelf.there.values())) is OK
        assert shelf.records == {}
        await shelf.check()

    @with_broker
    @pytest.mark.parametrize(
        "change", [park(parked(101, 5))._replace(record=b"x"), unpark(parked(101, 5))._replace(record=b"x")]
    )
    async def test_bytes_without_the_kept_flag_are_refused(self, asked: Asked, change: ParkingChange) -> None:
        shelf = await begun(asked)
        waiting_rows(asked.persister)
        request = WriteRequest(asked.P, 5, LEADER, START, 0, (), (change,), 1)
        (result,) = await asked.persister.write(GROUP, [request])
        assert result.code is INVALID
        await shelf.check()

    @with_broker
    async def test_a_count_follows_a_write_that_leaves_their_number(self, asked: Asked) -> None:
        """One record below the counted offsets is done, and another one is parked among them."""
        shelf = await begun(asked)
        await shelf.write(*(park(parked(offset, 1000)) for offset in (100, 101, 200)))
        key, rows = (GROUP, shelf.partition), waiting_rows(asked.persister)
        assert await rows.count(*key, 150, None) == 1
        await shelf.write(unpark(shelf.there[100]), park(parked(201, 1000)))
        assert await rows.count(*key, 150, None) == 2
        await shelf.check()

    @with_broker
    async def test_removing_a_missing_record_succeeds(self, asked: Asked) -> None:
        """After a failed write the queue engine repeats the removal."""
        shelf = await begun(asked)
        assert await shelf.write(unpark(parked(100, 7))) is OK
        await shelf.check()
        assert await shelf.write(park(parked(101, 7))) is OK
        assert (
            await shelf.write(unpark(parked(100, 7)), park(parked(102, 7), Place(Lane.SCHEDULE, 3, 102)))
            is OK
        )
        await shelf.check()

    @with_broker
    async def test_the_start_offset_may_pass_parked_records(self, asked: Asked, restarted: Restarted) -> None:
        shelf = await begun(asked)
        assert (
            await shelf.write(
                *(park(parked(offset, 9_000 - offset)) for offset in range(100, 110)), start=104
            )
            is OK
        )
        assert await shelf.write(start=200) is OK
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()
        assert (await shelf.asked.summary()).start_offset == 200

    @with_broker
    @pytest.mark.parametrize("end", ["initialize", "alter", "delete"])
    async def test_recreated_state_has_no_old_parked_records(
        self, asked: Asked, restarted: Restarted, end: str
    ) -> None:
        shelf = await begun(asked)
        assert await shelf.write(*(park(keyed(offset, offset)) for offset in range(100, 110))) is OK
        assert await shelf.write(keep(parked(103, 103), b"kept")) is OK
        if end == "delete":
            assert await asked.delete() is OK
            assert (await asked.summary()).waiting == 0
            await asked.begin()
        elif end == "alter":
            for result in await asked.persister.initialize(
                GROUP, begin_anew(InitializeRequest(asked.P, 5, 100))
            ):
                assert result.code is OK
            assert (await asked.read()).code is OK
        else:
            assert await asked.initialize(6, 100) is OK
            shelf.state_epoch = 6
            assert (await asked.read()).code is OK
        shelf.there, shelf.records = {}, {}
        await shelf.check()
        rows = waiting_rows(shelf.asked.persister)
        assert await rows.read_from(GROUP, shelf.partition, KEPT, 103, 104, 1) == []
        assert await shelf.write(park(keyed(105, 3))) is OK
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()

    @with_broker
    async def test_a_repeated_initialize_removes_no_parked_records(self, asked: Asked) -> None:
        shelf = await begun(asked)
        assert await shelf.write(park(parked(100, 3))) is OK
        assert await asked.initialize(5, 100) is OK
        await shelf.check()

    @with_broker
    async def test_recreated_state_may_keep_parked_records(self, asked: Asked, restarted: Restarted) -> None:
        """A load that cuts off state beyond the log's end recreates it like this."""
        shelf = await begun(asked)
        assert (
            await shelf.write(*(park(keyed(offset, offset)) for offset in range(100, 105)), start=105) is OK
        )
        request = InitializeRequest(asked.P, 5, 105, keeps_parked=True)
        for result in await asked.persister.initialize(GROUP, begin_anew(request)):
            assert result.code is OK
        await shelf.check()
        shelf.asked = await restarted()
        await shelf.check()

    @with_broker
    @pytest.mark.parametrize(
        "change",
        [
            park(parked(-1, 5)),
            park(parked(101, -1)),
            park(parked(101, 1 << 63)),
            park(parked(101, 5, count=-1)),
            park(parked(101, 5, count=MAX_DELIVERY_COUNT + 1)),
            park(parked(101, 5)._replace(leader_epoch=-1)),
            park(parked(101, 5)._replace(lane=7)),  # type: ignore[arg-type]
            park(parked(101, 5)._replace(key_hash=1 << 64)),
            park(parked(101, 5), Place(Lane.SCHEDULE, 5, 102)),
            park(parked(101, 5), Place(Lane.SCHEDULE, -5, 101)),
            ParkingChange(101, (), parked(102, 5)),
            ParkingChange(-7, (), None),
        ],
    )
    async def test_an_invalid_change_is_refused(self, asked: Asked, change: ParkingChange) -> None:
        shelf = await begun(asked)
        assert await shelf.write(park(parked(100, 5))) is OK
        request = WriteRequest(asked.P, 5, LEADER, START, 0, (), (change,), 2)
        (result,) = await asked.persister.write(GROUP, [request])
        assert result.code is INVALID
        assert result.message
        await shelf.check()

    @with_broker
    async def test_a_negative_number_is_refused(self, asked: Asked) -> None:
        shelf = await begun(asked)
        request = WriteRequest(asked.P, 5, LEADER, START, 0, (), (park(parked(100, 5)),), -1)
        (result,) = await asked.persister.write(GROUP, [request])
        assert result.code is INVALID
        await shelf.check()

    @with_broker
    async def test_a_refused_write_parks_nothing(self, asked: Asked) -> None:
        shelf = await begun(asked)
        assert await shelf.write(park(parked(100, 5))) is OK
        for epochs in ({"state_epoch": 4}, {"leader_epoch": LEADER - 1}, {"partition": asked.missing}):
            good = WriteRequest(
                asked.P, 5, LEADER, START, 0, (), (park(parked(101, 5)), unpark(parked(100, 5))), 1
            )
            (result,) = await asked.persister.write(GROUP, [good._replace(**epochs)])
            assert result.code is not OK
        await shelf.check()

    @with_broker
    async def test_a_refused_row_does_not_affect_others(self, asked: Asked) -> None:
        shelf = await begun(asked)
        await asked.begin(at=asked.Q)
        good = WriteRequest(
            asked.P, 5, LEADER, START, 0, (StateBatch(101, 101, R, FINAL),), (park(parked(101, 5)),), 1
        )
        results = await asked.persister.write(GROUP, [good._replace(partition=asked.Q, state_epoch=4), good])
        assert [result.code for result in results] == [ErrorCode.fenced_state_epoch, OK]
        shelf.there = {101: parked(101, 5)}
        await shelf.check()
        await Shelf(asked, at=asked.Q).check()

    @with_broker
    async def test_groups_and_partitions_park_independently(self, asked: Asked, restarted: Restarted) -> None:
        waiting_rows(asked.persister)
        shelves = [
            Shelf(asked, group, at) for group in ("a", "aa", "größe", "x" * 200) for at in (asked.P, asked.Q)
        ]
        for number, shelf in enumerate(shelves):
            await asked.begin(at=shelf.at, group=shelf.group)
            assert (
                await shelf.write(*(park(parked(100 + each, 50 - each)) for each in range(number + 1))) is OK
            )
        assert await asked.delete(group="aa") is OK
        for again in (False, True):
            if again:
                asked = await restarted()
            for shelf in shelves:
                shelf.asked = asked
                if (shelf.group, shelf.at) != ("aa", asked.P):
                    await shelf.check()

    @with_broker
    async def test_many_writes_at_the_same_time(self, asked: Asked, restarted: Restarted) -> None:
        """Some writes park and others do not; the stored number is that of the last write."""
        shelf = await begun(asked)
        there: dict[int, Parked] = {}

        async def write(request: WriteRequest) -> None:
            (result,) = await asked.persister.write(GROUP, [request])
            assert result.code is OK

        async with trio.open_nursery() as nursery:
            for number in range(60):
                offset = 100 + number
                batches = (StateBatch(offset, offset, R, FINAL),)
                change: tuple[ParkingChange, ...] = ()
                if number % 3:
                    there[offset] = parked(offset, 10_000 - offset)
                    change = (park(there[offset]),)
                request = WriteRequest(
                    asked.P, 5, LEADER, 100 + number // 2, number % 7, batches, change, len(there)
                )
                nursery.start_soon(write, request)
                await trio.lowlevel.checkpoint()
        shelf.there, shelf.start = there, 129
        await shelf.check(piece=50)
        assert (await asked.summary()).start_offset == 129
        shelf.asked = await restarted()
        await shelf.check(piece=50)

    @with_broker
    async def test_many_are_parked(self, asked: Asked, restarted: Restarted) -> None:
        """More records than a persister reads at once."""
        shelf = await begun(asked)
        for first in range(100, 2200, 700):
            changes = [park(parked(offset, offset * 7919 % 4001)) for offset in range(first, first + 700)]
            assert await shelf.write(*changes, start=first + 700) is OK
        await shelf.check(piece=1200)
        shelf.asked = await restarted()
        await shelf.check(piece=4000)

    @with_broker
    @pytest.mark.parametrize("seed", range(3))
    async def test_parking_model(self, asked: Asked, restarted: Restarted, seed: int) -> None:
        rng = random.Random(seed)
        waiting_rows(asked.persister)
        shelves: dict[tuple[str, int], Shelf] = {}
        for _ in range(120):
            group, number = rng.choice("ab"), rng.randrange(2)
            shelf = shelves.get((group, number))
            if shelf is None:
                shelf = shelves[group, number] = Shelf(asked, group, asked.partitions[number])
                await asked.begin(at=shelf.at, group=group)
            await _random_step(rng, shelf, shelves)
            if rng.random() < 0.04:
                asked = await restarted()
                for each in shelves.values():
                    each.asked = asked
        for shelf in shelves.values():
            await shelf.check()


async def _random_step(rng: random.Random, shelf: Shelf, shelves: Mapping[tuple[str, int], Shelf]) -> None:
    kind = rng.choice(("write",) * 8 + ("check", "check", "recreate"))
    if kind == "check":
        await shelf.check(piece=rng.randrange(1, 5))
        return
    if kind == "recreate":
        if rng.random() < 0.3:
            await shelf.asked.delete(at=shelf.at, group=shelf.group)
            await shelf.asked.begin(at=shelf.at, group=shelf.group)
            shelf.there, shelf.records, shelf.start = {}, {}, START
        return
    changes: dict[int, ParkingChange] = {}
    for offset in rng.sample(range(100, 130), rng.randrange(5)):
        old = shelf.there.get(offset)
        stale = [] if old is None else [old.place]
        if rng.random() < 0.2:
            stale.append(Place(rng.choice(list(Lane)), rng.randrange(9), offset))
        lane = rng.choice(list(Lane))
        due_ms = 0 if lane is Lane.ARCHIVING else rng.randrange(9)
        new = keyed(offset, due_ms, lane=lane, count=rng.randrange(9), rejected=rng.random() < 0.5)
        is_kept = old is not None and old.kept
        if rng.random() < 0.3:
            changes[offset] = ParkingChange(offset, stale, None, b"" if is_kept else None)
        elif rng.random() < 0.3:
            changes[offset] = ParkingChange(offset, stale, new._replace(kept=True), rng.randbytes(9))
        else:
            changes[offset] = ParkingChange(offset, stale, new._replace(kept=is_kept))
    start = shelf.start + rng.choice((0, 0, 0, 1, 2))
    assert await shelf.write(*changes.values(), start=start) is OK
