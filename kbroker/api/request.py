"""A request as its handler takes it, and the forms that the answer may have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from kbroker.broker.broker import Broker
from kbroker.broker.commits.waiting import Pending
from kbroker.broker.connection import Connection
from kbroker.formats.batches import Buffer
from kbroker.makers import maker


class CloseConnection(Exception):
    """The request cannot be answered within the protocol: end the connection, with one log line.

    `kind`: what the line is about, without the numbers that a client chooses; None: the message as
    it is."""

    def __init__(self, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind


@final
class Raw(NamedTuple):
    """A response body packed by hand: buffers to send as they are. `errors`: the error codes in it,
    for the metrics."""

    buffers: Sequence[Buffer]
    errors: Sequence[int] = ()


@final
class Later(NamedTuple):
    """A response body that is there when `pending` is at zero; `body` then makes it (None: nothing
    is sent, acks=0)."""

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


as_request: Callable[[tuple[Broker, Connection, int, int, str | None, Any]], Request] = maker(
    Request, tuple[Any, ...]
)
