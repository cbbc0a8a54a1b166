"""kafka.isolation.level=read_committed: batch queries and their plans, without Spark and without a
broker."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from kbroker.formats.batches import TRANSACTIONAL
from kbroker.formats.compression import Codec
from kbroker.formats.transactions import MarkerType, TransactionalLogKey, marker_value
from kbroker_spark import batch_reader, transactions
from kbroker_spark import committed as committed_module
from kbroker_spark.aborted_batches import AbortedBatches
from kbroker_spark.batch_groups import _HEADER
from kbroker_spark.batch_reader import BatchReader, RangePartition
from kbroker_spark.committed import CommittedLogs
from kbroker_spark.data import DataDir, reading
from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.offsets import Aborted, TopicPartition
from kbroker_spark.options import Subscribe
from kbroker_spark.transactions import Committed, LogTransactions
from spark.tests.stored import writing
from spark.tests.transactional import COMMITTED, StoredLog, committed, time_of
from tests.brokers import DURABLE_ENGINES

OFFSETS = StructType([StructField("offset", LongType())])
T0 = TopicPartition("t", 0)
MARKER_END = marker_value(1) + bytes(1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StoredLog]:
    with writing(tmp_path / "data") as data:
        yield StoredLog(data)


def reader(log: StoredLog, **options: Any) -> BatchReader:
    texts = {name: str(value) for name, value in options.items()}
    return BatchReader({"path": str(log.path), "subscribe": "t", **COMMITTED, **texts}, OFFSETS)


def offsets(log: StoredLog, **options: Any) -> list[int]:
    """Through pickling, as Spark sends partitions to workers."""
    found = reader(log, **options)
    partitions = pickle.loads(pickle.dumps(list(found.partitions())))
    return [
        offset
        for partition in partitions
        for each in found.read(partition)
        for offset in each.column("offset").to_pylist()
    ]


def ends(log: StoredLog, **options: Any) -> list[int]:
    return [
        each.range.end for each in reader(log, **options).partitions() if isinstance(each, RangePartition)
    ]


def filled(log: StoredLog) -> None:
    """Two producers that interleave, plain records among them, one commits and aborts."""
    log.send(3)
    log.send(2, 7)
    log.send(2, 8, codec=Codec.LZ4)
    log.send(1)
    log.send(2, 7)
    log.abort(7)
    log.send(2, 8)
    log.send(3, 7, codec=Codec.LZ4)
    log.commit(8)
    log.send(2, 8)
    log.commit(7)
    log.abort(8)
    log.send(1)


# --- what is read ---


@pytest.mark.parametrize("decoder", ["numpy", "c"])
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_aborted_and_open_transactions_are_left_out(tmp_path: Path, engine: str, decoder: str) -> None:
    with writing(tmp_path / "data", engine) as data:
        log = StoredLog(data)
        filled(log)
        assert log.committed == [0, 1, 2, 5, 6, 7, 11, 12, 13, 14, 15, 21]
        assert offsets(log, decoder=decoder) == log.committed
        assert offsets(log, decoder=decoder, minPartitions=9) == log.committed
        log.send(1, 9)
        log.send(5)
        log.send(2, 7)
        log.commit(7)
        assert log.stable_end == 22
        assert offsets(log, decoder=decoder) == log.committed == [*log.committed[:-1], 21]
        log.commit(9)
        assert offsets(log, decoder=decoder) == log.committed
        assert log.committed[-8:] == [22, 23, 24, 25, 26, 27, 28, 29]
    assert offsets(log, decoder=decoder) == log.committed


def test_without_the_option_every_record_is_read_and_nothing_more_is_done(
    log: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log)
    log.send(2, 9)
    monkeypatch.delattr(batch_reader, "CommittedLogs")
    monkeypatch.delattr(batch_reader, "AbortedBatches")
    every = [
        offset for each in log.events if each.ends is None for offset in range(each.offset, each[0] + each[1])
    ]
    assert offsets(log, **{"kafka.isolation.level": "read_uncommitted"}) == every
    found = BatchReader({"path": str(log.path), "subscribe": "t"}, OFFSETS).partitions()
    assert [each.range.aborted for each in found if isinstance(each, RangePartition)] == [()]


def test_a_range_ends_inside_of_an_aborted_transaction(log: StoredLog) -> None:
    filled(log)
    for first in range(log.end):
        for end in range(first, log.end):
            edges = {"startingOffsets": f'{{"t":{{"0":{first}}}}}', "endingOffsets": f'{{"t":{{"0":{end}}}}}'}
            assert offsets(log, **edges) == [each for each in log.committed if first <= each < end]


def test_an_open_transaction_is_the_end(log: StoredLog) -> None:
    log.send(5)
    log.send(2, 7)
    log.send(5)
    assert ends(log) == [5]
    assert ends(log, endingOffsets='{"t":{"0":-1}}') == [5]
    assert offsets(log, endingOffsets='{"t":{"0":5}}') == [*range(5)]
    for ignored in ("true", "false"):
        with pytest.raises(
            SourceError, match=r"offsets 5 to 5 of t-0 cannot be read.*open from offset 5"
        ) as raised:
            reader(log, endingOffsets='{"t":{"0":6}}', failOnDataLoss=ignored).partitions()
        assert not isinstance(raised.value, DataLoss)
    with pytest.raises(DataLoss, match="its log ends at 12"):
        reader(log, endingOffsets='{"t":{"0":13}}').partitions()
    assert offsets(log, startingOffsets='{"t":{"0":8}}') == []
    with pytest.raises(DataLoss, match="its log ends at 12"):
        reader(log, startingOffsets='{"t":{"0":13}}').partitions()


def test_times_are_looked_up_below_the_open_transaction(log: StoredLog) -> None:
    log.send(5)
    log.send(2, 7)
    log.send(5)
    assert offsets(log, startingTimestamp=time_of(3)) == [3, 4]
    assert ends(log, endingTimestamp=time_of(3)) == [3]
    assert ends(log, endingTimestamp=time_of(9)) == [5]
    with pytest.raises(SourceError, match="all its records are older"):
        reader(log, startingTimestamp=time_of(9)).partitions()
    assert offsets(log, startingTimestamp=time_of(9), startingOffsetsByTimestampStrategy="latest") == []


def test_a_log_that_never_had_transactions_is_not_read_for_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(tmp_path / "data") as data:
        log = StoredLog(data)
        data.state.write([(TransactionalLogKey(log.topic_id, 0).encode(), None)])
        log.send(20)
        monkeypatch.delattr(transactions, "read_range")
        assert offsets(log) == [*range(20)]


def test_a_state_that_is_older_than_the_first_transaction(tmp_path: Path) -> None:
    """A copy whose files are of different moments: never a record of an aborted transaction."""
    with writing(tmp_path / "data") as data:
        log = StoredLog(data)
        data.state.write([(TransactionalLogKey(log.topic_id, 0).encode(), None)])
        log.send(2)
        log.send(2, 7)
        log.abort(7)
        with pytest.raises(
            SourceError, match="t-0 has a transaction at offset 2 that the state does not know"
        ):
            offsets(log)
        assert offsets(log, endingOffsets='{"t":{"0":2}}') == [0, 1]


# --- trimmed logs ---


@pytest.mark.parametrize("how", ["delete_records", "trim"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_transaction_that_began_before_the_log_start(log: StoredLog, how: str, saved: bool) -> None:
    log.send(2, 7)
    log.send(2, 8)
    log.send(2, 9)
    log.send(2, 7)
    log.send(2, 8)
    log.send(2, 9)
    if saved:
        log.save()
    getattr(log, how)(6)
    log.abort(7)
    log.commit(8)
    # As the broker, which knows where 9 began; the log alone has only the rest of it.
    assert planned(log).end == (6 if saved else log.stable_end)
    assert log.committed == [8, 9]
    assert offsets(log) == ([] if saved else log.committed)
    log.abort(9)
    log.send(1)
    assert offsets(log) == log.committed == [8, 9, 15]


def test_the_log_start_passes_a_whole_open_transaction(log: StoredLog) -> None:
    """The broker knows it, from a snapshot. Only from the log it cannot be known, and nothing of it
    can be read."""
    log.send(4, 7)
    log.save()
    log.send(4)
    log.delete_records(4)
    assert offsets(log) == []
    log.save(at=100)
    assert offsets(log) == [4, 5, 6, 7]


# --- what the state knows ---


def planned(log: StoredLog) -> Committed:
    with reading(log.path) as directory:
        found = CommittedLogs().look(directory, Subscribe(("t",)))[T0].committed
    assert found is not None
    return found


def test_the_log_is_read_from_the_newest_snapshot_on(log: StoredLog, monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    read = LogTransactions.read

    def noted(self: LogTransactions, *args: Any) -> None:
        begins.append(self.offset)
        read(self, *args)

    monkeypatch.setattr(LogTransactions, "read", noted)
    filled(log)
    log.send(2, 9)
    expected = planned(log)
    log.save()
    assert planned(log) == expected == Committed(22, [Aborted(7, 3, 10), Aborted(8, 17, 20)])
    log.send(2, 10)
    log.abort(9)
    log.abort(10)
    assert planned(log) == Committed(28, [*expected.aborted, Aborted(9, 22, 26), Aborted(10, 24, 27)])
    log.delete_records(25)
    assert planned(log) == Committed(28, [Aborted(10, 24, 27)])
    assert begins == [0, 24, 24, 25]
    assert offsets(log) == log.committed == []


@pytest.mark.parametrize("how", ["beyond the end", "below the start", "damaged"])
def test_a_snapshot_of_no_use(log: StoredLog, how: str) -> None:
    """Beyond the end: after a power cut, or a moment of the state that is newer than the log."""
    log.send(2, 9)
    filled_from = log.end
    log.send(2, 7)
    log.save(at={"beyond the end": 50, "below the start": 1, "damaged": None}[how])
    if how == "damaged":
        log.break_saved()
    log.delete_records(filled_from)
    log.abort(7)
    log.send(1)
    assert planned(log) == Committed(6, [Aborted(7, 2, 4)])
    assert offsets(log) == log.committed == [5]


def test_the_broker_appends_and_saves_between_the_looks(
    log: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is then newer than the log's end, which is looked at again."""
    log.send(2)
    log.send(2, 7)
    look = committed_module.look

    def slow(*args: Any, **more: Any) -> Any:
        found = look(*args, **more)
        if log.end == 4:
            log.abort(7)
            log.send(1)
            log.save()
        return found

    monkeypatch.setattr(committed_module, "look", slow)
    assert planned(log) == Committed(6, [Aborted(7, 2, 4)])


