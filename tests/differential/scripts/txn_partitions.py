"""AddPartitionsToTxn and AddOffsetsToTxn: versions, refusals, and batches of transactional ids."""

from __future__ import annotations

from uuid import UUID

from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.base_produce import has_offsets_topic
from tests.differential.transactions import LOG, Logs, Producer, Who, describe, fresh, log_rows, transactional

CLIENTS = (0, 1, 2, 3)
BROKERS = (4, 5)
"""Versions of AddPartitionsToTxn with several transactional ids."""


def missing(name: str) -> Topic:
    return Topic(name, UUID(int=77))


def row(t: Producer, logs: Logs, *, verify: bool = False, who: Who | None = None) -> dict[str, Value]:
    producer_id, epoch = who or t.who
    return {
        "transactional_id": t.id, "producer_id": producer_id, "producer_epoch": epoch, "verify_only": verify,
        "topics": log_rows(logs),
    }  # fmt: skip


def add_several(s: Session, version: int, *rows: dict[str, Value]) -> Entity:
    return s.call("add_partitions_to_txn", version, transactions=list(rows))


def wrong_ones(t: Producer) -> tuple[Who, ...]:
    return (
        (t.producer_id, t.epoch + 1), (t.producer_id, t.epoch - 1), (t.producer_id, -1), (1 << 40, t.epoch),
        (-1, -1), (-5, 0),
    )  # fmt: skip


@script()
def partitions_in_each_version(s: Session) -> None:
    topic, other = s.topic(3, **LOG), s.topic(**LOG)
    t = transactional(s)
    for version in CLIENTS:
        t.add({topic: (version % 3,)}, version)
        t.add({topic: (0, 1), other: (0,)}, version)
        describe(s, t.id)


@script()
def partitions_twice(s: Session) -> None:
    topic = s.topic(2, **LOG)
    t = transactional(s)
    t.add({topic: (0,)})
    t.add({topic: (0,)})
    t.add({topic: (1, 1)})
    twice = [*log_rows({topic: (0,)}), *log_rows({topic: (1,)})]
    t.add({}, v3_and_below_topics=twice)
    describe(s, t.id)


@script("BASE-64")
def partitions_that_are_unknown(s: Session) -> None:
    topic, nothing = s.topic(**LOG), missing(f"{s.name}-missing")
    t = transactional(s)
    for version in CLIENTS:
        t.add({topic: (0, 7)}, version)
        t.add({topic: (0, -1)}, version)
        t.add({nothing: (0,)}, version)
        t.add({nothing: (0, 1), topic: (0,)}, version)
    describe(s, t.id)


@script()
def names_that_are_none(s: Session) -> None:
    t = transactional(s)
    for name in ("", ".", "a/b", "x" * 250):
        t.add({missing(name): (0,)})
    describe(s, t.id)


@script("BASE-64")
def unknown_partitions_of_the_wrong_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.add({topic: (0, 7)}, who=(t.producer_id, 5))
    t.add({topic: (7,)}, v3_and_below_transactional_id=f"{s.name}-unknown")
    t.add({topic: (7,)}, v3_and_below_transactional_id="")


@script()
def partitions_of_the_wrong_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.init(who=t.who)
    for version in CLIENTS:
        for who in wrong_ones(t):
            t.add({topic: (0,)}, version, who=who)
    describe(s, t.id)


@script()
def partitions_of_ids_that_are_unknown(s: Session) -> None:
    topic = s.topic(**LOG)
    t = fresh(s)
    for version in CLIENTS:
        t.add({topic: (0,)}, version, who=(1 << 40, 0))
        t.add({topic: (0,)}, version, who=(1 << 40, 0), v3_and_below_transactional_id="")
    describe(s, t.id)


