"""A broker that is stopped or killed and restarted on its directory: topics, offsets, configs,
groups and share state.

Clients that are connected meanwhile resume without any action of the application.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from typing import Any, NamedTuple

import pytest

from kbroker.client import admin, group_admin
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.clients.drivers import Driver
from tests.clients.share_workers import Crew, open_crew
from tests.clients.test_share_consumers import EARLIEST, numbered, send
from tests.clients.workload import check_all, contents

pytestmark = [
    # kafka-python on Python 3.11 and 3.12
    pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning"),
    # aiokafka leaves refused connections to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ENDINGS: Mapping[str, Callable[[RunningBroker], None]] = {
    "stop": RunningBroker.stop,
    "kill": RunningBroker.kill,
}
PAIRS = [("segment", "lmdb"), ("lmdb", "rocksdb"), ("rocksdb", "segment")]
DEFAULT_RUN = {("disk", "kill"), ("os", "stop")}


@pytest.fixture(autouse=True)
def collect_refused_connections(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Collect them within the test, since its filter for their warnings ends with it. Log records
    of their errors would keep them alive."""
    caplog.set_level(logging.CRITICAL, "kafka")
    yield
    gc.collect()


def lives() -> Iterator[object]:
    """(storage, state storage, durability, ending): each engine twice and some pairs in the default
    run, all combinations in the full one."""
    for engine, durability, ending in product(DURABLE_ENGINES, ("disk", "os"), ENDINGS):
        marks = [] if (durability, ending) in DEFAULT_RUN else [pytest.mark.full]
        yield pytest.param(
            engine, engine, durability, ending, marks=marks, id=f"{engine}-{durability}-{ending}"
        )
    for storage, state in product(DURABLE_ENGINES, DURABLE_ENGINES):
        if storage != state:
            marks = [] if (storage, state) in PAIRS else [pytest.mark.full]
            yield pytest.param(storage, state, "disk", "kill", marks=marks, id=f"{storage}+{state}-disk-kill")


class Visible(NamedTuple):
    """The state that a client can query from a broker."""

    topics: list[admin.Topic]
    offsets: dict[str, dict[int, dict[int, int]]]
    configs: dict[str, dict[str, str | None]]
    groups: list[tuple[str, str]]
    cluster_id: str


def look(broker: RunningBroker) -> Visible:
    with broker.connect() as connection:
        topics = admin.topics(connection)
        offsets = {
            topic.name: {
                ts: admin.list_offsets(connection, topic.name, topic.partitions, ts)
                for ts in (admin.EARLIEST, admin.LATEST, 1)
            }
            for topic in topics
        }
        resources: list[Any] = [(admin.ResourceType.TOPIC, topic.name) for topic in topics]
        resources += [(admin.ResourceType.GROUP, "group"), (admin.ResourceType.GROUP, "early")]
        configs = {
            name: {
                entry.name: entry.value
                for entry in admin.describe_configs(connection, kind, name)
                if not entry.is_default
            }
            for kind, name in resources
        }
        groups = [(group.group_id, group.type) for group in group_admin.groups(connection)]
        cluster = connection.call(
            "describe_cluster", include_cluster_authorized_operations=False, include_fenced_brokers=False
        )
    return Visible(topics, offsets, configs, groups, cluster.cluster_id)


def fill(broker: RunningBroker, crew: Crew) -> dict[str, list[int]]:
    """Topics, groups and configs; returns which records of "queue" are still to be delivered, and
    the delivery counts allowed for each."""
    broker.create_topic("queue", config={"max.message.bytes": "500000"})
    broker.create_topic(
        "wide", partitions=3, config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    )
    broker.create_topic("gone")
    broker.set_group_config("group", {**EARLIEST, "share.record.lock.duration.ms": "60000"})
    broker.set_group_config("early", EARLIEST)
    send(broker, "wide", numbered(300), partitions=3)
    done = [f"{kind} {number}" for kind in ("accept", "reject") for number in range(40)]
    once, twice = ([f"release {times} - {number}" for number in range(20)] for times in (1, 2))
    worker = crew.start_one("group")
    worker.tell("obey")
    worker.tell("subscribe", "queue")
    send(broker, "queue", [*done, *once, *twice])
    crew.until("all are done", lambda: len(worker.acknowledged) == len(done) + 20 * 2 + 20 * 3)

    send(broker, "queue", ["hold 2"])
    crew.until("released twice, and held", lambda: "holding" in worker.moments)
    holder = crew.start_one("group")
    send(broker, "queue", numbered(30))
    holder.tell("hold")
    holder.tell("subscribe", "queue")
    crew.until_delivered(numbered(30))
    with broker.connect() as connection:
        connection.call(
            "delete_records",
            topics=[{"name": "wide", "partitions": [{"partition_index": 1, "offset": 40}]}],
            timeout=10_000,
        )
        admin.delete_topic(connection, "gone")
    # The count of a delivery without an acknowledgement may be lost; one that a confirmed release
    # recorded may not.
    return {"hold 2": [3, 4], **{value: [1, 2] for value in numbered(30)}}


