"""Transactional producers for scripts: the client's side of InitProducerId, AddPartitionsToTxn,
Produce and EndTxn.

    t = transactional(s)                # prepared: it has producer id and epoch 0
    t.send(topic, "one")                # prepared
    t.end(True)                         # a step
    t.settle()                          # Kafka writes the markers after its answer

Generation 1 adds partitions before it sends, and keeps its epoch. For generation 2 the broker adds
them, and each end raises the epoch (KIP-890). `who` replaces the producer id and epoch of a
request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kbroker.formats.batches import TRANSACTIONAL
from tests.differential.script import Entity, Session, Topic, Value
from tests.differential.scripts.base_produce import batch_of
from tests.differential.transcript import Json, transcribe

Who: TypeAlias = tuple[int, int]
"""Producer id and epoch."""
Logs: TypeAlias = Mapping[Topic, tuple[int, ...]]
LAST_INIT = 5
LAST_ADD = 3
ADMIN = "admin"
_NOT_YET = (14, 15, 16)
_IN_BETWEEN = ("PrepareCommit", "PrepareAbort")
_CONCURRENT = 51
_AT_ONCE = 64
LAST_EPOCH = 32_766
"""Of a producer id: 32767 only fences."""
_OFFSETS_TOPIC = "__consumer_offsets"
NOBODY = (-1, -1)
LOG = {"retention_ms": "-1", "segment_ms": str(1 << 53)}
"""Of a topic: its records are old, and its markers are new, which would begin another segment."""


@dataclass
class Producer:
    """Follows the answers as a client does: id, epoch, and the next sequence of each partition."""

    s: Session
    id: str
    generation: int = 2
    producer_id: int = -1
    epoch: int = -1
    on: str = "a"
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def who(self) -> Who:
        return self.producer_id, self.epoch

    def become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self.who:
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def init(
        self, version: int = LAST_INIT, *, who: Who = NOBODY, timeout_ms: int = 60_000, **more: Value
    ) -> Entity:
        """A step. The producer becomes what the answer says, if it succeeds."""
        answer = init(self.s, self.id, version, who=who, timeout_ms=timeout_ms, on=self.on, **more)
        if answer is not None and answer.error_code.value == 0:
            self.become(answer.producer_id, answer.producer_epoch)
        return answer

    def prepared(self, timeout_ms: int = 60_000) -> Producer:
        """InitProducerId, not part of the transcript."""

        def done() -> bool:
            answer = self.s.prepare(
                "init_producer_id", LAST_INIT, on=self.on, transactional_id=self.id,
                transaction_timeout=timeout_ms,
            )  # fmt: skip
            code = answer.error_code
            if code.value == 0:
                self.become(answer.producer_id, answer.producer_epoch)
                self.s.names.producer(self.producer_id)  # before tables with other scripts' producers
            elif code.value not in (*_NOT_YET, _CONCURRENT):
                raise AssertionError(f"{self.id}: {code.name}")
            return code.value == 0

        self.s.until(done, f"{self.id} has a producer id")
        return self

    def raised(self, epoch: int, timeout_ms: int = 60_000) -> Producer:
        """InitProducerId until it has this epoch, many requests at a time. Not part of the
        transcript."""
        connection = self.s.connection(self.on)
        values = {"transactional_id": self.id, "transaction_timeout": timeout_ms}
        while self.epoch < epoch:
            count = min(_AT_ONCE, epoch - self.epoch)
            connection.send_raw(connection.encode("init_producer_id", LAST_INIT, values) * count)
            for _ in range(count - 1):
                connection.read_frame()
            answer = connection.read_response("init_producer_id", LAST_INIT)
            if answer.error_code.value == 0:
                self.become(answer.producer_id, answer.producer_epoch)
            elif answer.error_code.value != _CONCURRENT:
                raise AssertionError(f"{self.id}: {answer.error_code.name}")
        return self

    def add(self, logs: Logs, version: int = LAST_ADD, *, who: Who | None = None, **more: Value) -> Entity:
        return self.s.call("add_partitions_to_txn", version, on=self.on, **self._adding(logs, who) | more)

    def added(self, logs: Logs) -> None:
        """Like `add`, but not part of the transcript, and successful."""
        answer = self.s.prepare("add_partitions_to_txn", LAST_ADD, on=self.on, **self._adding(logs, None))
        rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
        if any(row.partition_error_code.value for row in rows):
            raise AssertionError(f"{self.id}: cannot add, {rows}")

    def _adding(self, logs: Logs, who: Who | None) -> dict[str, Value]:
        producer_id, epoch = who or self.who
        return {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": log_rows(logs),
        }

    def add_offsets(self, group: str, version: int = 4, *, who: Who | None = None, **more: Value) -> Entity:
        producer_id, epoch = who or self.who
        values: dict[str, Value] = {
            "transactional_id": self.id, "producer_id": producer_id, "producer_epoch": epoch,
            "group_id": group,
        }  # fmt: skip
        return self.s.call("add_offsets_to_txn", version, on=self.on, **values | more)

    def batch(
        self, topic: Topic, *values: str, partition: int = 0, sequence: int | None = None,
        who: Who | None = None, bits: int = TRANSACTIONAL,
    ) -> bytes:  # fmt: skip
        """Its next batch, or one with another sequence."""
        first = self.sequences.get((topic.name, partition), 0) if sequence is None else sequence
        return batch_of(*values, producer=(*(who or self.who), first), bits=bits)

    def produce(
        self, topic: Topic, *values: str, partition: int = 0, version: int = 0, **how: Value
    ) -> Entity:
        """A step with one batch, which nothing was added for. `how`: see `batch`."""
        batch = self.batch(topic, *values, partition=partition, **how)
        answer = produce(
            self.s, self.id, {topic: {partition: batch}}, version or self.last_produce, on=self.on
        )
        if answer is not None and not answer.responses[0].partition_responses[0].error_code.value:
            self._count(topic, partition, len(values))
        return answer

    @property
    def last_produce(self) -> int:
        return 12 if self.generation == 2 else 11

    @property
    def last_end(self) -> int:
        return 5 if self.generation == 2 else 4

    def send(self, topic: Topic, *values: str, partition: int = 0) -> None:
        """A batch of its transaction, its partition added before if need be. Not part of the
        transcript."""
        if self.generation == 1:
            self.added({topic: (partition,)})
        self.send_batch(topic, self.batch(topic, *values, partition=partition), len(values), partition)

    def send_batch(self, topic: Topic, batch: bytes, count: int, partition: int = 0) -> int:
        """Append its next batch, of `count` records, to a partition that was added if need be.
        Returns the base offset. Not part of the transcript."""
        answer = self.s.prepare(
            "produce", self.last_produce, on=self.on,
            **produce_values(self.id, {topic: {partition: batch}}, self.last_produce),
        )  # fmt: skip
        (row,) = answer.responses[0].partition_responses
        if row.error_code.value:
            raise AssertionError(f"{self.id}: cannot produce to {topic.name}: {row.error_code.name}")
        self._count(topic, partition, count)
        return int(row.base_offset)

    def _count(self, topic: Topic, partition: int, count: int) -> None:
        key = topic.name, partition
        self.sequences[key] = self.sequences.get(key, 0) + count

    def end(
        self, committed: bool, version: int | None = None, *, who: Who | None = None, **more: Value
    ) -> Entity:
        """A step. A producer of generation 2 takes its epoch from the answer."""
        version = self.last_end if version is None else version
        answer = self.s.call("end_txn", version, on=self.on, **self._ending(committed, who) | more)
        self._ended(answer, version)
        return answer

    def _ending(self, committed: bool, who: Who | None) -> dict[str, Value]:
        producer_id, epoch = who or self.who
        return {
            "transactional_id": self.id, "producer_id": producer_id, "producer_epoch": epoch,
            "committed": committed,
        }  # fmt: skip

    def _ended(self, answer: Entity, version: int) -> None:
        if version >= 5 and answer is not None and not answer.error_code.value:
            self.become(answer.producer_id, answer.producer_epoch)

    def ended(self, committed: bool) -> None:
        """End the transaction and wait for its markers. Not part of the transcript."""
        version = self.last_end
        answer = self.s.prepare("end_txn", version, on=self.on, **self._ending(committed, None))
        if answer.error_code.value:
            raise AssertionError(f"{self.id}: cannot end, {answer.error_code.name}")
        self._ended(answer, version)
        self.settle()

    def settle(self) -> str:
        """Wait until no transaction of the id is being ended."""

        def settled() -> str:
            state = str(describe_quietly(self.s, self.id)[0]["transaction_state"])
            return "" if state in _IN_BETWEEN else state or "unknown"

        return self.s.until(settled, f"{self.id} has ended its transaction", every_s=0.02)


def transactional(s: Session, name: str = "t", generation: int = 2, timeout_ms: int = 60_000) -> Producer:
    """A producer with epoch 0 whose coordinator is ready. Its connection has its name."""
    return fresh(s, name, generation).prepared(timeout_ms)


def fresh(s: Session, name: str = "t", generation: int = 2) -> Producer:
    """An id of this script that the broker does not know yet, once its coordinator is ready. A
    fresh Kafka creates the coordinator's topic on the first request."""
    transactional_id = f"{s.name}-{name}"

    def ready() -> bool:
        s.prepare("find_coordinator", 4, on=ADMIN, key_type=1, coordinator_keys=[transactional_id])
        return describe_quietly(s, transactional_id)[0]["error_code"] not in _NOT_YET

    s.until(ready, f"{transactional_id} has a coordinator")
    return Producer(s, transactional_id, generation, on=name)


