"""The client processes of a work queue under kill -9, based on those of tests.crash.worker.

    python -m tests.crash.queue_worker ROLE NAME BOOTSTRAP HISTORY SEED

All clients are unmodified confluent-kafka; the draining one also queries the lag.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from kbroker.client.group_admin import describe_share_group_offsets
from kbroker.client.rpc import Connection
from kbroker.share.dead_letter import HEADER_PREFIX, MESSAGES, origin_of
from kbroker.share.effects import DeadLetterCause
from tests.crash.worker import (
    CONSUMERS_PER_PROCESS,
    GROUP,
    PARTITIONS,
    QUICK_RECONNECT,
    TOPIC,
    History,
    Worker,
    digest,
    digest_of,
    finish_sending,
    guarded,
    read,
    record_of,
    refuse_fatal,
    run_until_stopped,
    stopping,
    value_of,
)
from tests.judges.history_events import AckKind, DeadLetterRead, Drained, Record, SendConfirmed, Sent

DEAD_LETTERS = "dlq.orders"
CODECS = ("none", "lz4")
KEYS = 1000
FEW_KEYS = 20
HEADERS = [
    ("colour", b"blue"),
    ("bytes", b"\x00\xff"),
    ("empty", b""),
    ("none", None),
    ("twice", b"1"),
    ("twice", b"2"),
]
BATCH_BYTES = 8_000
"""Of producers whose log should have small segments; a record may be larger."""
SCHEDULED = 0.3
SHORTEST_MS, LONGEST_MS, SOON_MS = 300, 4000, 2500
SLOW_S = 1.5, 4.0
QUIET_S = 12.0
"""Longer than any record waits: its schedule or delay, a lock, and the session of a killed member.
"""

LONGEST_DRAIN_S = 45.0
"""A broken broker may redeliver the same jobs forever."""


def produce(
    name: str,
    bootstrap: str,
    history: History,
    seed: int,
    *,
    keys: int = 0,
    headers: bool = False,
    batch_bytes: int = 1_000_000,
    longest_ms: int = LONGEST_MS,
) -> None:
    """Arguments:
    - `keys`: each job has one of so many keys, and half of the jobs have the first; 0: no keys
    - `headers`: jobs have other headers than their schedule too
    - `longest_ms`: the latest schedule
    """
    threads = []
    for number, codec in enumerate(CODECS):
        work = (
            f"{name}.{number}",
            bootstrap,
            history,
            random.Random(seed + number),
            codec,
            keys,
            headers,
            batch_bytes,
            longest_ms,
        )
        threads.append(threading.Thread(target=guarded, args=(produce_one, *work)))
    run_until_stopped(threads)


def produce_one(
    name: str,
    bootstrap: str,
    history: History,
    chooser: random.Random,
    codec: str,
    keys: int,
    has_headers: bool,
    batch_bytes: int,
    longest_ms: int,
) -> None:
    """Small bursts, some jobs of several pages; some are scheduled, with either header."""
    config = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "retry.backoff.ms": 20,
    }
    limits = {
        "message.timeout.ms": 0,
        "error_cb": refuse_fatal,
        "compression.type": codec,
        "batch.size": batch_bytes,
    }
    producer = Producer({**config, **QUICK_RECONNECT, **limits})

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            history.write(SendConfirmed(time.monotonic_ns(), name, value_of(message), record_of(message)))

    sent = 0
    while not stopping.is_set():
        for _ in range(chooser.choice([1, 1, 2, 5])):
            value, padding = f"{name}-{sent}", b" " * chooser.choice([0, 0, 0, 200, 9000])
            sent += 1
            wall_ns, now_ns = time.time_ns(), time.monotonic_ns()
            timestamp_ms = wall_ns // 1_000_000
            headers: list[tuple[str, bytes | None]] = (
                chooser.sample(HEADERS, chooser.randrange(4)) if has_headers else []
            )
            due_ns = 0
            if chooser.random() < SCHEDULED:
                delay_ms = chooser.randint(SHORTEST_MS, longest_ms)
                due_ms = timestamp_ms + delay_ms
                due_ns = now_ns + due_ms * 1_000_000 - wall_ns
                by_delay = ("kbroker-delay-ms", str(delay_ms)), ("kbroker-deliver-at", str(due_ms))
                which, text = chooser.choice(by_delay)
                headers.insert(chooser.randint(0, len(headers)), (which, text.encode()))
            partition = chooser.randrange(PARTITIONS)
            key = "" if not keys else "k0" if chooser.random() < 0.5 else f"k{chooser.randrange(1, keys)}"
            data = value.encode() + padding
            details = {"timestamp": timestamp_ms, "headers": headers, "on_delivery": delivered}
            whole = digest(key.encode() or None, data, headers, timestamp_ms)
            history.write(Sent(now_ns, name, value, idempotent=True, due_ns=due_ns, key=key, digest=whole))
            producer.produce(TOPIC, data, key=key or None, partition=partition, **details)
        producer.poll(0)
        stopping.wait(chooser.uniform(0.02, 0.1))
    finish_sending(producer)


def a_mix(chooser: random.Random) -> AckKind:
    return chooser.choices([AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT], [55, 37, 8])[0]


class Slow(Worker):
    """Some of its jobs take many times the lock, which the broker renews: meanwhile most jobs after
    them are finished."""

    def _stall(self) -> None:
        if self._random.random() < 0.1:
            stopping.wait(self._random.uniform(*SLOW_S))


def consume(
    name: str,
    bootstrap: str,
    history: History,
    seed: int,
    *,
    mix: Callable[[random.Random], AckKind] = a_mix,
    kinds: Sequence[type[Worker]] = (Worker,) * CONSUMERS_PER_PROCESS,
) -> None:
    threads = []
    for number, kind in enumerate(kinds):
        work = (f"{name}.{number}", bootstrap, history, random.Random(seed + number), mix, kind)
        threads.append(threading.Thread(target=guarded, args=(consume_one, *work)))
    run_until_stopped(threads)


def consume_one(
    name: str,
    bootstrap: str,
    history: History,
    chooser: random.Random,
    mix: Callable[[random.Random], AckKind],
    kind: type[Worker],
) -> None:
    worker = kind(name, bootstrap, history, chooser)
    while not stopping.is_set():
        worker.turn(mix)
    worker.close()


def lag(bootstrap: str) -> int | None:
    """As the broker reports it; None: it reports none."""
    host, _, port = bootstrap.rpartition(":")
    with Connection(host, int(port)) as connection:
        found = [each.lag for each in describe_share_group_offsets(connection, GROUP)]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == PARTITIONS else None


def drain(name: str, bootstrap: str, history: History, seed: int) -> None:
    """Accept everything until the lag is zero. Otherwise stop when nothing has arrived for a long
    time, or after the time limit."""
    worker = Worker(name, bootstrap, history, random.Random(seed))
    worker.stalls = False
    began = quiet_since = time.monotonic()
    while time.monotonic() < min(quiet_since + QUIET_S, began + LONGEST_DRAIN_S):
        if worker.turn(lambda _: AckKind.ACCEPT):
            quiet_since = time.monotonic()
        elif lag(bootstrap) == 0:
            break
    history.write(Drained(time.monotonic_ns()))
    worker.close()


def read_dead_letters(name: str, bootstrap: str, history: History, seed: int) -> None:
    """Read the whole dead letter topic, which has one partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer({**settings, **QUICK_RECONNECT})
    place = TopicPartition(DEAD_LETTERS, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    deadline, position = time.monotonic() + 60, 0
    while position < end:
        assert time.monotonic() < deadline, f"the dead letters were read to {position} of {end} in a minute"
        for message in consumer.consume(500, 0.2):
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                position = max(position, message.offset())
                continue
            origin = origin_of(message.headers() or ())
            assert origin is not None, "a dead letter without the headers of one"
            assert origin.group_id == GROUP, origin
            is_rejected = origin.message == MESSAGES[DeadLetterCause.REJECTED]
            value = None if message.value() is None else value_of(message)
            record = Record(origin.topic, origin.partition, origin.offset)
            whole = digest_of(message, without=HEADER_PREFIX)
            history.write(
                DeadLetterRead(time.monotonic_ns(), record, origin.delivery_count, is_rejected, value, whole)
            )
            position = max(position, message.offset() + 1)
    consumer.close()


def a_mix_of_keys(chooser: random.Random) -> AckKind:
    """Each release keeps a key waiting for more than a second."""
    return chooser.choices([AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT], [92, 5, 3])[0]


ROLES: dict[str, Callable[[str, str, History, int], None]] = {
    "produce": produce,
    "produce-keys": partial(produce, keys=KEYS),
    "produce-all": partial(produce, keys=FEW_KEYS, headers=True, batch_bytes=BATCH_BYTES, longest_ms=SOON_MS),
    "consume": consume,
    "consume-keys": partial(consume, mix=a_mix_of_keys),
    "consume-slowly": partial(consume, kinds=(Worker, Slow)),
    "drain": drain,
    "read": partial(read, is_purged=True),
    "read-dead-letters": read_dead_letters,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    role, own_name, servers, path, seed_text = sys.argv[1:]
    ROLES[role](own_name, servers, History(Path(path)), int(seed_text))
