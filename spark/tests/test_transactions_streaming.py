"""kafka.isolation.level=read_committed in streams, called as Spark calls them, without a broker."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.formats.state import Generation, MetaKey
from kbroker.formats.transactions import MarkerType
from kbroker_spark.errors import SourceError
from kbroker_spark.transactions import LogTransactions
from spark.tests.stored import Stored, writing
from spark.tests.stream_steps import Checkpoint, Run
from spark.tests.transactional import COMMITTED, StoredLog, committed, time_of


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Stored]:
    with writing(tmp_path / "data") as data:
        yield data


@pytest.fixture
def log(data: Stored) -> StoredLog:
    return StoredLog(data)


@pytest.fixture
def checkpoint() -> Checkpoint:
    return Checkpoint()


def run(checkpoint: Checkpoint, log: StoredLog, **options: Any) -> Run:
    return Run(
        checkpoint, log.path, **{"subscribe": "t", "startingOffsets": "earliest", **COMMITTED, **options}
    )


def end(checkpoint: Checkpoint) -> int:
    return int(checkpoint.end["t"]["0"])


def test_a_stream_across_a_commit_and_an_abort(checkpoint: Checkpoint, log: StoredLog) -> None:
    log.send(3)
    log.send(2, 7)
    query = run(checkpoint, log)
    assert query.batch()
    assert end(checkpoint) == 3
    log.send(2)
    log.send(2, 8)
    assert not query.batch()
    log.commit(7)
    assert query.batch()
    assert end(checkpoint) == 7
    assert not query.batch()
    log.send(1, 8)
    log.abort(8)
    log.send(1)
    assert query.batch()
    assert end(checkpoint) == log.end
    assert query.reader.reportLatestOffset() == {"t": {"0": log.end}}
    assert checkpoint.seen("t") == log.committed == [0, 1, 2, 3, 4, 5, 6, 12]


def test_limits_and_restarts_inside_of_transactions(checkpoint: Checkpoint, log: StoredLog) -> None:
    for number in range(10):
        log.send(3, 7)
        log.send(2, 8)
        log.finish(7, MarkerType(number % 2))
        log.send(1)
        log.finish(8, MarkerType(number // 2 % 2))
    log.send(1, 7)
    run(checkpoint, log, maxOffsetsPerTrigger=4).batch(crash=True)
    run(checkpoint, log, maxOffsetsPerTrigger=5).batch()
    run(checkpoint, log, maxOffsetsPerTrigger=7).batch(crash=True)
    run(checkpoint, log, maxOffsetsPerTrigger=7, available_now=True).all_batches()
    assert checkpoint.seen("t") == log.committed


def test_a_query_begins_at_the_latest_which_is_the_first_open_transaction(
    checkpoint: Checkpoint, log: StoredLog
) -> None:
    log.send(3)
    log.send(2, 7)
    log.send(2)
    first = run(checkpoint, log, startingOffsets="latest")
    assert first.batch()
    assert end(checkpoint) == 3
    log.commit(7)
    first.batch()
    assert checkpoint.seen("t") == [3, 4, 5, 6]


def test_a_start_by_time_that_no_decided_record_has(checkpoint: Checkpoint, log: StoredLog) -> None:
    log.send(3)
    log.send(2, 7)
    options = {"startingTimestamp": time_of(4), "startingOffsetsByTimestampStrategy": "latest"}
    query = run(checkpoint, log, **options)
    log.commit(7)
    query.all_batches()
    assert checkpoint.seen("t") == [4]


def test_available_now_ends_at_the_open_transaction_of_its_start(
    checkpoint: Checkpoint, log: StoredLog
) -> None:
    log.send(3)
    log.send(2, 7)
    query = run(checkpoint, log, available_now=True)
    log.commit(7)
    query.all_batches()
    assert checkpoint.seen("t") == [0, 1, 2]
    run(checkpoint, log, available_now=True).all_batches()
    assert checkpoint.seen("t") == [0, 1, 2, 3, 4]


def test_a_checkpoint_beyond_an_open_transaction_waits(checkpoint: Checkpoint, log: StoredLog) -> None:
    """It was written with read_uncommitted. Offsets never go back, and nothing is lost."""
    log.send(3)
    log.send(2, 7)
    log.send(2)
    run(checkpoint, log, **{"kafka.isolation.level": "read_uncommitted"}).batch()
    assert end(checkpoint) == 7
    query = run(checkpoint, log)
    log.send(2)
    assert not query.batch()
    log.abort(7)
    log.send(1)
    query.batch()
    assert checkpoint.seen("t") == [*range(9), 10]


def test_a_batch_that_was_planned_with_records_of_an_open_transaction(
    checkpoint: Checkpoint, log: StoredLog
) -> None:
    log.send(3)
    log.send(2, 7)
    run(checkpoint, log, **{"kafka.isolation.level": "read_uncommitted"}).batch(crash=True)
    with pytest.raises(SourceError, match="offsets 3 to 4 of t-0 cannot be read"):
        run(checkpoint, log, failOnDataLoss="false")
    log.abort(7)
    run(checkpoint, log).all_batches()
    assert checkpoint.seen("t") == [0, 1, 2]


def test_a_look_reads_only_what_is_new(
    checkpoint: Checkpoint, log: StoredLog, data: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[int] = []
    read = LogTransactions.read

    def noted(self: LogTransactions, *args: Any) -> None:
        begins.append(self.offset)
        read(self, *args)

    monkeypatch.setattr(LogTransactions, "read", noted)
    log.send(5)
    query = run(checkpoint, log)
    query.batch()
    log.send(5, 7)
    log.abort(7)
    query.batch()
    log.send(1)
    log.delete_records(8)
    query.batch()
    data.state.write([(MetaKey("generation").encode(), Generation(2).encode())])
    log.send(1)
    query.batch()
    assert begins == [0, 5, 5, 11, 8]
    assert checkpoint.seen("t") == [*range(5), 11, 12]


@pytest.mark.parametrize("seed", range(3))
def test_streams_at_random(checkpoint: Checkpoint, log: StoredLog, seed: int) -> None:
    randomly = random.Random(seed)
    in_transaction: set[int] = set()
    query = run(checkpoint, log)
    for _ in range(60):
        producer = randomly.choice((None, 1, 2))
        if producer in in_transaction and randomly.random() < 0.5:
            log.finish(producer, randomly.choice(tuple(MarkerType)))
            in_transaction.discard(producer)
        else:
            log.send(randomly.randrange(1, 5), producer)
            in_transaction |= set() if producer is None else {producer}
        if randomly.random() < 0.1:
            log.save()
        if randomly.random() < 0.3:
            crash = randomly.random() < 0.3
            query.batch(crash=crash)
            if crash:
                query = run(checkpoint, log, maxOffsetsPerTrigger=randomly.randrange(1, 20))
        if checkpoint.offsets:
            until = end(checkpoint)
            assert until <= log.stable_end
            read = committed(log.events, 0, log.end)
            assert checkpoint.seen("t") == [offset for offset in read if offset < until]
    query.all_batches()
    assert checkpoint.seen("t") == log.committed
    ends = [json.loads(each)["t"]["0"] for each in checkpoint.offsets]
    assert ends == sorted(ends)
