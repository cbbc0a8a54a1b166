"""The suite of work queues: its parts, its clients, and one of its rows with few jobs on a real
broker."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kbroker.client.group_admin import group_types
from perf.queues import all_rows, ordered, parked, redelivery
from perf.queues.__main__ import SUITE
from perf.queues.goals import all_goals
from perf.queues.jobs import JobReport, lateness_ms, worker
from perf.queues.own import OURS, queue, standing
from perf.suite import command
from perf.suite.candidates import Candidate, make_candidates
from perf.suite.command import all_rows as rows_of_the_other_suite
from perf.suite.expectation import Lengths, expected_s
from perf.suite.rows import Run
from perf.workloads.client_process import SLOT_S, ClientReport
from perf.workloads.window import Plan, Span, Window, measure

_JOBS = 60
_LONG_ENOUGH_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Candidate]:
    (candidate,) = make_candidates(["segment-os"], tmp_path)
    try:
        candidate.start()
        yield candidate
    finally:
        candidate.kill()


def test_rows_have_names_of_their_own_in_both_suites() -> None:
    keys = [row.key for row in (*all_rows(), *rows_of_the_other_suite())]
    assert len(keys) == len(set(keys))


def test_every_goal_is_of_rows_that_all_candidates_run() -> None:
    rows = {row.key: row for row in all_rows()}
    for goal in all_goals():
        assert rows[goal.row].suits(goal.candidate), goal
        assert rows[goal.against_row or goal.row].suits(goal.against), goal
    assert {goal.candidate for goal in all_goals()} == OURS == set(SUITE.candidates)
    assert {goal.row for goal in all_goals() if goal.at_least == 0.7} == {
        f"one-{consumers}-{codec}" for consumers in (1, 8) for codec in ("none", "lz4", "zstd")
    }


@pytest.mark.parametrize("quick", [False, True])
def test_what_a_run_consists_of_fits_into_its_time(quick: bool) -> None:
    settings, keys = (SUITE.quick, SUITE.quick_candidates) if quick else (SUITE.full, SUITE.candidates)
    lengths = Lengths(settings.seconds, settings.warming_s, settings.warm_up_s)
    rows = command.chosen_rows([], quick=quick, suite=SUITE)
    assert expected_s(rows, keys, settings.rounds, lengths) < 0.9 * settings.budget_s


def test_the_command_knows_its_own_rows_and_candidates() -> None:
    assert {row.key for row in command.chosen_rows(["one-8-*"], quick=True, suite=SUITE)} == {
        "one-8-singles", "one-8-none", "one-8-lz4", "one-8-zstd",
    }  # fmt: skip
    with pytest.raises(click.UsageError, match="no row is named one-8-backlog"):
        command.chosen_rows(["one-8-backlog"], quick=False, suite=SUITE)
    with pytest.raises(
        click.UsageError, match="there is no candidate kafka; there are segment-os, segment-disk"
    ):
        command.chosen_candidates(["kafka"], quick=False, suite=SUITE)


def test_lateness_is_of_jobs_that_come_again_within_the_window() -> None:
    """Released by one worker and acquired by another; jobs outside the window are not included."""
    first = JobReport(released=array("q", [7, 8, 9]), released_s=array("d", [10.0, 10.1, 10.2]))
    second = JobReport(back=array("q", [7, 8, 9, 6]), back_s=array("d", [10.9, 11.25, 13.5, 11.0]))
    window = Window(
        [ClientReport(units=Counter()), first, second], Span(int(11.0 / SLOT_S), int(13.0 / SLOT_S), 2.0)
    )
    assert lateness_ms(window, delay_s=1.0) == pytest.approx([150.0])


def test_one_key_may_be_half_of_the_jobs() -> None:
    even, hot = Counter(ordered.keys(20_000, 0.0)), Counter(ordered.keys(20_000, 0.5))
    assert len(even) == ordered.KEYS
    assert max(even.values()) < 60
    assert hot.most_common(1)[0][0] == b"0"
    assert math.isclose(hot[b"0"] / 20_000, 0.5, abs_tol=0.03)
    assert ordered.keys(100, 0.5) == ordered.keys(100, 0.5)


def test_each_job_is_given_back_once_and_done_when_it_comes_again(broker: Candidate) -> None:
    delay_s = 0.2
    with (
        queue(broker, {"delay": "200", "prefetch": "10", "multiplier": "1.0", "jitter": "0.0"}) as name,
        broker.connect() as connection,
    ):
        redelivery._fill(broker.bootstrap, name, _JOBS)
        window = measure(
            Plan(_LONG_ENOUGH_S), [worker(broker.bootstrap, name)] * 2, most=_JOBS, all_of_it=True
        )
        reports = [report for report in window.reports if isinstance(report, JobReport)]
        assert sorted(offset for report in reports for offset in report.released) == list(range(_JOBS))
        assert sorted(offset for report in reports for offset in report.back) == list(range(_JOBS))
        late = lateness_ms(window._replace(span=Span(0, 1 << 60, 1.0)), delay_s)
        assert len(late) == _JOBS
        assert min(late) > -1.0, "the broker's clock has whole milliseconds"
        assert standing(connection, name).unfinished == 0
    with broker.connect() as connection:
        assert name not in group_types(connection), "it is deleted at the end"


@pytest.mark.full
@pytest.mark.parametrize(("row", "expected"), [
    ("retries-100000", {"rate", "over_empty_mb", "released_per_s"}),
    ("parked-million", {"ms", "p99_ms", "over_empty_mb", "parked_per_s", "ready_ms", "back_ms"}),
])  # fmt: skip
def test_rows_with_a_broker_of_their_own(
    broker: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, expected: set[str]
) -> None:
    monkeypatch.setattr(redelivery, "QUICK_JOBS", 6_000)  # so that each of the workers gets some
    monkeypatch.setattr(redelivery, "_QUICK_RETRY_DELAY_S", 2)
    monkeypatch.setattr(parked, "QUICK_JOBS", 4_000)
    run = Run(broker, 1, 0.2, 0.1, True, tmp_path / "run", lambda _: None)
    (found,) = command.chosen_rows([row], quick=True, suite=SUITE)
    reading = found.run(run)
    assert expected <= reading.keys()
    assert all(value > 0 for name, value in reading.items() if name in expected - {"over_empty_mb"})
