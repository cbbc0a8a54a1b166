"""Requests with one extreme number in them: every numeric field of every served API, in the newest
version that has the field.

`REQUESTS` has, for each API, a request that the broker accepts. Fields with a default that it
leaves out are tested as well. A number is written into the bytes, because kio's types refuse some
numbers that a client can send: two encodings that differ in the field's last bit show its place.
Share groups, and topics that a request changes, are new for each number, so that no case hides the
stored state of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import count
from typing import Any, NamedTuple, TypeAlias, get_args, get_type_hints
from uuid import UUID

from kbroker.api import APIS, Api
from kbroker.client.rpc import Connection
from kbroker.formats.batches import Record, build_batch
from kbroker.protocol.messages import build, encode, request_schema

Values: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str | int, ...]
CORRELATION_ID = 7
_SIZES = {
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}
_YEAR_10000_MS = 253_402_300_800_000
PARTITIONS = 2
_NUMBERS = count(1)
"""For names: one broker serves several tests."""


class Topic(NamedTuple):
    name: str
    topic_id: UUID


class World:
    """Topics and groups of one broker. `share_group` and `topic` are new with every case."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.topic = self.new_topic()
        self.share_group = f"share-{next(_NUMBERS)}"
        self._classic: Values = {}
        self._transactional_id = ""

    def new_topic(self) -> Topic:
        """With three records in each partition."""
        name = f"topic-{next(_NUMBERS)}"
        topic = {
            "name": name,
            "num_partitions": PARTITIONS,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }
        (row,) = self.connection.call(
            "create_topics", 7, topics=[topic], timeout=10_000, validate_only=False
        ).topics
        assert row.error_code == 0, row
        topic_id = UUID(bytes=row.topic_id.bytes)
        data = [
            {
                "topic_id": topic_id,
                "partition_data": [{"index": index, "records": batch()} for index in range(PARTITIONS)],
            }
        ]
        produced = self.connection.call(
            "produce", 13, acks=-1, timeout=10_000, transactional_id=None, topic_data=data
        )
        assert {row.error_code for each in produced.responses for row in each.partition_responses} == {0}
        return Topic(name, topic_id)

    def begin_case(self, api: Api) -> None:
        if api.module in CHANGES_TOPIC:
            self.topic = self.new_topic()
        self.share_group = f"share-{next(_NUMBERS)}"
        if api.module in NEEDS_STATE:
            rows = [{"partition": index, "state_epoch": 0, "start_offset": 0} for index in range(PARTITIONS)]
            topics = [{"topic_id": self.topic.topic_id, "partitions": rows}]
            self.connection.call("initialize_share_group_state", 0, group_id=self.share_group, topics=topics)
        if api.module == "share_acknowledge":
            self.connection.call("share_fetch", 2, **share_fetch(self))

    def transactional_id(self) -> str:
        if not self._transactional_id:
            self._transactional_id = _transaction(self)["transactional_id"]
        return self._transactional_id

    def classic_member(self) -> Values:
        """The only member of a classic group."""
        if not self._classic:
            timeouts = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
            group_id, protocols = f"classic-{next(_NUMBERS)}", [{"name": "range", "metadata": b""}]
            asked = {
                "group_id": group_id,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": protocols,
            }
            joined = self.connection.call("join_group", 3, **timeouts, **asked)
            assert joined.error_code == 0
            self._classic = {
                "group_id": group_id,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
            }
            self.connection.call("sync_group", 3, **self._classic, group_instance_id=None, assignments=())
        return self._classic


def batch() -> bytes:
    return build_batch([Record(0, 1_700_000_000_000 + each, None, b"x", ()) for each in range(3)])


def _of_topic(world: World, *rows: Values, key: str = "partitions") -> list[Values]:
    """By name and by id: each version uses the field that it has."""
    name, topic_id = world.topic
    return [{"topic_id": topic_id, "name": name, "topic": name, "topic_name": name, key: list(rows)}]


def share_fetch(world: World) -> Values:
    row = {"partition_index": 0, "acknowledgement_batches": ()}
    return {
        "group_id": world.share_group, "member_id": "m", "share_session_epoch": 0, "max_wait": 0,
        "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 2, "batch_size": 2,
        "topics": [{"topic_id": world.topic.topic_id, "partitions": [row]}], "forgotten_topics_data": (),
    }  # fmt: skip


