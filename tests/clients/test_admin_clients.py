"""The administration clients of the libraries, unmodified, and their transactional producers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from kbroker.testing.broker import RunningBroker
from tests.clients.drivers import DRIVERS
from tests.clients.group_consumers import CONSUMERS, ConfluentConsumer, GroupConsumer
from tests.clients.workload import BASE_MS, Content

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
PATIENCE_S = 60


def only(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def test_confluent_kafka(broker: RunningBroker, name: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    only(client.create_topics([NewTopic(name, 3, config={"retention.ms": "100000"})]))
    with pytest.raises(KafkaException) as refused:
        only(client.create_topics([NewTopic(name, 3)]))
    assert refused.value.args[0].code() == ClientError.TOPIC_ALREADY_EXISTS
    only(client.create_partitions([NewPartitions(name, 5)]))
    assert len(client.list_topics(timeout=PATIENCE_S).topics[name].partitions) == 5
    assert len(only(client.describe_topics(TopicCollection([name]))).partitions) == 5

    topic = ConfigResource(ConfigResource.Type.TOPIC, name)
    assert only(client.describe_configs([topic]))["retention.ms"].value == "100000"
    change = ConfigEntry("retention.ms", "200000", incremental_operation=AlterConfigOpType.SET)
    only(
        client.incremental_alter_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[change])]
        )
    )
    assert only(client.describe_configs([topic]))["retention.ms"].value == "200000"

    DRIVERS["confluent-kafka"].send(broker.bootstrap, name, [Content(BASE_MS, None, b"x")] * 10)
    place = TopicPartition(name, 0)
    assert only(client.list_offsets({place: OffsetSpec.latest()})).offset == 10
    assert only(client.list_offsets({place: OffsetSpec.max_timestamp()})).timestamp == BASE_MS
    assert only(client.delete_records([TopicPartition(name, 0, 4)])).low_watermark == 4
    assert only(client.list_offsets({place: OffsetSpec.earliest()})).offset == 4

    cluster = client.describe_cluster().result(PATIENCE_S)
    assert [(node.host, node.port) for node in cluster.nodes] == [(broker.host, broker.port)]
    only(client.delete_topics([name]))
    assert name not in client.list_topics(timeout=PATIENCE_S).topics


def test_kafka_python(broker: RunningBroker, name: str) -> None:
    from kafka.admin import KafkaAdminClient
    from kafka.admin import NewTopic as Topic

    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        client.create_topics([Topic(name, 2, 1)])
        assert name in client.list_topics()
        (described,) = client.describe_topics([name])
        assert len(described["partitions"]) == 2
        assert [node["port"] for node in client.describe_cluster()["brokers"]] == [broker.port]
        (log_dirs,) = client.describe_log_dirs()
        assert name in {topic["name"] for directory in log_dirs["log_dirs"] for topic in directory["topics"]}
        client.delete_topics([name])
        assert name not in client.list_topics()
    finally:
        client.close()


def test_aiokafka(broker: RunningBroker, name: str) -> None:
    asyncio.run(administrate_with_aiokafka(broker, name))


async def administrate_with_aiokafka(broker: RunningBroker, name: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin import NewPartitions as Partitions
    from aiokafka.admin import NewTopic as Topic

    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    try:
        await client.create_topics([Topic(name, 2, 1)])
        await client.create_partitions({name: Partitions(4)})
        (described,) = await client.describe_topics([name])
        assert len(described["partitions"]) == 4
        assert [node["port"] for node in (await client.describe_cluster())["brokers"]] == [broker.port]
        await client.delete_topics([name])
        assert name not in await client.list_topics()
    finally:
        await client.close()


def test_transactions(broker: RunningBroker, name: str) -> None:
    """Two libraries use one transactional id, one after the other. The second fences the first."""
    from kafka import KafkaProducer

    broker.create_topic(name)
    older = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    older.init_transactions(PATIENCE_S)
    for value, is_commit in ((b"a", True), (b"b", False), (b"c", True)):
        older.begin_transaction()
        older.produce(name, value)
        older.flush(PATIENCE_S)
        (older.commit_transaction if is_commit else older.abort_transaction)(PATIENCE_S)
    older.begin_transaction()
    older.produce(name, b"d")
    older.flush(PATIENCE_S)

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"e").get(PATIENCE_S)
        producer.commit_transaction()
    finally:
        producer.close(PATIENCE_S)
    with pytest.raises(KafkaException) as fenced:
        older.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].fatal()
    assert read_all(broker, name, "read_committed") == [b"a", b"c", b"e"]
    assert read_all(broker, name, "read_uncommitted") == [b"a", b"b", b"c", b"d", b"e"]


def read_all(broker: RunningBroker, topic: str, level: str) -> list[bytes | None]:
    """The records up to the end that a consumer of this isolation level sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: list[bytes | None] = []
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is None:
                found.append(message.value())
            else:
                assert error.code() == ClientError._PARTITION_EOF
                return found
    finally:
        consumer.close()


