"""A transactional producer of either generation, over single requests, and what its consumers read.

Generation 1 adds partitions before it sends (transaction version 0 and 1); for generation 2 the
broker adds them, and every end raises the epoch (KIP-890).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import pytest
import trio

from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import (
    TRANSACTIONAL,
    ProducerInfo,
    Record,
    build_batch,
    iter_headers,
    iter_records,
)
from kbroker.formats.transactions import Marker, MarkerType, TransactionKey, TransactionRecord
from tests.api.conftest import Client, Connect
from tests.api.producing import fetch

Log: TypeAlias = tuple[str, int]
"""A topic's name and the number of a partition."""

VERIFY_FROM = 4
"""The first version of AddPartitionsToTxn with several ids, which may ask without adding."""
ADDING_FROM = 12
"""The first version of Produce that adds partitions by itself."""
LAST_INIT = {1: 4, 2: 5}
LAST_PRODUCE = {1: 11, 2: 12}
LAST_END = {1: 4, 2: 5}
_LAST_ADD = 3
_BY_ID_FROM = 13

both = pytest.mark.parametrize("generation", [1, 2])


def transactional_batch(producer: ProducerInfo, *values: bytes, transactional: bool = True) -> bytes:
    now_ms = wall_clock_ms()
    return build_batch(
        (Record(0, now_ms, None, value) for value in values),
        producer=producer,
        attributes=TRANSACTIONAL if transactional else 0,
    )


async def produce_rows(
    client: Client,
    transactional_id: str | None,
    batches: Mapping[Log, bytes],
    *,
    version: int = LAST_PRODUCE[2],
    acks: int = -1,
) -> dict[Log, Any]:
    """One request; the answered rows."""
    topics = {}
    for name in {name for name, _ in batches}:
        found = client.broker.topics.by_name(name)
        topics[name] = found.topic_id if version >= _BY_ID_FROM and found is not None else name
    data = [
        {
            "name": name,
            "topic_id": topic,
            "partition_data": [
                {"index": index, "records": records} for (of, index), records in batches.items() if of == name
            ],
        }
        for name, topic in topics.items()
    ]
    answer = await client.call(
        "produce", version, transactional_id=transactional_id, acks=acks, topic_data=data
    )
    names = {topic: name for name, topic in topics.items()}
    return {
        (names[each.topic_id if version >= _BY_ID_FROM else each.name], row.index): row
        for each in answer.responses
        for row in each.partition_responses
    }


async def init(
    client: Client,
    transactional_id: str | None,
    *,
    version: int = LAST_INIT[2],
    own: tuple[int, int] = (-1, -1),
    timeout_ms: int = 60_000,
) -> Any:
    return await client.call(
        "init_producer_id",
        version,
        transactional_id=transactional_id,
        transaction_timeout=timeout_ms,
        producer_id=own[0],
        producer_epoch=own[1],
    )


class Added(NamedTuple):
    """Rows of AddPartitionsToTxn."""

    code: ErrorCode
    rows: dict[str, dict[Log, ErrorCode]]


def _by_topic(logs: Iterable[Log]) -> list[dict[str, Any]]:
    asked: dict[str, list[int]] = {}
    for name, index in logs:
        asked.setdefault(name, []).append(index)
    return [{"name": name, "partitions": indexes} for name, indexes in asked.items()]


def _codes(topics: Iterable[Any]) -> dict[Log, ErrorCode]:
    return {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in topics
        for row in topic.results_by_partition
    }


async def add(
    client: Client,
    transactional_id: str,
    producer: tuple[int, int],
    *logs: Log,
    version: int = _LAST_ADD,
    verify: bool = False,
) -> dict[Log, ErrorCode]:
    """AddPartitionsToTxn for one transactional id, in any version."""
    if version >= VERIFY_FROM:
        added = await add_several(client, version, (transactional_id, producer, logs, verify))
        assert added.code == ErrorCode.none
        return added.rows[transactional_id]
    answer = await client.call(
        "add_partitions_to_txn",
        version,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=_by_topic(logs),
    )
    return _codes(answer.results_by_topic_v3_and_below)


