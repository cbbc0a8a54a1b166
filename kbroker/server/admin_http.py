"""A small HTTP server to inspect a broker: GET and HEAD of a few views, h11 over trio.

    one task per connection:  head of a request (time-limited) -> checks -> view -> answer
                              (time-limited) -> the next request, or the end

It must not become a way into the broker. It only reads. It has no password, so by default it
listens on the loopback address. Against web pages whose name resolves to 127.0.0.1 (DNS rebinding),
the Host header must hold an address or a known name of this broker. No CORS header is ever sent, so
pages of other origins cannot read an answer.

An error in a view ends that request only (500 and a log line). This module knows nothing of
brokers: the views are in admin_views.py.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote

import h11
import trio

from kbroker.seldom import Seldom
from kbroker.server.strangers import INTERVAL_S, at_the_admin_port, warn_seldom

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS = 50
IDLE_S = 30.0
"""How long a connection may take until its request is complete, counted from its start or from the
last answer."""
ANSWER_S = 60.0
"""How long an answer may take, including sending it to a slow reader."""
_LEAVE_S = 1.0
"""How long a connection that this side closes stays open, so that the peer can read the last
answer."""
_RECEIVE_BYTES = 16 << 10
_PIECE_BYTES = 64 << 10
_METHODS = ("GET", "HEAD")
_OUR_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PROTECTION = (("cache-control", "no-store"), ("x-content-type-options", "nosniff"))


class HttpRequest(NamedTuple):
    """`path`: its decoded parts; `/` has none. `query`: the last value of each name."""

    path: tuple[str, ...]
    query: Mapping[str, str]
    accept: str


class HttpAnswer(NamedTuple):
    """`body`: whole, or in pieces as they are produced."""

    content_type: str
    body: bytes | AsyncGenerator[bytes, None]
    status: int = 200


class HttpRefusal(Exception):
    """A request is answered with this status and one line of JSON."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


