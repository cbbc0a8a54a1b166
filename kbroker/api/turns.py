"""Turns of a long request that only reads: other requests get one in between.

A handler that waits calls `await turn.row()` for each row, and afterwards looks up by name what it
needs: topics and groups may have been deleted. A handler that does not wait returns an iterator of
rows instead (protocol/long_responses.py). A request that changes something is never interrupted,
but for AlterConfigs and IncrementalAlterConfigs, each resource of which is a change of its own.

Fetch and ShareFetch, whose rows must cost no call, count them and call `pause` themselves, or work
on `parts` of their rows (kbroker/turns.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from kbroker.turns import ROWS_A_TURN

pause = trio.lowlevel.checkpoint
"""Let others have a turn."""


async def in_turns(steps: Iterable[None]) -> None:
    """Work that yields where others should get a turn."""
    for _ in steps:
        await pause()


class RowTurn:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROWS_A_TURN

    async def row(self, count: int = 1) -> None:
        """One more row, or so many, is about to be read."""
        self._left -= count
        if self._left <= 0:
            self._left = ROWS_A_TURN
            await pause()
