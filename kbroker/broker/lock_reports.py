"""Logs that locks of a share group run out: at most one line a minute for each group, none for a record.

It is a WARNING. Each of these records is delivered twice although no consumer may have failed, and is
given up when that happens often. Either the consumers take longer than the lock lasts, or they have
gone; an operator can mend both.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import trio

from kbroker.share.effects import ShareSettings

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
_GATHERING_S = 1.0
"""How long a report waits after the first lock: those of the same fetches run out soon after it."""


@dataclass(slots=True)
class _RanOut:
    since_s: float
    records: int = 0
    given_up: int = 0


class LockReports:
    """`settings(group_id)`: the group's settings that are in force."""

    def __init__(self, settings: Callable[[str], ShareSettings]) -> None:
        self._settings = settings
        self._groups: dict[str, _RanOut] = {}
        self._something = trio.Event()

    def ran_out(self, group_id: str, records: int, given_up: int) -> None:
        """Locks of so many records ran out now. `given_up` of them have reached the delivery limit."""
        found = self._groups.get(group_id)
        if found is None:
            found = self._groups[group_id] = _RanOut(trio.current_time())
            self._something.set()
        found.records += records
        found.given_up += given_up

    async def run(self) -> None:
        """Report until cancelled, and once more then."""
        try:
            while True:
                await self._something.wait()
                await trio.sleep(_GATHERING_S)
                self._report()
                await trio.sleep(INTERVAL_S - _GATHERING_S)
        finally:
            self._report()

    def _report(self) -> None:
        now_s = trio.current_time()
        for group_id, found in self._groups.items():
            lock_ms = self._settings(group_id).lock_duration_ms
            logger.warning(
                "group %s: the locks of %d records ran out in the last %d s: %s; "
                "if its consumers are at work they need longer: kbroker configs set "
                "--group %s share.record.lock.duration.ms=%d (now %d), "
                "or fewer records a poll (max.poll.records)",
                group_id, found.records, max(1, math.ceil(now_s - found.since_s)), _outcome(found),
                shlex.quote(group_id), 2 * lock_ms, lock_ms,
            )  # fmt: skip
        self._groups.clear()
        self._something = trio.Event()


def _outcome(found: _RanOut) -> str:
    if not found.given_up:
        return "they are delivered again"
    again = found.records - found.given_up
    given_up = f"{found.given_up} of them were given up at share.delivery.count.limit"
    return f"{given_up}, the others are delivered again" if again else given_up
