"""Figures of work queues: one job at a time, redelivery, and parked jobs.

make perf-queues                                          everything, about 40 minutes
make perf-queues PERF_ARGS=--quick                        two candidates, short windows
python -m perf.queues --rows 'one-8-*' --candidates segment-disk --rounds 3
"""

from __future__ import annotations

from perf.queues import all_rows
from perf.queues.goals import all_goals
from perf.suite.candidates import KINDS
from perf.suite.command import Suite, command_of
from perf.suite.runner import Settings

SUITE = Suite(
    "Measure kbroker's work queues on every engine: one job at a time from large batches, redelivery, "
    "parked jobs.",
    all_rows,
    tuple(key for key, kind in KINDS.items() if kind.family == "kbroker"),
    ("segment-disk", "segment-os"),
    all_goals,
    full=Settings(rounds=3, seconds=2.0, warming_s=2.0, warm_up_s=0.5, quick=False, budget_s=90 * 60),
    quick=Settings(rounds=1, seconds=1.0, warming_s=1.0, warm_up_s=0.3, quick=True, budget_s=10 * 60),
)

main = command_of(SUITE)

if __name__ == "__main__":
    main(prog_name="python -m perf.queues")
