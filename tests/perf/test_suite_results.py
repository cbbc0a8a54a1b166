"""How the performance suite evaluates its readings: ratios round by round, goals, means over rows,
and its JSON. No broker, no real time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perf.report.data import Report
from perf.suite.goals import ALL_CLIENT_ROWS, Goal, all_goals, engine_ratios, judge
from perf.suite.results import (
    METRICS,
    CandidateFacts,
    Ratio,
    Results,
    RowResult,
    from_json,
    ratio_of,
    to_json,
)


def results_of(*rows: RowResult) -> Results:
    facts = CandidateFacts("segment-os", "segment, os", "kbroker", "segment", "os", "1.0")
    return Results(
        {"cpus": 2}, "2026-01-01T00:00:00+00:00", "full", 12.5, [facts], list(rows), notes=["a note"]
    )


def row(key: str, group: str = "share", **rates: list[float]) -> RowResult:
    readings = {name.replace("_", "-"): [{"rate": rate} for rate in found] for name, found in rates.items()}
    return RowResult(key, key.title(), group, readings=readings)


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    """Readings of one round are compared with each other: a machine that was slow for one round
    does not change the ratio."""
    assert ratio_of([20, 2, 33], [10, 1, 11]) == Ratio(2, 2, 3)


def test_a_missing_round_leaves_the_ratio_of_medians_between_the_extremes() -> None:
    assert ratio_of([10, 20, 30], [10, 5]) == Ratio(20 / 7.5, 1, 6)


def test_ratios_pair_readings_of_the_same_round() -> None:
    """One failed in round 2, the other in round 4."""
    found = RowResult("one-8", "One-8", "queue")
    for number, rate in ((1, 20.0), (3, 90.0), (4, 7.0)):
        found.add("segment-os", number, {"rate": rate})
    for number, rate in ((1, 10.0), (2, 1.0), (3, 30.0)):
        found.add("kafka", number, {"rate": rate})
    assert results_of(found).ratio("one-8", "rate", "segment-os", "kafka") == Ratio(2.5, 2, 3)


def test_no_ratio_without_a_round_in_common() -> None:
    found = RowResult("one-8", "One-8", "queue")
    found.add("segment-os", 1, {"rate": 2.0})
    found.add("kafka", 2, {"rate": 1.0})
    assert results_of(found).ratio("one-8", "rate", "segment-os", "kafka") is None


def test_readings_of_earlier_versions_have_no_round_and_pair_by_position() -> None:
    results = results_of(row("one-8", segment_os=[20, 2, 33], kafka=[10, 1, 11]))
    assert results.ratio("one-8", "rate", "segment-os", "kafka") == Ratio(2, 2, 3)


@pytest.mark.parametrize(("above", "below"), [([], [1.0]), ([1.0], []), ([1.0, 1.0], [1.0, 0.0])])
def test_no_ratio_without_readings_or_by_zero(above: list[float], below: list[float]) -> None:
    assert ratio_of(above, below) is None


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ({"at_least": 2.0}, True),
        ({"at_least": 2.1}, False),
        ({"at_most": 2.0}, True),
        ({"at_most": 1.9}, False),
        ({}, None),
    ],
)
def test_goals_are_limits_of_the_median_ratio(limits: dict[str, float], met: bool | None) -> None:
    results = results_of(row("one-8", segment_os=[2, 4, 9], kafka=[1, 2, 3]))
    (judged,) = judge(results, [Goal("one-8", "rate", "segment-os", "kafka", **limits)])
    assert (judged.ratio, judged.low, judged.high, judged.met) == (2, 2, 3, met)


def test_a_goal_may_compare_two_rows_of_one_candidate() -> None:
    results = results_of(row("members-8", segment_os=[100, 100]), row("members-500", segment_os=[80, 90]))
    (judged,) = judge(
        results,
        [Goal("members-500", "rate", "segment-os", "segment-os", at_least=0.7, against_row="members-8")],
    )
    assert (judged.ratio, judged.met) == (pytest.approx(0.85), True)


def test_goals_of_what_was_not_chosen_are_left_out_and_what_gave_no_reading_is_undecided() -> None:
    one = row("one-8", segment_os=[2.0], kafka=[])
    goals = [Goal(key, "rate", "segment-os", "kafka", at_least=1) for key in ("one-8", "one-1")]
    (judged,) = judge(results_of(one), goals)
    assert (judged.row, judged.ratio, judged.met) == ("one-8", None, None)
    assert Report(results_of(one), METRICS).counts([judged]) == (0, 0, 1)


def test_engines_are_compared_by_geometric_mean_over_the_rows_of_clients() -> None:
    """For latency the ratio is inverted; footprint is not included."""
    latency = RowResult(
        "e2e", "e2e", "latency", readings={"segment-disk": [{"p50_ms": 1.0}], "lmdb-disk": [{"p50_ms": 4.0}]}
    )
    results = results_of(
        row("produce", "produce", segment_disk=[10], lmdb_disk=[10]),
        latency,
        row("memory", "footprint", segment_disk=[1], lmdb_disk=[9]),
    )
    *rows, mean = engine_ratios(results)
    assert [(each.row, each.metric, each.ratio, each.met) for each in rows] == [
        ("produce", "rate", 1.0, None),
        ("e2e", "p50_ms", 0.25, None),
    ]
    assert (mean.row, mean.candidate, mean.ratio, mean.at_least, mean.met) == (
        ALL_CLIENT_ROWS,
        "lmdb-disk",
        pytest.approx(0.5),
        0.7,
        False,
    )


def test_the_first_record_is_among_the_rows_of_clients_by_its_time() -> None:
    first = RowResult(
        "first-record", "", "latency", readings={"segment-disk": [{"ms": 20.0}], "lmdb-disk": [{"ms": 25.0}]}
    )
    found, mean = engine_ratios(results_of(first))
    assert (found.metric, found.ratio, mean.ratio) == ("ms", 0.8, pytest.approx(0.8))


def test_an_engines_row_without_a_reading_is_listed_and_leaves_its_mean_undecided() -> None:
    """Rows that the engine is not meant to run are not listed."""
    results = results_of(
        row("one-1", segment_disk=[10], lmdb_disk=[9]),
        row("one-8", segment_disk=[10], lmdb_disk=[]),
        row("two", segment_disk=[10]),
    )
    *rows, mean = found = engine_ratios(results)
    assert [(each.row, each.ratio) for each in rows] == [("one-1", 0.9), ("one-8", None)]
    assert (mean.ratio, mean.met, mean.title) == (
        pytest.approx(0.9),
        None,
        "geometric mean over 1 of 2 rows of clients",
    )
    assert Report(results, METRICS).counts(found) == (0, 0, 2)


def test_results_survive_their_json() -> None:
    results = results_of(row("one-8", segment_os=[2, 4], kafka=[1, 2]))
    results.goals = judge(results, [Goal("one-8", "rate", "segment-os", "kafka", at_least=1)])
    data: dict[str, Any] = json.loads(json.dumps(to_json(results)))
    assert from_json(data) == results
    assert data["metrics"]["rate"] == {"title": "throughput", "unit": "records/s", "better": "higher"}


def test_every_goal_names_a_metric_and_has_one_limit() -> None:
    for goal in all_goals():
        assert goal.metric in METRICS
        assert (goal.at_least is None) != (goal.at_most is None)
