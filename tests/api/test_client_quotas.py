"""DescribeClientQuotas and AlterClientQuotas: codes, messages, and what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.security_values import QuotaKey, StoredQuota
from kbroker.security.acls import Operation, ResourceType
from kbroker.storage.data_dir import FIRST_FORMAT
from tests.api.authorization_world import AUTHORIZER, MISSING, World
from tests.api.conftest import Client, Connect, versions

Names = Mapping[str, str | None]
Row = tuple[dict[str, str | None], dict[str, float]]
ALICE: Names = {"user": "alice"}


def entity(names: Names) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]


def op(key: str, value: float | None) -> dict[str, Any]:
    return {"key": key, "value": value or 0.0, "remove": value is None}


async def alter(
    client: Client,
    *entries: tuple[Names, Sequence[dict[str, Any]]],
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[Names, int, str | None]]:
    answer = await client.call(
        "alter_client_quotas",
        version,
        entries=[{"entity": entity(names), "ops": ops} for names, ops in entries],
        validate_only=validate_only,
    )
    return [
        ({each.entity_type: each.entity_name for each in row.entity}, row.error_code, row.error_message)
        for row in answer.entries
    ]


async def described(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> list[Row]:
    answer = await ask(client, *components, strict=strict, version=version)
    assert (answer.error_code, answer.error_message) == (0, "")
    return [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in answer.entries
    ]


async def ask(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    rows = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return await client.call("describe_client_quotas", version, components=rows, strict=strict)


@pytest.mark.parametrize("version", versions("alter_client_quotas"))
async def test_quotas_are_set_described_and_removed(version: int, connect: Connect) -> None:
    both: Names = {"client-id": None, "user": "alice"}
    async with connect() as client:
        results = await alter(
            client,
            (ALICE, [op("producer_byte_rate", 1000), op("request_percentage", 12.5)]),
            (both, [op("consumer_byte_rate", 5000)]),
            ({"ip": "10.0.0.1"}, [op("connection_creation_rate", 7)]),
            version=version,
        )
        assert [each[1:] for each in results] == [(0, None)] * 3
        assert [each[0] for each in results] == [ALICE, both, {"ip": "10.0.0.1"}], "in the request's order"
        assert await described(client, version=version) == [
            (both, {"consumer_byte_rate": 5000.0}),
            ({"ip": "10.0.0.1"}, {"connection_creation_rate": 7.0}),
            (ALICE, {"producer_byte_rate": 1000.0, "request_percentage": 12.5}),
        ]
        await alter(client, (ALICE, [op("producer_byte_rate", None), op("consumer_byte_rate", None)]))
        assert await described(client, ("user", 0, "alice"), strict=True) == [
            (ALICE, {"request_percentage": 12.5})
        ]
        await alter(client, (ALICE, [op("request_percentage", None)]))
        assert await described(client, ("user", 0, "alice"), strict=True) == []
        assert await described(client, ("user", 2, None)) == [(both, {"consumer_byte_rate": 5000.0})]


async def test_a_refused_entity_does_not_affect_the_others(connect: Connect) -> None:
    async with connect() as client:
        results = await alter(
            client,
            (ALICE, [op("producer_byte_rate", 1000)]),
            ({}, [op("producer_byte_rate", 1000)]),
            ({"user": "bob"}, [op("producer_byte_rate", 5), op("nonsense", 1)]),
            ({"ip": "nowhere"}, [op("connection_creation_rate", 1)]),
            ({"user": "carol"}, [op("controller_mutation_rate", 1)]),
        )
        assert [each[1] for each in results] == [0, 42, 42, 42, 42]
        assert [each[2] for each in results[1:4]] == [
            "Invalid empty client quota entity",
            "Invalid configuration key nonsense",
            "nowhere is not a valid IP or resolvable host.",
        ]
        assert await described(client) == [(ALICE, {"producer_byte_rate": 1000.0})]


async def test_a_stored_quota_of_an_address_that_no_client_has_can_be_removed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions took the scope of an interface."""
    scoped = {"ip": "fe80::1%eth0"}
    async with connect("segment") as client:
        with monkeypatch.context() as patch:
            patch.setattr("kbroker.security.quotas.is_address", bool)
            await alter(client, (scoped, [op("connection_creation_rate", 1)]))
    async with connect("segment") as client:
        for value, code in ((2, ErrorCode.invalid_request), (None, ErrorCode.none)):
            assert [
                row[1] for row in await alter(client, (scoped, [op("connection_creation_rate", value)]))
            ] == [code]
        assert await described(client) == []


