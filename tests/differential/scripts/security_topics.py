"""Topics as a principal without, with partial and with full rights: Metadata,
DescribeTopicPartitions, CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from uuid import UUID

from tests.differential.script import Entity, Topic, Value
from tests.differential.scripts.base_topics import without_defaults
from tests.differential.secured import (
    ALICE,
    ALTER,
    BOB,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    KAFKA_CLUSTER,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Secured,
    secured_script,
)
from tests.differential.transcript import Json

UNKNOWN = UUID(int=77)
ZERO = UUID(int=0)


def pair(s: Secured) -> tuple[Topic, Topic]:
    return s.topic(), s.topic()


def missing(s: Secured) -> str:
    return f"{s.name}-missing"


def metadata(
    s: Secured, *names: str, version: int = 12, on: str = BOB, create: bool = False, operations: bool = False
) -> Entity:
    rows = [{"name": name, **({"topic_id": None} if version >= 10 else {})} for name in names]
    values: dict[str, Value] = {"topics": rows}
    if version >= 4:
        values["allow_auto_topic_creation"] = create
    if version >= 8:
        values["include_topic_authorized_operations"] = operations
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = operations
    return s.call("metadata", version, on=on, keep=without_brokers, **values)


def without_brokers(answer: Json) -> Json:
    """Hosts and ports are compared elsewhere."""
    return {name: value for name, value in answer.items() if name not in ("brokers", "controller_id")}


def own(s: Secured, answer: Entity) -> list[list[object]]:
    """The script's topics in an answer about all topics."""
    return sorted(
        [row.name.replace(s.name, ""), row.error_code.name] for row in answer.topics if s.name in row.name
    )


@secured_script()
def metadata_by_name(s: Secured) -> None:
    topic, other = pair(s)
    s.rising(
        lambda: metadata(s, topic.name, other.name, missing(s), operations=True),
        (CREATE, TOPIC, topic.name), (DESCRIBE, TOPIC, topic.name), (READ, TOPIC, other.name),
        (DESCRIBE, TOPIC, missing(s)),
    )  # fmt: skip


@secured_script()
def metadata_in_each_version(s: Secured) -> None:
    topic, other = pair(s)
    s.allow(BOB, WRITE, TOPIC, topic.name)
    for version in range(14):
        metadata(s, topic.name, other.name, missing(s), version=version, operations=True)


@secured_script()
def metadata_by_id(s: Secured) -> None:
    topic, other = pair(s)

    def ask() -> None:
        rows = [{"topic_id": each, "name": None} for each in (topic.topic_id, other.topic_id, UNKNOWN)]
        s.call("metadata", 12, on=BOB, keep=without_brokers, topics=rows, allow_auto_topic_creation=False,
               include_topic_authorized_operations=True)  # fmt: skip

    s.rising(ask, (DESCRIBE, TOPIC, topic.name))


@secured_script()
def metadata_of_all_topics(s: Secured) -> None:
    topic, other = pair(s)

    def ask() -> None:
        for version in (0, 8, 12):
            flags: dict[str, Value] = {}
            if version >= 4:
                flags["allow_auto_topic_creation"] = True
            if version >= 8:
                flags["include_topic_authorized_operations"] = False
            if version == 8:
                flags["include_cluster_authorized_operations"] = False
            topics: tuple[()] | None = None if version else ()
            answer = s.prepare("metadata", version, BOB, topics=topics, **flags)
            s.note(f"version {version}", own(s, answer))

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (WRITE, TOPIC, other.name))


def creating(s: Secured, *names: str) -> None:
    """Metadata that may create topics. A topic that is being created is 3 in Kafka."""
    rows = [{"topic_id": None, "name": name} for name in names]
    answer = s.prepare("metadata", 12, BOB, topics=rows, allow_auto_topic_creation=True,
                       include_topic_authorized_operations=False)  # fmt: skip
    allowed = ("none", "unknown_topic_or_partition", "leader_not_available")
    codes = {
        row.name: "allowed" if (code := row.error_code.name) in allowed else code for row in answer.topics
    }
    s.note("codes", [codes[name] for name in names])


@secured_script()
def topics_created_by_metadata(s: Secured) -> None:
    """By name, with the right to create it and without."""
    one, two, three = (f"{s.name}-{name}" for name in ("one", "two", "three"))
    creating(s, one, two)
    s.allow(BOB, DESCRIBE, TOPIC, one)
    creating(s, one, two)
    s.allow(BOB, CREATE, TOPIC, one)
    creating(s, one, two)
    s.learn(one)
    metadata(s, one, two, create=True)
    s.allow(BOB, CREATE, CLUSTER)
    creating(s, three)
    s.allow(BOB, READ, TOPIC, three)
    creating(s, three)
    s.learn(three)
    metadata(s, three, create=True)


@secured_script()
def cluster_operations_in_metadata(s: Secured) -> None:
    """Versions 8 to 10 have them."""
    for version in (8, 10):
        metadata(s, version=version, operations=True)
    s.allow(BOB, DESCRIBE, CLUSTER)
    metadata(s, version=8, operations=True)
    s.allow(BOB, CREATE, CLUSTER)
    metadata(s, version=10, operations=True)


@secured_script()
def described_partitions(s: Secured) -> None:
    topic, other = pair(s)

    def ask() -> None:
        rows = [{"name": name} for name in sorted((topic.name, other.name, missing(s)))]
        s.call("describe_topic_partitions", 0, on=BOB, topics=rows, response_partition_limit=100)
        answer = s.prepare("describe_topic_partitions", 0, BOB, topics=(), response_partition_limit=2000)
        s.note("all topics", own(s, answer))

    s.rising(ask, (CREATE, TOPIC, topic.name), (DESCRIBE, TOPIC, topic.name), (DESCRIBE, TOPIC, missing(s)))


