"""Requests of tools for clusters of several brokers, to one that is alone: ElectLeaders,
AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum, and
delegation tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.script import Session, Value, only, script
from tests.differential.transcript import Json

METADATA_LOG = "__cluster_metadata"
NEVER, FAR = 2_147_483_647, 60_000


def named(topic: str, *partitions: int) -> dict[str, Value]:
    return {"topic": topic, "partitions": list(partitions)}


def elect(s: Session, version: int, rows: Value, *, kind: int = 0, timeout: int = FAR, **how: Value) -> None:
    more = {"election_type": kind} if version >= 1 else {}
    s.call("elect_leaders", version, topic_partitions=rows, timeout=timeout, **more, **how)


@script("BASE-80")
def elections(s: Session) -> None:
    topic = s.topic(2)
    for version in (0, 1, 2):
        elect(s, version, [named(topic.name, 0, 1)])
    for kind in (1, 2, -1):
        elect(s, 2, [named(topic.name, 0)], kind=kind)
    for timeout in (0, -1, 1):
        elect(s, 2, [named(topic.name, 0)], timeout=timeout)


@script("BASE-80", "BASE-81")
def elections_of_what_does_not_exist(s: Session) -> None:
    topic = s.topic()
    missing = f"{s.name}-missing"
    for rows in (
        [named(missing, 0, 1)],
        [named(topic.name, 1, -1, 0, NEVER)],
        [named(topic.name, 0), named(missing, 0)],
        [named("", 0)],
        [named("a b", 0)],
        [named(METADATA_LOG, 0)],
    ):
        elect(s, 2, rows)
    for kind in (1, 2):
        elect(s, 2, [named(missing, 0), named(topic.name, 3)], kind=kind)


@script("BASE-80", "BASE-82")
def elections_of_everything_and_of_nothing(s: Session) -> None:
    topic = s.topic(2)
    mine = only("replica_election_results", "topic", f"{s.name}-*")
    for version in (0, 1, 2):
        elect(s, version, None, keep=mine)
        elect(s, version, [])
    elect(s, 2, None, kind=1, keep=mine)
    elect(s, 2, None, kind=5, keep=mine)
    elect(s, 2, [named(topic.name)])


@script("BASE-83")
def elections_of_the_same_partition_twice(s: Session) -> None:
    topic = s.topic(2)
    missing = f"{s.name}-missing"
    for rows in (
        [named(topic.name, 0, 0)],
        [named(topic.name, 0), named(topic.name, 0)],
        [named(topic.name, 0), named(topic.name, 1)],
        [named(missing, 0, 0)],
    ):
        elect(s, 2, rows)


def target(index: int, replicas: Sequence[int] | None) -> dict[str, Value]:
    return {"partition_index": index, "replicas": None if replicas is None else list(replicas)}


def reassign(s: Session, *topics: Value, version: int = 1, timeout: int = FAR, may_grow: bool = True) -> None:
    more = {"allow_replication_factor_change": may_grow} if version >= 1 else {}
    s.call("alter_partition_reassignments", version, timeout=timeout, topics=list(topics), **more)


def moved(name: str, *rows: dict[str, Value]) -> dict[str, Value]:
    return {"name": name, "partitions": list(rows)}


TARGETS: Sequence[Sequence[int] | None] = (
    (1,), (), (1, 1), (2,), (1, 2), (2, 1), (-1,), (0,), (NEVER,), (2, 2), (-1, -1), (-1, 2), None,
)  # fmt: skip


@script("BASE-84", "BASE-85", "BASE-86", "BASE-87")
def reassignments(s: Session) -> None:
    topic = s.topic(len(TARGETS))
    for version in (0, 1):
        rows = [target(index, replicas) for index, replicas in enumerate(TARGETS)]
        reassign(s, moved(topic.name, *rows), version=version)
    for timeout in (0, -1, 1):
        reassign(s, moved(topic.name, target(0, (1,))), timeout=timeout)
    for replicas in TARGETS:
        reassign(s, moved(topic.name, target(0, replicas)), may_grow=False)
    s.call("list_partition_reassignments", 0, timeout=FAR, topics=[
        {"name": topic.name, "partition_indexes": list(range(len(TARGETS)))}
    ])  # fmt: skip


@script("BASE-88")
def reassignments_of_what_does_not_exist(s: Session) -> None:
    topic = s.topic()
    missing = f"{s.name}-missing"
    for name in (missing, "", "a b", METADATA_LOG):
        reassign(s, moved(name, *(target(0, replicas) for replicas in ((1,), (2,), (), None))))
    rows = [target(index, replicas) for index in (1, -1) for replicas in ((1,), (2,), (), None)]
    for row in rows:
        reassign(s, moved(topic.name, row))
    reassign(s, moved(topic.name, target(0, (1,))), moved(missing, target(0, (1,))))
    reassign(s, moved(topic.name, target(0, (1,)), target(1, (1,))))


@script("BASE-84", "BASE-85")
def reassignments_of_the_same_partition_twice(s: Session) -> None:
    topic = s.topic(2)
    for first, second in (((1,), (1,)), ((1,), (2,)), (None, (1,))):
        reassign(s, moved(topic.name, target(0, first), target(0, second)))
        reassign(s, moved(topic.name, target(0, first)), moved(topic.name, target(0, second)))
    reassign(s)
    reassign(s, moved(topic.name))


@script("BASE-89")
def reassignments_listed(s: Session) -> None:
    topic = s.topic(2)
    for topics in (
        None,
        [],
        [(topic.name, (0, 1))],
        [(topic.name, ())],
        [(topic.name, (7, -1))],
        [(f"{s.name}-missing", (0,))],
        [("", (0,)), ("a b", (0,))],
        [(topic.name, (0, 0)), (topic.name, (0,))],
    ):
        rows = topics and [{"name": name, "partition_indexes": list(indexes)} for name, indexes in topics]
        s.call("list_partition_reassignments", 0, timeout=FAR, topics=rows)
    for timeout in (0, -1):
        s.call("list_partition_reassignments", 0, timeout=timeout, topics=None)


def own_directory(s: Session) -> str:
    (row,) = s.prepare("describe_log_dirs", 4, topics=()).results
    return str(row.log_dir)


def move(s: Session, what: str, *dirs: tuple[str, str, Sequence[int]], version: int = 2) -> None:
    """The codes as a note: the directory is not the same in two brokers."""
    rows = [
        {"path": path, "topics": [{"name": name, "partitions": list(parts)}]} for path, name, parts in dirs
    ]
    answer = s.prepare("alter_replica_log_dirs", version, dirs=rows)
    s.note(what, sorted(
        [each.topic_name, row.partition_index, row.error_code.name]
        for each in answer.results
        for row in each.partitions
    ))  # fmt: skip


@script("BASE-90", "BASE-91")
def replicas_between_directories(s: Session) -> None:
    topic = s.topic(2)
    own = own_directory(s)
    for version in (1, 2):
        move(s, f"version {version}", (own, topic.name, (0, 1)), version=version)
    move(s, "another directory", ("/nowhere", topic.name, (0,)))
    move(s, "its parent", (own.rpartition("/")[0], topic.name, (0,)))
    move(s, "a relative one", ("data", topic.name, (0,)))
    move(s, "none", ("", topic.name, (0,)))
    move(s, "another spelling", (f"{own}/", topic.name, (0,)))
    move(s, "a longer way", (f"{own}/../{own.rpartition('/')[2]}", topic.name, (0,)))
    move(s, "unknown partitions", (own, topic.name, (2, -1)))
    move(s, "unknown topics", (own, f"{s.name}-missing", (0,)), (own, "a b", (0,)), (own, "", (0,)))
    move(s, "the log of metadata", (own, METADATA_LOG, (0,)))
    move(s, "an unknown topic into another directory", ("/nowhere", f"{s.name}-missing", (0,)))
    move(s, "twice in one", (own, topic.name, (0, 0)))
    move(s, "into two, own last", ("/nowhere", topic.name, (0,)), (own, topic.name, (0,)))
    move(s, "into two, own first", (own, topic.name, (0,)), ("/nowhere", topic.name, (0,)))
    move(s, "no partitions", (own, topic.name, ()))
    move(s, "nothing")


def quorum(s: Session, version: int, *topics: tuple[str, Sequence[int]]) -> None:
    """Offsets, epochs, times and directories as what they are."""
    rows = [
        {"topic_name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in topics
    ]
    s.call("describe_quorum", version, topics=rows, keep=_quorum)


def _quorum(answer: Json) -> Json:
    masked = {"log_end_offset", "high_watermark", "leader_epoch", "last_fetch_timestamp",
              "last_caught_up_timestamp"}  # fmt: skip

    def plain(value: Json, field: str = "") -> Json:
        if isinstance(value, dict):
            return {name: plain(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [plain(each, field) for each in value]
        if field in masked and isinstance(value, int):
            return "number" if value > 0 else value
        if field == "replica_directory_id":
            return "directory"
        return "name" if field == "name" else value

    return plain(answer)


@script("BASE-92")
def the_quorum(s: Session) -> None:
    for version in (0, 1, 2):
        quorum(s, version, (METADATA_LOG, (0,)))


@script("BASE-93")
def quorums_of_other_logs(s: Session) -> None:
    topic = s.topic()
    for topics in (
        [(topic.name, (0,))],
        [(METADATA_LOG, (1,))],
        [(METADATA_LOG, (0, 1))],
        [(METADATA_LOG, (0, 0))],
        [(METADATA_LOG, ())],
        [(METADATA_LOG, (0,)), (topic.name, (0,))],
        [(METADATA_LOG, (0,)), (METADATA_LOG, (0,))],
        [(f"{s.name}-missing", (0, 7))],
        [("", (-1,))],
        [],
    ):
        for version in (0, 2):
            quorum(s, version, *topics)


def answered(s: Session, api: str, version: int, on: str, **values: Value) -> None:
    """The answer's bytes as a note: kio cannot decode times before 1970, which refusals have."""
    connection = s.connection(on)
    connection.send_raw(connection.encode(api, version, values))
    s.note(f"{api}, version {version}", connection.read_frame()[4:].hex())


def tokens(s: Session, on: str) -> None:
    renewers = [{"principal_type": "User", "principal_name": "other"}]
    others: dict[str, Value] = {"owner_principal_type": None, "owner_principal_name": None}
    for version in (1, 2, 3):
        more = others if version >= 3 else {}
        answered(s, "create_delegation_token", version, on, renewers=renewers, max_lifetime=-1, **more)
    others = {"owner_principal_type": "User", "owner_principal_name": "other"}
    answered(s, "create_delegation_token", 3, on, renewers=[], max_lifetime=1000, **others)
    groups = [{"principal_type": "Group", "principal_name": "other"}]
    answered(s, "create_delegation_token", 2, on, renewers=groups, max_lifetime=-1)
    for version in (1, 2):
        answered(s, "renew_delegation_token", version, on, hmac=b"none", renew_period=1000)
        answered(s, "expire_delegation_token", version, on, hmac=b"none", expiry_time_period=-1)
    for version in (1, 2, 3):
        owners = [{"principal_type": "User", "principal_name": "other"}]
        for rows in (None, [], owners):
            s.call("describe_delegation_token", version, on=on, owners=rows)


@script("BASE-94")
def delegation_tokens(s: Session) -> None:
    tokens(s, "a")
