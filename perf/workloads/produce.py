"""Producers at full speed: records in batches, confirmed by the broker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from perf.workloads.client_process import Link, WorkloadFailed
from perf.workloads.outcome import WorkloadOutcome
from perf.workloads.payload import chunks
from perf.workloads.settings import NO_SETTINGS, Settings, base
from perf.workloads.window import Client, Plan, measure

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

CHUNK_RECORDS = 1_000
_OUTSTANDING_RECORDS = 300_000
_OUTSTANDING_BYTES = 64 << 20
_MESSAGE_TIMEOUT_MS = 30_000
_END_S = 5.0


def produce(
    plan: Plan,
    bootstrap: str,
    topic: str,
    *,
    record_bytes: int = 100,
    batch_bytes: int = 1_000_000,
    linger_ms: float = 5,
    compression: str = "none",
    acks: str = "all",
    producers: int = 1,
    idempotence: bool = False,
    settings: Settings = NO_SETTINGS,
) -> WorkloadOutcome:
    """`producers` processes send records without keys; the client library spreads them over the
    partitions, staying with one for some milliseconds (its sticky partitioning).

    `records` counts records that the broker has confirmed (with acks 0: sent records). `requests`
    counts the checks that found more records confirmed. There is one check after each chunk of 1
    000 records, so it is not the number of requests to the broker. Raises WorkloadFailed.
    """
    own = {
        **base(bootstrap, settings),
        **batching(batch_bytes=batch_bytes, linger_ms=linger_ms, compression=compression),
        "acks": acks,
        "enable.idempotence": idempotence,
    }
    client = Client(_produce, {"settings": own, "topic": topic, "record_bytes": record_bytes})
    return measure(plan, [client] * producers).outcome()


def batching(
    *, batch_bytes: int, linger_ms: float, compression: str, batch_records: int = 1_000_000
) -> dict[str, Any]:
    """Settings of a producer with batches of this size, and with a queue larger than the number of
    outstanding records."""
    return {
        "batch.size": batch_bytes,
        "batch.num.messages": batch_records,
        "linger.ms": linger_ms,
        "compression.type": compression,
        "queue.buffering.max.messages": 2 * _OUTSTANDING_RECORDS,
        "queue.buffering.max.kbytes": 1 << 20,
        "message.timeout.ms": _MESSAGE_TIMEOUT_MS,
        "message.max.bytes": 100_000_000,
        "delivery.report.only.error": True,
    }


def outstanding_records(record_bytes: int) -> int:
    """Limit for unconfirmed records: several batches for each partition, but not all of the
    machine's memory."""
    return min(_OUTSTANDING_RECORDS, max(2 * CHUNK_RECORDS, _OUTSTANDING_BYTES // max(1, record_bytes)))


class Refusals:
    """Delivery callback: counts records that were not confirmed."""

    def __init__(self) -> None:
        self.first: str | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.first = self.first or error.str()

    def check(self) -> None:
        """Raises WorkloadFailed."""
        if self.first is not None:
            raise WorkloadFailed(f"a record was not confirmed: {self.first}")


def _produce(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import Producer

    topic, record_bytes, refusals = arguments["topic"], arguments["record_bytes"], Refusals()
    producer = Producer({**arguments["settings"], "on_delivery": refusals})
    pool = cycle(chunks(record_bytes, CHUNK_RECORDS if record_bytes < 10_000 else 10))
    limit = outstanding_records(record_bytes)
    link.begin()
    sent = confirmed = 0
    first = next(pool)[:1]
    while producer.flush(0.1) or not sent:
        sent = sent or producer.produce_batch(topic, first)
        refusals.check()
        link.check_patience()
    link.first()
    while link.running:
        sent += producer.produce_batch(topic, next(pool))
        producer.poll(0)
        while (outstanding := len(producer)) > limit and link.running:
            producer.poll(0.001)
        if (now_confirmed := sent - outstanding) > confirmed:
            link.count(now_confirmed - confirmed, (now_confirmed - confirmed) * record_bytes)
            confirmed = now_confirmed
        refusals.check()
    link.send_report()
    producer.purge()
    producer.flush(_END_S)
