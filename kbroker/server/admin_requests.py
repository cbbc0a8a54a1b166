"""Requests and answers of the admin HTTP endpoint, and what is checked of every request before a
view sees it. No sockets, and no broker."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote

import h11

METHODS: Final = ("GET", "HEAD", "POST")
MAX_BODY_BYTES: Final = 16 << 10
_OUR_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST: Final = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]*)?")

ReadBody: TypeAlias = Callable[[], Awaitable[bytes]]


class HttpPeer(NamedTuple):
    """The connection of a request.

    - `host`: the client's address; `local`: the address that it connected to
    - `certificate`: the client's (DER), checked by TLS
    """

    host: str
    local: str
    is_local: bool
    """The client is on this machine."""
    has_tls: bool = False
    certificate: bytes | None = None


LOCAL_PEER: Final = HttpPeer("127.0.0.1", "127.0.0.1", is_local=True)


async def _no_body() -> bytes:
    return b""


class HttpRequest(NamedTuple):
    """`path`: its decoded parts; `/` has none. `query`: the last value of each name. `headers`:
    by lower-case names.

    `read_body` waits for the body. A body that no view reads ends the connection."""

    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str] = {}
    method: str = "GET"
    target: str = "/"
    peer: HttpPeer = LOCAL_PEER
    read_body: ReadBody = _no_body

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "")

    @property
    def wants_html(self) -> bool:
        """It comes from a person's browser."""
        return "text/html" in self.accept


class HttpAnswer(NamedTuple):
    """`body`: whole, or in pieces as they are produced."""

    content_type: str
    body: bytes | AsyncGenerator[bytes, None]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class HttpRefusal(Exception):
    """A request is answered with this status and one line of JSON. `closes`: the connection ends
    with the answer."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str], closes: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.closes = closes


View: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Raises HttpRefusal; anything else that it raises is a bug and is answered with 500."""


def json_answer(value: object, status: int = 200, *headers: tuple[str, str]) -> HttpAnswer:
    """One line."""
    text = json.dumps(value, ensure_ascii=False)
    return HttpAnswer("application/json", text.encode() + b"\n", status, headers)


def refused(refusal: HttpRefusal) -> HttpAnswer:
    return json_answer({"error": str(refusal)}, refusal.status, *refusal.headers)


def see_other(location: str, *headers: tuple[str, str]) -> HttpAnswer:
    return HttpAnswer("text/plain", b"", HTTPStatus.SEE_OTHER, (("location", location), *headers))


class Names:
    """The names by which clients may address the endpoint. A web page whose own name resolves to
    this address (DNS rebinding) sends that name, and is refused."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = _OUR_NAMES | {name.lower().rstrip(".") for name in names}

    def have(self, host: str, local_address: str) -> bool:
        """`host`: the Host header."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["address"] or match["name"]).lower().rstrip(".")
        return name != "" and (name in self._names or name == local_address)


def parsed(request: h11.Request, names: Names, peer: HttpPeer, read_body: ReadBody) -> HttpRequest:
    """Raises HttpRefusal."""
    method, target = request.method.decode("ascii"), request.target.decode("ascii")
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
    if not names.have(headers.get("host", ""), peer.local):
        raise HttpRefusal(
            403, "the Host header names neither this address nor a name given with --admin or --admin-host"
        )
    if "transfer-encoding" in headers and "content-length" in headers:
        raise HttpRefusal(400, "send Content-Length or Transfer-Encoding", closes=True)
    if method not in METHODS:
        raise wrong_method(method, ("GET",))
    if not target.startswith("/"):
        raise HttpRefusal(400, "the target must be a path")
    path, _, query = target.partition("?")
    try:
        parts = tuple(
            unquote(part, errors="strict") for part in path.strip("/").split("/") if path.strip("/")
        )
        fields = dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise HttpRefusal(400, "the target is not percent-encoded UTF-8") from error
    return HttpRequest(parts, fields, headers, method, target, peer, read_body)


def wrong_method(method: str, methods: Collection[str]) -> HttpRefusal:
    """`methods`: those that the path has; HEAD goes with GET."""
    listed = [each for each in METHODS if each in methods or (each == "HEAD" and "GET" in methods)]
    words = f"only {' and '.join(listed)}"
    return HttpRefusal(405, f"{method} is not served, {words}", ("allow", ", ".join(listed)))
