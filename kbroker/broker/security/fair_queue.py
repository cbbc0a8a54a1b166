"""A bounded queue that clients without a password may fill, shared between addresses.

One address may fill it while no other one wants a place. If it is full, a client at another address
takes the place of the latest one of the address that has most of them. So a flood from few
addresses keeps no other one out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Final

import trio

_SITE_BITS: Final = 64
"""Of an IPv6 address: a client that has one has all that begin with these."""


class QueueFull(Exception):
    """The client may try again later."""


class FairQueue:
    """- `waiting`: the places that are taken
    - `refused`: clients that found no place, or lost theirs"""

    def __init__(self) -> None:
        self._places: dict[str, list[trio.CancelScope]] = {}
        """For each site, in the order in which they came."""
        self.waiting = 0
        self.refused = 0

    @contextmanager
    def place(self, host: str, most: int) -> Iterator[None]:
        """A place, of at most so many, for the client at this address, while it waits inside.
        Raises QueueFull at once, or instead of what it waits for."""
        site = _site(host)
        if self.waiting >= most:
            self.refused += 1
            self._make_room(site)
        with trio.CancelScope() as place:
            places = self._places.setdefault(site, [])
            places.append(place)
            self.waiting += 1
            try:
                yield
            finally:
                self.waiting -= 1
                places.remove(place)
                if not places:
                    del self._places[site]
        if place.cancelled_caught:
            raise QueueFull

    def _make_room(self, site: str) -> None:
        """Refuse one of the site that has most. A thread that runs is not stopped. Raises QueueFull
        if `site` would then have most."""
        most = max(self._places.values(), key=_still_there)
        if _still_there(most) <= _still_there(self._places.get(site, ())) + 1:
            raise QueueFull
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
