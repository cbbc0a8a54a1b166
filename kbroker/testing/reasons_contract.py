"""The contract suite of reasons of rejections (kbroker/share/reasons.py), which a persister with
WaitingRows stores.

    from kbroker.testing.reasons_contract import ReasonsContract
    class TestMyReasons(ReasonsContract):
        name = "mine"

Persisters without WaitingRows skip the suite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane
from kbroker.share.persister import REJECTED, InitializeRequest, WriteRequest, begin_anew
from kbroker.share.reasons import Reason, ReasonChange
from kbroker.testing.parking_model import START, Shelf, begun, park, parked, waiting_rows
from kbroker.testing.persister_contract import PersisterAnswers, Restarted, with_broker
from kbroker.testing.persister_model import GROUP, LEADER, Asked, G

SHORT, LONG, EMPTY = Reason("E", "größer", ""), Reason("E" * 92, "m" * 100, "t" * 8000), Reason("", "", "")


class ReasonsContract(PersisterAnswers):
    """Subclass it, set `name`, run pytest."""

    @with_broker
    async def test_reasons_are_saved_with_the_state(self, asked: Asked, restarted: Restarted) -> None:
        await begin(asked)
        given = {100: SHORT, 101: LONG, 103: EMPTY}
        assert await write(asked, given) is ErrorCode.none
        for _ in range(2):
            rows, key = waiting_rows(asked.persister), (GROUP, asked.P)
            assert await rows.read_from(*key, REJECTED, 0, None, 9) == list(given.items())
            assert [each.offset for each in await rows.read_from(*key, REJECTED, 0, None, 2)] == [100, 101]
            assert await rows.read_from(*key, REJECTED, 102, None, 9) == [(103, EMPTY)]
            assert await rows.read_from(*key, REJECTED, 101, 103, 9) == [(101, LONG)]
            assert await rows.read_from(*key, REJECTED, 104, None, 9) == []
            assert await rows.read_from(GROUP, asked.Q, REJECTED, 0, None, 9) == []
            assert await rows.read_from("other", asked.P, REJECTED, 0, None, 9) == []
            assert [batch.state for batch in await asked.batches()] == [G]
            assert (await asked.read()).waiting == 0
            asked = await restarted()

    @with_broker
    async def test_reasons_are_replaced_and_removed(self, asked: Asked, restarted: Restarted) -> None:
        await begin(asked)
        assert await write(asked, {100: SHORT, 101: SHORT, 102: SHORT}) is ErrorCode.none
        assert await write(asked, {100: LONG, 101: None, 105: None}) is ErrorCode.none
        asked = await restarted()
        assert await saved(asked) == {100: LONG, 102: SHORT}
        assert (await asked.read()).code is ErrorCode.none
        assert await remove(asked, 100, 101, 177) is ErrorCode.none
        assert await saved(asked) == {102: SHORT}
        asked = await restarted()
        assert await saved(asked) == {102: SHORT}
        assert (await asked.read()).code is ErrorCode.none
        before = await asked.summary()
        assert await remove(asked, 102) is ErrorCode.none
        assert await saved(asked) == {}
        assert await remove(asked, 102) is ErrorCode.none
        assert await asked.summary() == before

    @with_broker
    async def test_reasons_and_parked_records_in_one_write(self, asked: Asked, restarted: Restarted) -> None:
        await begin(asked)
        shelf: Shelf = await begun(asked)
        letter = parked(100, 0, lane=Lane.ARCHIVING, rejected=True)
        request = WriteRequest(
            asked.P, 5, LEADER, START, 0, [StateBatch(100, 100, 4, 9)], (park(letter),), 1,
            (ReasonChange(100, SHORT), ReasonChange(101, LONG)),
        )  # fmt: skip
        (result,) = await asked.persister.write(GROUP, [request])
        assert result.code is ErrorCode.none
        shelf.there = {100: letter}
        await shelf.check()
        assert await write(asked, {101: None}) is ErrorCode.none
        shelf.asked = await restarted()
        await shelf.check()
        assert await saved(shelf.asked) == {100: SHORT}

    @with_broker
    async def test_a_refused_write_saves_no_reason(self, asked: Asked, restarted: Restarted) -> None:
        await begin(asked)
        for refused in ({100: Reason("", "", "x" * 8193)}, {-1: SHORT}):
            assert await write(asked, refused) is ErrorCode.invalid_request
        assert await write(asked, {100: SHORT}, state_epoch=4) is ErrorCode.fenced_state_epoch
        assert await write(asked, {100: SHORT}, leader=LEADER - 1) is ErrorCode.fenced_leader_epoch
        assert await saved(asked) == {}
        asked = await restarted()
        assert await saved(asked) == {}

    @with_broker
    async def test_reasons_end_with_the_state(self, asked: Asked, restarted: Restarted) -> None:
        await begin(asked)
        assert await write(asked, {100: SHORT, 101: SHORT}) is ErrorCode.none
        assert await asked.initialize(6, START) is ErrorCode.none
        assert (await asked.read()).code is ErrorCode.none
        assert await saved(asked) == {}
        assert await write(asked, {101: LONG}, state_epoch=6) is ErrorCode.none
        assert await saved(asked) == {101: LONG}
        assert await asked.delete() is ErrorCode.none
        assert await saved(asked) == {}
        asked = await restarted()
        await begin(asked)
        assert await saved(asked) == {}

    @with_broker
    async def test_reasons_stay_with_a_state_that_keeps_what_is_parked(
        self, asked: Asked, restarted: Restarted
    ) -> None:
        await begin(asked)
        assert await write(asked, {100: SHORT}) is ErrorCode.none
        request = InitializeRequest(asked.P, 5, START, keeps_parked=True)
        for result in await asked.persister.initialize(GROUP, begin_anew(request)):
            assert result.code is ErrorCode.none
        assert await saved(asked) == {100: SHORT}
        asked = await restarted()
        assert await saved(asked) == {100: SHORT}


async def begin(asked: Asked) -> None:
    waiting_rows(asked.persister)
    await asked.begin()


async def write(
    asked: Asked, reasons: Mapping[int, Reason | None], *, state_epoch: int = 5, leader: int = LEADER
) -> ErrorCode:
    changes: Sequence[ReasonChange] = [ReasonChange(*each) for each in reasons.items()]
    batches = [StateBatch(START, START + 3, G, 1)]
    request = WriteRequest(asked.P, state_epoch, leader, START, 0, batches, reasons=changes)
    (result,) = await asked.persister.write(GROUP, [request])
    return result.code


async def remove(asked: Asked, *offsets: int) -> ErrorCode:
    """By a write that changes nothing else."""
    changes = [ReasonChange(offset, None) for offset in offsets]
    (result,) = await asked.persister.write(
        GROUP, [WriteRequest(asked.P, 5, LEADER, -1, -1, (), reasons=changes)]
    )
    return result.code


async def saved(asked: Asked) -> dict[int, Reason]:
    rows = waiting_rows(asked.persister)
    return dict(await rows.read_from(GROUP, asked.P, REJECTED, 0, None, 99))
