"""The administration clients that come with the libraries, unmodified; and what clients are told about what is not served."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
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
from tests.clients.workload import BASE_MS, Content

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")  # kafka-python on Python 3.11 and 3.12
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
    only(client.incremental_alter_configs([ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[change])]))
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


def test_transactions_are_refused_for_good(broker: RunningBroker, name: str) -> None:
    from kafka import KafkaProducer
    from kafka.errors import TransactionalIdAuthorizationFailedError

    with pytest.raises(KafkaException) as refused:
        Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0}).init_transactions(PATIENCE_S)
    error = refused.value.args[0]
    assert (error.code(), error.fatal(), error.retriable()) == (ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True, False)
    assert "transactions are not supported" in error.str()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    try:
        with pytest.raises(TransactionalIdAuthorizationFailedError):
            producer.init_transactions()
    finally:
        producer.close(PATIENCE_S)


def test_consumer_groups_are_refused(broker: RunningBroker, name: str) -> None:
    from kafka import KafkaConsumer
    from kafka.errors import IncompatibleBrokerVersion

    broker.create_topic(name)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    try:
        consumer.subscribe([name])
        message = consumer.poll(PATIENCE_S)
        assert message.error().code() == ClientError._UNSUPPORTED_FEATURE
    finally:
        consumer.close()
    other = KafkaConsumer(name, bootstrap_servers=broker.bootstrap, group_id=name)
    try:
        with pytest.raises(IncompatibleBrokerVersion, match="JoinGroup"):
            other.poll(PATIENCE_S * 1000)
    finally:
        other.close()