@script()
def no_partitions(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    for version in CLIENTS:
        t.add({}, version)
        t.add({topic: ()}, version)
    describe(s, t.id)
    t.add({}, who=(t.producer_id, 9))
    t.end(True)


@script()
def partitions_after_an_end(s: Session) -> None:
    topic = s.topic(2, **LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        before = t.who
        for committed in (True, False):
            t.send(topic, "one")
            t.ended(committed)
            t.add({topic: (1,)}, who=before)
            t.add({topic: (1,)})
            describe(s, t.id)
            t.end(committed)
            t.settle()


@script()
def the_topic_of_the_groups(s: Session) -> None:
    has_offsets_topic(s)
    topic, offsets = s.topic(**LOG), missing("__consumer_offsets")
    t = transactional(s)
    t.add({topic: (0,), offsets: (0,)})
    t.add({offsets: (99,)})


@script()
def several_ids(s: Session) -> None:
    topic = s.topic(2, **LOG)
    for version in BROKERS:
        t, u = transactional(s, f"t{version}"), transactional(s, f"u{version}")
        add_several(s, version, row(t, {topic: (0,)}), row(u, {topic: (0, 1)}))
        describe(s, t.id, u.id)
        add_several(s, version, row(t, {topic: (0, 1)}), row(u, {topic: (0,)}, who=(u.producer_id, 9)))
        describe(s, t.id, u.id)


@script()
def verified(s: Session) -> None:
    topic = s.topic(2, **LOG)
    for version in BROKERS:
        t = transactional(s, f"t{version}")
        add_several(s, version, row(t, {topic: (0,)}, verify=True))
        t.added({topic: (0,)})
        add_several(s, version, row(t, {topic: (0,)}, verify=True))
        add_several(s, version, row(t, {topic: (0, 1)}, verify=True))
        add_several(s, version, row(t, {topic: (1,)}, verify=True))
        describe(s, t.id)


@script()
def verified_after_an_end(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in BROKERS:
        for generation in (1, 2):
            t = transactional(s, f"t{version}-{generation}", generation)
            before = t.who
            t.send(topic, "one")
            t.ended(True)
            add_several(s, version, row(t, {topic: (0,)}, verify=True))
            add_several(s, version, row(t, {topic: (0,)}, verify=True, who=before))


@script()
def verified_for_the_wrong_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in BROKERS:
        t = transactional(s, f"t{version}")
        t.added({topic: (0,)})
        for verify in (True, False):
            for who in wrong_ones(t):
                add_several(s, version, row(t, {topic: (0,)}, verify=verify, who=who))
        unknown = fresh(s, f"u{version}")
        for verify in (True, False):
            add_several(s, version, row(unknown, {topic: (0,)}, verify=verify, who=(1 << 40, 0)))
            empty = {**row(t, {topic: (0,)}, verify=verify), "transactional_id": ""}
            add_several(s, version, empty)


@script("BASE-64")
def unknown_partitions_of_several_ids(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in BROKERS:
        t, u = transactional(s, f"t{version}"), transactional(s, f"u{version}")
        add_several(s, version, row(t, {topic: (0, 7)}), row(u, {topic: (0,)}))
        add_several(s, version, row(t, {topic: (7,)}, verify=True), row(u, {missing(f"{s.name}-x"): (0,)}))
        describe(s, t.id, u.id)


@script()
def groups_in_each_version(s: Session) -> None:
    has_offsets_topic(s)
    t = transactional(s)
    for version in range(5):
        t.add_offsets(f"{s.name}-g{version}", version)
        t.add_offsets(f"{s.name}-g{version}", version)
    describe(s, t.id)
    t.end(True)
    t.settle()
    describe(s, t.id)


@script()
def groups_of_the_wrong_producer(s: Session) -> None:
    has_offsets_topic(s)
    t = transactional(s)
    unknown = fresh(s, "u")
    for version in range(5):
        for who in wrong_ones(t):
            t.add_offsets(f"{s.name}-g", version, who=who)
        unknown.add_offsets(f"{s.name}-g", version, who=(1 << 40, 0))
        t.add_offsets(f"{s.name}-g", version, transactional_id="")
    describe(s, t.id)


@script()
def groups_of_no_name(s: Session) -> None:
    has_offsets_topic(s)
    t = transactional(s)
    for version in range(5):
        t.add_offsets("", version)
    t.end(False)
    t.settle()
    describe(s, t.id)


@script()
def the_group_of_a_transaction_is_listed_by_its_topic(s: Session) -> None:
    has_offsets_topic(s)
    topic = s.topic(**LOG)
    t = transactional(s)
    t.add_offsets(f"{s.name}-g")
    describe(s, t.id, groups=True)
    t.send(topic, "one")
    describe(s, t.id, groups=True)
