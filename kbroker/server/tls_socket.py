"""A TLS connection with the methods of a non-blocking socket, as far as Peer uses them.

The server's connections read and send without knowing of TLS: `recv_into` and `sendmsg` raise
BlockingIOError where the socket underneath is not ready, and the caller then waits for that socket.

    recv_into:  socket -> ciphertext buffer (all connections share it) -> OpenSSL -> caller's buffer
    sendmsg:    caller's buffers -> OpenSSL -> ciphertext that waits here -> socket

`recv_into` decrypts all complete records that it has received, if the buffer has room for them, and
a caller may then wait for the socket. Otherwise `has_more` is set. `sendmsg` counts bytes as sent
only when the socket has taken their ciphertext. Until then it raises BlockingIOError, and the
caller must call again with the same bytes.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from kbroker.api.request import CloseConnection
from kbroker.formats.batches import Buffer

_RECORD_BYTES = 16 * 1024
"""The largest plaintext of a TLS record."""
_MAX_RECORD_BYTES = _RECORD_BYTES + 512
"""With its head and all that a cipher adds (RFC 8446, section 5.2: at most 256 bytes)."""
_LEAST_BYTES = 4096
"""Of ciphertext in one look at the socket, for a small buffer."""
_SEND_BYTES = 256 * 1024
"""Plaintext of one sendmsg. Its ciphertext waits here, so it bounds a connection's memory."""
_HEAD_BYTES = 5
"""Of a record: type (1), version (2), length (2)."""
_RECORD_TYPES = frozenset((20, 21, 22, 23))
_HANDSHAKE_THREADS = 2
_HANDSHAKE_BYTES = 128 * 1024
"""What a peer may send before its handshake is complete; long certificate chains have some KiB."""
_HANDSHAKE_RECORDS = 64
"""Likewise. Each record is a step in a thread, so records of one byte would cost far more."""
_MOST_UNSENT_BYTES = 2 * _SEND_BYTES
"""Ciphertext that waits for a peer: one that asks for new keys gets answers, and may read none."""

HANDSHAKE_S = 10.0
"""How long a peer may take for its handshake."""

_UNTRUSTED: Final = (
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_BAD_CERTIFICATE",
)
_WRONG_PROTOCOL: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNSUPPORTED_PROTOCOL",
)


class Ciphertext:
    """What the TLS connections of a server share: a receive buffer, and the threads in which
    handshakes are computed. A handshake takes about a millisecond of processor time."""

    def __init__(self, receive_bytes: int) -> None:
        self.buffer = memoryview(bytearray(receive_bytes))
        self.handshakes = trio.CapacityLimiter(_HANDSHAKE_THREADS)


