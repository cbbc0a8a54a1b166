"""The contract suite of the Persister SPI. Every persister must pass it, built in or from a plugin.

    from kbroker.testing.persister_contract import PersisterContract
    class TestMyPersister(PersisterContract):
        name = "mine"                            # its name in kbroker.persister
        storage = state_storage = "segment"      # the broker's engines, if that matters

There is one test method for each promise of kbroker/share/persister.py, and for each rule of the
share coordinator (KIP-932) that does not depend on where the state is stored. `test_model` compares
the persister with a plain model under random calls and restarts. The suite opens a real broker in
this process, without a server, because a persister may need the broker's topics. It does not test
crashes. For a persister that stores nothing, subclass `PersisterAnswers` alone.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

import pytest
import trio

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.errors import ErrorCode
from kbroker.settings.altering import BrokerConfig
from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.persister import (
    InitializeRequest,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)
from kbroker.share.record_state import MAX_DELIVERY_COUNT
from kbroker.testing.persister_model import (
    GROUP,
    LEADER,
    PARTITIONS,
    TOPIC_NAME,
    A,
    Asked,
    G,
    K,
    Model,
    R,
    random_step,
)

_OK, _INVALID = ErrorCode.none, ErrorCode.invalid_request
_UNKNOWN_PARTITION = ErrorCode.unknown_topic_or_partition
_FENCED_LEADER, _FENCED_STATE = ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch

Parameter: TypeAlias = Any
Restarted = Callable[[], Awaitable[Asked]]


def with_broker(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run `test(self, asked)` under trio with an open broker. A test that takes `restarted` may
    call it to stop and start the broker."""
    wants_restarts = "restarted" in inspect.signature(test).parameters

    @wraps(test)
    def run(self: PersisterAnswers, tmp_path: Path, **parameters: Parameter) -> None:
        trio.run(partial(self.run, test, tmp_path, wants_restarts, **parameters))

    signature = inspect.signature(test)
    kept = [each for name, each in signature.parameters.items() if name not in ("asked", "restarted")]
    kept.append(inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY))
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return run


class PersisterAnswers:
    """Every persister, even one that stores nothing, returns a result for each row, in order."""

    name: ClassVar[str] = "default"
    storage: ClassVar[str] = "memory"
    state_storage: ClassVar[str] = "memory"
    config: ClassVar[dict[str, str]] = {}
    """Further settings of the broker."""
    counts_given_up: ClassVar[bool] = True
    """Whether it keeps the sum of WriteRequest.given_up in the broker's state store, as kbroker's
    own do, so that Spark can read it."""

    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Broker]:
        options = StartOptions(
            data_dir=directory,
            storage=self.storage,
            state_storage=self.state_storage,
            config=BrokerConfig({**self.config, "kbroker.persister": self.name}),
        )
        async with open_broker(options) as broker:
            if broker.topics.by_name(TOPIC_NAME) is None:
                await broker.topics.create(TOPIC_NAME, PARTITIONS, {})
            yield broker

    async def run(
        self,
        test: Callable[..., Awaitable[None]],
        directory: Path,
        wants_restarts: bool,
        **parameters: Parameter,
    ) -> None:
        lives = _Lives(self, directory)
        try:
            asked = await lives.begin()
            if wants_restarts:
                await test(self, asked, lives.restart, **parameters)
            else:
                await test(self, asked, **parameters)
        finally:
            await lives.end()

    @with_broker
    async def test_one_result_for_each_row_in_order(self, asked: Asked) -> None:
        rows = [asked.Q, asked.P, asked.missing, asked.partitions[3]]
        persister = asked.persister
        answers: list[Sequence[Result]] = [
            await persister.initialize(GROUP, [InitializeRequest(each, 1, 0) for each in rows]),
            await persister.read(GROUP, [ReadRequest(each, LEADER) for each in rows]),
            await persister.write(
                GROUP, [WriteRequest(each, 1, LEADER, 0, 0, [StateBatch(3, 4, K, 1)]) for each in rows]
            ),
            await persister.read_summary(GROUP, [ReadRequest(each, LEADER) for each in rows]),
            await persister.delete(GROUP, rows),
        ]
        for results in answers:
            assert [result.partition for result in results] == rows
            assert [results[number].code for number in (0, 1, 3)] == [_OK] * 3
        assert all(isinstance(result, ReadResult) for result in answers[1])
        assert all(isinstance(result, SummaryResult) for result in answers[3])

    @with_broker
    async def test_no_rows_no_results(self, asked: Asked) -> None:
        persister = asked.persister
        assert list(await persister.initialize(GROUP, [])) == list(await persister.read(GROUP, [])) == []
        assert list(await persister.write(GROUP, [])) == list(await persister.delete(GROUP, [])) == []
        assert list(await persister.read_summary(GROUP, [])) == []


