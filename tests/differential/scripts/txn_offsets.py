"""TxnOffsetCommit: offsets of groups within transactions, and OffsetFetch of stable offsets."""

from __future__ import annotations

from uuid import UUID

from tests.differential.classic import ClassicMember, classic_group, delete, describe, form, until_state
from tests.differential.consumers import Consumer, group_of
from tests.differential.script import Entity, Session, Topic, Value, only, script
from tests.differential.scripts.offset_commits import commit, fetch
from tests.differential.scripts.offset_deletions import delete_offsets
from tests.differential.scripts.txn_partitions import wrong_ones
from tests.differential.transactions import Producer, Who, fresh, transactional
from tests.differential.transactions import describe as describe_transactions

VERSIONS = (0, 1, 2, 3, 4, 5, 6)
NO_GROUP = -1


def send(
    t: Producer, group: str, offsets: dict[Topic, dict[int, int]], version: int = 5, *,
    who: Who | None = None, metadata: str | None = "", **more: Value,
) -> Entity:  # fmt: skip
    """TxnOffsetCommit, without a member unless `more` has one."""
    producer_id, epoch = who or t.who
    leader = {"committed_leader_epoch": -1} if version >= 2 else {}
    rows = [
        {
            **({"topic_id": topic.topic_id} if version >= 6 else {"name": topic.name}),
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_metadata": metadata,
                    **leader,
                }
                for index, offset in partitions.items()
            ],
        }
        for topic, partitions in offsets.items()
    ]
    values: dict[str, Value] = {
        "transactional_id": t.id, "group_id": group, "producer_id": producer_id, "producer_epoch": epoch,
        "topics": rows,
    }  # fmt: skip
    return t.s.call("txn_offset_commit", version, on=t.on, **values | more)


def seen(s: Session, group: str, topic: Topic, partitions: int = 1) -> None:
    for stable in (False, True):
        fetch(s, group, [topic], partitions=partitions, stable=stable)


@script()
def offsets_in_each_version(s: Session) -> None:
    topic = s.topic(2)
    for version in VERSIONS:
        for committed in (True, False):
            group = classic_group(s, f"g{version}-{committed}")
            t = transactional(s, f"t{version}-{committed}", 2 if version >= 5 else 1)
            if version < 5:
                t.add_offsets(group)
            send(t, group, {topic: {0: 5, 1: 6}}, version)
            seen(s, group, topic, 2)
            t.ended(committed)
            seen(s, group, topic, 2)


