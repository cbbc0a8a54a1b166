"""kbroker-groups and kbroker-topics compared with the broker's answers, with consumers of all
kinds, running and gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer

from kbroker.client import admin, consumer_group_admin, group_admin
from kbroker.client.group_admin import TopicPartition
from kbroker.errors import KafkaError
from kbroker.testing.broker import RunningBroker
from kbroker_spark import groups_table, topics_table
from spark.tests.filling import PATIENCE_S
from spark.tests.share_work import accepted, prepare, send, table, work
from spark.tests.test_batch_scan import rows
from tests.brokers import DURABLE_ENGINES

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection

every_engine = pytest.mark.parametrize(
    "engine",
    [
        "segment",
        *(pytest.param(engine, marks=pytest.mark.full) for engine in DURABLE_ENGINES if engine != "segment"),
    ],
)


@contextmanager
def consuming(
    broker: RunningBroker, topic: str, group: str, protocol: str, *, count: int
) -> Iterator[Consumer]:
    """A member that has read so many records and committed its position."""
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
    }
    settings |= {
        "client.id": f"{group}-client",
        "client.rack": "r1",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        seen = 0
        while seen < count:
            messages = consumer.consume(count, PATIENCE_S)
            assert messages, f"{seen} of {count} came"
            assert not [message.error() for message in messages if message.error()]
            seen += len(messages)
        consumer.commit(asynchronous=False)
        yield consumer
    finally:
        consumer.close()


def mine(broker: RunningBroker, name: str, view: str) -> list[dict[str, Any]]:
    """Rows of the groups whose name begins with this."""
    return [row for row in table(groups_table, broker.data_dir, view=view) if row["group"].startswith(name)]


def check_groups(broker: RunningBroker, name: str) -> None:
    """All groups, members and offsets, compared with the broker's answers."""
    with broker.connect() as connection:
        listed = [
            group for group in group_admin.groups(connection, types=()) if group.group_id.startswith(name)
        ]
        others = [group.group_id for group in listed if group.type != "share"]
        described = consumer_group_admin.describe_consumer_groups(connection, others)
        offsets = {
            (group, *place): (committed.offset, committed.leader_epoch, committed.metadata)
            for group in others
            for place, committed in consumer_group_admin.committed_offsets(connection, group).items()
        }
    groups, members, stored = (mine(broker, name, view) for view in groups_table.VIEWS)
    assert [(row["group"], row["state"], row["type"], row["protocol_type"]) for row in groups] == listed
    found = {row["group"]: row for row in groups}
    for each in described:
        assert isinstance(each, consumer_group_admin.ConsumerGroupDescription), each
        row = found[each.group_id]
        if each.type == "consumer":
            assert (row["epoch"], row["assignment_epoch"]) == (each.group_epoch, each.assignment_epoch)
        theirs = sorted(
            (
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                _flat(member.assignment),
            )
            for member in each.members
        )
        ours = [row for row in members if row["group"] == each.group_id]
        assert theirs == sorted(
            (
                row["member_id"],
                row["instance_id"],
                row["client_id"],
                row["client_host"],
                _pairs(row["assigned"]),
            )
            for row in ours
        )
        assert row["members"] == len(ours)
    places = {
        (row["group"], row["topic"], row["partition"]): (
            row["committed_offset"],
            row["leader_epoch"],
            row["metadata"],
        )
        for row in stored
    }
    assert places == offsets


def _flat(assignment: Any) -> list[tuple[str, int]]:
    return sorted((topic, number) for topic, numbers in assignment.items() for number in numbers)


def _pairs(assigned: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["topic"], each["partition"]) for each in assigned]


