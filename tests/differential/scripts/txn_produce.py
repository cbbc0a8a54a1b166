"""Produce in transactions: batches of no transaction, of the wrong producer, and out of order.

Kafka asks the coordinator about several batches at once, and then refuses one batch in the way of
another one's version. So these scripts are recorded alone."""

from __future__ import annotations

from uuid import UUID

from kbroker.formats.batches import CONTROL, TRANSACTIONAL
from kbroker.formats.compression import Codec
from tests.differential.script import Session, Topic, script
from tests.differential.scripts.base_produce import altered, batch_of, end_of
from tests.differential.transactions import LOG, describe, fresh, init, produce, transactional

ADDED_BEFORE = (3, 5, 8, 9, 10, 11)
"""Versions of Produce whose clients add partitions themselves."""
ADDING = (12, 13)
ALL = (*ADDED_BEFORE, *ADDING)
MISSING = UUID(int=77)


@script("BASE-63", alone=True)
def partitions_that_were_not_added(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in ALL:
        t = transactional(s, f"t{version}", 1)
        t.produce(topic, f"v{version}", version=version)
        describe(s, t.id)
    end_of(s, topic)


@script(alone=True)
def partitions_that_were_added(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in ALL:
        t = transactional(s, f"t{version}", 1)
        t.added({topic: (0,)})
        t.produce(topic, f"v{version}", version=version)
        t.produce(topic, f"w{version}", version=version)
        t.ended(True)
    end_of(s, topic)


@script("BASE-63", alone=True)
def a_transaction_that_has_ended(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in ALL:
        t = transactional(s, f"t{version}", 1)
        t.send(topic, "one")
        t.ended(True)
        t.produce(topic, "two", version=version)
        describe(s, t.id)


@script("BASE-25", alone=True)
def no_transactional_id(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, "t", 1)
    t.added({topic: (0,)})
    for version in ALL:
        produce(s, None, {topic: {0: t.batch(topic, "one")}}, version)
    end_of(s, topic)


@script(alone=True)
def another_transactional_id(s: Session) -> None:
    topic = s.topic(**LOG)
    t, other, unknown = transactional(s, "t", 1), transactional(s, "other", 1), fresh(s, "unknown")
    other.added({topic: (0,)})
    for version in ALL:
        for transactional_id in (other.id, unknown.id, ""):
            produce(s, transactional_id, {topic: {0: t.batch(topic, "one")}}, version)
    end_of(s, topic)


@script(alone=True)
def another_epoch(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, "t", 1)
    t.init(who=t.who)
    t.added({topic: (0,)})
    for version in ALL:
        for epoch in (t.epoch + 1, t.epoch - 1, 32_767, -1):
            t.produce(topic, "one", version=version, who=(t.producer_id, epoch))
    end_of(s, topic)


@script(alone=True)
def a_producer_without_transactions(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, "t", 1)
    t.added({topic: (0,)})
    for version in ALL:
        plain = init(s, None)
        who = plain.producer_id, plain.producer_epoch
        t.sequences.clear()
        t.produce(topic, "one", version=version, who=who)
        t.produce(topic, "one", version=version, who=who, bits=0)
    end_of(s, topic)


@script(alone=True)
def plain_batches_of_a_transactional_producer(s: Session) -> None:
    topic = s.topic(3, **LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.produce(topic, "before", bits=0)
        t.send(topic, "inside")
        t.produce(topic, "plain", bits=0)
        t.produce(topic, "elsewhere", partition=1, bits=0)
        t.produce(topic, "inside", partition=1)
        describe(s, t.id)
        t.ended(True)
        t.produce(topic, "after", bits=0)
        produce(s, None, {topic: {2: t.batch(topic, "no id", partition=2, bits=0)}})
    end_of(s, topic)


@script(alone=True)
def plain_and_transactional_batches_in_a_request(s: Session) -> None:
    topic = s.topic(4, **LOG)
    t = transactional(s)
    rows = {
        0: t.batch(topic, "one"), 1: t.batch(topic, "two", partition=1, bits=0), 2: batch_of("three"),
        3: t.batch(topic, "four", partition=3),
    }  # fmt: skip
    produce(s, t.id, {topic: rows})
    describe(s, t.id)
    t.end(True)
    t.settle()
    describe(s, t.id)


@script(alone=True)
def two_producers_in_a_request(s: Session) -> None:
    topic = s.topic(2, **LOG)
    t, other = transactional(s, "t", 1), transactional(s, "other", 1)
    t.added({topic: (0, 1)})
    for version in (9, 11, 12):
        rows = {0: t.batch(topic, "one"), 1: other.batch(topic, "two", partition=1)}
        produce(s, t.id, {topic: rows}, version)
        rows[1] = t.batch(topic, "two", partition=1, who=(t.producer_id, 5))
        produce(s, t.id, {topic: rows}, version)
    end_of(s, topic)


@script(alone=True)
def a_batch_without_a_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    for version in (9, 11, 12):
        produce(s, t.id, {topic: {0: batch_of("one", bits=TRANSACTIONAL)}}, version)
    describe(s, t.id)
    end_of(s, topic)


@script(alone=True)
def the_first_sequence(s: Session) -> None:
    topic = s.topic(2, **LOG)
    for version in (9, 11, 12):
        t = transactional(s, f"t{version}", 1)
        t.added({topic: (0, 1)})
        t.produce(topic, "five", version=version, sequence=5)
        t.produce(topic, "six", version=version, sequence=6)
        t.produce(topic, "zero", version=version, partition=1, sequence=0)
    end_of(s, topic)


@script(alone=True)
def sequences_within_a_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one", "two")
        for sequence in (0, 1, 3, 2, 2, 3):
            t.produce(topic, "more", sequence=sequence)
        t.ended(True)
    end_of(s, topic)


@script(alone=True)
def sequences_after_an_end(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        for committed in (True, False):
            t = transactional(s, f"t{generation}-{committed}", generation)
            t.send(topic, "one", "two")
            t.ended(committed)
            if generation == 1:
                t.added({topic: (0,)})
            for sequence in (5, 2, 0):
                t.produce(topic, "more", sequence=sequence)
            describe(s, t.id)
    end_of(s, topic)


@script(alone=True)
def sequences_of_a_new_epoch(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one")
        t.ended(True)
        t.init(who=t.who)
        if generation == 1:
            t.added({topic: (0,)})
        for sequence in (1, 5, 0, 0, 1):
            t.produce(topic, "more", sequence=sequence)
    end_of(s, topic)


@script(alone=True)
def batches_repeated(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one")
        t.send(topic, "two")
        before = t.who
        t.produce(topic, "one", sequence=0)
        t.produce(topic, "two", sequence=1)
        t.ended(True)
        t.produce(topic, "two", sequence=1, who=before)
        t.produce(topic, "one", sequence=0, who=before)
        describe(s, t.id)
    end_of(s, topic)


@script(alone=True)
def an_unknown_partition_among_others(s: Session) -> None:
    topic = s.topic(**LOG)
    nothing = Topic(f"{s.name}-missing", MISSING)
    for version in (9, *ADDING):
        t = transactional(s, f"t{version}", 1)
        rows = {0: t.batch(topic, "one"), 7: t.batch(topic, "two", partition=7)}
        produce(s, t.id, {topic: rows, nothing: {0: t.batch(nothing, "three")}}, version)
        describe(s, t.id)
    end_of(s, topic)


@script(alone=True)
def refused_batches_stay_in_the_transaction(s: Session) -> None:
    topic = s.topic(2, max_message_bytes="200", **LOG)
    for version in ADDING:
        t = transactional(s, f"t{version}")
        t.produce(topic, "x" * 300, version=version)
        t.produce(topic, "gap", partition=1, version=version, sequence=7)
        describe(s, t.id)
        t.end(True)
        t.settle()
        end_of(s, topic)


@script(alone=True)
def damaged_batches_do_not_begin_a_transaction(s: Session) -> None:
    topic = s.topic(2, **LOG)
    t = transactional(s)
    good = t.batch(topic, "one")
    for data in (altered(good, crc=1), good[:-1], altered(good, record_count=3), altered(good, magic=1)):
        produce(s, t.id, {topic: {0: data}})
        describe(s, t.id)
    t.end(False)


@script(alone=True)
def acks_of_transactions(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    for acks in (1, -1, 2):
        produce(s, t.id, {topic: {0: t.batch(topic, "one")}}, acks=acks)
        t.sequences[topic.name, 0] = 1
    t.ended(True)
    end_of(s, topic)


@script(alone=True)
def codecs_and_times(s: Session) -> None:
    topic, stamped = s.topic(**LOG), s.topic(message_timestamp_type="LogAppendTime", **LOG)
    t = transactional(s)
    for index, codec in enumerate(Codec):
        batch = batch_of("one", producer=(*t.who, index), codec=codec, bits=TRANSACTIONAL)
        produce(s, t.id, {topic: {0: batch}})
        produce(s, t.id, {stamped: {0: batch}})
    t.end(True)


@script(alone=True)
def control_batches_of_clients(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.produce(topic, "marker", bits=CONTROL | TRANSACTIONAL)
    t.produce(topic, "marker", bits=CONTROL)
    describe(s, t.id)
    end_of(s, topic)


@script(alone=True)
def a_topic_that_is_made_again(s: Session) -> None:
    name = f"{s.name}-again"
    topic = s.topic(name=name, **LOG)
    t = transactional(s)
    t.send(topic, "one")
    s.prepare("delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=30_000)
    s.until(lambda: s.gone(topic), "the topic is deleted")
    t.produce(topic, "two", version=13)
    again = s.topic(name=name, **LOG)
    t.produce(again, "three", version=13)
    t.end(True)
    t.settle()
    describe(s, t.id)
