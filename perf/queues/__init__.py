"""Work queues, as `kbroker queues create` makes them: `python -m perf.queues`, `make perf-queues`
(perf/README.md, "Work queues").

A separate suite of kbroker alone, with the rows, turns, windows and reports of perf.suite.
`all_rows` lists its rows.
"""

from __future__ import annotations

from perf.suite.rows import Row


def all_rows() -> list[Row]:
    """In the order in which they run and are shown. Rows that start their own broker come last."""
    from perf.queues import one_at_a_time, ordered, parked, redelivery

    return [*one_at_a_time.ROWS, *ordered.ROWS, *redelivery.ROWS, *parked.ROWS]