@script(alone=True)
def groups_that_were_not_added(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    t = transactional(s, "t", 1)
    for version in VERSIONS:
        send(t, group, {topic: {0: 5}}, version)
    t.ended(False)
    for version in VERSIONS[:-1]:
        send(t, group, {topic: {0: 5}}, version)
    fetch(s, group, [topic])


@script(alone=True)
def another_group_was_added(s: Session) -> None:
    topic = s.topic()
    group, other = classic_group(s, "aa"), classic_group(s, "ab")
    t = transactional(s, "t", 1)
    t.add_offsets(other)
    for version in VERSIONS[:-1]:
        send(t, group, {topic: {0: 5}}, version)


@script()
def stable_offsets_in_each_version(s: Session) -> None:
    topic, group = s.topic(2), classic_group(s)
    commit(s, group, {topic: {0: 1, 1: 2}})
    t = transactional(s)
    send(t, group, {topic: {0: 5}})
    for version in (7, 8, 9, 10):
        for stable in (False, True):
            fetch(s, group, [topic], version, partitions=3, stable=stable)
            fetch(s, group, None, version, stable=stable)
    t.ended(True)
    for version in (7, 9):
        fetch(s, group, None, version, stable=True)


@script()
def plain_commits_meanwhile(s: Session) -> None:
    topic = s.topic()
    for committed in (True, False):
        group = classic_group(s, f"g-{committed}")
        t = transactional(s, f"t-{committed}")
        commit(s, group, {topic: {0: 1}})
        send(t, group, {topic: {0: 5}})
        commit(s, group, {topic: {0: 3}})
        seen(s, group, topic)
        t.ended(committed)
        seen(s, group, topic)


@script()
def plain_commits_before(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    commit(s, group, {topic: {0: 9}})
    t = transactional(s)
    send(t, group, {topic: {0: 5}})
    seen(s, group, topic)
    t.ended(True)
    seen(s, group, topic)


@script()
def two_transactions(s: Session) -> None:
    topic = s.topic()
    for earlier_first in (True, False):
        group = classic_group(s, f"g-{earlier_first}")
        t, u = transactional(s, f"t-{earlier_first}"), transactional(s, f"u-{earlier_first}")
        send(t, group, {topic: {0: 5}})
        send(u, group, {topic: {0: 6}})
        for each in (t, u) if earlier_first else (u, t):
            each.ended(True)
            seen(s, group, topic)


@script()
def offsets_sent_twice(s: Session) -> None:
    topic, group = s.topic(2), classic_group(s)
    t = transactional(s)
    send(t, group, {topic: {0: 5}})
    send(t, group, {topic: {0: 4, 1: 8}})
    t.ended(True)
    seen(s, group, topic, 2)


@script()
def several_groups(s: Session) -> None:
    topic = s.topic()
    groups = [classic_group(s, name) for name in ("g", "h")]
    t = transactional(s)
    for index, group in enumerate(groups):
        send(t, group, {topic: {0: 5 + index}})
    t.ended(True)
    for group in groups:
        fetch(s, group, [topic])


@script()
def offsets_of_the_wrong_producer(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    t = transactional(s)
    t.init(who=t.who)
    t.add_offsets(group)
    for version in VERSIONS:
        for who in wrong_ones(t):
            send(t, group, {topic: {0: 5}}, version, who=who)


@script()
def offsets_of_ids_that_are_unknown(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    t = fresh(s)
    for version in VERSIONS:
        send(t, group, {topic: {0: 5}}, version, who=(1 << 40, 0))
        send(t, group, {topic: {0: 5}}, version, who=(1 << 40, 0), transactional_id="")


@script()
def the_empty_group(s: Session) -> None:
    topic = s.topic()
    classic_group(s)
    t = transactional(s)
    for version in VERSIONS:
        send(t, "", {topic: {0: 5}}, version)


@script("BASE-68")
def groups_that_do_not_exist(s: Session) -> None:
    topic = s.topic()
    t = transactional(s)
    for version in (3, 4, 5, 6):
        for generation in (0, 1, -1):
            group = classic_group(s, f"g{version}-{generation}")
            t.add_offsets(group)
            send(t, group, {topic: {0: 5}}, version, generation_id=generation, member_id="m")
            send(t, group, {topic: {0: 5}}, version, generation_id=generation, member_id="")
            describe(s, group)


@script("BASE-68")
def partitions_that_are_unknown(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    nothing = Topic(f"{s.name}-missing", UUID(int=77))
    t = transactional(s)
    t.add_offsets(group)
    for version in VERSIONS:
        send(t, group, {topic: {0: 5, 7: 5}, nothing: {0: 5}}, version)
    t.ended(True)
    fetch(s, group, None)


@script()
def no_partitions(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    t = transactional(s)
    for version in VERSIONS:
        send(t, group, {}, version)
        send(t, group, {topic: {}}, version)
    describe_transactions(s, t.id)


@script()
def metadata_and_offsets_out_of_bounds(s: Session) -> None:
    topic, group = s.topic(2), classic_group(s)
    t = transactional(s)
    for metadata in ("m" * 4096, "m" * 4097, None, "plain"):
        send(t, group, {topic: {0: 5}}, metadata=metadata)
    send(t, group, {topic: {1: -1}})
    send(t, group, {topic: {1: (1 << 63) - 1}})
    t.ended(True)
    seen(s, group, topic, 2)


@script()
def a_member_of_a_classic_group(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    member = ClassicMember(s, group, "m")
    form(member)
    t = transactional(s)
    t.add_offsets(group)
    for version in (3, 4, 5, 6):
        for generation, member_id in (
            (member.generation, member.member_id), (member.generation + 1, member.member_id),
            (member.generation - 1, member.member_id), (member.generation, "stranger"),
            (-1, member.member_id), (member.generation, ""), (-1, ""), (-1, "stranger"),
        ):  # fmt: skip
            send(t, group, {topic: {0: version}}, version, generation_id=generation, member_id=member_id)
        send(
            t, group, {topic: {0: version}}, version, generation_id=member.generation,
            member_id=member.member_id, group_instance_id="i",
        )  # fmt: skip
    for version in (0, 1, 2):
        send(t, group, {topic: {0: version}}, version)
    t.ended(True)
    fetch(s, group, [topic])


@script()
def a_static_member_of_a_classic_group(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    member = ClassicMember(s, group, "m", instance_id="i")
    form(member)
    t = transactional(s)
    t.add_offsets(group)
    for member_id, instance_id in (
        (member.member_id, "i"), ("stranger", "i"), (member.member_id, "other"), (member.member_id, None),
        ("", "i"),
    ):  # fmt: skip
        send(
            t, group, {topic: {0: 5}}, 3, generation_id=member.generation, member_id=member_id,
            group_instance_id=instance_id,
        )  # fmt: skip


@script()
def a_classic_group_that_rebalances(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    member, other = ClassicMember(s, group, "m"), ClassicMember(s, group, "n")
    form(member)
    waiting = other.enter()
    until_state(s, group, "PreparingRebalance", 2)
    t = transactional(s)
    t.add_offsets(group)
    for version in (0, 3, 5):
        more = {"generation_id": member.generation, "member_id": member.member_id} if version >= 3 else {}
        send(t, group, {topic: {0: version}}, version, **more)
    rejoining = member.begin_join(quiet=True)
    waiting()
    rejoining()
    generation = member.generation
    send(t, group, {topic: {0: 9}}, generation_id=generation, member_id=member.member_id)
    send(t, group, {topic: {0: 9}}, generation_id=generation - 1, member_id=member.member_id)
    t.ended(True)
    fetch(s, group, [topic])


@script("BASE-68")
def a_member_of_a_consumer_group(s: Session) -> None:
    topic = s.topic()
    group = group_of(s, "g", topic)
    member = Consumer(s, group, "m")
    member.join(topic)
    t = transactional(s)
    t.add_offsets(group)
    for version in (3, 5, 6):
        for epoch, member_id in (
            (member.epoch, "m"), (member.epoch + 1, "m"), (member.epoch - 1, "m"), (0, "m"), (-1, "m"),
            (member.epoch, "stranger"), (member.epoch, ""), (-1, ""), (-1, "stranger"),
        ):  # fmt: skip
            send(t, group, {topic: {0: version}}, version, generation_id=epoch, member_id=member_id)
    for version in (0, 1, 2):
        send(t, group, {topic: {0: version}}, version)
    t.ended(True)
    fetch(s, group, [topic])


@script()
def a_share_group(s: Session) -> None:
    topic, member = s.share()
    t = transactional(s)
    group = str(member.group_id)
    t.add_offsets(group)
    for version in VERSIONS:
        send(t, group, {topic: {0: 5}}, version)
    for version in (5, 6):
        send(t, group, {topic: {0: 5}}, version, generation_id=1, member_id="m")


@script()
def a_group_is_deleted_meanwhile(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    t = transactional(s)
    send(t, group, {topic: {0: 5}})
    describe(s, group)
    s.call("list_groups", 5, states_filter=(), types_filter=(), keep=only("groups", "group_id", group))
    delete(s, group)
    seen(s, group, topic)
    t.ended(True)
    seen(s, group, topic)
    describe(s, group)


@script()
def offsets_are_deleted_meanwhile(s: Session) -> None:
    topic, group = s.topic(2), classic_group(s)
    commit(s, group, {topic: {0: 1, 1: 1}})
    t = transactional(s)
    send(t, group, {topic: {0: 5, 1: 5}})
    delete_offsets(s, group, {topic.name: [0]})
    seen(s, group, topic, 2)
    t.ended(True)
    seen(s, group, topic, 2)


@script()
def a_topic_is_deleted_meanwhile(s: Session) -> None:
    topic, other, group = s.topic(), s.topic(), classic_group(s)
    t = transactional(s)
    send(t, group, {topic: {0: 5}, other: {0: 6}})
    s.prepare("delete_topics", 6, topics=[{"name": topic.name, "topic_id": None}], timeout=30_000)
    s.until(lambda: not _is_pending(s, group, topic), "the group has forgotten the topic")
    t.ended(True)
    fetch(s, group, None)


def _is_pending(s: Session, group: str, topic: Topic) -> bool:
    rows = [{"name": topic.name, "partition_indexes": [0]}]
    wanted = [{"group_id": group, "topics": rows}]
    answer = s.prepare("offset_fetch", 9, groups=wanted, require_stable=True)
    return bool(answer.groups[0].topics[0].partitions[0].error_code.value)


@script()
def a_fenced_producer_s_offsets(s: Session) -> None:
    topic, group = s.topic(), classic_group(s)
    t = transactional(s)
    before = t.who
    send(t, group, {topic: {0: 5}})
    t.prepared()
    seen(s, group, topic)
    send(t, group, {topic: {0: 6}}, who=before)
    send(t, group, {topic: {0: 7}})
    t.ended(True)
    seen(s, group, topic)