class _Lives:
    """A broker that can be stopped and started within one test."""

    def __init__(self, suite: PersisterAnswers, directory: Path) -> None:
        self._suite = suite
        self._directory = directory
        self._life: AsyncIterator[Any] | None = None
        self._context: Any = None

    async def begin(self) -> Asked:
        self._context = self._suite.opened(self._directory)
        return Asked(await self._context.__aenter__())

    async def restart(self) -> Asked:
        await self.end()
        return await self.begin()

    async def end(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            await context.__aexit__(None, None, None)


class PersisterContract(PersisterAnswers):
    """Subclass it, set `name`, run pytest."""

    # Refusals, and their order

    @with_broker
    async def test_an_invalid_partition(self, asked: Asked) -> None:
        nowhere = {
            TopicPartition(UUID(int=0), 0): {_INVALID, _UNKNOWN_PARTITION},
            asked.P._replace(partition=-1): {_INVALID},
        }
        for partition, codes in nowhere.items():
            assert await asked.initialize(5, 0, at=partition) in codes
            assert (await asked.read(at=partition)).code in codes
            assert await asked.write(at=partition) in codes
            assert await asked.delete(at=partition) in codes
            assert (await asked.summary(at=partition)).code in codes

    @with_broker
    async def test_a_partition_that_does_not_exist(self, asked: Asked) -> None:
        assert await asked.initialize(5, 0, at=asked.missing) is _UNKNOWN_PARTITION
        assert await asked.delete(at=asked.missing) is _UNKNOWN_PARTITION
        assert (await asked.summary(at=asked.missing)).code is _UNKNOWN_PARTITION
        assert (await asked.read(at=asked.missing)).code is _INVALID, "not initialised comes first"
        assert await asked.write(at=asked.missing) is _INVALID

    @with_broker
    async def test_a_partition_that_was_not_initialised(self, asked: Asked) -> None:
        assert (await asked.read()).code is _INVALID
        assert await asked.write() is _INVALID
        assert await asked.delete() is _OK
        assert await asked.summary() == SummaryResult(asked.P)

    @with_broker
    async def test_negative_epochs(self, asked: Asked) -> None:
        await asked.begin()
        assert await asked.initialize(-1, 0) is _INVALID
        assert (await asked.read(-1)).code is _INVALID
        assert await asked.write(leader=-1) is _INVALID
        assert await asked.write(state=-1) is _INVALID

    @with_broker
    @pytest.mark.parametrize("start", [-2, -(1 << 63)])
    async def test_invalid_start_offsets(self, asked: Asked, start: int) -> None:
        await asked.begin()
        assert await asked.initialize(6, start) is _INVALID
        summary = await asked.summary()
        assert (summary.state_epoch, summary.start_offset) == (5, 100)

    @with_broker
    async def test_fencing(self, asked: Asked) -> None:
        await asked.begin()
        assert (await asked.read(LEADER - 1)).code is _FENCED_LEADER
        assert await asked.write(leader=LEADER - 1) is _FENCED_LEADER
        assert await asked.write(leader=LEADER - 1, state=4) is _FENCED_LEADER, "the leader epoch comes first"
        assert await asked.write(state=4) is _FENCED_STATE
        assert await asked.initialize(4, 100) is _FENCED_STATE
        assert (await asked.read(LEADER + 1)).code is _OK
        assert await asked.write(leader=LEADER) is _FENCED_LEADER, (
            "the reader with the higher epoch is the leader now"
        )

    @with_broker
    async def test_batches_that_could_never_be_loaded(self, asked: Asked) -> None:
        await asked.begin()
        wrong = [
            StateBatch(109, 108, A, 1),
            StateBatch(-1, 8, A, 1),
            StateBatch(101, 102, 1, 1),
            StateBatch(101, 102, A, -1),
            StateBatch(101, 102, A, MAX_DELIVERY_COUNT + 1),
            StateBatch(101, 100 + MAX_SPAN, A, 1),
        ]
        for batch in wrong:
            assert await asked.write(StateBatch(100, 101, K, 1), batch) is _INVALID
        assert await asked.batches() == ()

    @with_broker
    async def test_rows_succeed_and_fail_independently(self, asked: Asked) -> None:
        await asked.begin()
        rows = [
            WriteRequest(each, 5, LEADER, 100, 0, [StateBatch(100, 100, K, 1)])
            for each in (asked.Q, asked.P, asked.missing)
        ]
        results = await asked.persister.write(GROUP, rows)
        assert [result.code for result in results] == [_INVALID, _OK, _INVALID]
        assert await asked.batches() == (StateBatch(100, 100, K, 1),)

    # Effects of the verbs

    @with_broker
    @pytest.mark.parametrize(("start", "complete"), [(30, 0), (0, 0), (-1, -1)])
    async def test_initialize(self, asked: Asked, start: int, complete: int) -> None:
        assert await asked.initialize(6, start) is _OK
        assert await asked.summary() == SummaryResult(
            asked.P, state_epoch=6, leader_epoch=0, start_offset=start, delivery_complete_count=complete
        )
        found = await asked.read()
        assert (found.code, found.state_epoch, found.start_offset, tuple(found.batches)) == (
            _OK,
            6,
            start,
            (),
        )

    @with_broker
    async def test_initialize_with_another_start_recreates_the_state(self, asked: Asked) -> None:
        await asked.begin()
        await asked.write(StateBatch(100, 109, K, 1), complete=10)
        assert await asked.initialize(5, 50) is _OK
        summary = await asked.summary()
        assert (summary.start_offset, summary.delivery_complete_count) == (50, 0)
        assert await asked.batches() == ()

    @with_broker
    async def test_a_repeated_initialize_wipes_nothing(self, asked: Asked) -> None:
        await asked.begin()
        await asked.write(StateBatch(100, 109, K, 1))
        assert await asked.initialize(5, 100) is _OK
        assert await asked.batches() == (StateBatch(100, 109, K, 1),)

    @with_broker
    async def test_one_call_may_name_a_partition_twice(self, asked: Asked) -> None:
        await asked.begin()
        await asked.write(StateBatch(100, 109, K, 1))
        rows = [InitializeRequest(asked.P, 5, start) for start in (-1, 100)]
        assert [result.code for result in await asked.persister.initialize(GROUP, rows)] == [_OK, _OK]
        assert await asked.batches() == ()
        assert (await asked.summary()).start_offset == 100

    @with_broker
    async def test_write_never_changes_the_epochs(self, asked: Asked) -> None:
        await asked.begin()
        assert await asked.write(leader=LEADER + 2, state=8) is _OK
        assert await asked.write() is _OK
        summary = await asked.summary()
        assert (summary.leader_epoch, summary.state_epoch) == (LEADER, 5)

    @with_broker
    @pytest.mark.parametrize(
        ("start", "complete", "new_start", "new_complete"),
        [
            (100, 7, 100, 7),
            (100, 3, 100, 5),
            (100, -1, 100, 5),
            (99, 9, 100, 5),
            (-1, 9, 100, 5),
            (101, 2, 101, 2),
        ],
    )
    async def test_start_offset_and_delivery_complete_count(
        self, asked: Asked, restarted: Restarted, start: int, complete: int, new_start: int, new_complete: int
    ) -> None:
        await asked.begin()
        await asked.write(complete=5)
        await asked.write(start=start, complete=complete)
        for again in (False, True):
            if again:
                asked = await restarted()
            summary = await asked.summary()
            assert (summary.start_offset, summary.delivery_complete_count) == (new_start, new_complete)

    @with_broker
    @pytest.mark.parametrize(
        ("stored", "incoming", "start", "merged"),
        [
            ([(100, 109, A, 1)], [(105, 109, K, 1)], 100, [(100, 104, A, 1), (105, 109, K, 1)]),
            ([(100, 109, A, 2)], [(100, 104, K, 1)], 100, [(100, 109, A, 2)]),
            ([(100, 109, K, 1), (110, 119, K, 1)], [], 105, [(105, 119, K, 1)]),
            (
                [(100, 119, A, 1)],
                [(105, 114, A, 2)],
                100,
                [(100, 104, A, 1), (105, 114, A, 2), (115, 119, A, 1)],
            ),
            ([(100, 109, G, 3)], [(100, 109, R, 3)], 100, [(100, 109, R, 3)]),
            ([(100, 101, K, 1)], [(105, 105, K, 1)], 100, [(100, 101, K, 1), (105, 105, K, 1)]),
            ([], [(90, 99, K, 1), (98, 103, R, 2)], 101, [(101, 103, R, 2)]),
        ],
    )
    async def test_batches_are_combined(
        self,
        asked: Asked,
        restarted: Restarted,
        stored: Parameter,
        incoming: Parameter,
        start: int,
        merged: Parameter,
    ) -> None:
        """The higher delivery count wins, and for equal counts the higher state. Records below the
        start offset are dropped."""
        await asked.begin()
        await asked.write(*(StateBatch(*each) for each in stored))
        await asked.write(*(StateBatch(*each) for each in incoming), start=start)
        expected = tuple(StateBatch(*each) for each in merged)
        assert await asked.batches() == expected
        asked = await restarted()
        assert await asked.batches() == expected

    @with_broker
    async def test_read_stores_the_leader_epoch(self, asked: Asked, restarted: Restarted) -> None:
        await asked.begin()
        await asked.write(StateBatch(100, 100, K, 1), complete=1)
        await asked.read(LEADER + 2)
        summary = await asked.summary()
        assert (summary.leader_epoch, summary.delivery_complete_count) == (LEADER + 2, 1)
        asked = await restarted()
        assert await asked.write() is _FENCED_LEADER
        assert await asked.batches(leader=LEADER + 2) == (StateBatch(100, 100, K, 1),)

    @with_broker
    async def test_finished_offsets_from_an_offset_on(self, asked: Asked, restarted: Restarted) -> None:
        """Only for a persister whose summaries have `stands_from`."""
        await asked.begin()
        await asked.write(
            StateBatch(104, 106, K, 1), StateBatch(107, 107, A, 2), StateBatch(108, 109, R, 1), complete=5
        )
        for again in (False, True):
            if again:
                asked = await restarted()
            stands_from = (await asked.summary()).stands_from
            if stands_from is None:
                return
            found = [stands_from(offset) for offset in (100, 101, 104, 106, 107, 109, 110)]
            assert found == [(100, 5), (101, 5), (107, 5), (107, 3), (107, 2), (110, 1), (110, 0)]
        await asked.write(StateBatch(100, 101, K, 1), complete=7)
        stands_from = (await asked.summary()).stands_from
        assert stands_from is not None
        assert stands_from(100) == (102, 7), "also from the saved start offset itself"

    @with_broker
    async def test_delete_leaves_nothing(self, asked: Asked, restarted: Restarted) -> None:
        await asked.begin()
        await asked.write(StateBatch(100, 109, K, 1))
        await asked.begin(group="others")
        assert await asked.delete() is _OK
        assert await asked.delete() is _OK
        for again in (False, True):
            if again:
                asked = await restarted()
            assert await asked.summary() == SummaryResult(asked.P)
            assert (await asked.read()).code is _INVALID
            assert (await asked.summary(group="others")).state_epoch == 5
        assert await asked.initialize(0, 3) is _OK, "no fence is left"
        assert (await asked.read(0)).start_offset == 3

    @with_broker
    async def test_records_given_up_are_counted_as_long_as_the_state(
        self, asked: Asked, restarted: Restarted
    ) -> None:
        if not self.counts_given_up:
            pytest.skip("this persister keeps no count of the records that are given up")
        await asked.begin()
        for at in (asked.P, asked.Q):
            await asked.begin(at=at, group="others")
        await asked.write(StateBatch(100, 102, R, 1), StateBatch(103, 103, K, 1), given_up=3)
        await asked.write(StateBatch(104, 104, R, 1), given_up=1, leader=LEADER - 1)  # fenced
        await asked.write(StateBatch(104, 104, K, 1))
        asked = await restarted()
        assert asked.given_up() == {(GROUP, 0): 3}
        await asked.write(start=105, given_up=2, group="others", at=asked.Q)
        await asked.write(StateBatch(110, 110, R, 1), start=105, given_up=1)
        assert asked.given_up() == {(GROUP, 0): 4, ("others", 1): 2}
        assert await asked.initialize(5, 105) is _OK  # The same start: nothing changes.
        asked = await restarted()
        assert asked.given_up() == {(GROUP, 0): 4, ("others", 1): 2}
        assert await asked.initialize(6, 50) is _OK
        assert await asked.delete(at=asked.Q, group="others") is _OK
        assert asked.given_up() == {}
        await asked.begin(at=asked.Q, group="others")
        await asked.write(start=101, given_up=7, group="others", at=asked.Q)
        asked = await restarted()
        assert asked.given_up() == {("others", 1): 7}

    @with_broker
    async def test_groups_and_partitions_are_independent(self, asked: Asked, restarted: Restarted) -> None:
        names = ("a", "aa", "a:", "größe", "x" * 100)
        for number, group in enumerate(names):
            for partition in (asked.P, asked.Q):
                await asked.begin(at=partition, group=group)
                batch = StateBatch(100 + number, 100 + number, K, 1 + partition.partition)
                assert await asked.write(batch, at=partition, group=group) is _OK
        assert await asked.delete(group="aa") is _OK
        for again in (False, True):
            if again:
                asked = await restarted()
            for number, group in enumerate(names):
                found = await asked.read(group=group)
                assert found.code is (_INVALID if group == "aa" else _OK)
                assert group == "aa" or tuple(found.batches) == (
                    StateBatch(100 + number, 100 + number, K, 1),
                )
                assert await asked.batches(at=asked.Q, group=group) == (
                    StateBatch(100 + number, 100 + number, K, 2),
                )

    # Many writes, one after the other and at the same time

    @with_broker
    async def test_writes_at_the_same_time(self, asked: Asked, restarted: Restarted) -> None:
        await asked.begin()

        async def write(number: int) -> None:
            assert (
                await asked.write(StateBatch(100 + 2 * number, 100 + 2 * number, K, 1), complete=number)
                is _OK
            )

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(write, number)
        expected = tuple(StateBatch(100 + 2 * number, 100 + 2 * number, K, 1) for number in range(60))
        assert await asked.batches() == expected
        assert (await asked.summary()).delivery_complete_count == 59
        asked = await restarted()
        assert await asked.batches() == expected

    @with_broker
    async def test_many_writes(self, asked: Asked, restarted: Restarted) -> None:
        """More updates than a persister stores before it writes a snapshot."""
        await asked.begin()
        for number in range(1100):
            assert (
                await asked.write(
                    StateBatch(100 + number, 100 + number, K, 1), start=100 + max(0, number - 5)
                )
                is _OK
            )
        asked = await restarted()
        found = await asked.read()
        assert (found.start_offset, tuple(found.batches)) == (1194, (StateBatch(1194, 1199, K, 1),))

    @with_broker
    async def test_a_cancelled_write_is_undecided_and_harmless(self, asked: Asked) -> None:
        await asked.begin()
        with trio.CancelScope() as scope:
            scope.cancel()
            await asked.write(StateBatch(100, 100, K, 1))
        assert await asked.write(StateBatch(101, 101, K, 1)) is _OK
        assert await asked.batches() in ((StateBatch(100, 101, K, 1),), (StateBatch(101, 101, K, 1),))

    @with_broker
    @pytest.mark.parametrize("seed", range(3))
    async def test_model(self, asked: Asked, restarted: Restarted, seed: int) -> None:
        rng = random.Random(seed)
        models: dict[tuple[str, int], Model] = {}
        for _ in range(150):
            group, number = rng.choice("ab"), rng.randrange(2)
            await random_step(asked, rng, models, group, number)
            if rng.random() < 0.02:
                asked = await restarted()
        for (group, number), model in models.items():
            await model.compare(asked, asked.partitions[number], group)
