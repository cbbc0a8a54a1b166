"""The workload of a queue's worker: take one record, acknowledge it, take the next. Real clients, a process for each.

`fill_topic` writes a topic in batches of one to three records, since a share consumer is given whole batches. `run_consumers`
lets a new group work on it and counts what was acknowledged within a window of time that begins when every consumer has had its
first record: neither joining nor the end of the topic is in the figure.

The two styles differ in when the acknowledgement travels, not in how many are made:
    next poll     acknowledge(record); the client sends it inside the ShareFetch of the next poll. The usual loop, one round trip
                  for each record.
    commit_sync   acknowledge(record), commit_sync(), and only then the next poll: the broker's answer is waited for. Two round trips.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier, Event
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from perf.measured_broker import cpu_s

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

Style: TypeAlias = Literal["next poll", "commit_sync"]

RECORD_BYTES = 100
FIRST_RECORD_TIMEOUT_S = 30.0
_MIXED_WITHIN = 120
_WARM_UP_S = 0.4
_SLOT_S = 0.02
_POLL_S = 0.1


class Report(NamedTuple):
    """Of one consumer. `acknowledged` counts records by slot of `_SLOT_S` of the machine's monotonic clock."""

    first_record_ms: float
    acknowledged: Counter[int]
    polls: int


class Work(NamedTuple):
    """What a group of consumers did. `broker_cpu_us`: CPU time of the broker for each record. `ran_dry`: the figure is worthless."""

    records_per_s: float
    broker_cpu_us: float
    broker_cpu_share: float
    records_per_poll: float
    first_record_ms: list[float]
    ran_dry: bool


def fill_topic(bootstrap: str, topic: str, records: int) -> None:
    """Batches of 1, 2 and 3 records in equal numbers, well mixed: two records a batch on average. Raises RuntimeError.

    A client library makes batches of one size only, so there are three producers. Each would run ahead of the others if it could:
    they are waited for after every few records."""
    from confluent_kafka import Producer

    common = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
    producers = [Producer({**common, "batch.num.messages": size}) for size in (1, 2, 3)]
    by_turn = [producers[0], producers[1], producers[1], *[producers[2]] * 3]
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for first in range(0, records, _MIXED_WITHIN):
        for number in range(first, min(records, first + _MIXED_WITHIN)):
            by_turn[number % 6].produce(topic, b"x" * RECORD_BYTES, partition=0, on_delivery=delivered)
        if any(producer.flush(60) for producer in producers) or failed:
            raise RuntimeError(f"topic {topic} could not be filled: {failed[:1] or 'timeout'}")


def run_consumers(
    bootstrap: str, topic: str, group: str, *, consumers: int, style: Style, seconds: float, topic_records: int, broker_pid: int
) -> Work:
    """`seconds` 0: only the time to the first record is of interest. Raises RuntimeError when a consumer fails."""
    context = multiprocessing.get_context("spawn")
    reports: SimpleQueue[Report] = context.SimpleQueue()
    stop, together, joined = context.Event(), context.Barrier(consumers), context.Barrier(consumers + 1)
    arguments = (bootstrap, topic, group, style, together, joined, stop, reports)
    processes = [context.Process(target=_consume, args=arguments, daemon=True) for _ in range(consumers)]
    for process in processes:
        process.start()
    joined.wait(FIRST_RECORD_TIMEOUT_S + consumers)
    time.sleep(_WARM_UP_S if seconds else 0)
    first_slot, cpu_before = int(time.monotonic() / _SLOT_S) + 1, cpu_s(broker_pid)
    time.sleep(seconds)
    last_slot, cpu_after = int(time.monotonic() / _SLOT_S), cpu_s(broker_pid)
    stop.set()
    gathered = [reports.get() for _ in processes]
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a share consumer ended with exit code {process.exitcode}")
    window_s = (last_slot - first_slot) * _SLOT_S
    counted = sum(count for report in gathered for slot, count in report.acknowledged.items() if first_slot <= slot < last_slot)
    total = sum(report.acknowledged.total() for report in gathered)
    return Work(
        records_per_s=counted / window_s if seconds else 0.0,
        broker_cpu_us=(cpu_after - cpu_before) * 1e6 / max(1, counted),
        broker_cpu_share=(cpu_after - cpu_before) / window_s if seconds else 0.0,
        records_per_poll=total / max(1, sum(report.polls for report in gathered)),
        first_record_ms=[report.first_record_ms for report in gathered],
        ran_dry=total >= topic_records,
    )


def _consume(
    bootstrap: str, topic: str, group: str, style: Style, together: Barrier, joined: Barrier, stop: Event, reports: SimpleQueue[Report]
) -> None:
    from confluent_kafka import ShareConsumer

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "max.poll.records": 1,
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    consumer = ShareConsumer(settings)
    together.wait()
    began = time.monotonic()
    consumer.subscribe([topic])
    acknowledged: Counter[int] = Counter()
    while not (got := _work_once(consumer, style)):
        if time.monotonic() - began > FIRST_RECORD_TIMEOUT_S:
            raise RuntimeError(f"no record within {FIRST_RECORD_TIMEOUT_S:.0f} s of subscribing")
    first_record_ms = (got.taken_at - began) * 1000
    joined.wait()
    polls = 1
    acknowledged[int(time.monotonic() / _SLOT_S)] += got.records
    while not stop.is_set():
        if got := _work_once(consumer, style):
            polls += 1
            acknowledged[int(time.monotonic() / _SLOT_S)] += got.records
    consumer.close()
    reports.put(Report(first_record_ms, acknowledged, polls))


class _Taken(NamedTuple):
    taken_at: float
    records: int


def _work_once(consumer: ShareConsumer, style: Style) -> _Taken | None:
    messages = consumer.poll(_POLL_S)
    taken_at = time.monotonic()
    records = 0
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(str(message.error()))
        consumer.acknowledge(message)
        records += 1
    if style == "commit_sync":
        for partition, error in consumer.commit_sync().items():
            if error is not None:
                raise RuntimeError(f"{partition}: {error}")
    return _Taken(taken_at, records) if records else None
