"""A client's connection on a listener with SASL: it logs in first, then it is an ordinary one.

During the log-in one frame is read at a time, exactly: nothing behind it leaves the socket, so that
a connection holds at most one frame of sasl.server.max.receive.size, and all of them together a
bounded amount of large ones. The whole log-in has a deadline. A refusal is sent after the delay of
failed log-ins, and the connection is closed; until then its task sleeps, and reads nothing.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import trio

from kbroker.api import APIS
from kbroker.api.request import Answer, CloseConnection
from kbroker.broker.broker import Broker
from kbroker.broker.security.log_in import LogIn
from kbroker.broker.security.service import LogIns
from kbroker.errors import ErrorCode
from kbroker.protocol.frames import BadFrame
from kbroker.protocol.messages import read_request, read_request_head, response_header
from kbroker.protocol.refused import refused_response
from kbroker.security.principals import ANONYMOUS
from kbroker.security.sasl import API_VERSIONS_KEY, Admission
from kbroker.server.intake import Intake
from kbroker.server.peer import ClosedByPeer, Peer, _Response
from kbroker.server.tls_socket import TlsSocket
from kbroker.settings.listeners import Listener

_SIZE: Final = struct.Struct(">i")
_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_MAX_READ_BYTES: Final = 4096
"""Requests that come too early are read if they are small: strangers must not cost work."""
_ILLEGAL: Final = "Request is not valid given the current SASL state."
_KIND: Final = "log-in"
"""Of log lines: one a minute for each address, whatever was wrong."""


class _NotDuringLogIn(CloseConnection):
    """`answer`: sent before the connection is closed, after the delay."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason, _KIND)
        self.answer = answer


