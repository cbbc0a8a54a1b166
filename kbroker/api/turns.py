"""Turns of a long request that only reads: other requests get one in between.

A handler that waits calls `await turn.row()` for each row, and afterwards looks up by name what it
needs: topics and groups may have been deleted. A handler that does not wait returns an iterator of
rows instead (protocol/long_responses.py). A request that changes something is never interrupted.

Fetch and ShareFetch, whose rows must cost no call, count them and call `pause` themselves, or work
on `parts` of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import trio

from kbroker.protocol.long_responses import ROWS_A_TURN

T = TypeVar("T")

pause = trio.lowlevel.checkpoint
"""Let others have a turn."""


def parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many rows as one turn handles, again and again; at least once."""
    for at in range(0, len(rows) or 1, ROWS_A_TURN):
        yield rows[at : at + ROWS_A_TURN]


async def in_turns(steps: Iterable[None]) -> None:
    """Work that yields where others should get a turn."""
    for _ in steps:
        await pause()


class Turn:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROWS_A_TURN

    async def row(self, count: int = 1) -> None:
        """One more row, or so many, is about to be read."""
        self._left -= count
        if self._left <= 0:
            self._left = ROWS_A_TURN
            await pause()
