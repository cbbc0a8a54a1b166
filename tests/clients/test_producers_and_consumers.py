"""Records from unmodified producers reach unmodified consumers unchanged: any client, engine, codec
and acks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kbroker.client import admin
from kbroker.errors import ErrorCode
from kbroker.formats.batches import BatchHeader, iter_headers
from kbroker.formats.compression import Codec
from kbroker.testing.broker import RunningBroker
from tests.brokers import ENGINES
from tests.clients.drivers import CODECS, DRIVERS, EARLIEST, LATEST, Driver, Refused
from tests.clients.workload import BASE_MS, Content, Placed, check_all, content, contents

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
PARTITIONS = 3
NOT_INSTALLED = (
    "kafka-python needs python-snappy and lz4 for these codecs, and neither is a dependency of the tests"
)
DEFAULT_RUN = {
    ("segment", "none"),
    ("lmdb", "gzip"),
    ("rocksdb", "snappy"),
    ("sqlite", "lz4"),
    ("memory", "zstd"),
    ("segment", "lz4"),
}


def matrix() -> Iterator[object]:
    """Every engine and every codec is in the default run at least once for each client, the whole
    matrix in the full one."""
    for client, driver in DRIVERS.items():
        for engine in ENGINES:
            for codec in CODECS:
                marks = [] if (engine, codec) in DEFAULT_RUN else [pytest.mark.full]
                if codec not in driver.codecs:
                    marks.append(pytest.mark.skip(reason=NOT_INSTALLED))
                yield pytest.param(client, engine, codec, marks=marks, id=f"{client}-{engine}-{codec}")


def round_trip(broker: RunningBroker, driver: Driver, topic: str, count: int, codec: str = "none") -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    driver.send(broker.bootstrap, topic, contents(count), partitions=PARTITIONS, codec=codec)
    check_all(driver.receive(broker.bootstrap, topic, count, partitions=PARTITIONS), count, PARTITIONS)
    stored = {Codec(header.codec_id) for header in stored_batches(broker, topic)}
    assert Codec[codec.upper()] in stored
    assert stored <= {Codec[codec.upper()], Codec.NONE}, "clients leave batches alone that would grow"


def stored_batches(broker: RunningBroker, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The first batches of a partition, as they are stored."""
    place = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    with broker.connect() as connection:
        wanted = [{"topic": topic, "partitions": [place]}]
        answer = connection.call(
            "fetch", 12, max_wait=0, min_bytes=0, topics=wanted, forgotten_topics_data=[]
        )
    (row,) = answer.responses[0].partitions
    return [header for _, header in iter_headers(row.records)]


@pytest.mark.parametrize(("client", "engine", "codec"), [*matrix()])
def test_records_come_back_the_same(broker: RunningBroker, client: str, codec: str, name: str) -> None:
    round_trip(broker, DRIVERS[client], name, 20_000, codec)


def test_fifty_thousand_records(broker: RunningBroker, driver: Driver, name: str) -> None:
    round_trip(broker, driver, name, 50_000)


