"""Logs that locks of a share group expire: at most one line a minute for each group, and no lines
for single records.

The line is a WARNING. Each of these records is delivered twice although perhaps no consumer has
failed, and is archived if that happens often. Either the consumers take longer than the lock lasts,
or they have died. An operator can repair both.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable
from operator import add
from typing import Final

import trio

from kbroker.settings.altering import CONFIGS, BrokerConfig, Scope
from kbroker.settings.queue import LOCK_MAX, LOCK_MAX_LIMIT_MS
from kbroker.share.effects import ShareSettings
from kbroker.share.statistics import RanOut

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
BOUND: Final = "group.share.max.record.lock.duration.ms"
_LOCK: Final = "share.record.lock.duration.ms"
_GATHERING_S = 1.0
"""How long a report waits after the first lock: others of the same fetches expire soon after."""


class LockReports:
    """`settings(group_id)`: the group's effective settings. `broker`: the broker's, which bound
    lock durations."""

    def __init__(self, settings: Callable[[str], ShareSettings], broker: BrokerConfig) -> None:
        self._settings = settings
        self._broker = broker
        self._groups: dict[str, tuple[float, RanOut]] = {}
        """Of groups that have to be reported: since when, and what has happened."""
        self._said_s: dict[str, float] = {}
        """When a group had its last line, if within the last minute."""
        self._something = trio.Event()

    def ran_out(self, group_id: str, ran_out: RanOut) -> None:
        """Note that locks of so many records have just expired."""
        since_s, before = self._groups.get(group_id, (trio.current_time(), RanOut(0, 0, 0)))
        self._groups[group_id] = since_s, RanOut(*map(add, before, ran_out))
        self._something.set()

    async def run(self) -> None:
        """Report until cancelled, and once more at the end."""
        try:
            while True:
                await self._something.wait()
                await trio.sleep(_GATHERING_S)
                self._report(at_end=False)
                if not self._groups:
                    self._something = trio.Event()
        finally:
            self._report(at_end=True)

    def _report(self, *, at_end: bool) -> None:
        """Report the groups whose last line is a minute old; at the end, all groups. The other
        groups wait, without delaying another group's first line."""
        now_s = trio.current_time()
        self._said_s = {
            group_id: said_s for group_id, said_s in self._said_s.items() if now_s - said_s < INTERVAL_S
        }
        for group_id in [each for each in self._groups if at_end or each not in self._said_s]:
            began_s, found = self._groups.pop(group_id)
            self._said_s[group_id] = now_s
            settings, since_s = self._settings(group_id), max(1, math.ceil(now_s - began_s))
            if found.at_lock_max:
                logger.warning(
                    "group %s: consumers that are alive held %d records for %d ms, as long as the broker "
                    "prolongs a lock "
                    "in all: %s; for longer jobs: kbroker configs set --group %s %s=%d",
                    group_id, found.at_lock_max, settings.lock_max_ms, _outcome(found),
                    shlex.quote(group_id), LOCK_MAX, min(2 * settings.lock_max_ms, LOCK_MAX_LIMIT_MS),
                )  # fmt: skip
            if (records := found.timeouts - found.at_lock_max) > 0:
                logger.warning(
                    "group %s: the locks of %d records ran out in the last %d s: %s; %s",
                    group_id, records, since_s, _outcome(found), self._advice(group_id, settings),
                )  # fmt: skip

    def _advice(self, group_id: str, settings: ShareSettings) -> str:
        if settings.lock_max_ms:
            return (
                "their consumers are gone or frozen, or had answered and that could not be saved; "
                f"all other locks the broker prolongs ({LOCK_MAX})"
            )
        longer = _longer(group_id, settings.lock_duration_ms, self._broker)
        return f"if its consumers are at work they need {longer}fewer records a poll (max.poll.records)"


def _outcome(found: RanOut) -> str:
    if not found.exhausted:
        return "they are delivered again"
    again = found.timeouts - found.exhausted
    given_up = f"{found.exhausted} of them were given up at share.delivery.count.limit"
    return f"{given_up}, the others are delivered again" if again else given_up


def _longer(group_id: str, lock_ms: int, broker: BrokerConfig) -> str:
    """How to double the lock duration, as far as the broker allows; empty if it is at its
    maximum."""
    most = CONFIGS[Scope.BROKER][BOUND].maximum
    assert isinstance(most, int)
    if lock_ms >= most:
        return ""
    raising, longest_ms = "", broker[BOUND]
    if lock_ms >= longest_ms:
        longest_ms = min(2 * lock_ms, most)
        raising = f"kbroker configs set --broker {broker['node.id']} {BOUND}={longest_ms}, and then "
    of_group = f"kbroker configs set --group {shlex.quote(group_id)} {_LOCK}={min(2 * lock_ms, longest_ms)}"
    return f"longer: {raising}{of_group} (now {lock_ms}), or "