class SaslPeer(Peer):
    __slots__ = ("_log_in",)

    def __init__(
        self,
        intake: Intake,
        broker: Broker,
        sock: socket.socket | TlsSocket,
        connection_id: int,
        host: str,
        listener: Listener | None,
        log_ins: LogIns,
    ) -> None:
        super().__init__(intake, broker, sock, connection_id, host, listener)
        self._log_in: LogIn = log_ins.begin(host)
        self.connection.log_in = self._log_in

    async def serve(self, shared_buffer: memoryview) -> None:
        try:
            if not await self.authenticate():
                return
            if isinstance(self.sock, TlsSocket) and self.sock.has_more:
                await self._take_what_is_decrypted(self.sock, shared_buffer)
            await super().serve(shared_buffer)
        except _NotDuringLogIn as refused:
            self.busy = True
            await self._log_in.delay()
            self.send_if_there_is_room(refused.answer)
            raise

    async def _take_what_is_decrypted(self, sock: TlsSocket, shared_buffer: memoryview) -> None:
        """Requests in the TLS record of the log-in's last one: nothing more may arrive."""
        try:
            received = sock.recv_into(shared_buffer)
        except BlockingIOError:
            return
        if not received:
            raise ClosedByPeer
        self.busy = True
        await self._handle_burst(shared_buffer[:received])
        self.busy = False

    async def authenticate(self) -> bool:
        """Returns when the client has logged in; False if the broker stops instead. Raises
        CloseConnection, BadFrame, ClosedByPeer."""
        limit_s = self._log_in.settings.log_in_s
        with trio.move_on_after(limit_s):
            while not self._log_in.is_complete:
                size = await self._read_size()
                with self._intake.log_in_frame(size) as fits:
                    if not fits:
                        raise CloseConnection("too many clients send large requests to log in", _KIND)
                    frame = await self._read_exactly(size)
                    self.busy = True
                    await self._answer(frame)
                    del frame
                self.busy = False
                self.was_active = True
                if self._intake.stopping:
                    return False
            return True
        raise CloseConnection(f"it did not log in within {limit_s:g} s", _KIND)

    async def _read_size(self) -> int:
        size = int.from_bytes(await self._read_exactly(_SIZE.size), "big", signed=True)
        limit = self._log_in.settings.max_receive_bytes
        if not 0 < size <= limit:
            raise BadFrame(size, limit)
        return size

    async def _read_exactly(self, size: int) -> bytearray:
        """The memory grows with what has arrived, not with what was announced."""
        received = bytearray()
        while len(received) < size:
            buffer = self._intake.buffer[: size - len(received)]
            try:
                count = self.sock.recv_into(buffer)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.sock.fileno())
                continue
            if not count:
                raise ClosedByPeer
            self._metrics.received_bytes += count
            received += buffer[:count]
        await trio.lowlevel.checkpoint_if_cancelled()
        return received

    async def _answer(self, frame: bytearray) -> None:
        if self._log_in.takes_raw_tokens:
            await self._answer_raw(frame)
            return
        response, waiting = self._dispatch(memoryview(frame))
        if waiting is not None:
            response.answer = await waiting
            self._begin_session()
        if response.api_key == API_VERSIONS_KEY and _has_no_error(response):
            self._log_in.api_versions_answered()
        await self._send(deque((response,)))
        self._close_if_refused()

    async def _answer_raw(self, token: bytearray) -> None:
        step = await self._log_in.authenticate(bytes(token))
        self._close_if_refused()
        self._begin_session()
        answer = getattr(step, "token", b"")
        buffers = (_SIZE.pack(len(answer)) + answer,)
        await self.send_rest(buffers, self.send_some(buffers))
        self._close_if_refused()

    def _begin_session(self) -> None:
        """If the log-in is complete. Its answer may wait for a client that does not read, and an
        administrator must be able to end the session then."""
        if self._log_in.is_complete:
            self.act_as(self._log_in.principal or ANONYMOUS)
            self._broker.security.sessions.add(
                self.connection.principal, self.connection.id, self.end_session
            )

    # -- after the log-in
    # ----------------------------------------------------------------------------------------------

    async def _handle_burst(self, data: memoryview) -> None:
        await super()._handle_burst(data)
        self._close_if_refused()

    def _dispatch(self, frame: bytes | memoryview) -> tuple[_Response, Coroutine[Any, Any, Answer] | None]:
        self._close_if_refused()
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        admission = self._log_in.admit(api_key)
        if admission is Admission.SERVE:
            return super()._dispatch(frame)
        reason = self._log_in.refusal or ""
        if admission is Admission.EXPIRED:
            raise CloseConnection(reason, "session")
        raise _NotDuringLogIn(reason, _illegal_state(frame) if admission is Admission.ILLEGAL else b"")

    def _close_if_refused(self) -> None:
        if self._log_in.refusal is not None:
            raise CloseConnection(self._log_in.refusal, _KIND)

    def end_session(self, after_answer: bool) -> None:
        """Requests behind the one that is served are not begun, either."""
        self._log_in.refusal = "an administrator has ended the session"
        super().end_session(after_answer)


def _has_no_error(response: _Response) -> bool:
    answer = response.answer
    return isinstance(answer, dict) and answer["error_code"] == ErrorCode.none


def _illegal_state(frame: bytes | memoryview) -> bytes:
    """The answer to a request that must not come now: an error for the whole request, or in each
    row. Nothing if its API has no code for the whole and its rows cannot be read, or are many."""
    try:
        head = read_request_head(frame)
    except ValueError:
        return b""
    api, version = APIS.get(head.api_key), head.api_version
    is_served = api is not None and api.first <= version <= api.last
    if not is_served and head.api_key != API_VERSIONS_KEY:
        return b""
    asked = None
    if is_served and len(frame) <= _MAX_READ_BYTES:
        with suppress(ValueError):
            asked = read_request(head, frame)
    version = version if is_served else 0
    body = refused_response(head.api_key, version, asked, ErrorCode.illegal_sasl_state, _ILLEGAL)
    if body is None:
        return b""
    content = response_header(head.api_key, version) + body
    return _SIZE_AND_CORRELATION.pack(4 + len(content), head.correlation_id) + content