def _share_acknowledge(world: World) -> Values:
    rows = {
        "partition_index": 0,
        "acknowledgement_batches": [{"first_offset": 0, "last_offset": 1, "acknowledge_types": [1]}],
    }
    return {
        "group_id": world.share_group,
        "member_id": "m",
        "share_session_epoch": 1,
        "topics": _of_topic(world, rows),
    }


def _fetch(world: World) -> Values:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    forgotten = [{"topic_id": world.topic.topic_id, "topic": world.topic.name, "partitions": [1]}]
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "rack_id": ""}
    return {**limits, "topics": _of_topic(world, row), "forgotten_topics_data": forgotten}


def _offset_commit(world: World) -> Values:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    group = {"group_id": "committed", "generation_id_or_member_epoch": -1, "member_id": ""}
    return {**group, "retention_time": -1, "topics": _of_topic(world, row)}


def _offset_fetch(world: World) -> Values:
    topics = [{**each, "partition_indexes": [0]} for each in _of_topic(world)]
    return {
        "groups": [{"group_id": "committed", "topics": topics}],
        "group_id": "committed",
        "topics": topics,
    }


def _classic(world: World, **more: Any) -> Values:
    return {**world.classic_member(), **more}


def _join_group(world: World) -> Values:
    more = {"session_timeout": 30_000, "rebalance_timeout": 30_000, "protocol_type": "consumer"}
    return {
        "group_id": world.share_group,
        "member_id": "",
        "protocols": [{"name": "range", "metadata": b""}],
        **more,
    }


def _create_topics(world: World) -> Values:
    assigned = {
        "name": f"{world.share_group}-assigned",
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }
    counted = {
        "name": f"{world.share_group}-counted",
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": (),
        "assignments": (),
    }
    return {
        "topics": [{**assigned, "assignments": [{"partition_index": 0, "broker_ids": [1]}]}, counted],
        "timeout": 1000,
    }


def _create_partitions(world: World) -> Values:
    topics = [{"name": world.topic.name, "count": PARTITIONS + 1, "assignments": [{"broker_ids": [1]}]}]
    return {"topics": topics, "timeout": 1000, "validate_only": False}


def _resources(world: World, **more: Any) -> list[Values]:
    return [{"resource_type": 2, "resource_name": world.topic.name, **more}]


def _consumer_heartbeat(world: World) -> Values:
    owned = [{"topic_id": world.topic.topic_id, "partitions": [0]}]
    group = {
        "group_id": f"{world.share_group}-consumer",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 30_000,
    }
    return {**group, "subscribed_topic_names": [world.topic.name], "topic_partitions": owned}


def _transaction(world: World) -> Values:
    """A new producer whose transaction has a partition and a group."""
    transactional_id = f"transactional-{next(_NUMBERS)}"
    answer = world.connection.call(
        "init_producer_id", 2, transactional_id=transactional_id, transaction_timeout=60_000
    )
    assert answer.error_code == 0
    numbers = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
    transactions = _added(world, transactional_id, **numbers)["transactions"]
    added = world.connection.call("add_partitions_to_txn", 4, transactions=transactions)
    (topic,) = added.results_by_transaction[0].topic_results
    assert topic.results_by_partition[0].partition_error_code == 0
    world.connection.call(
        "add_offsets_to_txn", 3, transactional_id=transactional_id, **numbers, group_id="committed"
    )
    return {"transactional_id": transactional_id, **numbers}


def _added(world: World, transactional_id: str, producer_id: int, producer_epoch: int) -> Values:
    """The fields of all versions."""
    topics = [{"name": world.topic.name, "partitions": [0]}]
    several = {"producer_id": producer_id, "producer_epoch": producer_epoch, "verify_only": False}
    return {
        "transactions": [{"transactional_id": transactional_id, **several, "topics": topics}],
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": producer_epoch,
        "v3_and_below_topics": topics,
    }


def _write_txn_markers(world: World) -> Values:
    producer = _transaction(world)
    del producer["transactional_id"]
    topics = [{"name": world.topic.name, "partition_indexes": [0]}]
    marker = {"transaction_result": False, "coordinator_epoch": 0, "transaction_version": 0}
    return {"markers": [{**producer, **marker, "topics": topics}]}


