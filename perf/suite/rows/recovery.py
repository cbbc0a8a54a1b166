"""The row of a start with much share state: after kill -9, all of it is needed at once."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from perf.measuring.processes import cost_so_far
from perf.suite.rows import Row, Run
from perf.workloads.fill import fill

GROUPS, PARTITIONS = 10, 1_000
_TOPIC = "spread"
_RECORD_BYTES = 100
_POLL_S = 0.2
_TIMEOUT_S = 60.0


class _Wanted(NamedTuple):
    """The record of each partition that each group waits for: the one at this offset."""

    bootstrap: str
    offset: int


def _recovery(run: Run) -> dict[str, float]:
    """Measures from the creation of the process until each group has received, from every
    partition, the record after the acknowledged one."""
    with run.own_broker() as broker, _readers() as readers:
        broker.start()
        broker.create_topic(_TOPIC, partitions=PARTITIONS)
        for number in range(GROUPS):
            broker.set_group_config(_group(number), {"share.auto.offset.reset": "earliest"})
        _one_for_each_partition(broker.bootstrap)
        _all_read(readers, _Wanted(broker.bootstrap, 0))
        _one_for_each_partition(broker.bootstrap)
        broker.kill()
        began = time.monotonic()
        broker.start()
        ready = time.monotonic()
        done = _all_read(readers, _Wanted(broker.bootstrap, 1))
        return {
            "ms": (done - began) * 1000,
            "ready_ms": (ready - began) * 1000,
            **cost_so_far(broker.pid)._asdict(),
        }


def _group(number: int) -> str:
    return f"recovered-{number}"


def _one_for_each_partition(bootstrap: str) -> None:
    fill(bootstrap, _TOPIC, PARTITIONS, _RECORD_BYTES, batch_records=1, partitions=PARTITIONS)


@contextmanager
def _readers() -> Iterator[Connection]:
    """The consumers of all groups, in one process, whose imports are done before the
    measurement."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.kill()
        process.join()
        here.close()


def _all_read(readers: Connection, wanted: _Wanted) -> float:
    """The time at which the last record arrived, on the machine's monotonic clock. Raises
    RuntimeError."""
    readers.send(wanted)
    try:
        said = readers.recv()
    except EOFError:
        raise RuntimeError("the consumers' process ended") from None
    if isinstance(said, str):
        raise RuntimeError(said)
    assert isinstance(said, float)
    return said


def _serve(parent: Connection) -> None:
    with ThreadPoolExecutor(GROUPS) as pool:
        while True:
            wanted = parent.recv()
            try:
                parent.send(max(pool.map(_read, [wanted] * GROUPS, range(GROUPS))))
            except Exception as error:  # the parent reports any error
                parent.send(f"{type(error).__name__}: {error}")


def _read(wanted: _Wanted, number: int) -> float:
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer(
        {"bootstrap.servers": wanted.bootstrap, "group.id": _group(number), "log_level": 0}
    )
    consumer.subscribe([_TOPIC])
    missing, until = set(range(PARTITIONS)), time.monotonic() + _TIMEOUT_S
    while missing:
        if time.monotonic() > until:
            raise TimeoutError(
                f"no records of {len(missing)} of {PARTITIONS} partitions within {_TIMEOUT_S:.0f} s"
            )
        missing -= {
            message.partition() for message in consumer.poll(_POLL_S) if message.offset() == wanted.offset
        }
    done = time.monotonic()
    consumer.commit_sync()
    consumer.close()
    return done


ROWS = (
    Row(
        "recovery-10000", "kill -9, start, 10 000 share-partitions", "scale", _recovery,
        f"{GROUPS} groups with one consumer each on {PARTITIONS} partitions: from the start of the process "
        "until each has received the next record "
        "of each partition.",
        candidates=frozenset(("segment-disk", "lmdb-disk", "rocksdb-disk", "kafka")), rounds=2, takes_s=16,
        warms=False,
    ),
)  # fmt: skip
