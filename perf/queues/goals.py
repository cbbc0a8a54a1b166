"""The goals of work queues, as ratios within one run, on one broker."""

from __future__ import annotations

from collections.abc import Iterator

from perf.queues.one_at_a_time import CODECS, CONSUMERS
from perf.queues.ordered import ORDERED, UNORDERED
from perf.queues.own import OURS
from perf.suite.goals import Goal

SLICED = 0.7
"""The least rate with batches of 1 MB, as a part of the rate with batches of one job."""


def all_goals() -> list[Goal]:
    """In the order of the report. Ordered queues are included without a limit."""
    return list(_goals())


def _goals() -> Iterator[Goal]:
    for key in OURS:
        for consumers in CONSUMERS:
            for codec in CODECS:
                yield Goal(
                    f"one-{consumers}-{codec}",
                    "rate",
                    key,
                    key,
                    at_least=SLICED,
                    against_row=f"one-{consumers}-singles",
                )
        for row in ORDERED:
            yield Goal(row, "rate", key, key, against_row=UNORDERED)
