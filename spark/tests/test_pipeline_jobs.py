"""The jobs on the directory of a live broker: their results equal what Kafka's clients see, and
running them again changes nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import AcknowledgeType, Message

from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_pipeline.cli import run
from kbroker_pipeline.sources import parts
from kbroker_pipeline.store import Store
from spark.tests.filling import (
    KEPT,
    PATIENCE_S,
    Record,
    Row,
    consume,
    consume_committed,
    numbered,
    produce,
    rows_of,
)
from spark.tests.share_work import described, work
from spark.tests.transactional import LiveLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS, LETTERS, GROUP = "orders", "dlq.orders", "workers"
RECORDS, LIMIT = 120, 2


def verdict(message: Message) -> AcknowledgeType:
    """Of ten records one is rejected, one is always released until the limit, the others are
    accepted."""
    kinds = {3: AcknowledgeType.REJECT, 7: AcknowledgeType.RELEASE}
    return kinds.get(int(message.value() or b"") % 10, AcknowledgeType.ACCEPT)


@pytest.fixture(scope="module")
def live(spark: SparkSession) -> Iterator[RunningBroker]:
    """A broker whose group has finished every order; a fifth of them have dead letters."""
    with open_test_broker(config=KEPT) as broker:
        broker.create_topic(ORDERS, partitions=2)
        broker.create_topic(LETTERS, config={"errors.deadletterqueue.group.enable": "true"})
        broker.set_group_config(
            GROUP,
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": str(LIMIT),
                "errors.deadletterqueue.topic.name": LETTERS,
                "errors.deadletterqueue.copy.record.enable": "true",
            },
        )
        produce(
            broker.bootstrap,
            ORDERS,
            [Record(b"%d" % n, b"k%d" % (n % 20), n % 2) for n in range(RECORDS)],
            batch_num_messages=10,
        )
        deliveries: Counter[int] = Counter()
        work(broker, ORDERS, lambda message: _counted(message, deliveries), count=RECORDS, group=GROUP)
        while (
            len([number for number, count in deliveries.items() if number % 10 == 7 and count >= LIMIT])
            < RECORDS // 10
        ):
            work(broker, ORDERS, lambda message: _counted(message, deliveries), count=1, group=GROUP)
        deadline_s = time.monotonic() + PATIENCE_S
        # A record is done when its dead letter is written.
        while any(row.lag for row in described(broker, GROUP)):
            assert time.monotonic() < deadline_s
        yield broker


def _counted(message: Message, deliveries: Counter[int]) -> AcknowledgeType:
    deliveries[int(message.value() or b"")] += 1
    return verdict(message)


def job(
    name: str, data_dir: Path, out: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0
) -> dict[str, Any]:
    """Runs a command and returns its JSON; the page must exist."""
    capsys.readouterr()
    assert run([name, str(data_dir), "--out", str(out), "--json", *options]) == code
    printed = capsys.readouterr()
    found: dict[str, Any] = json.loads(printed.out)
    assert "<title>" in Path(found["report"]).read_text()
    assert "Traceback" not in printed.err
    return found


def files(out: Path) -> dict[str, bytes]:
    """The tables' files with their bytes."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.parquet"))}


def archived(out: Path) -> list[Row]:
    import pyarrow.dataset as ds

    class Frame:
        """Stands in for a DataFrame: any reader of Parquet sees the same."""

        @staticmethod
        def toArrow() -> Any:
            return ds.dataset(out / "archive", partitioning="hive").to_table()

    return rows_of(Frame)  # type: ignore[arg-type]


def consumed(broker: RunningBroker) -> list[Row]:
    return sorted(
        consume(broker.bootstrap, ORDERS, partitions=2) + consume(broker.bootstrap, LETTERS),
        key=lambda row: row[:3],
    )


