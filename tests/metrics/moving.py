"""Operations that move each metric: requests, consumers, groups, housekeeping, on a broker of a
World."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.broker.logs.retention import apply_retention
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.batches import Record, build_batch
from kbroker.plugins import STANDARD_AUTHORIZER
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.principals import user
from tests.api import dead_letter_queues as queues
from tests.api.share_consumers import (
    ACCEPT,
    FAST,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    acquired,
    set_up_group,
)
from tests.metrics.compaction_metrics import compaction
from tests.metrics.queue_metrics import jobs_that_wait, parts_of_compressed_batches
from tests.metrics.quota_metrics import quotas
from tests.metrics.sasl_metrics import log_ins
from tests.metrics.transaction_metrics import transactions
from tests.metrics.world import World, blocked, refusing, total

CONFIG = {
    **FAST,
    "max.connections": "6",
    "max.incremental.fetch.session.cache.slots": "1",
    "group.share.max.size": "3",
    "group.share.max.share.sessions": "3",
    "group.share.delivery.count.limit": "2",
    "offsets.retention.check.interval.ms": "50",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
OFFERED = [{"name": "range", "metadata": b""}]


async def ask(world: World, api: str, version: int, **fields: object) -> Any:
    return await world.over_the_wire(api, version, **fields)


def produced(value: bytes, topic: str = "wire") -> dict[str, object]:
    records = build_batch([Record(0, 1000, None, value, ())])
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}


def fetched(offset: int, *, wait_ms: int = 0, session_epoch: int = -1) -> dict[str, object]:
    row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1000}
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": session_epoch,
        "topics": [{"topic": "wire", "partitions": [row]}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


async def requests_and_connections(world: World) -> None:
    await world.client.create_topic("wire", configs={"max.message.bytes": "200"})
    await ask(world, "produce", 9, **produced(b"fits"))
    await ask(world, "produce", 9, **produced(b"x" * 300))
    await ask(world, "produce", 9, **produced(b"fits", "none"))
    for _ in range(2):
        await ask(world, "fetch", 11, **fetched(0, session_epoch=0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(ask, world, "fetch", 11, **fetched(1, wait_ms=500)))
        await world.until("kbroker_requests_waiting")
    await world.until("kbroker_requests_expired_total")
    streams = [await trio.open_tcp_stream(*world.address) for _ in range(7)]
    await world.until("kbroker_connections_refused_total")
    for stream in streams:
        await stream.aclose()


async def administration(world: World) -> None:
    client = world.client
    await queues.set_up_broker(client, {"errors.deadletterqueue.auto.create.topics.enable": "true"})
    await client.call(
        "init_producer_id",
        4,
        transactional_id=None,
        transaction_timeout=1000,
        producer_id=-1,
        producer_epoch=-1,
    )
    await client.call(
        "delete_records", 2, topics=[{"name": "wire", "partitions": [{"partition_index": 0, "offset": 1}]}]
    )
    refused = {"num_partitions": 1, "replication_factor": 1, "assignments": ()}
    refused |= {"name": "refused", "configs": [{"name": "segment.jitter.ms", "value": "-1"}]}
    await client.call("create_topics", 7, topics=[refused], validate_only=False)
    await client.call("metadata", 7, topics=[{"name": "refused"}], allow_auto_topic_creation=True)
    await client.create_topic("short-lived")
    drop = world.broker.log_store.drop

    def refuse(_: object) -> None:
        raise NoSpace

    world.broker.log_store.drop = refuse  # type: ignore[method-assign]
    topic = world.broker.topics.by_name("short-lived")
    assert topic is not None
    with pytest.raises(NoSpace):
        await world.broker.topics.delete(topic)
    world.broker.log_store.drop = drop  # type: ignore[method-assign]
    assert await world.value("kbroker_topics_half_deleted") == 1


async def commits(world: World) -> None:
    client, broker = world.client, world.broker
    async with trio.open_nursery() as nursery:
        with blocked(broker.log_commits):
            nursery.start_soon(client.append, "wire", 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(client.append, "wire", 1)  # The next group.
            await world.until("kbroker_commit_pending")
    heartbeat = {
        "group_id": "joining",
        "member_id": "M1",
        "member_epoch": 0,
        "rack_id": None,
        "subscribed_topic_names": ["wire"],
    }
    async with trio.open_nursery() as nursery:
        with blocked(broker.state_commits):
            nursery.start_soon(partial(client.call, "share_group_heartbeat", 1, **heartbeat))
            await world.until("kbroker_share_partitions_initializing")
    await client.call("share_group_heartbeat", 1, **{**heartbeat, "member_epoch": -1})
    async with trio.open_nursery() as nursery:
        with blocked(broker.state_commits):
            nursery.start_soon(partial(client.call, "delete_groups", 2, groups_names=["joining"]))
            await world.until("kbroker_share_groups_in_administration")
    await client.call("share_group_heartbeat", 1, **{**heartbeat, "group_id": "idle"})


async def consuming(world: World) -> None:
    """Limit 2: offsets 0 and 1 are accepted, 2 is released and reaches the limit, 3 is rejected, 4
    has a lock that expires."""
    client, broker = world.client, world.broker
    key = await queues.prepare_dead_letters(client, 4, 4, configs={queues.COPY: "true"})
    await client.append_raw("orders", queues.damaged_batch())
    another = client.another(1002)
    member = Member(another, "M1")
    assert acquired(await member.fetch([key], max_records=5, wait_ms=5000))[0][:2] == (0, 7)
    await world.scrape()
    async with trio.open_nursery() as nursery:
        with blocked(broker.state_commits):
            nursery.start_soon(
                member.acknowledge, {key: [(0, 1, [ACCEPT]), (2, 2, [RELEASE]), (3, 3, [REJECT])]}
            )
            await world.until("kbroker_share_state_unsaved")
    await member.acknowledge({key: [(4, 5, [RENEW])]}, renew=True)
    await world.until("kbroker_share_partition_lock_timeouts_total")
    await member.fetch(wait_ms=5000)
    with refusing(broker.state_commits, NoSpace()):
        await member.acknowledge({key: [(6, 6, [GAP])]})
    with refusing(broker.log_commits, NoSpace()):
        await member.acknowledge({key: [(7, 8, [REJECT])]})
        await world.until("kbroker_share_group_dead_letter_failures_total")
    floor: Any = broker.disk_floor
    floor.letter_room = lambda **_: 0
    await world.until("kbroker_share_group_dead_letter_waiting_bytes")
    del floor.letter_room
    await world.until("kbroker_share_group_dead_letters_without_copy_total")
    await world.until("kbroker_share_partition_dead_lettered_total")
    await set_up_group(client, {queues.NAME: "orders"})
    offset = await client.append("orders", 1)
    await member.fetch(wait_ms=5000)
    await member.acknowledge({key: [(offset, offset, [REJECT])]})
    await world.until("kbroker_share_group_dead_letters_refused_total")
    others = [Member(client, f"M{number}") for number in (2, 3, 4)]
    for other in others:
        await other.fetch([key])
    another.disconnect()
    await client.append("orders", 1)
    rows = [{"partition_index": 0, "offset": -1}]
    await client.call("delete_records", 2, topics=[{"name": "orders", "partitions": rows}])
    await world.scrape()


async def long_jobs(world: World) -> None:
    """A record that is held for longer than its lock lasts."""
    topic = await world.client.create_topic("long")
    await world.client.append("long", 1)
    await set_up_group(
        world.client, {"share.auto.offset.reset": "earliest", "kbroker.queue.lock.max.ms": "60000"}, "long"
    )
    fields = {"group_id": "long", "member_id": "L1", "rack_id": None, "subscribed_topic_names": ["long"]}
    await world.client.call("share_group_heartbeat", 1, member_epoch=0, **fields)
    member = Member(world.client.another(1003), "L1", "long")
    assert acquired(await member.fetch([(topic.topic_id, 0)], wait_ms=5000)) == [(0, 0, 1)]
    await world.until("kbroker_share_partition_prolonged_locks_total")
    await member.fetch(epoch=-1)


async def a_held_log(world: World) -> None:
    """A record that a worker holds keeps the log, and is then kept beside it."""
    client = world.client
    topic = await client.create_topic(
        "held", configs={"internal.segment.bytes": "400", "kbroker.queue.retention": "workqueue"}
    )
    for _ in range(20):
        await client.append("held", *[1] * 10)
    await set_up_group(client, {"share.auto.offset.reset": "earliest"}, "held")
    heartbeat = {
        "group_id": "held",
        "member_id": "H1",
        "member_epoch": 0,
        "rack_id": None,
        "subscribed_topic_names": ["held"],
    }
    assert (await client.call("share_group_heartbeat", 1, **heartbeat)).error_code == 0
    member, key = Member(client.another(1005), "H1", "held"), (topic.topic_id, 0)
    await member.fetch([key], wait_ms=5000)
    await member.acknowledge({key: [(1, 199, [ACCEPT])]})
    found, broker = client.broker.topics.by_name("held"), client.broker
    await apply_retention(broker.topics, found.partitions[0], found.config, broker.held_logs)
    samples = await world.scrape()
    held_bytes = samples["kbroker_share_group_held_log_bytes"][(("group", "held"),)]
    assert held_bytes == sum(each.size_bytes for each in found.partitions[0].segments()[:-1])
    await apply_retention(
        broker.topics, found.partitions[0], found.config, broker.held_logs, broker.kept_records
    )
    samples = await world.scrape()
    assert samples["kbroker_share_group_held_log_bytes"][(("group", "held"),)] == 0
    assert total(samples, "kbroker_kept_records_total") == 1
    age = samples["kbroker_share_partition_oldest_unprocessed_seconds"][
        (("group", "held"), ("partition", "0"), ("topic", "held"))
    ]
    assert age > 1e9, "that of the kept record, whose timestamp is of 1970"
    await member.fetch(acks={key: [(0, 0, [ACCEPT])]}, epoch=-1)


async def ordinary_groups(world: World) -> None:
    """Two members of the classic protocol, one of which waits for the other; a member of the
    consumer protocol; offsets that are committed and removed."""
    client = world.client
    join = partial(
        client.call, "join_group", session_timeout=6000, protocol_type="consumer", protocols=OFFERED
    )
    joined = await join(3, group_id="classic", rebalance_timeout=60_000, member_id="")
    await world.scrape()
    assert (
        await join(
            9, group_id="classic", rebalance_timeout=60_000, member_id="", group_instance_id=None, reason=None
        )
    ).error_code == 79
    sync = {
        "group_id": "classic",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "assignments": (),
    }
    await client.call("sync_group", 2, **sync)
    async with trio.open_nursery() as nursery:
        again = {"group_id": "classic", "rebalance_timeout": 100, "member_id": joined.member_id}
        nursery.start_soon(partial(join, 3, **again))
        await world.until("kbroker_group_requests_waiting")
        nursery.cancel_scope.cancel()
    heartbeat = {
        "group_id": "consumer",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
    }
    heartbeat |= {
        "rebalance_timeout": 1000,
        "subscribed_topic_names": ["wire"],
        "server_assignor": None,
        "topic_partitions": (),
    }
    await client.call("consumer_group_heartbeat", 0, **heartbeat)
    for group_id, retention_ms in (("stays", -1), ("expires", 0), ("deleted", -1)):
        rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
        member = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": ""}
        await client.call(
            "offset_commit",
            2,
            **member,
            retention_time=retention_ms,
            topics=[{"name": "wire", "partitions": rows}],
        )
    await client.call("delete_groups", 2, groups_names=["deleted"])
    await world.until("kbroker_offset_expirations_total")
    await client.append("wire", 1, 2)


async def short_disk(world: World) -> None:
    """Another program takes all of the disk, and the engine needs much of it."""
    floor, store = world.broker.disk_floor, world.broker.log_store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "least_free_bytes", lambda: 1 << 50)
        floor.look()
        answer = await world.client.call("produce", 9, **produced(b"refused"))
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.kafka_storage_error
        await world.scrape()
    floor.look()
    assert not floor.is_short


async def housekeeping(world: World) -> None:
    later_ms = wall_clock_ms() + 600_000
    with refusing(world.broker.state_commits, NoSpace()):
        await world.broker.state_housekeeping.work(later_ms)
    await world.broker.state_housekeeping.work(later_ms)
    await world.scrape()


async def rights(world: World) -> None:
    """An entry, and an operation that a client without it may not do."""
    created = {
        "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "principal": "User:alice",
        "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    answer = await ask(world, "create_acls", 3, creations=[created])
    assert answer.results[0].error_code == 0
    found = {name: world.broker.acls.rights_of(user(name), "10.0.0.1") for name in ("alice", "bob")}
    allowed = {
        name: each is not None and each.allows(Operation.READ, ResourceType.TOPIC, "orders")
        for name, each in found.items()
    }
    assert allowed == {"alice": True, "bob": False}
    assert await world.value("kbroker_acls") == 1
    assert await world.value("kbroker_denied_operations_total", operation="READ", resource="TOPIC") == 1


STEPS: tuple[Callable[[World], Awaitable[None]], ...] = (
    requests_and_connections,
    rights,
    administration,
    log_ins,
    quotas,
    commits,
    ordinary_groups,
    short_disk,
    transactions,
    compaction,
    parts_of_compressed_batches,
    consuming,
    long_jobs,
    jobs_that_wait,
    a_held_log,
    housekeeping,
)
