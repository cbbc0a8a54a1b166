"""The suite of transactions and compaction: its parts, and its rows at a small size on real
brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from kbroker.client.broker_process import RunningBroker
from perf.queues import all_rows as rows_of_queues
from perf.suite import command
from perf.suite.candidates import Candidate, make_candidates
from perf.suite.command import all_rows as rows_of_the_main_suite
from perf.suite.expectation import Lengths, expected_s
from perf.suite.rows import Run
from perf.transactions import all_rows, cleaning, pipeline, reading, table
from perf.transactions.__main__ import SUITE
from perf.transactions.clients import RECORDS, fill_with_transactions
from perf.transactions.goals import all_goals

_PATIENCE_S = 30.0
_SMALL_BYTES = 6 << 20


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Candidate]:
    (candidate,) = make_candidates([getattr(request, "param", "segment-os")], tmp_path)
    assert isinstance(candidate.broker, RunningBroker)
    candidate.broker.config["log.cleaner.backoff.ms"] = "100"
    try:
        candidate.start()
        yield candidate
    finally:
        candidate.kill()


def reading_of(row: str, broker: Candidate, tmp_path: Path) -> dict[str, float]:
    (found,) = command.chosen_rows([row], quick=True, suite=SUITE)
    run = Run(broker, 1, 0.4, 0.1, True, tmp_path / "run", lambda _: None)
    if found.prepare is not None:
        found.prepare(run)
    return dict(found.run(run))


def test_rows_have_names_of_their_own_in_all_suites() -> None:
    keys = [row.key for row in (*all_rows(), *rows_of_queues(), *rows_of_the_main_suite())]
    assert len(keys) == len(set(keys))


def test_every_goal_is_of_a_row_that_runs_for_both_it_compares() -> None:
    rows = {row.key: row for row in all_rows()}
    for goal in all_goals():
        assert rows[goal.row].suits(goal.candidate), goal
        assert rows[goal.row].suits(goal.against), goal
    limits = {
        (goal.row, goal.metric, goal.candidate): (goal.against, goal.at_least, goal.at_most)
        for goal in all_goals()
    }
    assert limits["commit-1", "commits_per_s", "segment-disk"] == ("kafka-sync", 1.0, None)
    assert limits["commit-4", "rate", "segment-os"] == ("kafka", 1.0, None)
    assert limits["commit-4", "rate", "lmdb-os"] == ("kafka", None, None)
    assert limits["read-committed-aborted", "rate", "segment-os"] == ("segment-os", 0.9, None)
    assert limits["share-beside-pass", "p99_ms", "rocksdb-disk"] == ("rocksdb-disk", None, 2.0)


@pytest.mark.parametrize(("quick", "limit_s"), [(False, 20 * 60), (True, 4 * 60)])
def test_what_a_run_consists_of_fits_into_its_time(quick: bool, limit_s: float) -> None:
    settings, keys = (SUITE.quick, SUITE.quick_candidates) if quick else (SUITE.full, SUITE.candidates)
    lengths = Lengths(settings.seconds, settings.warming_s, settings.warm_up_s)
    rows = command.chosen_rows([], quick=quick, suite=SUITE)
    assert expected_s(rows, keys, settings.rounds, lengths) < limit_s < settings.budget_s


def test_a_filled_topic_has_its_part_of_aborted_transactions(broker: Candidate) -> None:
    broker.create_topic("filled")
    fill_with_transactions(broker.bootstrap, "filled", 40, abort_every=5)
    assert count(broker, "filled", "read_uncommitted") == 40 * RECORDS
    assert count(broker, "filled", "read_committed") == 32 * RECORDS


def count(broker: Candidate, topic: str, level: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": "counting", "isolation.level": level,
            "enable.partition.eof": True, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    records = 0
    while (message := consumer.poll(_PATIENCE_S)) is not None and message.error() is None:
        records += 1
    consumer.close()
    assert message is not None
    return records


def test_transactions_are_committed_and_counted(broker: Candidate, tmp_path: Path) -> None:
    found = reading_of("commit-4", broker, tmp_path)
    assert found["rate"] == pytest.approx(RECORDS * found["commits_per_s"])
    assert 0 < found["p50_ms"] <= found["p99_ms"]


def test_both_levels_are_read_in_turn(
    broker: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "QUICK_TRANSACTIONS", 80)
    found = reading_of("read-committed-aborted", broker, tmp_path)
    assert min(found["rate"], found["uncommitted_rate"], found["per_cpu_s"]) > 0


def test_a_loop_commits_its_offsets(
    broker: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "INPUTS", 100_000)
    found = reading_of("transform", broker, tmp_path)
    assert found["commits_per_s"] > 0
    assert found["rate"] <= RECORDS * found["commits_per_s"] * 1.001


@pytest.mark.parametrize("broker", ["segment-disk"], indirect=True)
def test_a_pass_begins_on_request_and_again(
    broker: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass rewrites the whole log, with and without a share consumer beside it."""
    monkeypatch.setattr(table, "QUICK_BYTES", _SMALL_BYTES)
    monkeypatch.setattr(table, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(cleaning, "_QUICK_ALONE_S", 0.5)
    alone = reading_of("pass-alone", broker, tmp_path)
    assert alone["pass_mb_per_s"] * alone["pass_s"] == pytest.approx(_SMALL_BYTES / 1e6, rel=0.5)
    beside = reading_of("share-beside-pass", broker, tmp_path)
    assert beside["pass_mb_per_s"] > 0
    assert min(beside["p50_ms"], beside["alone_p50_ms"]) > 0