def create(s: Secured, *names: str, version: int = 7, on: str = BOB, validate_only: bool = False) -> Entity:
    rows = [
        {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
        for name in names
    ]
    return s.call("create_topics", version, on=on, keep=without_defaults if version >= 5 else None,
                  topics=rows, timeout=30_000, validate_only=validate_only)  # fmt: skip


@secured_script()
def creation(s: Secured) -> None:
    existing = s.topic()
    one, two = f"{s.name}-one", f"{s.name}-two"
    create(s, one, existing.name, f"{s.name} bad name")
    create(s, one, validate_only=True)
    s.allow(BOB, CREATE, TOPIC, one)
    create(s, one, two, existing.name, validate_only=True)
    create(s, one, two)
    s.learn(one, 2)
    create(s, one)
    s.allow(BOB, CREATE, CLUSTER)
    create(s, two, existing.name, f"{s.name} bad name")


@secured_script()
def creation_in_each_version(s: Secured) -> None:
    s.allow(BOB, CREATE, TOPIC, f"{s.name}-yes", PREFIXED)
    for version in range(2, 8):
        create(s, f"{s.name}-yes{version}", f"{s.name}-no{version}", version=version)


@secured_script()
def settings_in_the_answer_of_a_creation(s: Secured) -> None:
    name = f"{s.name}-one"
    s.allow(BOB, CREATE, TOPIC, name)
    create(s, name, version=5, validate_only=True)
    create(s, name, validate_only=True)
    s.allow(BOB, DESCRIBE_CONFIGS, TOPIC, name)
    create(s, name, validate_only=True)
    create(s, name)


@secured_script()
def creation_of_the_same_topic_twice(s: Secured) -> None:
    one = f"{s.name}-one"
    create(s, one, one)
    s.allow(BOB, CREATE, TOPIC, one)
    create(s, one, one)


def delete(s: Secured, *rows: tuple[str | None, UUID], on: str = BOB) -> Entity:
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in rows]
    return s.call("delete_topics", 6, on=on, topics=topics, timeout=30_000)


@secured_script()
def deletion_by_name(s: Secured) -> None:
    topic, other = pair(s)

    def ask() -> None:
        delete(s, (topic.name, ZERO), (missing(s), ZERO))

    s.rising(ask, (CREATE, TOPIC, topic.name), (DESCRIBE, TOPIC, topic.name), (DESCRIBE, TOPIC, missing(s)),
             (DELETE, TOPIC, topic.name))  # fmt: skip
    delete(s, (other.name, ZERO))


@secured_script()
def deletion_by_id(s: Secured) -> None:
    topic = s.topic()

    def ask() -> None:
        delete(s, (None, topic.topic_id), (None, UNKNOWN))

    s.rising(ask, (DESCRIBE, TOPIC, topic.name), (DELETE, TOPIC, topic.name))


@secured_script()
def deletion_with_rights_on_the_cluster(s: Secured) -> None:
    topic, other = pair(s)
    s.allow(BOB, DELETE, CLUSTER)
    delete(s, (topic.name, ZERO), (None, other.topic_id), (missing(s), ZERO))


@secured_script()
def deletion_in_old_versions(s: Secured) -> None:
    topic, other = pair(s)
    s.allow(BOB, DELETE, TOPIC, topic.name)
    for version in (1, 4):
        s.call("delete_topics", version, on=BOB, topic_names=[other.name, missing(s)], timeout=30_000)
    s.call("delete_topics", 5, on=BOB, topic_names=[topic.name, other.name], timeout=30_000)


@secured_script()
def more_partitions(s: Secured) -> None:
    topic, other = pair(s)

    def ask() -> None:
        rows = [
            {"name": name, "count": count, "assignments": None}
            for name, count in ((topic.name, 3), (other.name, 3), (missing(s), 3))
        ]
        s.call("create_partitions", 3, on=BOB, topics=rows, timeout=30_000, validate_only=True)

    s.rising(ask, (ALTER, CLUSTER, KAFKA_CLUSTER), (DESCRIBE, TOPIC, topic.name), (ALTER, TOPIC, topic.name),
             (ALTER, TOPIC, missing(s)))  # fmt: skip
    rows = [{"name": topic.name, "count": 2, "assignments": None}]
    s.call("create_partitions", 3, on=BOB, topics=rows, timeout=30_000, validate_only=False)


@secured_script()
def deleted_records(s: Secured) -> None:
    topic, other = pair(s)
    s.produce(topic, "one", "two")

    def ask() -> None:
        rows = [
            {"name": name, "partitions": [{"partition_index": index, "offset": 1} for index in (0, 7)]}
            for name in (topic.name, other.name, missing(s))
        ]
        s.call("delete_records", 2, on=BOB, topics=rows, timeout=30_000)

    s.rising(ask, (WRITE, TOPIC, topic.name), (DELETE, TOPIC, topic.name), (DELETE, TOPIC, missing(s)))


@secured_script()
def super_users_need_no_entries(s: Secured) -> None:
    name = f"{s.name}-one"
    create(s, name, on=ALICE)
    topic = s.learn(name, 2)
    metadata(s, name, on=ALICE)
    delete(s, (topic.name, ZERO), on=ALICE)
