"""kafka-configs.sh of Apache Kafka sets, shows and removes quotas."""

from __future__ import annotations

import pytest

from kbroker.client import quota_admin
from kbroker.client.rpc import Connection
from kbroker.testing.broker import RunningBroker
from tests.kafka_tools.java import CONFIGS, MISSING, Tool, run

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


def quotas(broker: RunningBroker) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    with Connection(broker.host, broker.port) as connection:
        return {each.entity: dict(each.values) for each in quota_admin.describe(connection)}


@pytest.mark.parametrize(
    ("chosen", "entity", "limits"),
    [
        (["--entity-type", "users", "--entity-name", "alice"], {"user": "alice"},
         {"producer_byte_rate": 1024.0, "request_percentage": 12.5}),
        (["--entity-type", "users", "--entity-default"], {"user": None}, {"consumer_byte_rate": 2048.0}),
        (["--entity-type", "clients", "--entity-name", "app"], {"client-id": "app"},
         {"consumer_byte_rate": 2048.0}),
        (["--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default"],
         {"client-id": None, "user": "alice"}, {"producer_byte_rate": 1024.0}),
        (["--entity-type", "ips", "--entity-name", "10.0.0.1"], {"ip": "10.0.0.1"},
         {"connection_creation_rate": 5.0}),
        (["--entity-type", "ips", "--entity-default"], {"ip": None}, {"connection_creation_rate": 5.0}),
    ],
)  # fmt: skip
def test_quotas_by_kafka_configs(
    chosen: list[str],
    entity: dict[str, str | None],
    limits: dict[str, float],
    broker: RunningBroker,
    tool: Tool,
) -> None:
    key = tuple(entity.items())
    text = ",".join(f"{name}={value:g}" for name, value in limits.items())
    assert any(
        "Completed updating" in line for line in tool(CONFIGS, "--alter", *chosen, "--add-config", text).lines
    )
    assert quotas(broker)[key] == limits
    described = " ".join(tool(CONFIGS, "--describe", *chosen).lines)
    assert all(f"{name}={value}" in described for name, value in limits.items()), described
    tool(CONFIGS, "--alter", *chosen, "--delete-config", ",".join(limits))
    assert key not in quotas(broker)


def test_what_would_not_be_enforced_is_refused(broker: RunningBroker) -> None:
    arguments = (
        "--entity-type",
        "users",
        "--entity-name",
        "bob",
        "--add-config",
        "controller_mutation_rate=5",
    )
    ended = run(CONFIGS, "--bootstrap-server", broker.bootstrap, "--alter", *arguments)
    assert ended.code == 1
    assert "controller_mutation_rate is not supported" in ended.errors
