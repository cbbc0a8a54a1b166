"""A TLS connection against peers that make work of it: many small records, and requests for new
keys whose answers are never read."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from kbroker.api.request import CloseConnection
from kbroker.server.tls_socket import Ciphertext, TlsSocket
from tests.certificates import Authority

KEY_UPDATE_REQUESTED = 1


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    pem = tmp_path / "server.pem"
    pem.write_bytes(Authority(tmp_path).server().pem())
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.num_tickets = 0
    found.load_cert_chain(pem)
    return found


@contextmanager
def pair(context: ssl.SSLContext) -> Iterator[tuple[TlsSocket, socket.socket]]:
    """The broker's side, and the other one, for which little fits into the way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname(), timeout=60)
        sock, _ = listener.accept()
    with sock, other:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield TlsSocket(sock, context, Ciphertext(1 << 20)), other


def hello() -> bytes:
    """The first record of a client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_a_handshake_has_few_records(context: ssl.SSLContext) -> None:
    """A message in records of one byte each."""
    with pair(context) as (secured, other):
        message = hello()[5:]
        other.setblocking(False)
        other.send(b"".join(b"\x16\x03\x01\x00\x01" + bytes([each]) for each in message))
        with pytest.raises(CloseConnection, match="more than 64 records"):
            await secured.handshake("SSL://")


def ask_for_new_keys(sock: socket.socket, ready: threading.Event) -> None:
    """Handshake, then KeyUpdate messages until the connection ends. The ssl module has none."""
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    pointer = ctypes.c_void_p
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = pointer
    client = pointer(library.SSL_new(pointer(library.SSL_CTX_new(pointer(library.TLS_client_method())))))
    library.SSL_set_fd(client, sock.fileno())
    assert library.SSL_connect(client) == 1
    ready.set()
    while library.SSL_key_update(client, KEY_UPDATE_REQUESTED) == 1:
        if library.SSL_do_handshake(client) != 1:
            return


async def read_for_ever(secured: TlsSocket) -> None:
    buffer = memoryview(bytearray(1 << 20))
    while True:
        await trio.lowlevel.wait_readable(secured.fileno())
        with suppress(BlockingIOError):
            secured.recv_into(buffer)


async def test_a_peer_that_asks_for_new_keys_and_reads_nothing_is_closed(context: ssl.SSLContext) -> None:
    with pair(context) as (secured, other):
        other.settimeout(None)
        ready = threading.Event()
        peer = threading.Thread(target=ask_for_new_keys, args=(other, ready), daemon=True)
        peer.start()
        await secured.handshake("SSL://")
        await trio.to_thread.run_sync(ready.wait)
        with trio.fail_after(60), pytest.raises(ConnectionAbortedError):
            await read_for_ever(secured)
        secured.close()  # After shutdown() alone, a peer whose send buffer is full would wait for ever.
        await trio.to_thread.run_sync(peer.join)
