"""Clients with transactions: producers, a consume-transform-produce loop, and the filling of a
topic."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import TYPE_CHECKING, Any

from perf.workloads.client_process import Link, WorkloadFailed
from perf.workloads.payload import chunks
from perf.workloads.produce import Refusals, batching
from perf.workloads.settings import base
from perf.workloads.window import Client

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

RECORDS, RECORD_BYTES = 100, 100
"""Of each transaction."""
_TIMEOUT_S = 30.0
_POLL_S = 0.1
_AT_ONCE = 8


def committer(bootstrap: str, topic: str, partition: int) -> Client:
    """Writes transactions to one partition, one after the other, and commits each.

    A unit is a record of a committed transaction, a request a transaction. Latencies are those of
    commit_transaction(), which sends the records that are still queued."""
    arguments = {"settings": _producing(bootstrap), "topic": topic, "partition": partition}
    return Client(_commit, arguments)


def transformer(bootstrap: str, topic: str, results: str, group: str) -> Client:
    """Reads `topic` as the only member of `group`. Each transaction has a result for every record
    of a poll, and the group's new offsets.

    Units, requests and latencies as with `committer`, but a latency is that of the whole
    transaction, from begin_transaction() on."""
    consuming = {
        **base(bootstrap, {}), "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "isolation.level": "read_committed",
    }  # fmt: skip
    arguments = {
        "settings": _producing(bootstrap),
        "consuming": consuming,
        "topic": topic,
        "results": results,
    }
    return Client(_transform, arguments)


def fill_with_transactions(bootstrap: str, topic: str, transactions: int, *, abort_every: int = 0) -> None:
    """Writes transactions to the topic's first partition, those of several producers in between
    each other. `abort_every`: every such transaction of a producer is aborted, after the broker has
    all of its records. Raises WorkloadFailed."""
    each = -(-transactions // _AT_ONCE)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = [
            pool.submit(_fill, bootstrap, topic, min(each, transactions - first), abort_every)
            for first in range(0, transactions, each)
        ]
        for one in running:
            one.result()


def _producing(bootstrap: str) -> dict[str, Any]:
    own = batching(batch_bytes=1_000_000, linger_ms=5, compression="none")
    return {**base(bootstrap, {}), **own, "acks": "all"}


def _producer(settings: Mapping[str, Any], refusals: Refusals) -> Producer:
    from confluent_kafka import Producer

    own = {"transactional.id": f"perf-{uuid.uuid4()}", "on_delivery": refusals}
    producer = Producer({**settings, **own})
    producer.init_transactions(_TIMEOUT_S)
    return producer


def _commit(link: Link, arguments: Mapping[str, Any]) -> None:
    topic, partition, refusals = arguments["topic"], arguments["partition"], Refusals()
    producer = _producer(arguments["settings"], refusals)
    pool = cycle(chunks(RECORD_BYTES, RECORDS))
    link.longest_end_s = _TIMEOUT_S
    link.begin()
    while link.running:
        producer.begin_transaction()
        producer.produce_batch(topic, next(pool), partition=partition)
        began_s = time.monotonic()
        producer.commit_transaction(_TIMEOUT_S)
        ended_s = time.monotonic()
        refusals.check()
        link.latency(ended_s, (ended_s - began_s) * 1000)
        if link.report.first_ms is None:
            link.first()
        else:
            link.count(RECORDS, RECORDS * RECORD_BYTES)
    link.send_report()


def _transform(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import Consumer

    refusals = Refusals()
    producer = _producer(arguments["settings"], refusals)
    consumer = Consumer(arguments["consuming"])
    link.longest_end_s = _TIMEOUT_S
    link.begin()
    consumer.subscribe([arguments["topic"]])
    while link.running:
        if not (messages := consumer.consume(RECORDS, _POLL_S)):
            link.check_patience()
            continue
        began_s = time.monotonic()
        producer.begin_transaction()
        producer.produce_batch(arguments["results"], [{"value": _value_of(each)} for each in messages])
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _TIMEOUT_S)
        producer.commit_transaction(_TIMEOUT_S)
        ended_s = time.monotonic()
        refusals.check()
        link.latency(ended_s, (ended_s - began_s) * 1000)
        if link.report.first_ms is None:
            link.first()
        else:
            link.count(len(messages), sum(map(len, messages)))
    link.send_report()
    consumer.close()


def _value_of(message: Message) -> bytes:
    if (error := message.error()) is not None:
        raise WorkloadFailed(error.str())
    value = message.value()
    assert isinstance(value, bytes)
    return value


def _fill(bootstrap: str, topic: str, transactions: int, abort_every: int) -> None:
    refusals = Refusals()
    producer = _producer(_producing(bootstrap), refusals)
    pool = cycle(chunks(RECORD_BYTES, RECORDS))
    for number in range(1, transactions + 1):
        producer.begin_transaction()
        producer.produce_batch(topic, next(pool), partition=0)
        if abort_every and number % abort_every == 0:
            if left := producer.flush(_TIMEOUT_S):
                raise WorkloadFailed(f"{left} records were not confirmed within {_TIMEOUT_S:.0f} s")
            producer.abort_transaction(_TIMEOUT_S)
        else:
            producer.commit_transaction(_TIMEOUT_S)
        refusals.check()
