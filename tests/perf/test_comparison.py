"""Two runs side by side: invented ones, and some whose spreads are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perf.report.__main__ import main
from perf.report.comparison import Pair, by_chance, counts, pairs
from perf.report.data import parse
from perf.suite.results import GoalResult
from tests.perf import made_up


def goal(low: float, ratio: float, high: float, *, at_least: float = 1.0) -> GoalResult:
    return GoalResult(
        "one-8",
        "rate",
        "segment-os",
        "kafka",
        at_least,
        None,
        ratio=ratio,
        low=low,
        high=high,
        met=ratio >= at_least,
    )


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """The second lacks a row, no longer meets one goal, whose ratio is three times the first's, and
    has a goal of its own."""
    first, second = made_up.results(seed=7), made_up.results(seed=7)
    second["goals"] = [each for each in second["goals"] if each["row"] != "one-1"]
    changed = second["goals"][0]
    changed |= {name: 3 * changed[name] for name in ("ratio", "low", "high")} | {"met": False}
    second["goals"].append({**changed, "row": "of-its-own", "title": "a goal of its own"})
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, data in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(data))
    return paths


def compared(runs: list[Path], *options: str) -> str:
    done = CliRunner().invoke(main, [str(runs[0]), "--compare", str(runs[1]), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ((1.0, 2.0, 3.0), (2.5, 4.0, 5.0), 0.0),
        ((2.5, 4.0, 5.0), (1.0, 2.0, 3.0), 0.0),
        ((1.0, 2.0, 3.0), (3.0, 4.0, 5.0), 0.0),
        ((1.0, 5.0, 9.0), (4.0, 4.0, 4.0), 0.0),
        ((1.0, 2.0, 3.0), (3.3, 4.0, 5.0), 0.1),
        ((3.3, 4.0, 5.0), (1.0, 2.0, 3.0), 0.1),
    ],
)
def test_ratios_agree_when_their_spreads_meet(
    first: tuple[float, ...], second: tuple[float, ...], gap: float
) -> None:
    pair = Pair(goal(*first), goal(*second))
    assert pair.gap == pytest.approx(gap)
    assert pair.agrees == (gap == 0)


def test_nothing_is_said_of_what_one_run_does_not_have() -> None:
    without = GoalResult("one-8", "rate", "segment-os", "kafka", 1.0, None)
    for pair in (Pair(goal(1, 2, 3), None), Pair(None, goal(1, 2, 3)), Pair(without, goal(1, 2, 3))):
        assert (pair.agrees, pair.gap, pair.is_judged_alike) == (None, None, None)


def test_the_same_run_agrees_with_itself() -> None:
    report = parse(made_up.results())
    found = counts(pairs(report, report))
    assert found["agree"] == len(report.goals) - 1
    assert (found["disagree"], found["not_in_both"], found["judged_differently"]) == (0, 1, 0)


def test_with_few_rounds_some_disagree_by_chance() -> None:
    """Two spreads of three are disjoint in 2 of 20 orders."""
    three, two = (parse(made_up.results(rounds=rounds)) for rounds in (3, 2))
    measured = sum(each.ratio is not None for each in three.goals)
    assert by_chance(three, three) == pytest.approx(measured / 10)
    assert by_chance(two, two) == pytest.approx(measured / 3)


def test_the_table_has_every_goal_of_both_and_a_count(runs: list[Path]) -> None:
    text = compared(runs)
    assert "a goal of its own" in text
    assert "not measured" in text
    assert "1 goals are met in one of them only" in text


def test_the_json_has_both_goals_and_the_counts(runs: list[Path]) -> None:
    found: dict[str, Any] = json.loads(compared(runs, "--json"))
    changed, alike, *_, own = found["goals"]
    assert (changed["agrees"], changed["second"]["ratio"]) == (
        False,
        pytest.approx(3 * changed["first"]["ratio"]),
    )
    assert changed["gap"] > 1
    assert (alike["agrees"], alike["gap"]) == (True, 0)
    assert (own["row"], own["first"], own["agrees"]) == ("of-its-own", None, None)
    gone = [each for each in found["goals"] if each["row"] == "one-1" and each["second"] is None]
    assert found["counts"]["disagree"] == 1
    assert found["counts"]["not_in_both"] == len(gone) + 2
    assert len(gone) == 4
    assert found["counts"]["judged_differently"] == 1
    assert found["disagree_by_chance"] > 1


@pytest.mark.parametrize(
    "options", [["--json"], ["--compare", "{run}", "--quiet"], ["--compare", "{run}", "--html", "page.html"]]
)
def test_options_that_mean_nothing_together(runs: list[Path], options: list[str]) -> None:
    done = CliRunner().invoke(main, [str(runs[0]), *(each.format(run=runs[1]) for each in options)])
    assert done.exit_code == 2
    assert "--compare" in done.output


def test_another_file_is_named(runs: list[Path]) -> None:
    runs[1].write_text("{}")
    done = CliRunner().invoke(main, [str(runs[0]), "--compare", str(runs[1])])
    assert done.exit_code == 1
    assert "second.json is not a run of the suite" in done.output
