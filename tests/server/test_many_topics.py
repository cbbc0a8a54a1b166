"""Thousands of topics are created, listed, and present after a restart. Memory grows no faster than
their number."""

from __future__ import annotations

import time

import pytest

from kbroker.client import admin
from kbroker.errors import ErrorCode
from kbroker.testing.broker import RunningBroker, open_test_broker

AT_ONCE = 500
MOST_BYTES_PER_TOPIC = 16 << 10
"""Measured: 5 to 8 KiB."""
BASE_BYTES = 64 << 20


def create(broker: RunningBroker, names: list[str]) -> None:
    with broker.connect(timeout_s=120) as connection:
        for first in range(0, len(names), AT_ONCE):
            topics = [
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
                for name in names[first : first + AT_ONCE]
            ]
            answer = connection.call("create_topics", topics=topics, timeout=120_000, validate_only=False)
            assert {row.error_code for row in answer.topics} == {ErrorCode.none}


def found(broker: RunningBroker) -> list[tuple[str, int]]:
    with broker.connect() as connection:
        return sorted((topic.name, len(topic.partitions)) for topic in admin.topics(connection))


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.full)])
def test_many_topics_of_one_partition(count: int) -> None:
    names = [f"topic-{number:05}" for number in range(count)]
    expected = [(name, 1) for name in names]
    seconds: dict[str, float] = {}

    def step(name: str, began_s: float) -> float:
        seconds[name] = round(time.monotonic() - began_s, 2)
        return time.monotonic()

    with open_test_broker(storage="segment") as broker:
        at = time.monotonic()
        create(broker, names)
        at = step("create", at)
        assert found(broker) == expected
        at = step("list", at)
        before = broker.anonymous_memory_bytes()
        broker.stop()
        at = step("stop", at)
        broker.start()
        step("start", at)
        assert found(broker) == expected
        after = broker.anonymous_memory_bytes()
    print(f"{count} topics: {seconds} s, {before >> 20} and after the restart {after >> 20} MiB")
    assert max(before, after) < BASE_BYTES + count * MOST_BYTES_PER_TOPIC
