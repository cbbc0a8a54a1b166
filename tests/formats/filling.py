"""The content of a stored data directory, and what a broker that opens it must return: one
description for writer and test.

    queue   one partition, read by the share group "workers": records accepted, rejected, released
            and then accepted, released, untouched
    log     three partitions, a batch of every codec, several segments, its beginning deleted,
            records kept forever
    table   compacted (from format 3 on): holes at the start, in batches and between them, batches
            without records, tombstones, a transaction that was aborted
    gone    deleted
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaError,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from kbroker.client import admin, group_admin
from kbroker.client.rpc import Connection
from kbroker.testing.broker import RunningBroker

GROUP = "workers"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BROKER_CONFIG = {
    # both snapshots and updates, although the state is small
    "share.coordinator.snapshot.update.records.per.snapshot": "4",
    "log.segment.bytes": "1048576",  # segment files have their full length from the start
    "log.cleaner.backoff.ms": "100",
    "node.id": "7",
}

_KEPT_FOR_EVER = {"retention.ms": "-1"}
_SMALL_SEGMENTS = {"internal.segment.bytes": "2000", "message.timestamp.type": "LogAppendTime"}
_COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "3153600000000",  # A hundred years: later passes change nothing.
}
_LEFT_IN_TABLE = [3, 6, 7, 8, 9, 10, 12, 13, 15]
_PATIENCE_S = 60.0


def fill(broker: RunningBroker) -> dict[str, int]:
    """Returns the records left in the queue: delivery counts by value."""
    broker.create_topic("queue", config=_KEPT_FOR_EVER)
    broker.create_topic("log", partitions=3, config={**_KEPT_FOR_EVER, **_SMALL_SEGMENTS})
    broker.create_topic("gone")
    broker.set_group_config(
        GROUP, {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "60000"}
    )
    for codec in CODECS:
        _send(
            broker, "log", [f"{codec} {number} {'x' * 40}" for number in range(60)], partitions=3, codec=codec
        )
    _send(
        broker,
        "queue",
        [f"{kind} - {number}" for number in range(8) for kind in ("accept", "reject", "once", "release")],
    )
    _fill_table(broker)
    left = _work(broker)
    _send(broker, "queue", [f"untouched - {number}" for number in range(8)])
    with broker.connect() as connection:
        row = {"partition_index": 2, "offset": 15}
        connection.call("delete_records", topics=[{"name": "log", "partitions": [row]}], timeout=10_000)
        admin.delete_topic(connection, "gone")
    return {**left, **{f"untouched - {number}": 0 for number in range(8)}}


def _fill_table(broker: RunningBroker) -> None:
    """Returns when it is compacted."""
    broker.create_topic("table", config=_COMPACTED)
    plain = {"bootstrap.servers": broker.bootstrap, "linger.ms": 1000}
    idempotent = {**plain, "enable.idempotence": True, "compression.type": "zstd"}
    _put(Producer(idempotent), ["a", "b", "c"])
    _put(Producer(plain), ["b"])
    transactional = Producer({**plain, "transactional.id": "table"})
    transactional.init_transactions(_PATIENCE_S)
    transactional.begin_transaction()
    _put(transactional, ["aborted"])
    transactional.abort_transaction(_PATIENCE_S)
    _put(Producer(plain), ["a", "deleted"], value=None)
    _put(Producer({**plain, "compression.type": "lz4"}), ["d", "e", "f", "g"])
    transactional.begin_transaction()
    _put(transactional, ["c", "g"])
    transactional.commit_transaction(_PATIENCE_S)
    _put(Producer(plain), ["last"])
    deadline = time.monotonic() + _PATIENCE_S
    while [each[1] for each in _records(broker, "table", [[0, 0]])] != _LEFT_IN_TABLE:
        assert time.monotonic() < deadline, "the table is not compacted"


def _put(producer: Producer, keys: list[str], value: bytes | None = b"value") -> None:
    """One batch."""
    for key in keys:
        producer.produce("table", value, key.encode(), partition=0, headers=[("h", b"\x00")])
    assert producer.flush(_PATIENCE_S) == 0


def _send(
    broker: RunningBroker, topic: str, values: list[str], *, partitions: int = 1, codec: str = "none"
) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "linger.ms": 20,
        "batch.num.messages": 10,
        "enable.idempotence": True,
    }
    producer = Producer({**settings, "compression.type": codec})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value.encode(),
            f"key {number}".encode(),
            partition=number % partitions,
            headers=[("h", b"\x00")],
        )
    assert producer.flush(_PATIENCE_S) == 0


@contextmanager
def _share_consumer(broker: RunningBroker) -> Iterator[ShareConsumer]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": GROUP}
    with ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"}) as consumer:
        consumer.subscribe(["queue"])
        yield consumer


def _work(broker: RunningBroker) -> dict[str, int]:
    """Release "once" and "release", accept "once" when it is redelivered; until every "release" has
    been released twice."""
    left = {f"release - {number}": 0 for number in range(8)}
    done = 0
    with _share_consumer(broker) as consumer:
        while done < 24 or min(left.values()) < 2:
            for message in consumer.poll(_PATIENCE_S):
                value, count = _text(message), message.delivery_count() or 0
                verdict = value.split(" ")[0]
                if verdict == "once":
                    verdict = "release" if count == 1 else "accept"
                done += verdict != "release"
                if value in left:
                    left[value] = count
                consumer.acknowledge(message, AcknowledgeType[verdict.upper()])
            assert all(error is None for error in consumer.commit_sync(_PATIENCE_S).values())
    return left


def _text(message: Message) -> str:
    assert message.error() is None, message.error()
    return (message.value() or b"").decode()


def look(broker: RunningBroker) -> dict[str, Any]:
    """What a broker returns about its directory, as JSON; changes nothing."""
    with broker.connect() as connection:
        topics = admin.topics(connection)
        return {
            "topics": {
                topic.name: {"id": str(topic.topic_id), "partitions": len(topic.partitions)}
                for topic in topics
            },
            "offsets": {topic.name: _bounds(connection, topic) for topic in topics},
            "configs": {
                topic.name: _configs(connection, admin.ResourceType.TOPIC, topic.name) for topic in topics
            }
            | {GROUP: _configs(connection, admin.ResourceType.GROUP, GROUP)},
            "groups": [group.group_id for group in group_admin.groups(connection)],
            "node": group_admin.find_coordinators(connection, [GROUP])[GROUP].node_id,
            "records": {
                topic.name: _records(broker, topic.name, _bounds(connection, topic)) for topic in topics
            },
        }


def _bounds(connection: Connection, topic: admin.Topic) -> list[list[int]]:
    """Earliest and next offset of each partition."""
    places = (admin.EARLIEST, admin.LATEST)
    earliest, latest = (
        admin.list_offsets(connection, topic.name, topic.partitions, place) for place in places
    )
    return [[earliest[partition], latest[partition]] for partition in topic.partitions]


def _configs(connection: Connection, kind: admin.ResourceType, name: str) -> Mapping[str, str | None]:
    """Those that were set for the resource itself; defaults of the broker are not in the
    directory."""
    entries = admin.describe_configs(connection, kind, name)
    return {entry.name: entry.value for entry in entries if admin.SOURCES[entry.source] in ("topic", "group")}


def _records(broker: RunningBroker, topic: str, bounds: list[list[int]]) -> list[list[Any]]:
    """[partition, offset, timestamp, key, value] of every record; in a compacted topic also of the
    tombstones."""
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "isolation.level": "read_committed", **settings}
    )
    records: list[list[Any]] = []
    ends = 0
    try:
        consumer.assign(
            [TopicPartition(topic, partition, earliest) for partition, (earliest, _) in enumerate(bounds)]
        )
        while ends < len(bounds):
            message = consumer.poll(_PATIENCE_S)
            assert message is not None, f"{topic}: only {len(records)} records came"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
                continue
            assert message.headers() == [("h", b"\x00")]
            records.append(
                [
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    (message.key() or b"").decode(),
                    _text(message),
                ]
            )
    finally:
        consumer.close()
    return sorted(records)


def drain(broker: RunningBroker) -> dict[str, list[int]]:
    """Accept the remaining records of the queue; returns delivery counts by value. A new record,
    sent for the purpose, marks the end."""
    _send(broker, "queue", ["the end"])
    counts: dict[str, list[int]] = {}
    with _share_consumer(broker) as consumer:
        while "the end" not in counts:
            messages = list(consumer.poll(_PATIENCE_S))
            assert messages, f"nothing more came after {counts}"
            for message in messages:
                counts.setdefault(_text(message), []).append(message.delivery_count() or 0)
                consumer.acknowledge(message)
            consumer.commit_sync(_PATIENCE_S)
    del counts["the end"]
    return counts