def _txn_offset_commit(world: World) -> Values:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    group = {"group_id": "committed", "generation_id": -1, "member_id": "", "group_instance_id": None}
    return {**_transaction(world), **group, "topics": _of_topic(world, row)}


def _state(world: World, **row: Any) -> Values:
    return {"group_id": world.share_group, "topics": _of_topic(world, {"partition": 0, **row})}


def _write_state(world: World) -> Values:
    written = {"first_offset": 1, "last_offset": 1, "delivery_state": 2, "delivery_count": 1}
    return _state(
        world,
        state_epoch=0,
        leader_epoch=0,
        start_offset=0,
        delivery_complete_count=1,
        state_batches=[written],
    )


def _describe_partitions(world: World) -> Values:
    cursor = {"topic_name": world.topic.name, "partition_index": 0}
    return {"topics": [{"name": world.topic.name}], "response_partition_limit": 10, "cursor": cursor}


_ACL_FILTER: Values = {
    "resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 3,
    "principal_filter": "User:x", "host_filter": None, "operation": 3, "permission_type": 3,
}  # fmt: skip


REQUESTS: Mapping[str, Callable[[World], Values]] = {
    "produce": lambda w: {
        "acks": -1, "timeout": 1000,
        "topic_data": _of_topic(w, {"index": 0, "records": batch()}, key="partition_data"),
    },
    "fetch": _fetch,
    "list_offsets": lambda w: {
        "replica_id": -1, "isolation_level": 0,
        "topics": _of_topic(w, {"partition_index": 0, "timestamp": -1}), "timeout": 1000,
    },
    "metadata": lambda w: {
        "topics": (), "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    },
    "offset_commit": _offset_commit,
    "offset_fetch": _offset_fetch,
    "find_coordinator": lambda w: {"coordinator_keys": ["g"], "key": "g"},
    "join_group": _join_group,
    "heartbeat": lambda w: _classic(w, group_instance_id=None),
    "leave_group": lambda w: {
        "group_id": "classic", "members": [{"member_id": "nobody"}], "member_id": "nobody",
    },
    "sync_group": lambda w: _classic(w, assignments=()),
    "describe_groups": lambda w: {"groups": ["classic"], "include_authorized_operations": False},
    "list_groups": lambda w: {},
    "api_versions": lambda w: {"client_software_name": "x", "client_software_version": "1"},
    "sasl_handshake": lambda w: {"mechanism": "PLAIN"},
    "sasl_authenticate": lambda w: {"auth_bytes": b""},
    "describe_client_quotas": lambda w: {
        "components": [{"entity_type": "user", "match_type": 0, "match": "none"}],
        "strict": False,
    },
    "alter_client_quotas": lambda w: {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "none"}],
                "ops": [{"key": "request_percentage", "value": 50.0, "remove": False}],
            }
        ],
        "validate_only": False,
    },
    "describe_user_scram_credentials": lambda w: {"users": [{"name": "none"}]},
    "alter_user_scram_credentials": lambda w: {
        "deletions": [{"name": "none", "mechanism": 1}],
        "upsertions": [
            {
                "name": "one", "mechanism": 1, "iterations": 4096, "salt": bytes(16),
                "salted_password": bytes(32),
            },
        ],
    },
    "create_topics": _create_topics,
    "delete_topics": lambda w: {
        "topics": [{"name": "none", "topic_id": None}], "topic_names": ["none"], "timeout": 1000,
    },
    "delete_records": lambda w: {
        "topics": _of_topic(w, {"partition_index": 0, "offset": 1}), "timeout": 1000,
    },
    "init_producer_id": lambda w: {"transactional_id": None, "transaction_timeout": 1000},
    "add_partitions_to_txn": lambda w: _added(w, **_transaction(w)),
    "add_offsets_to_txn": lambda w: {**_transaction(w), "group_id": "committed"},
    "end_txn": lambda w: {**_transaction(w), "committed": True},
    "write_txn_markers": _write_txn_markers,
    "txn_offset_commit": _txn_offset_commit,
    "describe_producers": lambda w: {"topics": [{"name": w.topic.name, "partition_indexes": [0]}]},
    "describe_transactions": lambda w: {"transactional_ids": [w.transactional_id()]},
    "list_transactions": lambda w: {
        "state_filters": (), "producer_id_filters": [1], "duration_filter": -1,
        "transactional_id_pattern": None,
    },
    "offset_for_leader_epoch": lambda w: {"topics": _of_topic(w, {"partition": 0, "leader_epoch": 0})},
    "describe_acls": lambda w: {**_ACL_FILTER},
    "create_acls": lambda w: {
        "creations": [
            {
                "resource_type": 2, "resource_name": w.topic.name, "resource_pattern_type": 3,
                "principal": "User:x", "host": "*", "operation": 3, "permission_type": 3,
            }
        ],
    },
    "delete_acls": lambda w: {"filters": [{**_ACL_FILTER}]},
    "describe_configs": lambda w: {"resources": _resources(w, configuration_keys=None)},
    "alter_configs": lambda w: {"resources": _resources(w, configs=()), "validate_only": False},
    "describe_log_dirs": lambda w: {"topics": [{**each, "partitions": [0]} for each in _of_topic(w)]},
    "create_partitions": _create_partitions,
    "alter_replica_log_dirs": lambda w: {
        "dirs": [{"path": "/nowhere", "topics": [{"name": w.topic.name, "partitions": [0]}]}],
    },
    "elect_leaders": lambda w: {
        "election_type": 0, "topic_partitions": [{"topic": w.topic.name, "partitions": [0]}], "timeout": 1000,
    },
    "alter_partition_reassignments": lambda w: {
        "topics": [{"name": w.topic.name, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        "timeout": 1000,
    },
    "list_partition_reassignments": lambda w: {
        "topics": [{"name": w.topic.name, "partition_indexes": [0]}], "timeout": 1000,
    },
    "describe_quorum": lambda w: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
    },
    "update_features": lambda w: {
        "feature_updates": [
            {"feature": "share.version", "max_version_level": 2, "upgrade_type": 1, "allow_downgrade": False},
        ],
        "timeout": 1000, "validate_only": False,
    },
    "create_delegation_token": lambda w: {
        "owner_principal_type": None, "owner_principal_name": None,
        "renewers": [{"principal_type": "User", "principal_name": "x"}], "max_lifetime": -1,
    },
    "renew_delegation_token": lambda w: {"hmac": b"x", "renew_period": 1000},
    "expire_delegation_token": lambda w: {"hmac": b"x", "expiry_time_period": 1000},
    "describe_delegation_token": lambda w: {
        "owners": [{"principal_type": "User", "principal_name": "x"}],
    },
    "delete_groups": lambda w: {"groups_names": ["none"]},
    "incremental_alter_configs": lambda w: {
        "resources": _resources(w, configs=[{"name": "retention.ms", "config_operation": 0, "value": "7"}]),
        "validate_only": False,
    },
    "offset_delete": lambda w: {"group_id": "committed", "topics": _of_topic(w, {"partition_index": 0})},
    "describe_cluster": lambda w: {
        "include_cluster_authorized_operations": False, "include_fenced_brokers": False,
    },
    "consumer_group_heartbeat": _consumer_heartbeat,
    "consumer_group_describe": lambda w: {"group_ids": ["none"], "include_authorized_operations": False},
    "get_telemetry_subscriptions": lambda w: {"client_instance_id": None},
    "push_telemetry": lambda w: {
        "client_instance_id": UUID(int=9), "subscription_id": 1, "terminating": False, "compression_type": 0,
        "metrics": b"",
    },
    "list_config_resources": lambda w: {"resource_types": [2]},
    "describe_topic_partitions": _describe_partitions,
    "share_group_heartbeat": lambda w: {
        "group_id": w.share_group, "member_id": "m", "member_epoch": 0,
        "subscribed_topic_names": [w.topic.name],
    },
    "share_group_describe": lambda w: {"group_ids": ["none"], "include_authorized_operations": False},
    "share_fetch": lambda w: {
        **share_fetch(w), "forgotten_topics_data": [{"topic_id": w.topic.topic_id, "partitions": [1]}],
    },
    "share_acknowledge": _share_acknowledge,
    "initialize_share_group_state": lambda w: _state(w, state_epoch=0, start_offset=1),
    "read_share_group_state": lambda w: _state(w, leader_epoch=0),
    "write_share_group_state": _write_state,
    "delete_share_group_state": _state,
    "read_share_group_state_summary": lambda w: _state(w, leader_epoch=0),
    "describe_share_group_offsets": lambda w: {
        "groups": [{"group_id": w.share_group, "topics": [{"topic_name": w.topic.name, "partitions": [0]}]}],
    },
    "alter_share_group_offsets": lambda w: {
        "group_id": w.share_group,
        "topics": [{"topic_name": w.topic.name, "partitions": [{"partition_index": 0, "start_offset": 1}]}],
    },
    "delete_share_group_offsets": lambda w: {
        "group_id": w.share_group, "topics": [{"topic_name": w.topic.name}],
    },
}  # fmt: skip

