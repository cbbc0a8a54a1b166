"""Transactions as a principal without, with partial and with full rights."""

from __future__ import annotations

from uuid import UUID

from tests.differential.classic import classic_group
from tests.differential.script import Entity, Topic, Value
from tests.differential.scripts.security_topics import missing, pair
from tests.differential.secured import (
    ALTER,
    BOB,
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    GROUP,
    IDEMPOTENT_WRITE,
    KAFKA_CLUSTER,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Secured,
    secured_script,
)
from tests.differential.transactions import (
    Producer,
    describe_quietly,
    log_rows,
    produce_values,
    transactional,
)
from tests.differential.transcript import Json, transcribe


def opened(s: Secured, generation: int = 1, name: str = "x") -> Producer:
    """A transactional producer that the super user has initialized. Its requests are the
    script's."""
    return transactional(s, name, generation)


def init(s: Secured, transactional_id: str | None, version: int = 5, **more: Value) -> Entity:
    return s.call("init_producer_id", version, on=BOB, transactional_id=transactional_id,
                  transaction_timeout=60_000, **more)  # fmt: skip


@secured_script()
def producer_ids_of_idempotent_producers(s: Secured) -> None:
    topic = s.topic()
    s.rising(
        lambda: init(s, None), (READ, TOPIC, topic.name), (WRITE, GROUP, topic.name),
        (WRITE, TOPIC, topic.name),
    )  # fmt: skip


