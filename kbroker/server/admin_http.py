"""A small HTTP server to look at a broker: h11 over trio, with TLS if the settings say so.

    one task per connection:  handshake -> head of a request (time-limited) -> checks -> view
                              -> answer (time-limited) -> the next request, or the end

It must not become a way into the broker. Against web pages whose name resolves to 127.0.0.1 (DNS
rebinding), the Host header must hold an address or a known name of this broker. No CORS header is
ever sent, so pages of other origins cannot read an answer. The body of a request is read only if
its view wants it, so that strangers cannot have it read.

An error in a view ends that request only (500 and a log line). This module knows nothing of
brokers: the views are in admin_views.py, and the rights in admin_access.py.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus

import h11
import trio

from kbroker.seldom import Seldom
from kbroker.server.admin_requests import (
    MAX_BODY_BYTES,
    HttpAnswer,
    HttpPeer,
    HttpRefusal,
    Names,
    View,
    json_answer,
    parsed,
    refused,
)
from kbroker.server.connection_limits import most_for_open_files
from kbroker.server.strangers import INTERVAL_S, again, at_the_admin_port, warn_seldom
from kbroker.server.tls import ListenerTls
from kbroker.server.tls_socket import HANDSHAKE_S

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 << 10
MAX_CONNECTIONS = 50
"""Fewer if the process may open few files: its other connections have half of those, and the stores
need the rest."""
LEAST_CONNECTIONS = 4
MAX_OF_ADDRESS = 25
"""Of one other machine, so that it alone cannot keep an administrator out."""
IDLE_S = 30.0
"""How long a connection may take until its request is complete, counted from its start or from the
last answer."""
ANSWER_S = 60.0
"""How long an answer may take, including sending it to a slow reader."""
_RETRY_S = 0.1
_NO_FILES_OR_MEMORY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LEAVE_S = 1.0
"""How long a connection that this side closes stays open, so that the peer can read the last
answer."""
_RECEIVE_BYTES = 16 << 10
_PIECE_BYTES = 64 << 10
_TLS_BYTE = b"\x16"
"""The first byte of a TLS handshake."""
_USE_HTTPS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"X-Content-Type-Options: nosniff\r\nConnection: close\r\nContent-Length: 37\r\n\r\n"
    b"This port speaks HTTPS: use https://\n"
)
_PROTECTION = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
)


class AdminHttp:
    """Serves `view` on a bound socket, and closes the socket at the end.

    - `names`: accepted host names, beside the loopback's and the address of the connection
    - `kafka`: the address of the Kafka port, for clients that speak Kafka here
    - `tls`: None: plain HTTP
    """

    def __init__(
        self,
        listener: socket.socket,
        view: View,
        names: Sequence[str] = (),
        *,
        kafka: str = "HOST:PORT of --listen",
        tls: ListenerTls | None = None,
    ) -> None:
        self._kafka = kafka
        self._tls = tls
        self._seldom = Seldom(INTERVAL_S)
        self._most_for_files = max(LEAST_CONNECTIONS, most_for_open_files() // 8)
        self._listener = _Listener(listener, self._seldom)
        self._view = view
        self._names = Names(names)
        self._accepting = trio.CancelScope()
        self._waiting: set[trio.CancelScope] = set()
        """Connections that may be closed at any time: they have no request, or part of one."""
        self._open = 0
        self._by_host: Counter[str] = Counter()
        self._emptied = trio.Event()
        self.stopping = False

    async def serve(self) -> None:
        """Accept until cancelled, which also ends the connections' tasks."""
        host, port = self._listener.address
        logger.info("admin %s on port %d of %s", "HTTPS" if self._tls else "HTTP", port, host)
        if self._tls is None and not ipaddress.ip_address(host).is_loopback:
            logger.warning(
                "admin HTTP on %s sends passwords and tokens in clear: set kbroker.admin.protocol=SSL", host
            )
        async with trio.open_nursery() as nursery:
            if self._tls is not None:
                nursery.start_soon(self._tls.keep_current)
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
        try:
            peer = _client_of(stream)
            if not self.stopping and not self._is_full(peer):
                await self._serve_counted(stream, peer)
        except (trio.BrokenResourceError, OSError) as error:
            logger.debug("admin HTTP: connection lost: %s", error)
        except Exception:
            # A bug in this server: errors of views were answered already.
            logger.exception("admin HTTP: internal error")

    def _is_full(self, peer: HttpPeer) -> bool:
        """Whether there is no room for one more connection of this client, which is logged."""
        if self._open >= min(MAX_CONNECTIONS, self._most_for_files):
            self._warn(peer.host, f"{self._open} are open")
            return True
        if not peer.is_local and self._by_host[peer.host] >= MAX_OF_ADDRESS:
            self._warn(peer.host, f"{MAX_OF_ADDRESS} of its connections are open")
            return True
        return False

    async def _serve_counted(self, stream: trio.SocketStream, peer: HttpPeer) -> None:
        self._open += 1
        self._by_host[peer.host] += 1
        try:
            await self._serve_admitted(stream, peer)
        finally:
            self._by_host -= Counter((peer.host,))
            self._closed_one()

    async def _serve_admitted(self, stream: trio.SocketStream, peer: HttpPeer) -> None:
        if self._tls is None:
            await _Connection(self, stream, peer).run()
            return
        secured = trio.SSLStream(stream, self._tls.context, server_side=True, https_compatible=True)
        if await self._is_secured(stream, secured, peer.host):
            certificate: bytes | None = secured.getpeercert(binary_form=True)
            await _Connection(self, secured, peer._replace(has_tls=True, certificate=certificate)).run()

    async def _is_secured(
        self, stream: trio.SocketStream, secured: trio.SSLStream[trio.SocketStream], host: str
    ) -> bool:
        """Carry out the handshake. False: the client speaks no TLS, or not in time."""
        with trio.CancelScope() as scope:
            self.may_close(scope)
            try:
                with trio.move_on_after(HANDSHAKE_S):
                    first = await stream.socket.recv(16, socket.MSG_PEEK)
                    if not first.startswith(_TLS_BYTE):
                        if first:
                            await self._refuse_plain(stream, host, first)
                        return False
                    await secured.do_handshake()
                    return True
            except trio.BrokenResourceError as error:
                reason = getattr(error.__cause__, "reason", None) or "connection lost"
                self._warn(host, f"its TLS handshake failed: {str(reason).replace('_', ' ').lower()}")
                return False
            finally:
                self.must_not_close(scope)
        return False

    async def _refuse_plain(self, stream: trio.SocketStream, host: str, first_bytes: bytes) -> None:
        """The client's request is not read."""
        what = at_the_admin_port(first_bytes, self._kafka)
        if what is None:
            what = "it speaks no TLS: use https://"
            await stream.send_all(_USE_HTTPS)
            await _leave(stream)
        self._warn(host, what)

    def _warn(self, host: str, what: str) -> None:
        closing = f"closing admin connection of {host}"
        warn_seldom(self._seldom, logger, host, closing, what, trio.current_time())

    def _closed_one(self) -> None:
        self._open -= 1
        if self.stopping and not self._open:
            self._emptied.set()

    async def answer(self, request: h11.Request, connection: _Connection) -> HttpAnswer:
        """The checks, then the view. Raises HttpRefusal."""
        found = parsed(request, self._names, connection.peer, connection.read_body)
        try:
            return await self._view(found)
        except (HttpRefusal, trio.BrokenResourceError, h11.RemoteProtocolError):
            raise
        except Exception as error:
            logger.exception("admin HTTP: %s %s failed", found.method, found.target.partition("?")[0])
            raise HttpRefusal(500, "internal error: the broker's log says more") from error

    def report_stranger(self, host: str, first_bytes: bytes) -> None:
        """A peer at `host` sent something that is not HTTP."""
        if (what := at_the_admin_port(first_bytes, self._kafka)) is not None:
            self._warn(host, what)

    def may_close(self, scope: trio.CancelScope) -> None:
        """`scope` is of a connection that waits for a request."""
        self._waiting.add(scope)
        if self.stopping:
            scope.cancel()

    def must_not_close(self, scope: trio.CancelScope) -> None:
        self._waiting.discard(scope)


