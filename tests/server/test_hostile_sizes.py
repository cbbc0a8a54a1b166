"""Requests of hostile sizes: no turn of the loop is long, no answer is larger than its bound, and a
request beyond its bound ends its connection."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kbroker.api import APIS
from kbroker.client.broker_process import RunningBroker
from kbroker.client.rpc import Connection
from kbroker.client.unreachable import ConnectionClosed
from kbroker.testing.broker import open_test_broker
from tests.server.longest_turn import Turns, measured_broker

MANY = 5000
MOST_WORK = 120_000
"""Calls and memory blocks of a turn: that of 4096 decoded rows, or of 256 rows that are built and
packed."""
KEYS = {api.module: api.key for api in APIS.values()}
Values: TypeAlias = dict[str, Any]


def named(name: str) -> list[str]:
    return [f"{name}-{number}" for number in range(MANY)]


def rows(index: str, **row: Any) -> list[Values]:
    return [{index: number, **row} for number in range(MANY)]


HOSTILE: dict[str, tuple[str, int, Callable[[], Values]]] = {
    "unknown topics": (
        "metadata", 12,
        lambda: {
            "topics": [{"topic_id": None, "name": each} for each in named("t")],
            "allow_auto_topic_creation": False, "include_topic_authorized_operations": False,
        },
    ),
    "unknown topics with operations": (
        "metadata", 8,
        lambda: {
            "topics": [{"name": each} for each in named("t")], "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True, "include_cluster_authorized_operations": False,
        },
    ),
    "groups": (
        "describe_groups", 0, lambda: {"groups": named("g"), "include_authorized_operations": False},
    ),
    "one group": (
        "describe_groups", 5, lambda: {"groups": ["g"] * MANY, "include_authorized_operations": False},
    ),
    "consumer groups": (
        "consumer_group_describe", 1,
        lambda: {"group_ids": named("g"), "include_authorized_operations": False},
    ),
    "share groups": (
        "share_group_describe", 1,
        lambda: {"group_ids": named("g"), "include_authorized_operations": False},
    ),
    "offsets": (
        "list_offsets", 7,
        lambda: {
            "replica_id": -1, "isolation_level": 0,
            "topics": [{"name": "t", "partitions": rows("partition_index", timestamp=-1)}],
        },
    ),
    "offsets of topics": (
        "list_offsets", 7,
        lambda: {
            "replica_id": -1, "isolation_level": 0,
            "topics": [
                {"name": each, "partitions": rows("partition_index", timestamp=-1)[:1]}
                for each in named("t")
            ],
        },
    ),
    "leader epochs": (
        "offset_for_leader_epoch", 4,
        lambda: {
            "replica_id": -1,
            "topics": [{"topic": "t", "partitions": rows("partition", leader_epoch=0)}],
        },
    ),
    "committed offsets of groups": (
        "offset_fetch", 8,
        lambda: {
            "groups": [{"group_id": each, "topics": None} for each in named("g")], "require_stable": False,
        },
    ),
    "committed offsets of partitions": (
        "offset_fetch", 8,
        lambda: {
            "groups": [
                {"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(MANY))}]}
            ],
            "require_stable": False,
        },
    ),
    "settings": (
        "describe_configs", 4,
        lambda: {
            "resources": [
                {"resource_type": 32, "resource_name": each, "configuration_keys": None}
                for each in named("g")[:500]
            ],
        },
    ),
    "keys of settings": (
        "describe_configs", 4,
        lambda: {
            "resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": named("key")}],
        },
    ),
    "coordinators": ("find_coordinator", 5, lambda: {"key_type": 0, "coordinator_keys": named("g")}),
    "transactional ids": ("describe_transactions", 0, lambda: {"transactional_ids": named("t")}),
    "producers": (
        "describe_producers", 0,
        lambda: {"topics": [{"name": "t", "partition_indexes": list(range(MANY))}]},
    ),
    "topics and partitions": (
        "describe_topic_partitions", 0,
        lambda: {"topics": [{"name": each} for each in named("t")], "response_partition_limit": 2000,
                 "cursor": None},
    ),
    "log directories": (
        "describe_log_dirs", 4,
        lambda: {"topics": [{"topic": each, "partitions": [0]} for each in named("t")]},
    ),
    "users": (
        "describe_user_scram_credentials", 0, lambda: {"users": [{"name": each} for each in named("u")]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Turns]]:
    data_dir: Path = tmp_path_factory.mktemp("hostile") / "data"
    with measured_broker(data_dir) as (address, turns), Connection(*address, timeout_s=120) as connection:
        yield connection, turns


@pytest.mark.parametrize("name", HOSTILE)
def test_no_turn_is_long(measured: tuple[Connection, Turns], name: str) -> None:
    connection, turns = measured
    api, version, make = HOSTILE[name]
    frame = connection.encode(api, version, make())
    connection.send_raw(frame)  # The first imports modules.
    assert connection.read_frame()
    turns.begin()
    connection.send_raw(frame)
    answer = connection.read_frame()
    print(f"{name}: {len(frame)} bytes, answered with {len(answer)}; longest turn {turns.longest}")
    assert turns.longest < MOST_WORK


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(
        storage="segment", durability="os", config={"group.initial.rebalance.delay.ms": "0"}
    ) as running:
        yield running


def join(connection: Connection, group_id: str, metadata_bytes: int) -> None:
    timeouts = {"session_timeout": 60_000, "rebalance_timeout": 60_000}
    protocols = [{"name": "range", "metadata": bytes(metadata_bytes)}]
    asked = {"group_id": group_id, "member_id": "", "protocol_type": "consumer", "protocols": protocols}
    joined = connection.call("join_group", 3, **timeouts, **asked)
    assert joined.error_code == 0
    member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    connection.call("sync_group", 3, group_id=group_id, **member, group_instance_id=None, assignments=())


def test_one_group_many_times(broker: RunningBroker) -> None:
    """A group of any size is described, and again while the answer has room."""
    metadata_bytes = 4 << 20
    with broker.connect(timeout_s=120) as connection:
        join(connection, "large", metadata_bytes)

        def ask(times: int) -> bytes:
            asked = {"groups": ["large"] * times, "include_authorized_operations": False}
            connection.send_raw(connection.encode("describe_groups", 5, asked))
            return connection.read_frame()

        assert len(ask(15)) > 15 * metadata_bytes
        with pytest.raises(ConnectionClosed):
            ask(200)
    lines = [line for line in broker.logs().splitlines() if "the answer to describe_groups would" in line]
    assert len(lines) == 1
    assert "more than kbroker.response.max.bytes=67108864" in lines[0]


def test_settings_of_one_topic_many_times(broker: RunningBroker) -> None:
    broker.create_topic("described")
    resources = [{"resource_type": 2, "resource_name": "described", "configuration_keys": None}] * 100_000
    with broker.connect(timeout_s=120) as connection:
        asked = {"resources": resources, "include_synonyms": True, "include_documentation": True}
        connection.send_raw(connection.encode("describe_configs", 4, asked))
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
    assert "the answer to describe_configs would have" in broker.logs()
    assert broker.anonymous_memory_bytes() < 400 << 20


@pytest.mark.parametrize("version", [4, 12])
def test_a_request_beyond_its_rows(broker: RunningBroker, version: int) -> None:
    count = 250_001
    row = struct.pack(">h", 1) + b"t" if version == 4 else bytes(16) + b"\x02t\x00"
    length = struct.pack(">i", count) if version == 4 else b"\x92\xa1\x0f"
    head = struct.pack(">hhih", KEYS["metadata"], version, 7, -1) + (b"\x00" if version == 12 else b"")
    frame = head + length + row * count + b"\x00\x00\x00"
    with broker.connect(timeout_s=120) as connection:
        connection.send_raw(struct.pack(">i", len(frame)) + frame)
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
    assert "is refused: its bound is 250000 rows and 67108864 bytes" in broker.logs()


def test_a_request_beyond_its_bytes(broker: RunningBroker) -> None:
    frame = struct.pack(">hhih", KEYS["heartbeat"], 4, 7, -1) + bytes(2 << 20)
    with broker.connect(timeout_s=60) as connection:
        connection.send_raw(struct.pack(">i", len(frame)) + frame)
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
        # One line a minute for each API.
    assert "heartbeat of 2097162 bytes is refused: its bound is 100 rows" in broker.logs()
