"""A minimal broker on a real socket: it answers each request with the bytes that the test's
function returns."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kio.schema.index import api_key_map, schema_name_map

from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode
from kbroker.protocol.messages import encode_response, read_request, read_request_head, response_header

Answer = Callable[[int, int, Any], dict[str, Any] | bytes | None]
"""(api key, version, request entity) -> fields of the response, the bytes of a whole frame, or None
to hang up."""

API_VERSIONS = 18


def serving(
    answers: Mapping[int, Callable[[Any], dict[str, Any]]], highest: Mapping[int, int] | None = None
) -> Answer:
    """Answers these api keys, each up to its highest version unless `highest` says less; closes the
    connection on any other."""
    versions = {key: (highest or {}).get(key, max(schema_name_map[api_key_map[key]])) for key in answers}
    rows = [{"api_key": key, "min_version": 0, "max_version": version} for key, version in versions.items()]

    def answer(key: int, version: int, request: Any) -> dict[str, Any] | None:
        if key == API_VERSIONS:
            return {"error_code": ErrorCode.none, "api_keys": rows}
        return answers[key](request) if key in answers else None

    return answer


class FakeBroker:
    """`context`: for a listener with TLS."""

    def __init__(self, answer: Answer, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[int, int, Any]] = []
        self._answer = answer
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            try:
                secured = self._context.wrap_socket(peer, server_side=True) if self._context else peer
            except OSError:  # the client did not like the certificate
                peer.close()
                continue
            try:
                with secured, secured.makefile("rb") as stream:
                    self._serve_peer(secured, stream)
            except OSError:
                continue

    def _serve_peer(self, peer: socket.socket, stream: Any) -> None:
        while len(size := stream.read(4)) == 4:
            frame = stream.read(struct.unpack(">i", size)[0])
            head = read_request_head(frame)
            request = read_request(head, frame)
            self.requests.append((head.api_key, head.api_version, request))
            answer = self._answer(head.api_key, head.api_version, request)
            if answer is None:
                return
            if not isinstance(answer, bytes):
                payload = struct.pack(">i", head.correlation_id) + response_header(
                    head.api_key, head.api_version
                )
                payload += encode_response(head.api_key, head.api_version, answer)
                answer = struct.pack(">i", len(payload)) + payload
            peer.sendall(answer)


@contextmanager
def fake_broker(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[FakeBroker]:
    broker = FakeBroker(answer, context)
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def connected(
    answers: Mapping[int, Callable[[Any], dict[str, Any]]], highest: Mapping[int, int] | None = None
) -> Iterator[tuple[Connection, FakeBroker]]:
    """A connection to a broker with these answers."""
    with fake_broker(serving(answers, highest)) as broker, Connection("127.0.0.1", broker.port) as connection:
        yield connection, broker
