"""Parts of the pipeline that need no Spark: single records, the totals of an archive, cursors, the
terminal, the demo's orders."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import AcknowledgeType
from rich.console import Console

from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_pipeline import demo_work, sources, terminal
from kbroker_pipeline.archive import Span, Totals, _wait, check_checkpoint, check_topics, spans_of, waiting
from kbroker_pipeline.archive_page import part_rows
from kbroker_pipeline.exits import CommandFailed, Exit
from kbroker_pipeline.health_rows import with_counts
from kbroker_pipeline.letters_job import add_originals
from kbroker_pipeline.lookup import Found, Place, first_from, look_up
from kbroker_pipeline.sources import Part, Piece
from kbroker_pipeline.store import Commit, Store, opened
from kbroker_spark.data import TopicInfo
from spark.tests.filling import KEPT, consume, numbered, produce
from spark.tests.stored_topics import stored_topics


@pytest.mark.parametrize(
    ("row", "last", "archived"),
    [
        ((5, 7, 100), None, 7),  # (archived by the table given_up, count of the state, finished)
        ((9, 0, 100), None, 9),  # A state of an earlier version.
        ((9, 7, 8), None, 8),
        ((50, 7, 100), (50, 4, 1), 53),  # 46 were given up before the state counted.
        ((50, 7, 100), (50, None, 1), 50),  # A snapshot of an earlier version.
        ((3, 7, 100), (50, 4, 2), 7),  # The offsets were reset.
        ((3, 7, 100), (50, 8, 1), 7),  # A state that was deleted and recreated.
    ],
)
def test_what_the_state_counts_as_given_up(
    row: tuple[int, int, int], last: tuple[int, int | None, int] | None, archived: int
) -> None:
    key = {"group": "g", "topic_id": "id", "partition": 0}
    share = dict(zip(("archived", "given_up", "finished"), row, strict=True)) | key | {"state_epoch": 1}
    before = [] if last is None else [
        dict(zip(("archived", "given_up", "state_epoch"), last, strict=True)) | key
    ]  # fmt: skip
    (found,) = with_counts([share], before)
    assert (found["archived"], found["acknowledged"]) == (archived, row[2] - archived)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(config=KEPT) as running:
        running.create_topic("orders", partitions=2)
        produce(
            running.bootstrap, "orders", numbered(3000, partitions=2), batch_num_messages=50, codec="zstd"
        )
        yield running


def test_single_records(broker: RunningBroker) -> None:
    """Alone and as neighbors; a record that never existed is not found, and does not affect the
    others."""
    (topic_id,) = {str(part.topic.topic_id) for part in sources.parts(broker.data_dir, ["orders"])}
    rows = {(row.partition, row.offset): row for row in consume(broker.bootstrap, "orders", partitions=2)}
    known = [(0, 0), (0, 1), (0, 2), (0, 700), (1, 3), (1, 1499)]
    missing = [
        Place(topic_id, 0, 1500),
        Place(topic_id, 1, 999_999),
        Place(topic_id, 7, 0),
        Place(str(uuid4()), 0, 0),
    ]
    found = look_up(
        broker.data_dir, [*(Place(topic_id, *each) for each in known), *missing, Place(topic_id, 0, 0)]
    )
    expected = {
        Place(topic_id, *each): Found(rows[each].timestamp_ms, rows[each].key, rows[each].value)
        for each in known
    }
    assert found == expected
    assert look_up(broker.data_dir, []) == {}


def test_the_first_record_behind_a_hole(tmp_path: Path) -> None:
    """A start offset may be in a hole, or at a control record; and the log may begin after it."""
    with stored_topics(tmp_path, {"t": 1, "cut": 1, "empty": 1}) as stored:
        stored.append("t", 3)
        stored.append("t", 2, behind_hole_of=4)
        stored.append("cut", 3)
        stored.append("cut", 3)
        stored.trim("cut", 3)
    ids = {part.topic.name: str(part.topic.topic_id) for part in sources.parts(tmp_path)}
    places = [Place(ids["t"], 0, offset) for offset in (0, 2, 3, 6, 8, 9, 500)]
    nowhere = [Place(ids["empty"], 0, 0), Place(ids["t"], 7, 0), Place(str(uuid4()), 0, 0)]
    found = first_from(tmp_path, [*places, *nowhere, Place(ids["cut"], 0, 1)])
    assert found.pop(Place(ids["cut"], 0, 1))[0] == 3
    assert {place.offset: offset for place, (offset, _) in found.items()} == {0: 0, 2: 2, 3: 7, 6: 7, 8: 8}
    assert found[places[2]][1].value == b"7"


def test_originals_of_dead_letters(broker: RunningBroker) -> None:
    """As a Spark worker does it: for deleted topics and offsets that are gone there is no
    original."""
    (topic_id,) = {str(part.topic.topic_id) for part in sources.parts(broker.data_dir, ["orders"])}
    row = consume(broker.bootstrap, "orders", partitions=2)[8]
    letters = pa.RecordBatch.from_pydict(
        {
            "source_topic_id": pa.array([topic_id, None, topic_id]),
            "source_partition": pa.array([row.partition, 0, 1], pa.int32()),
            "source_offset": pa.array([row.offset, 0, 99_999]),
        }
    )
    (found,) = add_originals(str(broker.data_dir), [letters])
    assert found.select(letters.schema.names) == letters
    told = [tuple(each.values())[3:] for each in found.to_pylist()]
    moment = datetime.fromtimestamp(row.timestamp_ms / 1000, UTC)
    assert told == [(True, moment, row.key, row.value), (False, None, None, None), (False, None, None, None)]
    columns = [f"{field.name} {field.type}" for field in found.schema][3:]
    assert columns == [
        "original bool",
        "original_timestamp timestamp[us, tz=UTC]",
        "original_key binary",
        "original_value binary",
    ]


def test_what_is_there(broker: RunningBroker) -> None:
    assert [(part.name, part.start, part.end) for part in sources.parts(broker.data_dir)] == [
        ("orders-0", 0, 1500),
        ("orders-1", 0, 1500),
    ]
    assert sources.look(broker.data_dir).engines == "log segment, state segment"


def test_offsets_that_are_gone(broker: RunningBroker, tmp_path: Path) -> None:
    """Nothing is missing beside the live broker; in a copy of a stopped one's directory the
    beginning of a segment is overwritten."""
    assert sources.missing(broker.data_dir) == []
    with open_test_broker(data_dir=tmp_path / "data", config=KEPT) as other:
        other.create_topic("cut")
        produce(other.bootstrap, "cut", numbered(100), batch_num_messages=10)
        other.stop()
        segment = next(
            path
            for path in sorted(other.data_dir.glob("log-segment/**/*"))
            if path.is_file() and b"....." in path.read_bytes()
        )
        segment.write_bytes(bytes(segment.stat().st_size))
        ((topic, partition, first, end),) = sources.missing(other.data_dir)
    assert (topic.name, partition, first, end) == ("cut", 0, 0, 100)


def part(topic: str, partition: int, start: int, end: int) -> Part:
    return Part(TopicInfo(topic, TOPIC_ID, 3, 0, {}), partition, start, end)


TOPIC_ID = uuid4()


def test_cursors() -> None:
    """New, partly read, read, passed by the log's start, and a log that ends before the cursor."""
    parts = [
        part("t", 0, 5, 9),
        part("t", 1, 0, 9),
        part("t", 2, 0, 9),
        part("t", 3, 7, 9),
        part("t", 4, 0, 9),
    ]
    cursor = {parts[1].key: 4, parts[2].key: 9, parts[3].key: 2, parts[4].key: 50}
    assert sources.pieces(parts, cursor) == [
        Piece(parts[0], 5, 9),
        Piece(parts[1], 4, 9),
        Piece(parts[3], 7, 9),
    ]
    assert sources.pieces(parts, sources.advanced(parts)) == []


