"""DescribeAcls, CreateAcls and DeleteAcls: codes and messages, and how entries are stored."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from kbroker.api import delete_acls
from kbroker.broker.security import acl_lines
from kbroker.errors import ErrorCode, NoSpace
from kbroker.security.acls import Operation, Permission, ResourceType
from kbroker.security.principals import user
from tests.api import conftest
from tests.api.authorization_world import AUTHORIZER
from tests.api.conftest import Client, Connect, versions
from tests.security.acl_strategies import entry

_ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip

BOB = user("bob")
RANGES = "expected an IPv4 address with /0 to /32, or an IPv6 address with /0 to /128"


def acl(**changes: Any) -> dict[str, Any]:
    """READ on the topic `orders` for alice."""
    return {
        "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "principal": "User:alice",
        "host": "*", "operation": 3, "permission_type": 3, **changes,
    }  # fmt: skip


def row(created: dict[str, Any]) -> tuple[Any, ...]:
    return (
        created["resource_type"], created["resource_pattern_type"], created["resource_name"],
        created["principal"], created["host"], created["operation"], created["permission_type"],
    )  # fmt: skip


async def create(client: Client, *rows: dict[str, Any], version: int = 3) -> list[tuple[int, str | None]]:
    answer = await client.call("create_acls", version, creations=rows)
    return [(each.error_code, each.error_message) for each in answer.results]


async def described(client: Client, version: int = 3, **changes: Any) -> list[tuple[Any, ...]]:
    answer = await client.call("describe_acls", version, **{**_ANY, **changes})
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        (each.resource_type, each.pattern_type, each.resource_name, one.principal, one.host, one.operation,
         one.permission_type)
        for each in answer.resources
        for one in each.acls
    ]  # fmt: skip


@pytest.mark.parametrize("version", versions("create_acls"))
async def test_entries_are_created_described_and_deleted(version: int, connect: Connect) -> None:
    entries = [
        acl(),
        acl(operation=4),
        acl(resource_pattern_type=4, resource_name="ord", permission_type=2, host="10.0.0.1"),
        acl(resource_type=4, resource_name="kafka-cluster", operation=12),
    ]
    async with connect(config=AUTHORIZER) as client:
        assert await create(client, *entries, acl(), version=version) == [(0, "")] * 5
        assert await described(client, version) == sorted(map(row, entries))
        answer = await client.call("describe_acls", version, **{**_ANY, "resource_type_filter": 2})
        assert [len(each.acls) for each in answer.resources] == [2, 1], "grouped by pattern"
        assert await described(client, version, operation=12) == [row(entries[3])]
        match = {"resource_type_filter": 2, "resource_name_filter": "orders", "pattern_type_filter": 2}
        assert await described(client, version, **match) == sorted(map(row, entries[:3]))
        filters = [
            {**_ANY, "operation": 12},
            {**_ANY, "resource_name_filter": "orders"},
            {**_ANY, "operation": 5},
        ]
        deleted = await client.call("delete_acls", version, filters=filters)
        found = [
            [(one.error_code, one.resource_name, one.operation, one.principal) for one in each.matching_acls]
            for each in deleted.filter_results
        ]
        assert found == [
            [(0, "kafka-cluster", 12, "User:alice")],
            [(0, "orders", 3, "User:alice"), (0, "orders", 4, "User:alice")],
            [],
        ]
        assert [each.error_code for each in deleted.filter_results] == [0, 0, 0]
        assert await described(client, version) == [row(entries[2])]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource_name": ""}, "Invalid empty resource name"),
        (
            {"resource_type": 4, "resource_name": "other"},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            {"principal": "bob"},
            "Could not parse principal from `bob` (no colon is present separating the principal type from "
            "the principal name)",
        ),
        ({"resource_pattern_type": 1}, "Invalid patternType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        ({"host": ""}, "Host pattern cannot be null or empty"),
        ({"host": "10.0.0.0/33"}, f"Invalid CIDR notation '10.0.0.0/33': {RANGES}"),
        ({"host": "10.0.0.0/255.0.0.0"}, f"Invalid CIDR notation '10.0.0.0/255.0.0.0': {RANGES}"),
        ({"host": "a/b"}, f"Invalid CIDR notation 'a/b': {RANGES}"),
    ],
)
async def test_a_bad_entry_is_refused_alone(changes: dict[str, Any], message: str, connect: Connect) -> None:
    """ACL-2, for hosts."""
    async with connect(config=AUTHORIZER) as client:
        found = await create(client, acl(), acl(**changes), acl(operation=4))
        assert found == [(0, ""), (ErrorCode.invalid_request, message), (0, "")]
        assert len(await described(client)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"principal": "Group:x"},
        {"resource_type": 3, "operation": 4},
        {"resource_type": 7},
        {"host": "localhost"},
        {"host": " "},
        {"host": "10.1.2.3/8"},
        {"host": "2001:DB8::/32"},
    ],
)
async def test_what_kafka_accepts_is_accepted(changes: dict[str, Any], connect: Connect) -> None:
    """ACL-1, ACL-3: texts are kept as they are."""
    async with connect(config=AUTHORIZER) as client:
        assert await create(client, acl(**changes)) == [(0, "")]
        assert await described(client) == [row(acl(**changes))]


@pytest.mark.parametrize("number", [0, 99, -1])
async def test_an_unknown_number_is_refused(number: int, connect: Connect) -> None:
    """Unlike in Kafka the connection stays open, and the other rows are carried out."""
    async with connect(config=AUTHORIZER) as client:
        message = f"Unknown operation {number}"
        found = await create(client, acl(), acl(operation=number), acl(operation=4))
        assert found == [(0, ""), (ErrorCode.invalid_request, message), (0, "")]
        answer = await client.call("describe_acls", 3, **{**_ANY, "operation": number})
        assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, message)
        filters = [{**_ANY, "operation": number}, {**_ANY, "operation": 4}]
        deleted = (await client.call("delete_acls", 3, filters=filters)).filter_results
        assert [(each.error_code, len(each.matching_acls)) for each in deleted] == [
            (ErrorCode.invalid_request, 0),
            (0, 1),
        ]


async def test_without_an_authorizer_nothing_can_be_managed(connect: Connect) -> None:
    disabled = (ErrorCode.security_disabled, "No Authorizer is configured on the broker")
    async with connect() as client:
        assert await create(client, acl(), acl()) == [disabled] * 2
        answer = await client.call("describe_acls", 3, **_ANY)
        assert (answer.error_code, answer.error_message, answer.resources) == (*disabled, ())
        deleted = await client.call("delete_acls", 3, filters=[_ANY])
        assert [(each.error_code, each.error_message) for each in deleted.filter_results] == [disabled]


async def test_too_many_at_once_are_not_deleted(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_acls, "MAX_REMOVED", 1)
    async with connect(config=AUTHORIZER) as client:
        await create(client, acl(), acl(operation=4))
        deleted = await client.call(
            "delete_acls", 3, filters=[{**_ANY, "operation": 3}, {**_ANY, "operation": 4}]
        )
        assert [each.error_code for each in deleted.filter_results] == [ErrorCode.policy_violation] * 2
        assert len(await described(client)) == 2


async def test_a_full_disk_refuses_the_rows_that_are_right(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(config=AUTHORIZER) as client:
        await create(client, acl())

        def full(_: object) -> None:
            raise NoSpace("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(client.broker.state_commits, "_write", full)
            found = await create(client, acl(operation=4), acl(principal="bob"))
            assert [code for code, _ in found] == [ErrorCode.kafka_storage_error, ErrorCode.invalid_request]
            deleted = await client.call("delete_acls", 3, filters=[_ANY])
            assert [each.error_code for each in deleted.filter_results] == [ErrorCode.kafka_storage_error]
        assert await described(client) == [row(acl())]


async def test_entries_survive_a_restart_and_raise_the_format(every_engine: str, connect: Connect) -> None:
    async with connect(every_engine, AUTHORIZER) as client:
        assert client.broker.directory.description.format_version == 1, "with the first write only"
        await create(client, acl(), acl(operation=4))
        await client.call("delete_acls", 3, filters=[{**_ANY, "operation": 4}])
        assert client.broker.directory.description.format_version == 4
    async with connect(every_engine, AUTHORIZER) as client:
        assert await described(client) == [row(acl())]


async def test_stored_entries_without_an_authorizer_are_a_warning(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect("segment", AUTHORIZER) as client:
        await create(client, acl())
    async with connect("segment") as client:
        assert client.broker.acls.rights_of(client.connection.principal, "127.0.0.1") is None
    assert "1 ACLs are stored, but authorizer.class.name is not set: they have no effect" in caplog.text


async def test_filters_compare_the_text_of_a_host(connect: Connect) -> None:
    """ACL-5"""
    hosts = ("10.0.0.0/8", "10.1.2.3", "10.1.2.3/8")
    async with connect(config=AUTHORIZER) as client:
        await create(client, *(acl(host=host) for host in hosts))
        for host in hosts:
            assert await described(client, host_filter=host) == [row(acl(host=host))]
        for host in ("10.1.2.0", "10.0.0.0/9", "0.0.0.0/0", "a/b", ""):
            assert await described(client, host_filter=host) == []
        deleted = await client.call("delete_acls", 3, filters=[{**_ANY, "host_filter": "10.1.2.3"}])
        assert [len(each.matching_acls) for each in deleted.filter_results] == [1]
        assert await described(client) == [row(acl(host="10.0.0.0/8")), row(acl(host="10.1.2.3/8"))]


async def test_a_range_decides_by_the_address_of_each_client(connect: Connect) -> None:
    """ACL-1, ACL-4: also for answers that are remembered, before and after a change."""
    outside, inside = ("10.0.0.1", "2001:db8::1"), ("192.168.0.0", "192.168.255.255", "::ffff:192.168.0.7")
    async with connect(config=AUTHORIZER) as client:
        found = {host: client.broker.acls.rights_of(BOB, host) for host in (*outside, *inside)}

        def allowed() -> list[str]:
            for _ in range(2):
                last = [
                    host for host, rights in found.items()
                    if rights is not None and rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
                ]  # fmt: skip
            return last

        assert allowed() == []
        await create(client, acl(principal="User:bob"))
        assert allowed() == [*outside, *inside]
        await create(client, acl(principal="User:*", host="192.168.9.9/16", permission_type=2))
        assert allowed() == [*outside]
        await create(client, acl(principal="User:bob", host="::/0", permission_type=2))
        assert allowed() == ["10.0.0.1"]
        await client.call("delete_acls", 3, filters=[{**_ANY, "host_filter": "192.168.9.9/16"}])
        assert allowed() == ["10.0.0.1", *inside]


async def test_stored_ranges_are_named_at_the_start(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """ACL-1: those that deny first. An entry for a range that an earlier version stored begins to
    match, and the administrator must learn it."""
    caplog.set_level(logging.INFO)
    async with connect("segment", AUTHORIZER) as client:
        await create(
            client, acl(host="10.0.0.0/8"), acl(host="10.0.0.1"), acl(host="2001:db8::/32", permission_type=2)
        )
    caplog.clear()
    async with connect("segment", AUTHORIZER):
        pass
    assert [line for line in caplog.messages if "range" in line] == [
        f"ACL for a range of addresses, all of which it matches: {verb} User:alice at {host} the operation "
        "READ on topic orders"
        for verb, host in (("deny", "2001:db8::/32"), ("allow", "10.0.0.0/8"))
    ]


async def test_a_stored_text_that_is_no_range_matches_no_client(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """ACL-2, ACL-6: earlier versions took any text."""
    loose = entry("User:*", Operation.ALL, "orders", permission=Permission.DENY, host="10.0.0.0/33")
    async with connect("segment", AUTHORIZER) as client:
        await client.broker.acls.create([loose, entry("User:bob", Operation.READ, "orders")])
    caplog.clear()
    async with connect("segment", AUTHORIZER) as client:
        rights = client.broker.acls.rights_of(BOB, "10.0.0.1")
        assert rights is not None
        assert rights.allows(Operation.READ, ResourceType.TOPIC, "orders")
        await client.call("delete_acls", 3, filters=[{**_ANY, "host_filter": "10.0.0.0/33"}])
        assert len(await described(client)) == 1
    assert [line for line in caplog.messages if "because" in line] == [
        "ACL that denies nothing, because its host is no range of addresses: deny User:* at 10.0.0.0/33 the "
        "operation ALL on topic orders"
    ]


async def test_the_start_names_only_so_many(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACL-6"""
    monkeypatch.setattr(acl_lines, "MOST_NAMED", 2)
    caplog.set_level(logging.INFO)
    denied = {"permission_type": 2, "host": "localhost"}
    async with connect("segment", AUTHORIZER) as client:
        await create(client, *(acl(host=f"10.0.0.0/{bits}") for bits in range(9)))
        await create(client, *(acl(resource_name=f"t{number}", **denied) for number in range(5)))
    caplog.clear()
    async with connect("segment", AUTHORIZER):
        pass
    lines = [line for line in caplog.messages if "ACL" in line]
    assert [line.partition(":")[0] for line in lines] == [
        *["ACL for a range of addresses, all of which it matches"] * 2,
        "and 7 more ACLs for ranges of addresses",
        *["ACL that denies nothing, because no client has such an address"] * 2,
        "and 3 more ACLs that deny nothing",
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"host": "localhost"}, "no client has such an address"),
        ({"host": "010.0.0.1"}, "no client has such an address"),
        ({"host": "fe80::1%eth0"}, "no client has such an address"),
        ({"host": "0.0.0.0"}, "no client has such an address"),
        ({"host": "::"}, "no client has such an address"),
        ({"principal": "user:bob"}, "all clients are of the type User"),
        ({"principal": "Group:bob"}, "all clients are of the type User"),
        ({"operation": 9}, "no request needs this operation on a topic"),
        ({"resource_type": 3, "operation": 4}, "no request needs this operation on a group"),
        ({"resource_name": "secret*"}, "no topic has such a name"),
        ({"resource_name": "*", "resource_pattern_type": 4}, "no topic has such a name"),
        ({"resource_name": "t" * 250, "resource_pattern_type": 4}, "no topic has such a name"),
        ({"host": "::ffff:10.0.0.1"}, None),
        ({"host": "fe80::1"}, None),
        ({"host": "0.0.0.0/0"}, None),
        ({"host": "10.0.0.0/8"}, None),
        ({"operation": 2}, None),
        ({"resource_type": 3, "operation": 2, "resource_name": "secret*"}, None),
        ({"resource_type": 7, "operation": 3}, None),
        ({"resource_name": "*"}, None),
        ({"resource_name": ".", "resource_pattern_type": 4}, None),
    ],
)
async def test_an_entry_that_denies_nothing_is_a_warning(
    changes: dict[str, Any], why: str | None, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """ACL-6: when it is created, and at each start; one that allows nothing is not."""
    async with connect("segment", AUTHORIZER) as client:
        assert await create(client, acl(**changes, permission_type=3)) == [(0, "")]
        assert "because" not in caplog.text
        assert await create(client, acl(**changes, permission_type=2)) == [(0, "")]
    async with connect("segment", AUTHORIZER):
        pass
    lines = [line for line in caplog.messages if "because" in line]
    assert len(lines) == (2 if why else 0)
    for line in lines:
        assert line.startswith(f"ACL that denies nothing, because {why}: deny ")


async def test_connections_of_a_principal_share_their_rights(connect: Connect) -> None:
    async with connect(config=AUTHORIZER) as client:
        acls, alice = client.broker.acls, client.connection.principal
        one, other = acls.rights_of(alice, "10.0.0.1"), acls.rights_of(alice, "::ffff:10.0.0.1")
        assert one is other
        assert acls.rights_of(alice, "10.0.0.2") is not one
        assert acls.statistics().principals == 1, "it ends with its last connection"


async def test_denied_operations_are_counted_and_logged_once_a_minute(
    connect: Connect, caplog: pytest.LogCaptureFixture, autojump_clock: trio.abc.Clock
) -> None:
    caplog.set_level(logging.INFO)
    async with connect(config=AUTHORIZER) as client:
        acls = client.broker.acls
        rights = acls.rights_of(client.connection.principal, "10.0.0.1")
        assert rights is not None
        for name in ("a", "b", "c"):
            assert not rights.allows(Operation.READ, ResourceType.TOPIC, name)
        assert not rights.allows(Operation.READ, ResourceType.GROUP, "g")
        await trio.sleep(61)
        assert not rights.allows(Operation.READ, ResourceType.TOPIC, "d")
        lines = [each.getMessage() for each in caplog.records if "denied User" in each.getMessage()]
        assert lines == [
            "denied User:ANONYMOUS from 10.0.0.1 the operation READ on topic a",
            "denied User:ANONYMOUS from 10.0.0.1 the operation READ on group g",
            "denied User:ANONYMOUS from 10.0.0.1 the operation READ on topic d (3 denied since the last "
            "such line)",
        ]
        assert dict(acls.denied) == {
            (Operation.READ, ResourceType.TOPIC): 4,
            (Operation.READ, ResourceType.GROUP): 1,
        }


def test_the_requests_of_this_file_know_all_versions() -> None:
    assert {api: [*conftest.versions(api)] for api in ("describe_acls", "create_acls", "delete_acls")} == {
        "describe_acls": [1, 2, 3],
        "create_acls": [1, 2, 3],
        "delete_acls": [1, 2, 3],
    }