CHANGES_TOPIC = frozenset(
    {"produce", "delete_records", "create_partitions", "incremental_alter_configs", "write_txn_markers"}
)
NEEDS_STATE = frozenset(
    {
        "read_share_group_state", "write_share_group_state", "share_fetch", "share_acknowledge",
        "describe_share_group_offsets", "read_share_group_state_summary", "initialize_share_group_state",
    }
)  # fmt: skip


class Numeric(NamedTuple):
    """A numeric field of an API's request. `bits` 8 to 64."""

    api: Api
    version: int
    path: Path
    bits: int

    @property
    def name(self) -> str:
        return ".".join(str(part) for part in self.path if not isinstance(part, int))

    @property
    def extremes(self) -> list[int]:
        low, high = -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        far = [-_YEAR_10000_MS, _YEAR_10000_MS, 1 << 53] if self.bits == 64 else []
        return [low, -2, -1, 0, 1, *far, high]


def numeric_fields(world: World) -> Iterator[Numeric]:
    """All of them, each in the newest version that has it."""
    for api in APIS.values():
        values = REQUESTS[api.module](world)
        found: dict[str, Numeric] = {}
        for version in range(api.last, api.first - 1, -1):
            for path, kafka_type in _leaves(request_schema(api.key, version), values):
                numeric = Numeric(api, version, path, 8 * _SIZES[kafka_type])
                found.setdefault(numeric.name, numeric)
        yield from found.values()


