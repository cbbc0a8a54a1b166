"""Group ids are one namespace: how groups of another type answer requests for a share group, and
the other way round."""

from __future__ import annotations

from tests.differential.script import Entity, Session, Topic, script
from tests.differential.scripts.group_descriptions import delete, describe, listed
from tests.differential.scripts.group_heartbeats import heartbeat, ready

PROTOCOLS = [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}]


def consumer_heartbeat(s: Session, group: str, member: str, epoch: int, *topics: str) -> Entity:
    return s.call(
        "consumer_group_heartbeat", 1, on="consumer", group_id=group, member_id=member, member_epoch=epoch,
        instance_id=None, rack_id=None,
        rebalance_timeout=60_000, subscribed_topic_names=list(topics), subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=(),
    )  # fmt: skip


def offset_commit(s: Session, group: str, topic: Topic, offset: int, version: int = 8) -> Entity:
    rows = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}],
        }
    ]
    return s.call(
        "offset_commit", version, on="consumer", group_id=group, generation_id_or_member_epoch=-1,
        member_id="", group_instance_id=None,
        topics=rows,
    )  # fmt: skip


def offset_fetch(s: Session, group: str, topic: Topic) -> Entity:
    rows = [{"group_id": group, "topics": [{"name": topic.name, "partition_indexes": [0]}]}]
    return s.call("offset_fetch", 8, on="consumer", groups=rows, require_stable=False)


def share_group(s: Session, group: str) -> None:
    ready(s)
    heartbeat(s, group, "m", 0, "missing")


@script("GRP-47")
def join_group_to_a_share_group(s: Session) -> None:
    group = s.group()
    share_group(s, group)
    for _ in ("with a member", "empty"):
        s.call(
            "join_group", 9, on="classic", group_id=group, session_timeout=10_000, rebalance_timeout=10_000,
            member_id="c",
            group_instance_id=None, protocol_type="consumer", protocols=PROTOCOLS, reason=None,
        )  # fmt: skip
        heartbeat(s, group, "m", -1, unchanged=True)


@script("GRP-47")
def classic_requests_to_a_share_group(s: Session) -> None:
    group = s.group()
    share_group(s, group)
    s.call(
        "sync_group", 5, on="classic", group_id=group, generation_id=2, member_id="m",
        group_instance_id=None, protocol_type="consumer",
        protocol_name="range", assignments=(),
    )  # fmt: skip
    s.call(
        "heartbeat", 4, on="classic", group_id=group, generation_id=2, member_id="m", group_instance_id=None
    )
    s.call(
        "leave_group",
        5,
        on="classic",
        group_id=group,
        members=[{"member_id": "m", "group_instance_id": None, "reason": None}],
    )
    describe(s, group)


@script("GRP-48")
def offsets_of_a_share_group(s: Session) -> None:
    group, topic = s.group(), s.topic()
    share_group(s, group)
    offset_commit(s, group, topic, 3)
    offset_commit(s, group, topic, 3, version=9)
    offset_fetch(s, group, topic)
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0}]}]
    s.call("offset_delete", 0, on="consumer", group_id=group, topics=rows)


@script("GRP-47")
def consumer_protocol_on_a_share_group(s: Session) -> None:
    group = s.group()
    share_group(s, group)
    consumer_heartbeat(s, group, "c", 0, "missing")
    consumer_heartbeat(s, group, "m", 2, "missing")
    s.call(
        "consumer_group_describe", 1, on="consumer", group_ids=[group], include_authorized_operations=False
    )
    heartbeat(s, group, "m", -1, unchanged=True)
    consumer_heartbeat(s, group, "c", 0, "missing")
    listed(s)


@script("GRP-50")
def describe_groups_of_a_share_group(s: Session) -> None:
    group = s.group()
    share_group(s, group)
    for version in (5, 6):
        s.call("describe_groups", version, on="consumer", groups=[group], include_authorized_operations=False)


@script("GRP-46", "GRP-52")
def a_consumer_group(s: Session) -> None:
    ready(s)
    group = s.group()
    consumer_heartbeat(s, group, "c", 0, "missing")
    for epoch in (0, 1, -1):
        heartbeat(s, group, "m", epoch, "missing")
    describe(s, group)
    listed(s, types=("consumer",))
    consumer_heartbeat(s, group, "c", -1, "missing")
    heartbeat(s, group, "m", 0, "missing")


@script("GRP-46")
def a_group_of_committed_offsets(s: Session) -> None:
    ready(s)
    group, topic = s.group(), s.topic()
    offset_commit(s, group, topic, 3)
    heartbeat(s, group, "m", 0, topic.name)
    describe(s, group)
    listed(s)
    delete(s, group)
    heartbeat(s, group, "m", 0, "missing")


@script("GRP-53")
def transactions_and_a_share_group(s: Session) -> None:
    group, topic = s.group(), s.topic()
    share_group(s, group)
    producer = max(0, _producer_of(s, group))
    rows = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
        }
    ]
    s.call(
        "add_offsets_to_txn",
        3,
        on="txn",
        transactional_id=group,
        producer_id=producer,
        producer_epoch=0,
        group_id=group,
    )
    s.call(
        "txn_offset_commit", 3, on="txn", transactional_id=group, group_id=group, producer_id=producer,
        producer_epoch=0,
        generation_id=-1, member_id="", group_instance_id=None, topics=rows,
    )  # fmt: skip


def _producer_of(s: Session, transactional_id: str) -> int:
    """Of a transactional producer, or -1; a fresh Kafka creates the coordinator's topic on the
    first request."""

    def answered() -> Entity:
        s.attempt("find_coordinator", 4, on="txn", key_type=1, coordinator_keys=[transactional_id])
        answer = s.prepare(
            "init_producer_id", 4, on="txn", transactional_id=transactional_id, transaction_timeout=60_000
        )
        return None if answer.error_code.value in (14, 15, 16) else answer

    return int(s.until(answered, "transactions have a coordinator").producer_id)


@script("GRP-46", "GRP-47")
def taking_over_after_deletion(s: Session) -> None:
    group = s.group()
    share_group(s, group)
    heartbeat(s, group, "m", -1, unchanged=True)
    delete(s, group)
    consumer_heartbeat(s, group, "c", 0, "missing")
    heartbeat(s, group, "m", 0, "missing")
    describe(s, group)
