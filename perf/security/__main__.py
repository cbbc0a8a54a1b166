"""Figures of encrypted connections.

make perf-security                                        segment engine and Kafka, ten minutes
make perf-security PERF_ARGS=--quick                      one short round
python -m perf.security --rows tls-fetch --rounds 3
"""

from __future__ import annotations

from perf.security import all_rows
from perf.security.goals import all_goals
from perf.suite.command import Suite, command_of
from perf.suite.runner import Settings

_CANDIDATES = ("segment-os", "segment-disk", "kafka")
SUITE = Suite(
    "Measure connections with TLS on the segment engine beside Apache Kafka.",
    all_rows,
    _CANDIDATES,
    _CANDIDATES,
    all_goals,
    full=Settings(rounds=5, seconds=2.0, warming_s=3.0, warm_up_s=0.5, quick=False, budget_s=15 * 60),
    quick=Settings(rounds=1, seconds=1.0, warming_s=1.0, warm_up_s=0.3, quick=True, budget_s=5 * 60),
    with_tls=True,
)

main = command_of(SUITE)

if __name__ == "__main__":
    main(prog_name="python -m perf.security")