def init(
    s: Session, transactional_id: str | None, version: int = LAST_INIT, *, who: Who = NOBODY,
    timeout_ms: int = 60_000, on: str = "a", **more: Value,
) -> Entity:  # fmt: skip
    values: dict[str, Value] = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
    if version >= 3:
        values |= {"producer_id": who[0], "producer_epoch": who[1]}
    return s.call("init_producer_id", version, on=on, **values | more)


def log_rows(logs: Logs) -> list[dict[str, Value]]:
    return [{"name": topic.name, "partitions": list(which)} for topic, which in logs.items()]


def produce_values(
    transactional_id: str | None, batches: Mapping[Topic, Mapping[int, bytes]], version: int, acks: int = -1
) -> dict[str, Value]:
    rows = [
        {
            **({"topic_id": topic.topic_id} if version >= 13 else {"name": topic.name}),
            "partition_data": [{"index": index, "records": records} for index, records in partitions.items()],
        }
        for topic, partitions in batches.items()
    ]
    return {"transactional_id": transactional_id, "acks": acks, "timeout": 30_000, "topic_data": rows}


def produce(
    s: Session, transactional_id: str | None, batches: Mapping[Topic, Mapping[int, bytes]],
    version: int = 12, *, acks: int = -1, on: str = "a",
) -> Entity:  # fmt: skip
    return s.call("produce", version, on=on, **produce_values(transactional_id, batches, version, acks))


