"""CreateTopics: every version, every refusal, and the state after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.api.replica_assignments import MAX_PARTITIONS_PER_REQUEST
from kbroker.errors import ErrorCode
from tests.api.conftest import Connect, versions


def topic(name: str, partitions: int = 1, replication: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication,
        "assignments": (),
        "configs": (),
        **more,
    }


def configs(**values: str | None) -> list[dict[str, str | None]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


def assigned(*brokers: tuple[int, ...], first: int = 0) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(brokers, start=first)]


@pytest.mark.parametrize("version", versions("create_topics"))
async def test_every_version_creates(connect: Connect, version: int) -> None:
    async with connect() as client:
        wanted = topic("orders", 3, configs=configs(retention_ms="1000"))
        (row,) = (await client.call("create_topics", version, topics=[wanted], validate_only=False)).topics
        assert (row.name, row.error_code, row.error_message) == ("orders", ErrorCode.none, None)
        created = client.broker.topics.by_name("orders")
        assert created is not None
        assert len(created.partitions) == 3
        assert created.configs == {"retention.ms": "1000"}
        if version >= 5:
            assert (row.num_partitions, row.replication_factor, row.topic_config_error_code) == (3, 1, 0)
            found = {config.name: config for config in row.configs}
            assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("1000", 1)
            assert (found["cleanup.policy"].value, found["cleanup.policy"].config_source) == ("delete", 5)
        if version >= 7:
            assert row.topic_id == created.topic_id


async def test_minus_one_means_the_defaults(connect: Connect) -> None:
    async with connect(config={"num.partitions": "4"}) as client:
        (row,) = (
            await client.call("create_topics", 7, topics=[topic("a", -1, -1)], validate_only=False)
        ).topics
        assert (row.error_code, row.num_partitions, row.replication_factor) == (ErrorCode.none, 4, 1)


async def test_an_assignment_to_this_broker(connect: Connect) -> None:
    async with connect() as client:
        wanted = topic("a", -1, -1, assignments=assigned((1,), (1,)))
        (row,) = (await client.call("create_topics", 7, topics=[wanted], validate_only=False)).topics
        assert (row.error_code, row.num_partitions) == (ErrorCode.none, 2)


REFUSED = [
    pytest.param(
        topic("there"), ErrorCode.topic_already_exists, "Topic 'there' already exists.", id="exists"
    ),
    pytest.param(
        topic("a_b"),
        ErrorCode.invalid_topic_exception,
        "Topic 'a_b' collides with existing topic: a.b",
        id="collides",
    ),
    pytest.param(topic("no spaces"), ErrorCode.invalid_topic_exception, None, id="name"),
    pytest.param(topic(".."), ErrorCode.invalid_topic_exception, None, id="dots"),
    pytest.param(topic("x" * 250), ErrorCode.invalid_topic_exception, None, id="long name"),
    pytest.param(topic(""), ErrorCode.invalid_topic_exception, None, id="empty name"),
    pytest.param(topic("x", 0), ErrorCode.invalid_partitions, None, id="no partitions"),
    pytest.param(topic("x", -2), ErrorCode.invalid_partitions, None, id="negative partitions"),
    pytest.param(topic("x", 1, 0), ErrorCode.invalid_replication_factor, None, id="no replicas"),
    pytest.param(topic("x", 1, -2), ErrorCode.invalid_replication_factor, None, id="negative replicas"),
    pytest.param(topic("x", 1, 3), ErrorCode.invalid_replication_factor, None, id="three replicas"),
    pytest.param(topic("x", MAX_PARTITIONS_PER_REQUEST + 1), ErrorCode.policy_violation, None, id="too many"),
    pytest.param(topic("x", 2**31 - 1), ErrorCode.policy_violation, None, id="absurdly many"),
    pytest.param(
        topic("x", configs=configs(no_such_config="1")),
        ErrorCode.invalid_config,
        "Unknown topic config name: no.such.config",
        id="config",
    ),
    pytest.param(
        topic("x", configs=configs(retention_ms="soon")), ErrorCode.invalid_config, None, id="config value"
    ),
    pytest.param(
        topic("x", configs=configs(cleanup_policy="later")), ErrorCode.invalid_config, None, id="policy"
    ),
    pytest.param(
        topic("x", configs=configs(retention_ms=None)),
        ErrorCode.invalid_config,
        "Null value not supported for topic configs: retention.ms",
        id="null config",
    ),
    pytest.param(
        topic("x", 1, -1, assignments=assigned((1,))),
        ErrorCode.invalid_request,
        None,
        id="assignment and count",
    ),
    pytest.param(
        topic("x", -1, 1, assignments=assigned((1,))),
        ErrorCode.invalid_request,
        None,
        id="assignment and replication",
    ),
    pytest.param(
        topic("x", -1, -1, assignments=assigned((2,))),
        ErrorCode.invalid_replica_assignment,
        None,
        id="other broker",
    ),
    pytest.param(
        topic("x", -1, -1, assignments=assigned(())), ErrorCode.invalid_replica_assignment, None, id="nowhere"
    ),
    pytest.param(
        topic("x", -1, -1, assignments=assigned((1, 1))),
        ErrorCode.invalid_replica_assignment,
        None,
        id="twice the broker",
    ),
    pytest.param(
        topic("x", -1, -1, assignments=assigned((1,), first=1)),
        ErrorCode.invalid_replica_assignment,
        None,
        id="starts at 1",
    ),
    pytest.param(
        topic("x", -1, -1, assignments=assigned((1,)) * 2),
        ErrorCode.invalid_replica_assignment,
        None,
        id="a partition twice",
    ),
]


@pytest.mark.parametrize(("wanted", "code", "message"), REFUSED)
# BASE-12, BASE-14, BASE-16
async def test_refused(
    connect: Connect, wanted: dict[str, Any], code: ErrorCode, message: str | None
) -> None:
    async with connect() as client:
        await client.create_topic("there")
        await client.create_topic("a.b")
        before = client.broker.topics.statistics()
        (row,) = (await client.call("create_topics", 7, topics=[wanted], validate_only=False)).topics
        assert row.error_code is code
        assert row.error_message
        assert message in (None, row.error_message)
        assert (row.num_partitions, row.replication_factor, row.configs, row.topic_id) == (-1, -1, (), None)
        assert client.broker.topics.statistics() == before


async def test_a_duplicate_is_refused_and_its_neighbour_is_not(connect: Connect) -> None:  # BASE-13
    async with connect() as client:
        answer = await client.call(
            "create_topics", 7, topics=[topic("a"), topic("b"), topic("a", 2)], validate_only=False
        )
        assert [(row.name, row.error_code) for row in answer.topics] == [
            ("a", ErrorCode.invalid_request),
            ("b", ErrorCode.none),
        ]
        assert [each.name for each in client.broker.topics] == ["b"]


async def test_validate_only_changes_nothing(connect: Connect) -> None:  # BASE-15
    async with connect() as client:
        (row,) = (await client.call("create_topics", 7, topics=[topic("a", 2)], validate_only=True)).topics
        assert (row.error_code, row.num_partitions) == (ErrorCode.none, 2)
        assert row.topic_id is not None
        assert len(client.broker.topics) == 0


async def test_a_topic_is_there_after_a_restart(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        row = await client.create_topic("orders", 3, {"retention.ms": "1000", "segment.bytes": "2097152"})
    async with connect(every_engine) as client:
        found = client.broker.topics.by_name("orders")
        assert found is not None
        assert (found.topic_id, len(found.partitions)) == (row.topic_id, 3)
        assert found.configs == {"retention.ms": "1000", "segment.bytes": "2097152"}
        assert found.config["retention.ms"] == 1000
