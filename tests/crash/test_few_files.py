"""More partitions than the process may open files (`ulimit -n`): one request writes to all of them,
and after kill -9 everything that was confirmed is there, on every engine.

Half of the limit belongs to connections (server/connection_limits.py). A part of the runs occupies
that half.
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from kbroker.client import admin
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch, iter_headers
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine

FILES = 100
FEW_FILES = ["sh", "-c", f'ulimit -n {FILES} && exec "$0" -m kbroker "$@"', sys.executable]
PARTITIONS = 3 * FILES
CONFIG = {"retention.ms": "-1"}
ROLLS = {"segment.ms": "1"}
"""A segment for each batch."""
_TIMEOUT_MS = 60_000
_NO_EPOCH = -1
_RECORDS_START = 12
"""Of a batch: what its CRC and the CRC itself cover begins after the offset and the length."""


def batch(partition: int, number: int) -> bytes:
    """Number `number` of a partition, with one record; their sizes differ."""
    size = 100 + (partition * 37 + number * 911) % 3000
    return build_batch(
        [Record(0, 1_700_000_000_000 + 10 * number, b"%d %d" % (partition, number), bytes(size))]
    )


def produce(connection: Connection, batches: Mapping[int, bytes]) -> set[ErrorCode]:
    """One request; the codes of its rows."""
    rows = [{"index": index, "records": records} for index, records in batches.items()]
    answer = connection.call(
        "produce", 12, transactional_id=None, acks=-1, timeout=_TIMEOUT_MS,
        topic_data=[{"name": "orders", "partition_data": rows}],
    )  # fmt: skip
    return {row.error_code for row in answer.responses[0].partition_responses}


def fetch(connection: Connection, offsets: Mapping[int, int]) -> list[list[bytes]]:
    """One request for these partitions: what follows the offset of each, as batches without offset,
    length and leader epoch."""
    rows = [
        {
            "partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20,
            "current_leader_epoch": _NO_EPOCH, "log_start_offset": -1, "last_fetched_epoch": _NO_EPOCH,
        }
        for partition, offset in offsets.items()
    ]  # fmt: skip
    answer = connection.call(
        "fetch", 12, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 25, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[{"topic": "orders", "partitions": rows}],
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    found = []
    for row in answer.responses[0].partitions:
        assert row.error_code is ErrorCode.none, row.partition_index
        data = memoryview(row.records or b"")
        found.append([body(data[at : at + header.size_bytes]) for at, header in iter_headers(data)])
    return found


def read(connection: Connection, partition: int) -> list[bytes]:
    """The batches of a partition."""
    found: list[bytes] = []
    while True:
        (more,) = fetch(connection, {partition: len(found)})
        if not more:
            return found
        found += more


def body(data: bytes | memoryview) -> bytes:
    """Without the offset, the length and the leader epoch, which the broker sets."""
    return bytes(data[16:])


def check(broker: RunningBroker, expected: Mapping[int, list[bytes]]) -> None:
    with broker.connect(timeout_s=120) as connection:
        assert all(fetch(connection, dict.fromkeys(expected, 0)))
        for partition, batches in expected.items():
            assert read(connection, partition) == [body(each) for each in batches], partition


def occupy(broker: RunningBroker, sockets: ExitStack) -> None:
    """Take nearly all connections that the limit of open files leaves."""
    for _ in range(FILES // 2 - 3):
        sockets.enter_context(socket.create_connection((broker.host, broker.port), timeout=60))


def run(engine: str, durability: str, *, rounds: int, rolls: bool, is_crowded: bool) -> None:
    chooser = random.Random(f"{engine} {durability} {rolls}")
    expected: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    with open_test_broker(storage=require_engine(engine), durability=durability, command=FEW_FILES) as broker:
        with broker.connect(timeout_s=120) as connection:
            config = {**CONFIG, **(ROLLS if rolls else {})}
            admin.create_topic(connection, "orders", partitions=PARTITIONS, config=config)
        for _ in range(rounds):
            with ExitStack() as sockets:
                if is_crowded:
                    occupy(broker, sockets)
                with broker.connect(timeout_s=120) as connection:
                    for chosen in (range(PARTITIONS), chooser.sample(range(PARTITIONS), 2 * FILES)):
                        sent = {partition: batch(partition, len(expected[partition])) for partition in chosen}
                        assert produce(connection, sent) == {ErrorCode.none}
                        for partition, data in sent.items():
                            expected[partition].append(data)
            check(broker, expected)
            broker.kill9()
            broker.start()
            check(broker, expected)
        broker.restart()
        check(broker, expected)


@pytest.mark.parametrize(
    "engine",
    [each if each == "segment" else pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES],
)
def test_more_partitions_than_files(engine: str) -> None:
    """Regression: on segment, one such request failed the log store until a restart, and a
    directory with more partitions than files never started again after kill -9."""
    run(engine, "disk", rounds=1, rolls=False, is_crowded=False)


@pytest.mark.full
@pytest.mark.parametrize("is_crowded", [False, True])
@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_more_partitions_than_files_over_many_rounds(durability: str, rolls: bool, is_crowded: bool) -> None:
    run("segment", durability, rounds=4, rolls=rolls, is_crowded=is_crowded)


@pytest.mark.full
@pytest.mark.parametrize("engine", [each for each in DURABLE_ENGINES if each != "segment"])
def test_other_engines_beside_many_connections(engine: str) -> None:
    run(engine, "disk", rounds=2, rolls=True, is_crowded=True)
