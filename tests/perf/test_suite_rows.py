"""The performance suite's rows and their order, as far as these can be tested without a broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.console import Console

from perf.suite import command
from perf.suite.candidates import KINDS
from perf.suite.command import all_rows
from perf.suite.expectation import PAUSE_S, Lengths, by_part, expected_s
from perf.suite.goals import all_goals
from perf.suite.rows import Row
from perf.suite.runner import Runner, Settings, in_turn


def test_rows_have_names_of_their_own() -> None:
    keys = [row.key for row in all_rows()]
    assert len(keys) == len(set(keys))


def test_rows_are_restricted_to_candidates_that_there_are() -> None:
    assert {row.key for row in all_rows() if not (row.candidates or {"kafka"}) <= set(KINDS)} == set()


def test_every_goal_is_of_a_row_that_runs_for_both_it_compares() -> None:
    rows = {row.key: row for row in all_rows()}
    for goal in all_goals():
        assert rows[goal.row].suits(goal.candidate), goal
        assert rows[goal.against_row or goal.row].suits(goal.against), goal


def test_rows_expect_readings_of_all_who_were_chosen_for_them(tmp_path: Path) -> None:
    """So that a goal is listed even if its candidate fails in every round."""
    rows = [
        Row("one", "one", "queue", lambda _: {}, candidates=frozenset(("segment-os", "kafka"))),
        Row("all", "all", "queue", lambda _: {}),
    ]
    runner = Runner(["segment-os", "lmdb-os"], rows, command.QUICK, tmp_path, Console(quiet=True))
    assert [row.readings for row in runner.results.rows] == [
        {"segment-os": []},
        {"segment-os": [], "lmdb-os": []},
    ]


def test_another_candidate_begins_each_round_and_every_second_one_goes_backwards() -> None:
    candidates: list[Any] = [SimpleNamespace(key=key) for key in "abc"]
    orders = ["".join(each.key for each in in_turn(candidates, number)) for number in (1, 2, 3, 4)]
    assert orders == ["bca", "cba", "abc", "bac"]
    assert in_turn([], 1) == []


def test_the_command_chooses_rows_by_pattern() -> None:
    assert {row.key for row in command.chosen_rows(["one-?"], quick=True)} == {"one-1", "one-8"}
    assert all(row.quick for row in command.chosen_rows([], quick=True))
    with pytest.raises(click.UsageError, match="no row is named nothing-like-it"):
        command.chosen_rows(["nothing-like-it"], quick=False)


def test_the_command_refuses_candidates_that_it_does_not_know() -> None:
    assert command.chosen_candidates(["kafka"], quick=True) == ["kafka"]
    with pytest.raises(click.UsageError, match="there is no candidate kafak"):
        command.chosen_candidates(["kafak"], quick=False)


@pytest.mark.parametrize(
    ("settings", "quick", "keys", "limit_s"),
    [
        (command.FULL, False, list(KINDS), 50 * 60),
        (command.QUICK, True, list(command.QUICK_CANDIDATES), 5 * 60),
    ],
)
def test_what_a_run_consists_of_fits_into_its_time(
    settings: Settings, quick: bool, keys: list[str], limit_s: float
) -> None:
    """The whole run leaves a reserve, since no machine is idle."""
    lengths = Lengths(settings.seconds, settings.warming_s, settings.warm_up_s)
    assert (
        expected_s(command.chosen_rows([], quick=quick), keys, settings.rounds, lengths)
        < limit_s
        <= settings.budget_s
    )


def test_what_takes_time_is_counted_for_those_who_take_part() -> None:
    """Cells of 2 + 1 s, with a pause before each and their overhead; Kafka adds 5 s, and it alone
    is warmed up, with 4 + 1 s."""
    rows = [
        Row("one", "one", "queue", lambda _: {}, candidates=frozenset(("segment-os", "kafka"))),
        Row("long", "long", "footprint", lambda _: {}, rounds=1, takes_s=30, warms=False),
    ]
    alone = by_part(rows, ["segment-os"], 3, Lengths(2, 4, 1))
    both = by_part(rows, ["segment-os", "kafka", "lmdb-os"], 3, Lengths(2, 4, 1))
    around = alone["one"] / 3 - 3
    assert PAUSE_S < around < 3
    assert alone == {"warming": 0, "one": pytest.approx(3 * (3 + around)), "long": pytest.approx(30 + around)}
    assert both["one"] == pytest.approx(3 * (3 + around + 3 + 5 + around))
    assert both["long"] == pytest.approx(3 * (30 + around))
    assert both["warming"] == pytest.approx(4 + 1 + 5 + around - PAUSE_S)


def test_rows_of_latency_with_a_share_group_join_it() -> None:
    rows = [
        Row(key, key, "latency", lambda _: {}, takes_s=1)
        for key in ("ack-round-trip", "e2e-1000", "first-record")
    ]
    ours, kafka = (by_part(rows, [key], 1, Lengths(2, 4, 1)) for key in ("segment-os", "kafka"))
    assert [kafka[row.key] - ours[row.key] for row in rows] == pytest.approx([5, 0, 5])
