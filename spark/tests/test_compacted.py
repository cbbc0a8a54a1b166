"""Compacted logs, without Spark and without a broker: batches with fewer records than offsets or
without any, delete horizons, transactions of which nothing is left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.formats.batches import Record, iter_headers, read_header
from kbroker.formats.compacted_batches import emptied, read_stored, rebuilt
from kbroker.formats.compression import Codec
from kbroker.formats.transactions import MarkerType
from kbroker_spark.committed import CommittedLogs
from kbroker_spark.data import reading
from kbroker_spark.offsets import TopicPartition
from kbroker_spark.options import Subscribe
from kbroker_spark.transactions import Committed, LogTransactions
from spark.tests.compacted import CompactedLog
from spark.tests.record_batches import batch, decoded, expected_rows, record, rows
from spark.tests.stored import batch as stored_batch
from spark.tests.stored import writing
from spark.tests.stream_steps import Checkpoint, Run
from spark.tests.test_batch_scan import rows as table_rows
from spark.tests.test_transactions import ends, offsets, reader
from spark.tests.transactional import COMMITTED, time_of
from tests.brokers import DURABLE_ENGINES, require_engine

UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
HORIZON_MS = 1_900_000_000_000
HEADER_BYTES = 61


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CompactedLog]:
    with writing(tmp_path / "data") as data:
        yield CompactedLog(data)


# --- decoding ---


def cleaned(data: bytes, *offset_deltas: int, horizon_ms: int | None = None) -> bytes:
    """The batch after compaction; `data` is not compressed."""
    header = read_header(data)
    records = read_stored(data[HEADER_BYTES:], header)
    staying = [at for at, delta in enumerate(records.offset_deltas) if delta in offset_deltas]
    return rebuilt(header, records, staying, horizon_ms=horizon_ms) if staying else emptied(header)


def some(base_offset: int, **options: Any) -> bytes:
    """Five records, the times of which rise by a second."""
    content = [
        record(delta, b"k%d" % delta, None if delta == 2 else b"v", time_delta=1000 * delta)
        for delta in range(5)
    ]
    return batch(content, base_offset, **options)


SPARSE = [
    cleaned(some(0), 1, 3),
    cleaned(some(5)),
    cleaned(some(10), 0),
    cleaned(some(20), 2, 4, horizon_ms=HORIZON_MS),
    cleaned(some(25, attributes=8), 0, 2, horizon_ms=HORIZON_MS),
    cleaned(some(30)),
    some(35),
    cleaned(some(40), 4),
    cleaned(some(45)),
]


@pytest.mark.parametrize("decoder", ["numpy", "c"])
@pytest.mark.parametrize("size", [1, 4, 9])
def test_each_record_that_stayed_is_a_row(decoder: Any, size: int) -> None:
    """A horizon is no time of a record. Ranges may begin and end in holes."""
    chunks = [b"".join(SPARSE[at : at + size]) for at in range(0, len(SPARSE), size)]
    every = expected_rows(SPARSE)
    assert [row.offset for row in every] == [1, 3, 10, 22, 24, 25, 27, 35, 36, 37, 38, 39, 44]
    assert all(row.timestamp_us is not None and row.timestamp_us < HORIZON_MS * 1000 for row in every)
    for first in range(52):
        for end in (first + 1, first + 7, 60):
            found = rows(decoded(chunks, decoder, first=first, end=end))
            assert found == [row for row in every if first <= row.offset < end]


@pytest.mark.parametrize("decoder", ["numpy", "c"])
@pytest.mark.parametrize("codec", Codec)
def test_sparse_batches_of_every_codec(decoder: Any, codec: Codec) -> None:
    """Many side by side, among them empty ones, which have no codec."""
    randomly = random.Random(codec)
    batches = []
    for number in range(200):
        content = [Record(0, time_of(number), b"k%d" % each, b"v" * each) for each in range(6)]
        plain = stored_batch(content, 10 * number)
        staying = {each for each in range(6) if randomly.random() < 0.3}
        header = read_header(plain)
        records = read_stored(plain[HEADER_BYTES:], header)
        kept = sorted(staying)
        packed = header._replace(attributes=header.attributes | codec)
        horizon_ms = randomly.choice((None, HORIZON_MS))
        batches.append(rebuilt(packed, records, kept, horizon_ms=horizon_ms) if kept else emptied(packed))
    found = rows(decoded([b"".join(batches)], decoder))
    assert found == expected_rows(batches)
    assert 100 < len(found) < 600


# --- the table of batches ---


def test_a_delete_horizon_is_no_first_timestamp(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic = data.topic("t")
        data.append(topic, 0, *SPARSE)
        found = {row["base_offset"]: row for row in table_rows(tmp_path)}
    times = {offset: (row["first_timestamp"], row["delete_horizon"]) for offset, row in found.items()}
    begin = 1_700_000_000_000_000
    assert times[0] == times[10] == (begin, None)
    assert times[20] == times[25] == (None, HORIZON_MS * 1000)
    assert times[30] == (None, None)
    assert found[20]["max_timestamp"] == begin + 4_000_000
    assert [found[offset]["record_count"] for offset in (0, 5, 20)] == [2, 0, 2]
    assert {row["problem"] for row in found.values()} == {None}
    places = [(each.base_offset, each.last_offset) for data in SPARSE for _, each in iter_headers(data)]
    assert [(row["base_offset"], row["last_offset"]) for row in found.values()] == places


# --- transactions ---


def planned(log: CompactedLog, logs: CommittedLogs | None = None) -> Committed:
    with reading(log.path) as directory:
        found = (logs or CommittedLogs()).look(directory, Subscribe(("t",)))[TopicPartition("t", 0)]
    assert found.committed is not None
    return found.committed


def test_an_emptied_batch_begins_no_transaction(log: CompactedLog) -> None:
    """The last batch of producer 7 stays as a header. Without the marker it is no beginning."""
    log.send(2, 7)
    log.abort(7)
    log.send(3)
    log.send(3)
    log.clean()
    assert (0, 1, 0) in log.layout()
    layout = log.layout()
    log.remove(2)
    assert log.layout() == [each for each in layout if each[0] != 2]
    assert planned(log) == Committed(log.end, [])
    assert offsets(log) == log.committed


def test_an_emptied_marker_ends_its_transaction(log: CompactedLog) -> None:
    """The header of a marker stays as the last of a producer's epoch."""
    log.send(2, 7)
    log.save()
    log.finish(7, MarkerType.ABORT, new_epoch=True)
    log.send(5)
    log.send(5)
    log.send(1)
    for _ in range(3):
        log.clean(save=False)
    assert (2, 2, 0) in log.layout()
    assert planned(log) == Committed(log.end, [])
    assert offsets(log) == log.committed


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_compacted_logs_of_every_engine(tmp_path: Path, engine: str, level: str) -> None:
    with writing(tmp_path / "data", require_engine(engine)) as data:
        log = CompactedLog(data)
        filled(log)
        for _ in range(3):
            log.clean()
            log.send(2)
        expected = log.committed if level == "read_committed" else log.left
        check_ranges(log, level, expected)
        assert len(expected) < 20
    assert offsets(log, **{"kafka.isolation.level": level}) == expected