@every_engine
def test_groups_of_all_types(broker: RunningBroker, name: str) -> None:
    prepare(broker, name, partitions=2, count=30)
    with broker.connect() as connection:
        consumer_group_admin.commit_offsets(connection, f"{name}-alone", {TopicPartition(name, 1): 7})
    with ExitStack() as stack:
        for protocol in ("classic", "consumer"):
            stack.enter_context(consuming(broker, name, f"{name}-{protocol}", protocol, count=30))
        work(broker, name, accepted, count=30)
        check_groups(broker, name)
        members = {row["group"]: row for row in mine(broker, name, "members")}
        for protocol in ("classic", "consumer"):
            row = members[f"{name}-{protocol}"]
            assert (row["type"], row["protocol"], row["subscribed_topics"]) == (protocol, protocol, [name])
            assert (row["client_id"], row["rack_id"], row["target"]) == (
                f"{name}-{protocol}-client",
                "r1",
                row["assigned"],
            )
            assert len(row["assigned"]) == 2
    check_groups(broker, name)
    assert {
        row["group"]: (row["type"], row["state"], row["members"]) for row in mine(broker, name, "groups")
    } == {
        name: ("share", "Empty", 0),
        f"{name}-alone": ("classic", "Empty", 0),
        f"{name}-classic": ("classic", "Empty", 0),
        f"{name}-consumer": ("consumer", "Empty", 0),
    }
    send(broker, name, range(30, 34), partitions=2)
    lags = {(row["group"], row["partition"]): row["lag"] for row in mine(broker, name, "offsets")}
    assert lags == {
        (f"{name}-alone", 1): 10,
        **{(f"{name}-{protocol}", number): 2 for protocol in ("classic", "consumer") for number in (0, 1)},
    }


@every_engine
def test_members_of_a_share_group(broker: RunningBroker, name: str) -> None:
    prepare(broker, name, partitions=2)
    with (
        ShareConsumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": name, "client.id": "it"}
        ) as consumer,
        broker.connect() as link,
    ):
        consumer.subscribe([name])
        while not (members := _share_members(link, name)) or not members[0].assignment:
            consumer.poll(0.1)
        group = group_admin.describe_share_group(link, name)
        (member,) = group.members
        (row,) = mine(broker, name, "members")
        (stored,) = mine(broker, name, "groups")
    assert (row["member_id"], row["client_id"], row["client_host"]) == (
        member.member_id,
        member.client_id,
        member.client_host,
    )
    assert (row["type"], row["protocol"], row["member_epoch"]) == ("share", "share", member.member_epoch)
    assert (
        _pairs(row["assigned"]) == _pairs(row["target"]) == _flat(member.assignment) == [(name, 0), (name, 1)]
    )
    assert (stored["state"], stored["epoch"], stored["assignment_epoch"]) == (
        group.state,
        group.group_epoch,
        group.assignment_epoch,
    )
    assert dict(stored["configs"])["share.auto.offset.reset"] == "earliest"


def _share_members(connection: Connection, group: str) -> tuple[group_admin.ShareMemberDescription, ...]:
    """None until the group exists."""
    (found,) = group_admin.describe_share_groups(connection, [group])
    return () if isinstance(found, KafkaError) else found.members


@every_engine
def test_topics(broker: RunningBroker, name: str) -> None:
    """Bounds as ListOffsets returns them, also after DeleteRecords; the topic's own settings
    only."""
    broker.create_topic(name, partitions=3, config={"retention.ms": "-1"})
    broker.create_topic(f"{name}-empty")
    send(broker, name, range(100), partitions=2)
    with broker.connect() as connection:
        rows = [{"name": name, "partitions": [{"partition_index": 1, "offset": 11}]}]
        connection.call("delete_records", topics=rows, timeout=30_000)
        (topic, empty) = admin.topics(connection, [name, f"{name}-empty"])
        first, behind = (
            admin.list_offsets(connection, name, topic.partitions, time)
            for time in (admin.EARLIEST, admin.LATEST)
        )
    bounds = [(first[number], behind[number]) for number in topic.partitions]
    found = table(topics_table, broker.data_dir, topics=f"{name},{name}-empty")
    assert [(row["topic"], row["topic_id"], row["partition"]) for row in found] == [
        *((name, str(topic.topic_id), number) for number in range(3)),
        (f"{name}-empty", str(empty.topic_id), 0),
    ]
    assert (
        [(row["start_offset"], row["end_offset"]) for row in found]
        == [*bounds, (0, 0)]
        == [(0, 50), (11, 50), (0, 0), (0, 0)]
    )
    assert [(row["size_bytes"] > 0, row["segments"], row["newest"] is None) for row in found] == [
        (True, 1, False),
        (True, 1, False),
        (False, 1, True),
        (False, 1, True),
    ]
    assert [dict(row["configs"]) for row in found] == [*[{"retention.ms": "-1"}] * 3, {}]
    assert table(topics_table, broker.data_dir, topics="nothing") == []


def test_idempotent_producers_are_in_the_batches(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce(name, b"a")
    assert producer.flush(PATIENCE_S) == 0
    (row,) = rows(broker.data_dir, topics=name)
    assert (row["producer_epoch"], row["base_sequence"], row["crc_ok"]) == (0, 0, True)
    assert row["producer_id"] >= 0
