"""How share sessions end other than by epoch -1: with their connection, partition by partition, and
by the deletion of a topic in them."""

from __future__ import annotations

from tests.differential.script import ACCEPT, Member, Session, Topic, script

NOBODY_S_EPOCH, SETTLED_S = 77, 0.3


def disconnected(s: Session, *connections: str, ended: Member) -> None:
    """Close connections and wait until the last of them has ended the session of `ended`. Kafka
    drops share-partitions a moment later, without a notification."""

    def is_gone() -> bool:
        answer = s.prepare(
            "share_acknowledge", 1, on="prober", group_id=ended.group_id, member_id=ended.member_id,
            share_session_epoch=NOBODY_S_EPOCH, topics=(),
        )  # fmt: skip
        return bool(answer.error_code.value == 122)

    for name in connections:
        s.disconnect(name)
    s.until(is_gone, f"the session of {ended.member_id} is gone")
    s.wait(SETTLED_S)


@script("SES-23", "SES-26", "SES-20")
def connection_that_ends(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"ab")
    other = member.other()
    other.fetch({topic: {0: ()}}, wait_ms=10_000)
    disconnected(s, "other", ended=other)
    other.fetch(epoch=1)
    member.fetch({topic: {0: ()}}, wait_ms=3_000)


@script("SES-23")
def creating_connection_ends_others_remain(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"ab", per_batch=1)
    member.on = "creator"
    member.fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    member.on = "later"
    member.fetch(max_records=1)
    disconnected(s, "creator", ended=member)
    member.fetch(max_records=1)


@script("SES-24")
def older_connection_ends(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.on = "older"
    member.fetch({topic: {0: ()}}, max_records=0)
    member.on = "newer"
    member.fetch({topic: {0: ()}}, epoch=0, wait_ms=10_000)
    s.disconnect("older")
    s.wait(SETTLED_S)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})


@script("SES-25")
def two_sessions_over_one_connection(s: Session) -> None:
    topic, first = s.share()
    s.produce(topic, *"ab", per_batch=1)
    second = s.member(first.group_id, "second", on="shared")
    first.on = "shared"
    first.fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    second.fetch({topic: {0: ()}}, max_records=1)
    disconnected(s, "shared", ended=second)
    second.fetch()
    first.fetch()


@script("SES-27", seconds=2)
def forgotten_before_the_end(s: Session) -> None:
    """The lock outlasts the script, so that redelivered records were released with the session."""
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch(forget={topic: [0]})
    member.fetch(epoch=-1)
    member.other().fetch({topic: {0: ()}}, wait_ms=2_000)


@script("SES-27", "ACK-31", seconds=2)
def forgotten_and_timed_out(s: Session) -> None:
    topic, member = s.share(share_record_lock_duration_ms="1000")
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch(forget={topic: [0]})
    member.fetch(epoch=-1)
    member.other().fetch({topic: {0: ()}}, wait_ms=9_000)


@script("SES-28")
def last_session_of_a_group_ends(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcdef", per_batch=2)
    first = member.other("first")
    first.fetch({topic: {0: ()}}, batch_size=2)
    first.acknowledge({topic: {0: [(2, 3, [ACCEPT])]}})
    disconnected(s, "loader", "first", ended=first)
    member.fetch({topic: {0: ()}}, wait_ms=9_000)
    member.acknowledge({topic: {0: [(0, 5, [ACCEPT])]}})


@script("SES-28", "SES-27", "LOAD-13", "REC-13")
def forgotten_by_the_last_session(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abcdef", per_batch=2)
    first = member.other("first")
    first.fetch({topic: {0: ()}}, batch_size=2)
    first.acknowledge({topic: {0: [(2, 3, [ACCEPT])]}})
    first.fetch(forget={topic: [0]})
    disconnected(s, "loader", "first", ended=first)
    member.fetch({topic: {0: ()}}, max_records=4, wait_ms=9_000)
    member.fetch(max_records=4)


@script("LOAD-6", "SES-28")
def latest_is_decided_again(s: Session) -> None:
    topic, member = s.share(share_auto_offset_reset="latest")
    disconnected(s, "loader", ended=member.other("loader"))
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, wait_ms=800)


def deleted(s: Session) -> tuple[Topic, Topic, Member]:
    """A topic that is deleted while it is in the session of a member that holds one of its records,
    and a topic that remains."""
    topic, member = s.share()
    kept = s.topic()
    s.join(str(member.group_id), "m", topic, kept, partitions=2)
    s.load(str(member.group_id), kept)
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}, kept: {0: ()}}, wait_ms=10_000)
    s.prepare("delete_topics", 6, topics=[{"name": topic.name, "topic_id": None}], timeout=30_000)
    s.until(lambda: s.gone(topic), f"{topic.name} is gone")
    return topic, kept, member


@script("RPC-35", "FET-33")
def topic_deleted(s: Session) -> None:
    topic, kept, member = deleted(s)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})
    member.fetch(epoch=2, wait_ms=500)
    s.produce(kept, "kept")
    member.fetch(epoch=3, wait_ms=500)
    member.fetch(epoch=4, forget={topic: [0]}, wait_ms=500)
    member.acknowledge({kept: {0: [(0, 0, [ACCEPT])]}}, epoch=5)


@script("FET-33")
def topic_deleted_and_made_again(s: Session) -> None:
    topic, kept, member = deleted(s)
    again = s.topic(name=topic.name)
    s.join(str(member.group_id), "m", again, kept, partitions=2)
    s.load(str(member.group_id), again)
    s.produce(again, "anew")
    member.fetch({again: {0: ()}}, forget={topic: [0]}, wait_ms=9_000)
    member.acknowledge({again: {0: [(0, 0, [ACCEPT])]}, topic: {0: [(0, 0, [ACCEPT])]}})
    member.fetch(wait_ms=300)
