"""Reads the batches that librdkafka cannot read to their end, with the project's own client.

A payload may be several compressed frames (formats/compression.py), which Kafka's broker and Java
clients read. librdkafka reads the first gzip member only: then it fetches the same batch again and
again, and never gets to the records behind it. It refuses consecutive snappy streams, and fetches
them again, too. Its statistics show either: a partition has records to fetch, but fetches from the
same offset as a second ago. This module reads that batch, and the consumer resumes behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from kbroker.cli.exits import CommandFailed
from kbroker.cli.params import Bootstrap, connect

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from kbroker.formats.batches import BatchHeader, Record

_INTERVAL_MS = 1000
"""Of the statistics."""

_At: TypeAlias = tuple[str, int]
"""A topic and a partition."""


class UnreadBatches:
    """`settings`: the consumer's, so that its polls bring the statistics."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._fetched_from: dict[_At, int] = {}
        self._stuck: dict[_At, int] = {}

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"statistics.interval.ms": _INTERVAL_MS, "stats_cb": self._seen}

    def _seen(self, statistics: str) -> None:
        import json

        before, self._fetched_from, self._stuck = self._fetched_from, {}, {}
        for name, topic in json.loads(statistics)["topics"].items():
            for number, row in topic["partitions"].items():
                offset = row["next_offset"]
                if (
                    row["fetch_state"] == "active"
                    and not row["fetchq_cnt"]
                    and 0 <= offset < row["ls_offset"]
                ):
                    at = (name, int(number))
                    self._fetched_from[at] = offset
                    if before.get(at) == offset:
                        self._stuck[at] = offset

    def delivered(self, at: _At) -> None:
        """A record of this partition: it is not stuck where the statistics saw it."""
        self._stuck.pop(at, None)

    def take(self, consumer: Consumer, limit: int | None) -> list[Message]:
        """At most `limit` records of one such batch; the consumer resumes after them. Raises
        CommandFailed if there are none that can be read, and KafkaError."""
        if not self._stuck or limit == 0:
            return []
        from confluent_kafka import TopicPartition

        from kbroker.client import admin
        from kbroker.client.topic_logs import committed_batch

        (name, number), offset = self._stuck.popitem()
        with connect(self._bootstrap) as connection:
            (topic,) = admin.topics(connection, [name])
            batch = committed_batch(connection, topic, number, offset)
        if batch is None:
            return []
        header, records, damage = batch
        if damage is not None and not records:
            raise CommandFailed(
                f"{name}-{number}: records at offsets {max(offset, header.base_offset)} to "
                f"{header.last_offset} cannot be read: {damage}"
            )
        is_whole = damage is None and (limit is None or limit >= len(records))
        records = records[:limit]
        resume = header.last_offset + 1 if is_whole else records[-1].offset + 1
        consumer.seek(TopicPartition(name, number, resume, leader_epoch=header.partition_leader_epoch))
        return [_message(name, number, header, record) for record in records]


def _message(topic: str, partition: int, header: BatchHeader, record: Record) -> Message:
    from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

    kind = TIMESTAMP_LOG_APPEND_TIME if header.is_log_append_time else TIMESTAMP_CREATE_TIME
    return Message(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        timestamp=(kind, record.timestamp_ms),
        leader_epoch=header.partition_leader_epoch,
    )
