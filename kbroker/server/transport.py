"""Sockets: a listening one, and a client's, with the ways to send to it and to end it.

Sending tries at once and waits only where the client reads too slowly. Requests and frames are
peer.py's business.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

import trio

from kbroker.errors import OperatorError
from kbroker.formats.batches import Buffer
from kbroker.metrics import BrokerMetrics
from kbroker.server.tls_socket import TlsSocket
from kbroker.storage.files import after

logger = logging.getLogger(__name__)

_MAX_IOVECS = 1000
_LEAVE_S = 1.0
"""How long a connection that the broker ends stays open, so that the peer can read the last answers
and close its own side."""
_BACKLOG = 1024


def bind(address: tuple[str, int], option: str = "--listen") -> socket.socket:
    """A listening socket. Raises OperatorError if the address is not available; `option` names the
    option or setting that gave it."""
    host, port = address
    try:
        info = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(info[0], info[1])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(info[4])
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with {option}"
        ) from error
    listener.setblocking(False)
    return listener


class Transport:
    """One client's socket. `name`: of the client, for log lines."""

    __slots__ = ("_metrics", "is_stalled", "last_active", "name", "sock")

    def __init__(self, sock: socket.socket | TlsSocket, name: str, metrics: BrokerMetrics) -> None:
        self.sock = sock
        self.name = name
        self._metrics = metrics
        self.is_stalled = False
        """The peer reads slowly or not at all, and answers wait for it."""
        self.last_active = trio.current_time()

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """The number of bytes that the socket accepted; 0 if it has no room now."""
        try:
            sent = self.sock.sendmsg(buffers[:_MAX_IOVECS])
        except BlockingIOError:
            return 0
        self._metrics.sent_bytes += sent
        return sent

    async def send_rest(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Send what follows the first `sent` bytes, at the speed at which the peer reads."""
        views = [memoryview(buffer) for buffer in buffers]
        while views := after(views, sent):
            if not sent:
                self.last_active = trio.current_time()
                self.is_stalled = True
                await trio.lowlevel.wait_writable(self.sock.fileno())
                self.is_stalled = False
            sent = self.send_some(views)

    def send_if_there_is_room(self, data: bytes) -> None:
        try:
            self.send_some((data,))
        except OSError as error:
            logger.debug("sending to %s: %s", self.name, error)

    async def take_leave(self, shared_buffer: memoryview) -> None:
        """Send the end of the stream, then read for a moment until the peer ends its own. Closing a
        socket that has unread bytes would reset the connection, and lose answers in transit."""
        self.shut_down(socket.SHUT_WR)
        with trio.move_on_after(_LEAVE_S):
            while True:
                await trio.lowlevel.wait_readable(self.sock.fileno())
                try:
                    if not self.sock.recv_into(shared_buffer):
                        return
                except BlockingIOError:
                    continue
                except OSError:  # Reset by the peer, which then reads nothing more.
                    return

    def has_unread_bytes(self) -> bool:
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:  # BlockingIOError, too: there are none.
            return False

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection from this side. Unless `how` is SHUT_WR, the connection's task then
        reads the end of the stream."""
        try:
            self.sock.shutdown(how)
        except OSError as error:
            logger.debug("shutting down %s: %s", self.name, error)
