"""Unmodified clients read a compacted topic from every offset, also from those that are gone: each
record that is left, once, whatever is missing before, between and behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ShareConsumer

from kbroker.formats.compacted_batches import DELETE_HORIZON
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.clients.compacted_topic import CLEANER, PATIENCE_S, CompactedTopic, compacted_topic
from tests.clients.group_consumers import Committed, GroupConsumer
from tests.clients.test_consumer_lives import KINDS, LIVELY, collect_refused_connections, open_one
from tests.kafka_tools.java import HERE, MISSING, run

__all__ = ["collect_refused_connections"]

pytestmark = [
    # kafka-python on Python 3.11 and 3.12
    pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
OFFSETS = 30
LEFT = [3, 11, 15, 16, 18, 22, 23, 25, 26, 29]
TOMBSTONES = [15, 16]
"""Of CompactedTopic.fill(): its offsets, and the records that compaction leaves of it."""
HOLE = 5
LEVELS = ("read_committed", "read_uncommitted")


@pytest.fixture(
    scope="module",
    params=["segment", *(pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES[1:])],
)
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    engine = require_engine(request.param)
    with open_test_broker(storage=engine, config={**LIVELY, **CLEANER}) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(broker: RunningBroker) -> CompactedTopic:
    return compacted_topic(broker, "compacted")


def test_what_is_on_disk(topic: CompactedTopic) -> None:
    """All that the other tests are about is there."""
    again = topic.end - OFFSETS
    tombstones = [again + each for each in TOMBSTONES]
    expected = [each for each in LEFT if each not in TOMBSTONES]
    assert list(topic.records)[: len(expected)] == expected
    assert list(topic.records)[-len(LEFT) :] == [again + each for each in LEFT]
    assert [offset for offset, each in topic.records.items() if each.is_tombstone] == tombstones
    headers = topic.headers()
    assert headers[0].base_offset > 0, "a hole at the start"
    assert any(not each.record_count for each in headers), "batches without records"
    assert any(0 < each.record_count <= each.last_offset_delta for each in headers), "holes in batches"
    assert any(each.attributes & DELETE_HORIZON for each in headers)
    markers = [each.base_offset for each in headers if each.is_control]
    assert 6 not in markers
    assert again + 28 in markers


@pytest.mark.parametrize(
    ("kind", "level", "step"),
    [
        ("confluent-consumer", "read_committed", 1),
        ("confluent-consumer", "read_uncommitted", 2),
        ("kafka-python", "read_committed", 3),
        ("aiokafka", "read_committed", 3),
        ("java-classic", "read_committed", 3),
        *(pytest.param(kind, level, 1, marks=pytest.mark.full) for kind in KINDS for level in LEVELS),
    ],
)
def test_any_offset_is_a_start(topic: CompactedTopic, kind: str, level: str, step: int) -> None:
    expected = list(topic.records)
    place = (topic.name, 0)
    with open_one(kind, topic.broker, f"{topic.name} {kind} {level}", isolation_level=level) as consumer:
        consumer.assign(place)
        check(consumer, topic, expected)
        for start in range(0, topic.end, step):
            consumer.got.clear()
            consumer.seek(place, start)
            check(consumer, topic, [each for each in expected if each >= start])


def check(consumer: GroupConsumer, topic: CompactedTopic, expected: list[int]) -> None:
    consumer.until(f"the records {expected}", lambda: len(consumer.got) >= len(expected))
    assert [each.offset for each in consumer.got] == expected
    for each in consumer.got:
        is_tombstone = topic.records[each.offset].is_tombstone
        assert each.value in (("", "null") if is_tombstone else (f"{each.offset}",))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "confluent-consumer" else [pytest.mark.full]) for kind in KINDS],
)
def test_a_group_goes_on_in_a_hole(topic: CompactedTopic, kind: str) -> None:
    place, group = (topic.name, 0), f"group of {topic.name} {kind}"
    with open_one(kind, topic.broker, group, isolation_level="read_committed") as consumer:
        consumer.assign(place)
        consumer.commit({place: Committed(HOLE, "in a hole")})
    with open_one(kind, topic.broker, group, isolation_level="read_committed") as consumer:
        consumer.subscribe(topic.name)
        check(consumer, topic, [each for each in topic.records if each >= HOLE])
        consumer.commit()
        found = consumer.committed(place)
        assert found is not None
        assert found.offset == topic.end


def prepare_group(topic: CompactedTopic, name: str) -> str:
    group = f"{name} of {topic.name}"
    topic.broker.set_group_config(
        group, {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
    )
    return group


def test_a_share_consumer_gets_each_once(topic: CompactedTopic) -> None:
    settings = {
        "bootstrap.servers": topic.broker.bootstrap,
        "group.id": prepare_group(topic, "librdkafka"),
        "max.poll.records": 3,
    }
    found: list[int | None] = []
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic.name])
        while len(found) < len(topic.records):
            messages = consumer.poll(PATIENCE_S)
            assert messages, f"only {found} came"
            for message in messages:
                assert message.error() is None
                assert message.delivery_count() == 1
                found.append(message.offset())
            assert set(consumer.commit_sync().values()) <= {None}
    assert found == list(topic.records)


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.parametrize("mode", [pytest.param("batch_optimized", marks=pytest.mark.full), "record_limit"])
def test_a_java_share_consumer_gets_each_once(topic: CompactedTopic, mode: str) -> None:
    group, count = prepare_group(topic, f"java {mode}"), len(topic.records)
    program = str(HERE / "ShareConsumerProgram.java")
    ended = run(program, topic.broker.bootstrap, topic.name, group, str(count), "30000", mode, "3")
    assert ended.code == 0, ended
    expected = [
        f"{'null' if each.is_tombstone else offset} 1 ACCEPT" for offset, each in topic.records.items()
    ]
    assert ended.lines == [*expected, f"finished {count}"]
