"""EndTxn in every state of a transactional id, by both generations, and after an abort by the
broker."""

from __future__ import annotations

from tests.differential.script import Session, script
from tests.differential.scripts.txn_partitions import wrong_ones
from tests.differential.transactions import LOG, Producer, describe, fresh, transactional

VERSIONS = (0, 1, 2, 3, 4, 5)
BOTH = (True, False)


def until_aborted(t: Producer) -> None:
    """The broker looks at open transactions now and then."""
    t.s.until(lambda: t.settle().startswith("Complete"), f"{t.id} is aborted")


@script("BASE-62")
def nothing_begun(s: Session) -> None:
    for version in VERSIONS:
        for committed in BOTH:
            t = transactional(s, f"t{version}-{committed}")
            t.end(committed, version)
            t.settle()
            describe(s, t.id)


@script("BASE-65")
def ends_in_each_version(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in VERSIONS:
        for committed in BOTH:
            t = transactional(s, f"t{version}-{committed}", 2 if version == 5 else 1)
            t.send(topic, "one")
            t.end(committed, version)
            t.settle()
            describe(s, t.id)


@script()
def ends_without_records(s: Session) -> None:
    topic = s.topic(2, **LOG)
    for version in VERSIONS:
        for committed in BOTH:
            t = transactional(s, f"t{version}-{committed}")
            t.added({topic: (0, 1)})
            t.end(committed, version)
            t.settle()
            describe(s, t.id)


@script("BASE-62")
def ends_repeated(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in (0, 1, 2, 3, 4):
        for committed in BOTH:
            t = transactional(s, f"t{version}-{committed}", 1)
            t.send(topic, "one")
            t.ended(committed)
            t.end(committed, version)
            t.end(not committed, version)
            t.end(committed, version)
            describe(s, t.id)


@script("BASE-62")
def ends_repeated_with_the_epoch_before(s: Session) -> None:
    topic = s.topic(**LOG)
    for committed in BOTH:
        t = transactional(s, f"t-{committed}")
        before = t.who
        t.send(topic, "one")
        t.ended(committed)
        t.end(committed, who=before)
        t.end(not committed, who=before)
        t.end(committed, 4, who=before)
        t.end(committed, who=(t.producer_id, t.epoch + 1))
        describe(s, t.id)


@script()
def ends_again_with_the_new_epoch(s: Session) -> None:
    topic = s.topic(**LOG)
    for first in BOTH:
        for second in BOTH:
            t = transactional(s, f"t-{first}-{second}")
            t.send(topic, "one")
            t.ended(first)
            t.end(second)
            t.settle()
            describe(s, t.id)


@script()
def empty_aborts(s: Session) -> None:
    t = transactional(s)
    before = t.who
    for _ in range(3):
        t.end(False)
        t.settle()
    t.end(False, who=before)
    t.end(False, 4)
    describe(s, t.id)
    topic = s.topic(**LOG)
    t.send(topic, "one")
    t.end(True)


@script("BASE-62")
def ends_of_the_wrong_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in VERSIONS:
        t = transactional(s, f"t{version}", 2 if version == 5 else 1)
        for begun in (False, True):
            if begun:
                t.send(topic, "one")
            for who in wrong_ones(t):
                t.end(True, version, who=who)
                t.end(False, version, who=who)
        describe(s, t.id)


@script()
def ends_of_ids_that_are_unknown(s: Session) -> None:
    t = fresh(s)
    for version in VERSIONS:
        for committed in BOTH:
            t.end(committed, version, who=(1 << 40, 0))
            t.end(committed, version, who=(1 << 40, 0), transactional_id="")


@script()
def the_other_generation_ends(s: Session) -> None:
    topic = s.topic(**LOG)
    for committed in BOTH:
        t = transactional(s, f"t-{committed}", 1)
        t.send(topic, "one")
        t.end(committed, 5)
        t.settle()
        t.send(topic, "two")
        t.end(committed, 4)
        t.settle()
        t.generation = 2
        t.send(topic, "three")
        t.end(committed, 4)
        t.settle()
        t.end(committed, 4)
        t.end(committed, 5)
        t.settle()
        describe(s, t.id)


@script()
def a_topic_is_deleted_meanwhile(s: Session) -> None:
    for generation in (1, 2):
        for committed in BOTH:
            topic, other = s.topic(**LOG), s.topic(**LOG)
            t = transactional(s, f"t{generation}-{committed}", generation)
            t.send(topic, "one")
            t.send(other, "two")
            s.prepare("delete_topics", 6, topics=[{"name": topic.name, "topic_id": None}], timeout=30_000)
            s.until(lambda topic=topic: s.gone(topic), "the topic is deleted")
            t.end(committed)
            t.settle()
            describe(s, t.id)
            t.send(other, "three")
            t.end(committed)


@script(seconds=3.0)
def the_broker_aborts_the_first_generation(s: Session) -> None:
    topic = s.topic(**LOG)
    for committed in BOTH:
        for version in (0, 1, 4):
            t = transactional(s, f"t{version}-{committed}", 1, timeout_ms=500)
            t.send(topic, "one")
            until_aborted(t)
            describe(s, t.id)
            t.end(committed, version)
            t.produce(topic, "two")
            t.add({topic: (0,)}, version % 4)
            t.init(who=t.who)
            describe(s, t.id)


@script(seconds=2.0)
def the_broker_aborts_and_the_client_aborts(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, timeout_ms=500)
    t.send(topic, "one")
    until_aborted(t)
    before = t.who
    t.produce(topic, "two")
    t.end(False)
    t.settle()
    describe(s, t.id)
    t.end(False, who=before)
    t.prepared()
    t.send(topic, "three")
    t.end(True)


@script("BASE-66", seconds=2.0)
def the_broker_aborts_and_the_client_commits(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, timeout_ms=500)
    t.send(topic, "one")
    until_aborted(t)
    t.end(True)
    describe(s, t.id)
    t.init(who=t.who)
    describe(s, t.id)


@script(seconds=2.0)
def the_time_of_a_transaction_without_records(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, timeout_ms=500)
    t.added({topic: (0,)})
    until_aborted(t)
    describe(s, t.id)
    quiet = transactional(s, "quiet", timeout_ms=500)
    describe(s, quiet.id)


@script()
def many_partitions(s: Session) -> None:
    topic, other = s.topic(8, **LOG), s.topic(3, **LOG)
    for committed in BOTH:
        t = transactional(s, f"t-{committed}")
        for partition in range(8):
            t.send(topic, "one", partition=partition)
        t.send(other, "two", partition=2)
        describe(s, t.id)
        t.end(committed)
        t.settle()
        describe(s, t.id)
