"""Keeps the key set with which the tokens of a listener are checked, and checks them, in threads.

One task reads the key set, so that there is never a second read at the same time: at the start,
every sasl.oauthbearer.jwks.endpoint.refresh.ms, and when a token names a key that is not in it.
Anybody can send such a token. So that happens at most every few seconds, and a bounded number of
log-ins wait for it, and for the threads. Addresses share these places (fair_queue.py). If a read
fails, the keys stay that there are.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import Final

import trio

from kbroker.broker.security.fair_queue import FairQueue, QueueFull
from kbroker.client.fetching import FetchFailed, fetch
from kbroker.clock import wall_clock_ms
from kbroker.security.oauth_keys import Key, read_keys
from kbroker.security.oauth_tokens import (
    Bearer,
    Signed,
    TokenRefused,
    UnknownKey,
    candidates,
    check_token,
    read_token,
)
from kbroker.security.sasl_settings import TokenSettings
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

MAX_KEY_SET_BYTES: Final = 262_144
READ_S: Final = 10.0
"""How long one read of the key set may take."""
UNKNOWN_EVERY_S: Final = 10.0
"""At least so much time is between two reads for keys that were not in the set."""
_CHECKS_AT_A_TIME: Final = 2
_WAITING: Final = 64
"""Log-ins that wait for a thread, and likewise for a read of the key set."""
_REPORT_EVERY_S: Final = 60.0


class TokenKeys:
    """Of one listener, whose name is `where`."""

    def __init__(self, settings: TokenSettings, where: str) -> None:
        self._settings = settings
        self._where = where
        self._keys: tuple[Key, ...] = ()
        self._threads = trio.CapacityLimiter(_CHECKS_AT_A_TIME)
        self._seldom = Seldom(_REPORT_EVERY_S)
        self._checks = FairQueue()
        self._waits = FairQueue()
        self._wanted = trio.Event()
        self._reading: trio.Event | None = trio.Event()
        """Set when the read under way has ended; None: there is none. The first one is to come."""
        self._not_before = -math.inf

    # -- tokens
    # ----------------------------------------------------------------------------------------------

    async def bearer_of(self, text: str, host: str) -> Bearer:
        """The bearer of a good token, which a client at this address has sent. Raises
        TokenRefused."""
        token = read_token(text)
        try:
            candidates(token, self._keys)
        except UnknownKey:
            await self._read_for_unknown(host)
        return await self._check(token, host)

    async def _check(self, token: Signed, host: str) -> Bearer:
        try:
            with self._checks.place(host, _CHECKS_AT_A_TIME + _WAITING):
                return await trio.to_thread.run_sync(self._checked, token, limiter=self._threads)
        except QueueFull:
            raise TokenRefused("too many tokens wait to be checked") from None

    def _checked(self, token: Signed) -> Bearer:
        """In a thread. The time is read here, since the token may have waited for the thread."""
        return check_token(token, self._keys, self._settings.rules, wall_clock_ms() / 1000)

    async def _read_for_unknown(self, host: str) -> None:
        """Wait until the key set has been read once more, if that may be now."""
        if self._reading is None:
            if trio.current_time() < self._not_before:
                return
            self._reading = trio.Event()
            self._not_before = trio.current_time() + UNKNOWN_EVERY_S
            self._wanted.set()
        reading = self._reading
        with suppress(QueueFull), self._waits.place(host, _WAITING), trio.move_on_after(READ_S):
            await reading.wait()

    # -- keys
    # ----------------------------------------------------------------------------------------------

    async def keep_current(self) -> None:
        """Read the key set again and again, until cancelled."""
        settings = self._settings
        backoff_s = settings.retry_backoff_s
        while True:
            if await self._read():
                backoff_s = settings.retry_backoff_s
                pause_s = settings.refresh_s
            else:
                pause_s = backoff_s
                backoff_s = min(backoff_s * 2, settings.retry_backoff_max_s)
            with trio.move_on_after(pause_s):
                await self._wanted.wait()

    async def _read(self) -> bool:
        if self._reading is None:
            self._reading = trio.Event()
        reading = self._reading
        self._wanted = trio.Event()
        try:
            self._keys = await trio.to_thread.run_sync(
                read_key_set, self._settings.url, abandon_on_cancel=True
            )
        except (FetchFailed, ValueError) as error:
            if self._seldom.times("failed", trio.current_time()):
                logger.error(
                    "listener %s: cannot read sasl.oauthbearer.jwks.endpoint.url: %s; the %d keys that there "
                    "are stay",
                    self._where,
                    error,
                    len(self._keys),
                )
            return False
        finally:
            self._reading = None
            reading.set()
        logger.debug("listener %s: %d keys for tokens", self._where, len(self._keys))
        return True


def read_key_set(url: str) -> tuple[Key, ...]:
    """Blocks for a bounded time. Raises FetchFailed, and ValueError for what is no key set."""
    return read_keys(fetch(url, limit_bytes=MAX_KEY_SET_BYTES, timeout_s=READ_S))
