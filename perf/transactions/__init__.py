"""Transactions and compaction: `python -m perf.transactions`, `make perf-transactions`
(perf/README.md, "Transactions and compaction").

A separate suite with the candidates, turns, windows and reports of perf.suite. `all_rows` lists its
rows.
"""

from __future__ import annotations

from perf.suite.rows import Row


def all_rows() -> list[Row]:
    """In the order in which they run and are shown. The cleaning comes last, since it fills the
    disk and the page cache."""
    from perf.transactions import cleaning, committing, pipeline, reading

    return [*committing.ROWS, *reading.ROWS, *pipeline.ROWS, *cleaning.ROWS]