async def test_a_key_that_is_given_twice_is_refused(connect: Connect) -> None:
    async with connect() as client:
        twice = [op("producer_byte_rate", 1), op("producer_byte_rate", None)]
        ((_, code, message),) = await alter(client, (ALICE, twice))
        assert code == ErrorCode.invalid_request
        assert str(message).startswith("Ignoring duplicate entity")
        assert await described(client) == []


async def test_an_entity_that_is_named_twice_is_refused(connect: Connect) -> None:
    async with connect() as client:
        results = await alter(
            client,
            (ALICE, [op("producer_byte_rate", 1)]),
            ({"user": "bob"}, [op("producer_byte_rate", 2)]),
            (ALICE, [op("consumer_byte_rate", 3)]),
        )
        assert [each[:2] for each in results] == [(ALICE, 42), ({"user": "bob"}, 0)]
        assert await described(client) == [({"user": "bob"}, {"producer_byte_rate": 2.0})]


async def test_validation_changes_nothing(connect: Connect) -> None:
    async with connect() as client:
        results = await alter(
            client,
            (ALICE, [op("producer_byte_rate", 1000)]),
            ({"user": "bob"}, [op("producer_byte_rate", -1)]),
            validate_only=True,
        )
        assert [each[1] for each in results] == [0, 42]
        assert await described(client) == []
        assert not client.broker.quotas.are_set


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("group", 0, "g")], 35),
        ([("", 0, "g")], 42),
        ([("user", 0, None)], 42),
        ([("user", 1, "a")], 42),
        ([("user", 3, None)], 42),
        ([("user", 0, "a"), ("user", 0, "b")], 42),
        ([("user", 0, "a"), ("ip", 2, None)], 42),
    ],
)
async def test_a_refused_filter_has_no_list(
    components: list[tuple[str, int, str | None]], code: int, connect: Connect
) -> None:
    async with connect() as client:
        answer = await ask(client, *components)
        assert (answer.error_code, answer.entries) == (code, None)
        assert answer.error_message


async def test_quotas_outlive_a_restart(every_engine: str, connect: Connect) -> None:
    durable = every_engine != "memory"
    long_name = "x" * 600
    async with connect(engine=every_engine) as client:
        await alter(client, (ALICE, [op("producer_byte_rate", 1000)]))
        await alter(client, ({"client-id": long_name}, [op("consumer_byte_rate", 1.0)]))
        await alter(client, ({"user": "bob"}, [op("consumer_byte_rate", 1.0)]))
        await alter(client, ({"user": "bob"}, [op("consumer_byte_rate", None)]))
    if not durable:
        return
    async with connect(engine=every_engine) as client:
        assert client.broker.quotas.are_set
        assert await described(client) == [
            ({"client-id": long_name}, {"consumer_byte_rate": 1.0}),
            (ALICE, {"producer_byte_rate": 1000.0}),
        ]


async def test_a_directory_with_quotas_keeps_its_format(connect: Connect) -> None:
    """Earlier versions skip quotas: they lose no record and give no right."""
    async with connect(engine="segment") as client:
        await alter(client, (ALICE, [op("producer_byte_rate", 1000)]))
        assert client.broker.directory.description.format_version == FIRST_FORMAT
        stored = client.broker.state_store.get(QuotaKey.of(ALICE).encode())
        assert stored is not None
        assert StoredQuota.decode(stored) == StoredQuota({"user": "alice"}, {"producer_byte_rate": 1000.0})


async def test_a_full_disk_changes_nothing(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect() as client:

        def no_space(changes: object) -> None:
            raise NoSpace("the disk is full")

        monkeypatch.setattr(client.broker.state_commits, "_write", no_space)
        results = await alter(client, (ALICE, [op("producer_byte_rate", 1000)]), ({}, []))
        assert [each[1] for each in results] == [ErrorCode.kafka_storage_error, 42]
        assert await described(client) == []


async def test_rights_on_the_cluster_are_needed(connect: Connect) -> None:
    async with connect(config=AUTHORIZER) as client:
        world = World(client, MISSING)
        alice = world.client_of("alice")
        refused = await ask(alice)
        assert (refused.error_code, refused.error_message, refused.entries) == (31, None, None)
        results = await alter(alice, (ALICE, [op("producer_byte_rate", 1)]), ({}, []))
        assert [each[1:] for each in results] == [(31, "Cluster authorization failed.")] * 2
        await world.allow("alice", Operation.ALTER_CONFIGS, ResourceType.CLUSTER, "kafka-cluster")
        assert [each[1] for each in await alter(alice, (ALICE, [op("producer_byte_rate", 1)]))] == [0]
        assert await described(alice) == [(ALICE, {"producer_byte_rate": 1.0})], "altering implies describing"