def _leaves(schema: Any, values: Values) -> Iterator[tuple[Path, str]]:
    hints = get_type_hints(schema)
    for field in fields(schema):
        nested, value = _entity_in(hints[field.name]), values.get(field.name, MISSING)
        kafka_type = field.metadata.get("kafka_type")
        if nested is not None and isinstance(value, list):
            yield from (((field.name, 0, *path), kind) for path, kind in _leaves(nested, value[0]) if value)
        elif nested is not None and (
            isinstance(value, dict) or (value is MISSING and field.default not in (MISSING, None))
        ):
            yield from (
                ((field.name, *path), kind)
                for path, kind in _leaves(nested, {} if value is MISSING else value)
            )
        elif kafka_type in _SIZES and nested is None:
            if isinstance(value, list):
                yield (field.name, 0), kafka_type
            elif not (
                value is field.default is MISSING
                or isinstance(value, tuple)
                or isinstance(field.default, tuple)
            ):
                yield (field.name,), kafka_type


def _entity_in(hint: Any) -> Any:
    if hasattr(hint, "__flexible__"):
        return hint
    return next((found for part in get_args(hint) if (found := _entity_in(part)) is not None), None)


def frame_with(field: Numeric, values: Values, number: int) -> bytes:
    """The request with `number` in the field, length included."""
    schema = request_schema(field.api.key, field.version)
    head = {
        "request_api_key": field.api.key, "request_api_version": field.version,
        "correlation_id": CORRELATION_ID, "client_id": "x",
    }  # fmt: skip
    header = encode(build(schema.__header_schema__, head))
    one, other = (bytearray(encode(build(schema, _put(values, field.path, each)))) for each in (4, 5))
    (last,) = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    size = field.bits // 8
    one[last + 1 - size : last + 1] = number.to_bytes(size, "big", signed=True)
    payload = header + one
    return len(payload).to_bytes(4, "big") + payload


def _put(values: Any, path: Path, number: int) -> Any:
    """A copy with the number at that place."""
    if not path:
        return number
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        return [_put(each, rest, number) if index == key else each for index, each in enumerate(values)]
    return {**values, key: _put(values.get(key, {}), rest, number)}