class _Connection:
    def __init__(
        self, server: AdminHttp, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], peer: HttpPeer
    ) -> None:
        self._server = server
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._first_bytes = b""
        self.peer = peer

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
                        if not _has_body(event):
                            self._http.next_event()  # Its end.
                        return event
                    if event is not h11.NEED_DATA:
                        return None
                    data = bytes(await self._stream.receive_some(_RECEIVE_BYTES))
                    received = received or bool(data)
                    self._first_bytes = self._first_bytes or data[:16]
                    self._http.receive_data(data)
            finally:
                self._server.must_not_close(scope)
        if received and not self._server.stopping:
            await self._send(
                json_answer({"error": f"no whole request within {IDLE_S:.0f} s"}, 408), is_head=False
            )
        return None

    async def read_body(self) -> bytes:
        """The body of the request. Raises HttpRefusal."""
        body = bytearray()
        with trio.move_on_after(IDLE_S):
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                await self._stream.send_all(self._http.send(go_on) or b"")
            while self._http.their_state is h11.SEND_BODY:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MAX_BODY_BYTES:
                        raise HttpRefusal(413, f"the body has more than {MAX_BODY_BYTES} bytes", closes=True)
                elif event is h11.NEED_DATA:
                    self._http.receive_data(bytes(await self._stream.receive_some(_RECEIVE_BYTES)))
            return bytes(body)
        raise HttpRefusal(408, f"no whole body within {IDLE_S:.0f} s", closes=True)

    async def _respond(self, request: h11.Request) -> bool:
        """False: the answer was not complete in time, or the connection ends with it."""
        closes = False
        with trio.move_on_after(ANSWER_S):
            try:
                answer = await self._server.answer(request, self)
            except HttpRefusal as refusal:
                answer, closes = refused(refusal), refusal.closes
            sent = await self._send(answer, is_head=request.method == b"HEAD", closes=closes)
            return sent and not closes
        logger.warning("admin HTTP: an answer took more than %.0f s and was aborted", ANSWER_S)
        return False

    async def _send(self, answer: HttpAnswer, *, is_head: bool, closes: bool = False) -> bool:
        body = answer.body
        all_headers = [
            ("date", formatdate(usegmt=True)),
            ("content-type", answer.content_type),
            *_PROTECTION,
            *answer.headers,
        ]
        if isinstance(body, bytes):
            all_headers.append(("content-length", str(len(body))))
        if self._server.stopping or closes:
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
        self._server.report_stranger(self.peer.host, self._first_bytes)
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with trio.move_on_after(_LEAVE_S):
                await self._send(json_answer({"error": str(error)}, error.error_status_hint), is_head=False)

    async def _leave(self) -> None:
        """Send the end of the stream, then read for a moment until the peer ends its own. Closing a
        socket that has unread bytes would reset the connection, and lose an answer in transit."""
        with trio.move_on_after(_LEAVE_S):
            if isinstance(self._stream, trio.SSLStream):
                await self._stream.unwrap()
                return
            await _leave(self._stream)


