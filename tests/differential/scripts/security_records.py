"""Records as a principal without, with partial and with full rights: Produce, Fetch, ListOffsets,
OffsetForLeaderEpoch, DescribeProducers."""

from __future__ import annotations

from uuid import UUID

from tests.differential.script import Entity, Topic, Value
from tests.differential.scripts.base_produce import batch_of
from tests.differential.scripts.security_topics import UNKNOWN, missing, pair
from tests.differential.secured import (
    ALICE,
    BOB,
    CAROL,
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    IDEMPOTENT_WRITE,
    KAFKA_CLUSTER,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Secured,
    secured_script,
)


def produce(
    s: Secured, *topics: str | UUID, version: int = 12, acks: int = -1, on: str = BOB, batch: bytes = b"",
    transactional_id: str | None = None,
) -> Entity:  # fmt: skip
    rows = [
        {
            **({"topic_id": each} if isinstance(each, UUID) else {"name": each}),
            "partition_data": [{"index": 0, "records": batch or batch_of("record")}],
        }
        for each in topics
    ]
    return s.call("produce", version, on=on, transactional_id=transactional_id, acks=acks, timeout=30_000,
                  topic_data=rows)  # fmt: skip


@secured_script()
def produced(s: Secured) -> None:
    topic, other = pair(s)
    s.rising(
        lambda: produce(s, topic.name, other.name, missing(s)),
        (READ, TOPIC, topic.name), (DESCRIBE, TOPIC, missing(s)), (WRITE, TOPIC, topic.name),
        (WRITE, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def produced_in_each_version(s: Secured) -> None:
    topic, other = pair(s)
    s.allow(BOB, WRITE, TOPIC, topic.name)
    for version in range(3, 13):
        produce(s, topic.name, other.name, version=version)


@secured_script()
def produced_by_id(s: Secured) -> None:
    topic, other = pair(s)
    s.rising(
        lambda: produce(s, topic.topic_id, other.topic_id, UNKNOWN, version=13),
        (DESCRIBE, TOPIC, topic.name), (WRITE, TOPIC, topic.name),
    )  # fmt: skip


@secured_script()
def produced_without_waiting(s: Secured) -> None:
    """With acks 0 a refusal closes the connection."""
    topic, other = pair(s)
    s.allow(BOB, WRITE, TOPIC, topic.name)
    connection = s.connection(BOB)
    for name in (topic.name, other.name):
        rows = [{"name": name, "partition_data": [{"index": 0, "records": batch_of("record")}]}]
        values: dict[str, Value] = {
            "transactional_id": None, "acks": 0, "timeout": 30_000, "topic_data": rows,
        }  # fmt: skip
        connection.send_raw(connection.encode("produce", 9, values))
        s.works(BOB)


@secured_script()
def bad_batches(s: Secured) -> None:
    """A refused topic is refused whatever is sent to it."""
    topic = s.topic()
    bad = batch_of("record").replace(b"record", b"recorc")  # of another checksum
    produce(s, topic.name, batch=bad)
    s.allow(BOB, WRITE, TOPIC, topic.name)
    produce(s, topic.name, batch=bad)
    s.call("produce", 9, on=BOB, transactional_id=None, acks=5, timeout=1000, topic_data=[
        {"name": f"{s.name}-no", "partition_data": [{"index": 0, "records": batch_of("record")}]}
    ])  # fmt: skip


@secured_script()
def produced_with_a_producer_id(s: Secured) -> None:
    """The right to write is enough for an idempotent batch."""
    topic = s.topic()
    answer = s.prepare("init_producer_id", 4, ALICE, transactional_id=None, transaction_timeout=60_000)
    batch = batch_of("record", producer=(answer.producer_id, 0, 0))
    s.rising(
        lambda: produce(s, topic.name, batch=batch),
        (IDEMPOTENT_WRITE, CLUSTER, KAFKA_CLUSTER), (WRITE, TOPIC, topic.name),
    )  # fmt: skip


@secured_script()
def produced_with_a_transactional_id(s: Secured) -> None:
    """For plain batches the transactional id of the request means nothing."""
    topic = s.topic()
    s.allow(BOB, WRITE, TOPIC, topic.name)
    produce(s, topic.name, transactional_id=f"{s.name}-x")
    s.allow(BOB, WRITE, TRANSACTIONAL_ID, f"{s.name}-x")
    produce(s, topic.name, transactional_id=f"{s.name}-x")


def part(offset: int = 0) -> list[dict[str, Value]]:
    return [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]


def fetch(
    s: Secured, *topics: str | UUID, version: int = 11, on: str = BOB, session: tuple[int, int] = (0, -1),
    forget: tuple[str, ...] = (), **more: Value,
) -> Entity:  # fmt: skip
    rows = [
        {**({"topic_id": each} if isinstance(each, UUID) else {"topic": each}), "partitions": part()}
        for each in topics
    ]
    values: dict[str, Value] = {
        "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "topics": rows,
    }  # fmt: skip
    if version < 15:
        values["replica_id"] = -1
    if version >= 7:
        values |= {"session_id": session[0], "session_epoch": session[1]}
        values["forgotten_topics_data"] = [{"topic": name, "partitions": [0]} for name in forget]
    return s.call("fetch", version, on=on, **values | more)


def filled(s: Secured) -> tuple[Topic, Topic]:
    topic, other = pair(s)
    for each in (topic, other):
        s.produce(each, "one")
    return topic, other


@secured_script()
def fetched(s: Secured) -> None:
    topic, other = filled(s)
    s.rising(
        lambda: fetch(s, topic.name, other.name, missing(s)),
        (DESCRIBE, TOPIC, topic.name), (WRITE, TOPIC, other.name), (READ, TOPIC, topic.name),
        (READ, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def fetched_in_each_version(s: Secured) -> None:
    topic, other = filled(s)
    s.allow(BOB, READ, TOPIC, topic.name)
    for version in range(4, 13):
        fetch(s, topic.name, other.name, version=version)
    for version in range(13, 19):
        fetch(s, topic.topic_id, other.topic_id, version=version)


@secured_script()
def fetched_by_id(s: Secured) -> None:
    topic, other = filled(s)
    s.rising(
        lambda: fetch(s, topic.topic_id, other.topic_id, UNKNOWN, version=13),
        (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, topic.name),
    )  # fmt: skip


@secured_script()
def fetched_as_a_follower(s: Secured) -> None:
    """A replica needs CLUSTER_ACTION, and no right on topics."""
    topic, _ = filled(s)

    def ask() -> None:
        fetch(s, topic.name, replica_id=1)

    s.rising(ask, (READ, TOPIC, topic.name))


@secured_script()
def fetch_sessions(s: Secured) -> None:
    """Rights are looked at with every fetch of a session."""
    topic, other = filled(s)
    s.allow(BOB, READ, TOPIC, topic.name)
    answer = fetch(s, topic.name, other.name, session=(0, 0))
    session_id = answer.session_id
    fetch(s, session=(session_id, 1))
    s.allow(BOB, READ, TOPIC, other.name)
    fetch(s, session=(session_id, 2))
    s.revoke(BOB, READ, TOPIC, topic.name)
    fetch(s, session=(session_id, 3))
    fetch(s, session=(session_id, 4), forget=(topic.name,))
    s.revoke(BOB, READ, TOPIC, other.name)
    fetch(s, session=(session_id, 5))


@secured_script()
def fetch_sessions_of_another_user(s: Secured) -> None:
    """The id of a session is no secret that gives rights."""
    topic, _ = filled(s)
    s.allow(BOB, READ, TOPIC, topic.name)
    answer = fetch(s, topic.name, session=(0, 0))
    fetch(s, session=(answer.session_id, 1), on=CAROL)
    fetch(s, topic.name, session=(answer.session_id, 2), on=CAROL)


@secured_script()
def listed_offsets(s: Secured) -> None:
    topic, other = filled(s)

    def ask() -> None:
        rows = [
            {"name": name, "partitions": [{"partition_index": index, "timestamp": time} for index in (0, 7)]}
            for time, name in ((-1, topic.name), (-2, other.name), (-1, missing(s)))
        ]
        s.call("list_offsets", 6, on=BOB, replica_id=-1, isolation_level=0, topics=rows)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, other.name), (DESCRIBE, TOPIC, missing(s)))


@secured_script()
def listed_offsets_in_each_version(s: Secured) -> None:
    topic, other = filled(s)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    for version in range(1, 12):
        rows = [
            {"name": each.name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
            for each in (topic, other)
        ]
        more: dict[str, Value] = {"isolation_level": 0} if version >= 2 else {}
        more |= {"timeout": 1000} if version >= 10 else {}
        s.call("list_offsets", version, on=BOB, replica_id=-1, topics=rows, **more)


@secured_script()
def ends_of_leader_epochs(s: Secured) -> None:
    topic, other = filled(s)

    def ask() -> None:
        rows = [
            {"topic": name, "partitions": [{"partition": index, "leader_epoch": 0} for index in (0, 7)]}
            for name in (topic.name, other.name, missing(s))
        ]
        s.call("offset_for_leader_epoch", 4, on=BOB, replica_id=-1, topics=rows)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (DESCRIBE, TOPIC, missing(s)),
             (CLUSTER_ACTION, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def described_producers(s: Secured) -> None:
    topic, other = filled(s)

    def ask() -> None:
        rows = [{"name": name, "partition_indexes": [0, 7]} for name in (topic.name, other.name, missing(s))]
        s.call("describe_producers", 0, on=BOB, topics=rows)

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, topic.name), (READ, TOPIC, missing(s)))
