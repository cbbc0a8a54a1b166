"""The life of ordinary consumers of a group, with each client library: topics that appear, grow,
disappear and are recreated, and offsets that are committed, sought, out of range, or older than the
last start of the broker. `make test` runs some libraries, the full run all."""

from __future__ import annotations

import gc
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from kbroker.client import admin
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.clients.drivers import DRIVERS
from tests.clients.group_consumers import CONSUMERS, ClientError, Committed, GroupConsumer
from tests.clients.java_consumers import JavaConsumer, JavaNewConsumer
from tests.clients.workload import Content

pytestmark = [
    # kafka-python on Python 3.11 and 3.12
    pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning"),
    # aiokafka leaves refused connections to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

LIVELY: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "250",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.assignment.interval.ms": "0",
}
"""Changes in a group are noticed quickly."""
ENDINGS: Mapping[str, Callable[[RunningBroker], None]] = {
    "stop": RunningBroker.stop,
    "kill": RunningBroker.kill,
}
KINDS: Mapping[str, type[GroupConsumer]] = {
    **CONSUMERS,
    "java-classic": JavaConsumer,
    "java-consumer": JavaNewConsumer,
}
NO_OFFSET = "an error where there is no offset to begin at"


def kinds(*by_default: str) -> pytest.MarkDecorator:
    """The consumers to test; those that are not named run only in the full run."""
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, marks=[] if kind in by_default else [pytest.mark.full]) for kind in KINDS]
    )