class _Listener(trio.abc.Listener[trio.SocketStream]):
    """Waits while the process may open no more files. trio would log a traceback for each try."""

    def __init__(self, sock: socket.socket, seldom: Seldom) -> None:
        self.address: tuple[str, int] = sock.getsockname()[:2]
        self._sockets = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        self._seldom = seldom

    async def accept(self) -> trio.SocketStream:
        while True:
            try:
                return await self._sockets.accept()
            except OSError as error:
                if error.errno not in _NO_FILES_OR_MEMORY:
                    raise
                if times := self._seldom.times(error.errno, trio.current_time()):
                    logger.error("admin HTTP: cannot accept connections: %s%s", error, again(times))
                await trio.sleep(_RETRY_S)

    async def aclose(self) -> None:
        await self._sockets.aclose()


async def _leave(stream: trio.SocketStream) -> None:
    with trio.move_on_after(_LEAVE_S):
        await stream.send_eof()
        while await stream.receive_some(_RECEIVE_BYTES):
            pass


def _client_of(stream: trio.SocketStream) -> HttpPeer:
    """Raises OSError if it has left."""
    local = _shown_address(stream.socket.getsockname())
    host = _shown_address(stream.socket.getpeername())
    return HttpPeer(host, local, ipaddress.ip_address(local).is_loopback)


def _has_body(request: h11.Request) -> bool:
    lengths = [value for name, value in request.headers if name == b"content-length"]
    return any(name == b"transfer-encoding" for name, _ in request.headers) or any(
        length.strip(b"0") for length in lengths
    )


def _shown_address(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """An IPv4 address as such, also on a socket for both kinds."""
    return address[0].removeprefix("::ffff:")
