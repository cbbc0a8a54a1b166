"""End to end at a fixed rate: the time from when a record is due to be sent until a consumer has
it."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perf.workloads.client_process import SLOT_S, Link, WorkloadFailed
from perf.workloads.fetch import partitions_of
from perf.workloads.outcome import WorkloadOutcome
from perf.workloads.payload import values
from perf.workloads.produce import Refusals, batching
from perf.workloads.settings import NO_SETTINGS, Settings, base, is_about_its_group
from perf.workloads.window import Client, Plan, measure

if TYPE_CHECKING:
    from confluent_kafka import Message

Via: TypeAlias = Literal["consumer", "share"]

_STAMP = struct.Struct(">qq")  # due time in nanoseconds of the monotonic clock; number of the record
SMALLEST_BYTES = _STAMP.size
_PRODUCER, _CONSUMER = 0, 1
_POLL_S = 0.1
_LONGEST_WAIT_S = 0.05
_STRAGGLERS_S = 5.0
_FLUSH_S = 10.0
_METADATA_S = 10.0


def latency(
    plan: Plan,
    bootstrap: str,
    topic: str,
    *,
    rate_per_s: float,
    record_bytes: int = 100,
    acks: str = "all",
    via: Via = "consumer",
    group: str | None = None,
    settings: Settings = NO_SETTINGS,
) -> WorkloadOutcome:
    """One producer (linger 0) and one consumer, in separate processes on one machine.

    Records are due at fixed moments, even if earlier ones have not arrived. Their latency is
    measured from the due time, so a stall of the broker or the machine delays all records that are
    due during it (no coordinated omission). `via`: "consumer" reads all partitions from their end
    without a group; "share" is a member of `group` (a new one if None).

    `records` and `latencies_ms` are of all records that were due within the window.
    `details["missing"]` is the number of those that did not arrive within 5 s after it. Raises
    WorkloadFailed.
    """
    clients = latency_clients(
        bootstrap, topic, rate_per_s=rate_per_s, record_bytes=record_bytes, acks=acks, via=via, group=group,
        settings=settings,
    )  # fmt: skip
    window = measure(plan, clients)
    sent, found = window.sum([window.reports[_PRODUCER].others]), window.outcome()
    came = 0 if found.latencies_ms is None else found.latencies_ms.count
    return replace(
        found,
        records=came,
        bytes=came * record_bytes,
        requests=0,
        first_record_ms=window.reports[_CONSUMER].first_ms,
        details={**found.details, "missing": max(0, sent - came)},
    )


def latency_clients(
    bootstrap: str,
    topic: str,
    *,
    rate_per_s: float,
    record_bytes: int = 100,
    acks: str = "all",
    via: Via = "consumer",
    group: str | None = None,
    settings: Settings = NO_SETTINGS,
) -> list[Client]:
    """The producer and the consumer, which must be the first clients of their window. The consumer
    reports a latency for each record, at the moment when it was due."""
    if record_bytes < SMALLEST_BYTES:
        raise ValueError(f"records need {SMALLEST_BYTES} bytes for their due time and number")
    common = base(bootstrap, settings)
    sending = {
        "settings": {
            **common,
            **batching(batch_bytes=1_000_000, linger_ms=0, compression="none"),
            "acks": acks,
        },
        "topic": topic,
        "rate_per_s": rate_per_s,
        "record_bytes": record_bytes,
    }
    share_group = group or f"kbroker-perf-{uuid.uuid4()}"
    receiving = {"settings": {**common, **_consumer_settings(via, share_group)}, "topic": topic, "via": via}
    return [Client(_send, sending), Client(_receive, receiving)]


def _consumer_settings(via: Via, group: str) -> dict[str, Any]:
    if via == "share":
        return {"group.id": group, "max.poll.records": 500}
    return {"group.id": group, "enable.auto.commit": False, "fetch.min.bytes": 1}


def _send(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import Producer

    topic, refusals, link.longest_end_s = arguments["topic"], Refusals(), 2 * _FLUSH_S
    producer = Producer({**arguments["settings"], "on_delivery": refusals})
    rest = values(arguments["record_bytes"])[0][SMALLEST_BYTES:]
    link.begin()
    began_ns, number, gap_ns = time.monotonic_ns(), 0, 1e9 / arguments["rate_per_s"]
    end_ns = None
    while True:
        due_ns, now_ns = began_ns + int(number * gap_ns), time.monotonic_ns()
        if end_ns is None and not link.running:
            end_ns = now_ns
        if end_ns is not None and (due_ns > end_ns or now_ns > end_ns + _FLUSH_S * 1e9):
            break
        if due_ns > now_ns:
            time.sleep(min((due_ns - now_ns) / 1e9, _LONGEST_WAIT_S))
            continue
        try:
            producer.produce(topic, _STAMP.pack(due_ns, number) + rest)
        except BufferError:
            producer.poll(_LONGEST_WAIT_S)
            continue
        producer.poll(0)
        refusals.check()
        link.report.others[int(due_ns / 1e9 / SLOT_S)] += 1
        link.count(1)
        number += 1
        if number == 1:
            link.first(wait=False)
    if due_ns <= end_ns:
        raise WorkloadFailed(f"the producer did not sustain {arguments['rate_per_s']:.0f} records/s")
    left = producer.flush(_FLUSH_S)
    refusals.check()
    if left:
        raise WorkloadFailed(f"{left} records were not confirmed within {_FLUSH_S:.0f} s")
    link.send_report()


def _receive(link: Link, arguments: Mapping[str, Any]) -> None:
    link.longest_end_s = 2 * _FLUSH_S + _STRAGGLERS_S
    poll, close = (_share_consumer if arguments["via"] == "share" else _consumer)(
        link, arguments["settings"], arguments["topic"]
    )
    received, first_number, stop_at_s = 0, 0, None
    while True:
        messages = poll()
        now_ns = time.monotonic_ns()
        for message in messages:
            if (error := message.error()) is not None:
                raise WorkloadFailed(error.str())
            due_ns, number = _STAMP.unpack_from(message.value() or b"")
            link.latency(due_ns / 1e9, (now_ns - due_ns) / 1e6)
            if not received:
                first_number = number
                link.first(wait=False)
            received += 1
        link.check_patience()
        if link.running:
            continue
        if not link.has_finished(_PRODUCER):
            continue
        stop_at_s = stop_at_s or now_ns / 1e9 + _STRAGGLERS_S
        if received + first_number >= link.progress_of(_PRODUCER) or now_ns / 1e9 > stop_at_s:
            break
    link.send_report()
    close()


def _consumer(
    link: Link, settings: Settings, topic: str
) -> tuple[Callable[[], Sequence[Message]], Callable[[], None]]:
    """A consumer that is positioned at the ends of all partitions."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(dict(settings))
    ends = []
    for partition in partitions_of(consumer, topic):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_METADATA_S)
        ends.append(TopicPartition(topic, partition, end))
    consumer.assign(ends)
    link.begin()

    def poll() -> Sequence[Message]:
        message = consumer.poll(_POLL_S)
        if message is None or ((error := message.error()) is not None and is_about_its_group(error)):
            return ()
        return (message,)

    return poll, consumer.close


def _share_consumer(
    link: Link, settings: Settings, topic: str
) -> tuple[Callable[[], Sequence[Message]], Callable[[], None]]:
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer(dict(settings))
    link.begin()
    consumer.subscribe([topic])
    return lambda: list(consumer.poll(_POLL_S)), consumer.close
