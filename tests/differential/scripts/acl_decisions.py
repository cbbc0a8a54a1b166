"""What entries allow: DENY before ALLOW, implied operations, prefixes, wildcards, hosts, super
users. Metadata and DescribeGroups show it, with their bits of authorized operations (KIP-430)."""

from __future__ import annotations

from tests.differential.classic import classic_group
from tests.differential.script import Topic
from tests.differential.secured import (
    ALICE,
    ALL,
    ALTER,
    ALTER_CONFIGS,
    BOB,
    CAROL,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    EVERYONE,
    GROUP,
    IDEMPOTENT_WRITE,
    KAFKA_CLUSTER,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
    Secured,
    secured_script,
)

OF_TOPICS = (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
OF_GROUPS = (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
OF_CLUSTERS = (
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE,
)  # fmt: skip


def topics(s: Secured, *names: Topic | str, on: str = BOB) -> None:
    """Code and bits of each topic, as one note: partitions are compared elsewhere."""
    rows = [{"topic_id": None, "name": each if isinstance(each, str) else each.name} for each in names]
    answer = s.prepare(
        "metadata", 12, on, topics=rows, allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )  # fmt: skip
    s.note(
        f"topics for {on}",
        sorted([row.name, row.error_code.name, row.topic_authorized_operations] for row in answer.topics),
    )


def cluster(s: Secured, on: str = BOB) -> None:
    answer = s.prepare("describe_cluster", 1, on, include_cluster_authorized_operations=True)
    s.note(f"the cluster for {on}", [answer.error_code.name, answer.cluster_authorized_operations])


def groups(s: Secured, *names: str, on: str = BOB) -> None:
    answer = s.prepare("describe_groups", 5, on, groups=list(names), include_authorized_operations=True)
    s.note(f"groups for {on}", [[row.error_code.name, row.authorized_operations] for row in answer.groups])


@secured_script()
def each_operation_on_topics(s: Secured) -> None:
    """READ, WRITE, DELETE and ALTER let DESCRIBE, ALTER_CONFIGS lets DESCRIBE_CONFIGS."""
    made = [s.topic() for _ in (*OF_TOPICS, ALL)]
    for topic, operation in zip(made, (*OF_TOPICS, ALL), strict=True):
        topics(s, topic)
        s.allow(BOB, operation, TOPIC, topic.name)
        topics(s, topic)


@secured_script()
def each_operation_on_groups(s: Secured) -> None:
    group = classic_group(s)
    for operation in (*OF_GROUPS, ALL):
        groups(s, f"{group}-{operation}")
        s.allow(BOB, operation, GROUP, f"{group}-{operation}")
        groups(s, f"{group}-{operation}")


@secured_script()
def each_operation_on_the_cluster(s: Secured) -> None:
    cluster(s)
    for operation in OF_CLUSTERS:
        s.allow(BOB, operation, CLUSTER)
        cluster(s)
        s.revoke(BOB, operation, CLUSTER)
    s.allow(BOB, ALL, CLUSTER)
    cluster(s)


@secured_script()
def deny_before_allow(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, ALL, TOPIC, topic.name)
    topics(s, topic)
    for operation in (READ, ALTER_CONFIGS, DELETE):
        s.deny(BOB, operation, TOPIC, topic.name)
        topics(s, topic)
    s.deny(BOB, DESCRIBE, TOPIC, topic.name)
    topics(s, topic)


@secured_script()
def deny_implies_nothing(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, READ, TOPIC, topic.name)
    s.allow(BOB, WRITE, TOPIC, topic.name)
    s.deny(BOB, READ, TOPIC, topic.name)
    topics(s, topic)
    s.deny(BOB, WRITE, TOPIC, topic.name)
    topics(s, topic)


@secured_script()
def deny_all(s: Secured) -> None:
    topic, other = s.topic(), s.topic()
    for each in (topic, other):
        s.allow(BOB, READ, TOPIC, each.name)
    s.deny(BOB, ALL, TOPIC, topic.name)
    topics(s, topic, other)


@secured_script()
def deny_describe_hides_what_may_be_read(s: Secured) -> None:
    topic = s.topic()
    s.produce(topic, "one")
    s.allow(BOB, READ, TOPIC, topic.name)
    s.deny(BOB, DESCRIBE, TOPIC, topic.name)
    topics(s, topic)
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    s.call("fetch", 11, on=BOB, replica_id=-1, max_wait=0, min_bytes=1, topics=[
        {"topic": topic.name, "partitions": rows}
    ], forgotten_topics_data=(), rack_id="")  # fmt: skip


@secured_script()
def prefixes(s: Secured) -> None:
    made = [s.topic(name=f"{s.name}{end}") for end in ("", "-", "-a", "-ab", "-b")]
    s.allow(BOB, READ, TOPIC, f"{s.name}-a", PREFIXED)
    topics(s, *made)
    s.allow(BOB, DESCRIBE, TOPIC, s.name, PREFIXED)
    topics(s, *made)
    s.deny(BOB, DESCRIBE, TOPIC, f"{s.name}-a", PREFIXED)
    topics(s, *made)


@secured_script()
def a_star_in_a_prefix_is_a_letter(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, READ, TOPIC, f"{s.name}*", PREFIXED)
    s.allow(BOB, READ, TOPIC, "*", PREFIXED)
    topics(s, topic)


@secured_script()
def all_names(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, READ, TOPIC, EVERYONE)
    topics(s, topic, f"{s.name}-missing")
    s.deny(BOB, DESCRIBE, TOPIC, topic.name)
    topics(s, topic, f"{s.name}-missing")
    s.deny(BOB, READ, TOPIC, EVERYONE)
    topics(s, topic, f"{s.name}-missing")


@secured_script()
def all_users(s: Secured) -> None:
    topic = s.topic()
    s.allow(EVERYONE, READ, TOPIC, topic.name)
    for on in (BOB, CAROL):
        topics(s, topic, on=on)
    s.deny(BOB, DESCRIBE, TOPIC, topic.name)
    for on in (BOB, CAROL):
        topics(s, topic, on=on)
    s.deny(EVERYONE, ALL, TOPIC, topic.name)
    for on in (BOB, CAROL, ALICE, "a"):
        topics(s, topic, on=on)


@secured_script()
def hosts(s: Secured) -> None:
    here, other, denied = s.topic(), s.topic(), s.topic()
    s.allow(BOB, READ, TOPIC, here.name, host="127.0.0.1")
    s.allow(BOB, READ, TOPIC, other.name, host="127.0.0.2")
    s.allow(BOB, READ, TOPIC, denied.name)
    s.deny(BOB, DESCRIBE, TOPIC, denied.name, host="127.0.0.1")
    topics(s, here, other, denied)


@secured_script()
def entries_of_other_users_and_types(s: Secured) -> None:
    topic = s.topic()
    s.allow(CAROL, ALL, TOPIC, topic.name)
    s.allow(BOB, ALL, GROUP, topic.name)
    topics(s, topic)


@secured_script()
def super_users(s: Secured) -> None:
    topic = s.topic()
    group = classic_group(s)
    for on in (ALICE, "a"):
        topics(s, topic, f"{s.name}-missing", on=on)
        groups(s, group, on=on)
        cluster(s, on)


@secured_script()
def rights_that_are_withdrawn(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, READ, TOPIC, topic.name)
    topics(s, topic)
    s.revoke(BOB, READ, TOPIC, topic.name)
    topics(s, topic)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    topics(s, topic)


@secured_script()
def cluster_rights_are_not_rights_on_topics(s: Secured) -> None:
    topic = s.topic()
    s.allow(BOB, ALL, CLUSTER, KAFKA_CLUSTER)
    topics(s, topic, f"{s.name}-missing")
    groups(s, classic_group(s))


@secured_script()
def bits_of_groups_of_the_new_protocols(s: Secured) -> None:
    topic = s.topic()
    group = s.group()
    s.join(group, "m", topic)
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    for right in (DESCRIBE, READ, DELETE):
        s.allow(BOB, right, GROUP, group)
        answer = s.prepare(
            "share_group_describe", 1, BOB, group_ids=[group], include_authorized_operations=True
        )
        s.note("bits", [[row.error_code.name, row.authorized_operations] for row in answer.groups])
