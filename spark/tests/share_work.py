"""Active share groups for tests of the tables of state: unmodified share consumers, and the
broker's answers about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

from kbroker.client import admin, group_admin
from kbroker.share.record_state import RecordState
from kbroker.testing.broker import RunningBroker
from kbroker_spark.data import reading
from spark.tests.filling import PATIENCE_S, Record, produce

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection

CONTROL_RECORDS = {"kbroker.persister": "control-records"}
NUMBERS = {state.name.lower(): int(state) for state in RecordState}
Verdict: TypeAlias = Callable[[Message], AcknowledgeType]


def prepare(broker: RunningBroker, name: str, *, partitions: int = 1, count: int = 0) -> None:
    """A topic and a group of this name, which begins at the earliest offset; records over the
    partitions in turn, in small batches."""
    broker.create_topic(name, partitions=partitions)
    prepare_group(broker, name)
    send(broker, name, range(count), partitions=partitions)


def prepare_group(broker: RunningBroker, group: str) -> None:
    """With a short heartbeat interval, so that members soon get their assignment."""
    broker.set_group_config(
        group, {"share.auto.offset.reset": "earliest", "share.heartbeat.interval.ms": "200"}
    )


def send(broker: RunningBroker, name: str, numbers: Iterable[int], *, partitions: int = 1) -> None:
    records = [Record(b"%d" % number, partition=number % partitions) for number in numbers]
    produce(broker.bootstrap, name, records, batch_num_messages=7)


def work(
    broker: RunningBroker,
    name: str,
    verdict: Verdict,
    *,
    count: int,
    group: str | None = None,
    at_once: int = 10,
) -> set[int]:
    """One consumer acquires records until it has seen `count` different values, and decides about
    each delivery; returns the values."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group or name,
        "share.acknowledgement.mode": "explicit",
    }
    seen: set[int] = set()
    with ShareConsumer({**settings, "max.poll.records": at_once}) as consumer:
        consumer.subscribe([name])
        while len(seen) < count:
            messages = consumer.poll(PATIENCE_S)
            assert messages, f"{len(seen)} of {count} came"
            for message in messages:
                assert message.error() is None, message.error()
                consumer.acknowledge(message, verdict(message))
                seen.add(int(message.value() or b""))
            assert set(consumer.commit_sync(PATIENCE_S).values()) <= {None}
    return seen


def mixed(message: Message) -> AcknowledgeType:
    """Every fourth is rejected, the one after it is released, the others are accepted."""
    kinds = {0: AcknowledgeType.REJECT, 1: AcknowledgeType.RELEASE}
    return kinds.get(int(message.value() or b"") % 4, AcknowledgeType.ACCEPT)


def accepted(message: Message) -> AcknowledgeType:
    return AcknowledgeType.ACCEPT


class Stands(NamedTuple):
    """The result of DescribeShareGroupOffsets for a share-partition. None: not known."""

    partition: int
    start_offset: int | None
    leader_epoch: int | None
    lag: int | None


class Stored(NamedTuple):
    """The result of ReadShareGroupState; `batches`: first and last offset, state, delivery
    count."""

    partition: int
    state_epoch: int
    start_offset: int
    batches: tuple[tuple[int, int, int, int], ...]


def described(broker: RunningBroker, group: str) -> list[Stands]:
    with broker.connect() as connection:
        rows = group_admin.describe_share_group_offsets(connection, group)
    assert not [row for row in rows if row.error]
    return [Stands(row.partition, row.start_offset, row.leader_epoch, row.lag) for row in rows]


def stored(broker: RunningBroker, group: str, topic: str) -> list[Stored]:
    """Of all partitions. The request has the stored leader epoch: another one would be stored and
    fence the broker."""
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])
        summaries = _partitions(connection, "read_share_group_state_summary", group, found, {})
        epochs = {row.partition: row.leader_epoch for row in summaries}
        return [
            Stored(
                row.partition,
                row.state_epoch,
                row.start_offset,
                tuple(
                    (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                    for each in row.state_batches
                ),
            )
            for row in _partitions(connection, "read_share_group_state", group, found, epochs)
        ]


def _partitions(
    connection: Connection, api: str, group: str, topic: admin.Topic, epochs: dict[int, int]
) -> list[Any]:
    partitions = [{"partition": number, "leader_epoch": epochs.get(number, 0)} for number in topic.partitions]
    answer = connection.call(
        api, group_id=group, topics=[{"topic_id": topic.topic_id, "partitions": partitions}]
    )
    rows = sorted((row for each in answer.results for row in each.partitions), key=lambda row: row.partition)
    assert {row.error_code.value for row in rows} == {0}, [
        (row.error_code, row.error_message) for row in rows
    ]
    return rows


def table(module: ModuleType, data_dir: Path, **options: str) -> list[dict[str, Any]]:
    """The rows of a table from its source, without Spark; timestamps in microseconds."""
    with reading(data_dir) as data:
        return [
            dict(zip(module.schema(options).names, row, strict=True)) for row in module.rows(data, options)
        ]


def as_described(rows: Iterable[dict[str, Any]]) -> list[Stands]:
    """Rows of kbroker-state by share-partition, from the broker's answers; without a start offset
    the other columns are empty."""
    found = [Stands(row["partition"], row["start_offset"], row["leader_epoch"], row["lag"]) for row in rows]
    return sorted(
        each if each.start_offset is not None else Stands(each.partition, None, None, None) for each in found
    )


def as_stored(rows: Iterable[dict[str, Any]]) -> list[Stored]:
    """Rows of kbroker-state by batch, from the broker's answers."""
    found: dict[int, Stored] = {}
    for row in rows:
        start = -1 if row["start_offset"] is None else row["start_offset"]
        before = found.get(row["partition"], Stored(row["partition"], row["state_epoch"], start, ()))
        if row["first_offset"] is not None:
            batch = (row["first_offset"], row["last_offset"], NUMBERS[row["state"]], row["delivery_count"])
            before = before._replace(batches=(*before.batches, batch))
        found[row["partition"]] = before
    return [found[partition] for partition in sorted(found)]