@pytest.fixture(params=["confluent-classic", "confluent-consumer"])
def member(broker: RunningBroker, name: str, request: pytest.FixtureRequest) -> Iterator[GroupConsumer]:
    """The only member of the group `name`; it has read and committed four records of the topic with
    the same name."""
    broker.create_topic(name)
    DRIVERS["confluent-kafka"].send(broker.bootstrap, name, [Content(BASE_MS, None, b"x")] * 4)
    with CONSUMERS[request.param](broker.bootstrap, name, {}) as member:
        member.subscribe(name)
        member.until("its records", lambda: len(member.got) == 4)
        member.commit()
        yield member


def test_groups_with_confluent_kafka(broker: RunningBroker, member: ConfluentConsumer, name: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    kind = ConsumerGroupType[member.protocol.upper()]

    def listed() -> list[Any]:
        answer = client.list_consumer_groups(types={kind}).result(PATIENCE_S)
        assert answer.errors == []
        return [(group.state, group.type) for group in answer.valid if group.group_id == name]

    assert listed() == [(ConsumerGroupState.STABLE, kind)]
    described = only(client.describe_consumer_groups([name]))
    assert (described.state, described.type, len(described.members)) == (ConsumerGroupState.STABLE, kind, 1)
    assert described.members[0].assignment.topic_partitions == [TopicPartition(name, 0)]
    asked = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0)])
    assert [row.offset for row in only(client.list_consumer_group_offsets([asked])).topic_partitions] == [4]
    with pytest.raises(KafkaException) as refused:
        only(client.delete_consumer_groups([name]))
    assert refused.value.args[0].code() == ClientError.NON_EMPTY_GROUP

    member.close()
    assert listed() == [(ConsumerGroupState.EMPTY, kind)]
    only(
        client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 1, metadata="again")])]
        )
    )
    (row,) = only(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])).topic_partitions
    assert (row.topic, row.partition, row.offset, row.metadata) == (name, 0, 1, "again")
    only(client.delete_consumer_groups([name]))
    assert listed() == []


def test_groups_with_kafka_python(broker: RunningBroker, member: ConfluentConsumer, name: str) -> None:
    from kafka.admin import KafkaAdminClient
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as Place

    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        assert name in {group["group_id"] for group in client.list_groups()}
        if member.protocol == "classic":
            described = client.describe_groups([name])[name]
            assert (described["group_state"], len(described["members"])) == ("Stable", 1)
        place = Place(name, 0)
        assert client.list_group_offsets([name])[name][place].offset == 4
        member.close()
        client.alter_group_offsets(name, {place: OffsetAndMetadata(2, "again", -1)})
        row = client.list_group_offsets([name])[name][place]
        assert (row.offset, row.metadata) == (2, "again")
        client.delete_group_offsets(name, [place])
        assert place not in client.list_group_offsets([name])[name]
        client.delete_groups([name])
        assert name not in {group["group_id"] for group in client.list_groups()}
    finally:
        client.close()


def test_groups_with_aiokafka(broker: RunningBroker, member: ConfluentConsumer, name: str) -> None:
    asyncio.run(look_at_groups_with_aiokafka(broker, member, name))


async def look_at_groups_with_aiokafka(broker: RunningBroker, member: ConfluentConsumer, name: str) -> None:
    from aiokafka import TopicPartition as Place
    from aiokafka.admin import AIOKafkaAdminClient

    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    try:
        assert name in {row[0] for row in await client.list_consumer_groups()}
        if member.protocol == "classic":
            (answer,) = await client.describe_consumer_groups([name])
            assert name in str(answer.to_object())
        offsets = await client.list_consumer_group_offsets(name)
        assert offsets[Place(name, 0)].offset == 4
    finally:
        await client.close()
