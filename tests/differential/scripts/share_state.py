"""The share coordinator's own requests: a leader's view of the stored state."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from uuid import UUID

from tests.differential.script import Entity, Session, Topic, Value, script

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
Batches = Sequence[tuple[int, int, int, int]]
ZERO = UUID(int=0)


def ready(s: Session, partitions: int = 1) -> tuple[Topic, str]:
    """A topic, and a group that has no members: only the script writes its state. Leader epochs are
    far above real ones."""
    topic, group = s.topic(partitions), f"{s.name}-g"

    def known() -> bool:
        rows = [{"topic_id": topic.topic_id, "partitions": [{"partition": partitions - 1}]}]
        answer = s.prepare("delete_share_group_state", 0, group_id=group, topics=rows)
        if (code := answer.results[0].partitions[0].error_code.value) in (14, 15, 16):
            s.prepare(
                "find_coordinator", 6, key_type=2, coordinator_keys=[f"{group}:{_base64(topic.topic_id)}:0"]
            )
        return bool(code == 0)

    s.until(known, "the share coordinator knows the topic")
    return topic, group


def _base64(topic_id: UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _one(s: Session, api: str, version: int, group: str | None, topic: Topic | UUID, **row: Value) -> Entity:
    topic_id = topic.topic_id if isinstance(topic, Topic) else topic
    return s.call(api, version, group_id=group, topics=[{"topic_id": topic_id, "partitions": [row]}])


def initialize(
    s: Session, group: str, topic: Topic | UUID, epoch: int, start: int, partition: int = 0
) -> Entity:
    return _one(
        s,
        "initialize_share_group_state",
        0,
        group,
        topic,
        partition=partition,
        state_epoch=epoch,
        start_offset=start,
    )


def read(s: Session, group: str, topic: Topic | UUID, leader: int, partition: int = 0) -> Entity:
    return _one(s, "read_share_group_state", 0, group, topic, partition=partition, leader_epoch=leader)


def write(
    s: Session, group: str, topic: Topic | UUID, epochs: tuple[int, int], start: int, batches: Batches = (),
    *, dcc: int | None = None,
    partition: int = 0,
) -> Entity:  # fmt: skip
    """`epochs`: of the state and of the leader. Version 0 has no delivery complete count."""
    rows = [
        {"first_offset": a, "last_offset": b, "delivery_state": state, "delivery_count": count}
        for a, b, state, count in batches
    ]
    more = {} if dcc is None else {"delivery_complete_count": dcc}
    return _one(
        s, "write_share_group_state", 0 if dcc is None else 1, group, topic, partition=partition,
        state_epoch=epochs[0],
        leader_epoch=epochs[1], start_offset=start, state_batches=rows, **more,
    )  # fmt: skip


def delete(s: Session, group: str, topic: Topic | UUID, partition: int = 0) -> Entity:
    return _one(s, "delete_share_group_state", 0, group, topic, partition=partition)


def summary(s: Session, group: str, topic: Topic | UUID, version: int = 1, partition: int = 0) -> Entity:
    return _one(
        s, "read_share_group_state_summary", version, group, topic, partition=partition, leader_epoch=-1
    )


def summary_of_used(s: Session, group: str, topic: Topic, partition: int = 0) -> None:
    """Start offset and count alone: the epochs depend on how many heartbeats the initialization
    took."""
    rows = [{"partition": partition, "leader_epoch": -1}]
    answer = s.prepare(
        "read_share_group_state_summary",
        1,
        group_id=group,
        topics=[{"topic_id": topic.topic_id, "partitions": rows}],
    )
    row = answer.results[0].partitions[0]
    s.note(
        f"state of partition {partition}",
        [row.error_code.name, row.start_offset, row.delivery_complete_count],
    )


@script("SC-45", "SC-41", "SC-44")
def initialize_read_and_summary(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 10)
    summary(s, group, topic)
    read(s, group, topic, 30)
    summary(s, group, topic)
    summary(s, group, topic, version=0)


@script("SC-45", "SC-22", "SC-47")
def initial_start_offsets(s: Session) -> None:
    topic, group = ready(s)
    summary(s, group, topic)
    for epoch, start in ((1, -1), (2, 0), (3, -7)):
        initialize(s, group, topic, epoch, start)
        summary(s, group, topic)


@script("SC-21", "SC-22", "SC-23", "SC-28")
def never_initialised(s: Session) -> None:
    topic, group = ready(s)
    read(s, group, topic, 30)
    write(s, group, topic, (1, 30), 0)
    summary(s, group, topic)
    delete(s, group, topic)
    delete(s, group, topic)


@script("SC-38", "SC-37", "SC-41")
def write_and_read(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 0, [(0, 4, ACKNOWLEDGED, 1), (5, 9, AVAILABLE, 2)], dcc=5)
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 5, [(10, 12, ARCHIVED, 3)], dcc=1)
    read(s, group, topic, 30)
    summary(s, group, topic)


@script("SC-38")
def batches_that_overlap(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 0, [(0, 9, AVAILABLE, 1)], dcc=0)
    write(s, group, topic, (5, 30), 0, [(3, 5, ACKNOWLEDGED, 1)], dcc=3)
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 4, [(6, 7, AVAILABLE, 2)], dcc=2)
    read(s, group, topic, 30)


@script("SC-38")
def batches_that_join(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    write(
        s, group, topic, (5, 30), 0, [(0, 1, AVAILABLE, 1), (2, 3, AVAILABLE, 1), (4, 5, AVAILABLE, 2)], dcc=0
    )
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 0, [(4, 5, ACKNOWLEDGED, 2), (6, 7, ACKNOWLEDGED, 2)], dcc=4)
    read(s, group, topic, 30)


@script("SC-24", "SC-42", "SC-43")
def stale_leaders(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    read(s, group, topic, 29)
    write(s, group, topic, (5, 29), 0, dcc=0)
    read(s, group, topic, 31)
    write(s, group, topic, (5, 30), 0, dcc=0)
    read(s, group, topic, 31)
    summary(s, group, topic)


@script("SC-37")
def a_write_of_a_leader_that_never_read(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    write(s, group, topic, (5, 40), 3, [(3, 4, AVAILABLE, 1)], dcc=0)
    summary(s, group, topic)
    read(s, group, topic, 30)
    read(s, group, topic, 41)


@script("SC-25", "SC-37")
def stale_state_epochs(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    initialize(s, group, topic, 4, 0)
    read(s, group, topic, 30)
    write(s, group, topic, (4, 30), 0, dcc=0)
    write(s, group, topic, (6, 30), 1, dcc=0)
    summary(s, group, topic)
    write(s, group, topic, (5, 30), 2, dcc=0)
    summary(s, group, topic)


@script("SC-35", "SC-36")
def start_offsets_that_go_back(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 10)
    read(s, group, topic, 30)
    for start, dcc in ((20, 3), (20, 2), (15, 9), (-1, 4), (20, 6)):
        write(s, group, topic, (5, 30), start, dcc=dcc)
        summary(s, group, topic)


@script("RPC-11", "SC-36")
def writes_without_a_count(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 10)
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 11)
    summary(s, group, topic)
    write(s, group, topic, (5, 30), 12, dcc=1)
    write(s, group, topic, (5, 30), 12)
    summary(s, group, topic)


@script("SC-46")
def initialised_twice(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    write(s, group, topic, (5, 30), 0, [(0, 4, AVAILABLE, 1)], dcc=0)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 31)
    initialize(s, group, topic, 6, 2)
    read(s, group, topic, 31)


@script("SC-48", "SC-26", "SC-14")
def deleted_and_made_again(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    delete(s, group, topic)
    read(s, group, topic, 31)
    summary(s, group, topic)
    initialize(s, group, topic, 1, 4)
    read(s, group, topic, 2)


@script("SC-39", seconds=3.0)
def many_updates(s: Session) -> None:
    """More updates than there are between two snapshots."""
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    for number in range(510):
        state = ACKNOWLEDGED if number % 2 else ARCHIVED
        row = {"first_offset": number, "last_offset": number, "delivery_state": state, "delivery_count": 1}
        rows = [
            {"partition": 0, "state_epoch": 5, "leader_epoch": 30, "start_offset": 0, "state_batches": [row]}
        ]
        s.prepare(
            "write_share_group_state",
            0,
            group_id=group,
            topics=[{"topic_id": topic.topic_id, "partitions": rows}],
        )
    answer = s.prepare(
        "read_share_group_state", 0, group_id=group,
        topics=[{"topic_id": topic.topic_id, "partitions": [{"partition": 0, "leader_epoch": 30}]}],
    )  # fmt: skip
    (row,) = answer.results[0].partitions
    s.note(
        "batches",
        [len(row.state_batches), row.state_batches[0].first_offset, row.state_batches[-1].last_offset],
    )
    summary(s, group, topic)
