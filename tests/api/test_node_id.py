"""`node.id`: the broker has it in every answer, after every restart, and in what it advises."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode, OperatorError
from tests.api.conftest import Client, Connect
from tests.api.test_alter_configs import OK, alter, resource

BROKER, GROUP = 4, 32
NODE = 7


async def describe(client: Client, name: str) -> Any:
    wanted = {"resource_type": BROKER, "resource_name": name, "configuration_keys": ["node.id", "broker.id"]}
    more = {"include_synonyms": False, "include_documentation": False}
    (row,) = (await client.call("describe_configs", 4, resources=[wanted], **more)).results
    return row


async def named(client: Client) -> set[int]:
    """Every id of a node in the answers of the broker."""
    more = {"include_topic_authorized_operations": False}
    wanted = [{"topic_id": None, "name": "t"}]
    await client.call("metadata", 12, topics=wanted, allow_auto_topic_creation=True, **more)
    metadata = await client.call("metadata", 12, topics=None, allow_auto_topic_creation=False, **more)
    ids = {metadata.controller_id, *(each.node_id for each in metadata.brokers)}
    for topic in metadata.topics:
        for each in topic.partitions:
            ids |= {each.leader_id, *each.replica_nodes, *each.isr_nodes}
    pages = await client.call(
        "describe_topic_partitions", 0, topics=[{"name": "t"}], response_partition_limit=10, cursor=None
    )
    ids |= {each.leader_id for each in pages.topics[0].partitions}
    more = {
        "endpoint_type": 1,
        "include_fenced_brokers": True,
        "include_cluster_authorized_operations": False,
    }
    cluster = await client.call("describe_cluster", 2, **more)
    ids |= {cluster.controller_id, *(each.broker_id for each in cluster.brokers)}
    for key_type, key in ((0, "g"), (1, "x")):
        found = await client.call("find_coordinator", 4, key_type=key_type, coordinator_keys=[key])
        ids |= {each.node_id for each in found.coordinators}
    listed = await client.call("list_config_resources", 1, resource_types=[BROKER])
    return ids | {int(each.resource_name) for each in listed.config_resources}


async def is_this_broker(client: Client, node_id: int) -> ErrorCode:
    answer = await client.call(
        "api_versions", 5, client_software_name="test", client_software_version="1",
        cluster_id=client.broker.cluster_id, node_id=node_id,
    )  # fmt: skip
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("name", ["node.id", "broker.id"])
async def test_every_answer_has_it_also_after_a_restart(connect: Connect, name: str) -> None:  # CFG-52 CFG-53
    for config in ({name: str(NODE)}, {}, {"node.id": str(NODE), "broker.id": str(NODE)}):
        async with connect(engine="segment", config=config) as client:
            assert await named(client) == {NODE}
            assert await is_this_broker(client, NODE) is ErrorCode.none
            assert await is_this_broker(client, 1) is ErrorCode.rebootstrap_required
            row = await describe(client, str(NODE))
            assert [(each.name, each.value) for each in row.configs] == [("broker.id", "7"), ("node.id", "7")]
            assert (await describe(client, "1")).error_code == ErrorCode.invalid_request


async def test_without_it_the_broker_is_node_1(connect: Connect) -> None:  # CFG-52
    async with connect(engine="segment") as client:
        assert await named(client) == {1}
        assert await is_this_broker(client, 1) is ErrorCode.none


async def test_another_one_is_refused_later(connect: Connect) -> None:  # CFG-53
    async with connect(engine="segment"):
        pass
    with pytest.raises(OperatorError, match=r"belongs to the broker with node\.id=1, not 7: start with"):
        async with connect(engine="segment", config={"node.id": "7"}):
            pass


async def test_altered_settings_are_those_of_the_node(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The advice names the node, and works."""
    caplog.set_level("INFO")
    bound = "group.share.max.record.lock.duration.ms"
    async with connect(engine="segment", config={"node.id": "7"}) as client:
        changes = resource(BROKER, "7", ("log.retention.ms", 0, "5000"))
        assert await alter(client, changes) == [OK]
        wrong = resource(GROUP, "g", ("share.record.lock.duration.ms", 0, "90000"))
        answer = await client.call("incremental_alter_configs", 1, resources=[wrong], validate_only=False)
        advice = f"kbroker configs set --broker 7 {bound}=90000"
        assert advice in answer.responses[0].error_message
    async with connect(engine="segment", config={"log.retention.ms": "6000"}) as client:
        assert client.broker.config["log.retention.ms"] == 5000
    assert "kbroker configs delete --broker 7 log.retention.ms" in caplog.text
