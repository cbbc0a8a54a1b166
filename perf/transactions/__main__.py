"""Figures of transactions and of compaction.

make perf-transactions                                    everything, under twenty minutes
make perf-transactions PERF_ARGS=--quick                  segment engine and Kafka, three minutes
python -m perf.transactions --rows 'commit-*' --candidates segment-os,kafka --rounds 3
"""

from __future__ import annotations

from perf.suite.candidates import KINDS
from perf.suite.command import QUICK_CANDIDATES, Suite, command_of
from perf.suite.runner import Settings
from perf.transactions import all_rows
from perf.transactions.goals import all_goals

SUITE = Suite(
    "Measure transactions on every engine beside Apache Kafka, and share consumers beside a compaction.",
    all_rows,
    tuple(KINDS),
    QUICK_CANDIDATES,
    all_goals,
    full=Settings(rounds=5, seconds=2.0, warming_s=3.0, warm_up_s=0.5, quick=False, budget_s=21 * 60),
    quick=Settings(rounds=1, seconds=1.0, warming_s=1.0, warm_up_s=0.3, quick=True, budget_s=5 * 60),
)

main = command_of(SUITE)

if __name__ == "__main__":
    main(prog_name="python -m perf.transactions")
