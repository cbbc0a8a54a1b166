"""Every API as a client without rights, with all of them, and without one of them, generated from
the column `needs` of the table of APIs. An API without a request in authorization_world.py fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from kbroker.api import ADMIN_ACTIONS, APIS, NEEDS, NOTHING, Need, parse_needs
from kbroker.errors import ErrorCode
from kbroker.protocol.messages import build, request_schema
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights, SharedMemory
from tests.api.authorization_world import FIELDS, LISTS, MISSING, OPEN, World, opened, raw, share_fetch
from tests.api.conftest import KEYS, Client, Connect, _decoded, response_schema, versions

TOPIC, GROUP, CLUSTER, ID = (
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
)
DENIALS = frozenset({TOPIC, GROUP, CLUSTER, ID})
REFUSED = {
    "produce": {TOPIC, ID},
    "fetch": {TOPIC},
    "list_offsets": {TOPIC},
    "metadata": {TOPIC},
    "offset_commit": {GROUP},
    "offset_fetch": {GROUP},
    "find_coordinator": {GROUP, ID, CLUSTER},
    "join_group": {GROUP},
    "heartbeat": {GROUP},
    "leave_group": {GROUP},
    "sync_group": {GROUP},
    "describe_groups": {GROUP},
    "create_topics": {TOPIC},
    "delete_topics": {TOPIC},
    "delete_records": {TOPIC},
    "init_producer_id": {CLUSTER, ID},
    "offset_for_leader_epoch": {TOPIC},
    "add_partitions_to_txn": {CLUSTER},
    "add_offsets_to_txn": {ID},
    "end_txn": {ID},
    "write_txn_markers": {CLUSTER},
    "txn_offset_commit": {ID},
    "describe_acls": {CLUSTER},
    "create_acls": {CLUSTER},
    "delete_acls": {CLUSTER},
    "describe_client_quotas": {CLUSTER},
    "alter_client_quotas": {CLUSTER},
    "describe_user_scram_credentials": {CLUSTER},
    "alter_user_scram_credentials": {CLUSTER},
    "describe_configs": {TOPIC, CLUSTER, GROUP},
    "alter_configs": {TOPIC, CLUSTER, GROUP, ErrorCode.invalid_request},  # loggers need the other API
    "incremental_alter_configs": {TOPIC, CLUSTER, GROUP},
    "describe_log_dirs": {CLUSTER},
    "create_partitions": {TOPIC},
    "alter_replica_log_dirs": {CLUSTER},
    "elect_leaders": {CLUSTER},
    "alter_partition_reassignments": {CLUSTER},
    "list_partition_reassignments": {CLUSTER},
    "describe_quorum": {CLUSTER},
    "update_features": {CLUSTER},
    "delete_groups": {GROUP},
    "offset_delete": {GROUP},
    "describe_producers": {TOPIC},
    "describe_transactions": {ID},
    "consumer_group_heartbeat": {GROUP},
    "consumer_group_describe": {GROUP},
    "list_config_resources": {CLUSTER},
    "describe_topic_partitions": {TOPIC},
    "share_group_heartbeat": {GROUP},
    "share_group_describe": {GROUP},
    "share_fetch": {GROUP},
    "share_acknowledge": {GROUP},
    "initialize_share_group_state": {CLUSTER},
    "read_share_group_state": {CLUSTER},
    "write_share_group_state": {CLUSTER},
    "delete_share_group_state": {CLUSTER},
    "read_share_group_state_summary": {CLUSTER},
    "describe_share_group_offsets": {GROUP},
    "alter_share_group_offsets": {GROUP},
    "delete_share_group_offsets": {GROUP},
}
"""The codes of a client without any right, in the newest version."""
HIDING = {"list_groups", "list_transactions", "describe_cluster"}
"""APIs that refuse nothing, but leave out what the client may not see."""
IMPLIED = {("delete_topics", Need(Operation.DESCRIBE, ResourceType.TOPIC))}
"""Rights that others of the row imply. The handler looks at them because they may be denied."""
BY_NAME = {"produce": 12, "fetch": 12, "offset_commit": 9, "offset_fetch": 9, "txn_offset_commit": 5}
"""The newest versions that name topics, of APIs whose later versions have ids."""


def codes_in(answer: Any) -> Iterator[int]:
    """All codes of an answer, other than 0."""
    if isinstance(answer, ErrorCode):
        if answer:
            yield answer
    elif is_dataclass(answer):
        for field in fields(answer):
            value = getattr(answer, field.name)
            if field.name == "topic_config_error_code" and value:
                yield ErrorCode(value)
            yield from codes_in(value)
    elif isinstance(answer, tuple):
        for each in answer:
            yield from codes_in(each)


async def prepare(world: World, module: str) -> None:
    """Only a member with a session may acknowledge."""
    if module == "share_acknowledge":
        await raw(world.client, "share_fetch", 2, share_fetch(world.names))


async def codes_of(client: Client, module: str, version: int, values: dict[str, Any]) -> set[int]:
    body = await raw(client, module, version, values)
    if module == "describe_transactions":  # kio cannot decode it: see tests/api/transaction_clients.py
        return {ErrorCode(int.from_bytes(body[5:7], "big"))} - {ErrorCode.none}
    return set(codes_in(_decoded(response_schema(KEYS[module], version), body)))


async def all_codes(world: World, client: Client, module: str, version: int) -> set[int]:
    found: set[int] = set()
    for values in FIELDS[module](world.names):
        await prepare(world, module)
        found |= await codes_of(client, module, version, values)
    return found


def groups_of(text: str) -> list[list[Need]]:
    """The column as a list of alternatives."""
    found: list[list[Need]] = []
    for part in text.split("; "):
        needs = list(parse_needs(part))
        found += [needs] if " or " in part else [[need] for need in needs]
    return found


async def grant(world: World, name: str, needs: list[Need]) -> None:
    for need in needs:
        await world.allow(name, need.operation, need.kind, *world.resources(need.kind))
        if need.kind is ResourceType.TOPIC:
            await world.allow(name, need.operation, need.kind, "created")


NEEDY = [api.module for api in APIS.values() if api.needs != NOTHING]


def test_every_api_has_a_request_and_an_expectation() -> None:
    assert set(FIELDS) == set(NEEDY)
    assert set(REFUSED) | HIDING == set(NEEDY)
    assert set(OPEN) == {api.module for api in APIS.values() if api.needs == NOTHING}


@pytest.mark.parametrize(
    "text", ["", "READ", "READ stream", "FLY topic", "ALL topic", "READ topic;READ group"]
)
def test_a_row_without_proper_needs_stops_the_start(text: str) -> None:
    """The table is parsed when kbroker.api is imported."""
    with pytest.raises(ValueError, match="no operation and kind of resource"):
        parse_needs(text)
    assert NEEDS.keys() == APIS.keys() | ADMIN_ACTIONS.keys()


@pytest.mark.parametrize("module", NEEDY)
async def test_nobody_is_refused_in_every_version(module: str, connect: Connect) -> None:
    """RPC-65..70, GRP-3"""
    async with opened(connect) as world:
        nobody = world.client_of("nobody")
        for version in versions(module):
            found = await all_codes(world, nobody, module, version)
            if module in HIDING or (module == "describe_log_dirs" and version < 3):
                assert found == set(), version
            elif module == "add_partitions_to_txn" and version < 4:
                assert found == {ID}, version
            elif version == APIS[KEYS[module]].last:
                assert found == REFUSED[module], version
            else:
                assert found, version
                assert found <= REFUSED[module] | {ErrorCode.invalid_request}, version
        await unchanged(world)


async def unchanged(world: World) -> None:
    """Nobody has changed anything."""
    broker, names = world.client.broker, world.names
    assert [topic.name for topic in broker.topics] == [names.topic]
    assert world.client.partition(names.topic).high_watermark == 3
    assert len(broker.topics.by_name(names.topic).partitions) == 2
    assert broker.acls.statistics().acls == 0
    for group_id in (names.group, names.consumer_group, names.share_group):
        assert broker.group_ids.type_of(group_id) is not None
    consumers = broker.consumer_group_service.groups.consumer
    assert list(consumers.existing(names.consumer_group).members) == ["m"]
    record = broker.transactions.coordinator.record(names.transactional_id)
    assert record is not None
    assert (record.producer_epoch, len(record.partitions), record.groups) == (0, 1, frozenset())


@pytest.mark.parametrize("module", NEEDY)
async def test_the_rights_of_the_table_are_enough_and_each_is_needed(module: str, connect: Connect) -> None:
    api = APIS[KEYS[module]]
    groups = groups_of(api.needs)
    async with opened(connect) as world:
        for number, alternatives in enumerate(groups):
            if (module, *alternatives) in IMPLIED:
                continue
            others = [need for each in groups if each is not alternatives for need in each]
            name = f"without-{number}"
            await grant(world, name, others)
            missing = await answers(world, world.client_of(name), module)
            one = f"alternative-{number}"
            for need in alternatives:
                await grant(world, f"{one}-{need.kind.name}-{need.operation.name}", [*others, need])
            allowed = [
                await answers(world, world.client_of(f"{one}-{need.kind.name}-{need.operation.name}"), module)
                for need in alternatives
            ]
            assert all(each != missing for each in allowed), alternatives
        await grant(world, "full", [need for each in groups for need in each])
        for version in versions(module):
            found = await all_codes(world, world.client_of("full"), module, version)
            if (module, version) == ("find_coordinator", 0):
                found -= {GROUP}  # It has no types: the other keys are ids of groups, too.
            assert not found & DENIALS, version


async def answers(world: World, client: Client, module: str) -> list[bytes]:
    """In two versions, as several APIs had other rules in old ones."""
    last = APIS[KEYS[module]].last
    found = []
    for version in (3, last) if module == "add_partitions_to_txn" else (last,):
        for values in FIELDS[module](world.names):
            await prepare(world, module)
            found.append(await raw(client, module, version, values))
    if world.client.broker.topics.by_name("created") is not None:
        await world.client.call("delete_topics", 5, topic_names=["created"])
    return found


class Recorded(Rights):
    """Notes every right that a handler looks at, and grants all."""

    __slots__ = ("asked",)

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self.has(operation, kind, name)

    def has(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.asked.add(Need(operation, kind))
        return True

    def operations(self, kind: ResourceType, name: str) -> int:
        return 0


class Refusing(Recorded):
    """Grants nothing on the cluster, so that the handler looks at the alternative."""

    __slots__ = ()

    def has(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        super().has(operation, kind, name)
        return kind is not ResourceType.CLUSTER

    def allows_any_topic(self, operation: Operation) -> bool:
        self.asked.add(Need(operation, ResourceType.TOPIC))
        return True


@pytest.mark.parametrize("module", [*NEEDY, *OPEN])
async def test_a_handler_looks_at_the_rights_of_its_row_and_no_others(module: str, connect: Connect) -> None:
    asked: set[Need] = set()
    async with opened(connect) as world:
        authorizer = world.client.broker.acls._authorizer
        for kind in (Refusing, Recorded):
            client = world.client_of("recorded")
            principal = client.connection.principal
            rights = kind(principal, "127.0.0.1", authorizer, lambda *_: None, SharedMemory())
            rights.asked = asked
            client.connection.rights = rights
            requests = [OPEN[module]] if module in OPEN else FIELDS[module](world.names)
            for version in versions(module):
                for values in requests:
                    await prepare(world, module)
                    await raw(client, module, version, values)
    assert asked == set(NEEDS[KEYS[module]])


def named_requests() -> Iterator[tuple[str, int]]:
    for module in NEEDY:
        yield module, BY_NAME.get(module, APIS[KEYS[module]].last)


BY_ID_ONLY = {
    "share_fetch", "share_acknowledge", "initialize_share_group_state", "read_share_group_state",
    "write_share_group_state", "delete_share_group_state", "read_share_group_state_summary",
}  # fmt: skip
"""These name topics by id. A group without READ is refused as a whole."""


@pytest.mark.parametrize(("module", "version"), [*named_requests()])
async def test_a_hidden_name_looks_like_a_missing_one(module: str, version: int, connect: Connect) -> None:
    async with opened(connect) as world:
        nobody = world.client_of("nobody")
        missing = MISSING._replace(topic_id=world.names.topic_id) if module in BY_ID_ONLY else MISSING
        pairs = zip(FIELDS[module](world.names), FIELDS[module](missing), strict=True)
        for hidden_values, missing_values in pairs:
            hidden = await raw(nobody, module, version, hidden_values)
            found = await raw(nobody, module, version, missing_values)
            for one, other in zip(world.names, missing, strict=True):
                if isinstance(one, str) and isinstance(other, str):
                    assert len(one) == len(other)
                    hidden = hidden.replace(one.encode(), other.encode())
            assert hidden == found


@pytest.mark.parametrize("module", LISTS)
async def test_lists_leave_out_what_a_client_may_not_see(module: str, connect: Connect) -> None:
    version = BY_NAME.get(module, APIS[KEYS[module]].last)
    async with opened(connect) as world:
        names = [each.encode() for each in world.names if isinstance(each, str)]
        nobody, somebody = world.client_of("nobody"), world.client_of("somebody")
        for kind in (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            await world.allow("somebody", Operation.DESCRIBE, kind, *world.resources(kind))
        if module in ("offset_fetch", "describe_share_group_offsets"):
            for name in ("nobody", "somebody"):
                await world.allow(
                    name, Operation.DESCRIBE, ResourceType.GROUP, *world.resources(ResourceType.GROUP)
                )
        await world.allow("somebody", Operation.READ, ResourceType.TOPIC, world.names.topic)
        values = LISTS[module](world.names)
        seen = await raw(somebody, module, version, values)
        hidden = await raw(nobody, module, version, values)
        asked = world.names.share_group.encode(), world.names.group.encode()
        if module in ("offset_fetch", "describe_share_group_offsets"):
            names = [each for each in names if each not in asked]
        assert any(each in seen for each in names)
        assert not any(each in hidden for each in names)
        if module not in ("metadata", "describe_topic_partitions"):  # These have operations, too.
            assert seen == await raw(world.client, module, version, values)


def test_codes_are_found_in_answers() -> None:
    body = build(request_schema(18, 3), {"client_software_name": "x", "client_software_version": "1"})
    assert set(codes_in((ErrorCode.none, (TOPIC, body)))) == {TOPIC}
