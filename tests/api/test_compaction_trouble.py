"""Compaction when something goes wrong: full disks, lost states, extreme settings. The broker
continues to serve, and no reader loses a committed record."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.broker.compaction.log_pass import LogPass, PassLimits
from kbroker.broker.logs.producer_recovery import can_replay_from
from kbroker.compaction.choice import Cleanable
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import ProducerInfo
from kbroker.formats.state import CleanedKey
from kbroker.formats.transactions import aborted_prefix
from kbroker.storage.spi import Change
from tests.api.conftest import Connect
from tests.api.test_compacted_transactions import SOON, A, Sender, pass_over
from tests.api.test_compaction import SMALL, append, compact, fill, keyed, stored, topic_of
from tests.api.transaction_clients import begin
from tests.api.transactional_producer import aborted, committed, read


@pytest.mark.parametrize(
    "error", [NoSpace("full"), StoreFailed("broken"), KafkaError(ErrorCode.kafka_storage_error)], ids=repr
)
async def test_a_log_waits_while_its_holders_are_unknown(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with connect() as client:
        topic = await topic_of(client, **{"kbroker.queue.retention": "unfinished"})
        latest = await fill(client, topic)

        async def fail(_: object) -> dict[str, int]:
            raise error

        with monkeypatch.context() as broken:
            broken.setattr(client.broker.log_cleaner, "_holders", fail)
            await compact(client)
        assert client.broker.log_cleaner.statistics().passes == 0
        await compact(client)
        assert client.broker.log_cleaner.statistics().passes == 1
        assert dict((await stored(client, topic)).values()) == latest


async def test_an_unforeseen_error_concerns_one_log(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect() as client:
        topic = await topic_of(client)
        await fill(client, topic)
        await client.create_topic("other", configs=SMALL)

        async def fail(*_: object) -> None:
            raise ZeroDivisionError("unforeseen")

        with monkeypatch.context() as broken:
            broken.setattr(LogPass, "_read_keys", fail)
            await compact(client)
        assert client.broker.log_cleaner.statistics().uncleanable == 1
        assert "a-0 is not compacted any more" in caplog.text


async def test_tombstones_may_stay_for_ever(connect: Connect) -> None:
    async with connect() as client:
        topic = await topic_of(client, **{"delete.retention.ms": str((1 << 63) - 1)})
        await append(client, topic, keyed(("gone", None)))
        for _ in range(2):
            await fill(client, topic)
            await compact(client)
        assert client.broker.log_cleaner.statistics().uncleanable == 0
        assert (await stored(client, topic))[0] == ("gone", None)


async def test_a_pass_ends_where_nothing_is_left(connect: Connect) -> None:
    """A pass that was cut off has removed the last batches of the range, and saved no stop."""
    async with connect() as client:
        topic = await topic_of(client, **{"internal.segment.bytes": "100"})
        for number in range(6):
            await append(client, topic, keyed(("k", f"{number}")))
        await compact(client)
        partition = client.partition("a")
        segments = partition.segments()
        assert [each.size_bytes > 0 for each in segments] == [False, False, False, False, True, True]
        again = Cleanable(segments[:3], 1, 0, 1, -1)

        async def none_go(_: object) -> None:
            raise AssertionError("there is no marker")

        limits = PassLimits(1 << 20, 1e9, client.broker.disk_floor.check_room)
        one = LogPass(partition, client.broker.log_store, client.broker.log_commits, again, limits, none_go)
        with trio.fail_after(10):
            result = await one.run(0, 0)
        assert (result.cleaned_to, result.removed_records) == (3, 0)


async def test_a_segment_with_an_empty_batch_is_not_rewritten_in_each_pass(connect: Connect) -> None:
    async with connect() as client:
        topic = await topic_of(client, **{"internal.segment.bytes": "100"})
        await append(client, topic, keyed(("k", "1"), producer=ProducerInfo(1, 0, 0)))
        await append(client, topic, keyed(("k", "2")))
        await append(client, topic, keyed(("z", "2")))
        await compact(client)
        (first, *_) = client.partition("a").segments()
        assert first.size_bytes == 61, "the header that holds the producer's sequence"
        replaced: list[int] = []
        replacing = client.broker.log_store.replacing
        client.broker.log_store.replacing = (  # type: ignore[method-assign]
            lambda log, base: replaced.append(base) or replacing(log, base)  # type: ignore[func-returns-value]
        )
        await append(client, topic, keyed(("y", "2")))
        await compact(client)
        assert 0 not in replaced


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_marker_goes_after_a_snapshot_of_its_producer(connect: Connect, is_commit: bool) -> None:
    """A replay that begins before the marker would leave the transaction open."""
    async with connect("segment") as client:
        topic = (await client.create_topic("a", configs=SOON)).topic_id
        sender = Sender(client, "t", await begin(client, "t", a=[0]))
        await sender.send("k1", "old")
        await client.broker.producer_snapshots.save(least_bytes=1)
        await sender.end(commit=is_commit)
        marker = client.partition("a").high_watermark - 1
        await append(client, topic, keyed(("k1", "new")))
        await sender.begin()
        await sender.send("k2", "the last batch of a producer stays as a header")
        await sender.end(commit=True)
        for _ in range(4):
            await pass_over(client, topic)
        partition, store = client.partition("a"), client.broker.state_store
        assert all(each.base_offset != marker or not each.size_bytes for each in partition.segments())
        assert can_replay_from(partition, store, marker + 1)


async def test_an_aborted_transaction_is_forgotten_also_after_a_full_disk(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        topic = (await client.create_topic("a", configs=SOON)).topic_id
        sender = Sender(client, "t", await begin(client, "t", a=[0]))
        await sender.send("k1", "aborted")
        await sender.end(commit=False)
        await sender.begin()
        await sender.send("k1", "committed")
        await sender.end(commit=True)
        await client.broker.producer_snapshots.save(least_bytes=1)
        prefix, commits = aborted_prefix(*client.partition("a").log), client.broker.state_commits
        assert len(list(client.broker.state_store.scan(prefix))) == 1
        commit = commits.commit
        refused: list[Any] = []

        async def full(changes: list[Change]) -> None:
            if any(key.startswith(prefix) for key, _ in changes):
                refused.append(changes)
                raise NoSpace("full")
            await commit(changes)

        monkeypatch.setattr("kbroker.broker.compaction.cleaner._NO_ROOM_WAIT_S", 0.0)
        with monkeypatch.context() as broken:
            broken.setattr(commits, "commit", full)
            for _ in range(3):
                await pass_over(client, topic)
        assert refused
        for _ in range(4):
            await pass_over(client, topic)
        assert list(client.broker.state_store.scan(prefix)) == []
        assert aborted(await read(client, A)) == []
        assert [value for value in await committed(client, A) if value != b"x"] == [b"committed"]


async def test_a_pass_stops_when_the_topic_is_no_longer_compacted(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        topic = await topic_of(client)
        await fill(client, topic)
        before = await stored(client, topic)
        found = client.broker.topics.by_name("a")
        assert found is not None
        read_keys = LogPass._read_keys

        async def alter(one: LogPass, seen: Any) -> None:
            await read_keys(one, seen)
            await client.broker.topics.set_configs(found, {**SMALL, "cleanup.policy": "delete"})

        monkeypatch.setattr(LogPass, "_read_keys", alter)
        await compact(client)
        assert await stored(client, topic) == before
        assert client.broker.state_store.get(CleanedKey(*client.partition("a").log).encode()) is None
