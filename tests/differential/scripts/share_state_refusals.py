"""Refusals of the share coordinator and their order; the keys by which it is looked up."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from uuid import UUID

from tests.differential.script import Session, script
from tests.differential.scripts.share_state import (
    AVAILABLE,
    ZERO,
    delete,
    initialize,
    read,
    ready,
    summary,
    write,
)


@script("SC-28", "SC-24", "SC-25")
def both_epochs_stale(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    write(s, group, topic, (4, 29), 0, dcc=0)
    write(s, group, topic, (-2, 29), 0, dcc=0)
    write(s, group, topic, (4, -2), 0, dcc=0)


@script("SC-18")
def negative_partitions_and_no_topic_id(s: Session) -> None:
    topic, group = ready(s)
    for where, partition in ((topic, -1), (ZERO, 0)):
        initialize(s, group, where, 5, 0, partition)
        read(s, group, where, 30, partition)
        write(s, group, where, (5, 30), 0, dcc=0, partition=partition)
        summary(s, group, where, partition=partition)
        delete(s, group, where, partition)


@script("SC-19", "SC-20")
def negative_epochs(s: Session) -> None:
    topic, group = ready(s)
    for epoch in (-1, -2):
        initialize(s, group, topic, epoch, 0)
    initialize(s, group, topic, 5, 0)
    for epoch in (-1, -2):
        read(s, group, topic, epoch)
        write(s, group, topic, (5, epoch), 0, dcc=0)
        write(s, group, topic, (epoch, 30), 0, dcc=0)
    summary(s, group, topic)


@script("SC-27", "SC-28")
def partitions_that_do_not_exist(s: Session) -> None:
    topic, group = ready(s)
    for where, partition in ((topic, 7), (UUID(int=77), 0)):
        initialize(s, group, where, 5, 0, partition)
        read(s, group, where, 30, partition)
        write(s, group, where, (5, 30), 0, dcc=0, partition=partition)
        summary(s, group, where, partition=partition)
        delete(s, group, where, partition)


@script("SC-32", "RPC-10")
def nothing_named(s: Session) -> None:
    topic, group = ready(s)
    apis = (
        "initialize_share_group_state",
        "read_share_group_state",
        "delete_share_group_state",
        "read_share_group_state_summary",
    )
    for api in (*apis, "write_share_group_state"):
        s.call(api, 0, group_id=group, topics=())
        s.call(api, 0, group_id=group, topics=[{"topic_id": topic.topic_id, "partitions": ()}])
    initialize(s, "", topic, 5, 0)
    read(s, "", topic, 30)
    write(s, "", topic, (5, 30), 0, dcc=0)
    summary(s, "", topic)
    delete(s, "", topic)


@script("SC-31", "SC-34")
def rows_on_their_own(s: Session) -> None:
    topic, group = ready(s, partitions=2)
    rows = [{"partition": index, "state_epoch": 5, "start_offset": 3} for index in (0, 7, 1)]
    s.call(
        "initialize_share_group_state",
        0,
        group_id=group,
        topics=[{"topic_id": topic.topic_id, "partitions": rows}],
    )
    reads = [
        {"partition": index, "leader_epoch": epoch} for index, epoch in ((0, 30), (1, 30), (0, 31), (9, 30))
    ]
    s.call(
        "read_share_group_state",
        0,
        group_id=group,
        topics=[{"topic_id": topic.topic_id, "partitions": reads}],
    )


@script("SC-30")
def state_that_makes_no_sense(s: Session) -> None:
    topic, group = ready(s)
    initialize(s, group, topic, 5, 0)
    read(s, group, topic, 30)
    for batch in ((9, 3, AVAILABLE, 1), (0, 1, 9, 1), (2, 3, AVAILABLE, -4), (-5, -3, AVAILABLE, 1)):
        write(s, group, topic, (5, 30), 0, [batch], dcc=0)
    write(s, group, topic, (5, 30), 0, [(0, 1, AVAILABLE, 1)], dcc=-9)
    summary(s, group, topic)


@script("SC-4", "SC-5", "SC-6", "SC-7")
def finding_coordinators(s: Session) -> None:
    _, group = ready(s)
    # topics need not exist, and real ids would differ in each run
    key = urlsafe_b64encode(UUID(int=1 << 64).bytes).decode().rstrip("=")
    s.call("find_coordinator", 6, key_type=2, coordinator_keys=[f"{group}:{key}:0"])
    s.call(
        "find_coordinator",
        6,
        key_type=2,
        coordinator_keys=[f"{group}:with:colons:{key}:0", f"{group}:{key}:-1"],
    )
    for bad in (
        "",
        "a",
        f"{group}:{key}",
        f":{key}:0",
        f"{group}:nonsense:0",
        f"{group}:{key}:x",
        f" :{key}:0",
    ):
        s.call("find_coordinator", 6, key_type=2, coordinator_keys=[bad])
    s.call("find_coordinator", 5, key_type=2, coordinator_keys=[f"{group}:{key}:0"])
    s.call("find_coordinator", 6, key_type=3, coordinator_keys=[group])
    s.call("find_coordinator", 6, key_type=2, coordinator_keys=())
    s.call("find_coordinator", 6, key_type=0, coordinator_keys=[group, ""])
    s.call("find_coordinator", 3, key_type=0, key=group)
