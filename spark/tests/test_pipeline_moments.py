"""The jobs beside concurrent changes: traffic between two of their reads, clocks set back,
unexpected records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import AcknowledgeType, Message

from kbroker.formats.batches import Record, build_batch
from kbroker.share.dead_letter import HEADER_NAMES, MESSAGES
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_pipeline import archive, sources
from kbroker_pipeline.cli import run
from kbroker_pipeline.store import Store
from kbroker_spark import state_table
from spark.tests import filling, record_batches
from spark.tests.filling import KEPT, PATIENCE_S
from spark.tests.share_work import described, prepare_group, table, work
from spark.tests.stored import records, writing
from spark.tests.test_pipeline_jobs import job

pytestmark = pytest.mark.usefixtures("spark")
NAME, LETTERS = "queue", "dlq.queue"
FAR_MS = 1_795_334_400_000_000
"""A producer has sent microseconds."""


def rejected(_: Message) -> AcknowledgeType:
    return AcknowledgeType.REJECT


def produce(broker: RunningBroker, count: int) -> None:
    """Each record in its own batch, so that a consumer that wants one gets one."""
    filling.produce(
        broker.bootstrap,
        NAME,
        [filling.Record(b"%d" % number) for number in range(count)],
        batch_num_messages=1,
    )


def reject_one(broker: RunningBroker, left: int) -> None:
    """Returns when it has its dead letter, and so many records are not done."""
    work(broker, NAME, rejected, count=1, at_once=1)
    deadline_s = time.monotonic() + PATIENCE_S
    while [row.lag for row in described(broker, NAME)] != [left]:
        assert time.monotonic() < deadline_s


def afterwards(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Run these one after the other, each right after a job has read the logs' ends."""
    real, left = sources.parts, iter(steps)

    def parts(*arguments: Any) -> list[sources.Part]:
        found = real(*arguments)
        next(left, lambda: None)()
        return found

    monkeypatch.setattr(sources, "parts", parts)


@pytest.fixture
def queue() -> Iterator[RunningBroker]:
    """Three records for a group that rejects each one that it gets."""
    with open_test_broker(config=KEPT) as broker:
        broker.create_topic(NAME)
        broker.create_topic(LETTERS, config={"errors.deadletterqueue.group.enable": "true"})
        prepare_group(broker, NAME)
        broker.set_group_config(NAME, {"errors.deadletterqueue.topic.name": LETTERS})
        produce(broker, 3)
        yield broker


def at_hour(hour: int) -> tuple[str, str]:
    return "--as-of", f"2026-03-01T{hour:02}:00:00"


