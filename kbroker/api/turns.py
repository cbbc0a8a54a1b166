"""Turns of a long request that only reads: other requests get one in between.

A handler that waits calls `await turn.row()` for each row, and afterwards looks up by name what it
needs: topics and groups may have been deleted. A handler that does not wait returns an iterator of
rows instead (protocol/long_responses.py). A request that changes something is never interrupted.
"""

from __future__ import annotations

import trio

from kbroker.protocol.long_responses import ROWS_A_TURN


class Turn:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROWS_A_TURN

    async def row(self) -> None:
        """One more row is about to be read."""
        self._left -= 1
        if self._left <= 0:
            self._left = ROWS_A_TURN
            await trio.lowlevel.checkpoint()
