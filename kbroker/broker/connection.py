"""The connection that a request came in on: the peer's address, whether it has hung up, and how a
handler waits for something on the peer's behalf.

The sockets are the server's (kbroker/server); tests put a fake peer here.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Protocol

import trio

from kbroker.broker.commits.deadlines import Deadlines
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.security.log_in import LogIn
from kbroker.metrics import WaitMetrics
from kbroker.security.metering import Metering
from kbroker.security.principals import ANONYMOUS, Principal
from kbroker.security.rights import Rights
from kbroker.settings.listeners import Listener

_LONGEST_ALARM_S = 60.0
"""Timers cannot be cancelled, so one may outlive its connection. A timer for the whole wait could
do so by weeks."""


class PeerGone(Exception):
    """The client hung up while its request waited: nothing more may be done on its behalf."""


class Search(Protocol):
    """A request for records that waits until there are enough, Fetch or ShareFetch."""

    @property
    def has_paused(self) -> bool:
        """Whether other tasks ran during the last look, so that there may be more by now."""

    async def look(self, *, is_last: bool) -> bool:
        """Search for records. True: they are enough, or a wait is pointless. `is_last`: the time is
        over."""

    def watch(self, waiter: Waiter) -> None:
        """Wake `waiter`, from now on, whenever a look may find more."""

    def unwatch(self) -> None: ...


class ClientConnection:
    """A client's connection, without its socket. `deadlines`: the broker's; `listener`: on which it
    came in, None for the only one.

    Nearly every fetch of a consumer that keeps up parks, so parking costs neither a cancel scope
    nor a look at the socket. The server calls hang_up() when the peer has closed its side, and the
    connection keeps one timer for its deadlines."""

    __slots__ = (
        "_alarm",
        "_deadlines",
        "_parked",
        "_until",
        "client_host",
        "has_hung_up",
        "id",
        "listener",
        "log_in",
        "metering",
        "principal",
        "rights",
    )

    def __init__(
        self, connection_id: int, client_host: str, deadlines: Deadlines, listener: Listener | None = None
    ) -> None:
        self.id = connection_id
        self.client_host = client_host
        self.listener = listener
        self.principal: Principal = ANONYMOUS
        self.log_in: LogIn | None = None
        """On a listener with SASL."""
        self.has_hung_up = False
        self.rights: Rights | None = None
        """None: there is no authorizer, and the client may do everything."""
        self.metering: Metering | None = None
        """Of the request that is handled now. None: no quotas are set."""
        self._deadlines = deadlines
        self._parked: Waiter | None = None
        self._until = math.inf
        self._alarm = math.inf
        """When the connection's timer goes off. An earlier request may have set it."""

    def hang_up(self) -> None:
        """The peer has closed its side."""
        self.has_hung_up = True
        if self._parked is not None:
            self._parked.resume()

    async def park(self, waiter: Waiter, until: float) -> None:
        """Wait until `waiter` is woken or trio's clock reaches `until`, whichever is first. Raises
        PeerGone."""
        if waiter.woken:
            return
        self._parked, self._until = waiter, until
        if until < self._alarm:
            self._set_alarm(until)
        try:
            if not self.has_hung_up:
                await waiter.wait()
        finally:
            self._parked = None
        if self.has_hung_up and not waiter.woken:
            raise PeerGone

    def _set_alarm(self, until: float) -> None:
        self._alarm = at = min(until, trio.current_time() + _LONGEST_ALARM_S)
        self._deadlines.schedule(at * 1000, partial(self._ring, at))

    def _ring(self, at: float) -> None:
        if at != self._alarm:
            return  # A nearer timer replaced this one and has set the next.
        self._alarm = math.inf
        if self._parked is None:
            return
        if self._until <= at:
            self._parked.resume()
        else:
            self._set_alarm(self._until)

    async def wait_for(self, search: Search, wait_ms: int, waits: WaitMetrics) -> None:
        """Look again whenever there may be more, until `look` returns True or the time is over. The
        caller must have looked once, since most requests find enough and need no waiter. Raises
        PeerGone."""
        until = trio.current_time() + wait_ms / 1000
        waiter = Waiter()
        search.watch(waiter)
        waiter.woken = search.has_paused
        waits.waiting += 1
        is_over = False
        try:
            while True:
                await self.park(waiter, until)
                is_last = is_over or not waiter.woken
                # Before the look: records that arrive while it reads in a thread must wake it.
                waiter.woken = False
                if await search.look(is_last=is_last):
                    return
                if is_last:
                    waits.expired += 1
                    return
                # `park` returns at once if the waiter was woken during the look.
                is_over = trio.current_time() >= until
        finally:
            waits.waiting -= 1
            search.unwatch()

    async def pause(self, seconds: float) -> None:
        """Sleep while the peer is connected. Raises PeerGone."""
        await self.park(Waiter(), trio.current_time() + seconds)
