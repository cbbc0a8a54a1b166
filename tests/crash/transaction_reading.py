"""The readers of a crash test with transactions: how they look at the logs and the group, and what
the others need to know of the topics (transaction_worker.py has the roles)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.crash.worker import PARTITIONS, QUICK_RECONNECT, History, record_of, stopping, value_of
from tests.judges.history_events import CommittedAtEnd, LogRead, LogReadDone, Read
from tests.judges.transaction_events import StableEndSeen

EVENTS, INPUTS, OUTPUTS = "events", "inputs", "outputs"
TOPICS = (EVENTS, INPUTS, OUTPUTS)
GROUP = "transformers"
SESSION_MS = 4000
PATIENCE_S = 90.0
STABLE_WITHIN_S = 15.0
CALL_S = 20.0
SETTINGS: dict[str, Any] = {**QUICK_RECONNECT, "socket.timeout.ms": 3000, "retry.backoff.ms": 20}


@contextmanager
def open_consumer(bootstrap: str, **more: Any) -> Iterator[Consumer]:
    """A consumer that never joins the group."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 200,
    }
    consumer = Consumer({**settings, **SETTINGS, **more})
    try:
        yield consumer
    finally:
        consumer.close()


def _inputs() -> list[TopicPartition]:
    return [TopicPartition(INPUTS, partition) for partition in range(PARTITIONS)]


_LOGS = tuple((topic, partition) for topic in TOPICS for partition in range(PARTITIONS))


def ends_of(
    bootstrap: str, level: IsolationLevel, logs: Sequence[tuple[str, int]] = _LOGS
) -> dict[tuple[str, int], int]:
    """The end of each log for readers of this level."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    places = [TopicPartition(*log) for log in logs]
    asked = admin.list_offsets(
        {each: OffsetSpec.latest() for each in places}, isolation_level=level, request_timeout=CALL_S
    )
    return {(each.topic, each.partition): future.result().offset for each, future in asked.items()}


def is_drained(bootstrap: str, consumer: Consumer) -> bool:
    """Whether the group has read all records that are stable. A marker may follow the last one, and
    has no reader: hence the look at what is left."""
    ends = ends_of(bootstrap, IsolationLevel.READ_COMMITTED)
    try:
        committed = consumer.committed(_inputs(), CALL_S)
    except KafkaException:
        return False
    if any(each.error is not None for each in committed):
        return False
    left = [
        TopicPartition(INPUTS, each.partition, max(each.offset, 0))
        for each in committed
        if each.offset < ends[INPUTS, each.partition]
    ]
    return not left or not _has_records(bootstrap, left)


def _has_records(bootstrap: str, places: Sequence[TopicPartition]) -> bool:
    return any(True for _ in read_from(bootstrap, places))


def read_from(bootstrap: str, places: Sequence[TopicPartition], **more: Any) -> Iterator[Message]:
    """All records from there to the logs' stable ends. `more`: settings of the consumer."""
    if not places:
        return
    with open_consumer(bootstrap, **{"enable.partition.eof": True, **more}) as consumer:
        consumer.assign(list(places))
        left = {(each.topic, each.partition) for each in places}
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"{left} were not read to their end in a minute"
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((str(message.topic()), int(message.partition() or 0)))


def settle(name: str, bootstrap: str, history: History, seed: int, *, patience_s: float = PATIENCE_S) -> None:
    """Returns after a long time in any case; the judge decides."""
    deadline = time.monotonic() + patience_s
    with open_consumer(bootstrap) as consumer:
        while time.monotonic() < deadline and not is_drained(bootstrap, consumer):
            time.sleep(0.2)


def read(name: str, bootstrap: str, history: History, seed: int) -> None:
    with open_consumer(bootstrap, **{"group.id": name}) as consumer:
        consumer.assign(
            [TopicPartition(topic, each, OFFSET_BEGINNING) for topic in TOPICS for each in range(PARTITIONS)]
        )
        while not stopping.is_set():
            found = [message for message in consumer.consume(200, 0.2) if message.error() is None]
            now_ns = time.monotonic_ns()
            history.write(*(Read(now_ns, name, record_of(each), value_of(each)) for each in found))


def wait_until_stable(bootstrap: str) -> list[StableEndSeen]:
    """All ends, as soon as no transaction is open."""
    deadline = time.monotonic() + STABLE_WITHIN_S
    while True:
        stable = ends_of(bootstrap, IsolationLevel.READ_COMMITTED)
        ends = ends_of(bootstrap, IsolationLevel.READ_UNCOMMITTED)
        if stable == ends or time.monotonic() > deadline:
            now_ns = time.monotonic_ns()
            return [StableEndSeen(now_ns, *log, stable[log], ends[log]) for log in ends]
        time.sleep(0.1)


def end(name: str, bootstrap: str, history: History, seed: int) -> None:
    seen = wait_until_stable(bootstrap)
    history.write(*seen)
    places = [TopicPartition(each.topic, each.partition, 0) for each in seen if each.high_watermark]
    for message in read_from(bootstrap, places):
        history.write(LogRead(time.monotonic_ns(), record_of(message), value_of(message)))
    for each in seen:
        history.write(LogReadDone(time.monotonic_ns(), each.topic, each.partition))
    with open_consumer(bootstrap) as consumer:
        for committed in consumer.committed(_inputs(), CALL_S):
            assert committed.error is None, committed.error
            offset = max(committed.offset, -1)
            history.write(CommittedAtEnd(time.monotonic_ns(), INPUTS, committed.partition, offset))
