"""Logs with the holes that compaction leaves, in an in-process broker: each batch is a segment, so
a pass may clean all but the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import trio

from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import (
    NO_PRODUCER,
    ProducerInfo,
    Record,
    build_batch,
    iter_headers,
    iter_records,
    read_header,
)
from kbroker.formats.compression import Codec
from tests.api.conftest import Client
from tests.api.share_consumers import initialize, set_up_group
from tests.odd_batches import with_header

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1",
    "min.cleanable.dirty.ratio": "0",
}
Key = tuple[UUID, int]


async def compacted_topic(
    client: Client, configs: Mapping[str, str] | None = None, group: Mapping[str, str] | None = None
) -> Key:
    """The topic "orders", and a group that reads it from the start."""
    topic = await client.create_topic("orders", 1, {**COMPACTED, **(configs or {})})
    await set_up_group(client, {"share.auto.offset.reset": "earliest", **(group or {})})
    await initialize(client, topic.topic_id, 1)
    return topic.topic_id, 0


def keyed(
    *keys: str,
    value: bytes | None = b"x",
    codec: Codec = Codec.NONE,
    producer: ProducerInfo = NO_PRODUCER,
    at_ms: int | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """One batch with a record for each key; their times rise by 1 ms."""
    now_ms = wall_clock_ms() if at_ms is None else at_ms
    records = [Record(0, now_ms + n, key.encode(), value, headers) for n, key in enumerate(keys)]
    return build_batch(records, codec=codec, producer=producer)


async def put(client: Client, *batches: bytes) -> None:
    for batch in batches:
        await client.append_raw("orders", batch)


async def put_long(client: Client, key: str, offsets: int) -> None:
    """A batch of one record that takes so many offsets."""
    batch = with_header(keyed(key), last_offset_delta=offsets - 1)
    done = trio.Event()
    client.partition("orders").append(
        batch, wall_clock_ms(), lambda error: done.set(), header=read_header(batch)
    )
    await done.wait()


async def compact(client: Client) -> None:
    await client.broker.log_cleaner.clean_all()


def layout(client: Client) -> list[tuple[int, int, list[int]]]:
    """Base offset, last offset and the offsets of the records of each batch."""
    partition = client.partition("orders")
    found, offset = [], 0
    while views := partition.read_now(offset, max_bytes=1 << 20, end_offset=partition.high_watermark):
        for view in views:
            for position, header in iter_headers(view):
                records = [record.offset for record in iter_records(view, position)]
                found.append((header.base_offset, header.last_offset, records))
                offset = header.last_offset + 1
    return found


SPARSE: Sequence[tuple[int, int, list[int]]] = [
    (0, 2, [0, 2]),
    (3, 3, [3]),
    (8, 8, [8]),
    (9, 11, [10]),
    (12, 13, [12, 13]),
    (14, 14, [14]),
]


async def put_sparse(client: Client, codec: Codec = Codec.NONE) -> None:
    """The log SPARSE: holes inside of two batches, and a hole between two others."""
    await put(
        client,
        keyed("a", "b", "c", codec=codec),
        keyed("b", codec=codec),
        keyed("d", "e", "f", "d", codec=codec),
        keyed("d", codec=codec),
        keyed("e", "h", "f", codec=codec),
        keyed("e", "f", codec=codec),
        keyed("g", codec=codec),
    )
    await compact(client)
    assert layout(client) == SPARSE
