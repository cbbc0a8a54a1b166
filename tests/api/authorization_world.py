"""A broker with an authorizer, clients of several principals, and a request of every API.

`Names` are the resources that a request names, so that a request can be sent for existing and for
missing ones. Both names of a kind have the same length, so answers can be compared byte by byte.
`FIELDS` has one request or more for each API, with the fields of all versions.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from kbroker.api import handler_of
from kbroker.api.request import Later, Raw, Request
from kbroker.broker.connection import ClientConnection
from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo, Record, build_batch
from kbroker.protocol.messages import build, encode, encode_response, request_schema
from kbroker.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from kbroker.security.principals import user
from tests.api.conftest import KEYS, Client, Connect
from tests.api.transaction_clients import begin
from tests.server.numeric_fields import batch

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
    "group.initial.rebalance.delay.ms": "0",
}
Values: TypeAlias = dict[str, Any]
NO_ID = UUID(int=0)


class Names(NamedTuple):
    topic: str
    topic_id: UUID
    group: str
    consumer_group: str
    share_group: str
    transactional_id: str


MISSING = Names("absent", UUID(int=77), "missing", "nonesuch", "no-queue", "tx-two")


class World:
    """`client` may do everything, as the broker's own parts may. The resources of `names` exist."""

    def __init__(self, client: Client, names: Names) -> None:
        self.client = client
        self.names = names
        self._connections = 100

    def client_of(self, name: str, host: str = "127.0.0.1") -> Client:
        """A new connection of a user."""
        self._connections += 1
        made = Client(self.client.broker, self._connections)
        made.connection = ClientConnection(self._connections, host, self.client.broker.deadlines)
        made.connection.principal = principal = user(name)
        made.connection.rights = self.client.broker.acls.rights_of(principal, host)
        return made

    async def allow(self, name: str, operation: Operation, kind: ResourceType, *names: str) -> None:
        await self.client.broker.acls.create(acls(name, operation, kind, names))

    async def deny(self, name: str, operation: Operation, kind: ResourceType, *names: str) -> None:
        found = acls(name, operation, kind, names)
        await self.client.broker.acls.create(each._replace(permission=Permission.DENY) for each in found)

    def resources(self, kind: ResourceType) -> Sequence[str]:
        """The names of the resources of a kind."""
        names = self.names
        return {
            ResourceType.TOPIC: (names.topic,),
            ResourceType.GROUP: (names.group, names.consumer_group, names.share_group),
            ResourceType.CLUSTER: (CLUSTER_NAME,),
            ResourceType.TRANSACTIONAL_ID: (names.transactional_id,),
        }[kind]


def acls(name: str, operation: Operation, kind: ResourceType, names: Iterable[str]) -> list[Acl]:
    """Entries that allow a user an operation."""
    return [
        Acl(kind, PatternType.LITERAL, each, f"User:{name}", "*", operation, Permission.ALLOW)
        for each in names
    ]


@asynccontextmanager
async def opened(connect: Connect, **config: str) -> AsyncIterator[World]:
    """A topic with records, a group of each type with a member and offsets, and a transaction."""
    async with connect(config={**AUTHORIZER, **config}) as client:
        row = await client.create_topic("orders", 2)
        topic_id = UUID(bytes=row.topic_id.bytes)
        names = Names("orders", topic_id, "workers", "consumer", "jobs-all", "tx-one")
        await client.append("orders", 1, 2, 3)
        await client.call("offset_commit", 9, **_offset_commit(names))
        await client.call("consumer_group_heartbeat", 1, **_consumer_heartbeat(names))
        await client.call("share_group_heartbeat", 1, **_share_heartbeat(names))
        await begin(client, "tx-one", orders=[0])
        yield World(client, names)


async def raw(client: Client, api: str, version: int, fields: Mapping[str, Any]) -> bytes:
    """The body of the answer; none for acks=0."""
    key = KEYS[api]
    body = build(request_schema(key, version), {"timeout": 1000, **fields})
    encode(body)
    answer: Any = handler_of(key)(Request(client.broker, client.connection, key, version, "test", body))
    if inspect.iscoroutine(answer):
        answer = await answer
    if isinstance(answer, Later):
        await answer.pending.wait()
        answer = answer.body()
    if isinstance(answer, Raw):
        return b"".join(bytes(each) for each in answer.buffers)
    return encode_response(key, version, answer)


def _topic(names: Names, *rows: Values, key: str = "partitions") -> list[Values]:
    """By name and by id: each version uses the field that it has."""
    return [{"topic_id": names.topic_id, "name": names.topic, "topic": names.topic, key: rows or [0]}]


def _offset_commit(names: Names) -> Values:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return {"group_id": names.group, **member, "retention_time": -1, "topics": _topic(names, row)}