class TlsSocket:
    """The broker's side of one TLS connection over `sock`, which is non-blocking."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, shared: Ciphertext) -> None:
        self._sock = sock
        self._shared = shared
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # librdkafka encrypts each record of a large batch by itself. SSLObject's own method is one
        # more Python call for each of them.
        plain: Any = getattr(self._tls, "_sslobj", self._tls)
        self._read: Callable[[int, memoryview], int] = plain.read
        self._is_established = False
        self.has_more = False
        """More may be decrypted without the socket: the last recv_into had a full buffer."""
        self._unsent = memoryview(b"")
        """Ciphertext that the socket has not taken."""
        self._promised = 0
        """Plaintext bytes of the last sendmsg whose ciphertext is in `_unsent`."""

    # -- as a socket
    # ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        """Returns 0 at the end of the stream. Raises OSError (ssl.SSLError, too)."""
        if self.has_more:
            with suppress(BlockingIOError):  # A part of a record.
                return self._decrypt(buffer)
        raw = self._shared.buffer
        # Buffered parts of one record may complete it: leave room for its plaintext.
        room = min(len(raw), max(_LEAST_BYTES, len(buffer) - _MAX_RECORD_BYTES))
        received = self._sock.recv_into(raw[:room])
        if received:
            self._incoming.write(raw[:received])
        else:
            self._incoming.write_eof()
        return self._decrypt(buffer)

    def _decrypt(self, buffer: memoryview) -> int:
        length, room, read = 0, len(buffer), self._read
        try:
            while length < room:
                # It takes the number of bytes first, unlike SSLSocket.recv_into.
                count = read(room - length, buffer[length:])
                if not count:
                    break
                length += count
        except ssl.SSLWantReadError:
            self._flush_quietly()  # The answer to a KeyUpdate.
            if len(self._unsent) > _MOST_UNSENT_BYTES:
                raise ConnectionAbortedError(errno.ECONNABORTED, "it reads none of its answers") from None
            self.has_more = False
            if not length:
                raise BlockingIOError from None
            return length
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # After it has handed out what came before: the next call returns 0 again.
        self.has_more = length == room
        return length

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Raises BlockingIOError if the socket took no byte, or not the whole ciphertext yet."""
        if not self._promised:
            self._promised = self._encrypt(buffers)
        self._flush()
        sent, self._promised = self._promised, 0
        return sent

    def _encrypt(self, buffers: Sequence[Buffer]) -> int:
        """Small buffers share a record. Returns the number of plaintext bytes."""
        total, small = 0, bytearray()
        for buffer in buffers:
            part = memoryview(buffer).cast("B")[: _SEND_BYTES - total]
            total += len(part)
            if len(small) + len(part) <= _RECORD_BYTES:
                small += part
            else:
                if small:
                    self._tls.write(small)
                    small = bytearray()
                self._tls.write(part)
            if total == _SEND_BYTES:
                break
        if small:
            self._tls.write(small)
        return total

    def _flush(self) -> None:
        """Raises BlockingIOError while ciphertext is left."""
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._unsent = memoryview(bytes(self._unsent) + more if self._unsent else more)
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def _flush_quietly(self) -> None:
        with suppress(BlockingIOError):  # The next sendmsg sends it first.
            self._flush()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Only to look whether there is something: of the ciphertext."""
        return self._sock.recv(size, flags)

    def shutdown(self, how: int) -> None:
        """Sends the end of the TLS stream before the end of the socket's. Raises OSError."""
        # Before that, a thread may be computing the handshake.
        if how != socket.SHUT_RD and self._is_established:
            # It waits for the peer's own end, or the stream is broken.
            with suppress(ssl.SSLError, ValueError):
                self._tls.unwrap()
            self._flush_quietly()
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    # -- the handshake
    # ----------------------------------------------------------------------------------------------

    async def handshake(self, listener: str) -> None:
        """Must be complete before anything else. `listener`: its name, for the error.

        Raises CloseConnection if the peer's messages are refused or take too long, OSError if the
        connection is lost.
        """
        try:
            with trio.fail_after(HANDSHAKE_S):
                await self._handshake(listener)
        except trio.TooSlowError:
            raise _broken(f"was silent for {HANDSHAKE_S:.0f} s", listener) from None

    async def _handshake(self, listener: str) -> None:
        """Take one record at a time: a request may follow the last one, for recv_into."""
        received = 0
        for _ in range(_HANDSHAKE_RECORDS):
            head = await self._receive_exactly(_HEAD_BYTES, listener)
            size = int.from_bytes(head[3:], "big") if head[0] in _RECORD_TYPES else 0
            self._incoming.write(head + await self._receive_exactly(size, listener))
            received += _HEAD_BYTES + size
            if received > _HANDSHAKE_BYTES:
                raise _broken(f"sent more than {_HANDSHAKE_BYTES} bytes", listener)
            self._is_established = await self._handshake_step(listener)
            await self._flush_all()
            if self._is_established:
                return
        raise _broken(f"sent more than {_HANDSHAKE_RECORDS} records", listener)

    async def _receive_exactly(self, size: int, listener: str) -> bytes:
        data = b""
        while len(data) < size:
            await trio.lowlevel.wait_readable(self._sock.fileno())
            try:
                more = self._sock.recv(size - len(data))
            except BlockingIOError:
                continue
            if not more:
                raise _broken("ended the connection", listener)
            data += more
        return data

    async def _handshake_step(self, listener: str) -> bool:
        """Process what has been received. True: the handshake is complete."""
        try:
            await trio.to_thread.run_sync(self._tls.do_handshake, limiter=self._shared.handshakes)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._flush_quietly()  # The alert that names the reason to the peer.
            raise CloseConnection(_refusal(listener, error), f"TLS {error.reason}") from error
        return True

    async def _flush_all(self) -> None:
        while True:
            try:
                return self._flush()
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock.fileno())

    def peer_certificate(self) -> bytes | None:
        """The client's certificate (DER), checked in the handshake; None if it showed none."""
        return self._tls.getpeercert(binary_form=True)


def _broken(what: str, listener: str) -> CloseConnection:
    return CloseConnection(f"it {what} during the TLS handshake with {listener}", "TLS handshake")


def _refusal(listener: str, error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if error.reason in _WRONG_PROTOCOL:
        fit = "set security.protocol in this client to the listener's protocol"
        return f"it does not speak the TLS that {listener} expects ({reason}): {fit}"
    if error.reason in _UNTRUSTED:
        return f"it does not trust the certificate of {listener} ({reason})"
    return f"TLS handshake with {listener} failed: {reason}"
