"""A transactional producer whose work is counted: each call of the series is one committed
transaction with one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kbroker.client.rpc import Connection
from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo, Record, build_batch

_VERSIONS = {1: (11, 4), 2: (12, 5)}
"""By the client's transaction version: those of Produce and EndTxn."""
_ADD_VERSION = 3


def transactions(connection: Connection, topic: str, version: int) -> Callable[[], None]:
    """With transaction version 1 the producer adds the partition itself; with 2 (KIP-890) the
    broker does, and each end has a new epoch."""
    return _Producer(connection, topic, version).commit


class _Producer:
    def __init__(self, connection: Connection, topic: str, version: int) -> None:
        self._connection, self._topic, self._version = connection, topic, version
        self._produce_version, self._end_version = _VERSIONS[version]
        self._id = f"counted-{version}"
        answer = connection.call(
            "init_producer_id", 4, transactional_id=self._id, transaction_timeout=60_000, producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        assert answer.error_code == 0, answer
        self._producer = ProducerInfo(answer.producer_id, answer.producer_epoch, 0)

    def commit(self) -> None:
        if self._version == 1:
            self._add()
        self._produce()
        producer = self._producer
        answer = self._connection.call(
            "end_txn", self._end_version, transactional_id=self._id, producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch, committed=True,
        )  # fmt: skip
        assert answer.error_code == 0, answer
        if self._version == 2:
            self._producer = ProducerInfo(answer.producer_id, answer.producer_epoch, 0)

    def _add(self) -> None:
        answer = self._connection.call(
            "add_partitions_to_txn",
            _ADD_VERSION,
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer.producer_id,
            v3_and_below_producer_epoch=self._producer.producer_epoch,
            v3_and_below_topics=[{"name": self._topic, "partitions": [0]}],
        )
        (topic,) = answer.results_by_topic_v3_and_below
        assert [row.partition_error_code for row in topic.results_by_partition] == [0], answer

    def _produce(self) -> None:
        record = Record(0, 1_700_000_000_000, None, bytes(1000))
        data = build_batch([record], producer=self._producer, attributes=TRANSACTIONAL)
        rows = [{"index": 0, "records": data}]
        answer = self._connection.call(
            "produce", self._produce_version, transactional_id=self._id, acks=-1, timeout=1000,
            topic_data=[{"name": self._topic, "partition_data": rows}],
        )  # fmt: skip
        (topic,) = answer.responses
        assert [row.error_code for row in topic.partition_responses] == [0], answer
        producer = self._producer
        self._producer = replace(producer, base_sequence=producer.base_sequence + 1)
