"""Percentiles, and the rates of an outcome."""

from __future__ import annotations

import pytest

from perf.workloads.outcome import Percentiles, WorkloadOutcome


def test_percentiles_are_values_that_were_read() -> None:
    assert Percentiles.of(float(value) for value in range(1000, 0, -1)) == Percentiles(
        500, 950, 990, 999, 1000, 1000
    )
    assert Percentiles.of([3.0]) == Percentiles(3, 3, 3, 3, 3, 1)
    assert Percentiles.of([2.0, 1.0]) == Percentiles(1, 2, 2, 2, 2, 2)
    assert Percentiles.of([]) is None


def test_rates() -> None:
    outcome = WorkloadOutcome(records=300, bytes=6_000_000, seconds=1.5)
    assert outcome.records_per_s == pytest.approx(200)
    assert outcome.megabytes_per_s == pytest.approx(4)
    assert WorkloadOutcome(records=0, bytes=0, seconds=0).records_per_s == 0