def test_damage_that_may_hide_the_end_of_a_transaction(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = StoredLog(data)
        filled(log)
    (file,) = (tmp_path / "log-segment").glob(f"*/{10:020}/data.ninja")
    content = bytearray(file.read_bytes())
    content[content.rindex(MARKER_END)] ^= 1
    file.write_bytes(content)
    DataDir.open(tmp_path).close()
    with pytest.raises(SourceError, match="how a transaction ended: the record batch at offset 10"):
        reader(log, startingOffsets='{"t":{"0":14}}').partitions()


def test_the_end_of_the_log_was_cut_with_the_end_of_a_transaction(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = StoredLog(data)
        log.send(3)
        log.send(3, 7)
        log.commit(7)
    (file,) = (tmp_path / "log-segment").glob(f"*/{6:020}/data.ninja")
    file.write_bytes(b"")
    DataDir.open(tmp_path).close()
    with pytest.raises(DataLoss, match="offsets 6 to 6 of t-0 cannot be read"):
        reader(log).partitions()
    assert offsets(log, failOnDataLoss="false") == [0, 1, 2]


# --- at random ---


@pytest.mark.parametrize("seed", range(4))
def test_logs_at_random(log: StoredLog, seed: int) -> None:
    randomly = random.Random(seed)
    in_transaction: set[int] = set()
    for _ in range(60):
        producer = randomly.choice((None, 1, 2, 3))
        if producer in in_transaction and randomly.random() < 0.4:
            log.finish(producer, randomly.choice(tuple(MarkerType)))
            in_transaction.discard(producer)
        else:
            codec = randomly.choice((Codec.NONE, Codec.NONE, Codec.ZSTD))
            log.send(randomly.randrange(1, 5), producer, codec=codec)
            in_transaction |= set() if producer is None else {producer}
        if randomly.random() < 0.05:
            log.save()
        if randomly.random() < 0.03:
            getattr(log, randomly.choice(("delete_records", "trim")))(_edge(log, randomly))
        if randomly.random() < 0.6:
            continue
        found = planned(log)
        assert found.end in (log.stable_end, log.start)
        expected = [offset for offset in committed(log.events, log.start, log.end) if offset < found.end]
        assert offsets(log, decoder=randomly.choice(("numpy", "c"))) == expected
        assert offsets(log, maxRecordsPerPartition=3) == expected


def _edge(log: StoredLog, randomly: random.Random) -> int:
    """The beginning of a batch, at or after the log start."""
    return randomly.choice(
        [log.start, *(each.offset for each in log.events if each.offset >= log.start)][:20]
    )


def test_the_aborted_transactions_of_a_range_at_random() -> None:
    """Some are much longer than others."""
    randomly = random.Random(6)
    for _ in range(50):
        markers = sorted(randomly.sample(range(1, 300), randomly.randrange(40)))
        aborted = [Aborted(last % 5, max(0, last - randomly.choice((1, 5, 100))), last) for last in markers]
        committed = Committed(300, aborted)
        for first in range(0, 300, 7):
            end = first + randomly.randrange(1, 60)
            expected = tuple(each for each in aborted if each.first < end and each.last > first)
            assert committed.aborted_in(first, end) == expected


def test_batches_of_aborted_transactions_at_random() -> None:
    randomly = random.Random(5)
    for _ in range(50):
        aborted = [
            Aborted(producer, first, first + randomly.randrange(1, 9))
            for producer in range(4)
            for first in range(randomly.randrange(9), 200, randomly.randrange(10, 40))
        ]
        headers = np.zeros(150, _HEADER)
        headers["base_offset"] = sorted(randomly.randrange(220) for _ in headers)
        headers["producer_id"] = [randomly.randrange(-1, 6) for _ in headers]
        headers["attributes"] = [randomly.choice((0, TRANSACTIONAL, TRANSACTIONAL | 2)) for _ in headers]
        expected = [
            bool(each["attributes"] & TRANSACTIONAL)
            and any(
                one[0] == each["producer_id"] and one[1] <= each["base_offset"] < one[2] for one in aborted
            )
            for each in headers
        ]
        assert AbortedBatches(aborted).among(headers).tolist() == expected
