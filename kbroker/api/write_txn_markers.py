"""WriteTxnMarkers (27), v1-2: ends the transactions of producers in the named logs, whatever the
coordinator knows of them. Kafka's brokers send it to each other; a kbroker gets it from tools that
abort a hanging transaction (KIP-664).

A row is answered when its marker is durable, even with durability `os`: it is the only decision
about that transaction, and readers may see its outcome at once. A marker without a transaction to
end is written all the same, and ends nothing. From v2 a marker has a transaction version, which
decides what epoch it may have (KIP-890).

With an authorizer it needs ALTER or CLUSTER_ACTION on the cluster (31 in every row).

As in Kafka, markers of one producer are answered in one row, and of several for one log the last
one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kbroker.api.authorization import allows_on_cluster, has_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.transactions import find_partition
from kbroker.broker.broker import Broker
from kbroker.broker.commits.waiting import Decision
from kbroker.broker.transactions.markers import append_marker
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import ProducerInfo
from kbroker.formats.transactions import MarkerType
from kbroker.security.acls import Operation

_Codes: TypeAlias = dict[int, ErrorCode]


async def handle(request: Request) -> Message:
    answer = _Answer(request.broker)
    if not has_on_cluster(request, Operation.ALTER) and not allows_on_cluster(
        request, Operation.CLUSTER_ACTION
    ):
        answer.refuse(request.body.markers)
        return answer.message()
    for marker in request.body.markers:
        await answer.append(marker)
    await answer.wait()
    return answer.message()


class _Answer:
    """`_codes`: by producer id, topic and partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._codes: dict[int, dict[str, _Codes]] = {}
        self._appended: list[tuple[_Codes, int, Decision]] = []

    def refuse(self, markers: Sequence[Any]) -> None:
        """The client may not write markers."""
        for marker in markers:
            topics = self._codes.setdefault(marker.producer_id, {})
            for topic in marker.topics:
                codes = dict.fromkeys(topic.partition_indexes, ErrorCode.cluster_authorization_failed)
                topics.setdefault(topic.name, {}).update(codes)

    async def append(self, marker: Any) -> None:
        topics = self._codes.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            codes = topics.setdefault(topic.name, {})
            for index in topic.partition_indexes:
                done = Decision()
                try:
                    await self._append(marker, topic.name, index, done)
                except KafkaError as error:
                    codes[index] = error.code
                else:
                    codes[index] = ErrorCode.none
                    self._appended.append((codes, index, done))

    async def _append(self, marker: Any, name: str, index: int, done: Decision) -> None:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise KafkaError(ErrorCode.invalid_request)
        partition = find_partition(self._broker, name, index)
        if partition is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        await append_marker(
            partition,
            MarkerType.COMMIT if marker.transaction_result else MarkerType.ABORT,
            ProducerInfo(marker.producer_id, marker.producer_epoch, -1),
            marker.coordinator_epoch,
            getattr(marker, "transaction_version", 0),
            done.decide,
        )

    async def wait(self) -> None:
        """Until all markers are durable, or refused."""
        stored = []
        for codes, index, done in self._appended:
            try:
                await done.wait()
            except (NoSpace, StoreFailed):
                codes[index] = ErrorCode.kafka_storage_error
            else:
                stored.append((codes, index))
        if not stored:
            return
        try:
            await self._broker.log_commits.flush()
        except (NoSpace, StoreFailed):
            for codes, index in stored:
                codes[index] = ErrorCode.kafka_storage_error

    def message(self) -> Message:
        return {
            "markers": [
                {
                    "producer_id": producer_id,
                    "topics": [
                        {
                            "name": name,
                            "partitions": [
                                {"partition_index": index, "error_code": code}
                                for index, code in codes.items()
                            ],
                        }
                        for name, codes in topics.items()
                        if codes
                    ],
                }
                for producer_id, topics in self._codes.items()
                if any(topics.values())  # as in Kafka, a marker for no partition has no row
            ]
        }