def describe(s: Session, *transactional_ids: str, groups: bool = False) -> list[dict[str, Json]]:
    """DescribeTransactions as a step. It is decoded here: kio cannot read a start time of -1.
    `groups`: keep the topic that stands for groups, without its partitions, which are a matter of
    the broker's."""
    rows = describe_quietly(s, *transactional_ids)
    for row in rows:
        shown = [topic for topic in row["topics"] if topic["topic"] != _OFFSETS_TOPIC]
        row["topics"] = shown + ([_OFFSETS_TOPIC] if groups and len(shown) < len(row["topics"]) else [])
    request = {"transactional_ids": list(transactional_ids)}
    step = {"api": "describe_transactions", "version": 0, "request": request}
    s.steps.append({**step, "answer": transcribe(rows, s.names)})
    return rows


def describe_quietly(s: Session, *transactional_ids: str, on: str = ADMIN) -> list[dict[str, Json]]:
    body = _Body(
        s.connection(on).call_raw("describe_transactions", 0, transactional_ids=list(transactional_ids))
    )
    body.number(">i")
    rows = body.rows(lambda: _described(body))
    body.number(">b")
    return rows


def _described(body: _Body) -> dict[str, Json]:
    row: dict[str, Json] = {"error_code": body.number(">h"), "transactional_id": body.text()}
    row["transaction_state"] = body.text()
    row["transaction_timeout"] = body.number(">i")
    row["start_timestamp"] = body.number(">q")
    row["producer_id"], row["producer_epoch"] = body.number(">q"), body.number(">h")
    row["topics"] = body.rows(lambda: _described_topic(body))
    body.number(">b")
    return row


def _described_topic(body: _Body) -> dict[str, Json]:
    row = {"topic": body.text(), "partitions": sorted(body.rows(lambda: body.number(">i")))}
    body.number(">b")
    return row


class _Body:
    """Reads a flexible message, all of whose tag sections are empty and whose lengths are small."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        value: int
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _count(self) -> int:
        count, shift = 0, 0
        while True:
            byte = self.number(">B")
            count |= (byte & 0x7F) << shift
            if byte < 0x80:
                return count - 1
            shift += 7

    def text(self) -> str:
        size = self._count()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def rows(self, read: Callable[[], Json]) -> list[Json]:
        return [read() for _ in range(self._count())]
