"""Parked records without a valid state are removed: after an alteration, a deletion, or a crash.
Those of valid state never are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.errors import ErrorCode, StoreFailed
from kbroker.formats.parked_records import (
    ParkedKey,
    generation_prefix,
    parked_prefix,
    parked_topic_prefix,
    shelf_of,
)
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import InitializeRequest, WriteRequest, begin_anew
from kbroker.testing.parking_model import Shelf, park, parked
from kbroker.testing.persister_model import GROUP, LEADER, PARTITIONS, TOPIC_NAME, Asked
from kbroker_control_records.persister import ControlRecordsPersister

BOTH = pytest.mark.parametrize("persister", ["default", "control-records"])


@asynccontextmanager
async def opened(
    directory: Path, persister: str = "default", engine: str = "memory"
) -> AsyncIterator[Broker]:
    config = BrokerConfig({"kbroker.persister": persister})
    async with open_broker(
        StartOptions(data_dir=directory, storage=engine, state_storage=engine, config=config)
    ) as broker:
        if broker.topics.by_name(TOPIC_NAME) is None:
            await broker.topics.create(TOPIC_NAME, PARTITIONS, {})
        yield broker


def generations(broker: Broker) -> dict[int, int]:
    """How many keys there are, by generation."""
    found: dict[int, int] = {}
    for key, _ in broker.state_store.scan(ParkedKey.namespace):
        number = shelf_of(key).generation
        found[number] = found.get(number, 0) + 1
    return found


async def filled(broker: Broker, number: int = 700) -> Shelf:
    asked = Asked(broker)
    await asked.begin()
    shelf = Shelf(asked)
    assert await shelf.write(*(park(parked(100 + each, each)) for each in range(number))) is ErrorCode.none
    return shelf


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - the cleaner tells nobody
            await trio.sleep(0.05)


async def alter(shelf: Shelf) -> None:
    for result in await shelf.asked.persister.initialize(
        GROUP, begin_anew(InitializeRequest(shelf.partition, 5, 100))
    ):
        assert result.code is ErrorCode.none
    assert (await shelf.asked.read()).code is ErrorCode.none
    shelf.there, shelf.start = {}, 100


@BOTH
def test_what_an_alteration_has_ended_goes_without_being_asked_for(persister: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, persister) as broker:
            shelf = await filled(broker)
            (old,) = generations(broker)
            await alter(shelf)
            assert await shelf.write(*(park(parked(100 + each, each)) for each in range(5))) is ErrorCode.none
            await until(lambda: len(generations(broker)) == 1)
            assert old not in generations(broker)
            await shelf.check()
            statistics = broker.parked_cleaner.statistics()
            assert (statistics.removed, statistics.generations) == (1401, 1)

    trio.run(run)


@BOTH
def test_what_a_crash_has_left_goes_at_the_next_start(persister: str, tmp_path: Path) -> None:
    """Killed after the alteration, before anything was removed; another share-partition is
    valid."""

    async def run() -> None:
        async with opened(tmp_path, persister) as broker:
            shelf = await filled(broker)
            other = Shelf(shelf.asked, at=shelf.asked.Q)
            await shelf.asked.begin(at=other.at)
            assert await other.write(park(parked(100, 5)), park(parked(101, 5))) is ErrorCode.none
            left = list(broker.state_store.scan(parked_prefix(GROUP, *shelf.partition)))
            await alter(shelf)
            await broker.parked_cleaner.work()
            assert len(generations(broker)) == 1
        async with opened(tmp_path, persister) as broker:
            await broker.state_commits.commit(left)
            assert len(generations(broker)) == 2
            await broker.parked_cleaner.work(ParkedKey.namespace)
            assert list(generations(broker).values()) == [5]
            shelf.asked = other.asked = Asked(broker)
            await other.check()
            await shelf.check()

    trio.run(run)


def test_all_are_looked_at_some_seconds_after_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as broker:
            shelf = await filled(broker, 3)
            stray = generation_prefix(parked_prefix("gone", *shelf.partition), 7) + b"\x09of a later format"
            await broker.state_commits.commit([(stray, b"?"), (b"parked/damaged", b"?")])
            await until(lambda: broker.state_store.get(stray) is None)
            assert broker.state_store.get(b"parked/damaged") is not None
            await shelf.check()

    trio.run(run, clock=trio.testing.MockClock(rate=50))


@BOTH
def test_what_was_parked_of_a_deleted_topic_goes(persister: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, persister) as broker:
            shelf = await filled(broker, 20)
            topic = broker.topics.by_name(TOPIC_NAME)
            assert topic is not None
            await broker.topics.delete(topic)
            await broker.share_state.topic_deleted(shelf.partition.topic_id)
            await broker.parked_cleaner.work(parked_topic_prefix(shelf.partition.topic_id))
            assert generations(broker) == {}

    trio.run(run)


def test_what_a_deletion_that_is_not_saved_would_end_stays(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as broker:
            shelf = await filled(broker, 20)
            before = generations(broker)
            coordinator = broker.share_state.coordinator
            outcome = coordinator.delete(GROUP, [shelf.partition])
            await broker.parked_cleaner.work(ParkedKey.namespace)
            assert generations(broker) == before
            coordinator.states.failed(outcome)
            await broker.parked_cleaner.work(ParkedKey.namespace)
            assert generations(broker) == before
            await shelf.check()

    trio.run(run)


def test_what_a_write_under_way_has_just_begun_stays(tmp_path: Path) -> None:
    """With control records it is in the store before any record refers to it."""

    async def run() -> None:
        async with opened(tmp_path, "control-records") as broker:
            asked, persister = Asked(broker), broker.persister
            assert isinstance(persister, ControlRecordsPersister)
            await asked.begin()
            request = WriteRequest(asked.P, 5, LEADER, 100, 0, (), (park(parked(100, 5)),), 1)
            (step,) = (await persister._parking.put(GROUP, [request])).values()
            await broker.parked_cleaner.work(ParkedKey.namespace)
            assert list(generations(broker)) == [step.generation]

    trio.run(run)


def test_state_that_cannot_be_read_keeps_what_it_has(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as broker:
            shelf = await filled(broker, 3)
            snapshot, _ = next(iter(broker.state_store.scan(b"share/")))
            # out of memory
            broker.share_state.coordinator.states.failed(
                broker.share_state.coordinator.delete(GROUP, [shelf.partition])
            )
            await broker.state_commits.commit([(snapshot, b"damaged")])
            await broker.parked_cleaner.work(ParkedKey.namespace)
            assert list(generations(broker).values()) == [7]

    trio.run(run)


def test_a_store_that_fails_ends_the_round_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as broker:
            shelf = await filled(broker, 3)

            async def commit(changes: object) -> None:
                raise StoreFailed("no more")

            with monkeypatch.context() as patched:
                patched.setattr(broker.state_commits, "commit", commit)
                assert await shelf.asked.delete() is ErrorCode.none
                await until(lambda: broker.parked_cleaner.statistics().failures == 1)
                assert list(generations(broker).values()) == [7]
            await broker.parked_cleaner.work(ParkedKey.namespace)
            assert generations(broker) == {}

    trio.run(run)


def test_a_generation_is_never_used_twice(tmp_path: Path) -> None:
    """Deleted, recreated, restarted, altered: each number is greater than all before."""

    async def run() -> None:
        seen: list[int] = []
        for _ in range(3):
            async with opened(tmp_path) as broker:
                asked = Asked(broker)
                for _ in range(2):
                    await asked.delete()
                    await asked.begin()
                    shelf = Shelf(asked)
                    assert await shelf.write(park(parked(100, 5))) is ErrorCode.none
                    seen.append(broker.share_state.coordinator.generation(GROUP, asked.P))
                    await alter(shelf)
                    assert broker.share_state.coordinator.generation(GROUP, asked.P) == 0
                    assert await shelf.write(park(parked(100, 5))) is ErrorCode.none
                    seen.append(broker.share_state.coordinator.generation(GROUP, asked.P))
        assert seen == sorted(set(seen))
        assert len(seen) == 12

    trio.run(run)