@pytest.mark.parametrize(("storage", "state_storage", "durability", "ending"), [*lives()])
def test_a_restart_serves_the_same(storage: str, state_storage: str, durability: str, ending: str) -> None:
    options = {
        "storage": require_engine(storage),
        "state_storage": require_engine(state_storage),
        "durability": durability,
    }
    config = {"group.share.delivery.count.limit": "10"}
    with open_test_broker(**options, config=config) as broker:
        with open_crew(broker) as crew:
            to_come = fill(broker, crew)
            before = look(broker)
            ENDINGS[ending](broker)
        broker.start()
        assert look(broker) == before
        assert (before.offsets["queue"][admin.LATEST], before.offsets["wide"][admin.EARLIEST]) == (
            {0: 151},
            {0: 0, 1: 40, 2: 0},
        )
        with open_crew(broker) as crew:
            worker = crew.start_one("group")
            worker.tell("subscribe", "queue")
            crew.until_delivered(to_come)
            send(broker, "queue", ["last"])
            crew.until_delivered(["last"])
            counts = crew.counts()
            assert counts.pop("last") == [1]
            assert counts.keys() == to_come.keys()
            assert all(
                len(each) == 1 and each[0] in to_come[value or ""] for value, each in counts.items()
            ), counts


ENGINE_LIVES = [
    pytest.param(
        engine, ending, marks=[] if engine == "segment" else [pytest.mark.full], id=f"{engine}-{ending}"
    )
    for engine in DURABLE_ENGINES
    for ending in ENDINGS
]


@pytest.mark.parametrize(("engine", "ending"), ENGINE_LIVES)
def test_share_consumers_go_on_over_a_restart(engine: str, ending: str) -> None:
    with open_test_broker(storage=require_engine(engine)) as broker, open_crew(broker) as crew:
        broker.create_topic("queue", partitions=2)
        broker.set_group_config("group", EARLIEST)
        workers = crew.start(3, "group", max_poll_records=10)
        for worker in workers:
            worker.tell("subscribe", "queue")
        send(broker, "queue", numbered(3000), partitions=2, batch=20)
        crew.until(
            "everybody has confirmed some",
            lambda: all(len(worker.accepted_places) >= 10 for worker in workers),
        )
        ENDINGS[ending](broker)
        ended_at = time.monotonic()
        broker.start()
        send(broker, "queue", numbered(1000, start=3000), partitions=2, batch=20)
        crew.until(
            "all are answered",
            lambda: len({each.place for worker in workers for each in worker.acknowledged}) == 4000,
        )
        crew.check_what_was_done_stays_done(since=ended_at)
        assert crew.counts().keys() == {*numbered(4000)}
        for worker in workers:
            worker.close()
        accepted = {place for worker in workers for place in worker.accepted_places}
        unanswered = {each.place for worker in workers for each in worker.acknowledged} - accepted
        print(f"{len(unanswered)} acknowledgements were under way when the broker ended")
        assert len(unanswered) <= 3 * 2 * 20, "three consumers, at most a batch of each partition"
        witness = crew.start_one("group")
        witness.tell("subscribe", "queue")
        send(broker, "queue", ["last 0", "last 1"], partitions=2)
        crew.until_delivered(["last 0", "last 1"])
        others = {
            delivery.place for delivery in witness.deliveries if delivery.value not in ("last 0", "last 1")
        }
        assert others <= unanswered, "a job was left, or was redelivered"


@pytest.mark.parametrize("ending", ENDINGS)
def test_idempotent_producers_go_on_over_a_restart(driver: Driver, ending: str) -> None:
    """Every record once and in order, although some batches in flight got no response."""
    count = 30_000
    with open_test_broker() as broker:
        broker.create_topic("log", partitions=3)
        reached, errors = threading.Event(), []

        def produce() -> None:
            try:
                driver.send(broker.bootstrap, "log", interrupted(), partitions=3, idempotent=True)
            except BaseException as error:
                errors.append(error)

        def interrupted() -> Iterator[Any]:
            for number, each in enumerate(contents(count)):
                if number == count // 2:
                    reached.set()
                yield each

        producer = threading.Thread(target=produce)
        producer.start()
        assert reached.wait(60)
        ENDINGS[ending](broker)
        broker.start()
        producer.join()
        assert errors == []
        check_all(driver.receive(broker.bootstrap, "log", count, partitions=3), count, 3)


def test_a_consumer_goes_on_over_a_restart(driver: Driver) -> None:
    with open_test_broker() as broker:
        broker.create_topic("log")
        received: list[Any] = []
        begun = threading.Event()

        def read() -> None:
            for placed in driver.receive(broker.bootstrap, "log", 200):
                received.append(placed)
                begun.set()

        driver.send(broker.bootstrap, "log", islice(contents(200), 100))
        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(60)
        broker.restart()
        driver.send(broker.bootstrap, "log", islice(contents(200), 100, None))
        reader.join()
        check_all(received, 200, 1)
