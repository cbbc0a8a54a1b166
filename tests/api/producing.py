"""Produce and Fetch requests for tests, with a default for every field."""

from __future__ import annotations

from typing import Any

from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import Record, build_batch, iter_headers, iter_records
from kbroker.formats.compression import Codec
from tests.api.conftest import Client


def batch(*values: bytes, codec: Codec = Codec.NONE) -> bytes:
    now_ms = wall_clock_ms()
    return build_batch((Record(0, now_ms, None, value) for value in values), codec=codec)


async def produce(
    client: Client,
    topic: Any,
    records: bytes | None,
    *,
    version: int = 13,
    partition: int = 0,
    acks: int = -1,
) -> Any:
    by_id = version >= 13
    data = {
        "name": topic,
        "topic_id": topic if by_id else None,
        "partition_data": [{"index": partition, "records": records}],
    }
    answer = await client.call("produce", version, transactional_id=None, acks=acks, topic_data=[data])
    return None if answer is None else answer.responses[0].partition_responses[0]


async def fetch(
    client: Client,
    topic: Any,
    offset: int,
    *,
    version: int = 18,
    wait_ms: int = 0,
    min_bytes: int = 1,
    partition: int = 0,
    **more: Any,
) -> Any:
    row = {
        "partition": partition,
        "current_leader_epoch": more.pop("leader_epoch", -1),
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
    }
    topics = [{"topic": topic, "topic_id": topic, "partitions": [row]}] if topic is not None else []
    fields = {
        "replica_id": -1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "rack_id": "",
        **more,
    }
    return await client.call(
        "fetch",
        version,
        max_wait=wait_ms,
        min_bytes=min_bytes,
        topics=topics,
        forgotten_topics_data=[],
        **fields,
    )


def values(row: Any) -> list[bytes | None]:
    data = row.records or b""
    return [record.value for position, _ in iter_headers(data) for record in iter_records(data, position)]