def test_archive(live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In many commits, then again, then with a new topic: always the records that a consumer reads,
    each once."""
    out = tmp_path / "out"
    first = job(
        "archive", live.data_dir, out, capsys, "--batch-records", "50", "--topics", r"orders|dlq\..*|later"
    )
    assert archived(out) == consumed(live)
    assert first["added"] == first["records"] == len(consumed(live))
    before = files(out)
    again = job("archive", live.data_dir, out, capsys, "--topics", r"orders|dlq\..*|later")
    assert again["added"] == 0
    assert files(out) == before
    live.create_topic("later", partitions=1)
    produce(live.bootstrap, "later", numbered(30))
    third = job("archive", live.data_dir, out, capsys, "--topics", r"orders|dlq\..*|later")
    assert third["added"] == 30
    assert archived(out) == sorted(consumed(live) + consume(live.bootstrap, "later"), key=lambda row: row[:3])
    assert before.items() <= files(out).items()


def test_archive_of_committed_records(
    live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records behind an open transaction come with the next run; without the option all come."""
    live.create_topic("payments")
    log = LiveLog(live.bootstrap, "payments")
    log.send(2)
    log.send(3, 1)
    log.abort(1)
    log.send(2, 2)
    log.send(1)
    out, only = tmp_path / "out", ("--topics", "payments")
    job("archive", live.data_dir, out, capsys, "--committed", *only)
    assert [row.offset for row in archived(out)] == log.committed == [0, 1]
    log.commit(2)
    job("archive", live.data_dir, out, capsys, "--committed", *only)
    assert archived(out) == consume_committed(live.bootstrap, "payments")
    assert [row.offset for row in archived(out)] == log.committed == [0, 1, 6, 7, 8]
    job("archive", live.data_dir, tmp_path / "every", capsys, *only)
    assert [row.offset for row in archived(tmp_path / "every")] == [*range(5), 6, 7, 8]


def test_archive_after_a_crash(
    live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends right after a commit that Spark has not recorded: the batch is repeated but
    not written again."""
    out, decide = tmp_path / "out", Store.decide

    def fatal(store: Store, name: str, facts: Any) -> Any:
        decide(store, name, facts)
        if name.endswith("1"):
            raise RuntimeError("killed")

    monkeypatch.setattr(Store, "decide", fatal)
    with pytest.raises(Exception, match="killed"):
        run(
            [
                "archive",
                str(live.data_dir),
                "--out",
                str(out),
                "--batch-records",
                "50",
                "--topics",
                r"orders|dlq\..*",
            ]
        )
    monkeypatch.undo()
    job("archive", live.data_dir, out, capsys, "--topics", r"orders|dlq\..*")
    assert archived(out) == consumed(live)


def test_archive_needs_its_checkpoint(
    live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    job("archive", live.data_dir, out, capsys, "--topics", "orders")
    shutil.rmtree(out / "_checkpoints")
    assert run(["archive", str(live.data_dir), "--out", str(out)]) == 1
    assert "is not the checkpoint" in capsys.readouterr().err


def test_queue_health(live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    first = job("queue-health", live.data_dir, out, capsys, "--as-of", "2026-03-01T08:00:00")
    shares = [row for row in first["share_partitions"] if row["group"] == GROUP]
    assert [(row["partition"], row["backlog"], row["log_end"]) for row in shares] == [
        (0, 0, RECORDS // 2),
        (1, 0, RECORDS // 2),
    ]
    sums = {name: sum(row[name] for row in shares) for name in ("acknowledged", "archived", "dead_lettered")}
    assert sums == {"acknowledged": RECORDS * 4 // 5, "archived": RECORDS // 5, "dead_lettered": RECORDS // 5}
    assert {row["delivery_count"] for row in first["worst_records"]} == {LIMIT}
    assert {int(row["value"]) % 10 for row in first["worst_records"]} == {7}
    before = files(out)
    again = job("queue-health", live.data_dir, out, capsys, "--as-of", "2026-03-01T09:00:00")
    assert (again["changed"], again["snapshots"], again["stuck"]) == (False, 1, 0)
    assert files(out) == before


@pytest.mark.full
def test_a_stuck_head(live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One record is acquired, and then no member fetches: the second run says since when."""
    out, name = tmp_path / "out", "stuck"
    live.create_topic(name)
    live.set_group_config(name, {"share.auto.offset.reset": "earliest"})
    produce(live.bootstrap, name, [Record(b"%d" % number) for number in range(8)], batch_num_messages=2)
    work(live, name, lambda message: AcknowledgeType.ACCEPT, count=1, at_once=1)
    job("queue-health", live.data_dir, out, capsys, "--as-of", "2026-03-01T08:00:00")
    produce(live.bootstrap, name, numbered(5))
    found = job("queue-health", live.data_dir, out, capsys, "--as-of", "2026-03-01T08:30:00")
    stuck = [row for row in found["stuck_heads"] if row["group"] == name]
    (lag,) = [row.lag for row in described(live, name)]
    assert [(row["partition"], row["stuck_for_s"], row["backlog"]) for row in stuck] == [(0, 1800.0, lag)]


def test_dead_letter_report(live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    found = job("dead-letter-report", live.data_dir, out, capsys)
    count = RECORDS // 5
    assert {
        name: found[name]
        for name in ("dead_letters", "added", "rejected", "exhausted", "originals_still_there")
    } == {
        "dead_letters": count,
        "added": count,
        "rejected": count // 2,
        "exhausted": count // 2,
        "originals_still_there": count,
    }
    rows = [
        row
        for path in (out / "dead_letters").rglob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert len(rows) == count
    originals = {
        (row.partition, row.offset): (row.key, row.value)
        for row in consume(live.bootstrap, ORDERS, partitions=2)
    }
    for row in rows:
        expected = originals[row["source_partition"], row["source_offset"]]
        assert (row["key"], row["value"]) == (row["original_key"], row["original_value"]) == expected
        assert row["cause"] == {3: "rejected", 7: "exhausted"}[int(expected[1] or b"") % 10]
    before = files(out)
    again = job("dead-letter-report", live.data_dir, out, capsys)
    assert (again["added"], again["dead_letters"]) == (0, count)
    assert files(out) == before


def test_verify(live: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is valid beside the live broker; in a copy one byte of a record is changed."""
    out = tmp_path / "out"
    found = job("verify", live.data_dir, out, capsys)
    assert (found["errors"], found["findings"], found["dead_letters"]) == (0, [], RECORDS // 5)
    copy = tmp_path / "copy"
    shutil.copytree(live.data_dir, copy, ignore=shutil.ignore_patterns(".lock"))
    orders = next(part.topic.topic_id for part in parts(live.data_dir, [ORDERS]))
    segment = next(
        path
        for path in sorted(copy.glob(f"log-segment/{orders}-1/**/*"))
        if path.is_file() and b"k3" in path.read_bytes()
    )
    content = bytearray(segment.read_bytes())
    at = content.index(b"k3")
    content[at] ^= 1
    segment.write_bytes(content)
    damaged = job("verify", copy, tmp_path / "other", capsys, code=1)
    assert damaged["errors"] > 0, (
        "a log that was not closed ends where it is damaged, and the group is beyond that"
    )
    assert "state beyond the log" in {
        row["check"] for row in damaged["findings"] if row["topic"] == ORDERS and row["partition"] == 1
    }
    before = files(tmp_path / "other")
    job("verify", copy, tmp_path / "other", capsys, code=1)
    assert files(tmp_path / "other") == before
