"""The rivals of the queue rows: each delivers and acknowledges every record once, is as durable as
intended, and ends with the suite.

Their performance is not tested. If a server or its client is not installed, its tests are skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from perf.queues.jobs import JobReport, lateness_ms
from perf.rivals import rival as rival_module
from perf.rivals.__main__ import main
from perf.rivals.comparison import Comparison, goals
from perf.rivals.redis_streams import RedisStreams, connect
from perf.rivals.rival import RECORD_BYTES, Failing, Rival, number_of, payload
from perf.rivals.server_process import ServerFailed, ServerProcess, TreeWatch, process_tree
from perf.rivals.sides import DELAYED, RIVALS, RivalSide, Settings, queue_rows
from perf.suite.results import CandidateFacts, Results, RowResult
from perf.workloads.client_process import Link
from perf.workloads.window import Plan, Span, measure

_RECORDS = 300
_CONSUMERS = 2
_FAILING = 60
_DELAY_S = 0.5
_CLOCK_MS = 2.0
"""A server counts whole milliseconds, and may truncate the rest."""
_END_S = 10.0
_LONG_ENOUGH = Plan(seconds=60.0, warm_up_s=60.0)
"""The window ends when the queue is nearly empty."""


@pytest.fixture(params=RIVALS, ids=lambda rival: rival.key)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rival]:
    yield from _running(request.param, tmp_path)


@pytest.fixture
def redis_streams(tmp_path: Path) -> Iterator[Rival]:
    yield from _running(RedisStreams, tmp_path)


def _running(kind: type[Rival], home: Path) -> Iterator[Rival]:
    if (why := kind.why_missing()) is not None:
        pytest.skip(f"{kind.title}: {why}")
    rival = kind(home / kind.key)
    try:
        rival.start()
        yield rival
    finally:
        rival.kill()


@pytest.mark.full
def test_every_record_taken_is_acknowledged_once(running: Rival) -> None:
    running.fill("queue", _RECORDS)
    assert running.left("queue") == _RECORDS
    watch = TreeWatch(running.pid)
    window = measure(
        _LONG_ENOUGH._replace(watch=watch), [running.consumer("queue")] * _CONSUMERS, most=_RECORDS
    )
    taken = [report.units.total() for report in window.reports]
    assert all(taken)
    assert sum(taken) >= 0.9 * _RECORDS
    assert running.left("queue") == _RECORDS - sum(taken)
    assert sum(report.bytes.total() for report in window.reports) == RECORD_BYTES * sum(taken)
    assert watch.cost().cpu_s > 0
    running.drop("queue")
    running.fill("queue", 1)
    assert running.left("queue") == 1


@pytest.mark.full
def test_a_job_that_fails_comes_back_once_when_its_delay_is_over(running: Rival) -> None:
    if not running.delays:
        pytest.skip("takes no part where jobs come back")
    running.fill("queue", _FAILING, delay_s=_DELAY_S)
    consumers = [running.failing_consumer("queue", _DELAY_S)] * _CONSUMERS
    window = measure(_LONG_ENOUGH, consumers, most=_FAILING, all_of_it=True)
    reports = [report for report in window.reports if isinstance(report, JobReport)]
    assert sorted(number for report in reports for number in report.released) == list(range(_FAILING))
    assert sorted(number for report in reports for number in report.back) == list(range(_FAILING))
    late = lateness_ms(window._replace(span=Span(0, 1 << 60, 1.0)), _DELAY_S)
    assert len(late) == _FAILING
    assert min(late) > -_CLOCK_MS
    assert running.left("queue") == 0
    running.drop("queue")
    running.fill("queue", 1, delay_s=_DELAY_S)
    assert running.left("queue") == 1


@pytest.mark.full
def test_redis_that_does_not_sync_each_answer_is_refused(redis_streams: Rival) -> None:
    with connect(redis_streams.port) as redis:
        redis.config_set("appendfsync", "everysec")
    with pytest.raises(ServerFailed, match="everysec"):
        redis_streams.fill("queue", 1)


@pytest.mark.full
def test_a_comparison_has_a_reading_of_each_row_and_leaves_no_server(
    redis_streams: Rival, tmp_path: Path
) -> None:
    redis_streams.kill()
    comparison = Comparison(
        ["redis-streams"], Settings(rounds=1, seconds=0.2, warm_up_s=0.1), tmp_path, Console(quiet=True)
    )
    comparison.run()
    results = comparison.results
    assert results.notes == []
    assert {row.key: len(row.readings.get("redis-streams", ())) for row in results.rows} == {
        "one-1": 1, "one-8": 1, "single-1": 0, "single-8": 0, "delayed-8": 1,
    }  # fmt: skip
    assert all(
        {"rate", "cpu_s", "rss_anon_mb"} <= reading.keys()
        for reading in results.rows[1].readings["redis-streams"]
    )
    assert {"rate", "per_cpu_s", "p50_ms", "p99_ms"} <= results.rows[-1].readings["redis-streams"][0].keys()
    assert not [
        pid for pid in process_tree(os.getpid()) if "redis-server" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


def test_payloads_are_numbered_and_of_one_size() -> None:
    assert [number_of(payload(number)) for number in (0, 7, 999_999)] == [0, 7, 999_999]
    assert {len(payload(number)) for number in (0, 7, 999_999)} == {RECORD_BYTES}


def test_a_consumer_whose_jobs_fail_counts_those_that_are_done() -> None:
    """With its first job answered, it waits for the others; a failed job is not a unit."""
    ours, theirs = multiprocessing.Pipe()
    link = Link(0, 1, [0, 0, 0], theirs)
    link._told["go"].set()
    failing = Failing(link)
    for number in (3, 4):
        failing.fails(payload(number))
        failing.failed()
    failing.came_again(payload(3))
    failing.done()
    assert ours.recv() == "first"
    report = link.report
    assert isinstance(report, JobReport)
    assert (list(report.released), list(report.back)) == ([3, 4], [3])
    assert (report.units.total(), report.others.total(), report.bytes.total()) == (1, 2, RECORD_BYTES)
    assert report.back_s[0] >= report.released_s[0]


def test_all_but_the_pipelined_redis_take_part_where_jobs_come_back(tmp_path: Path) -> None:
    settings = Settings(rounds=1, seconds=0.2, warm_up_s=0.1)
    (row,) = (row for row in queue_rows(settings) if row.key == DELAYED)
    sides = [
        RivalSide(kind(tmp_path), CandidateFacts(kind.key, "", "", "", "", ""), settings) for kind in RIVALS
    ]
    assert [side.facts.key for side in sides if not side.suits(row)] == ["redis-pipelined"]


def test_the_command_chooses_rows_by_pattern(tmp_path: Path) -> None:
    console = Console(quiet=True)
    comparison = Comparison(
        [], Settings(rounds=1, seconds=0.2, warm_up_s=0.1), tmp_path, console, ["delayed-*", "one-?"]
    )
    assert [row.key for row in comparison.results.rows] == ["one-1", "one-8", "delayed-8"]
    refused = CliRunner().invoke(main, ["--rows", "delayed"])
    assert refused.exit_code == 2
    assert "no row is named delayed; there are one-1, one-8, single-1, single-8, delayed-8" in " ".join(
        refused.output.split()
    )


def test_what_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rival_module, "find_program", lambda name: None)
    comparison = Comparison(
        [rival.key for rival in RIVALS],
        Settings(rounds=1, seconds=0.2, warm_up_s=0.1),
        tmp_path,
        Console(quiet=True),
    )
    comparison.run()
    assert {facts.key: facts.missing for facts in comparison.results.candidates} == {
        "redis-streams": "not installed: apt-get install redis-server",
        "redis-pipelined": "not installed: apt-get install redis-server",
        "rabbitmq-quorum": "not installed: apt-get install rabbitmq-server",
        "nats-jetstream": "not installed: apt-get install nats-server",
        "rabbitmq-classic": "not installed: apt-get install rabbitmq-server",
    }
    assert not any(row.readings for row in comparison.results.rows)


def test_the_best_rival_of_the_same_durability_is_what_counts_for_each_metric() -> None:
    figures = {  # rate, records per CPU second
        "segment-disk": (600.0, 70.0), "segment-os": (900.0, 90.0),
        "redis-streams": (400.0, 100.0), "rabbitmq-quorum": (500.0, 20.0), "nats-jetstream": (1000.0, 80.0),
    }  # fmt: skip
    results = Results({}, "", "rivals")
    for key in figures:
        family, durability = (
            ("kbroker", key.partition("-")[2]) if key.startswith("segment") else ("other", "disk")
        )
        results.candidates.append(
            CandidateFacts(key, key, family, "", "os" if key == "nats-jetstream" else durability, "")
        )
    readings = {key: [{"rate": rate, "per_cpu_s": per_cpu_s}] for key, (rate, per_cpu_s) in figures.items()}
    ours = {key: readings[key] for key in ("segment-disk", "segment-os")}
    results.rows = [
        RowResult("one-8", "", "queue", readings=readings),
        RowResult("single-8", "", "queue", readings=ours),
    ]
    found: dict[tuple[str, str, str], list[tuple[str, float | None, str | None]]] = {}
    for goal in goals(results):
        found.setdefault((goal.row, goal.candidate, goal.metric), []).append(
            (goal.against, goal.at_least, goal.against_row)
        )
    assert found == {
        ("one-8", "segment-disk", "rate"): [("rabbitmq-quorum", 1.0, None), ("redis-streams", None, None)],
        ("one-8", "segment-disk", "per_cpu_s"): [
            ("redis-streams", 0.7, None),
            ("rabbitmq-quorum", None, None),
        ],
        ("one-8", "segment-os", "rate"): [("nats-jetstream", 1.0, None)],
        ("one-8", "segment-os", "per_cpu_s"): [("nats-jetstream", 0.7, None)],
        ("single-8", "segment-disk", "rate"): [("rabbitmq-quorum", None, "one-8")],
        ("single-8", "segment-disk", "per_cpu_s"): [("redis-streams", None, "one-8")],
        ("single-8", "segment-os", "rate"): [("nats-jetstream", None, "one-8")],
        ("single-8", "segment-os", "per_cpu_s"): [("nats-jetstream", None, "one-8")],
    }


def test_a_killed_server_takes_its_children_along(tmp_path: Path) -> None:
    server = ServerProcess(["/bin/sh", "-c", "sleep 1000 & wait"], tmp_path / "server.log")
    server.wait_until(lambda: len(process_tree(server.pid)) == 2)
    child = os.pidfd_open(process_tree(server.pid)[1])
    try:
        server.kill()
        ended, _, _ = select.select([child], [], [], _END_S)
        assert ended == [child]
    finally:
        os.close(child)
    assert not server.is_running()


def test_a_server_that_ends_instead_of_answering_says_what_it_printed(tmp_path: Path) -> None:
    server = ServerProcess(["/bin/sh", "-c", "echo no such directory; exit 3"], tmp_path / "server.log")
    with pytest.raises(ServerFailed, match=r"exit code 3; it printed:\nno such directory"):
        server.wait_until(lambda: False)
    server.kill()
