"""What clients see whose rights are partial, or withdrawn while they work."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.api.request import CloseConnection
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from kbroker.security.acls import AclFilter, Operation, ResourceType
from tests.api.authorization_world import (
    AUTHORIZER,
    World,
    opened,
    share_acknowledge,
    share_fetch,
    transactional_batch,
)
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import ENABLED, NAME, until
from tests.api.share_consumers import REJECT
from tests.api.transaction_clients import add, end, init

TOPIC, GROUP, CLUSTER, ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
DENIED = ErrorCode.topic_authorization_failed
_NONE = -(1 << 31)


async def withdraw(world: World, operation: Operation = Operation.ANY) -> None:
    """Remove all entries, or those for an operation."""
    assert await world.client.broker.acls.delete([AclFilter(operation=operation)], 100) is not None


def batch(value: bytes = b"x") -> bytes:
    return build_batch([Record(0, 1, None, value, ())])


async def produce(
    client: Client, records: bytes, *topics: str, transactional_id: str | None = None
) -> list[int]:
    data = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in topics]
    answer = await client.call(
        "produce", 12, acks=-1, transactional_id=transactional_id, topic_data=data, timeout=1000
    )
    return [row.error_code for topic in answer.responses for row in topic.partition_responses]


def fetch_fields(
    world: World, *names: str, session_id: int = 0, epoch: int = -1, version: int = 12
) -> dict[str, Any]:
    row = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "rack_id": "", "isolation_level": 0}
    topics = [{"topic": name, "partitions": [row]} for name in names]
    session = {"session_id": session_id, "session_epoch": epoch, "forgotten_topics_data": ()}
    return {**limits, **session, "topics": topics, "replica_id": -1, "cluster_id": None}


# --- producers and consumers


async def test_one_topic_of_a_request_is_refused_alone(connect: Connect) -> None:
    async with opened(connect) as world:
        await world.client.create_topic("private")
        await world.allow("bob", Operation.WRITE, TOPIC, "orders")
        bob = world.client_of("bob")
        assert await produce(bob, batch(), "private", "orders", "absent") == [DENIED, 0, DENIED]
        assert world.client.partition("private").high_watermark == 0
        assert world.client.partition("orders").high_watermark == 4
        await world.allow("bob", Operation.READ, TOPIC, "orders")
        answer = await bob.call("fetch", 12, **fetch_fields(world, "private", "orders"))
        rows = {topic.topic: topic.partitions[0] for topic in answer.responses}
        assert (rows["orders"].error_code, rows["orders"].high_watermark) == (0, 4)
        hidden = rows["private"]
        assert (hidden.error_code, hidden.high_watermark, hidden.log_start_offset) == (DENIED, -1, -1)
        assert hidden.last_stable_offset == -1


async def test_ids_of_hidden_topics_are_refused_and_unknown_ids_are_unknown(connect: Connect) -> None:
    async with opened(connect) as world:
        bob = world.client_of("bob")
        ids = [world.names.topic_id, UUID(int=77)]
        data = [{"topic_id": each, "partition_data": [{"index": 0, "records": batch()}]} for each in ids]
        answer = await bob.call("produce", 13, acks=-1, transactional_id=None, topic_data=data, timeout=1000)
        codes = [row.error_code for topic in answer.responses for row in topic.partition_responses]
        assert codes == [DENIED, ErrorCode.unknown_topic_id]
        asked = [{"topic_id": each, "name": None} for each in ids]
        found = await bob.call(
            "metadata", 12, topics=asked, allow_auto_topic_creation=True,
            include_topic_authorized_operations=True,
        )  # fmt: skip
        rows = [(each.error_code, each.name, each.partitions) for each in found.topics]
        assert rows == [(DENIED, None, ()), (ErrorCode.unknown_topic_id, None, ())]
        assert {each.topic_authorized_operations for each in found.topics} == {_NONE}


async def test_a_refused_batch_without_acks_ends_the_connection(connect: Connect) -> None:
    async with opened(connect) as world:
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch()}]}]
        with pytest.raises(CloseConnection, match="topic_authorization_failed"):
            await world.client_of("bob").call(
                "produce", 12, acks=0, transactional_id=None, topic_data=data, timeout=1000
            )


async def test_a_fetch_session_loses_a_topic_and_gets_it_back(connect: Connect) -> None:
    async with opened(connect) as world:
        await world.client.create_topic("other")
        await world.client.append("other", 1)
        await world.allow("bob", Operation.READ, TOPIC, "orders", "other")
        bob = world.client_of("bob")
        first = await bob.call("fetch", 12, **fetch_fields(world, "orders", "other", epoch=0))
        assert [each.topic for each in first.responses] == ["orders", "other"]
        session = first.session_id

        async def more(epoch: int) -> dict[str, tuple[int, bool]]:
            fields = fetch_fields(world, session_id=session, epoch=epoch)
            answer = await bob.call("fetch", 12, **fields)
            assert (answer.error_code, answer.session_id) == (0, session)
            return {
                topic.topic: (topic.partitions[0].error_code, bool(topic.partitions[0].records))
                for topic in answer.responses
            }

        assert await more(1) == {"orders": (0, True), "other": (0, True)}
        await world.deny("bob", Operation.READ, TOPIC, "orders")
        assert await more(2) == {"orders": (DENIED, False), "other": (0, True)}
        assert await more(3) == {"orders": (DENIED, False), "other": (0, True)}, "as long as it lasts"
        await withdraw(world)
        assert await more(4) == {"orders": (DENIED, False), "other": (DENIED, False)}
        await world.allow("bob", Operation.READ, TOPIC, "orders")
        assert await more(5) == {"orders": (0, True), "other": (DENIED, False)}


async def test_a_session_of_another_principal_is_not_found(connect: Connect) -> None:
    """Its number can be guessed, and refused rows would name the hidden topics that it has."""
    async with opened(connect) as world:
        await world.allow("bob", Operation.READ, TOPIC, "orders")
        first = await world.client_of("bob").call("fetch", 12, **fetch_fields(world, "orders", epoch=0))
        eve = world.client_of("eve")
        for epoch in (1, 2):
            fields = fetch_fields(world, session_id=first.session_id, epoch=epoch)
            answer = await eve.call("fetch", 12, **fields)
            assert answer.error_code == ErrorCode.fetch_session_id_not_found, "whatever the epoch is"
            assert not answer.responses
        for epoch in (-1, 0):
            await eve.call("fetch", 12, **fetch_fields(world, session_id=first.session_id, epoch=epoch))
        fields = fetch_fields(world, session_id=first.session_id, epoch=1)
        again = await world.client_of("bob").call("fetch", 12, **fields)
        assert again.error_code == ErrorCode.none, "on another connection, and eve has not ended it"
        assert again.responses[0].partitions[0].records


# --- share consumers


async def test_a_share_session_without_the_topic_acquires_nothing(connect: Connect) -> None:
    """RPC-67, RPC-36"""
    async with opened(connect, **{"group.share.min.record.lock.duration.ms": "1000"}) as world:
        names = world.names
        await set_earliest(world)
        await world.allow("bob", Operation.READ, GROUP, names.share_group)
        bob = world.client_of("bob")
        answer = await bob.call("share_fetch", 2, **share_fetch(names))
        ((row,),) = [topic.partitions for topic in answer.responses]
        assert (row.error_code, row.acquired_records, answer.error_code) == (DENIED, (), 0)
        await world.allow("bob", Operation.READ, TOPIC, names.topic)
        answer = await bob.call("share_fetch", 2, **share_fetch(names, 1, wait_ms=5000))
        ((row,),) = [topic.partitions for topic in answer.responses]
        acquired = [
            (each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records
        ]
        assert (row.error_code, acquired) == (0, [(0, 2, 1)]), "the first delivery: nothing was locked before"
        await withdraw(world)
        await world.allow("bob", Operation.READ, GROUP, names.share_group)
        rows = [
            {"partition_index": 0, "acknowledgement_batches": [
                {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]}
        ]  # fmt: skip
        answer = await bob.call("share_fetch", 2, **share_fetch(names, 2, rows))
        ((row,),) = [topic.partitions for topic in answer.responses]
        assert (row.error_code, row.acknowledge_error_code) == (DENIED, DENIED)
        answer = await bob.call("share_acknowledge", 2, **share_acknowledge(names, 3))
        ((row,),) = [topic.partitions for topic in answer.responses]
        assert (answer.error_code, row.error_code) == (0, DENIED)
        unknown = names._replace(topic_id=UUID(int=77))
        answer = await bob.call("share_acknowledge", 2, **share_acknowledge(unknown, 4))
        ((row,),) = [topic.partitions for topic in answer.responses]
        assert (answer.error_code, row.error_code) == (0, ErrorCode.unknown_topic_id)
        await world.allow("bob", Operation.READ, TOPIC, names.topic)
        answer = await bob.call("share_acknowledge", 2, **share_acknowledge(names, 5))
        ((row,),) = [topic.partitions for topic in answer.responses]
        assert row.error_code == 0, "the session went through all of this, and still holds the records"
        await withdraw(world)
        answer = await bob.call("share_acknowledge", 2, **share_acknowledge(names, 6))
        assert (answer.error_code, answer.responses) == (ErrorCode.group_authorization_failed, ())


async def set_earliest(world: World) -> None:
    row = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": world.names.share_group, "configs": [row]}
    answer = await world.client.call(
        "incremental_alter_configs", 1, resources=[resource], validate_only=False
    )
    assert answer.responses[0].error_code == 0


async def test_other_share_sessions_of_the_group_go_on(connect: Connect) -> None:
    async with opened(connect) as world:
        await set_earliest(world)
        await world.allow("bob", Operation.READ, GROUP, world.names.share_group)
        await world.allow("carol", Operation.ALL, GROUP, world.names.share_group)
        await world.allow("carol", Operation.ALL, TOPIC, world.names.topic)
        await world.client_of("bob").call("share_fetch", 2, **share_fetch(world.names))
        fields = {**share_fetch(world.names, wait_ms=5000), "member_id": "carol"}
        answer = await world.client_of("carol").call("share_fetch", 2, **fields)
        ((row,),) = [topic.partitions for topic in answer.responses]
        assert [each.delivery_count for each in row.acquired_records] == [1]


# --- transactions


async def test_a_transaction_whose_rights_are_withdrawn(connect: Connect) -> None:
    async with opened(connect) as world:
        await world.allow("bob", Operation.WRITE, ID, "tx-bob")
        await world.allow("bob", Operation.WRITE, TOPIC, "orders")
        bob = world.client_of("bob")
        producer = await init(bob, "tx-bob")
        await add(bob, "tx-bob", producer, orders=[1])
        records = transactional_batch(producer.producer_id, producer.epoch)
        await withdraw(world)
        assert await produce(bob, records, "orders", transactional_id="tx-bob") == [
            ErrorCode.transactional_id_authorization_failed
        ]
        await world.allow("bob", Operation.WRITE, ID, "tx-bob")
        assert await produce(bob, records, "orders", transactional_id="tx-bob") == [DENIED]
        partition = world.client.partition("orders")
        assert partition.high_watermark == 3
        record = world.client.broker.transactions.coordinator.record("tx-bob")
        assert record is not None
        assert {each.partition for each in record.partitions} == {1}, "a refused topic is not added"
        await end(bob, "tx-bob", producer, commit=False)


async def test_a_request_that_names_no_partition_needs_the_right_too(connect: Connect) -> None:
    async with opened(connect) as world:
        coordinator = world.client.broker.transactions.coordinator
        producer = await init(world.client, "tx-new")
        before = coordinator.record("tx-new")
        bob = world.client_of("bob")
        for topics in ((), [{"name": "orders", "partitions": ()}]):
            await bob.call(
                "add_partitions_to_txn",
                3,
                v3_and_below_transactional_id="tx-new",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
        assert coordinator.record("tx-new") == before
        assert bob.broker.acls.denied[Operation.WRITE, ID] == 2


@pytest.mark.parametrize("version", [3, 5])
async def test_one_denied_topic_keeps_all_out_of_a_transaction(version: int, connect: Connect) -> None:
    async with opened(connect) as world:
        await world.allow("bob", Operation.WRITE, ID, "tx-bob")
        await world.allow("bob", Operation.WRITE, TOPIC, "orders")
        bob = world.client_of("bob")
        producer = await init(bob, "tx-bob")
        topics = [{"name": name, "partitions": [0]} for name in ("orders", "absent")]
        fields = {
            "v3_and_below_transactional_id": "tx-bob",
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": topics,
            "transactions": (),
        }
        answer = await bob.call("add_partitions_to_txn", version, **fields)
        if version > 3:
            assert (answer.error_code, answer.results_by_transaction) == (
                ErrorCode.cluster_authorization_failed,
                (),
            )
            return
        codes = {
            topic.name: topic.results_by_partition[0].partition_error_code
            for topic in answer.results_by_topic_v3_and_below
        }
        assert codes == {"orders": ErrorCode.operation_not_attempted, "absent": DENIED}


@pytest.mark.parametrize(
    ("operation", "kind", "name"),
    [(Operation.IDEMPOTENT_WRITE, CLUSTER, "kafka-cluster"), (Operation.WRITE, TOPIC, "not-there-yet")],
)
async def test_either_right_is_enough_for_a_producer_id(
    operation: Operation, kind: ResourceType, name: str, connect: Connect
) -> None:
    async with connect(config=AUTHORIZER) as client:
        world = World(client, None)  # type: ignore[arg-type]
        bob = world.client_of("bob")
        fields = {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1}
        refused = await bob.call("init_producer_id", 4, **fields)
        assert refused.error_code == ErrorCode.cluster_authorization_failed
        await world.allow("bob", operation, kind, name)
        assert (await bob.call("init_producer_id", 4, **fields)).error_code == 0
        await world.deny("bob", Operation.ALL, kind, name)
        refused = await bob.call("init_producer_id", 4, **fields)
        assert refused.error_code == ErrorCode.cluster_authorization_failed


# --- groups


async def test_groups_with_hidden_topics_show_nothing(connect: Connect) -> None:
    """RPC-66: refused groups come first."""
    async with opened(connect) as world:
        names = world.names
        for api, version, group_id in (
            ("consumer_group_describe", 1, names.consumer_group),
            ("share_group_describe", 1, names.share_group),
        ):
            await world.allow("bob", Operation.READ, GROUP, group_id)
            bob = world.client_of("bob")
            ids = {"group_ids": [group_id, "other"], "include_authorized_operations": True}
            refused, hidden = (await bob.call(api, version, **ids)).groups
            assert (refused.group_id, refused.error_code, refused.authorized_operations) == (
                "other",
                ErrorCode.group_authorization_failed,
                _NONE,
            )
            assert (hidden.error_code, hidden.members) == (DENIED, ())
            assert (hidden.group_state, hidden.assignor_name) == ("", "")
            assert (hidden.group_epoch, hidden.assignment_epoch) == (0, 0)
            assert (hidden.authorized_operations, bool(hidden.error_message)) == (_NONE, True)
            await world.allow("bob", Operation.DESCRIBE, TOPIC, names.topic)
            _, shown = (await bob.call(api, version, **ids)).groups
            assert (shown.error_code, len(shown.members)) == (0, 1)
            await withdraw(world)


async def test_a_heartbeat_needs_every_topic_that_it_names(connect: Connect) -> None:
    """RPC-65, GRP-3"""
    async with opened(connect) as world:
        names = world.names
        await world.allow("bob", Operation.READ, GROUP, names.consumer_group, names.share_group)
        await world.allow("bob", Operation.DESCRIBE, TOPIC, names.topic)
        bob = world.client_of("bob")
        share = {"member_id": "n", "member_epoch": 0, "rack_id": None, "group_id": names.share_group}
        consumer = {
            **share, "group_id": names.consumer_group, "instance_id": None, "rebalance_timeout": 1000,
            "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
        }  # fmt: skip
        for api, fields in (("share_group_heartbeat", share), ("consumer_group_heartbeat", consumer)):
            two = await bob.call(api, 1, **fields, subscribed_topic_names=[names.topic, "absent"])
            assert (two.error_code, two.error_message, two.assignment) == (DENIED, None, None)
            if api == "share_group_heartbeat":
                nameless = await bob.call(
                    api, 1, **{**fields, "member_id": ""}, subscribed_topic_names=["absent"]
                )
                assert nameless.error_code == ErrorCode.invalid_request
            one = await bob.call(api, 1, **fields, subscribed_topic_names=[names.topic])
            assert one.error_code == 0
        await withdraw(world)
        gone = await bob.call(
            "share_group_heartbeat", 1, **{**share, "member_epoch": 1}, subscribed_topic_names=None
        )
        assert gone.error_code == ErrorCode.group_authorization_failed


async def test_an_expression_matches_only_topics_that_its_member_may_see(connect: Connect) -> None:
    async with opened(connect) as world:
        await world.client.create_topic("orders-eu")
        await world.allow("bob", Operation.READ, GROUP, "regex")
        await world.allow("bob", Operation.READ, TOPIC, "orders-eu")
        bob = world.client_of("bob")
        ids = {topic.topic_id: topic.name for topic in world.client.broker.topics}
        epoch = 0

        async def beat(**more: Any) -> set[str] | None:
            nonlocal epoch
            answer = await bob.call(
                "consumer_group_heartbeat", 1, group_id="regex", member_id="r", member_epoch=epoch,
                instance_id=None, rack_id=None, server_assignor=None,
                **{"rebalance_timeout": -1, "subscribed_topic_names": None, "subscribed_topic_regex": None,
                   "topic_partitions": None, **more},
            )  # fmt: skip
            assert answer.error_code == 0
            epoch = answer.member_epoch
            if answer.assignment is None:
                return None
            return {ids[each.topic_id] for each in answer.assignment.topic_partitions}

        joined = {"rebalance_timeout": 1000, "subscribed_topic_regex": "orders.*", "topic_partitions": ()}
        assert await beat(**joined) == {"orders-eu"}
        await settle(world)
        await world.allow("bob", Operation.DESCRIBE, TOPIC, "orders")
        assert await beat() == {"orders", "orders-eu"}
        await settle(world)
        await withdraw(world, Operation.DESCRIBE)
        assert await beat() == {"orders-eu"}


async def settle(world: World) -> None:
    """Allow the group its next assignment at once."""
    for group_id in ("regex",):
        group = world.client.broker.consumer_group_service.groups.consumer.existing(group_id)
        group.assignment_ms = 0


# --- topics and their administration


async def test_operations_are_those_of_the_principal(connect: Connect) -> None:
    """RPC-12: and of the cluster none, without DESCRIBE on it."""
    async with opened(connect) as world:
        await world.allow("bob", Operation.READ, TOPIC, "orders")
        await world.deny("bob", Operation.READ, TOPIC, "orders")
        await world.allow("bob", Operation.WRITE, TOPIC, "orders")
        bob = world.client_of("bob")
        fields = {
            "topics": [{"name": "orders", "topic_id": None}], "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True, "include_cluster_authorized_operations": True,
        }  # fmt: skip
        answer = await bob.call("metadata", 9, **fields)
        assert answer.topics[0].topic_authorized_operations == 272
        assert answer.cluster_authorized_operations == 0
        await world.allow("bob", Operation.ALTER, CLUSTER, "kafka-cluster")
        answer = await bob.call("metadata", 9, **fields)
        assert answer.cluster_authorized_operations == 1 << 7 | 1 << 8
        assert (await world.client.call("metadata", 9, **fields)).topics[
            0
        ].topic_authorized_operations == 3576


@pytest.mark.parametrize(("kind", "name"), [(CLUSTER, "kafka-cluster"), (TOPIC, "made")])
async def test_a_missing_topic_is_created_only_with_the_right(
    kind: ResourceType, name: str, connect: Connect
) -> None:
    async with opened(connect) as world:
        bob = world.client_of("bob")
        fields = {"topics": [{"name": "made"}], "allow_auto_topic_creation": True}
        await world.allow("bob", Operation.DESCRIBE, TOPIC, "made")
        (row,) = (await bob.call("metadata", 5, **fields)).topics
        assert (row.error_code, row.partitions) == (DENIED, ())
        assert world.client.broker.topics.by_name("made") is None
        await world.allow("bob", Operation.CREATE, kind, name)
        (row,) = (await bob.call("metadata", 5, **fields)).topics
        assert row.error_code == 0


async def test_settings_of_a_new_topic_are_withheld(connect: Connect) -> None:
    async with opened(connect) as world:
        await world.allow("bob", Operation.CREATE, CLUSTER, "kafka-cluster")
        counts = {"num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
        bob = world.client_of("bob")
        (row,) = (
            await bob.call("create_topics", 7, topics=[{"name": "new", **counts}], validate_only=False)
        ).topics
        assert (row.error_code, row.topic_config_error_code) == (0, DENIED)
        assert (row.num_partitions, row.replication_factor, row.configs) == (-1, -1, ())
        assert world.client.broker.topics.by_name("new").topic_id == row.topic_id


async def test_refused_deletions_name_a_topic_only_to_clients_that_see_it(connect: Connect) -> None:
    async with opened(connect) as world:
        bob = world.client_of("bob")
        topic_id = world.names.topic_id

        async def deleted(*asked: dict[str, Any]) -> list[tuple[int, str | None]]:
            answer = await bob.call("delete_topics", 6, topics=asked)
            return [(each.error_code, each.name) for each in answer.responses]

        by_id, by_name = {"name": None, "topic_id": topic_id}, {"name": "orders", "topic_id": None}
        assert await deleted(by_id) == [(DENIED, None)]
        assert await deleted(by_name, by_id) == [(DENIED, "orders"), (DENIED, None)]
        await world.allow("bob", Operation.DESCRIBE, TOPIC, "orders", "absent")
        assert await deleted(by_id) == [(DENIED, "orders")]
        missing = {"name": "absent", "topic_id": None}
        assert await deleted(missing) == [(ErrorCode.unknown_topic_or_partition, "absent")]
        assert await deleted({"name": "hidden", "topic_id": None}) == [(DENIED, "hidden")]
        await world.allow("bob", Operation.DELETE, TOPIC, "orders", "absent")
        assert await deleted(missing) == [(ErrorCode.unknown_topic_or_partition, "absent")]
        assert await deleted(by_id) == [(0, "orders")]


async def test_brokers_may_ask_for_the_ends_of_epochs(connect: Connect) -> None:
    """CLUSTER_ACTION on the cluster is enough, for missing topics too."""
    async with opened(connect) as world:
        bob = world.client_of("bob")
        rows = [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]
        topics = [{"topic": name, "partitions": rows} for name in ("orders", "absent")]

        async def codes() -> list[int]:
            answer = await bob.call("offset_for_leader_epoch", 4, replica_id=-1, topics=topics)
            return [row.error_code for topic in answer.topics for row in topic.partitions]

        assert await codes() == [DENIED, DENIED]
        await world.allow("bob", Operation.CLUSTER_ACTION, CLUSTER, "kafka-cluster")
        assert await codes() == [0, ErrorCode.unknown_topic_or_partition]


async def test_dead_letters_need_no_right_of_the_client(connect: Connect) -> None:
    """DLQ-29: the broker writes them as itself."""
    async with opened(connect) as world:
        names = world.names
        await set_earliest(world)
        await world.client.create_topic("dlq.jobs", configs=ENABLED)
        settings = {"name": NAME, "config_operation": 0, "value": "dlq.jobs"}
        resource = {"resource_type": 32, "resource_name": names.share_group, "configs": [settings]}
        altered = await world.client.call(
            "incremental_alter_configs", 1, resources=[resource], validate_only=False
        )
        assert altered.responses[0].error_code == 0, altered
        await world.allow("bob", Operation.READ, GROUP, names.share_group)
        await world.allow("bob", Operation.READ, TOPIC, names.topic)
        bob = world.client_of("bob")
        await bob.call("share_fetch", 2, **share_fetch(names, wait_ms=5000))
        fields = share_acknowledge(names, 1)
        fields["topics"][0]["partitions"][0]["acknowledgement_batches"][0]["acknowledge_types"] = [REJECT]
        await bob.call("share_acknowledge", 2, **fields)
        await until(lambda: world.client.partition("dlq.jobs").high_watermark == 3)
