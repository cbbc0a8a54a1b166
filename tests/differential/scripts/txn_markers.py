"""WriteTxnMarkers and DescribeProducers: markers as tools write them, and what a log knows of its
producers."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.base_batches import attributes_of
from tests.differential.scripts.base_produce import batch_of, end_of
from tests.differential.scripts.txn_reading import look
from tests.differential.transactions import ADMIN, LOG, Logs, Who, describe, init, produce, transactional
from tests.differential.transcript import OWN_COORDINATOR_EPOCHS

TOOL_EPOCH = OWN_COORDINATOR_EPOCHS


def marker(
    who: Who, logs: Logs, committed: bool = False, *, coordinator: int = TOOL_EPOCH, second: int | None = None
) -> dict[str, Value]:
    """`second`: the transaction version, which version 1 of the request does not have."""
    rows = [{"name": topic.name, "partition_indexes": list(which)} for topic, which in logs.items()]
    more = {} if second is None else {"transaction_version": second}
    return {
        "producer_id": who[0], "producer_epoch": who[1], "transaction_result": committed, "topics": rows,
        "coordinator_epoch": coordinator, **more,
    }  # fmt: skip


def write(s: Session, *markers: dict[str, Value], version: int = 1) -> Entity:
    return s.call("write_txn_markers", version, on=ADMIN, markers=list(markers))


def producers(s: Session, topic: Topic, partitions: Sequence[int] = (0,)) -> Entity:
    rows = [{"name": topic.name, "partition_indexes": list(partitions)}]
    return s.call("describe_producers", 0, on=ADMIN, topics=rows)


@script()
def markers_of_open_transactions(s: Session) -> None:
    topic = s.topic(**LOG)
    for version in (1, 2):
        for committed in (True, False):
            t = transactional(s, f"t{version}-{committed}")
            t.send(topic, "one")
            write(s, marker(t.who, {topic: (0,)}, committed), version=version)
            producers(s, topic)
            describe(s, t.id)
    look(s, topic)


@script()
def the_time_of_markers(s: Session) -> None:
    """In a log that stamps its own time, and in one that keeps its producers'."""
    for kind in ("LogAppendTime", "CreateTime"):
        topic = s.topic(**LOG, message_timestamp_type=kind)
        for committed in (True, False):
            t = transactional(s, f"{kind}-{committed}")
            t.send(topic, "one")
            write(s, marker(t.who, {topic: (0,)}, committed))
        attributes_of(s, topic)


@script()
def markers_of_nothing(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    write(s)
    write(s, version=2)
    write(s, marker(t.who, {}))
    write(s, marker(t.who, {topic: ()}))
    write(s, marker(t.who, {topic: (0,)}))
    write(s, marker((-1, -1), {topic: (0,)}))
    producers(s, topic)
    look(s, topic)


@script()
def markers_in_missing_partitions(s: Session) -> None:
    topic, nothing = s.topic(**LOG), Topic(f"{s.name}-missing", UUID(int=77))
    t = transactional(s)
    t.send(topic, "one")
    for version in (1, 2):
        write(s, marker(t.who, {topic: (0, 7), nothing: (0,)}, version == 1), version=version)
    look(s, topic)


@script()
def markers_with_other_epochs(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.init(who=t.who)
    t.send(topic, "one")
    write(s, marker((t.producer_id, t.epoch - 1), {topic: (0,)}))
    write(s, marker((t.producer_id, t.epoch + 2), {topic: (0,)}))
    producers(s, topic)
    write(s, marker(t.who, {topic: (0,)}))
    look(s, topic)


@script()
def markers_of_the_second_generation(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.send(topic, "one")
    who = t.who
    write(s, marker(who, {topic: (0,)}, second=2), version=2)
    write(s, marker((who[0], who[1] + 1), {topic: (0,)}, second=2), version=2)
    write(s, marker((who[0], who[1] + 1), {topic: (0,)}, second=2), version=2)
    write(s, marker(who, {topic: (0,)}, second=2), version=2)
    write(s, marker((who[0], who[1] + 1), {topic: (0,)}, second=0), version=2)
    producers(s, topic)
    look(s, topic)


@script()
def markers_of_an_earlier_coordinator(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s, "t", 1)
    t.send(topic, "one")
    write(s, marker(t.who, {topic: (0,)}, coordinator=500))
    producers(s, topic)
    t.send(topic, "two")
    write(s, marker(t.who, {topic: (0,)}, coordinator=499))
    write(s, marker(t.who, {topic: (0,)}, coordinator=500))
    write(s, marker(t.who, {topic: (0,)}, coordinator=501))
    producers(s, topic)
    look(s, topic)


@script()
def several_markers(s: Session) -> None:
    topic, other = s.topic(2, **LOG), s.topic(**LOG)
    t, u = transactional(s, "t"), transactional(s, "u")
    t.send(topic, "one")
    t.send(topic, "two", partition=1)
    u.send(other, "three")
    write(s, marker(t.who, {topic: (0, 1)}), marker(u.who, {other: (0,)}, True))
    producers(s, topic, (0, 1))
    look(s, topic)
    look(s, other)


@script()
def a_marker_and_then_the_client_s_end(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "one")
        write(s, marker(t.who, {topic: (0,)}, coordinator=0))
        t.end(True)
        t.settle()
        describe(s, t.id)
    look(s, topic)


@script()
def producers_in_each_state(s: Session) -> None:
    topic = s.topic(2, **LOG)
    producers(s, topic, (0, 1))
    s.produce_batch(topic, batch_of("plain"))
    plain = init(s, None)
    who = plain.producer_id, plain.producer_epoch
    produce(s, None, {topic: {0: batch_of("idempotent", producer=(*who, 0))}}, 9)
    producers(s, topic)
    for generation in (1, 2):
        for committed in (True, False):
            t = transactional(s, f"t{generation}-{committed}", generation)
            t.send(topic, "one", "two", partition=1)
            producers(s, topic, (1,))
            t.ended(committed)
            producers(s, topic, (1,))


@script()
def producers_of_missing_partitions(s: Session) -> None:
    topic, nothing = s.topic(**LOG), Topic(f"{s.name}-missing", UUID(int=77))
    producers(s, topic, (0, 7, -1))
    producers(s, topic, ())
    producers(s, topic, (0, 0))
    producers(s, nothing)
    producers(s, Topic("", UUID(int=77)))
    s.call("describe_producers", 0, on=ADMIN, topics=())


@script()
def producers_over_transactions(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        for committed in (True, False):
            t.send(topic, "one")
            t.ended(committed)
        t.send(topic, "open")
        producers(s, topic)
        t.prepared()
        producers(s, topic)
        t.send(topic, "again")
        producers(s, topic)


@script()
def producers_of_deleted_records(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.send(topic, "one")
    rows = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": -1}]}]
    s.call("delete_records", 2, topics=rows, timeout=30_000)
    producers(s, topic)
    t.ended(True)
    producers(s, topic)
    end_of(s, topic)
