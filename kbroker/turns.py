"""How many rows of a long request one turn of the event loop handles, before others get one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

ROWS_A_TURN: Final = 256
"""Rows that are read, built or encoded: some milliseconds of work."""


def parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many rows as one turn handles, again and again; at least once."""
    for at in range(0, len(rows) or 1, ROWS_A_TURN):
        yield rows[at : at + ROWS_A_TURN]
