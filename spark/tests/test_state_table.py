"""kbroker-state compared with the broker's answers: every engine, both persisters, beside a live
broker and without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import ShareConsumer

from kbroker.client import group_admin
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_spark import state_table
from spark.tests.filling import PATIENCE_S
from spark.tests.share_work import (
    CONTROL_RECORDS,
    Stored,
    accepted,
    as_described,
    as_stored,
    described,
    mixed,
    prepare,
    prepare_group,
    send,
    stored,
    table,
    work,
)
from tests.brokers import DURABLE_ENGINES

PERSISTERS: Mapping[str, Mapping[str, str]] = {"default": {}, "control-records": CONTROL_RECORDS}
WAYS = [
    pytest.param(engine, persister, marks=() if engine == "segment" else pytest.mark.full)
    for engine in DURABLE_ENGINES
    for persister in PERSISTERS
]
every_way = pytest.mark.parametrize(("engine", "persister"), WAYS)


@pytest.fixture(scope="module")
def broker_by() -> Iterator[Callable[[str, str], RunningBroker]]:
    """One broker per engine and persister; a test that stops it restarts it."""
    brokers: dict[tuple[str, str], RunningBroker] = {}
    with ExitStack() as stack:

        def running(engine: str, persister: str) -> RunningBroker:
            if (engine, persister) not in brokers:
                brokers[engine, persister] = stack.enter_context(
                    open_test_broker(storage=engine, config=PERSISTERS[persister])
                )
            return brokers[engine, persister]

        yield running


@pytest.fixture
def broker(broker_by: Callable[[str, str], RunningBroker], engine: str, persister: str) -> RunningBroker:
    return broker_by(engine, persister)


def check(broker: RunningBroker, name: str) -> None:
    batches, share_partitions = answers(broker.data_dir, name)
    assert as_stored(batches) == stored(broker, name, name)
    assert as_described(share_partitions) == described(broker, name)


def answers(data_dir: Path, name: str) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    batches, share_partitions = (
        table(state_table, data_dir, view=view, groups=name) for view in ("batches", "share-partitions")
    )
    assert {row["problem"] for row in (*batches, *share_partitions)} == {None}
    return batches, share_partitions


@every_way
def test_state_is_what_the_broker_answers(broker: RunningBroker, name: str) -> None:
    """Batches of all kinds and a lag; again after a clean stop, which leaves nothing to recover,
    and after kill -9."""
    prepare(broker, name, partitions=3, count=60)
    prepare(broker, f"{name}-other", count=5)
    work(broker, f"{name}-other", accepted, count=5)
    assert len(work(broker, name, mixed, count=60)) == 60
    check(broker, name)
    batches, _ = answers(broker.data_dir, name)
    assert {row["state"] for row in batches} == {"available", "acknowledged", "archived"}
    send(broker, name, range(60, 75), partitions=3)
    check(broker, name)
    broker.kill()
    killed = answers(broker.data_dir, name)
    broker.start()
    check(broker, name)
    broker.stop()
    stopped = answers(broker.data_dir, name)
    assert stopped == killed
    broker.start()
    work(broker, name, accepted, count=5)
    check(broker, name)


@every_way
def test_share_partitions_without_batches_have_a_row(broker: RunningBroker, name: str) -> None:
    prepare(broker, name, partitions=2)
    with ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": name}) as consumer:
        consumer.subscribe([name])
        while len(described(broker, name)) < 2:
            consumer.poll(0.1)
    check(broker, name)
    batches, _ = answers(broker.data_dir, name)
    assert [(row["partition"], row["first_offset"], row["state"]) for row in batches] == [
        (0, None, None),
        (1, None, None),
    ]


@every_way
def test_lag_behind_a_log_start_that_moved(broker: RunningBroker, name: str) -> None:
    """DeleteRecords removes records that the group has finished, and some that it has not: they are
    not lag."""
    prepare(broker, name, partitions=2, count=60)
    work(broker, name, mixed, count=60)
    send(broker, name, range(60, 90), partitions=2)
    for offset in (12, 25, 35):
        with broker.connect() as connection:
            rows = [
                {
                    "name": name,
                    "partitions": [{"partition_index": number, "offset": offset} for number in (0, 1)],
                }
            ]
            connection.call("delete_records", topics=rows, timeout=30_000)
        check(broker, name)
    _, share_partitions = answers(broker.data_dir, name)
    assert [row["log_start_offset"] for row in share_partitions] == [35, 35]
    work(broker, name, accepted, count=1)
    check(broker, name)


@every_way
def test_under_load_it_lies_between_two_answers(broker: RunningBroker, name: str) -> None:
    """Finished records stay finished, so the broker's first answer, the state on disk, and its
    second answer only rise. ReadShareGroupState waits for queued saves, which a reader of the disk
    may see a little earlier."""
    count = 1500
    prepare(broker, name, partitions=2, count=count)
    work(broker, name, accepted, count=10)
    consumer = threading.Thread(target=lambda: work(broker, name, accepted, count=count - 500, at_once=5))
    consumer.start()
    looks = 0
    while consumer.is_alive() or not looks:
        before, lag_before = done(stored(broker, name, name)), lags(broker, name)
        batches, share_partitions = answers(broker.data_dir, name)
        after, lag_after = done(stored(broker, name, name)), lags(broker, name)
        found = done(as_stored(batches))
        assert before <= found <= after
        lag_found = {row["partition"]: row["lag"] for row in share_partitions}
        assert all(lag_before[number] >= lag_found[number] >= lag_after[number] for number in (0, 1))
        looks += 1
    consumer.join(PATIENCE_S)
    print(f"{looks} looks")
    check(broker, name)


def done(states: list[Stored]) -> set[tuple[int, int]]:
    """Partition and offset of every finished record."""
    below = {(state.partition, offset) for state in states for offset in range(state.start_offset)}
    finished = {
        (state.partition, offset)
        for state in states
        for first, last, kind, _ in state.batches
        if kind in (2, 4)
        for offset in range(first, last + 1)
    }
    return below | finished


def lags(broker: RunningBroker, name: str) -> dict[int, int]:
    return {each.partition: each.lag or 0 for each in described(broker, name)}


@every_way
def test_a_view_by_groups_and_topics(broker: RunningBroker, name: str) -> None:
    a, b, c = (f"{name}-{each}" for each in "abc")
    path = broker.data_dir
    for each in (a, b):
        prepare(broker, each, count=3)
        work(broker, each, accepted, count=3)
    prepare_group(broker, c)
    work(broker, a, mixed, count=3, group=c)
    assert places(table(state_table, path)) >= {(a, a), (b, b), (c, a)}
    assert places(table(state_table, path, groups=f"{a}, {c}")) == {(a, a), (c, a)}
    assert places(table(state_table, path, topics=b)) == {(b, b)}
    assert table(state_table, path, topics=b, groups=a) == table(state_table, path, groups="nobody") == []
    for view in state_table.VIEWS:
        found = set() if view == state_table.WAITING else {(c, a)}
        assert places(table(state_table, path, view=view, topics=f"{a},nothing", groups=c)) == found
    with broker.connect() as connection:
        group_admin.delete_groups(connection, [c])
    assert places(table(state_table, path, topics=f"{a},{b}")) == {(a, a), (b, b)}
    assert table(state_table, path, groups=c) == []


def places(rows: list[dict[str, object]]) -> set[tuple[object, object]]:
    return {(row["group"], row["topic"]) for row in rows}


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "persister"), [("segment", "control-records"), ("lmdb", "control-records")]
)
def test_state_while_segments_go(broker: RunningBroker, name: str) -> None:
    """Checkpoints are rewritten and their old segments removed during the reading: it never sees a
    broken chain."""
    broker.create_topic(name, config={"internal.segment.bytes": "2000"})
    prepare_group(broker, name)
    looks = 0
    for first in range(0, 600, 30):
        send(broker, name, range(first, first + 30))
        working = threading.Thread(target=lambda: work(broker, name, accepted, count=30))
        working.start()
        while working.is_alive() or not looks:
            table(state_table, broker.data_dir, view="history", groups=name)
            assert {row["problem"] for row in table(state_table, broker.data_dir, groups=name)} <= {None}
            looks += 1
        working.join(PATIENCE_S)
        (row,) = table(state_table, broker.data_dir, view="share-partitions", groups=name)
        with broker.connect() as connection:
            partitions = [{"partition_index": 0, "offset": row["log_end_offset"] - 2}]
            connection.call(
                "delete_records", topics=[{"name": name, "partitions": partitions}], timeout=30_000
            )
        check(broker, name)
    assert row["log_start_offset"] > 500
