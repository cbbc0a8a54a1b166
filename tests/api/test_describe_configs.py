"""DescribeConfigs and ListConfigResources: the configs of topics, groups and the broker."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.settings.altering import CONFIGS, Scope
from tests.api.conftest import Client, Connect, versions
from tests.api.test_alter_configs import (
    ASSIGNMENT_INTERVAL,
    BROKER,
    GROUP,
    LOGGER,
    METRICS,
    OK,
    TOPIC,
    alter,
    resource,
)


async def describe(
    client: Client,
    kind: int,
    name: str,
    keys: tuple[str, ...] | None = None,
    version: int = 4,
    synonyms: bool = True,
    docs: bool = True,
) -> Any:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = await client.call(
        "describe_configs", version, resources=[asked], include_synonyms=synonyms, include_documentation=docs
    )
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", versions("describe_configs"))
async def test_every_version_describes_a_topic(connect: Connect, version: int) -> None:
    async with connect(config={"log.segment.bytes": "2097152"}) as client:
        await client.create_topic("a", configs={"retention.ms": "1000"})
        result = await describe(client, TOPIC, "a", version=version)
        assert result.error_code is ErrorCode.none
        rows = {row.name: row for row in result.configs}
        assert set(rows) == {each.name for each in CONFIGS[Scope.TOPIC].values() if not each.hidden}
        retention, segment = rows["retention.ms"], rows["segment.bytes"]
        assert (retention.value, retention.config_source, retention.read_only, retention.is_sensitive) == (
            "1000",
            1,
            False,
            False,
        )
        strongest = retention.synonyms[0]
        assert (strongest.name, strongest.value, strongest.source) == ("retention.ms", "1000", 1)
        assert (segment.value, segment.config_source) == ("2097152", 4)
        if version >= 3:
            assert (retention.config_type, rows["cleanup.policy"].config_type) == (5, 7)
            assert retention.documentation


async def test_without_synonyms_and_documentation(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        result = await describe(client, TOPIC, "a", synonyms=False, docs=False)
        assert {(row.synonyms, row.documentation) for row in result.configs} == {((), None)}


async def test_keys_choose_rows_and_unknown_ones_give_none(connect: Connect) -> None:  # CFG-37
    async with connect() as client:
        await client.create_topic("a")
        result = await describe(client, TOPIC, "a", ("retention.ms", "no.such"))
        assert [row.name for row in result.configs] == ["retention.ms"]
        assert len((await describe(client, TOPIC, "a", ())).configs) > 10


async def test_a_group_need_not_exist(connect: Connect) -> None:  # CFG-37, CFG-40
    async with connect() as client:
        assert await alter(client, resource(GROUP, "g", ("share.record.lock.duration.ms", "20000"))) == [OK]
        lock = ("share.record.lock.duration.ms",)
        own = (await describe(client, GROUP, "g", lock)).configs[0]
        assert (own.value, own.config_source) == ("20000", 8)
        other = (await describe(client, GROUP, "nobody", lock)).configs[0]
        assert (other.value, other.config_source) == ("30000", 5)
        assert [(each.name, each.source) for each in other.synonyms] == [
            ("group.share.record.lock.duration.ms", 5)
        ]


async def test_a_group_setting_that_the_broker_does_not_have(connect: Connect) -> None:  # CFG-37
    async with connect() as client:
        name = "share.auto.offset.reset"
        (row,) = (await describe(client, GROUP, "g", (name,))).configs
        assert [(each.name, each.value, each.source) for each in row.synonyms] == [(name, "latest", 5)]
        assert await alter(client, resource(GROUP, "g", (name, "earliest"))) == [OK]
        (row,) = (await describe(client, GROUP, "g", (name,))).configs
        assert [(each.name, each.value, each.source) for each in row.synonyms] == [
            (name, "earliest", 8),
            (name, "latest", 5),
        ]


async def test_the_broker_and_all_brokers(connect: Connect) -> None:
    async with connect(config={"num.partitions": "3"}) as client:
        assert (await describe(client, BROKER, "")).configs == ()
        assert await alter(client, resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7"))) == [OK]
        rows = {row.name: row for row in (await describe(client, BROKER, "1")).configs}
        assert set(rows) == {each.name for each in CONFIGS[Scope.BROKER].values() if not each.hidden}
        assert (
            rows["num.partitions"].value,
            rows["num.partitions"].config_source,
            rows["num.partitions"].read_only,
        ) == ("3", 4, True)
        interval = rows[ASSIGNMENT_INTERVAL]
        assert (interval.value, interval.config_source, interval.read_only) == ("7", 3, False)
        (default,) = (await describe(client, BROKER, "")).configs
        assert (default.name, default.value, default.config_source) == (ASSIGNMENT_INTERVAL, "7", 3)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "unknown", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "no spaces", ErrorCode.invalid_topic_exception),
        (TOPIC, "", ErrorCode.invalid_topic_exception),
        (GROUP, "", ErrorCode.invalid_request),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "x", ErrorCode.invalid_request),
        (LOGGER, "2", ErrorCode.invalid_request),
        (METRICS, "m", ErrorCode.invalid_request),
        (99, "x", ErrorCode.invalid_request),
    ],
)
async def test_refused(connect: Connect, kind: int, name: str, code: ErrorCode) -> None:  # CFG-37
    async with connect() as client:
        result = await describe(client, kind, name)
        assert result.error_code is code
        assert result.error_message
        assert result.configs == ()


async def listed(client: Client, *types: int, version: int = 1) -> tuple[ErrorCode, list[tuple[int, str]]]:
    answer = await client.call("list_config_resources", version, resource_types=types)
    return answer.error_code, [
        (row.resource_type if version else METRICS, row.resource_name) for row in answer.config_resources
    ]


async def test_resources_that_have_settings(connect: Connect) -> None:  # CFG-39
    async with connect() as client:
        for name in ("b", "a"):
            await client.create_topic(name)
        await alter(client, resource(GROUP, "g", ("share.auto.offset.reset", "earliest")))
        everything = [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1"), (LOGGER, "1"), (GROUP, "g")]
        assert await listed(client) == (ErrorCode.none, everything)
        assert await listed(client, TOPIC, BROKER, LOGGER, METRICS, GROUP) == (ErrorCode.none, everything)
        assert await listed(client, GROUP) == (ErrorCode.none, [(GROUP, "g")])
        assert await listed(client, GROUP, 7) == (ErrorCode.unsupported_version, [])
        assert await listed(client, version=0) == (ErrorCode.none, [])