@pytest.fixture(autouse=True)
def collect_refused_connections(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect them within the test, since its filter for their warnings ends with it. Log records
    of their errors would keep them alive."""
    caplog.set_level(logging.CRITICAL, "kafka")
    caplog.set_level(logging.CRITICAL, "aiokafka")
    yield
    gc.collect()


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(config=LIVELY) as broker:
        yield broker


def open_one(kind: str, broker: RunningBroker, group: str, **settings: object) -> GroupConsumer:
    """`settings`: with underscores instead of dots."""
    consumer = KINDS[kind]
    known = {name.replace("_", "."): value for name, value in settings.items()}
    return consumer(
        broker.bootstrap, group, {name: value for name, value in known.items() if name not in consumer.lacks}
    )


def numbered(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def send(
    broker: RunningBroker, topic: str, values: list[str], partitions: int = 1, timestamp_ms: int | None = None
) -> None:
    at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    contents = [Content(at_ms, None, value.encode()) for value in values]
    DRIVERS["confluent-kafka"].send(broker.bootstrap, topic, contents, partitions=partitions)


def read_all(consumer: GroupConsumer, values: list[str]) -> None:
    consumer.until(f"{len(values)} values", lambda: consumer.values >= {*values})


def delete_topic(broker: RunningBroker, name: str) -> None:
    with broker.connect() as connection:
        admin.delete_topic(connection, name)


@kinds("confluent-consumer", "aiokafka")
def test_a_topic_that_comes_after_its_subscribers(broker: RunningBroker, kind: str, name: str) -> None:
    with open_one(kind, broker, name, allow_auto_create_topics=False) as consumer:
        consumer.subscribe(name)
        for _ in range(5):
            assert consumer.poll() == []
        broker.create_topic(name, partitions=2)
        send(broker, name, numbered(0, 10), 2)
        read_all(consumer, numbered(0, 10))


MAKERS = [
    "kafka-python",
    "aiokafka",
    *[pytest.param(kind, marks=pytest.mark.full) for kind in ("java-classic", "java-consumer")],
]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_topic_that_is_made_by_subscribing_to_it(kind: str, name: str) -> None:
    """librdkafka's consumer creates none, with any setting."""
    with ExitStack() as stack:
        broker = stack.enter_context(open_test_broker(config={**LIVELY, "auto.create.topics.enable": "true"}))
        consumer = stack.enter_context(open_one(kind, broker, name, allow_auto_create_topics=True))
        consumer.subscribe(name)
        consumer.until("it has the topic", lambda: consumer.assignment() == {(name, 0)})
        send(broker, name, numbered(0, 5))
        read_all(consumer, numbered(0, 5))


@kinds("confluent-classic", "confluent-consumer")
def test_a_pattern_follows_topics_that_come_and_go(broker: RunningBroker, kind: str, name: str) -> None:
    one, other, stranger = f"{name}.one", f"{name}.other", f"{name}-one"
    broker.create_topic(one)
    broker.create_topic(stranger)
    with open_one(kind, broker, name) as consumer:
        consumer.subscribe_pattern(re.escape(name) + r"\..*")
        consumer.until("the first topic", lambda: consumer.assignment() == {(one, 0)})
        broker.create_topic(other, partitions=2)
        both = {(one, 0), (other, 0), (other, 1)}
        consumer.until("the new topic", lambda: consumer.assignment() == both)
        send(broker, stranger, ["stranger"])
        send(broker, other, numbered(0, 6), 2)
        read_all(consumer, numbered(0, 6))
        delete_topic(broker, one)
        consumer.until("without the deleted topic", lambda: consumer.assignment() == both - {(one, 0)})
        assert "stranger" not in consumer.values


@kinds("confluent-consumer", "kafka-python")
def test_a_topic_is_deleted_and_made_again_under_its_reader(
    broker: RunningBroker, kind: str, name: str
) -> None:
    """Its offsets are deleted with it: the consumer starts over at 0, and no client is pointed to
    an offset of the old topic."""
    broker.create_topic(name, partitions=2)
    send(broker, name, numbered(0, 20), 2)
    with open_one(kind, broker, name) as consumer:
        consumer.subscribe(name)
        read_all(consumer, numbered(0, 20))
        consumer.commit()
        assert consumer.committed((name, 0)) == Committed(10, "")
        delete_topic(broker, name)
        until_gone = time.monotonic() + 1.5
        while "topics made again at once" in consumer.lacks and time.monotonic() < until_gone:
            consumer.poll()
        broker.create_topic(name, partitions=2)
        assert consumer.committed((name, 0)) is None
        send(broker, name, numbered(100, 6), 2)
        read_all(consumer, numbered(100, 6))
        assert {each.offset for each in consumer.got if each.value in numbered(100, 6)} == {0, 1, 2}
        consumer.commit({(name, 0): Committed(3, "")})
        assert consumer.committed((name, 0)) == Committed(3, "")


@kinds("confluent-classic", "confluent-consumer")
def test_a_topic_grows_under_its_reader(broker: RunningBroker, kind: str, name: str) -> None:
    """Records in new partitions that are older than their readers are delivered too."""
    broker.create_topic(name)
    with open_one(kind, broker, name) as consumer:
        consumer.subscribe(name)
        consumer.until("it has the partition", lambda: consumer.assignment() == {(name, 0)})
        rows = [{"name": name, "count": 3, "assignments": None}]
        with broker.connect() as connection:
            connection.call("create_partitions", topics=rows, timeout=10_000, validate_only=False)
        send(broker, name, numbered(0, 9), 3)
        read_all(consumer, numbered(0, 9))
        assert consumer.assignment() == {(name, partition) for partition in range(3)}


@kinds("confluent-consumer", "kafka-python")
def test_seek_pause_and_resume(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name, partitions=2)
    long_ago_ms = int(time.time() * 1000) - 100_000
    send(broker, name, numbered(0, 10), 2, timestamp_ms=long_ago_ms)
    send(broker, name, numbered(10, 10), 2)
    with open_one(kind, broker, name) as consumer:
        consumer.subscribe(name)
        read_all(consumer, numbered(0, 20))
        consumer.got.clear()
        consumer.pause([(name, 1)])
        consumer.seek((name, 0), 7)
        consumer.seek((name, 1), 9)
        consumer.until("partition 0 again", lambda: len(consumer.got) == 3)
        for _ in range(3):
            consumer.poll()
        assert [(each.partition, each.offset) for each in consumer.got] == [(0, 7), (0, 8), (0, 9)]
        consumer.resume([(name, 1)])
        consumer.until("partition 1 again", lambda: len(consumer.got) == 4)
        assert (consumer.got[-1].partition, consumer.got[-1].offset) == (1, 9)
        assert consumer.offset_for_time((name, 0), long_ago_ms + 1) == 5
        assert consumer.offset_for_time((name, 0), long_ago_ms + 1_000_000) is None


@kinds("confluent-consumer", "aiokafka")
def test_commits_with_and_without_waiting(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name, partitions=2)
    send(broker, name, numbered(0, 20), 2)
    with open_one(kind, broker, name) as consumer:
        consumer.subscribe(name)
        read_all(consumer, numbered(0, 20))
        assert consumer.committed((name, 0)) is None
        consumer.commit({(name, 0): Committed(3, "märz"), (name, 1): Committed(4, "")})
        assert [consumer.committed((name, partition)) for partition in (0, 1)] == [
            Committed(3, "märz"),
            Committed(4, ""),
        ]
        with pytest.raises(ClientError) as refused:
            consumer.commit({(name, 0): Committed(5, "x" * 5000)})
        assert refused.value.code == 12
        consumer.commit_async()
        consumer.until(
            "what was read is committed", lambda: consumer.committed((name, 0)) == Committed(10, "")
        )


@kinds("confluent-consumer", "aiokafka")
def test_offsets_of_a_group_without_members(broker: RunningBroker, kind: str, name: str) -> None:
    """A reader with manually assigned partitions may commit for a group while the group has no
    members."""
    broker.create_topic(name, partitions=2)
    send(broker, name, numbered(0, 20), 2)
    with open_one(kind, broker, name) as reader:
        reader.assign((name, 0), (name, 1))
        read_all(reader, numbered(0, 20))
        reader.commit({(name, 0): Committed(4, "chosen"), (name, 1): Committed(10, "")})
        assert reader.committed((name, 0)) == Committed(4, "chosen")
        with open_one(kind, broker, name) as member:
            member.subscribe(name)
            member.until("the uncommitted records", lambda: len(member.values) == 6)
            assert {each.offset for each in member.got} == {4, 5, 6, 7, 8, 9}
            with pytest.raises(ClientError):
                reader.commit({(name, 0): Committed(5, "")})
            assert member.committed((name, 0)) == Committed(4, "chosen")
        reader.commit({(name, 0): Committed(6, "")})
        assert reader.committed((name, 0)) == Committed(6, "")


@kinds("confluent-classic", "kafka-python")
def test_auto_commit(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name, partitions=2)
    send(broker, name, numbered(0, 20), 2)
    with open_one(kind, broker, name, enable_auto_commit=True, auto_commit_interval_ms=200) as consumer:
        consumer.subscribe(name)
        read_all(consumer, numbered(0, 20))
        consumer.until("by the interval", lambda: consumer.committed((name, 0)) == Committed(10, ""))
        send(broker, name, numbered(20, 4), 2)
        read_all(consumer, numbered(20, 4))
    with open_one(kind, broker, name) as consumer:
        consumer.subscribe(name)
        send(broker, name, numbered(24, 2), 2)
        read_all(consumer, numbered(24, 2))
        assert consumer.values == {*numbered(24, 2)}, (
            "what was read before is committed when a consumer closes"
        )


@kinds("confluent-consumer", "aiokafka")
def test_where_a_group_without_offsets_begins(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name)
    send(broker, name, numbered(0, 5))
    with open_one(kind, broker, f"{name}-latest", auto_offset_reset="latest") as consumer:
        consumer.subscribe(name)
        consumer.until("it has the partition", lambda: consumer.assignment() == {(name, 0)})
        for _ in range(5):
            consumer.poll()
        send(broker, name, numbered(5, 5))
        read_all(consumer, numbered(5, 5))
        assert consumer.values == {*numbered(5, 5)}
    with open_one(
        kind, broker, f"{name}-none", auto_offset_reset="error" if kind.startswith("confluent") else "none"
    ) as consumer:
        consumer.subscribe(name)
        with pytest.raises(ClientError, match=r"(?i)no.*offset"):
            consumer.until(NO_OFFSET, lambda: False)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["java-classic", "java-consumer"])
