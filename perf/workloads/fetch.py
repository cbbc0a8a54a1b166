"""Consumers at full speed, each with its own partitions and without a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perf.workloads.client_process import Link, WorkloadFailed
from perf.workloads.outcome import WorkloadOutcome
from perf.workloads.settings import NO_SETTINGS, Settings, base, is_about_its_group
from perf.workloads.window import Client, Plan, measure

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

CONSUME_RECORDS = 10_000
_CONSUME_S = 0.1
_METADATA_S = 10.0


def fetch(
    plan: Plan,
    bootstrap: str,
    topic: str,
    *,
    consumers: int = 1,
    max_partition_bytes: int = 8 << 20,
    settings: Settings = NO_SETTINGS,
) -> WorkloadOutcome:
    """Read a topic repeatedly from its beginning, so a few records suffice.

    Partition p is read by consumer p modulo `consumers`; where there are more consumers than
    partitions, several read the same. A response has up to `max_partition_bytes` of each partition
    and is sent as soon as there are any records (fetch.min.bytes 1). The client prefetches up to 64
    MiB. One response for several partitions can be that large, and the client then pauses: for 10
    ms, since its default of 1 s would dominate the measurement. `requests` counts polls that
    returned records. Raises WorkloadFailed.
    """
    own = {
        **base(bootstrap, settings),
        "group.id": "kbroker-perf",  # required by the client library; nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 100,
        "max.partition.fetch.bytes": max_partition_bytes,
        "fetch.max.bytes": 64 << 20,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 64 << 10,
        "fetch.queue.backoff.ms": 10,
    }
    clients = [
        Client(_fetch, {"settings": own, "topic": topic, "number": number, "of": consumers})
        for number in range(consumers)
    ]
    return measure(plan, clients).outcome()


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """Raises WorkloadFailed for a topic that does not exist."""
    found = consumer.list_topics(topic, timeout=_METADATA_S).topics[topic]
    if found.error is not None or not found.partitions:
        raise WorkloadFailed(f"topic {topic}: {found.error or 'it has no partitions'}")
    return sorted(found.partitions)


def _fetch(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

    topic, number, of = arguments["topic"], arguments["number"], arguments["of"]
    consumer = Consumer(arguments["settings"])
    numbers = partitions_of(consumer, topic)
    mine = [each for each in numbers if each % of == number] or [numbers[number % len(numbers)]]
    error_of = Message.error
    link.begin()
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in mine])
    while link.running:
        messages = consumer.consume(CONSUME_RECORDS, _CONSUME_S)
        if any(map(error_of, messages)):
            messages = _without_ends(consumer, messages)
        if messages:
            link.count(len(messages), sum(map(len, messages)))
            if link.report.first_ms is None:
                link.first()
        else:
            link.check_patience()
    link.send_report()
    consumer.close()


def _without_ends(consumer: Consumer, messages: list[Message]) -> list[Message]:
    """The records without the end-of-partition events; a partition that has ended is read again
    from its beginning. Raises WorkloadFailed for errors that a retry does not cure."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.seek(TopicPartition(message.topic() or "", message.partition() or 0, OFFSET_BEGINNING))
        elif not error.retriable() and not is_about_its_group(error):
            raise WorkloadFailed(error.str())
    return records
