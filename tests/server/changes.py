"""Changes, each with a question that shows whether the broker has made it.

Each row of CASES prepares names of its own on a connection; the test sends the change and asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from kbroker.client.rpc import Connection
from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo, Record, build_batch
from kbroker.protocol.error_codes import error_codes

RECORDS = 4
MEMBER = "m"
_TOPIC, _GROUP = 2, 32
_EARLIEST, _LATEST = -2, -1


class Asked(NamedTuple):
    api: str
    version: int
    fields: Mapping[str, Any]


def asked(api: str, version: int, **fields: Any) -> Asked:
    return Asked(api, version, fields)


class Case(NamedTuple):
    """`found`: of the answer to `question`; `expected` once the change is seen."""

    change: Asked
    question: Asked
    found: Callable[[Any], Any]
    expected: Any


Prepare: TypeAlias = Callable[[Connection, str], Case]


def call(connection: Connection, it: Asked) -> Any:
    answer = connection.call(it.api, it.version, **it.fields)
    assert error_codes(answer) == [], answer
    return answer


# -- what is queried
# --------------------------------------------------------------------------------------------------


def _create(name: str, partitions: int = 1) -> Asked:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    return asked("create_topics", 7, topics=[topic], timeout=1000, validate_only=False)


def _produce(name: str, acks: int = -1, producer: ProducerInfo | None = None) -> Asked:
    records = [Record(0, 1_700_000_000_000, None, b"x") for _ in range(RECORDS)]
    if producer is None:
        batch, transactional_id = build_batch(records), None
    else:
        batch, transactional_id = build_batch(records, producer=producer, attributes=TRANSACTIONAL), name
    rows = [{"index": 0, "records": batch}]
    topics = [{"name": name, "partition_data": rows}]
    return asked("produce", 11, transactional_id=transactional_id, acks=acks, timeout=1000, topic_data=topics)


def _offset(name: str, timestamp: int, isolation_level: int = 0) -> Asked:
    rows = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    return asked("list_offsets", 6, replica_id=-1, isolation_level=isolation_level, topics=rows)


def _offset_of(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].offset)


def _metadata(name: str) -> Asked:
    topics = [{"topic_id": None, "name": name}]
    return asked(
        "metadata",
        12,
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def _partitions_of(answer: Any) -> int:
    return len(answer.topics[0].partitions)


def _commit(name: str) -> Asked:
    rows = [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]
    return asked(
        "offset_commit", 8, group_id=name, generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": name, "partitions": rows}],
    )  # fmt: skip


def _committed(name: str) -> Asked:
    topics = [{"name": name, "partition_indexes": [0]}]
    return asked("offset_fetch", 8, groups=[{"group_id": name, "topics": topics}], require_stable=True)


def _committed_of(answer: Any) -> int:
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def _alter(kind: int, name: str, config: str, value: str) -> Asked:
    configs = [{"name": config, "config_operation": 0, "value": value}]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    return asked("incremental_alter_configs", 1, resources=resources, validate_only=False)


def _config(kind: int, name: str, config: str) -> Asked:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": [config]}]
    return asked(
        "describe_configs", 4, resources=resources, include_synonyms=False, include_documentation=False
    )


def _value_of(answer: Any) -> str:
    return str(answer.results[0].configs[0].value)


def _share_offsets(name: str) -> Asked:
    topics = [{"topic_name": name, "partitions": [0]}]
    return asked("describe_share_group_offsets", 1, groups=[{"group_id": name, "topics": topics}])


def _start_of(answer: Any) -> int:
    return int(answer.groups[0].topics[0].partitions[0].start_offset)


def _set_start(name: str, offset: int) -> Asked:
    rows = [{"partition_index": 0, "start_offset": offset}]
    topics = [{"topic_name": name, "partitions": rows}]
    return asked("alter_share_group_offsets", 0, group_id=name, topics=topics)


# -- the cases
# --------------------------------------------------------------------------------------------------


def _filled(connection: Connection, name: str) -> None:
    call(connection, _create(name))
    call(connection, _produce(name))


def _in_transaction(connection: Connection, name: str) -> ProducerInfo:
    """A topic with one batch of an open transaction."""
    call(connection, _create(name))
    begun = call(
        connection,
        asked(
            "init_producer_id", 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1,
            producer_epoch=-1,
        ),
    )  # fmt: skip
    producer = ProducerInfo(begun.producer_id, begun.producer_epoch, 0)
    call(
        connection,
        asked(
            "add_partitions_to_txn", 3, v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[{"name": name, "partitions": [0]}],
        ),
    )  # fmt: skip
    call(connection, _produce(name, producer=producer))
    return producer


def produced(acks: int, question: Callable[[str], Asked], found: Callable[[Any], Any]) -> Prepare:
    def prepare(connection: Connection, name: str) -> Case:
        call(connection, _create(name))
        return Case(_produce(name, acks), question(name), found, RECORDS)

    return prepare


def _end_of_epoch(name: str) -> Asked:
    rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    return asked("offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": name, "partitions": rows}])


def markers_written(connection: Connection, name: str) -> Case:
    producer = _in_transaction(connection, name)
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": True,
        "topics": [{"name": name, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    change = asked("write_txn_markers", 1, markers=[marker])
    return Case(change, _offset(name, _LATEST, 1), _offset_of, RECORDS + 1)


def transaction_ended(connection: Connection, name: str) -> Case:
    producer = _in_transaction(connection, name)
    change = asked(
        "end_txn", 4, transactional_id=name, producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch, committed=True,
    )  # fmt: skip
    return Case(change, _offset(name, _LATEST, 1), _offset_of, RECORDS + 1)


def offset_committed(connection: Connection, name: str) -> Case:
    call(connection, _create(name))
    return Case(_commit(name), _committed(name), _committed_of, 3)


def offset_deleted(connection: Connection, name: str) -> Case:
    call(connection, _create(name))
    call(connection, _commit(name))
    topics = [{"name": name, "partitions": [{"partition_index": 0}]}]
    return Case(asked("offset_delete", 0, group_id=name, topics=topics), _committed(name), _committed_of, -1)


def records_deleted(connection: Connection, name: str) -> Case:
    _filled(connection, name)
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 3}]}]
    return Case(
        asked("delete_records", 2, topics=topics, timeout=1000), _offset(name, _EARLIEST), _offset_of, 3
    )


def topic_created(_: Connection, name: str) -> Case:
    return Case(_create(name, 2), _metadata(name), _partitions_of, 2)


def topic_deleted(connection: Connection, name: str) -> Case:
    _filled(connection, name)
    change = asked("delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=1000)
    return Case(change, _metadata(name), lambda answer: int(answer.topics[0].error_code), 3)


def partitions_created(connection: Connection, name: str) -> Case:
    call(connection, _create(name))
    topics = [{"name": name, "count": 3, "assignments": None}]
    change = asked("create_partitions", 3, topics=topics, timeout=1000, validate_only=False)
    return Case(change, _metadata(name), _partitions_of, 3)


def topic_altered(connection: Connection, name: str) -> Case:
    call(connection, _create(name))
    return Case(
        _alter(_TOPIC, name, "retention.ms", "777"), _config(_TOPIC, name, "retention.ms"), _value_of, "777"
    )


def topic_set_anew(connection: Connection, name: str) -> Case:
    call(connection, _create(name))
    configs = [{"name": "retention.ms", "value": "888"}]
    resources = [{"resource_type": _TOPIC, "resource_name": name, "configs": configs}]
    change = asked("alter_configs", 2, resources=resources, validate_only=False)
    return Case(change, _config(_TOPIC, name, "retention.ms"), _value_of, "888")


def group_altered(_: Connection, name: str) -> Case:
    config = "share.auto.offset.reset"
    return Case(
        _alter(_GROUP, name, config, "earliest"), _config(_GROUP, name, config), _value_of, "earliest"
    )


def _deleted(group_id: str) -> Case:
    return Case(
        asked("delete_groups", 2, groups_names=[group_id]),
        asked("list_groups", 5, states_filter=(), types_filter=()),
        lambda answer: group_id in {each.group_id for each in answer.groups},
        False,
    )


def group_deleted(connection: Connection, name: str) -> Case:
    call(connection, _create(name))
    call(connection, _commit(name))
    return _deleted(name)


def _share_group(connection: Connection, name: str) -> None:
    """An empty one that has begun to read its topic."""
    _filled(connection, name)
    for epoch, topics in ((0, [name]), (-1, None)):  # The member joins, and leaves.
        beat = asked(
            "share_group_heartbeat", 1, group_id=name, member_id=MEMBER, member_epoch=epoch, rack_id=None,
            subscribed_topic_names=topics,
        )  # fmt: skip
        call(connection, beat)


def share_offset_altered(connection: Connection, name: str) -> Case:
    _share_group(connection, name)
    return Case(_set_start(name, 2), _share_offsets(name), _start_of, 2)


def share_offset_deleted(connection: Connection, name: str) -> Case:
    _share_group(connection, name)
    call(connection, _set_start(name, 2))
    change = asked("delete_share_group_offsets", 0, group_id=name, topics=[{"topic_name": name}])
    return Case(change, _share_offsets(name), _start_of, -1)


def share_group_deleted(connection: Connection, name: str) -> Case:
    _share_group(connection, name)
    return _deleted(name)


def quota_altered(_: Connection, name: str) -> Case:
    entity = [{"entity_type": "user", "entity_name": name}]
    ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
    parts = [{"entity_type": "user", "match_type": 0, "match": name}]
    return Case(
        asked("alter_client_quotas", 1, entries=[{"entity": entity, "ops": ops}], validate_only=False),
        asked("describe_client_quotas", 1, components=parts, strict=True),
        lambda answer: [each.value for entry in answer.entries or () for each in entry.values],
        [1e9],
    )


CASES: Mapping[str, Prepare] = {
    **{
        f"produce, acks={acks}, {what}": produced(acks, question, found)
        for acks in (0, 1, -1)
        for what, question, found in (
            ("latest offset", lambda name: _offset(name, _LATEST), _offset_of),
            ("end of the epoch", _end_of_epoch, lambda answer: answer.topics[0].partitions[0].end_offset),
        )
    },
    "markers": markers_written,
    "end of a transaction": transaction_ended,
    "committed offset": offset_committed,
    "deleted offset": offset_deleted,
    "deleted records": records_deleted,
    "new topic": topic_created,
    "deleted topic": topic_deleted,
    "new partitions": partitions_created,
    "topic's setting": topic_altered,
    "topic's settings": topic_set_anew,
    "group's setting": group_altered,
    "deleted group": group_deleted,
    "share group's offset": share_offset_altered,
    "share group's deleted offset": share_offset_deleted,
    "deleted share group": share_group_deleted,
    "quota": quota_altered,
}