def test_a_group_that_begins_some_time_ago(broker: RunningBroker, kind: str, name: str) -> None:
    """KIP-1106; only Java has it."""
    broker.create_topic(name)
    send(broker, name, numbered(0, 5), timestamp_ms=int(time.time() * 1000) - 7_200_000)
    send(broker, name, numbered(5, 5))
    with open_one(kind, broker, name, auto_offset_reset="by_duration:PT1H") as consumer:
        consumer.subscribe(name)
        read_all(consumer, numbered(5, 5))
        assert consumer.values == {*numbered(5, 5)}


@kinds("confluent-classic", "aiokafka")
def test_a_committed_offset_whose_record_was_deleted(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name)
    send(broker, name, numbered(0, 20))
    groups = [f"{name}-{reset}" for reset in ("earliest", "latest")]
    for group in groups:
        with open_one(kind, broker, group) as consumer:
            consumer.subscribe(name)
            read_all(consumer, numbered(0, 20))
            consumer.commit({(name, 0): Committed(5, "")})
    with broker.connect() as connection:
        row = {"partition_index": 0, "offset": 12}
        connection.call("delete_records", topics=[{"name": name, "partitions": [row]}], timeout=10_000)
    with open_one(kind, broker, groups[0]) as consumer:
        consumer.subscribe(name)
        read_all(consumer, numbered(12, 8))
        assert consumer.values == {*numbered(12, 8)}
    with open_one(kind, broker, groups[1], auto_offset_reset="latest") as consumer:
        consumer.subscribe(name)
        consumer.until("it has the partition", lambda: consumer.assignment() == {(name, 0)})
        assert consumer.committed((name, 0)) == Committed(5, ""), "it is the consumer who decides"
        for _ in range(10):
            consumer.poll()
        send(broker, name, ["last"])
        read_all(consumer, ["last"])
        assert consumer.values == {"last"}


