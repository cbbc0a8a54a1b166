"""kafka.isolation.level=read_committed beside a live broker of each engine, and on the directory
that a killed one leaves, without Spark: the rows of a consumer with that level."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_spark.batch_reader import BatchReader, RangePartition
from kbroker_spark.schema import full_schema
from spark.tests.filling import KEPT, Row, consume_committed, delete_before
from spark.tests.stream_steps import Checkpoint, Run
from spark.tests.test_batch_live import rows
from spark.tests.transactional import COMMITTED, LiveLog
from tests.brokers import DURABLE_ENGINES

every_engine = pytest.mark.parametrize("engine", DURABLE_ENGINES)


def read(path: Path, topic: str, **options: str) -> list[Row]:
    return rows(reader(path, topic, **options))


def reader(path: Path, topic: str, **options: str) -> BatchReader:
    given = {"path": str(path), "subscribe": topic, "includeHeaders": "true", **COMMITTED, **options}
    return BatchReader(given, full_schema(include_headers=True))


def end(path: Path, topic: str) -> int:
    (found,) = reader(path, topic).partitions()
    assert isinstance(found, RangePartition)
    return found.range.end


def steps(log: LiveLog) -> Iterator[None]:
    """Three producers with interleaved transactions, and plain records."""
    log.send(3)
    log.send(2, 1)
    log.send(2, 2)
    yield
    log.send(1)
    log.abort(1)
    yield
    log.send(2, 1)
    log.commit(2)
    yield
    log.send(4, 3)
    log.commit(1)
    log.send(2, 2)
    yield
    log.abort(3)
    log.send(1)
    yield


@every_engine
def test_a_consumer_and_a_stream_read_the_same(broker: RunningBroker, name: str) -> None:
    broker.create_topic(name)
    log = LiveLog(broker.bootstrap, name)
    checkpoint = Checkpoint()
    options = {"subscribe": name, "startingOffsets": "earliest", **COMMITTED}
    query = Run(checkpoint, broker.data_dir, **options)
    for _ in steps(log):
        expected = consume_committed(broker.bootstrap, name)
        assert [row.offset for row in expected] == log.committed
        assert read(broker.data_dir, name) == expected
        assert read(broker.data_dir, name, minPartitions="5") == expected
        query.all_batches()
        assert checkpoint.seen(name) == log.committed
        assert query.reader.reportLatestOffset() == {name: {"0": end(broker.data_dir, name)}}
    assert len(log.committed) == 8  # The last record is behind an open transaction.
    delete_before(broker.bootstrap, name, 4)
    assert read(broker.data_dir, name) == consume_committed(broker.bootstrap, name)
    log.abort(2)
    query.all_batches()
    assert read(broker.data_dir, name) == consume_committed(broker.bootstrap, name)
    assert checkpoint.seen(name) == log.committed


@every_engine
def test_a_killed_broker_and_the_next_one(engine: str, name: str) -> None:
    """Nothing of the transactions is stored beside the logs at the kill; after the stop it is."""
    with open_test_broker(storage=engine, config=dict(KEPT)) as broker:
        broker.create_topic(name)
        log = LiveLog(broker.bootstrap, name)
        for _ in steps(log):
            pass
        expected = consume_committed(broker.bootstrap, name)
        broker.kill()
        assert read(broker.data_dir, name) == expected
        broker.start()
        log = log.again(broker.bootstrap)
        assert read(broker.data_dir, name) == consume_committed(broker.bootstrap, name) == expected
        log.send(3, 4)
        log.commit(4)
        broker.stop()
        assert [row.offset for row in read(broker.data_dir, name)] == log.committed
        broker.start()
        log = log.again(broker.bootstrap)
        assert read(broker.data_dir, name) == consume_committed(broker.bootstrap, name)
