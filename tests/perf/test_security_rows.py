"""The suite of encrypted connections: its parts, and its rows at a small size on a real broker."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.security import all_rows
from perf.security.__main__ import SUITE
from perf.security.goals import all_goals
from perf.suite import command
from perf.suite.candidates import Candidate, make_candidates
from perf.suite.command import all_rows as rows_of_the_main_suite
from perf.suite.expectation import Lengths, expected_s
from perf.suite.rows import Run


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Candidate]:
    (candidate,) = make_candidates(["segment-os"], tmp_path_factory.mktemp("tls"), with_tls=True)
    try:
        candidate.start()
        yield candidate
    finally:
        candidate.kill()


def test_rows_have_names_of_their_own() -> None:
    keys = [row.key for row in (*all_rows(), *rows_of_the_main_suite())]
    assert len(keys) == len(set(keys))


def test_every_goal_is_of_a_row_that_runs_for_both_it_compares() -> None:
    rows = {row.key: row for row in all_rows()}
    for goal in all_goals():
        assert rows[goal.row].suits(goal.candidate), goal
        assert rows[goal.row].suits(goal.against), goal
    assert {goal.row for goal in all_goals()} == set(rows)


@pytest.mark.parametrize(("quick", "limit_s"), [(False, 12 * 60), (True, 4 * 60)])
def test_what_a_run_consists_of_fits_into_its_time(quick: bool, limit_s: float) -> None:
    settings = SUITE.quick if quick else SUITE.full
    lengths = Lengths(settings.seconds, settings.warming_s, settings.warm_up_s)
    rows = command.chosen_rows([], quick=quick, suite=SUITE)
    assert expected_s(rows, SUITE.candidates, settings.rounds, lengths) < limit_s < settings.budget_s


@pytest.mark.parametrize("row", ["tls-produce-16kb", "tls-one-8"])
def test_a_row_runs_over_tls(row: str, broker: Candidate, tmp_path: Path) -> None:
    (found,) = command.chosen_rows([row], quick=True, suite=SUITE)
    run = Run(broker, 1, 0.4, 0.1, True, tmp_path / "run", lambda _: None)
    if found.prepare is not None:
        found.prepare(run)
    assert found.run(run)["rate"] > 0


def test_the_second_listener_speaks_tls_alone(broker: Candidate) -> None:
    assert broker.tls is not None
    certificate = ssl.get_server_certificate(
        ("127.0.0.1", broker.tls.port), ca_certs=str(broker.tls.authority)
    )
    assert certificate in broker.tls.keys.read_text()
