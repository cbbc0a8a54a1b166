"""PBKDF2 for log-ins with a password, in threads: two at a time, and a bounded number in the queue.

Clients without a password can have the broker derive too, so it must not cost more than that. The
queue is shared between addresses (fair_queue.py).
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import trio

from kbroker.broker.security.fair_queue import FairQueue, QueueFull
from kbroker.security.exchange import Derivation
from kbroker.security.scram import salt_password
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

AT_A_TIME: Final = 2
QUEUED: Final = 64
_REPORT_EVERY_S: Final = 60.0


class TooManyDerivations(Exception):
    """The log-in is refused: the client may try again later."""


class DerivationsStatistics(NamedTuple):
    """`waiting`: including those that run."""

    waiting: int
    done: int
    refused: int


class Derivations:
    def __init__(self) -> None:
        self._limit = trio.CapacityLimiter(AT_A_TIME)
        self._seldom = Seldom(_REPORT_EVERY_S)
        self._queue = FairQueue()
        self._done = 0

    def statistics(self) -> DerivationsStatistics:
        return DerivationsStatistics(self._queue.waiting, self._done, self._queue.refused)

    async def derive(self, wanted: Derivation, host: str) -> bytes:
        """`host`: the address of the client. Raises TooManyDerivations."""
        if self._queue.waiting >= AT_A_TIME + QUEUED:
            self._report()
        try:
            with self._queue.place(host, AT_A_TIME + QUEUED):
                salted = await trio.to_thread.run_sync(
                    salt_password,
                    wanted.password,
                    wanted.salt,
                    wanted.iterations,
                    wanted.digest,
                    limiter=self._limit,
                )
        except QueueFull:
            raise TooManyDerivations from None
        self._done += 1
        return salted

    def _report(self) -> None:
        if times := self._seldom.times("refused", trio.current_time()):
            logger.warning(
                "too many log-ins at a time: %d passwords wait to be checked, and %d log-ins were "
                "refused since this was last logged",
                self._queue.waiting,
                times,
            )