def test_queue_health(
    queue: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is given up after a run has read the logs: the next run finds it with its dead
    letter. Runs at the same moment are two snapshots."""
    out = tmp_path / "out"
    reject_one(queue, left=2)
    afterwards(monkeypatch, lambda: reject_one(queue, left=1))
    job("queue-health", queue.data_dir, out, capsys, *at_hour(12))
    reject_one(queue, left=0)
    (share,) = job("queue-health", queue.data_dir, out, capsys, *at_hour(12))["share_partitions"]
    assert (share["archived"], share["dead_lettered"], share["backlog"]) == (3, 3, 0)
    rows = [
        row
        for path in (out / "queue_health").rglob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert len(rows) == len({row["taken"] for row in rows}) == 2


def test_retried_and_scheduled_jobs_are_not_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 40 jobs, 15 are rejected and get dead letters; 10 are released at first, 5 are sent with a
    delay, and so all 15 are parked for a while; 3 of the released ones wait until the next day."""
    day_ms = 86_400_000
    with open_test_broker(config=KEPT) as broker:
        broker.create_topic(NAME)
        broker.create_topic(LETTERS, config={"errors.deadletterqueue.group.enable": "true"})
        prepare_group(broker, NAME)
        retries = {
            "kbroker.queue.redelivery.delay.ms": "1500", "kbroker.queue.redelivery.jitter": "0",
            "kbroker.queue.scheduling": "true",
        }  # fmt: skip
        broker.set_group_config(NAME, {"errors.deadletterqueue.topic.name": LETTERS, **retries})
        soon = str(int(time.time() * 1000) + 2000).encode()
        jobs = [
            filling.Record(b"%d" % number, headers=(("kbroker-deliver-at", soon),) if number >= 35 else ())
            for number in range(40)
        ]
        filling.produce(broker.bootstrap, NAME, jobs, batch_num_messages=1)
        released: set[int] = set()

        def verdict(message: Message) -> AcknowledgeType:
            number = int(message.value() or b"")
            if number < 15:
                return AcknowledgeType.REJECT
            if number < 25 and number not in released:
                released.add(number)
                return AcknowledgeType.RELEASE
            return AcknowledgeType.ACCEPT

        work(broker, NAME, verdict, count=40, at_once=1)
        left = next(row.lag for row in described(broker, NAME)) or 0
        while left:
            work(broker, NAME, verdict, count=1, at_once=1)
            left = next(row.lag for row in described(broker, NAME)) or 0
        broker.set_group_config(NAME, {"kbroker.queue.redelivery.delay.ms": str(day_ms)})
        produce(broker, 3)
        work(broker, NAME, lambda _: AcknowledgeType.RELEASE, count=3, at_once=3)
        out = tmp_path / "out"
        job("queue-health", broker.data_dir, out, capsys, *at_hour(12))
        (share,) = (
            row
            for path in (out / "queue_health").rglob("*.parquet")
            for row in pq.ParquetFile(path).read().to_pylist()
        )
        names = ("finished", "acknowledged", "archived", "dead_lettered", "backlog", "waiting_again")
        assert tuple(share[name] for name in names) == (40, 25, 15, 15, 3, 3)
        given_up = [
            row for path in (out / "given_up").rglob("*.parquet")
            for row in pq.ParquetFile(path).read().to_pylist()
        ]  # fmt: skip
        assert sorted(row["offset"] for row in given_up) == list(range(15))


def counted(broker: RunningBroker, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, ...]:
    """Of the last snapshot, which a run without the state's history takes."""
    job("queue-health", broker.data_dir, out, capsys, "--no-history")
    rows = [
        row
        for path in (out / "queue_health").rglob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    last = max(rows, key=lambda row: row["taken"])
    return tuple(last[name] for name in ("finished", "acknowledged", "archived", "given_up", "backlog"))


@pytest.mark.parametrize(
    ("persister", "parks"),
    [("default", False), ("default", True), pytest.param("control-records", True, marks=pytest.mark.full)],
)
def test_10_000_given_up_between_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], persister: str, parks: bool
) -> None:
    """Without a dead letter queue. Their state is gone, as the start offset has passed them. Where
    jobs are parked, 12 of the rejected ones were released at first, and 3 others still wait."""
    with open_test_broker(config={**KEPT, "kbroker.persister": persister}) as broker:
        broker.create_topic(NAME)
        prepare_group(broker, NAME)
        delay = "kbroker.queue.redelivery.delay.ms"
        if parks:
            broker.set_group_config(NAME, {delay: "1500", "kbroker.queue.redelivery.jitter": "0"})
        released: set[int] = set()

        def verdict(message: Message) -> AcknowledgeType:
            number = int(message.value() or b"")
            if parks and 60 <= number < 72 and number not in released:
                released.add(number)
                return AcknowledgeType.RELEASE
            return AcknowledgeType.ACCEPT if number % 100 == 7 else AcknowledgeType.REJECT

        produce(broker, 50)
        work(broker, NAME, verdict, count=50, at_once=50)
        assert counted(broker, tmp_path / "out", capsys) == (50, 1, 49, 49, 0)
        jobs = [filling.Record(b"%d" % number) for number in range(10_100)]
        filling.produce(broker.bootstrap, NAME, jobs, batch_num_messages=500)
        work(broker, NAME, verdict, count=10_100, at_once=500)
        left = next(row.lag for row in described(broker, NAME)) or 0
        assert bool(left) is parks
        while left:
            work(broker, NAME, verdict, count=1, at_once=1)
            left = next(row.lag for row in described(broker, NAME)) or 0
        broker.set_group_config(NAME, {delay: "86400000"})
        produce(broker, 3)
        work(broker, NAME, lambda _: AcknowledgeType.RELEASE, count=3, at_once=3)
        for out in ("out", "another"):
            found = counted(broker, tmp_path / out, capsys)
            assert found[2:] == (10_048, 10_048, 3)
            # Control records have offsets, which count as finished.
            assert found[:2] == (10_150, 102) or persister == "control-records"
        broker.kill()
        (row,) = table(state_table, broker.data_dir, view="share-partitions")
        assert (row["given_up"], row["waiting_records"]) == (10_048, 3)
        assert sum(row["parked"] for row in table(state_table, broker.data_dir)) == 3


