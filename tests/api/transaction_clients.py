"""Transactions as clients use them, and the requests of tools that look at them (KIP-664)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.api import handler_of
from kbroker.api.request import Raw, Request
from kbroker.errors import ErrorCode
from kbroker.protocol.long_responses import Packing
from kbroker.protocol.messages import build, request_schema, response_schema
from kbroker.transactions.coordinator import ProducerEpoch
from tests.api.conftest import KEYS, Client
from tests.broker.transactional_log import Log

HANGING = 4_000_000
"""A producer id that the coordinator does not know."""


def topic_key(client: Client, name: str) -> dict[str, Any]:
    """By name and by id: each version uses the field that it has."""
    topic = client.broker.topics.by_name(name)
    return {"name": name, "topic_id": UUID(int=77) if topic is None else topic.topic_id}


async def init(client: Client, name: str, timeout_ms: int = 60_000) -> ProducerEpoch:
    answer = await client.call(
        "init_producer_id",
        5,
        transactional_id=name,
        transaction_timeout=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert answer.error_code is ErrorCode.none
    return ProducerEpoch(answer.producer_id, answer.producer_epoch)


async def add(client: Client, name: str, producer: ProducerEpoch, **topics: Iterable[int]) -> None:
    answer = await client.call(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[{"name": key, "partitions": numbers} for key, numbers in topics.items()],
    )
    rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
    assert {row.partition_error_code for row in rows} == {ErrorCode.none}


async def begin(client: Client, name: str, **topics: Iterable[int]) -> ProducerEpoch:
    producer = await init(client, name)
    await add(client, name, producer, **topics)
    return producer


async def end(client: Client, name: str, producer: ProducerEpoch, *, commit: bool) -> None:
    answer = await client.call(
        "end_txn",
        3,
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    assert answer.error_code is ErrorCode.none


async def log_of(client: Client, topic: str = "a", index: int = 0) -> Log:
    await client.partition(topic, index).load_producers()
    return Log(client.partition(topic, index))


async def producers(client: Client, topic: str = "a", index: int = 0) -> Any:
    answer = await client.call(
        "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [index]}]
    )
    (found,) = answer.topics
    (row,) = found.partitions
    assert (found.name, row.partition_index) == (topic, index)
    return row


class Described(NamedTuple):
    error_code: int
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout: int = 0
    transaction_start_time: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: tuple[tuple[str, tuple[int, ...]], ...] = ()


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return found

    def number(self, layout: str = ">B") -> int:
        return self.numbers(layout)[0]

    def count(self) -> range:
        length = self.number()
        assert 0 < length < 0x80
        return range(length - 1)

    def text(self) -> str:
        return bytes(self.number() for _ in self.count()).decode()

    def end_of_row(self) -> None:
        assert self.number() == 0

    @property
    def is_read(self) -> bool:
        return self._at == len(self._data)


def described_row(body: _Body) -> Described:
    code, name, state = body.number(">h"), body.text(), body.text()
    timeout_ms, started_ms, producer_id, epoch = body.numbers(">iqqh")
    topics = []
    for _ in body.count():
        topics.append((body.text(), tuple(body.number(">i") for _ in body.count())))
        body.end_of_row()
    body.end_of_row()
    return Described(code, name, state, timeout_ms, started_ms, producer_id, epoch, tuple(topics))


async def describe_raw(client: Client, *names: str) -> Raw:
    """The answer as the server packs it."""
    key = KEYS["describe_transactions"]
    body = build(request_schema(key, 0), {"transactional_ids": names})
    found: Any = handler_of(key)(Request(client.broker, client.connection, key, 0, "test", body))
    packing = Packing(response_schema(key, 0), found, 1 << 20)
    list(packing.turns())
    return Raw(packing.parts, packing.errors)


async def describe(client: Client, *names: str) -> list[Described]:
    body = _Body(b"".join(bytes(each) for each in (await describe_raw(client, *names)).buffers))
    assert body.number(">i") == 0
    rows = [described_row(body) for _ in body.count()]
    body.end_of_row()
    assert body.is_read
    return rows
