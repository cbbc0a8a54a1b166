"""A broker that keeps share state in control records, and unmodified clients: share consumers work
as usual, and no client sees those records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ShareConsumer

from kbroker.client import group_admin
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.clients.drivers import EARLIEST, LATEST, Confluent, Driver
from tests.clients.workload import Content

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
CONTROL_RECORDS = {"kbroker.persister": "control-records"}
_PATIENCE_S = 60.0


@pytest.fixture(scope="module", params=["segment", "lmdb"])
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with open_test_broker(
        storage=request.param, state_storage=request.param, config=CONTROL_RECORDS
    ) as broker:
        yield broker


def contents(first: int, count: int) -> list[Content]:
    return [
        Content(1_700_000_000_000 + number, None, b"%d" % number, ())
        for number in range(first, first + count)
    ]


def accept(broker: RunningBroker, topic: str, group: str, count: int) -> list[int]:
    """Acquire and accept `count` records, a few at a time."""
    consumer = ShareConsumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "max.poll.records": 3}
    )
    consumer.subscribe([topic])
    values: list[int] = []
    while len(values) < count:
        found = consumer.poll(timeout=_PATIENCE_S)
        assert found, f"{len(values)} of {count} came"
        for message in found:
            assert message.error() is None
            values.append(int(message.value()))
        assert set(consumer.commit_sync().values()) <= {None}
    consumer.close()
    return values


def test_records_and_control_records_in_turns(broker: RunningBroker, driver: Driver, name: str) -> None:
    """In each round some records are produced and two groups accept them, each with several
    commits."""
    broker.create_topic(name)
    groups = [f"{name}-a", f"{name}-b"]
    for group in groups:
        broker.set_group_config(group, {"share.auto.offset.reset": "earliest"})
    rounds, size = 3, 8
    for number in range(rounds):
        driver.send(broker.bootstrap, name, contents(number * size, size))
        for group in groups:
            assert sorted(accept(broker, name, group, size)) == list(
                range(number * size, number * size + size)
            )
    placed = list(driver.receive(broker.bootstrap, name, rounds * size))
    assert [int(each.content.value or b"") for each in placed] == list(range(rounds * size))
    assert [each.content.timestamp_ms for each in placed] == [
        1_700_000_000_000 + number for number in range(rounds * size)
    ]
    assert placed[-1].offset > rounds * size, "there is more in the log than records"
    end = driver.find_offset(broker.bootstrap, name, 0, LATEST)
    assert end is not None
    assert end > placed[-1].offset + 1
    assert driver.find_offset(broker.bootstrap, name, 0, EARLIEST) == 0
    assert driver.find_offset(broker.bootstrap, name, 0, 1_700_000_000_000 + size) == placed[size].offset
    driver.send(broker.bootstrap, name, contents(99, 1))
    (last,) = driver.receive(broker.bootstrap, name, 1, start={0: placed[-1].offset + 1})
    assert last.content.value == b"99", "the consumer continues after them"


def test_a_queue_survives_kill_9(name: str) -> None:
    with open_test_broker(config=CONTROL_RECORDS) as broker:
        broker.create_topic(name)
        broker.set_group_config(name, {"share.auto.offset.reset": "earliest"})
        done: list[int] = []
        for life in range(3):
            for number in range(10):
                Confluent().send(broker.bootstrap, name, contents(10 * life + number, 1))  # one batch each
            done += accept(broker, name, name, 7)
            broker.kill()
            broker.start()
        assert len(done) < 30
        done += accept(broker, name, name, 30 - len(done))
        assert sorted(done) == list(range(30)), "each once"
        with broker.connect() as connection:
            assert [row.lag for row in group_admin.describe_share_group_offsets(connection, name)] == [0]