def _consumer_heartbeat(names: Names, **more: Any) -> Values:
    return {
        "group_id": names.consumer_group, "member_id": "m", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 30_000, "subscribed_topic_names": [names.topic],
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [], **more,
    }  # fmt: skip


def _share_heartbeat(names: Names) -> Values:
    return {
        "group_id": names.share_group, "member_id": "m", "member_epoch": 0, "rack_id": None,
        "subscribed_topic_names": [names.topic],
    }  # fmt: skip


def _produce(names: Names) -> Values:
    row = {"index": 0, "records": batch()}
    return {"acks": -1, "transactional_id": None, "topic_data": _topic(names, row, key="partition_data")}


def transactional_batch(producer_id: int = 0, epoch: int = 0) -> bytes:
    return build_batch(
        [Record(0, 1, None, b"x", ())], producer=ProducerInfo(producer_id, epoch, 0), attributes=TRANSACTIONAL
    )


def _produce_in_transaction(names: Names) -> Values:
    row = {"index": 0, "records": transactional_batch()}
    topics = _topic(names, row, key="partition_data")
    return {"acks": -1, "transactional_id": names.transactional_id, "topic_data": topics}


def _fetch(names: Names) -> Values:
    row = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "rack_id": "", "isolation_level": 0}
    session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": ()}
    return {**limits, **session, "topics": _topic(names, row)}


def share_fetch(names: Names, epoch: int = 0, rows: Sequence[Values] = (), wait_ms: int = 0) -> Values:
    """Without a wait a share-partition that is not loaded yet has no records."""
    limits = {
        "max_wait": wait_ms,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "max_records": 100,
        "batch_size": 100,
    }
    row = {"partition_index": 0, "acknowledgement_batches": ()}
    member = {"group_id": names.share_group, "member_id": "m", "share_session_epoch": epoch}
    mode = {"share_acquire_mode": 0, "is_renew_ack": False, "forgotten_topics_data": ()}
    return {**limits, **member, **mode, "topics": _topic(names, *(rows or [row]))}


def share_acknowledge(names: Names, epoch: int, first: int = 0, last: int = 2) -> Values:
    batches = [{"first_offset": first, "last_offset": last, "acknowledge_types": [1]}]
    row = {"partition_index": 0, "acknowledgement_batches": batches}
    member = {"group_id": names.share_group, "member_id": "m", "share_session_epoch": epoch}
    return {**member, "is_renew_ack": False, "topics": _topic(names, row)}


def _classic(names: Names, **more: Any) -> Values:
    return {
        "group_id": names.group, "member_id": "m", "group_instance_id": None, "generation_id": 1, **more,
    }  # fmt: skip


def _join(names: Names) -> Values:
    timeouts = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
    protocols = [{"name": "range", "metadata": b""}]
    more = {"protocol_type": "consumer", "protocols": protocols, "reason": None}
    return _classic(names, **timeouts, **more, **{"member_id": "m"})


def _new_topics(names: Names) -> Values:
    counts = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    topics = [{"name": name, **counts} for name in (names.topic, "created")]
    return {"topics": topics, "validate_only": True}


def _added(names: Names) -> Values:
    topics = [{"name": names.topic, "partitions": [0]}]
    producer = {"producer_id": 0, "producer_epoch": 0, "verify_only": True}
    return {
        "transactions": [{"transactional_id": names.transactional_id, **producer, "topics": topics}],
        "v3_and_below_transactional_id": names.transactional_id, "v3_and_below_producer_id": 0,
        "v3_and_below_producer_epoch": 0, "v3_and_below_topics": topics,
    }  # fmt: skip


def _of_transaction(names: Names, **more: Any) -> Values:
    return {"transactional_id": names.transactional_id, "producer_id": 0, "producer_epoch": 0, **more}


def _init(transactional_id: str | None) -> Values:
    return {
        "transactional_id": transactional_id, "transaction_timeout": 60_000, "producer_id": -1,
        "producer_epoch": -1,
    }  # fmt: skip


def _txn_offset_commit(names: Names) -> Values:
    row = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_metadata": "",
        "committed_leader_epoch": -1,
    }
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    return _of_transaction(names, group_id=names.group, **member, topics=_topic(names, row))


