"""A proxy between clients and a broker: it passes everything except the one response that a test
wants to lose, and then breaks that connection.

The broker must `--advertise` the proxy's address. To broker and client, a lost response looks like
work that the broker finishes just before it dies, unknown to the client. A kill cannot be timed to
hit that moment.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from kio.serial import entity_reader

from kbroker.protocol.messages import read_request_head, response_schema

Losing: TypeAlias = Callable[[Any], bool]
"""Whether this response (kio's entity) gets lost."""
_LENGTH = struct.Struct(">i")
_HEADER_1 = 5
"""Bytes of a response header with an empty tag section."""


class LossyProxy:
    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost = threading.Event()
        """Set when the response has been lost."""
        self._losing: tuple[int, Losing] | None = None
        self._open: list[socket.socket] = [self._listener]

    def lose_next(self, api_key: int, losing: Losing) -> None:
        """Lose the next response to this API for which `losing` holds. Flexible versions only."""
        self.lost.clear()
        self._losing = api_key, losing

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open += [client, broker]
            asked: dict[int, tuple[int, int]] = {}
            for way in (self._requests, self._answers):
                threading.Thread(target=way, args=(client, broker, asked), daemon=True).start()

    def close(self) -> None:
        for each in self._open:
            _break(each)

    def _requests(
        self, client: socket.socket, broker: socket.socket, asked: dict[int, tuple[int, int]]
    ) -> None:
        for frame in _frames(client):
            head = read_request_head(frame[_LENGTH.size :])
            asked[head.correlation_id] = head.api_key, head.api_version
            if not _pass_on(broker, frame):
                break
        _break(broker)

    def _answers(
        self, client: socket.socket, broker: socket.socket, asked: dict[int, tuple[int, int]]
    ) -> None:
        for frame in _frames(broker):
            (correlation_id,) = _LENGTH.unpack_from(frame, _LENGTH.size)
            if self._is_lost(*asked.pop(correlation_id), frame[_LENGTH.size + _HEADER_1 :]):
                self.lost.set()
                break
            if not _pass_on(client, frame):
                break
        _break(broker)
        _break(client)

    def _is_lost(self, api_key: int, version: int, body: bytes) -> bool:
        if self._losing is None or self._losing[0] != api_key:
            return False
        answer, _ = entity_reader(response_schema(api_key, version))(body, 0)
        if self._losing[1](answer):
            self._losing = None
            return True
        return False


@contextmanager
def open_lossy_proxy(target: tuple[str, int]) -> Iterator[LossyProxy]:
    proxy = LossyProxy(target)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Yield frames, including their length prefix, until the connection ends."""
    with source.makefile("rb") as stream:
        while True:
            try:
                length = stream.read(_LENGTH.size)
                body = stream.read(_LENGTH.unpack(length)[0]) if len(length) == _LENGTH.size else b""
            except OSError:
                return
            if not body:
                return
            yield length + body


def _pass_on(target: socket.socket, frame: bytes) -> bool:
    try:
        target.sendall(frame)
    except OSError:
        return False
    return True


def _break(connection: socket.socket) -> None:
    with suppress(OSError):  # not connected, or no longer
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
