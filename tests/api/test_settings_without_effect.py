"""Topic settings that change only speed or layout are stored, also over a restart; flush.messages
and flush.ms are a promise that only durability `disk` keeps."""

from __future__ import annotations

from typing import get_args

import pytest

from kbroker.broker.options import Durability
from kbroker.errors import ErrorCode
from kbroker.settings.definition import INT_MAX, LONG_MAX
from tests.api.conftest import ENGINES, Client, Connect
from tests.api.test_alter_configs import DELETE, OK, SET, TOPIC, Row, alter, resource
from tests.api.test_create_topics import topic
from tests.api.test_describe_configs import describe

COPIED = {
    "retention.ms": "-1",
    "file.delete.delay.ms": "1000",
    "segment.jitter.ms": str(LONG_MAX),
    "segment.index.bytes": "4",
    "index.interval.bytes": str(INT_MAX),
    "preallocate": "true",
    "leader.replication.throttled.replicas": "*",
    "follower.replication.throttled.replicas": "0:1,1:1",
    "local.retention.ms": "7",
    "local.retention.bytes": "0",
    "remote.copy.lag.ms": "-1",
    "remote.copy.lag.bytes": "5",
    "remote.log.copy.disable": "true",
}
FLUSHES = {"flush.messages": "1", "flush.ms": "0"}
NEVER = {"flush.messages": str(LONG_MAX), "flush.ms": str(LONG_MAX)}


async def own(client: Client, name: str) -> dict[str, str]:
    """The settings that the topic has of its own."""
    result = await describe(client, TOPIC, name)
    return {row.name: row.value for row in result.configs if row.config_source == 1}


async def alters(client: Client, name: str, *changes: tuple[str, str | None]) -> Row:
    """The code and message of an alteration; None deletes."""
    rows = [(key, DELETE if value is None else SET, value) for key, value in changes]
    (found,) = await alter(client, resource(TOPIC, name, *rows))
    return found


@pytest.mark.parametrize("engine", ENGINES)
async def test_all_are_there_after_a_restart(connect: Connect, engine: str) -> None:
    """CFG-45, CFG-46: a topic that a tool copies keeps what it had, and works."""
    async with connect(engine=engine) as client:
        await client.create_topic("a", configs={**COPIED, **FLUSHES})
        assert await own(client, "a") == {**COPIED, **FLUSHES}
        assert await client.append("a", 1, 2) == 0
    async with connect(engine=engine) as client:
        assert await own(client, "a") == {**COPIED, **FLUSHES}
        found = client.broker.topics.by_name("a")
        assert found is not None
        assert found.config["retention.ms"] == -1
        assert await client.append("a", 3) == 2


async def test_they_are_altered_and_explained(connect: Connect) -> None:
    """CFG-45: and DescribeConfigs says why they have no effect."""
    async with connect() as client:
        await client.create_topic("a")
        assert await alters(client, "a", ("file.delete.delay.ms", "5")) == OK
        assert await own(client, "a") == {"file.delete.delay.ms": "5"}
        result = await describe(client, TOPIC, "a", ("file.delete.delay.ms",))
        assert result.configs[0].documentation == (
            "Delay of the removal of files. No effect here, because removed segments are gone at once."
        )
        assert await alters(client, "a", ("file.delete.delay.ms", None)) == OK
        result = await describe(client, TOPIC, "a", ("file.delete.delay.ms",))
        assert (result.configs[0].value, result.configs[0].config_source) == ("60000", 5)


@pytest.mark.parametrize(("name", "value"), FLUSHES.items())
async def test_without_syncs_nothing_promises_them(connect: Connect, name: str, value: str) -> None:
    """CFG-46: with durability `os`. The value that promises nothing is taken."""
    message = (
        f"Invalid value {value} for configuration {name}: with --durability os the broker syncs all logs at "
        f"an interval of its own; start it with --durability disk, which syncs every write, or leave {name} "
        "out"
    )
    async with connect(durability="os") as client:
        for dry in (True, False):
            rows = [topic("a", configs=[{"name": name, "value": value}])]
            (row,) = (await client.call("create_topics", 7, topics=rows, validate_only=dry)).topics
            assert (row.error_code, row.error_message) == (ErrorCode.invalid_config, message)
        await client.create_topic("a", configs=NEVER)
        assert await alters(client, "a", (name, value)) == (ErrorCode.invalid_config, message)
        assert await own(client, "a") == NEVER


async def test_a_start_without_syncs_names_the_topics(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """CFG-46, CFG-47: such a topic keeps its settings, and others of it can be altered."""
    names = [f"t{number:02}" for number in range(12)]
    for durability in get_args(Durability):
        async with connect(engine="segment", durability=durability) as client:
            if durability == "disk":
                await client.create_topic("plain", configs={**COPIED, **NEVER})
                for name in names:
                    await client.create_topic(name, configs=FLUSHES)
                continue
            assert await own(client, "t00") == FLUSHES
            assert await alters(client, "t00", ("retention.ms", "9"), ("flush.ms", "0")) == OK
            code, _ = await alters(client, "t00", ("flush.ms", "1"))
            assert code is ErrorCode.invalid_config
            assert await alters(client, "t00", ("flush.ms", None), ("flush.messages", None)) == OK
            assert await own(client, "t00") == {"retention.ms": "9"}
    (line,) = [each.getMessage() for each in caplog.records if each.name.endswith("flushes")]
    assert line.startswith("flush.messages or flush.ms of these topics has no effect with --durability os")
    assert f": {', '.join(names[:10])} and 2 more. Start with --durability disk" in line
    assert "plain" not in line
