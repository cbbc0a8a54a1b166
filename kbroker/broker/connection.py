"""What a handler may know of the connection that its request came in on: who the peer is, and how to wait for something.

The sockets are the server's (server.py); tests put a fake peer here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import trio

from kbroker.broker.waiting import Pending, Waiter
from kbroker.records import Buffer

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker


class PeerGone(Exception):
    """The client hung up while its request was waiting: nothing more may be done on its behalf."""


class CloseConnection(Exception):
    """The request cannot be answered within the protocol: end the connection, with one log line."""


class Connection:
    """`hang_up` waits until the peer has closed its side (it never returns otherwise)."""

    __slots__ = ("client_host", "hang_up", "id")

    def __init__(self, connection_id: int, client_host: str, hang_up: Callable[[], Awaitable[None]]) -> None:
        self.id = connection_id
        self.client_host = client_host
        self.hang_up = hang_up

    async def park(self, waiter: Waiter, until: float) -> None:
        """Wait until `waiter` is woken or trio's clock reaches `until`, whichever is first. Raises PeerGone."""
        if waiter.woken:
            return
        with trio.CancelScope(deadline=until) as scope:
            waiter.attach(scope)
            try:
                await self.hang_up()
                raise PeerGone
            finally:
                waiter.attach(None)

    async def pause(self, seconds: float) -> None:
        """Let time pass, as long as the peer is there. Raises PeerGone."""
        await self.park(Waiter(), trio.current_time() + seconds)


class Raw(NamedTuple):
    """A response body packed by hand: buffers to send as they are. `errors`: the error codes in it, for the metrics."""

    buffers: Sequence[Buffer]
    errors: Sequence[int] = ()


class Later(NamedTuple):
    """A response body that is there when `pending` is at zero; `body` then makes it (None: nothing is sent, acks=0)."""

    pending: Pending
    body: Callable[[], Raw | None]


Message: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Message | Raw | Later | Any
"""Also any object whose attributes are kio's field names (replies of the coordinators)."""
Handler: TypeAlias = Callable[["Request"], Answer | Awaitable[Answer]]


class Request(NamedTuple):
    """One request, decoded. `body` is kio's entity of the request's api key and version."""

    broker: Broker
    connection: Connection
    api_key: int
    version: int
    client_id: str | None
    body: Any
