"""PBKDF2 for log-ins with a password, in threads: two at a time, and a bounded number in the queue.

Clients without a password can have the broker derive too, so it must not cost more than that. One
address may fill the queue while no other one wants it. If it is full, a log-in from another address
takes the place of the latest one of the address that has most of them, so a flood from few
addresses keeps no other one out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

import trio

from kbroker.security.exchange import Derivation
from kbroker.security.scram import salt_password
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

AT_A_TIME: Final = 2
QUEUED: Final = 64
_REPORT_EVERY_S: Final = 60.0
_SITE_BITS: Final = 64
"""Of an IPv6 address: a client that has one has all that begin with these."""


class TooManyDerivations(Exception):
    """The log-in is refused: the client may try again later."""


@dataclass(frozen=True, slots=True)
class DerivationsStatistics:
    """`waiting`: including those that run."""

    waiting: int
    done: int
    refused: int


class Derivations:
    def __init__(self) -> None:
        self._limit = trio.CapacityLimiter(AT_A_TIME)
        self._seldom = Seldom(_REPORT_EVERY_S)
        self._places: dict[str, list[trio.CancelScope]] = {}
        """For each site those that wait or run, in the order in which they came."""
        self._waiting = 0
        self._done = 0
        self._refused = 0

    def statistics(self) -> DerivationsStatistics:
        return DerivationsStatistics(self._waiting, self._done, self._refused)

    async def derive(self, wanted: Derivation, host: str) -> bytes:
        """`host`: the address of the client. Raises TooManyDerivations."""
        site = _site(host)
        if self._waiting >= AT_A_TIME + QUEUED:
            self._make_room(site)
        salted: bytes | None = None
        with trio.CancelScope() as place:
            places = self._places.setdefault(site, [])
            places.append(place)
            self._waiting += 1
            try:
                salted = await trio.to_thread.run_sync(
                    salt_password,
                    wanted.password,
                    wanted.salt,
                    wanted.iterations,
                    wanted.digest,
                    limiter=self._limit,
                )
            finally:
                self._waiting -= 1
                places.remove(place)
                if not places:
                    del self._places[site]
        if salted is None:
            raise TooManyDerivations
        self._done += 1
        return salted

    def _make_room(self, site: str) -> None:
        """Refuse one that waits, of the site that has most. One that runs is not stopped. Raises
        TooManyDerivations if `site` would then have most."""
        self._refused += 1
        if times := self._seldom.times("refused", trio.current_time()):
            logger.warning(
                "too many log-ins at a time: %d passwords wait to be checked, and %d log-ins were "
                "refused since this was last logged",
                self._waiting,
                times,
            )
        most = max(self._places.values(), key=_still_there)
        if _still_there(most) <= _still_there(self._places.get(site, ())) + 1:
            raise TooManyDerivations
        next(place for place in reversed(most) if not place.cancel_called).cancel()


def _still_there(places: Iterable[trio.CancelScope]) -> int:
    """How many have not been refused. Those leave when their tasks run."""
    return sum(not place.cancel_called for place in places)


def _site(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return str(int(address) >> (128 - _SITE_BITS))
    return host