View: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Raises HttpRefusal; anything else that it raises is a bug and is answered with 500."""


def json_answer(value: object, status: int = 200) -> HttpAnswer:
    """One line."""
    return HttpAnswer("application/json", json.dumps(value, ensure_ascii=False).encode() + b"\n", status)


class AdminHttp:
    """Serves `view` on a bound socket, and closes the socket at the end.

    - `names`: accepted host names, beside the loopback's and the address of the connection
    - `kafka`: the address of the Kafka port, for clients that speak Kafka here
    """

    def __init__(
        self,
        listener: socket.socket,
        view: View,
        names: Sequence[str] = (),
        *,
        kafka: str = "HOST:PORT of --listen",
    ) -> None:
        self._kafka = kafka
        self._seldom = Seldom(INTERVAL_S)
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        self._view = view
        self._names = _OUR_NAMES | {name.lower().rstrip(".") for name in names}
        self._accepting = trio.CancelScope()
        self._waiting: set[trio.CancelScope] = set()
        """Connections that may be closed at any time: they have no request, or part of one."""
        self._open = 0
        self._emptied = trio.Event()
        self.stopping = False

    async def serve(self) -> None:
        """Accept until cancelled, which also ends the connections' tasks."""
        host, port = self._listener.socket.getsockname()[:2]
        logger.info("admin HTTP on port %d of %s", port, host)
        if not ipaddress.ip_address(host).is_loopback:
            logger.warning(
                "admin HTTP on %s requires no password: anyone who reaches this address can read metrics and "
                "the states of records",
                host,
            )
        async with trio.open_nursery() as nursery:
            with self._accepting:
                try:
                    await trio.serve_listeners(
                        self._serve_connection, [self._listener], handler_nursery=nursery
                    )
                except OSError as error:
                    logger.error("admin HTTP has ended: cannot accept connections: %s", error)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, and let answers in progress end."""
        self.stopping = True
        self._accepting.cancel()
        for scope in self._waiting:
            scope.cancel()
        with trio.move_on_after(grace_s):
            if self._open:
                await self._emptied.wait()

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        if self._open >= MAX_CONNECTIONS or self.stopping:
            logger.warning("an admin HTTP connection was refused: %d are open", self._open)
            return
        self._open += 1
        try:
            await _Connection(self, stream).run()
        except (trio.BrokenResourceError, OSError) as error:
            logger.debug("admin HTTP: connection lost: %s", error)
        except Exception:
            # A bug in this server: errors of views were answered already.
            logger.exception("admin HTTP: internal error")
        finally:
            self._closed_one()

    def _closed_one(self) -> None:
        self._open -= 1
        if self.stopping and not self._open:
            self._emptied.set()

    async def answer(self, request: h11.Request, local_address: str) -> HttpAnswer:
        """The checks, then the view. Raises HttpRefusal."""
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        if not self._is_ours(headers.get("host", ""), local_address):
            raise HttpRefusal(
                403,
                "the Host header names neither this address nor a name given with --admin or --admin-host",
            )
        if method not in _METHODS:
            raise HttpRefusal(
                405, f"{method} is not served, only GET and HEAD", ("allow", ", ".join(_METHODS))
            )
        if not target.startswith("/"):
            raise HttpRefusal(400, "the target must be a path")
        path, _, query = target.partition("?")
        try:
            parts = (
                tuple(unquote(part, errors="strict") for part in path.strip("/").split("/"))
                if path.strip("/")
                else ()
            )
            fields = dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
        except ValueError as error:
            raise HttpRefusal(400, "the target is not percent-encoded UTF-8") from error
        try:
            return await self._view(HttpRequest(parts, fields, headers.get("accept", "")))
        except HttpRefusal:
            raise
        except Exception as error:
            logger.exception("admin HTTP: %s %s failed", method, target)
            raise HttpRefusal(500, "internal error: the broker's log says more") from error

    def _is_ours(self, host: str, local_address: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        name = name.lower().rstrip(".")
        return name != "" and (name in self._names or name == local_address)

    def report_stranger(self, host: str, first_bytes: bytes) -> None:
        """A peer at `host` sent something that is not HTTP."""
        if (what := at_the_admin_port(first_bytes, self._kafka)) is not None:
            closing = f"closing admin connection of {host}"
            warn_seldom(self._seldom, logger, host, closing, what, trio.current_time())

    def may_close(self, scope: trio.CancelScope) -> None:
        """`scope` is of a connection that waits for a request."""
        self._waiting.add(scope)
        if self.stopping:
            scope.cancel()

    def must_not_close(self, scope: trio.CancelScope) -> None:
        self._waiting.discard(scope)


class _Connection:
    def __init__(self, server: AdminHttp, stream: trio.SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._first_bytes = b""
        self._local_address = str(stream.socket.getsockname()[0]).removeprefix("::ffff:")

    async def run(self) -> None:
        try:
            while (request := await self._request()) is not None:
                if not await self._respond(request):
                    break
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    break  # The client wants to close, speaks HTTP/1.0, or sent a body, which is not read.
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse_malformed(error)
        await self._leave()

    async def _request(self) -> h11.Request | None:
        """None: the peer has left, or took too long."""
        received = False
        with trio.move_on_after(IDLE_S) as scope:
            self._server.may_close(scope)
            try:
                while True:
                    event = self._http.next_event()
                    if isinstance(event, h11.Request):
                        if self._http.their_state is h11.SEND_BODY:
                            self._http.next_event()  # Its end, for a request without a body.
                        return event
                    if event is not h11.NEED_DATA:
                        return None
                    data = await self._stream.receive_some(_RECEIVE_BYTES)
                    received = received or bool(data)
                    self._first_bytes = self._first_bytes or bytes(data[:16])
                    self._http.receive_data(data)
            finally:
                self._server.must_not_close(scope)
        if received and not self._server.stopping:
            await self._send(
                json_answer({"error": f"no whole request within {IDLE_S:.0f} s"}, 408), is_head=False
            )
        return None

    async def _respond(self, request: h11.Request) -> bool:
        """False: the answer was not complete in time."""
        headers: Sequence[tuple[str, str]] = ()
        with trio.move_on_after(ANSWER_S):
            try:
                answer = await self._server.answer(request, self._local_address)
            except HttpRefusal as refusal:
                answer, headers = json_answer({"error": str(refusal)}, refusal.status), refusal.headers
            return await self._send(answer, *headers, is_head=request.method == b"HEAD")
        logger.warning("admin HTTP: an answer took more than %.0f s and was aborted", ANSWER_S)
        return False

    async def _send(self, answer: HttpAnswer, *headers: tuple[str, str], is_head: bool) -> bool:
        body = answer.body
        all_headers = [
            ("date", formatdate(usegmt=True)),
            ("content-type", answer.content_type),
            *_PROTECTION,
            *headers,
        ]
        if isinstance(body, bytes):
            all_headers.append(("content-length", str(len(body))))
        if self._server.stopping:
            all_headers.append(("connection", "close"))
        head = (
            self._http.send(
                h11.Response(
                    status_code=answer.status, reason=HTTPStatus(answer.status).phrase, headers=all_headers
                )
            )
            or b""
        )
        if isinstance(body, bytes):
            content = b"" if is_head else self._http.send(h11.Data(data=body)) or b""
            await self._stream.send_all(head + content + (self._http.send(h11.EndOfMessage()) or b""))
            return True
        return await self._send_pieces(head, body, is_head=is_head)

    async def _send_pieces(self, head: bytes, body: AsyncGenerator[bytes, None], *, is_head: bool) -> bool:
        unsent = bytearray(head)
        try:
            async with aclosing(body):
                while not is_head and (piece := await anext(body, None)) is not None:
                    unsent += self._http.send(h11.Data(data=piece)) or b""
                    if len(unsent) >= _PIECE_BYTES:
                        await self._stream.send_all(unsent)
                        unsent = bytearray()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception:
            # The peer sees that its last chunk is missing.
            logger.exception("admin HTTP: an answer was cut short")
            return False
        await self._stream.send_all(unsent + (self._http.send(h11.EndOfMessage()) or b""))
        return True

    async def _refuse_malformed(self, error: h11.RemoteProtocolError) -> None:
        logger.debug("admin HTTP: malformed request: %s", error)
        host = str(self._stream.socket.getpeername()[0]).removeprefix("::ffff:")
        self._server.report_stranger(host, self._first_bytes)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with trio.move_on_after(_LEAVE_S):
                await self._send(json_answer({"error": str(error)}, error.error_status_hint), is_head=False)

    async def _leave(self) -> None:
        """Send the end of the stream, then read for a moment until the peer ends its own. Closing a
        socket that has unread bytes would reset the connection, and lose an answer in transit."""
        with trio.move_on_after(_LEAVE_S):
            await self._stream.send_eof()
            while await self._stream.receive_some(_RECEIVE_BYTES):
                pass