def _markers(names: Names) -> Values:
    topics = [{"name": names.topic, "partition_indexes": [1]}]
    marker = {"producer_id": 4711, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    return {"markers": [{**marker, "transaction_version": 0, "topics": topics}]}


def _acl_filter() -> Values:
    return {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": "User:stranger", "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip


def _acl() -> Values:
    return {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:stranger",
        "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip


def _configs(names: Names, **more: Any) -> Values:
    kinds = ((2, names.topic), (4, ""), (8, "1"), (32, names.group))
    rows = [{"resource_type": kind, "resource_name": name, **more} for kind, name in kinds]
    return {
        "resources": rows,
        "validate_only": True,
        "include_synonyms": False,
        "include_documentation": False,
    }


def _state(names: Names, **row: Any) -> Values:
    return {"group_id": names.share_group, "topics": _topic(names, {"partition": 0, **row})}


def _share_offsets(names: Names) -> Values:
    rows = [{"partition_index": 0, "start_offset": 1}]
    topics = [{"topic_name": names.topic, "partitions": rows}]
    return {"group_id": names.share_group, "topics": topics}


def _offset_fetch(names: Names, *, all_topics: bool = False) -> Values:
    topics = None if all_topics else [{**each, "partition_indexes": [0]} for each in _topic(names)]
    member = {"member_id": None, "member_epoch": -1}
    groups = [{"group_id": names.group, **member, "topics": topics}]
    return {"groups": groups, "group_id": names.group, "topics": topics, "require_stable": False}


def _metadata(*topics: Values, every: bool = False) -> Values:
    return {
        "topics": None if every else topics, "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False, "include_cluster_authorized_operations": True,
    }  # fmt: skip


FIELDS: Mapping[str, Callable[[Names], Sequence[Values]]] = {
    "produce": lambda n: [_produce(n), _produce_in_transaction(n)],
    "fetch": lambda n: [_fetch(n)],
    "list_offsets": lambda n: [
        {"replica_id": -1, "isolation_level": 0,
         "topics": _topic(n, {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1})}
    ],
    "metadata": lambda n: [
        _metadata({"name": n.topic, "topic_id": None}, {"name": "created", "topic_id": None}),
    ],
    "offset_commit": lambda n: [_offset_commit(n)],
    "offset_fetch": lambda n: [_offset_fetch(n)],
    "find_coordinator": lambda n: [
        {"key_type": kind, "key": key, "coordinator_keys": [key]}
        for kind, key in ((0, n.group), (1, n.transactional_id), (2, f"{n.share_group}:{'A' * 22}:0"))
    ],
    "join_group": lambda n: [_join(n)],
    "heartbeat": lambda n: [_classic(n)],
    "leave_group": lambda n: [_classic(n, members=[{"member_id": "m", "group_instance_id": None}])],
    "sync_group": lambda n: [_classic(n, protocol_type="consumer", protocol_name="range", assignments=())],
    "describe_groups": lambda n: [{"groups": [n.group], "include_authorized_operations": True}],
    "list_groups": lambda n: [{"states_filter": (), "types_filter": ()}],
    "create_topics": lambda n: [_new_topics(n)],
    "delete_topics": lambda n: [
        {"topics": [{"name": n.topic, "topic_id": None}], "topic_names": [n.topic]}
    ],
    "delete_records": lambda n: [{"topics": _topic(n, {"partition_index": 0, "offset": 0})}],
    "init_producer_id": lambda n: [_init(None), _init(n.transactional_id)],
    "add_partitions_to_txn": lambda n: [_added(n)],
    "add_offsets_to_txn": lambda n: [_of_transaction(n, group_id=n.group)],
    "end_txn": lambda n: [_of_transaction(n, committed=True)],
    "write_txn_markers": lambda n: [_markers(n)],
    "txn_offset_commit": lambda n: [_txn_offset_commit(n)],
    "describe_producers": lambda n: [{"topics": [{"name": n.topic, "partition_indexes": [0]}]}],
    "describe_transactions": lambda n: [{"transactional_ids": [n.transactional_id]}],
    "list_transactions": lambda n: [
        {"state_filters": (), "producer_id_filters": (), "duration_filter": -1,
         "transactional_id_pattern": None}
    ],
    "offset_for_leader_epoch": lambda n: [
        {"replica_id": -1,
         "topics": _topic(n, {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1})}
    ],
    "describe_acls": lambda n: [_acl_filter()],
    "create_acls": lambda n: [{"creations": [_acl()]}],
    "delete_acls": lambda n: [{"filters": [_acl_filter()]}],
    "describe_client_quotas": lambda n: [{"components": (), "strict": False}],
    "alter_client_quotas": lambda n: [
        {
            "entries": [{"entity": [{"entity_type": "user", "entity_name": "alice"}], "ops": ()}],
            "validate_only": True,
        }
    ],
    "describe_user_scram_credentials": lambda n: [{"users": None}],
    "alter_user_scram_credentials": lambda n: [
        {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": ()}
    ],
    "describe_configs": lambda n: [_configs(n, configuration_keys=None)],
    "alter_configs": lambda n: [_configs(n, configs=())],
    "incremental_alter_configs": lambda n: [_configs(n, configs=())],
    "describe_log_dirs": lambda n: [{"topics": [{**each, "partitions": [0]} for each in _topic(n)]}],
    "create_partitions": lambda n: [
        {"topics": [{"name": n.topic, "count": 3, "assignments": None}], "validate_only": True}
    ],
    "alter_replica_log_dirs": lambda n: [
        {"dirs": [{"path": "/nowhere", "topics": [{"name": n.topic, "partitions": [0]}]}]}
    ],
    "elect_leaders": lambda n: [
        {"election_type": 0, "topic_partitions": [{"topic": n.topic, "partitions": [0]}]}
    ],
    "alter_partition_reassignments": lambda n: [
        {"topics": [{"name": n.topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}]}
    ],
    "list_partition_reassignments": lambda n: [
        {"topics": [{"name": n.topic, "partition_indexes": [0]}]}
    ],
    "describe_quorum": lambda n: [
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    ],
    "update_features": lambda n: [
        {"feature_updates": [
            {"feature": "share.version", "max_version_level": 2, "upgrade_type": 1, "allow_downgrade": False}
        ], "validate_only": True}
    ],
    "delete_groups": lambda n: [{"groups_names": [n.group]}],
    "offset_delete": lambda n: [{"group_id": n.group, "topics": _topic(n, {"partition_index": 1})}],
    "describe_cluster": lambda n: [
        {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False}
    ],
    "consumer_group_heartbeat": lambda n: [_consumer_heartbeat(n)],
    "consumer_group_describe": lambda n: [
        {"group_ids": [n.consumer_group], "include_authorized_operations": True}
    ],
    "list_config_resources": lambda n: [{"resource_types": [2, 4, 32]}],
    "describe_topic_partitions": lambda n: [
        {"topics": [{"name": n.topic}], "response_partition_limit": 10, "cursor": None}
    ],
    "share_group_heartbeat": lambda n: [_share_heartbeat(n)],
    "share_group_describe": lambda n: [
        {"group_ids": [n.share_group], "include_authorized_operations": True}
    ],
    "share_fetch": lambda n: [share_fetch(n)],
    "share_acknowledge": lambda n: [share_acknowledge(n, -1)],
    "initialize_share_group_state": lambda n: [_state(n, state_epoch=0, start_offset=0)],
    "read_share_group_state": lambda n: [_state(n, leader_epoch=0)],
    "write_share_group_state": lambda n: [
        _state(n, state_epoch=0, leader_epoch=0, start_offset=0, delivery_complete_count=0, state_batches=[])
    ],
    "delete_share_group_state": lambda n: [_state(n)],
    "read_share_group_state_summary": lambda n: [_state(n, leader_epoch=0)],
    "describe_share_group_offsets": lambda n: [
        {"groups": [{"group_id": n.share_group, "topics": [{"topic_name": n.topic, "partitions": [0]}]}]}
    ],
    "alter_share_group_offsets": lambda n: [_share_offsets(n)],
    "delete_share_group_offsets": lambda n: [_share_offsets(n)],
}  # fmt: skip
"""Requests that name resources of every kind of their API's needs."""
OPEN: Mapping[str, Values] = {
    "sasl_handshake": {"mechanism": "PLAIN"},
    "sasl_authenticate": {"auth_bytes": b""},
    "api_versions": {"client_software_name": "x", "client_software_version": "1"},
    "get_telemetry_subscriptions": {"client_instance_id": None},
    "create_delegation_token": {
        "owner_principal_type": None, "owner_principal_name": None, "renewers": (), "max_lifetime": -1,
    },
    "renew_delegation_token": {"hmac": b"x", "renew_period": 1000},
    "expire_delegation_token": {"hmac": b"x", "expiry_time_period": 1000},
    "describe_delegation_token": {"owners": None},
    "push_telemetry": {
        "client_instance_id": UUID(int=9), "subscription_id": 1, "terminating": False, "compression_type": 0,
        "metrics": b"",
    },
}  # fmt: skip
"""Requests of the APIs that need nothing."""
LISTS: Mapping[str, Callable[[Names], Values]] = {
    "metadata": lambda n: _metadata(every=True),
    "offset_fetch": lambda n: _offset_fetch(n, all_topics=True),
    "describe_topic_partitions": lambda n: {"topics": (), "response_partition_limit": 10, "cursor": None},
    "list_groups": lambda n: {"states_filter": (), "types_filter": ()},
    "list_transactions": lambda n: FIELDS["list_transactions"](n)[0],
    "describe_share_group_offsets": lambda n: {"groups": [{"group_id": n.share_group, "topics": None}]},
}
"""Requests for everything, of which a client gets what it may see."""
