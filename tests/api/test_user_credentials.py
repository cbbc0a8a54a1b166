"""DescribeUserScramCredentials and AlterUserScramCredentials: every code, what is stored, restarts,
full disks."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.broker import Broker
from kbroker.errors import ErrorCode, NoSpace, StoreFailed
from kbroker.formats.security_values import ScramCredential, ScramKey, ScramMechanism
from kbroker.formats.state import SCRAM_SECRET
from kbroker.security.scram import is_password, salt_password
from kbroker.storage.data_dir import FIRST_FORMAT, SECURITY_FORMAT
from tests.api.conftest import Client, Connect
from tests.metrics.world import refusing
from tests.server.sasl_world import ITERATIONS, SALT, upsertion

SHA_256, SHA_512 = ScramMechanism


async def alter(client: Client, *, deletions: object = (), upsertions: object = ()) -> dict[str, Any]:
    """The rows by user."""
    answer = await client.call("alter_user_scram_credentials", 0, deletions=deletions, upsertions=upsertions)
    return {row.user: (row.error_code, row.error_message) for row in answer.results}


async def described(client: Client, users: list[str] | None = None) -> dict[str, Any]:
    names = None if users is None else [{"name": name} for name in users]
    answer = await client.call("describe_user_scram_credentials", 0, users=names)
    assert answer.error_code == ErrorCode.none
    return {
        row.user: [(each.mechanism, each.iterations) for each in row.credential_infos] or row.error_code
        for row in answer.results
    }


OK = (ErrorCode.none, None)


async def test_users_are_created_changed_and_deleted(connect: Connect) -> None:
    async with connect() as client:
        rows = [upsertion("alice", "one", SHA_256), upsertion("bob", "two", SHA_512, 16384)]
        assert await alter(client, upsertions=rows) == {"alice": OK, "bob": OK}
        assert await alter(client, upsertions=[upsertion("alice", "one", SHA_512, 5000)]) == {"alice": OK}
        everything = {"alice": [(1, ITERATIONS), (2, 5000)], "bob": [(2, 16384)]}
        assert await described(client) == await described(client, []) == everything
        assert await described(client, ["bob"]) == {"bob": [(2, 16384)]}
        assert await alter(client, deletions=[{"name": "alice", "mechanism": 1}]) == {"alice": OK}
        assert await described(client, ["alice"]) == {"alice": [(2, 5000)]}
        await alter(client, deletions=[{"name": "alice", "mechanism": 2}])
        assert await described(client) == {"bob": [(2, 16384)]}


async def test_describe_refuses_row_by_row(connect: Connect) -> None:
    async with connect() as client:
        await alter(client, upsertions=[upsertion("alice", "one", SHA_256)])
        assert await described(client, ["alice", "nobody", "twice", "twice"]) == {
            "alice": [(1, ITERATIONS)],
            "nobody": ErrorCode.resource_not_found,
            "twice": ErrorCode.duplicate_resource,
        }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"name": ""}, (ErrorCode.unacceptable_credential, "Username must not be empty")),
        ({"iterations": 4095}, (ErrorCode.unacceptable_credential, "Too few iterations")),
        ({"iterations": 16385}, (ErrorCode.unacceptable_credential, "Too many iterations")),
        ({"iterations": -1}, (ErrorCode.unacceptable_credential, "Too few iterations")),
        ({"mechanism": 0}, (ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")),
        ({"mechanism": 3}, (ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")),
        ({"mechanism": 127}, (ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")),
        ({"salt": b""}, (ErrorCode.unacceptable_credential, "The salt must have 1 to 1024 bytes")),
        ({"salt": bytes(1025)}, (ErrorCode.unacceptable_credential, "The salt must have 1 to 1024 bytes")),
        (
            {"salted_password": b""},
            (ErrorCode.unacceptable_credential, "The salted password must be a digest"),
        ),
        (
            {"name": "ü" * 128},
            (ErrorCode.unacceptable_credential, "Username must not have more than 255 bytes"),
        ),
    ],
)
async def test_a_refused_row_leaves_the_others(connect: Connect, changed: Any, expected: Any) -> None:
    async with connect() as client:
        wrong = {**upsertion("wrong", "x", SHA_256), **changed}
        rows = [upsertion("alice", "one", SHA_256), wrong]
        assert await alter(client, upsertions=rows) == {"alice": OK, wrong["name"]: expected}
        assert list(await described(client)) == ["alice"]


async def test_a_user_is_named_once_in_a_request(connect: Connect) -> None:
    async with connect() as client:
        rows = [upsertion("alice", "one", SHA_256), upsertion("alice", "one", SHA_512)]
        found = await alter(client, upsertions=rows, deletions=[{"name": "bob", "mechanism": 1}])
        assert found["alice"][0] is ErrorCode.duplicate_resource
        assert found["bob"] == (
            ErrorCode.resource_not_found,
            "Attempt to delete a user credential that does not exist",
        )
        found = await alter(client, upsertions=rows[:1], deletions=[{"name": "alice", "mechanism": 1}])
        assert next(iter(found.values()))[0] is ErrorCode.duplicate_resource
        assert await described(client) == {}


async def test_there_is_nobody_to_disconnect(connect: Connect) -> None:
    async with connect() as client:
        await alter(client, upsertions=[upsertion("alice", "one", SHA_256)])
        found = await alter(client, deletions=[{"name": "alice", "mechanism": 127}])
        assert found == {"alice": (ErrorCode.resource_not_found, "The user has no open connection")}
        assert await described(client, ["alice"]) == {"alice": [(1, ITERATIONS)]}


def stored(broker: Broker) -> dict[bytes, bytes]:
    return dict(broker.state_store.scan(b"scram/"))


async def test_only_keys_are_stored_and_they_survive(connect: Connect, every_engine: str) -> None:
    row = upsertion("alice", "canary", SHA_512)
    async with connect(engine=every_engine) as client:
        assert client.broker.directory.description.format_version == FIRST_FORMAT
        await alter(client, upsertions=[row, upsertion("bob", "canary", SHA_256)])
        await alter(client, deletions=[{"name": "bob", "mechanism": 1}])
        assert client.broker.directory.description.format_version == SECURITY_FORMAT
        ((key, value),) = stored(client.broker).items()
        assert key == ScramKey(SHA_512, "alice").encode()
        assert row["salted_password"].hex().encode() not in value
        assert is_password(ScramCredential.decode(value), row["salted_password"], "sha512")
        fake = client.broker.security.credentials.for_scram("nobody", SHA_512)
        assert not fake.is_known
        assert SCRAM_SECRET.encode() in dict(client.broker.state_store.scan(b"meta/"))
    if every_engine == "memory":
        return
    async with connect(engine=every_engine) as client:
        assert await described(client) == {"alice": [(2, ITERATIONS)]}
        credentials = client.broker.security.credentials
        assert credentials.for_scram("nobody", SHA_512) == fake, "a restart must not tell who exists"
        found = credentials.for_password("alice")
        assert found.is_known
        assert is_password(found.credential, salt_password(b"canary", SALT, ITERATIONS, "sha512"), "sha512")


@pytest.mark.parametrize("error", [NoSpace("no space"), StoreFailed("broken by a test")])
async def test_a_refused_write_changes_nothing(connect: Connect, error: Exception) -> None:
    async with connect() as client:
        await alter(client, upsertions=[upsertion("alice", "one", SHA_256)])
        with refusing(client.broker.state_commits, error):
            rows = [upsertion("alice", "two", SHA_256, 5000), upsertion("bob", "two", SHA_256)]
            found = await alter(client, upsertions=rows)
            assert {code for code, _ in found.values()} == {ErrorCode.kafka_storage_error}
        assert await described(client) == {"alice": [(1, ITERATIONS)]}


async def test_made_up_credentials_look_like_those_of_most_users(connect: Connect) -> None:
    async with connect() as client:
        credentials = client.broker.security.credentials
        assert credentials.for_scram("x", SHA_256).credential.iterations == 8192
        kafkas = {"salt": b"1a2b3c4d5e6f7g8h9i0j1k2l3m"}
        for number in range(3):
            row = {**upsertion(f"user-{number}", "one", SHA_256, 4096), **(kafkas if number else {})}
            await alter(client, upsertions=[row])
        made_up = credentials.for_scram("x", SHA_256)
        assert not made_up.is_known
        assert made_up.credential.iterations == 4096
        assert len(made_up.credential.salt) == 26
        assert made_up.credential.salt.isalnum()
        assert credentials.for_scram("y", SHA_256).credential.salt != made_up.credential.salt
        assert credentials.for_password("x").mechanism is SHA_256
        for number in range(3):
            await alter(client, deletions=[{"name": f"user-{number}", "mechanism": 1}])
        assert credentials.for_scram("x", SHA_256).credential.iterations == 8192
