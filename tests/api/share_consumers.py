"""A share consumer for tests of the handlers: it keeps its session's epoch and makes its answers
available.

Preparations are here as well: a topic with records, and a group that reads it from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.formats.batches import crc_is_valid, iter_headers, iter_records
from kbroker.share.persister import InitializeRequest, TopicPartition
from tests.api.conftest import Client
from tests.reject_reasons import Row, with_reasons

GROUP = "g1"
FAST = {"group.share.min.record.lock.duration.ms": "1000", "group.share.record.lock.duration.ms": "1000"}
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
NO_ID = UUID(int=0xDEAD)
Acks = Sequence[tuple[int, int, Sequence[int]]]


class Member:
    """A share consumer that keeps its session's epoch as clients do."""

    def __init__(self, client: Client, member_id: str, group_id: str = GROUP) -> None:
        self.client = client
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = 0

    async def fetch(
        self,
        add: Sequence[tuple[UUID, int]] = (),
        *,
        acks: dict[tuple[UUID, int], Acks] | None = None,
        forget: Sequence[tuple[UUID, int]] = (),
        max_records: int = 500,
        wait_ms: int = 0,
        version: int = 2,
        epoch: int | None = None,
        **more: Any,
    ) -> Any:
        sent = self.epoch if epoch is None else epoch
        fields = {
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "batch_size": max_records,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            **more,
        }
        answer = await self.client.call(
            "share_fetch",
            version,
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=sent,
            max_wait=wait_ms,
            max_records=max_records,
            topics=_topics({**dict.fromkeys(add, ()), **(acks or {})}),
            forgotten_topics_data=[
                {"topic_id": topic_id, "partitions": [index]} for topic_id, index in forget
            ],
            **fields,
        )
        self._count(answer, sent)
        return answer

    async def acknowledge(
        self,
        acks: dict[tuple[UUID, int], Acks],
        *,
        version: int = 2,
        epoch: int | None = None,
        renew: bool = False,
        reasons: Sequence[Row] = (),
    ) -> Any:
        sent = self.epoch if epoch is None else epoch
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "share_session_epoch": sent,
            "is_renew_ack": renew,
            "topics": _topics(acks),
        }
        if reasons:
            _, body = self.client.encoded("share_acknowledge", version, **fields)
            answer = await self.client.call_raw("share_acknowledge", version, with_reasons(body, reasons))
        else:
            answer = await self.client.call("share_acknowledge", version, **fields)
        self._count(answer, sent)
        return answer

    def _count(self, answer: Any, sent: int) -> None:
        if answer.error_code == 0 and sent >= 0:
            self.epoch = sent + 1


def _topics(rows: dict[tuple[UUID, int], Acks]) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": index,
                    "acknowledgement_batches": [
                        {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                        for first, last, types in acks
                    ],
                }
            ],
        }
        for (topic_id, index), acks in rows.items()
    ]


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    return [
        (run.first_offset, run.last_offset, run.delivery_count)
        for topic in answer.responses
        for row in topic.partitions
        for run in row.acquired_records
    ]


def batches(answer: Any) -> list[tuple[int, int]]:
    return [
        (header.base_offset, header.last_offset)
        for topic in answer.responses
        for row in topic.partitions
        for _, header in iter_headers(row.records)
    ]


def sent(answer: Any) -> list[int]:
    """Offsets of the records in an answer, whose CRC must be right."""
    data = b"".join(bytes(row.records) for row in rows(answer).values())
    offsets = []
    for position, header in iter_headers(data):
        assert crc_is_valid(data, position, header)
        offsets += [record.offset for record in iter_records(data, position)]
    return offsets


def rows(answer: Any) -> dict[tuple[UUID, int], Any]:
    return {
        (topic.topic_id, row.partition_index): row for topic in answer.responses for row in topic.partitions
    }


async def prepare(client: Client, *sizes: int, partitions: int = 1) -> tuple[UUID, int]:
    """A topic with batches of the given sizes, and a group that reads it from the start. Returns
    the partition."""
    topic = await client.create_topic("orders", partitions)
    offset = 0
    for size in sizes:
        await client.append("orders", *range(1000 + offset, 1000 + offset + size))
        offset += size
    await set_up_group(client, {"share.auto.offset.reset": "earliest"})
    await initialize(client, topic.topic_id, partitions)
    return topic.topic_id, 0


async def set_up_group(client: Client, configs: dict[str, str], group_id: str = GROUP) -> None:
    entries = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": 32, "resource_name": group_id, "configs": entries}
    answer = await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == 0, answer


async def initialize(client: Client, topic_id: UUID, partitions: int, group_id: str = GROUP) -> None:
    """Does what the group coordinator does when a member subscribes."""
    rows = [
        InitializeRequest(TopicPartition(topic_id, index), state_epoch=0, start_offset=-1)
        for index in range(partitions)
    ]
    assert all(
        result.code is ErrorCode.none for result in await client.broker.persister.initialize(group_id, rows)
    )
