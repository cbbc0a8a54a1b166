"""IncrementalAlterConfigs and AlterConfigs: topics, groups and the broker; refusals; the values in
force at once and after a restart."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import trio

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect, versions

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
ASSIGNMENT_INTERVAL = "group.share.assignment.interval.ms"
Row = tuple[ErrorCode, str | None]


def resource(kind: int, name: str, *changes: tuple[Any, ...]) -> dict[str, Any]:
    """A change is (name, value) or (name, operation, value)."""
    rows = [(change[0], SET, change[1]) if len(change) == 2 else change for change in changes]
    return {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {"name": key, "config_operation": operation, "value": value} for key, operation, value in rows
        ],
    }


async def alter(
    client: Client,
    *resources: dict[str, Any],
    api: str = "incremental_alter_configs",
    version: int = 1,
    validate_only: bool = False,
) -> list[Row]:
    answer = await client.call(api, version, resources=resources, validate_only=validate_only)
    asked = [(each["resource_type"], each["resource_name"]) for each in resources]
    assert [(row.resource_type, row.resource_name) for row in answer.responses] == asked
    return [(row.error_code, row.error_message) for row in answer.responses]


def topic_configs(client: Client, name: str) -> Any:
    topic = client.broker.topics.by_name(name)
    assert topic is not None
    return topic.configs


OK: Row = (ErrorCode.none, None)


@pytest.mark.parametrize("version", versions("incremental_alter_configs"))
async def test_every_version_alters_incrementally(connect: Connect, version: int) -> None:
    async with connect() as client:
        await client.create_topic("a", 2, {"retention.ms": "1000", "segment.ms": "9000"})
        change = resource(
            TOPIC,
            "a",
            ("retention.ms", SET, "2000"),
            ("segment.ms", DELETE, None),
            ("max.message.bytes", "100"),
        )
        assert await alter(client, change, version=version) == [OK]
        assert topic_configs(client, "a") == {"retention.ms": "2000", "max.message.bytes": "100"}
        partition = next(client.broker.topics.partitions())
        assert partition.topic.rules.max_message_bytes == 100


@pytest.mark.parametrize("version", versions("alter_configs"))
async def test_every_version_replaces(connect: Connect, version: int) -> None:  # CFG-36
    async with connect() as client:
        await client.create_topic("a", 2, {"retention.ms": "1000", "segment.ms": "9000"})
        assert await alter(
            client, resource(TOPIC, "a", ("retention.ms", "2000")), api="alter_configs", version=version
        ) == [OK]
        assert topic_configs(client, "a") == {"retention.ms": "2000"}
        assert await alter(
            client, resource(GROUP, "g", ("share.auto.offset.reset", "earliest")), api="alter_configs"
        ) == [OK]
        assert client.broker.configs.reset_policy("g") == "earliest"


REFUSED = [
    (
        resource(TOPIC, "b", ("retention.ms", "1")),
        ErrorCode.unknown_topic_or_partition,
        "The topic 'b' does not exist.",
    ),
    (
        resource(TOPIC, "", ("retention.ms", "1")),
        ErrorCode.invalid_request,
        "Default topic resources are not allowed.",
    ),
    (resource(TOPIC, "a", ("no.such", "1")), ErrorCode.invalid_config, "Unknown topic config name: no.such"),
    (resource(TOPIC, "a", ("retention.ms", "-2")), ErrorCode.invalid_config, None),
    (resource(TOPIC, "a", ("cleanup.policy", "later")), ErrorCode.invalid_config, None),
    (resource(TOPIC, "a", ("cleanup.policy", APPEND, "later")), ErrorCode.invalid_config, None),
    (
        resource(TOPIC, "a", ("retention.ms", SET, None)),
        ErrorCode.invalid_request,
        "Null value not supported for : retention.ms",
    ),
    (
        resource(BROKER, "1", (ASSIGNMENT_INTERVAL, 9, "1")),
        ErrorCode.invalid_request,
        "Unknown operations type 9",
    ),
    (
        resource(TOPIC, "a", ("retention.ms", "1"), ("retention.ms", "2")),
        ErrorCode.invalid_request,
        "Error due to duplicate config keys",
    ),
    (resource(GROUP, "", ("share.auto.offset.reset", "earliest")), ErrorCode.invalid_request, None),
    (resource(GROUP, "g" * 256, ("share.auto.offset.reset", "earliest")), ErrorCode.invalid_request, None),
    (resource(GROUP, "g", ("share.assignor.offload.enable", "perhaps")), ErrorCode.invalid_config, None),
    (resource(GROUP, "g", ("share.auto.offset.reset", "Earliest")), ErrorCode.invalid_config, None),
    (resource(GROUP, "g", ("share.auto.offset.reset", "by_duration:P1M")), ErrorCode.invalid_config, None),
    (resource(GROUP, "g", ("share.auto.offset.reset", "by_duration:-PT1S")), ErrorCode.invalid_config, None),
    (
        resource(GROUP, "g", ("share.delivery.count.limit", "1")),
        ErrorCode.invalid_config,
        "Invalid value 1 for configuration share.delivery.count.limit: Value must be at least 2",
    ),
    (
        resource(GROUP, "g", ("share.record.lock.duration.ms", "1000")),
        ErrorCode.invalid_config,
        "share.record.lock.duration.ms must be greater than or equal to "
        "group.share.min.record.lock.duration.ms, which is 15000; to lower that first: "
        "kbroker configs set --broker 1 group.share.min.record.lock.duration.ms=1000",
    ),
    (
        resource(GROUP, "g", ("share.record.lock.duration.ms", "60001")),
        ErrorCode.invalid_config,
        "share.record.lock.duration.ms must be less than or equal to "
        "group.share.max.record.lock.duration.ms, which is 60000; to raise that first: "
        "kbroker configs set --broker 1 group.share.max.record.lock.duration.ms=60001",
    ),
    (resource(GROUP, "g", ("share.record.lock.duration.ms", SET, None)), ErrorCode.invalid_request, None),
    (resource(GROUP, "g", ("share.record.lock.duration.ms", APPEND, "1")), ErrorCode.invalid_config, None),
    (resource(GROUP, "g", ("share.record.lock.duration.ms", SUBTRACT, "1")), ErrorCode.invalid_config, None),
    (resource(BROKER, "2", (ASSIGNMENT_INTERVAL, "7")), ErrorCode.invalid_request, None),
    (resource(BROKER, "x", (ASSIGNMENT_INTERVAL, "7")), ErrorCode.invalid_request, None),
    (
        resource(BROKER, "1", ("num.partitions", "7")),
        ErrorCode.invalid_request,
        "Cannot update these configs dynamically: [num.partitions]. It is read at start only: set it with "
        "`kbroker start --config "
        "num.partitions=VALUE`, or a line num.partitions=VALUE in the file of --config-file, and restart "
        "the broker",
    ),
    (resource(BROKER, "", (ASSIGNMENT_INTERVAL, "-1")), ErrorCode.invalid_request, None),
    (resource(LOGGER, "2", ("root", "INFO")), ErrorCode.invalid_request, None),
    (resource(METRICS, "m", ("interval.ms", "100")), ErrorCode.invalid_request, None),
    (resource(99, "a", ("a", "b")), ErrorCode.invalid_request, None),
]


@pytest.mark.parametrize("kind", [TOPIC, GROUP])
async def test_an_unknown_operation(connect: Connect, kind: int) -> None:  # CFG-44
    async with connect() as client:
        await client.create_topic("a")
        assert await alter(client, resource(kind, "a", ("retention.ms", 9, "1"))) == [
            (ErrorCode.unknown_server_error, None)
        ]


@pytest.mark.parametrize(("change", "code", "message"), REFUSED)
async def test_refused(
    connect: Connect, change: dict[str, Any], code: ErrorCode, message: str | None
) -> None:
    # CFG-23, CFG-25..27, CFG-29..32
    async with connect() as client:
        await client.create_topic("a", configs={"segment.ms": "9000"})
        ((found, text),) = await alter(client, change)
        assert found is code
        assert text
        assert message in (None, text)
        assert topic_configs(client, "a") == {"segment.ms": "9000"}
        assert client.broker.configs.groups_with_configs() == []
        assert not client.broker.config.dynamic
        assert not client.broker.config.dynamic_default


async def test_one_bad_setting_refuses_its_whole_resource_and_no_other(connect: Connect) -> None:  # CFG-33
    async with connect() as client:
        good = resource(GROUP, "h", ("share.auto.offset.reset", "earliest"))
        bad = resource(
            GROUP, "g", ("share.auto.offset.reset", "earliest"), ("share.isolation.level", "READ_COMMITTED")
        )
        (first, _), second = await alter(client, bad, good)
        assert (first, second) == (ErrorCode.invalid_config, OK)
        assert client.broker.configs.groups_with_configs() == ["h"]


@pytest.mark.parametrize("api", ["incremental_alter_configs", "alter_configs"])
async def test_a_resource_twice_is_invalid(connect: Connect, api: str) -> None:  # CFG-34
    async with connect() as client:
        twice = [resource(GROUP, "g", ("share.auto.offset.reset", value)) for value in ("earliest", "latest")]
        other = resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7"))
        codes = [code for code, _ in await alter(client, twice[0], other, twice[1], api=api)]
        assert codes == [ErrorCode.invalid_request, ErrorCode.none, ErrorCode.invalid_request]
        assert client.broker.configs.groups_with_configs() == []


async def test_null_and_duplicates_when_replacing(connect: Connect) -> None:  # CFG-31, CFG-34
    async with connect() as client:
        changes = [(("share.auto.offset.reset", None),), (("share.auto.offset.reset", "latest"),) * 2]
        for change in changes:
            ((code, _),) = await alter(client, resource(GROUP, "g", *change), api="alter_configs")
            assert code is ErrorCode.invalid_request


@pytest.mark.parametrize("api", ["incremental_alter_configs", "alter_configs"])
async def test_validate_only_changes_nothing(connect: Connect, api: str) -> None:
    async with connect() as client:
        await client.create_topic("a")
        changes = [
            resource(TOPIC, "a", ("retention.ms", "1")),
            resource(GROUP, "g", ("share.auto.offset.reset", "earliest")),
            resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7")),
        ]
        assert await alter(client, *changes, api=api, validate_only=True) == [OK, OK, OK]
        assert topic_configs(client, "a") == {}
        assert client.broker.configs.groups_with_configs() == []
        assert client.broker.config[ASSIGNMENT_INTERVAL] == 1000


async def test_values_are_trimmed_and_unset_keys_may_be_deleted(connect: Connect) -> None:  # CFG-29, CFG-35
    async with connect() as client:
        change = resource(
            GROUP,
            "g",
            ("share.record.lock.duration.ms", " 20000 "),
            ("share.renew.acknowledge.enable", "FALSE"),
            ("share.auto.offset.reset", DELETE, None),
        )
        assert await alter(client, change) == [OK]
        assert client.broker.configs.stored_group("g") == {
            "share.record.lock.duration.ms": "20000",
            "share.renew.acknowledge.enable": "false",
        }


async def test_clients_that_alter_different_settings_at_once_lose_nothing(
    connect: Connect, every_engine: str
) -> None:
    async with connect(every_engine) as client:
        await client.create_topic("a")
        settings = {
            "retention.ms": "5000",
            "segment.ms": "6000",
            "retention.bytes": "7000",
            "max.message.bytes": "8000",
        }
        async with trio.open_nursery() as nursery:
            for name, value in settings.items():
                nursery.start_soon(alter, client, resource(TOPIC, "a", (name, value)))
        assert topic_configs(client, "a") == settings


async def test_what_was_altered_holds_after_a_restart(connect: Connect, every_engine: str) -> None:  # CFG-40
    async with connect(every_engine) as client:
        await client.create_topic("a")
        changes = [
            resource(TOPIC, "a", ("max.message.bytes", "2000")),
            resource(
                GROUP, "g", ("share.auto.offset.reset", "earliest"), ("share.delivery.count.limit", "3")
            ),
            resource(GROUP, "unset", ("share.auto.offset.reset", "earliest")),
            resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7")),
            resource(BROKER, "1", (ASSIGNMENT_INTERVAL, "8")),
        ]
        assert await alter(client, *changes) == [OK] * 5
        assert await alter(client, resource(GROUP, "unset", ("share.auto.offset.reset", DELETE, None))) == [
            OK
        ]
        assert client.broker.config[ASSIGNMENT_INTERVAL] == 8
    async with connect(every_engine) as client:
        configs = client.broker.configs
        assert topic_configs(client, "a") == {"max.message.bytes": "2000"}
        assert configs.groups_with_configs() == ["g"]
        assert configs.reset_policy("g") == "earliest"
        assert configs.share_settings("g").delivery_count_limit == 3
        assert configs.group_settings("g").assignment_interval_ms == 8
        await alter(client, resource(BROKER, "1", (ASSIGNMENT_INTERVAL, DELETE, None)))
        assert configs.group_settings("g").assignment_interval_ms == 7


async def test_who_depends_on_a_groups_settings_is_told(connect: Connect) -> None:
    async with connect() as client:
        told: list[str | None] = []
        client.broker.configs.group_watchers.append(told.append)
        await alter(client, resource(GROUP, "g", ("share.record.lock.duration.ms", "20000")))
        assert client.broker.configs.share_settings("g").lock_duration_ms == 20_000
        await alter(client, resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7")))
        assert told == ["g", None]


# CFG-24
async def test_bounds_that_were_lowered_clamp_what_a_group_has(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    lock = "share.record.lock.duration.ms"
    async with connect() as client:
        assert await alter(client, resource(GROUP, "g", (lock, "60000"))) == [OK]
    async with connect(config={"group.share.max.record.lock.duration.ms": "30000"}) as client:
        assert client.broker.configs.share_settings("g").lock_duration_ms == 30_000
        assert f"group g: {lock}=60000 is out of the broker's bounds, 30000 applies" in caplog.text


async def test_an_altered_broker_setting_that_fits_no_more_is_left_out(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Only this one is: other altered settings, such as a retention time, stay in force."""
    async with connect("segment") as client:
        kept = {"log.retention.ms": "-1", "group.share.max.record.lock.duration.ms": "300000"}
        change = resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7"), *kept.items())
        assert await alter(client, change, resource(BROKER, "1", (ASSIGNMENT_INTERVAL, "8"))) == [OK, OK]
    async with connect("segment", config={"group.share.min.assignment.interval.ms": "100"}) as client:
        config = client.broker.config
        assert (config[ASSIGNMENT_INTERVAL], config["log.retention.ms"]) == (1000, -1)
        assert config["group.share.max.record.lock.duration.ms"] == 300_000
        assert (config.dynamic, config.dynamic_default) == ({}, kept)
        left_out = "an altered broker setting does not apply, since it does not fit the others any more"
        for value in (7, 8):
            assert f"{left_out}: {ASSIGNMENT_INTERVAL}={value}: " in caplog.text


