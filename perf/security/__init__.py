"""Encrypted connections: `python -m perf.security`, `make perf-security` (perf/README.md, "TLS").

A separate suite with the candidates, turns, windows and reports of perf.suite; every broker has a
second listener with TLS. `all_rows` lists its rows.
"""

from __future__ import annotations

from perf.suite.rows import Row


def all_rows() -> list[Row]:
    """In the order in which they run and are shown."""
    from perf.security import rows

    return list(rows.ROWS)
