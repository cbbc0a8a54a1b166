"""A name whose creation was refused for its settings is not created automatically (BASE-72):
neither by Metadata nor for dead letters."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from kbroker.broker.logs.auto_creation import MAX_NAMES
from kbroker.errors import ErrorCode
from kbroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from tests.api import authorization_world
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import (
    ENABLED,
    QUEUE,
    all_done,
    counters_of,
    letters_of,
    offsets_of,
    prepare_dead_letters,
    reject,
    set_up_broker,
    until,
)
from tests.api.test_create_topics import topic
from tests.api.test_dead_letters import CREATE

FORBIDDEN = {"min.insync.replicas": "2", "retention.ms": "-1"}
HOUR_S = 3600


async def create(client: Client, *names: str, dry: bool = False, **fields: Any) -> list[ErrorCode]:
    rows = [topic(name, **fields) for name in names]
    answer = await client.call("create_topics", 7, topics=rows, validate_only=dry)
    return [row.error_code for row in answer.topics]


async def refuse(client: Client, *names: str, dry: bool = False, **more: Any) -> None:
    configs = [{"name": name, "value": value} for name, value in FORBIDDEN.items()]
    codes = await create(client, *names, dry=dry, configs=configs, **more)
    assert codes == [ErrorCode.invalid_config] * len(names)


async def ask(client: Client, *names: str, version: int = 12) -> list[ErrorCode]:
    """Metadata that may create topics."""
    rows = [{"name": name, **({"topic_id": None} if version >= 10 else {})} for name in names]
    more = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
    flags = more if version >= 8 else {}
    answer = await client.call("metadata", version, topics=rows, allow_auto_topic_creation=True, **flags)
    return [row.error_code for row in answer.topics]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about such names since the last time."""
    found = [each.getMessage() for each in caplog.records if each.name.endswith("auto_creation")]
    caplog.clear()
    return found


def prevented(client: Client) -> int:
    return client.broker.statistics().missing_topics.creation.prevented