@secured_script()
def producer_ids_by_a_right_on_the_cluster(s: Secured) -> None:
    s.rising(lambda: init(s, None), (CLUSTER_ACTION, CLUSTER, KAFKA_CLUSTER),
             (IDEMPOTENT_WRITE, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def producer_ids_by_the_right_to_write_some_topic(s: Secured) -> None:
    """The broker looks for any topic that the principal may write, whether it exists or not."""
    name = f"{s.name}-none"
    s.allow(BOB, WRITE, TOPIC, name)
    init(s, None)
    s.deny(BOB, WRITE, TOPIC, name)
    init(s, None)
    s.allow(BOB, WRITE, TOPIC, f"{s.name}-p", PREFIXED)
    init(s, None)
    s.deny(BOB, WRITE, TOPIC, s.name, PREFIXED)
    init(s, None)
    s.allow(BOB, WRITE, TOPIC, "other-" + s.name)
    init(s, None)
    s.deny(BOB, WRITE, TOPIC, "*")
    init(s, None)


@secured_script()
def producer_ids_of_transactional_producers(s: Secured) -> None:
    producer = opened(s)
    s.rising(
        lambda: init(s, producer.id),
        (IDEMPOTENT_WRITE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE, TRANSACTIONAL_ID, producer.id),
        (WRITE, TRANSACTIONAL_ID, producer.id),
    )  # fmt: skip


@secured_script()
def producer_ids_in_each_version(s: Secured) -> None:
    producer = opened(s)
    for version in range(6):
        init(s, producer.id, version)
        init(s, None, version)
    init(s, "", 4)


def add(s: Secured, producer: Producer, *topics: str) -> Entity:
    rows = [{"name": name, "partitions": [0]} for name in topics]
    return s.call(
        "add_partitions_to_txn", 3, on=BOB, v3_and_below_transactional_id=producer.id,
        v3_and_below_producer_id=producer.producer_id, v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=rows,
    )  # fmt: skip


@secured_script()
def added_partitions(s: Secured) -> None:
    topic, other = pair(s)
    producer = opened(s)
    s.rising(
        lambda: add(s, producer, topic.name, other.name, missing(s)),
        (WRITE, TOPIC, topic.name), (WRITE, TRANSACTIONAL_ID, producer.id), (READ, TOPIC, other.name),
        (WRITE, TOPIC, missing(s)), (WRITE, TOPIC, other.name),
    )  # fmt: skip
    add(s, producer, topic.name, other.name)


@secured_script()
def partitions_added_by_brokers(s: Secured) -> None:
    topic = s.topic()
    producer = opened(s)

    def ask() -> None:
        row = {
            "transactional_id": producer.id, "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch, "verify_only": False, "topics": log_rows({topic: (0,)}),
        }  # fmt: skip
        for version in (4, 5):
            s.call("add_partitions_to_txn", version, on=BOB, transactions=[row])

    s.rising(ask, (WRITE, TRANSACTIONAL_ID, producer.id), (WRITE, TOPIC, topic.name))


@secured_script()
def added_offsets(s: Secured) -> None:
    group = classic_group(s)
    producer = opened(s)

    def ask() -> None:
        s.call("add_offsets_to_txn", 3, on=BOB, transactional_id=producer.id,
               producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id=group)  # fmt: skip

    s.rising(
        ask, (DESCRIBE, TRANSACTIONAL_ID, producer.id), (WRITE, TRANSACTIONAL_ID, producer.id),
        (DESCRIBE, GROUP, group), (READ, GROUP, group),
    )  # fmt: skip


def commit(s: Secured, producer: Producer, group: str, *topics: str | Topic, version: int = 3) -> Entity:
    row: dict[str, Value] = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    row |= {"committed_leader_epoch": -1} if version >= 2 else {}
    member: dict[str, Value] = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    return s.call(
        "txn_offset_commit", version, on=BOB, transactional_id=producer.id, group_id=group,
        producer_id=producer.producer_id, producer_epoch=producer.epoch,
        topics=[{**_key(each), "partitions": [row]} for each in topics], **(member if version >= 3 else {}),
    )  # fmt: skip


def _key(topic: str | Topic) -> dict[str, Value]:
    return {"name": topic} if isinstance(topic, str) else {"topic_id": topic.topic_id}


@secured_script()
def committed_offsets(s: Secured) -> None:
    topic, other = pair(s)
    group = classic_group(s)
    producer = opened(s)
    s.prepare("add_offsets_to_txn", 3, "x", transactional_id=producer.id, producer_id=producer.producer_id,
              producer_epoch=producer.epoch, group_id=group)  # fmt: skip
    s.rising(
        lambda: commit(s, producer, group, topic.name, other.name, missing(s)),
        (WRITE, TRANSACTIONAL_ID, producer.id), (DESCRIBE, GROUP, group), (READ, GROUP, group),
        (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, topic.name), (READ, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def committed_offsets_in_each_version(s: Secured) -> None:
    topic = s.topic()
    group = classic_group(s)
    producer = opened(s)
    for right, kind, name in ((READ, GROUP, group), (READ, TOPIC, topic.name)):
        s.allow(BOB, right, kind, name)
        for version in range(6):
            commit(s, producer, group, topic.name, version=version)
        commit(s, producer, group, topic, Topic("unknown", UUID(int=77)), version=6)


@secured_script()
def ends(s: Secured) -> None:
    topic = s.topic()
    producer = opened(s)
    producer.added({topic: (0,)})

    def ask() -> None:
        s.call("end_txn", 4, on=BOB, transactional_id=producer.id, producer_id=producer.producer_id,
               producer_epoch=producer.epoch, committed=True)  # fmt: skip

    s.rising(ask, (DESCRIBE, TRANSACTIONAL_ID, producer.id), (WRITE, TRANSACTIONAL_ID, producer.id))


@secured_script()
def ends_in_each_version(s: Secured) -> None:
    for version in range(6):
        s.call("end_txn", version, on=BOB, transactional_id=f"{s.name}-x", producer_id=1, producer_epoch=0,
               committed=True)  # fmt: skip


@secured_script()
def transactional_batches(s: Secured) -> None:
    topic, other = pair(s)
    producer = opened(s)
    producer.added({topic: (0,), other: (0,)})

    def ask() -> None:
        batches = {each: {0: producer.batch(each, "record")} for each in (topic, other)}
        values = produce_values(producer.id, batches, 11)
        s.call("produce", 11, on=BOB, **values)

    s.rising(
        ask, (WRITE, TOPIC, topic.name), (DESCRIBE, TRANSACTIONAL_ID, producer.id),
        (WRITE, TRANSACTIONAL_ID, producer.id),
    )  # fmt: skip


@secured_script()
def transactional_batches_that_add_partitions(s: Secured) -> None:
    """Since version 12 Produce adds the partition to the transaction."""
    topic = s.topic()
    producer = opened(s, 2)

    def ask() -> None:
        values = produce_values(producer.id, {topic: {0: producer.batch(topic, "record")}}, 12)
        s.call("produce", 12, on=BOB, **values)

    s.rising(ask, (WRITE, TRANSACTIONAL_ID, producer.id), (WRITE, TOPIC, topic.name))


@secured_script()
def markers(s: Secured) -> None:
    topic = s.topic()
    producer = opened(s)

    def ask() -> None:
        row = {
            "producer_id": producer.producer_id, "producer_epoch": producer.epoch,
            "transaction_result": True, "coordinator_epoch": 0,
            "topics": [{"name": topic.name, "partition_indexes": [0, 7]}],
        }  # fmt: skip
        s.call("write_txn_markers", 1, on=BOB, markers=[row])
        s.call("write_txn_markers", 1, on=BOB, markers=())

    s.rising(ask, (WRITE, TOPIC, topic.name), (CLUSTER_ACTION, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def markers_with_the_right_to_alter(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, ALTER, CLUSTER)
    row = {
        "producer_id": 987_654, "producer_epoch": 3, "transaction_result": False, "coordinator_epoch": 0,
        "topics": [{"name": topic.name, "partition_indexes": [0]}],
    }  # fmt: skip
    s.call("write_txn_markers", 1, on=BOB, markers=[row])


def described(s: Secured, *ids: str) -> None:
    """As transactions.describe, as the script's user."""
    rows = describe_quietly(s, *ids, on=BOB)
    step: dict[str, Json] = {
        "api": "describe_transactions", "version": 0, "request": {"transactional_ids": list(ids)},
    }  # fmt: skip
    s.steps.append({**step, "answer": transcribe(rows, s.names)})


@secured_script()
def descriptions(s: Secured) -> None:
    topic, other = pair(s)
    producer = opened(s)
    producer.added({topic: (0,), other: (0,)})
    s.rising(
        lambda: described(s, producer.id, f"{s.name}-missing"),
        (DESCRIBE, TRANSACTIONAL_ID, producer.id), (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, other.name),
    )  # fmt: skip


@secured_script()
def lists(s: Secured) -> None:
    producer, another = opened(s), opened(s, name="y")

    def ask() -> None:
        answer = s.prepare("list_transactions", 0, BOB, state_filters=(), producer_id_filters=())
        rows = [[row.transactional_id, row.transaction_state] for row in answer.transaction_states]
        s.note("listed", [answer.error_code.name, sorted(row for row in rows if s.name in row[0])])

    s.rising(ask, (READ, TRANSACTIONAL_ID, producer.id), (DESCRIBE, TRANSACTIONAL_ID, producer.id),
             (WRITE, TRANSACTIONAL_ID, another.id))  # fmt: skip


@secured_script()
def rights_withdrawn_in_the_middle(s: Secured) -> None:
    """A transaction that its principal may no longer end."""
    topic: Topic = s.topic()
    producer = opened(s)
    s.allow(BOB, WRITE, TRANSACTIONAL_ID, producer.id)
    s.allow(BOB, WRITE, TOPIC, topic.name)
    add(s, producer, topic.name)
    s.revoke(BOB, WRITE, TRANSACTIONAL_ID, producer.id)
    add(s, producer, topic.name)
    s.call("end_txn", 4, on=BOB, transactional_id=producer.id, producer_id=producer.producer_id,
           producer_epoch=producer.epoch, committed=True)  # fmt: skip
