"""For tests of the `control-records` persister: a broker that has it, the control records in its
logs, and consumers that accept all records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.formats.batches import iter_headers, iter_records
from kbroker.formats.control_records import ControlType, ShareControl
from kbroker.formats.state import ControlHint, ControlHintKey
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import ReadRequest, ReadResult, TopicPartition
from kbroker.storage.spi import LogId
from kbroker_control_records.persister import ControlRecordsPersister
from tests.api.conftest import Client
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired

CHECKPOINT, DELTA = ControlType.SHARE_CHECKPOINT, ControlType.SHARE_DELTA
Key = tuple[UUID, int]


@asynccontextmanager
async def opened(directory: Path, engine: str = "segment", **config: str) -> AsyncIterator[Client]:
    settings = {"kbroker.persister": "control-records", "log.segment.bytes": "1048576", **config}
    options = StartOptions(
        data_dir=directory, storage=engine, state_storage=engine, config=BrokerConfig(settings)
    )
    async with open_broker(options) as broker:
        yield Client(broker)


def persister(client: Client) -> ControlRecordsPersister:
    found = client.broker.persister
    assert isinstance(found, ControlRecordsPersister)
    return found


def batches_of(client: Client, key: Key) -> Iterator[tuple[memoryview, int, Any]]:
    store, log = client.broker.log_store, LogId(*key)
    for view in store.read(log, 0, max_bytes=1 << 30, end_offset=1 << 40):
        for position, header in iter_headers(view):
            yield view, position, header


def controls(client: Client, key: Key) -> list[tuple[int, ShareControl]]:
    """All control records that are in the log, with their offsets."""
    found = []
    for view, position, header in batches_of(client, key):
        if header.is_control:
            assert (header.base_timestamp_ms, header.max_timestamp_ms, header.producer_id) == (-1, -1, -1)
            for record in iter_records(view, position):
                control = ShareControl.from_record(record)
                assert control is not None
                found.append((record.offset, control))
    return found


def data_offsets(client: Client, key: Key) -> set[int]:
    headers = [header for _, _, header in batches_of(client, key) if not header.is_control]
    return {offset for header in headers for offset in range(header.base_offset, header.last_offset + 1)}


def hint(client: Client, key: Key) -> ControlHint | None:
    value = client.broker.state_store.get(ControlHintKey(*key).encode())
    return None if value is None else ControlHint.decode(value)


async def drain(client: Client, key: Key, group_id: str = GROUP) -> list[int]:
    """Accept all records; the offsets in the order of delivery."""
    consumer = Member(client.another(99), "drain", group_id)
    await client.broker.share_partitions.load(group_id, TopicPartition(*key))
    answer = await consumer.fetch([key])
    offsets = []
    while runs := acquired(answer):
        offsets += [offset for first, last, _ in runs for offset in range(first, last + 1)]
        answer = await consumer.fetch(acks={key: [(first, last, [ACCEPT]) for first, last, _ in runs]})
    await consumer.fetch(epoch=-1)
    return offsets


async def read_state(client: Client, key: Key, group_id: str = GROUP) -> ReadResult:
    """As the current leader reads it."""
    request = ReadRequest(TopicPartition(*key), client.partition("orders").leader_epoch)
    return (await persister(client).read(group_id, [request]))[0]


async def lag(client: Client, group_id: str = GROUP) -> int:
    groups = [{"group_id": group_id, "topics": [{"topic_name": "orders", "partitions": [0]}]}]
    (group,) = (await client.call("describe_share_group_offsets", 1, groups=groups)).groups
    ((row,),) = [topic.partitions for topic in group.topics]
    assert row.error_code == 0
    return int(row.lag)