LIVES = [
    pytest.param(
        engine,
        kind,
        ending,
        marks=[]
        if (engine, kind) in (("segment", "confluent-classic"), ("segment", "confluent-consumer"))
        else [pytest.mark.full],
        id=f"{engine}-{kind}-{ending}",
    )
    for engine in DURABLE_ENGINES
    for kind in KINDS
    for ending in ENDINGS
]


@pytest.mark.parametrize(("engine", "kind", "ending"), LIVES)
def test_a_group_goes_on_over_a_restart(engine: str, kind: str, ending: str) -> None:
    """One group lives through it, and one is opened afterwards: both resume at the committed
    offsets, and miss no record."""
    with open_test_broker(storage=require_engine(engine), config=LIVELY) as broker:
        broker.create_topic("log", partitions=2)
        send(broker, "log", numbered(0, 20), 2)
        with open_one(kind, broker, "group") as consumer:
            with open_one(kind, broker, "leaver") as leaver:
                for each in (consumer, leaver):
                    each.subscribe("log")
                    read_all(each, numbered(0, 20))
                    each.commit({("log", 0): Committed(7, "here"), ("log", 1): Committed(8, "")})
            ENDINGS[ending](broker)
            broker.start()
            send(broker, "log", numbered(20, 6), 2)
            read_all(consumer, numbered(20, 6))
            assert consumer.committed(("log", 0)) == Committed(7, "here")
            consumer.commit({("log", 0): Committed(13, "")})
            assert consumer.committed(("log", 0)) == Committed(13, "")
        with open_one(kind, broker, "leaver") as later:
            later.subscribe("log")
            read_all(later, numbered(20, 6))
            offsets = {
                partition: min(each.offset for each in later.got if each.partition == partition)
                for partition in (0, 1)
            }
            assert offsets == {0: 7, 1: 8}