@pytest.mark.full
def test_a_million_records(broker: RunningBroker, driver: Driver, name: str) -> None:
    round_trip(broker, driver, name, 1_000_000)


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_with_a_codec_of_its_own(
    broker: RunningBroker, driver: Driver, codec: str, name: str
) -> None:
    """The broker compresses again: the producer sends lz4, or nothing compressed."""
    if codec not in driver.codecs:
        pytest.skip(NOT_INSTALLED)
    sent = "lz4" if "lz4" in driver.codecs and codec != "lz4" else "none"
    compression = "uncompressed" if codec == "none" else codec
    broker.create_topic(name, partitions=PARTITIONS, config={"compression.type": compression})
    driver.send(broker.bootstrap, name, contents(2000), partitions=PARTITIONS, codec=sent, idempotent=True)
    check_all(driver.receive(broker.bootstrap, name, 2000, partitions=PARTITIONS), 2000, PARTITIONS)
    assert {header.codec_id for header in stored_batches(broker, name)} == {Codec[codec.upper()]}


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement(broker: RunningBroker, driver: Driver, acks: int, name: str) -> None:
    broker.create_topic(name, partitions=PARTITIONS)
    offsets = driver.send(broker.bootstrap, name, contents(3000), partitions=PARTITIONS, acks=acks)
    if acks:
        assert sorted(offsets) == sorted(number // PARTITIONS for number in range(3000))
    check_all(driver.receive(broker.bootstrap, name, 3000, partitions=PARTITIONS), 3000, PARTITIONS)
    assert {header.producer_id for header in stored_batches(broker, name)} == {-1}


def test_idempotent_producers(broker: RunningBroker, driver: Driver, name: str) -> None:
    broker.create_topic(name, partitions=PARTITIONS)
    driver.send(broker.bootstrap, name, contents(3000), partitions=PARTITIONS, idempotent=True)
    check_all(driver.receive(broker.bootstrap, name, 3000, partitions=PARTITIONS), 3000, PARTITIONS)
    batches = stored_batches(broker, name)
    assert {header.producer_id for header in batches} == {batches[0].producer_id}
    assert batches[0].producer_id >= 0
    assert [header.base_sequence for header in batches] == [header.base_offset for header in batches]


def test_records_up_to_the_size_limit_are_taken_and_larger_ones_are_refused(
    broker: RunningBroker, driver: Driver, name: str
) -> None:
    limit = 200_000
    batch_and_record_head = 75
    broker.create_topic(name, config={"max.message.bytes": str(limit)})

    def send(size: int) -> None:
        driver.send(
            broker.bootstrap, name, [Content(BASE_MS, None, b"x" * size)], max_request_bytes=2 * limit
        )

    send(limit - batch_and_record_head)
    with pytest.raises(Refused) as refused:
        send(limit)
    assert refused.value.code == ErrorCode.message_too_large.value
    send(5)
    sizes = [len(placed.content.value or b"") for placed in driver.receive(broker.bootstrap, name, 2)]
    assert sizes == [limit - batch_and_record_head, 5]


def test_records_larger_than_a_fetch(broker: RunningBroker, driver: Driver, name: str) -> None:
    """Consumers request 1 MiB per partition; a larger batch is still delivered, alone."""
    broker.create_topic(name, config={"max.message.bytes": "9000000"})
    large = [Content(BASE_MS + size, b"key", bytes([size]) * (size * 1_000_000)) for size in (1, 7, 3)]
    driver.send(broker.bootstrap, name, large, max_request_bytes=9_000_000)
    assert [placed.content for placed in driver.receive(broker.bootstrap, name, 3)] == large


def test_starting_from_a_place_and_from_a_timestamp(broker: RunningBroker, driver: Driver, name: str) -> None:
    broker.create_topic(name)
    rising = [Content(BASE_MS + 10 * number, None, b"%d" % number) for number in range(1000)]
    driver.send(broker.bootstrap, name, rising)

    def find(timestamp_ms: int) -> int | None:
        return driver.find_offset(broker.bootstrap, name, 0, timestamp_ms)

    assert (find(EARLIEST), find(LATEST)) == (0, 1000)
    assert [find(BASE_MS), find(BASE_MS + 4321), find(BASE_MS + 9990)] == [0, 433, 999]
    assert find(BASE_MS + 9991) is None
    tail = list(driver.receive(broker.bootstrap, name, 567, start={0: 433}))
    assert [placed.content for placed in tail] == rising[433:]
    with broker.connect() as connection:
        row = {"partition_index": 0, "offset": 600}
        connection.call("delete_records", topics=[{"name": name, "partitions": [row]}], timeout=10_000)
    assert (find(EARLIEST), find(BASE_MS)) == (600, 600)
    assert [placed.offset for placed in driver.receive(broker.bootstrap, name, 2)] == [600, 601], (
        "an offset that no longer exists: start over"
    )


def test_a_consumer_that_waits_gets_what_is_produced_meanwhile(
    broker: RunningBroker, driver: Driver, name: str
) -> None:
    broker.create_topic(name)
    driver.send(broker.bootstrap, name, contents(1))
    received: list[Placed] = []
    reader = threading.Thread(target=lambda: received.extend(driver.receive(broker.bootstrap, name, 500)))
    reader.start()
    for number in range(1, 500, 50):
        driver.send(broker.bootstrap, name, [content(each) for each in range(number, min(number + 50, 500))])
    reader.join()
    check_all(received, 500, 1)


def test_a_topic_that_does_not_exist_is_made_by_sending_to_it(
    broker: RunningBroker, driver: Driver, name: str
) -> None:
    driver.send(broker.bootstrap, name, contents(10))
    check_all(driver.receive(broker.bootstrap, name, 10), 10, 1)
    with broker.connect() as connection:
        assert [topic.partitions for topic in admin.topics(connection, [name])] == [(0,)]


def test_log_append_time(broker: RunningBroker, driver: Driver, name: str) -> None:
    broker.create_topic(name, config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    driver.send(broker.bootstrap, name, contents(100), codec="gzip")
    after_ms = int(time.time() * 1000)
    received = list(driver.receive(broker.bootstrap, name, 100))
    assert [placed.content._replace(timestamp_ms=0) for placed in received] == [
        each._replace(timestamp_ms=0) for each in contents(100)
    ]
    assert all(before_ms <= placed.content.timestamp_ms <= after_ms for placed in received)


def test_headers_without_a_value(broker: RunningBroker, name: str) -> None:
    """Only librdkafka can send them; the other clients read them."""
    sent = Content(BASE_MS, None, b"x", (("none", None), ("empty", b""), ("none", b"\x00")))
    broker.create_topic(name)
    DRIVERS["confluent-kafka"].send(broker.bootstrap, name, [sent])
    for driver in DRIVERS.values():
        assert [placed.content for placed in driver.receive(broker.bootstrap, name, 1)] == [sent], driver.name
