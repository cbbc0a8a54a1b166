"""Topics full of dead letters, written as KIP-1191 describes them, and the records that a redrive
sent back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from kbroker.client import admin, topic_logs
from kbroker.client.topic_logs import bounds, read_records
from kbroker.formats.batches import Record, build_batch
from kbroker.redrive.sending import HEADER
from kbroker.share.dead_letter import MESSAGES, Origin, headers_of
from kbroker.share.effects import DeadLetterCause
from kbroker.testing.broker import RunningBroker

REJECTED, EXHAUSTED = MESSAGES[DeadLetterCause.REJECTED], MESSAGES[DeadLetterCause.EXHAUSTED]
PARTITIONS = 3


def append(broker: RunningBroker, topic: str, partition: int, records: Sequence[Record]) -> int:
    return append_raw(broker, topic, partition, build_batch(records))


def append_raw(broker: RunningBroker, topic: str, partition: int, batch: bytes) -> int:
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])
        return topic_logs.append(connection, found, partition, batch)


def read(broker: RunningBroker, topic: str) -> dict[int, list[Record]]:
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])
        return {
            p: list(read_records(connection, found, p, *span))
            for p, span in bounds(connection, found).items()
        }


def fill(broker: RunningBroker, source: str, count: int, *, copy: bool = True, group: str = "workers") -> str:
    """`count` records in each partition of the source, all of them dead: every third one rejected.
    Returns the dead letter topic's name."""
    name = f"dlq.{source}"
    broker.create_topic(name, partitions=2)
    for partition in range(PARTITIONS):
        records = [
            Record(0, 1_000 + n, b"k%d" % n, b"order %d of %d" % (n, partition), (("own", b"header"),))
            for n in range(count)
        ]
        append(broker, source, partition, records)
        letters = []
        for offset, record in enumerate(records):
            origin = Origin(
                source, partition, offset, group, 1 + offset % 5, EXHAUSTED if offset % 3 else REJECTED
            )
            key, value = (record.key, record.value) if copy else (None, None)
            letters.append(
                Record(0, 5_000 + offset, key, value, headers_of(origin) + (record.headers if copy else ()))
            )
        append(broker, name, partition % 2, letters)
    return name


def mark(record: Record) -> dict[str, object]:
    found: dict[str, object] = json.loads(dict(record.headers).get(HEADER) or b"{}")
    return found


def redriven(broker: RunningBroker, source: str, name: str) -> Counter[tuple[int, bytes | None]]:
    """How often each record was sent back, by partition and value."""
    found = read(broker, source)
    return Counter(
        (p, each.value) for p, records in found.items() for each in records if mark(each).get("name") == name
    )
