"""A record whose Produce was answered is visible, whatever the acks: to a request that follows at
once, on the same connection or another one."""

from __future__ import annotations

from tests.differential.script import Entity, Session, Topic, Value, script
from tests.differential.scripts.base_fetch import fetch, wanted
from tests.differential.scripts.base_produce import PAST, batch_of, end_of, produce

ROUNDS = 5
ACKS = (1, -1)


@script("BASE-67")
def on_each_connection(s: Session) -> None:
    topic, offset = s.topic(**PAST), 0
    for acks in ACKS:
        for _ in range(ROUNDS):
            for on in ("a", "b"):
                produce(s, topic, batch_of("one"), acks=acks)
                end_of(s, topic, on)
                produce(s, topic, batch_of("two"), acks=acks)
                fetch(s, (topic, wanted((0, offset + 1))), on=on)
                offset += 2


@script("BASE-67")
def behind_a_produce(s: Session) -> None:
    """Sent with the Produce, without waiting for its answer: the requests of a connection are
    handled in order."""
    topic, offset = s.topic(**PAST), 0
    for acks in ACKS:
        for _ in range(ROUNDS):
            row = {"partition_index": 0, "timestamp": -1}
            ends = _after_a_produce(
                s, topic, acks, "list_offsets", 6,
                replica_id=-1, isolation_level=0, topics=[{"name": topic.name, "partitions": [row]}],
            )  # fmt: skip
            s.note("latest offset", ends.topics[0].partitions[0].offset)
            found = _after_a_produce(
                s, topic, acks, "fetch", 12,
                max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
                topics=[{"topic": topic.name, "partitions": wanted((0, offset + 1))}],
                forgotten_topics_data=(), rack_id="",
            )  # fmt: skip
            (partition,) = found.responses[0].partitions
            s.note("high watermark", partition.high_watermark)
            s.note("bytes", len(partition.records or b""))
            offset += 2


def _after_a_produce(
    s: Session, topic: Topic, acks: int, api: str, version: int, **values: Value
) -> Entity:  # fmt: skip
    connection = s.connection()
    rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": batch_of("one")}]}]
    sent = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": rows}
    frames = connection.encode("produce", 9, sent), connection.encode(api, version, values)
    connection.send_raw(b"".join(frames))
    connection.read_frame()
    return connection.read_response(api, version)
