"""A request as its handler receives it, and the forms that its answer may have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

from kbroker.broker.broker import Broker
from kbroker.broker.commits.waiting import Pending
from kbroker.broker.connection import ClientConnection
from kbroker.broker.options import Address
from kbroker.formats.batches import Buffer
from kbroker.formats.makers import maker


class CloseConnection(Exception):
    """The request cannot be answered within the protocol: end the connection, with one log line.

    `kind`: the subject of the line without the numbers that a client chooses; None: the message
    itself."""

    def __init__(self, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind


@final
class Raw(NamedTuple):
    """A response body packed by hand, as buffers to send. `errors`: its error codes, for the
    metrics."""

    buffers: Sequence[Buffer]
    errors: Sequence[int] = ()


@final
class Later(NamedTuple):
    """A response body that `body` builds once `pending` is zero. `is_silent`: it returns None, and
    nothing is sent (acks=0)."""

    pending: Pending
    body: Callable[[], Raw | None]
    is_silent: bool = False


Message: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Message | Raw | Later | Any
"""Or any object whose attributes have kio's field names (replies of the coordinators)."""
Handler: TypeAlias = Callable[["Request"], Answer | Awaitable[Answer]]


class Request(NamedTuple):
    """A decoded request. `body`: kio's entity for its api key and version."""

    broker: Broker
    connection: ClientConnection
    api_key: int
    version: int
    client_id: str | None
    body: Any

    @property
    def advertised(self) -> Address:
        """The address for clients of the listener that the request came in on."""
        listener = self.connection.listener
        if listener is None or listener.advertised is None:
            return self.broker.host, self.broker.port
        return listener.advertised


as_request: Callable[[tuple[Broker, ClientConnection, int, int, str | None, Any]], Request] = maker(
    Request, tuple[Any, ...]
)