@kinds("confluent-consumer", "kafka-python")
def test_group_ids(broker: RunningBroker, kind: str, name: str) -> None:
    """Any text is accepted, up to the length that the keys of all engines have room for; a longer
    one is refused with a message."""
    broker.create_topic(name)
    send(broker, name, numbered(0, 3))
    for group in (f" {name} ü 你好 / ", "g" * 250):
        with open_one(kind, broker, group) as consumer:
            consumer.subscribe(name)
            read_all(consumer, numbered(0, 3))
            consumer.commit()
            assert consumer.committed((name, 0)) == Committed(3, "")
    with ExitStack() as stack:
        consumer = stack.enter_context(open_one(kind, broker, "g" * 1000))
        consumer.subscribe(name)
        with pytest.raises(ClientError) as refused:
            consumer.until("an error", lambda: False)
        wanted = "(?i)invalid.?request" if kind.endswith("-consumer") else "(?i)invalid.?group.?id"
        assert re.search(wanted, str(refused.value))


@kinds("confluent-consumer", "confluent-classic", "aiokafka")
def test_several_groups_read_one_topic(broker: RunningBroker, kind: str, name: str) -> None:
    """Each group reads all of it, also with read_committed and a rack."""
    broker.create_topic(name, partitions=3)
    send(broker, name, numbered(0, 30), 3)
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(
                open_one(
                    kind,
                    broker,
                    f"{name}-{number}",
                    isolation_level="read_committed",
                    client_rack=f"rack {number}",
                )
            )
            for number in range(3)
        ]
        for number, consumer in enumerate(consumers):
            consumer.subscribe(name)
            read_all(consumer, numbered(0, 30))
            consumer.commit({(name, 0): Committed(number, "")})
        assert [consumer.committed((name, 0)) for consumer in consumers] == [
            Committed(number, "") for number in range(3)
        ]


@kinds("confluent-consumer", "aiokafka")
def test_many_topics(broker: RunningBroker, kind: str, name: str) -> None:
    names = [f"{name}.{number}" for number in range(200)]
    with broker.connect() as connection:
        rows = [
            {"name": each, "num_partitions": 2, "replication_factor": -1, "assignments": (), "configs": ()}
            for each in names
        ]
        connection.call("create_topics", topics=rows, timeout=60_000)
    with open_one(kind, broker, name) as one, open_one(kind, broker, name) as other:
        for consumer in (one, other):
            consumer.subscribe(*names)
        wanted = {(each, partition) for each in names for partition in (0, 1)}
        one.until(
            "both have half of it", lambda: {len(one.assignment()), len(other.assignment())} == {200}, other
        )
        assert one.assignment() | other.assignment() == wanted
        for each in names[::20]:
            send(broker, each, [each], 1)
        one.until("all that was sent", lambda: one.values | other.values == {*names[::20]}, other)


def test_an_ordinary_consumer_of_a_dead_letter_topic(broker: RunningBroker, name: str) -> None:
    from confluent_kafka import AcknowledgeType, ShareConsumer

    letters = f"dlq.{name}"
    broker.create_topic(name)
    broker.create_topic(letters, config={"errors.deadletterqueue.group.enable": "true"})
    broker.set_group_config(
        name, {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": letters}
    )
    send(broker, name, numbered(0, 4))
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": name,
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    share_consumer = ShareConsumer(settings)
    try:
        share_consumer.subscribe([name])
        done = 0
        while done < 4:
            for message in share_consumer.poll(timeout=1.0):
                share_consumer.acknowledge(message, AcknowledgeType.REJECT)
                done += 1
            share_consumer.commit_sync()
    finally:
        share_consumer.close()
    with open_one("confluent-consumer", broker, f"{name}-letters") as consumer:
        consumer.subscribe(letters)
        consumer.until("the letters", lambda: len(consumer.got) == 4)
        consumer.commit()
        assert consumer.committed((letters, 0)) == Committed(4, "")
