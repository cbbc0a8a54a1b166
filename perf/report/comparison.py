"""Compares two runs of the suite: is each ratio reproduced?

Ratios are compared, not readings, which differ between days and with the load of the machine. Two
ratios agree if their spreads, from the lowest to the highest round, overlap. With few rounds this
is a strict test: of equal candidates read three times in each run, one ratio in ten disagrees by
chance, and of those read twice one in three. The report therefore states the number of
disagreements expected by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perf.report.data import Report, between, goal_title, has_limit, short_name, sign, times
from perf.suite.results import GoalResult

_Key: TypeAlias = tuple[str, str, str, str, str | None]


@dataclass(frozen=True, slots=True)
class Pair:
    """One goal in both runs; None if a run does not have it."""

    first: GoalResult | None
    second: GoalResult | None

    @property
    def goal(self) -> GoalResult:
        goal = self.first or self.second
        assert goal is not None
        return goal

    @property
    def agrees(self) -> bool | None:
        """None if one of the runs has no ratio."""
        return None if self.gap is None else self.gap == 0

    @property
    def gap(self) -> float | None:
        """The distance between the spreads: 0.1 if the higher one begins 10 % above the end of the
        lower one; 0 if they overlap."""
        spreads = [_spread(each) for each in (self.first, self.second)]
        if None in spreads:
            return None
        (_, end), (begin, _) = sorted(each for each in spreads if each is not None)
        if begin <= end:
            return 0.0
        return begin / end - 1 if end else math.inf

    @property
    def is_judged_alike(self) -> bool | None:
        """Whether the goal is met in both runs, or missed in both; None if one of them has not
        judged it."""
        verdicts = [each and each.met for each in (self.first, self.second)]
        return None if None in verdicts else verdicts[0] == verdicts[1]


def pairs(first: Report, second: Report) -> list[Pair]:
    """Every goal of either run, in the order of the first run, then those that only the second
    has."""
    ones, others = ({_key(goal): goal for goal in report.goals} for report in (first, second))
    return [Pair(ones.get(key), others.get(key)) for key in dict.fromkeys((*ones, *others))]


def counts(found: Sequence[Pair]) -> dict[str, int]:
    """Counts of all ratios, and of those that are goals. `judged_differently`: met in one run
    only."""
    goals = [pair for pair in found if has_limit(pair.goal)]
    return {
        "agree": _count(found, lambda pair: pair.agrees is True),
        "disagree": _count(found, lambda pair: pair.agrees is False),
        "not_in_both": _count(found, lambda pair: pair.agrees is None),
        "goals_agree": _count(goals, lambda pair: pair.agrees is True),
        "goals_disagree": _count(goals, lambda pair: pair.agrees is False),
        "goals_not_in_both": _count(goals, lambda pair: pair.agrees is None),
        "judged_differently": _count(goals, lambda pair: pair.is_judged_alike is False),
    }


def by_chance(first: Report, second: Report) -> float:
    """The number of pairs expected to disagree if the order of the rounds were random. With m and n
    rounds, all of one run are above all of the other in two of the (m + n)! / (m! n!) orders."""
    found = (pair for pair in pairs(first, second) if pair.agrees is not None)
    rounds = ([_rounds(report, pair.goal) for report in (first, second)] for pair in found)
    return math.fsum(2 / math.comb(sum(each), each[0]) for each in rounds)


def _rounds(report: Report, goal: GoalResult) -> int:
    """The number of rounds of a goal; for a goal over many rows, that of the run."""
    return len(report.results.values(goal.row, goal.candidate, goal.metric)) or report.rounds()


def to_json(first: Report, second: Report) -> dict[str, Any]:
    """`runs`, `goals` (one for each of `pairs`, with the whole goal of either run), `counts` and
    `disagree_by_chance`."""
    found = pairs(first, second)
    names = ("row", "metric", "candidate", "against", "against_row", "title")
    goals = [
        {
            **{name: getattr(pair.goal, name) for name in names},
            "first": asdict(pair.first) if pair.first else None,
            "second": asdict(pair.second) if pair.second else None,
            "agrees": pair.agrees,
            "gap": pair.gap,
        }
        for pair in found
    ]
    return {
        "runs": [dict(report.facts()) for report in (first, second)],
        "goals": goals,
        "counts": counts(found),
        "disagree_by_chance": by_chance(first, second),
    }


def show(first: Report, second: Report, console: Console) -> None:
    """The content of `to_json`, as a table."""
    found = pairs(first, second)
    for name, report in (("first", first), ("second", second)):
        console.print(
            Text(f"{name}: {', '.join(f'{key} {value}' for key, value in report.facts())}", style="dim")
        )
        if report.rounds() < 2:
            console.print(Text(f"The {name} run has one round, so no spreads.", style="yellow"))
    table = Table(title="Ratios of two runs: median, and lowest to highest round", title_justify="left")
    for column in ("", "workload", "metric"):
        table.add_column(column)
    for column in ("first", "of the rounds", "", "second", "of the rounds", ""):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("apart", justify="right")
    before = None
    for pair in found:
        title = f"{pair.goal.candidate} against {pair.goal.against}"
        if title != before:
            table.add_section()
            table.add_row("", Text(title, style="bold"))
            before = title
        table.add_row(*_row(first if pair.first else second, pair))
    console.print(table)
    console.print(_verdict(counts(found), by_chance(first, second)))


def _row(report: Report, pair: Pair) -> list[Text]:
    mark, style = {True: ("=", "green"), False: ("≠", "bold red"), None: ("○", "yellow")}[pair.agrees]
    cells = [
        Text(mark, style=style),
        Text(goal_title(report, pair.goal)),
        Text(short_name(report, pair.goal.metric)),
    ]
    for goal in (pair.first, pair.second):
        cells += _of_run(goal, is_remarkable=pair.is_judged_alike is False)
    return [*cells, Text(f"{100 * pair.gap:.1f} %" if pair.gap else "", style=style)]


def _of_run(goal: GoalResult | None, *, is_remarkable: bool) -> list[Text]:
    if goal is None or goal.ratio is None:
        return [Text("not measured", style="dim"), Text(), Text()]
    spread = between(goal.low, goal.high) if goal.low is not None and goal.high is not None else ""
    return [
        Text(times(goal.ratio)),
        Text(spread, style="dim"),
        Text(sign(goal), style="bold yellow" if is_remarkable else "dim"),
    ]


def _verdict(count: dict[str, int], expected: float) -> Text:
    goals = (
        f"{count['goals_agree']} of {count['goals_agree'] + count['goals_disagree']} goals' ratios "
        "agree within their spreads"
    )
    every = (
        f"{count['agree']} of all {count['agree'] + count['disagree']} ratios; by chance "
        f"{expected:.0f} would not"
    )
    rest = (
        f"{count['not_in_both']} are not in both runs; {count['judged_differently']} goals are met in "
        "one of them only"
    )
    return Text(f"{goals}, {every}. {rest}.", style="green" if count["disagree"] <= expected else "yellow")


def _key(goal: GoalResult) -> _Key:
    return goal.row, goal.metric, goal.candidate, goal.against, goal.against_row


def _spread(goal: GoalResult | None) -> tuple[float, float] | None:
    if goal is None or goal.ratio is None:
        return None
    return (goal.ratio if goal.low is None else goal.low, goal.ratio if goal.high is None else goal.high)


def _count(found: Sequence[Pair], wanted: Callable[[Pair], bool]) -> int:
    return sum(map(wanted, found))
