"""Lines of the broker's log appear and disappear with the levels that clients set (CFG-61)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from kbroker.client.rpc import Connection
from kbroker.testing.broker import RunningBroker, open_test_broker

LOGGER_RESOURCE = 8
SET, DELETE = 0, 1
TALKER = "kbroker.groups.consumer.coordinator"
"""It logs each heartbeat of a consumer at DEBUG."""
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker() as running:
        running.create_topic("orders")
        yield running


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[Connection]:
    with broker.connect() as opened:
        yield opened


def alter(connection: Connection, logger: str, operation: int, level: str | None = None) -> None:
    change = {"name": logger, "config_operation": operation, "value": level}
    resource = {"resource_type": LOGGER_RESOURCE, "resource_name": "1", "configs": [change]}
    answer = connection.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    (row,) = answer.responses
    assert row.error_code == 0, row


def lines_of_a_heartbeat(broker: RunningBroker, connection: Connection) -> list[str]:
    """What the broker logs when a new member joins a new group. The lines precede the answer."""
    group = f"group-{next(_numbers)}"
    answer = connection.call(
        "consumer_group_heartbeat",
        1,
        group_id=group,
        member_id=f"member-of-{group}",
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=60_000,
        subscribed_topic_names=["orders"],
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=[],
    )
    assert answer.error_code == 0, answer
    return [line for line in broker.logs().splitlines() if group in line]


@pytest.mark.parametrize("logger", [TALKER, "kbroker.groups", "root"])
def test_debug_lines_come_and_go_with_the_level(
    broker: RunningBroker, connection: Connection, logger: str
) -> None:
    """Of the logger itself, of a package above it, or of the root, which cannot be deleted."""
    assert lines_of_a_heartbeat(broker, connection) == []
    alter(connection, logger, SET, "DEBUG")
    (line,) = lines_of_a_heartbeat(broker, connection)
    assert f" DEBUG   {TALKER}: group " in line
    if logger == "root":
        alter(connection, logger, SET, "INFO")
    else:
        alter(connection, logger, DELETE)
    assert lines_of_a_heartbeat(broker, connection) == []


def test_a_level_of_its_own_is_stronger(broker: RunningBroker, connection: Connection) -> None:
    alter(connection, "kbroker.groups", SET, "DEBUG")
    alter(connection, TALKER, SET, "ERROR")
    assert lines_of_a_heartbeat(broker, connection) == []
    alter(connection, TALKER, DELETE)
    assert len(lines_of_a_heartbeat(broker, connection)) == 1
    alter(connection, "kbroker.groups", DELETE)
    assert lines_of_a_heartbeat(broker, connection) == []