@pytest.mark.parametrize("version", [4, 9, 12])
async def test_a_topic_does_not_get_default_settings_instead(
    connect: Connect, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    """BASE-72: the log line names topic, setting and the way out, once."""
    async with connect() as client:
        await refuse(client, "orders")
        for _ in range(3):
            codes = await ask(client, "orders", "others", version=version)
            assert codes == [ErrorCode.unknown_topic_or_partition, ErrorCode.none]
        assert client.broker.topics.by_name("orders") is None
        assert prevented(client) == 3
        (line,) = lines(caplog)
        assert line.startswith("client 'test' at 127.0.0.1 asks for topic orders, which is not created")
        assert "Invalid value 2 for configuration min.insync.replicas: kbroker takes only 1 here" in line
        assert "(kbroker topics create orders --config NAME=VALUE ...)" in line
        assert "config.properties.exclude, replication.factor=1" in line


async def test_until_a_creation_succeeds(connect: Connect) -> None:
    """BASE-72: the topic then has the settings of that creation."""
    async with connect() as client:
        await refuse(client, "orders")
        assert await create(client, "orders", dry=True) == [ErrorCode.none]
        assert await ask(client, "orders") == [ErrorCode.unknown_topic_or_partition]
        await client.create_topic("orders", configs={"retention.ms": "-1"})
        assert await ask(client, "orders") == [ErrorCode.none]
        found = client.broker.topics.by_name("orders")
        assert found is not None
        assert found.configs == {"retention.ms": "-1"}
        rows = [{"name": "orders", "topic_id": None}]
        await client.call("delete_topics", 6, topics=rows)
        assert await ask(client, "orders") == [ErrorCode.none]


async def test_for_an_hour_after_the_last_refusal(
    connect: Connect, caplog: pytest.LogCaptureFixture, jump_clock: trio.testing.MockClock
) -> None:
    """BASE-72. A tool that tries again every ten minutes leaves a line for each of them at most."""
    async with connect() as client:
        await refuse(client, "orders")
        jump_clock.jump(HOUR_S / 2)
        await refuse(client, "orders")
        jump_clock.jump(HOUR_S - 10)
        assert await ask(client, "orders") == [ErrorCode.unknown_topic_or_partition]
        assert len(lines(caplog)) == 1
        jump_clock.jump(11)
        assert await ask(client, "orders") == [ErrorCode.none]
        assert client.broker.statistics().missing_topics.creation == (0, 1)
        assert lines(caplog) == []


async def test_settings_that_are_lost_with_the_replicas(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """BASE-72: by default, MirrorMaker 2 requests two replicas of each topic."""
    async with connect() as client:
        configs = [{"name": "retention.ms", "value": "-1"}]
        codes = await create(client, "orders", replication=2, configs=configs)
        assert codes == [ErrorCode.invalid_replication_factor]
        assert await ask(client, "orders") == [ErrorCode.unknown_topic_or_partition]
        (line,) = lines(caplog)
        assert "Unable to replicate the partition 2 time(s)" in line
        await client.create_topic("orders", configs={"retention.ms": "-1"})
        assert await ask(client, "orders") == [ErrorCode.none]


async def test_other_failures_change_nothing(connect: Connect) -> None:
    """BASE-72: a dry run, a refusal for another reason than settings, and names that are illegal or
    exist."""
    async with connect() as client:
        await refuse(client, "dry", dry=True)
        assert await create(client, "none", partitions=0) == [ErrorCode.invalid_partitions]
        assert await create(client, "two", replication=2) == [ErrorCode.invalid_replication_factor]
        await client.create_topic("there")
        configs = [{"name": name, "value": value} for name, value in FORBIDDEN.items()]
        codes = await create(client, "there", "no topic", configs=configs)
        assert codes == [ErrorCode.topic_already_exists, ErrorCode.invalid_topic_exception]
        assert client.broker.statistics().missing_topics.creation.refused_names == 0
        assert await ask(client, "dry", "none", "two", "there") == [ErrorCode.none] * 4


async def test_the_oldest_names_are_forgotten_first(
    connect: Connect, caplog: pytest.LogCaptureFixture, jump_clock: trio.testing.MockClock
) -> None:
    """BASE-72: of more than a thousand. A line says so, once, unless the hour was over anyway."""
    async with connect() as client:
        await refuse(client, "first", "second")
        await refuse(client, *(f"name-{number}" for number in range(MAX_NAMES - 2)))
        await refuse(client, "first")
        assert client.broker.statistics().missing_topics.creation.refused_names == MAX_NAMES
        await refuse(client, "last")
        assert client.broker.statistics().missing_topics.creation.refused_names == MAX_NAMES
        unknown = ErrorCode.unknown_topic_or_partition
        assert await ask(client, "first", "second", "name-0", "last") == [
            unknown, ErrorCode.none, unknown, unknown,
        ]  # fmt: skip
        await refuse(client, "more")
        (line,) = [each for each in lines(caplog) if "are forgotten" in each]
        assert line.startswith("more than 1000 topics with settings were refused within an hour")
        assert "such as topic second, and will be created automatically with default settings" in line
        assert "auto.create.topics.enable=false" in line
        jump_clock.jump(HOUR_S)
        await refuse(client, "after-an-hour")
        assert lines(caplog) == []


async def test_a_long_value_is_not_kept(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async with connect() as client:
        configs = [{"name": "retention.ms", "value": "x" * 30_000}]
        assert await create(client, "orders", configs=configs) == [ErrorCode.invalid_config]
        assert await ask(client, "orders") == [ErrorCode.unknown_topic_or_partition]
        (line,) = lines(caplog)
        assert len(line) < 1000
        assert "kbroker topics create orders" in line


async def test_only_clients_that_may_create_the_topic(connect: Connect) -> None:
    """BASE-72: a client without CREATE can prevent nothing, and gets 29 as before."""
    async with authorization_world.opened(connect) as world:
        await world.allow("may", Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        for operation in (Operation.CREATE, Operation.DESCRIBE):
            await world.allow("some", operation, ResourceType.TOPIC, "orders-2")
        stranger, some = world.client_of("stranger"), world.client_of("some")
        configs = [{"name": name, "value": value} for name, value in FORBIDDEN.items()]
        denied = ErrorCode.topic_authorization_failed
        assert await create(stranger, "free", configs=configs) == [denied]
        assert await ask(world.client, "free") == [ErrorCode.none]
        await refuse(some, "orders-2")
        assert await ask(stranger, "orders-2") == [denied]
        assert await ask(world.client, "orders-2") == [ErrorCode.unknown_topic_or_partition]
        await refuse(world.client_of("may"), "orders-3")
        assert await ask(world.client, "orders-3") == [ErrorCode.unknown_topic_or_partition]


@pytest.mark.usefixtures("without_lingering")
async def test_dead_letters_wait_for_their_topic(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """BASE-72, DLQ-15: their records stay until somebody has created it."""
    caplog.set_level(logging.INFO)
    async with connect() as client:
        key = await prepare_dead_letters(client, 2, queue=None)
        await set_up_broker(client, {CREATE: "true"})
        await refuse(client, QUEUE)
        await reject(client, key, 1)
        await until(lambda: any("have to wait" in each.getMessage() for each in caplog.records))
        assert prevented(client) == 1
        assert client.broker.topics.by_name(QUEUE) is None
        (line,) = lines(caplog)
        assert line.startswith(f"a share group's dead letter queue asks for topic {QUEUE}, which is not")
        await client.create_topic(QUEUE, configs={**ENABLED, "retention.ms": "-1"})
        await all_done(client)
        assert offsets_of(letters_of(client)) == [1]
        assert counters_of(client).refused == 0