async def test_what_is_altered_over_the_start_says_how_to_end_that(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The commands name the layers that override the start's value: this broker's and that of all
    brokers."""
    ms, size = "log.retention.ms", "log.retention.bytes"
    one, every = {ms: "5", ASSIGNMENT_INTERVAL: "7"}, {ms: "6", size: "2", ASSIGNMENT_INTERVAL: "9"}
    caplog.set_level("INFO")
    async with connect("segment") as client:
        change = resource(BROKER, "1", *one.items()), resource(BROKER, "", *every.items())
        assert await alter(client, *change) == [OK, OK]
    async with connect("segment", config={ms: "8", size: "1", ASSIGNMENT_INTERVAL: "9"}) as client:
        delete = "kbroker configs delete --broker"
        ended = {
            f"{ms}=5 was altered while running and overrides the 8 of this start": (
                f'{delete} 1 {ms} && {delete} "" {ms}'
            ),
            f"{size}=2 was altered while running and overrides the 1 of this start": f'{delete} "" {size}',
            f"{ASSIGNMENT_INTERVAL}=7 was altered while running and overrides the 9 of this start": (
                f"{delete} 1 {ASSIGNMENT_INTERVAL}"
            ),
        }
        said = [record.getMessage() for record in caplog.records if "overrides the" in record.getMessage()]
        assert sorted(said) == sorted(f"{what}; to undo that: {how}" for what, how in ended.items())
        for command in " && ".join(ended.values()).split(" && "):
            *_, name, key = shlex.split(command)
            assert await alter(client, resource(BROKER, name, (key, DELETE, None))) == [OK]
        assert (
            client.broker.config[ms],
            client.broker.config[size],
            client.broker.config[ASSIGNMENT_INTERVAL],
        ) == (8, 1, 9)
