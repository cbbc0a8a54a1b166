"""The performance suite's rows and the order in which they run, as far as that can be seen without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from perf import command
from perf.candidates import KINDS
from perf.goals import all_goals
from perf.rows import all_rows
from perf.runner import in_turn


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


def test_another_candidate_begins_each_round() -> None:
    candidates: list[Any] = [SimpleNamespace(key=key) for key in "abc"]
    orders = ["".join(each.key for each in in_turn(candidates, number)) for number in (1, 2, 3, 4)]
    assert orders == ["bca", "cab", "abc", "bca"]
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
