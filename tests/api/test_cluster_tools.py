"""Requests of tools for clusters, in every version: ElectLeaders, AlterPartitionReassignments,
ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum, UpdateFeatures and delegation
tokens. tests/differential compares them with Kafka's answers."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.api.api_versions import FEATURES
from kbroker.errors import ErrorCode
from kbroker.security.principals import user
from tests.api.conftest import Client, Connect, versions


@pytest.mark.parametrize("version", versions("elect_leaders"))
async def test_no_election_is_needed(connect: Connect, version: int) -> None:
    """BASE-80..82"""
    async with connect() as client:
        await client.create_topic("a", 2)

        async def elect(asked: Any) -> Any:
            answer = await client.call("elect_leaders", version, topic_partitions=asked, election_type=0)
            if version >= 1:
                assert answer.error_code is ErrorCode.none
            return answer.replica_election_results

        (result,) = await elect([{"topic": "a", "partitions": [1, 2]}])
        assert result.topic == "a"
        assert [(row.partition_id, row.error_code) for row in result.partition_result] == [
            (1, ErrorCode.election_not_needed),
            (2, ErrorCode.unknown_topic_or_partition),
        ]
        (result,) = await elect(None)
        assert (result.topic, result.partition_result) == ("a", ())


@pytest.mark.parametrize("version", versions("alter_partition_reassignments"))
async def test_replicas_stay_where_they_are(connect: Connect, version: int) -> None:
    """BASE-84..86, BASE-88, BASE-89"""
    async with connect() as client:
        await client.create_topic("a", 3)
        targets = {0: [1], 1: [1, 2], 2: None, 3: [1]}
        rows = [{"partition_index": index, "replicas": each} for index, each in targets.items()]
        answer = await client.call(
            "alter_partition_reassignments", version, topics=[{"name": "a", "partitions": rows}]
        )
        (topic,) = answer.responses
        assert answer.error_code is ErrorCode.none
        assert {row.partition_index: row.error_code for row in topic.partitions} == {
            0: ErrorCode.none,
            1: ErrorCode.invalid_replica_assignment,
            2: ErrorCode.no_reassignment_in_progress,
            3: ErrorCode.unknown_topic_or_partition,
        }
        listed = await client.call("list_partition_reassignments", 0, topics=None)
        assert (listed.error_code, listed.topics) == (ErrorCode.none, ())


@pytest.mark.parametrize("version", versions("alter_replica_log_dirs"))
async def test_there_is_one_directory(connect: Connect, version: int) -> None:
    """BASE-90, BASE-91: its path is that of DescribeLogDirs."""
    async with connect() as client:
        await client.create_topic("a", 2)
        (described,) = (await client.call("describe_log_dirs", 5, topics=None)).results
        topics = [{"name": "a", "partitions": [0, 7]}], [{"name": "a", "partitions": [1]}]
        answer = await client.call(
            "alter_replica_log_dirs",
            version,
            dirs=[
                {"path": described.log_dir, "topics": topics[0]},
                {"path": f"{described.log_dir}/other", "topics": topics[1]},
            ],
        )
        (topic,) = answer.results
        assert {row.partition_index: row.error_code for row in topic.partitions} == {
            0: ErrorCode.none,
            1: ErrorCode.log_dir_not_found,
            7: ErrorCode.unknown_topic_or_partition,
        }


async def quorum(client: Client, version: int) -> Any:
    rows = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = await client.call("describe_quorum", version, topics=rows)
    assert answer.error_code is ErrorCode.none
    return answer


@pytest.mark.parametrize("version", versions("describe_quorum"))
async def test_this_broker_is_the_quorum(connect: Connect, version: int) -> None:
    """BASE-92: the epoch grows with each start."""
    epochs = []
    for _ in range(2):
        async with connect("segment") as client:
            answer = await quorum(client, version)
            (row,) = answer.topics[0].partitions
            (voter,) = row.current_voters
            assert row.leader_id == voter.replica_id == client.broker.node_id
            assert voter.log_end_offset == row.high_watermark > 0
            epochs.append(row.leader_epoch)
            if version >= 2:
                (node,) = answer.nodes
                address = client.broker.host, client.broker.port
                assert (node.node_id, node.listeners[0].host, node.listeners[0].port) == (1, *address)
    assert epochs[0] < epochs[1]


@pytest.mark.parametrize("version", versions("update_features"))
async def test_levels_are_fixed(connect: Connect, version: int) -> None:
    """BASE-95, BASE-96: those that ApiVersions calls final can be requested again."""
    async with connect() as client:
        same = [(name, final) for name, _, _, final in FEATURES]
        for levels, code in ((same, ErrorCode.none), ([*same, ("x", 1)], ErrorCode.invalid_update_version)):
            rows = [
                {"feature": name, "max_version_level": level, "upgrade_type": 1, "allow_downgrade": True}
                for name, level in levels
            ]
            answer = await client.call("update_features", version, feature_updates=rows, validate_only=False)
            assert answer.error_code is code
            if code:
                assert "for feature x. This broker does not support" in answer.error_message
            elif version < 2:
                assert [row.feature for row in answer.results] == [name for name, _ in same]


TOKENS: dict[str, dict[str, Any]] = {
    "create_delegation_token": {
        "renewers": (), "max_lifetime": -1, "owner_principal_type": None, "owner_principal_name": None,
    },
    "renew_delegation_token": {"hmac": b"x", "renew_period": 1000},
    "expire_delegation_token": {"hmac": b"x", "expiry_time_period": 1000},
    "describe_delegation_token": {"owners": None},
}  # fmt: skip


@pytest.mark.parametrize(("api", "version"), [(api, version) for api in TOKENS for version in versions(api)])
async def test_there_are_no_delegation_tokens(connect: Connect, api: str, version: int) -> None:
    """BASE-94"""
    async with connect() as client:
        anonymous = await client.call(api, version, **TOKENS[api])
        assert anonymous.error_code is ErrorCode.delegation_token_request_not_allowed
        client.connection.principal = user("alice")
        answer = await client.call(api, version, **TOKENS[api])
        assert answer.error_code is ErrorCode.delegation_token_auth_disabled
        if api == "create_delegation_token":
            assert (answer.principal_type, answer.principal_name) == ("User", "alice")