def filled(log: CompactedLog) -> None:
    for number in range(6):
        log.send(4, codec=Codec.ZSTD if number % 2 else Codec.NONE)
        log.send(3, 7)
        log.send(1, 8)
        log.finish(7, MarkerType(number % 2))
        log.send(2)
        log.finish(8, MarkerType(number // 2 % 2))


def check_ranges(log: CompactedLog, level: str, expected: list[int]) -> None:
    options = {"kafka.isolation.level": level}
    assert offsets(log, **options) == expected
    assert offsets(log, minPartitions=9, **options) == expected
    assert offsets(log, maxRecordsPerPartition=1, **options) == expected
    for first in range(0, log.end, 7):
        edges = {
            "startingOffsets": f'{{"t":{{"0":{first}}}}}',
            "endingOffsets": f'{{"t":{{"0":{(end := min(first + 4, log.end))}}}}}',
        }
        wanted = [each for each in expected if first <= each < end]
        assert offsets(log, **edges, **options) == wanted
    for offset in (0, log.end // 2, log.end - 1):
        found = next((each for each in expected if each >= offset), None)
        wanted = [each for each in expected if found is not None and each >= found]
        assert offsets(log, startingTimestamp=time_of(offset), **options) == wanted


def test_nothing_is_missing_in_the_proofs_of_the_files(log: CompactedLog) -> None:
    """Whole segments are empty, and the log may even begin with them."""
    filled(log)
    log.clean()
    log.clean()
    assert log.layout()[0][0] > 0
    with reading(log.path) as directory:
        found = CommittedLogs().look(directory, Subscribe(("t",)), with_damage=True)
    assert found[TopicPartition("t", 0)].damage == ()
    assert ends(log) == [log.end]
    assert reader(log, endingOffsets=f'{{"t":{{"0":{log.end}}}}}').partitions()


# --- streams ---


def run(checkpoint: Checkpoint, log: CompactedLog, **options: Any) -> Run:
    return Run(
        checkpoint, log.path, **{"subscribe": "t", "startingOffsets": "earliest", **COMMITTED, **options}
    )


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_stream_over_holes(log: CompactedLog, limit: int) -> None:
    """Batches begin and end in holes, and some have no rows."""
    filled(log)
    log.clean()
    for options in (COMMITTED, UNCOMMITTED):
        checkpoint = Checkpoint()
        run(checkpoint, log, maxOffsetsPerTrigger=limit, **options).batch(crash=True)
        run(checkpoint, log, maxOffsetsPerTrigger=limit, **options).all_batches()
        assert checkpoint.seen("t") == (log.committed if options is COMMITTED else log.left)
        assert checkpoint.end["t"]["0"] == log.end


def test_a_stream_does_not_wait_for_a_marker_that_has_gone(log: CompactedLog) -> None:
    """It knows the transaction as open, and the marker comes and goes between two of its looks."""
    log.send(2)
    log.send(2, 7)
    checkpoint = Checkpoint()
    query = run(checkpoint, log)
    query.all_batches()
    assert checkpoint.end["t"]["0"] == 2
    log.abort(7)
    log.expire_producers()
    for _ in range(4):
        log.send(3)
        log.clean()
    assert not {2, 3, 4} & {each for base, last, _ in log.layout() for each in range(base, last + 1)}
    query.all_batches()
    assert checkpoint.end["t"]["0"] == log.end


def test_a_look_reads_the_state_only_for_open_transactions(
    log: CompactedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[int] = []
    read = LogTransactions.read

    def noted(self: LogTransactions, *args: Any) -> None:
        begins.append(self.offset)
        read(self, *args)

    monkeypatch.setattr(LogTransactions, "read", noted)
    logs = CommittedLogs()
    log.send(2, 7)
    log.save()
    planned(log, logs)
    log.send(2)
    planned(log, logs)
    assert begins == [2, 2], "the snapshot does not contradict"
    log.commit(7)
    log.save()
    log.send(1)
    assert planned(log, logs).end == log.end
    assert begins == [2, 2, 5], "the snapshot knows the end"


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 12))]
)
def test_at_random(log: CompactedLog, seed: int) -> None:
    """Compaction between the batches of a stream; batch queries at any time."""
    randomly = random.Random(seed)
    in_transaction: set[int] = set()
    seen: set[int] = set()
    checkpoint, now_ms = Checkpoint(), 0
    query = run(checkpoint, log)
    for _ in range(60):
        producer = randomly.choice((None, 1, 2, 3))
        if producer in in_transaction and randomly.random() < 0.5:
            kind = randomly.choice(tuple(MarkerType))
            log.finish(producer, kind, new_epoch=randomly.random() < 0.3)
            in_transaction.discard(producer)
        else:
            log.send(randomly.randrange(1, 5), producer, codec=randomly.choice((Codec.NONE, Codec.LZ4)))
            in_transaction |= set() if producer is None else {producer}
        if randomly.random() < 0.2:
            now_ms += randomly.choice((0, 1000))
            log.clean(now_ms=now_ms, delete_retention_ms=randomly.choice((0, 1000)))
        if randomly.random() < 0.1:
            log.save()
        if randomly.random() < 0.3:
            before = checkpoint.end["t"]["0"] if checkpoint.offsets else 0
            expected = log.committed
            query.batch()
            until = checkpoint.end["t"]["0"]
            assert until == log.stable_end
            new = {each for each in expected if before <= each < until}
            assert {*checkpoint.seen("t")} == seen | new
            seen |= new
        if randomly.random() < 0.3:
            assert planned(log).end == log.stable_end
            assert offsets(log, decoder=randomly.choice(("numpy", "c"))) == log.committed
            assert offsets(log, maxRecordsPerPartition=3) == log.committed
            assert offsets(log, **UNCOMMITTED) == log.left
    assert any(not count for _, _, count in log.layout()) or seed, "no batch was emptied"