def test_totals_of_an_archive(tmp_path: Path) -> None:
    totals = Totals()
    span = totals.spans.setdefault("orders", {}).setdefault("0", Span())
    span.add(10, 5, 20)
    span.add(3, 21, 23)
    again = Totals.of(Commit("0", {}, json.loads(json.dumps({"totals": {
        "spans": {"orders": {"0": {"rows": 13, "first": 5, "last": 23}}}, "days": {}, "size_bytes": 0,
        "files": 0,
    }}))))  # fmt: skip
    assert again == totals
    assert Totals.of(None).rows == 0
    logs = [part("orders", 0, 8, 30), part("orders", 1, 0, 4), part("__internal", 0, 0, 9)]
    assert waiting(totals, logs, "orders") == (30 - 24) + 4
    (row,) = part_rows(totals, logs)
    assert (row.records, row.behind, row.only_here) == (13, 6, 3)
    (gone,) = part_rows(totals, ())
    assert (gone.behind, gone.only_here) == (None, 19)
    pq.write_table(pa.table({"partition": [0, 1, 0], "offset": [7, 1, 9]}), tmp_path / "rows.parquet")
    assert sorted(spans_of(tmp_path / "rows.parquet")) == [(0, 2, 7, 9), (1, 1, 1, 1)]


def archive_of(root: Path, *topics: str, batch: int = 0, planned: int | None = None) -> Store:
    """One with a record of each topic; Spark's checkpoint beside it has planned batches up to
    `planned`, by default the last one."""
    with opened(root, "archive", "cluster") as store:
        checkpoint = store.checkpoint
        (checkpoint / "offsets").mkdir(parents=True)
        (checkpoint / "metadata").write_text('{"id":"query"}')
        for number in range((batch if planned is None else planned) + 1):
            (checkpoint / "offsets" / str(number)).write_text("v1")
        spans = {topic: {"0": {"rows": 1, "first": 0, "last": 0}} for topic in topics}
        name = f"{batch:09}"
        store.stage(name)
        store.decide(
            name, {"query": "query", "totals": {"spans": spans, "days": {}, "size_bytes": 0, "files": 0}}
        )
        return store