@pytest.mark.full
def test_a_clock_that_goes_back(
    queue: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot with an apparently later time does not hide a head that does not move."""
    for left in (2, 1, 0):
        reject_one(queue, left)
    stuck = []
    for hour in (12, 8, 9):
        stuck = job("queue-health", queue.data_dir, tmp_path / "out", capsys, *at_hour(hour))["stuck_heads"]
        produce(queue, 1)
    assert [row["stuck_for_s"] for row in stuck] == [3600.0]


def test_dead_letters_in_one_session(
    queue: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later run must not use the first one's cached table."""
    for number in (1, 2):
        reject_one(queue, left=3 - number)
        found = job("dead-letter-report", queue.data_dir, tmp_path / "out", capsys)
        assert (found["added"], found["dead_letters"], found["rejected"]) == (1, number, number)


def test_verify(
    queue: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records produced or given up meanwhile are not damage."""

    def traffic(left: int) -> Callable[[], None]:
        def happens() -> None:
            produce(queue, 20)
            reject_one(queue, left)

        return happens

    afterwards(monkeypatch, traffic(left=22), traffic(left=41))
    assert job("verify", queue.data_dir, tmp_path / "out", capsys)["findings"] == []


def test_verify_without_the_dead_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of their batches has a right CRC and no readable records: records that could not be
    checked do not pass."""
    with writing(tmp_path / "data") as data:
        topic = data.topic("dlq", errors_deadletterqueue_group_enable="true")
        data.append(topic, 0, record_batches.batch([record_batches.record()], payload=b"\xff\xff\xff"))
    found = job("verify", tmp_path / "data", tmp_path / "out", capsys, code=1)
    assert (found["errors"], found["batches"], found["dead_letters"]) == (0, 1, None)


def headers(*values: object) -> tuple[tuple[str, bytes], ...]:
    texts = (value if isinstance(value, bytes) else str(value).encode() for value in values)
    return tuple(zip(HEADER_NAMES, texts, strict=True))


def test_letters_of_strangers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Invalid times, headers that are not text, impossible places: the report is still written."""
    with writing(tmp_path / "data") as data:
        source = data.topic("t")
        data.append(source, 0, build_batch([Record(0, FAR_MS, b"k", b"v")]))
        text = next(iter(MESSAGES.values()))
        letters = [
            ("t", 0, 0, "g", 1, text), ("t", 0, 0, "g", 1, "other words"), ("t", 0, 0, b"\xff", 1, text),
            ("t", -1, -5, "g", 1, text),
            ("t", 0, 2**63 - 1, "g", 1, text),
        ]  # fmt: skip
        topic = data.topic("dlq", errors_deadletterqueue_group_enable="true")
        data.append(
            topic, 0, build_batch([Record(0, FAR_MS, None, None, headers(*each)) for each in letters])
        )
    found = job("dead-letter-report", tmp_path / "data", tmp_path / "out", capsys)
    assert {
        name: found[name] for name in ("dead_letters", "rejected", "exhausted", "originals_still_there")
    } == {
        "dead_letters": 4,
        "rejected": 3,
        "exhausted": 0,
        "originals_still_there": 2,
    }
    assert found["last_seen"] == "1795334400000000 ms"


def test_archive_of_many_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch planned by Spark is on disk before a commit is decided. Old commits are dropped while
    the job runs, perhaps for months. An archived topic cannot be left out later."""
    with writing(tmp_path / "data") as data:
        for name in ("one", "two"):
            topic = data.topic(name)
            data.append(topic, 0, build_batch(records(5)))
    synced: list[str] = []
    decided: list[tuple[int, bool]] = []
    decide, sync = Store.decide, archive.sync

    def deciding(store: Store, name: str, facts: Any) -> Any:
        decided.append((len(store.names()), str(int(name)) in synced))
        return decide(store, name, facts)

    monkeypatch.setattr(archive, "sync", lambda path: (synced.append(path.name), sync(path)))
    monkeypatch.setattr(archive, "KEPT_COMMITS", 2)
    monkeypatch.setattr(Store, "decide", deciding)
    assert (
        job("archive", tmp_path / "data", tmp_path / "out", capsys, "--batch-records", "2")["records"] == 10
    )
    assert len(decided) >= 5
    assert decided == [(min(number, 2), True) for number in range(len(decided))]
    assert run(["archive", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--topics", "two"]) == 2
    assert "leaves out topics that are archived here (one)" in capsys.readouterr().err
