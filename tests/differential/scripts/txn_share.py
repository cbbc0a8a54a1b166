"""Share groups and transactions: `share.isolation.level`."""

from __future__ import annotations

from tests.differential.script import Member, Session, Topic, script
from tests.differential.scripts.base_produce import batch_of
from tests.differential.transactions import LOG, Producer, transactional


def sharing(s: Session, level: str) -> tuple[Topic, Member, Producer]:
    """A member of a group with this level, whose share-partition is loaded, and a producer."""
    topic = s.topic(**LOG)
    group = s.group(share_isolation_level=level)
    s.join(group, "m", topic)
    s.load(group, topic)
    return topic, s.member(group), transactional(s)


@script("ISO-1")
def open_transactions_are_delivered(s: Session) -> None:
    topic, member, t = sharing(s, "read_uncommitted")
    t.send(topic, "one", "two")
    s.produce_batch(topic, batch_of("plain"))
    member.fetch({topic: {0: ()}}, wait_ms=500)


@script("ISO-6", seconds=1.5)
def an_open_transaction_holds_records_back(s: Session) -> None:
    topic, member, t = sharing(s, "read_committed")
    s.produce_batch(topic, batch_of("before"))
    t.send(topic, "one")
    s.produce_batch(topic, batch_of("behind"))
    member.fetch({topic: {0: ()}}, wait_ms=500)
    member.fetch({topic: {0: [(0, 0, [1])]}}, wait_ms=500)


@script("ISO-6", seconds=1.5)
def the_oldest_open_transaction_holds_records_back(s: Session) -> None:
    topic, member, t = sharing(s, "read_committed")
    u = transactional(s, "u")
    t.send(topic, "one")
    u.send(topic, "two")
    u.ended(True)
    member.fetch({topic: {0: ()}}, wait_ms=300)


@script("ISO-7")
def without_transactions_levels_are_the_same(s: Session) -> None:
    for level in ("read_committed", "read_uncommitted"):
        topic = s.topic(**LOG)
        group = s.group(level, share_isolation_level=level)
        s.join(group, "m", topic, on=level)
        s.load(group, topic)
        s.produce_batch(topic, batch_of("one", "two"))
        member = s.member(group, on=level)
        member.fetch({topic: {0: ()}}, wait_ms=500)
        member.fetch({topic: {0: [(0, 1, [1])]}})


@script("ISO-2")
def committed_records(s: Session) -> None:
    topic, member, t = sharing(s, "read_committed")
    t.send(topic, "one", "two")
    t.ended(True)
    member.fetch({topic: {0: ()}}, wait_ms=500)


@script("ISO-2")
def aborted_records(s: Session) -> None:
    topic, member, t = sharing(s, "read_committed")
    t.send(topic, "one", "two")
    t.ended(False)
    s.produce_batch(topic, batch_of("plain"))
    member.fetch({topic: {0: ()}}, wait_ms=500)