def test_a_checkpoint_that_is_older_than_the_archive_is_refused(tmp_path: Path) -> None:
    """A restored one, or one after a power cut: its next batch would have the number of an existing
    one, and be skipped."""
    check_checkpoint(archive_of(tmp_path / "fine", "orders", batch=3))
    check_checkpoint(archive_of(tmp_path / "ahead", "orders", batch=3, planned=4))
    with pytest.raises(
        CommandFailed, match="is older than the archive beside it, whose last commit is 000000003"
    ):
        check_checkpoint(archive_of(tmp_path / "older", "orders", batch=3, planned=2))


def test_topics_in_the_archive_must_be_chosen_again(tmp_path: Path) -> None:
    """If left out, they would be archived a second time when they are chosen again. Deleted topics
    have nothing left to archive."""
    store = archive_of(tmp_path, "orders", "returns", "deleted")
    check_topics(store, ["orders", "returns", "new"], "orders|returns|new")
    with pytest.raises(
        CommandFailed, match=r"leaves out topics that are archived here \(returns\)"
    ) as refused:
        check_topics(store, ["orders", "returns"], "orders|new")
    assert refused.value.exit_code == Exit.USAGE


class Query:
    """The parts of a streaming query that are used. Ctrl-C arrives during a call."""

    def __init__(self) -> None:
        self.isActive = True
        self.answers = 0

    def awaitTermination(self, _: float) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        self.answers += 1
        return False

    def stop(self) -> None:
        self.isActive = False


def test_an_interrupt_waits_for_an_answer() -> None:
    """And Spark's messages about the interrupted tasks are not logged."""
    query, handler, levels = Query(), signal.getsignal(signal.SIGINT), []
    spark = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=levels.append))
    with pytest.raises(KeyboardInterrupt):
        _wait(spark, query)  # type: ignore[arg-type]
    assert (query.answers, query.isActive, levels) == (1, False, ["OFF"])
    assert signal.getsignal(signal.SIGINT) is handler


def test_results_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        "worst": [
            {"value": "[red]\x1b[31m", "count": 12_000, "nothing": None, "last_seen_ms": 1_795_340_410_446}
        ],
        "none": [],
    }
    terminal.print_result(
        "Title", {"records": 1234, "changed": True}, rows, tmp_path / "page.html", as_json=False
    )
    text = capsys.readouterr().out
    assert (tmp_path / "page.html").as_uri() in text
    for expected in (
        "Title",
        "records: 1,234",
        "changed: yes",
        "[red]\\x1b[31m",
        "12,000",
        "-",
        "last seen",
        "2026-11-22 09:40:10Z",
    ):
        assert expected in text
    terminal.print_result("Title", {"records": 1234}, rows, tmp_path / "page.html", as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"records": 1234, **rows, "report": str(tmp_path / "page.html")}


def test_progress_without_a_terminal() -> None:
    """A line for each step; record counts are printed at intervals only."""
    told = io.StringIO()
    with terminal.Progress(Console(file=told)) as progress:
        progress.tell("archiving", 500)
        for _ in range(10):
            progress.add(50)
        progress.tell("writing [the] page")
    assert told.getvalue().splitlines() == [
        "kbroker-pipeline: archiving",
        "kbroker-pipeline: writing [the] page",
    ]


def test_a_broker_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, as by a kernel without memory: it has no exit code of kbroker."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with (
        pytest.raises(CommandFailed, match="the broker did not start: see "),
        demo_work.broker(tmp_path / "data", "segment"),
    ):
        pytest.fail("it runs")


class Delivery:
    """The parts of a message that the demo's consumers use."""

    def __init__(self, value: bytes, count: int, offset: int = 1) -> None:
        self._value, self._count, self._offset = value, count, offset

    def value(self) -> bytes:
        return self._value

    def delivery_count(self) -> int:
        return self._count

    def offset(self) -> int:
        return self._offset


def test_orders_of_the_demo() -> None:
    """The same in every run, in whatever pieces they are made, and each kind is among them."""
    orders = list(demo_work.orders(0, 4000))
    assert orders == [*demo_work.orders(0, 100), *demo_work.orders(100, 3900)]
    first = [demo_work.worker(Delivery(value, 1)) for _, value in orders]  # type: ignore[arg-type]
    later = [demo_work.worker(Delivery(value, 4)) for _, value in orders]  # type: ignore[arg-type]
    kinds = Counter(zip(first, later, strict=True))
    assert set(kinds) == {
        (AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT),
        (AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT),
        (AcknowledgeType.RELEASE, AcknowledgeType.RELEASE),
        (AcknowledgeType.REJECT, AcknowledgeType.REJECT),
    }
    hopeless = Counter(
        key for (key, _), verdict in zip(orders, later, strict=True) if verdict is AcknowledgeType.RELEASE
    )
    assert len(hopeless) <= 3
    assert demo_work.mailer(Delivery(b"", 1, 25)) is AcknowledgeType.RELEASE  # type: ignore[arg-type]
    assert demo_work.mailer(Delivery(b"", 3, 25)) is AcknowledgeType.ACCEPT  # type: ignore[arg-type]