async def add_several(
    client: Client, version: int, *asked: tuple[str, tuple[int, int], Iterable[Log], bool]
) -> Added:
    """From version 4: transactional id, producer, partitions, whether only to verify."""
    rows = [
        {
            "transactional_id": transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": verify,
            "topics": _by_topic(logs),
        }
        for transactional_id, producer, logs, verify in asked
    ]
    answer = await client.call("add_partitions_to_txn", version, transactions=rows)
    return Added(
        answer.error_code,
        {each.transactional_id: _codes(each.topic_results) for each in answer.results_by_transaction},
    )


class Ended(NamedTuple):
    """An answer of EndTxn. Below version 5 it has no producer."""

    code: ErrorCode
    producer_id: int = -1
    epoch: int = -1


async def end(
    client: Client,
    transactional_id: str,
    producer: tuple[int, int],
    committed: bool,
    *,
    version: int = LAST_END[2],
) -> Ended:
    answer = await client.call(
        "end_txn",
        version,
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=committed,
    )
    if version >= LAST_END[2]:
        return Ended(answer.error_code, answer.producer_id, answer.producer_epoch)
    return Ended(answer.error_code)


class Producer:
    """Follows the answers as a client does: id, epoch, and the next sequence of each partition."""

    def __init__(
        self,
        client: Client,
        transactional_id: str = "t",
        *,
        generation: int = 2,
        timeout_ms: int = 60_000,
        producer: tuple[int, int] = (-1, -1),
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.generation = generation
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = producer
        self.sequences: dict[Log, int] = {}
        self._added: set[Log] = set()

    @property
    def who(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    def become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self.who:
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch
        self._added.clear()

    def on(self, client: Client) -> None:
        """Continues with a broker that was restarted."""
        self.client = client

    async def init(self, *, own: bool = False) -> Producer:
        answer = await self.settled(
            lambda: init(
                self.client,
                self.transactional_id,
                version=LAST_INIT[self.generation],
                own=self.who if own else (-1, -1),
                timeout_ms=self.timeout_ms,
            )
        )
        assert answer.error_code == ErrorCode.none, answer
        self.become(answer.producer_id, answer.producer_epoch)
        return self

    async def settled(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The answer once the id's last transaction has ended."""
        for _ in range(500):
            answer = await call()
            if answer.error_code != ErrorCode.concurrent_transactions:
                return answer
            await trio.sleep(0.01)
        raise AssertionError("the last transaction does not end")

    def batch(
        self, log: Log, *values: bytes, sequence: int | None = None, transactional: bool = True
    ) -> bytes:
        first = self.sequences.get(log, 0) if sequence is None else sequence
        info = ProducerInfo(self.producer_id, self.epoch, first)
        return transactional_batch(info, *values, transactional=transactional)

    async def add(self, *logs: Log) -> None:
        found = await add(self.client, self.transactional_id, self.who, *logs)
        assert found == dict.fromkeys(logs, ErrorCode.none)
        self._added.update(logs)

    async def send_raw(
        self,
        log: Log,
        *values: bytes,
        sequence: int | None = None,
        transactional: bool = True,
        version: int | None = None,
        adding: bool = True,
    ) -> Any:
        """The answered row; the partition is added before, if this generation does so."""
        version = LAST_PRODUCE[self.generation] if version is None else version
        if version < ADDING_FROM and adding and transactional and log not in self._added:
            await self.add(log)
        data = self.batch(log, *values, sequence=sequence, transactional=transactional)
        rows = await produce_rows(self.client, self.transactional_id, {log: data}, version=version)
        row = rows[log]
        if row.error_code == ErrorCode.none and sequence is None:
            self.sequences[log] = self.sequences.get(log, 0) + len(values)
        return row

    async def send(self, log: Log, *values: bytes) -> int:
        """The base offset."""
        row = await self.send_raw(log, *values)
        assert row.error_code == ErrorCode.none, row
        return int(row.base_offset)

    async def end(self, committed: bool) -> Ended:
        version = LAST_END[self.generation]
        found = await end(self.client, self.transactional_id, self.who, committed, version=version)
        assert found.code == ErrorCode.none, found
        if version >= LAST_END[2]:
            self.become(found.producer_id, found.epoch)
        self._added.clear()
        return found

    async def commit(self) -> Ended:
        return await self.end(True)

    async def abort(self) -> Ended:
        return await self.end(False)


class Batch(NamedTuple):
    """`marker`: None for records."""

    base_offset: int
    producer_id: int
    epoch: int
    marker: MarkerType | None
    values: tuple[bytes | None, ...]


def batches(row: Any) -> list[Batch]:
    data = row.records or b""
    found = []
    for position, header in iter_headers(data):
        marker = Marker.from_batch(data, position).kind if header.is_control else None
        values = () if marker is not None else tuple(each.value for each in iter_records(data, position))
        found.append(Batch(header.base_offset, header.producer_id, header.producer_epoch, marker, values))
    return found


async def read(client: Client, log: Log, offset: int = 0, *, level: int = 1, wait_ms: int = 0) -> Any:
    answer = await fetch(
        client, log[0], offset, version=12, partition=log[1], isolation_level=level, wait_ms=wait_ms
    )
    row = answer.responses[0].partitions[0]
    assert row.error_code == ErrorCode.none, row
    return row


async def answers(client: Client, log: Log, *, level: int = 1) -> AsyncIterator[Any]:
    """All answers to a consumer that reads to the end; one need not have all that there is."""
    offset = (await read(client, log, level=level)).log_start_offset
    while (row := await read(client, log, offset, level=level)).records:
        yield row
        offset = max(header.last_offset for _, header in iter_headers(row.records)) + 1


async def every_batch(client: Client, log: Log) -> list[Batch]:
    """As read_uncommitted sees them."""
    return [each async for row in answers(client, log, level=0) for each in batches(row)]


async def markers(client: Client, log: Log) -> list[MarkerType]:
    return [each.marker for each in await every_batch(client, log) if each.marker is not None]


async def ends(client: Client, log: Log) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    row = await read(client, log)
    return row.last_stable_offset, row.high_watermark


def aborted(row: Any) -> list[tuple[int, int]]:
    """(producer id, first offset), sorted by offset as consumers do."""
    found = [(each.producer_id, each.first_offset) for each in row.aborted_transactions]
    return sorted(found, key=lambda each: each[1])


async def committed(client: Client, log: Log) -> list[bytes | None]:
    """The values that a consumer with read_committed delivers, filtered as consumers do."""
    return [value async for row in answers(client, log) for value in committed_values(row)]


def committed_values(row: Any) -> list[bytes | None]:
    waiting, now = aborted(row), set()
    found: list[bytes | None] = []
    data = row.records or b""
    headers = {header.base_offset: header for _, header in iter_headers(data)}
    for each in batches(row):
        header = headers[each.base_offset]
        while waiting and waiting[0][1] <= header.last_offset:
            now.add(waiting.pop(0)[0])
        if each.marker is MarkerType.ABORT:
            now.discard(each.producer_id)
        if each.marker is None and not (header.is_transactional and each.producer_id in now):
            found += each.values
    return found


async def stored(client: Client, transactional_id: str = "t") -> TransactionRecord:
    value = client.broker.state_store.get(TransactionKey(transactional_id).encode())
    assert value is not None
    return TransactionRecord.decode(value)


async def store(client: Client, transactional_id: str = "t", **changed: Any) -> None:
    """Changes what the next start of this broker finds."""
    record = replace(await stored(client, transactional_id), **changed)
    await client.broker.state_commits.commit([(TransactionKey(transactional_id).encode(), record.encode())])


@asynccontextmanager
async def opened(
    connect: Connect, *transactional_ids: str, generation: int = 2
) -> AsyncIterator[tuple[Any, ...]]:
    """The client, and a producer for each id; topics a (two partitions) and b."""
    async with connect() as client:
        await client.create_topic("a", 2)
        await client.create_topic("b")
        producers = [
            await Producer(client, each, generation=generation).init() for each in transactional_ids or ("t",)
        ]
        yield client, *producers
