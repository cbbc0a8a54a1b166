"""AddOffsetsToTxn, TxnOffsetCommit and OffsetFetch with require_stable: offsets that a group gets
when a transaction is committed (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from kbroker.errors import ErrorCode, NoSpace
from tests.api.conftest import Client, Connect, versions
from tests.api.test_offset_requests import commit
from tests.api.transaction_clients import topic_key
from tests.api.transactional_producer import Producer, opened
from tests.metrics.world import refusing

OK = ErrorCode.none
UNSTABLE = ErrorCode.unstable_offset_commit
G = "g"
ADDS_FROM, ABORTABLE_FROM = 5, 4
BOTH_ENDS = pytest.mark.parametrize("is_commit", [True, False])


async def add_offsets(producer: Producer, group: str = G, *, version: int = 3) -> ErrorCode:
    answer = await producer.client.call(
        "add_offsets_to_txn",
        version,
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    return ErrorCode(answer.error_code)


async def send_offsets(
    producer: Producer,
    offsets: Mapping[int, int],
    group: str = G,
    *,
    version: int = ADDS_FROM,
    topic: str = "a",
    metadata: str = "",
    **more: Any,
) -> dict[int, ErrorCode]:
    """Codes by partition."""
    rows = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        | ({"committed_leader_epoch": -1} if version >= 2 else {})
        for index, offset in offsets.items()
    ]
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None} if version >= 3 else {}
    answer = await producer.client.call(
        "txn_offset_commit",
        version,
        transactional_id=more.pop("transactional_id", producer.transactional_id),
        group_id=group,
        producer_id=more.pop("producer_id", producer.producer_id),
        producer_epoch=more.pop("producer_epoch", producer.epoch),
        **{**member, **more},
        topics=[{**topic_key(producer.client, topic), "partitions": rows}],
    )
    return {row.partition_index: ErrorCode(row.error_code) for row in answer.topics[0].partitions}


async def offsets(
    client: Client, *indexes: int, stable: bool = False, group: str = G, every: bool = False
) -> dict[int, int | ErrorCode]:
    """The committed offset, or the error, of each partition."""
    wanted = None if every else [{"name": "a", "partition_indexes": indexes}]
    named = {"group_id": group, "topics": wanted, "member_id": None, "member_epoch": -1}
    answer = await client.call("offset_fetch", 9, groups=[named], require_stable=stable)
    (found,) = answer.groups
    assert found.error_code == OK
    return {
        row.partition_index: ErrorCode(row.error_code) if row.error_code else row.committed_offset
        for topic in found.topics
        for row in topic.partitions
    }


async def commit_plainly(client: Client, index: int, offset: int) -> None:
    topic = client.broker.topics.by_name("a")
    assert await commit(client, 9, topic, {index: (offset, -1, None)}) == {index: OK}


@pytest.mark.parametrize("version", versions("txn_offset_commit"))
@BOTH_ENDS
async def test_offsets_are_seen_after_the_commit(connect: Connect, version: int, is_commit: bool) -> None:
    async with opened(connect, generation=2 if version >= ADDS_FROM else 1) as (client, producer):
        if version < ADDS_FROM:
            assert await add_offsets(producer) == OK
        assert await send_offsets(producer, {0: 7, 1: 8, 9: 1}, version=version) == {
            0: OK, 1: OK, 9: ErrorCode.unknown_topic_or_partition,
        }  # fmt: skip
        assert await offsets(client, 0, 1) == {0: -1, 1: -1}
        assert await offsets(client, 0, 1, stable=True) == {0: UNSTABLE, 1: UNSTABLE}
        assert (await producer.end(is_commit)).code == OK
        found = {0: 7, 1: 8} if is_commit else {0: -1, 1: -1}
        assert await offsets(client, 0, 1, stable=True) == found


@pytest.mark.parametrize("version", versions("add_offsets_to_txn"))
async def test_adding_a_group(connect: Connect, version: int) -> None:
    async with opened(connect, generation=1) as (_, producer):
        assert await add_offsets(producer, version=version) == OK
        assert await add_offsets(producer, "", version=version) == OK
        right = producer.epoch
        producer.epoch += 1
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert await add_offsets(producer, version=version) == fenced
        producer.epoch, producer.producer_id = right, producer.producer_id + 1000
        assert await add_offsets(producer, version=version) == ErrorCode.invalid_producer_id_mapping
        producer.transactional_id = ""
        assert await add_offsets(producer, version=version) == ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions("txn_offset_commit"))
async def test_refusals(connect: Connect, version: int) -> None:
    """A fenced epoch is 47 here in every version."""
    async with opened(connect, generation=2 if version >= ADDS_FROM else 1) as (client, producer):
        if version < ADDS_FROM:
            abortable = version >= ABORTABLE_FROM
            code = ErrorCode.transaction_abortable if abortable else ErrorCode.invalid_txn_state
            assert await send_offsets(producer, {0: 1}, version=version) == {0: code}
            assert await add_offsets(producer) == OK
        for wrong, code in (
            ({"producer_epoch": producer.epoch + 1}, ErrorCode.invalid_producer_epoch),
            ({"producer_id": producer.producer_id + 1000}, ErrorCode.invalid_producer_id_mapping),
            ({"transactional_id": "nobody"}, ErrorCode.invalid_producer_id_mapping),
        ):
            assert await send_offsets(producer, {0: 1}, version=version, **wrong) == {0: code}, wrong
        assert await send_offsets(producer, {0: 1}, "", version=version) == {0: ErrorCode.invalid_group_id}
        long = await send_offsets(producer, {0: 1}, version=version, metadata="x" * 5000)
        assert long == {0: ErrorCode.offset_metadata_too_large}
        assert await send_offsets(producer, {0: 1}, version=version, topic="none") == {
            0: ErrorCode.unknown_topic_or_partition if version < 6 else ErrorCode.unknown_topic_id
        }
        if version >= 3:
            assert await add_offsets(producer, "new") == OK
            no_group = ErrorCode.illegal_generation if version < 6 else ErrorCode.group_id_not_found
            for group, code in (("new", no_group), (G, ErrorCode.unknown_member_id)):
                asked = {"version": version, "generation_id": 3, "member_id": "m"}
                assert await send_offsets(producer, {0: 1}, group, **asked) == {0: code}
        assert await offsets(client, 0, stable=True) == {0: -1}


async def test_a_member_of_the_group(connect: Connect) -> None:
    """Unlike OffsetCommit, a client without a member id may commit while the group has members."""
    async with opened(connect) as (client, producer):
        joined = {
            "group_id": G,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": "consumer",
            "group_instance_id": None,
            "protocols": [{"name": "range", "metadata": b""}],
            "reason": None,
        }
        first = await client.call("join_group", 9, **joined, member_id="")
        member = await client.call("join_group", 9, **joined, member_id=first.member_id)
        for generation, member_id, code in (
            (-1, "", OK),
            (member.generation_id, member.member_id, OK),
            (member.generation_id + 1, member.member_id, ErrorCode.illegal_generation),
            (member.generation_id, "stranger", ErrorCode.unknown_member_id),
        ):
            asked = {"generation_id": generation, "member_id": member_id}
            assert await send_offsets(producer, {0: 5}, **asked) == {0: code}, asked
        await producer.commit()
        assert await offsets(client, 0) == {0: 5}


@BOTH_ENDS
async def test_a_later_plain_commit_wins(connect: Connect, is_commit: bool) -> None:
    async with opened(connect) as (client, producer):
        await commit_plainly(client, 0, 1)
        await send_offsets(producer, {0: 5, 1: 6})
        assert await offsets(client, 0) == {0: 1}
        await commit_plainly(client, 0, 3)
        assert await offsets(client, 0) == {0: 3}
        await producer.end(is_commit)
        assert await offsets(client, 0, 1, stable=True) == {0: 3, 1: 6 if is_commit else -1}


async def test_an_earlier_plain_commit_loses(connect: Connect) -> None:
    async with opened(connect) as (client, producer):
        await commit_plainly(client, 0, 9)
        await send_offsets(producer, {0: 5})
        await send_offsets(producer, {0: 6})
        assert await offsets(client, every=True) == {0: 9}
        assert await offsets(client, every=True, stable=True) == {0: UNSTABLE}
        await producer.commit()
        assert await offsets(client, every=True, stable=True) == {0: 6}


@pytest.mark.parametrize("earlier_ends_first", [True, False])
async def test_of_two_transactions_the_later_offset_wins(connect: Connect, earlier_ends_first: bool) -> None:
    async with opened(connect) as (client, earlier):
        later = await Producer(client, "u").init()
        await send_offsets(earlier, {0: 1, 1: 1})
        await send_offsets(later, {0: 2})
        ends = [earlier, later] if earlier_ends_first else [later, earlier]
        for producer in ends:
            await producer.commit()
        assert await offsets(client, 0, 1, stable=True) == {0: 2, 1: 1}


@pytest.mark.parametrize("deletion", ["group", "offset", "topic"])
async def test_what_is_deleted_meanwhile_stays_so(connect: Connect, deletion: str) -> None:
    async with opened(connect) as (client, producer):
        await commit_plainly(client, 0, 1)
        await send_offsets(producer, {0: 5, 1: 6})
        if deletion == "group":
            answer = await client.call("delete_groups", 2, groups_names=[G])
            assert answer.results[0].error_code == OK
        elif deletion == "offset":
            topics = [{"name": "a", "partitions": [{"partition_index": 0}]}]
            assert (await client.call("offset_delete", 0, group_id=G, topics=topics)).error_code == OK
        else:
            await client.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}])
            await client.create_topic("a", 2)
        assert (await producer.commit()).code == OK
        kept = {0: -1, 1: 6} if deletion == "offset" else {0: -1, 1: -1}
        assert await offsets(client, 0, 1, stable=True) == kept
        assert len(client.broker.consumer_group_service.groups.offsets.pending) == 0


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
@BOTH_ENDS
async def test_pending_offsets_survive_a_restart(connect: Connect, engine: str, is_commit: bool) -> None:
    async with opened(partial(connect, engine)) as (client, producer):
        await commit_plainly(client, 1, 1)
        await send_offsets(producer, {0: 5, 1: 6})
        await send_offsets(producer, {1: 4}, "other")
        await commit_plainly(client, 1, 3)
    async with connect(engine) as client:
        producer.on(client)
        assert await offsets(client, 0, 1, stable=True) == {0: UNSTABLE, 1: 3}
        assert (await producer.end(is_commit)).code == OK
        assert await offsets(client, 0, 1, stable=True) == {0: 5 if is_commit else -1, 1: 3}
        assert await offsets(client, 1, group="other") == {1: 4 if is_commit else -1}
    async with connect(engine) as client:
        assert await offsets(client, 0, 1, stable=True) == {0: 5 if is_commit else -1, 1: 3}
        assert len(client.broker.consumer_group_service.groups.offsets.pending) == 0


async def test_offsets_that_cannot_be_saved(connect: Connect) -> None:
    async with opened(connect) as (client, producer):
        await send_offsets(producer, {0: 5})
        with refusing(client.broker.state_commits, NoSpace("full")):
            assert await send_offsets(producer, {1: 6}) == {1: ErrorCode.coordinator_not_available}
        assert await offsets(client, 0, 1, stable=True) == {0: UNSTABLE, 1: -1}
        await producer.commit()
        assert await offsets(client, 0, 1, stable=True) == {0: 5, 1: -1}


async def test_offsets_of_an_open_transaction_do_not_expire(connect: Connect) -> None:
    async with opened(connect) as (client, producer):
        await commit_plainly(client, 0, 1)
        await send_offsets(producer, {0: 5})
        groups = client.broker.consumer_group_service.groups
        later_ms = client.broker.consumer_group_service._runner.clock.now_ms() + 30 * 24 * 3_600_000
        assert groups.expire_offsets(G, now_ms=later_ms).changes == ()
        await producer.commit()
        assert await offsets(client, 0) == {0: 5}
