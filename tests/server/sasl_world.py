"""A broker with SASL in a thread of this process, and clients that speak to it byte by byte."""

from __future__ import annotations

import hashlib
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.sasl import MECHANISMS
from kbroker.security.sasl_settings import SaslSettings
from kbroker.security.scram import DIGESTS, ScramClient, new_credential
from kbroker.server.listener import Door, Server
from kbroker.server.run import bind
from kbroker.settings.altering import BrokerConfig

SALT = b"a salt of 16 byt"
ITERATIONS = 4096
USERS = {"alice": "canary-alice", "bob": "canary-bob"}
JAAS_USERS = {"carol": "canary-carol"}
SETTINGS = SaslSettings(
    mechanisms=MECHANISMS,
    users={
        name: new_credential(password, SALT, ITERATIONS, ScramMechanism.SHA_256)
        for name, password in JAAS_USERS.items()
    },
    failure_delay_ms=1,
)
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SHA_256, "SCRAM-SHA-512": ScramMechanism.SHA_512}


class SaslBroker:
    """`address`: where clients must log in; `plain`: where they need not."""

    def __init__(
        self, broker: Broker, token: trio.lowlevel.TrioToken, address: tuple[str, int], plain: tuple[str, int]
    ) -> None:
        self.broker = broker
        self.address = address
        self.plain = plain
        self._token = token

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it on the broker's loop."""
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._token)

    def connect(self, *, plain: bool = False) -> Connection:
        return Connection(*(self.plain if plain else self.address), timeout_s=60)

    def socket(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)

    def logged_in(self, user: str = "alice", mechanism: str = "SCRAM-SHA-256") -> Connection:
        connection = self.connect()
        assert log_in(connection, user, mechanism=mechanism).error_code == 0
        return connection

    def create_users(self, users: Mapping[str, str] = USERS) -> None:
        for mechanism in ScramMechanism:
            rows = [upsertion(name, password, mechanism) for name, password in users.items()]
            with self.connect(plain=True) as connection:
                answer = connection.call("alter_user_scram_credentials", 0, deletions=[], upsertions=rows)
            assert {row.error_code for row in answer.results} == {ErrorCode.none}


def upsertion(name: str, password: str, mechanism: int, iterations: int = ITERATIONS) -> dict[str, Any]:
    digest = DIGESTS[ScramMechanism(mechanism)]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, iterations)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": SALT,
        "salted_password": salted,
    }


@contextmanager
def open_sasl_broker(
    data_dir: Path,
    settings: SaslSettings = SETTINGS,
    config: Mapping[str, str] | None = None,
    storage: str = "memory",
) -> Iterator[SaslBroker]:
    """With the users of USERS (stored) and JAAS_USERS. It is stopped at the end of the block."""
    started: queue.SimpleQueue[SaslBroker | BaseException] = queue.SimpleQueue()
    stop = trio.Event()
    options = StartOptions(
        data_dir=data_dir, storage=storage, state_storage=storage, config=BrokerConfig(config or {})
    )

    async def serve() -> None:
        with bind(("127.0.0.1", 0)) as listener, bind(("127.0.0.1", 0)) as plain:
            async with open_broker(options) as broker, trio.open_nursery() as nursery:
                server = Server(broker)
                nursery.start_soon(server.serve, Door(plain), Door(listener, sasl=settings))
                token = trio.lowlevel.current_trio_token()
                addresses = [sock.getsockname()[:2] for sock in (listener, plain)]
                started.put(SaslBroker(broker, token, *addresses))
                await stop.wait()
                await server.stop(5)
                nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:
            started.put(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    world = started.get(timeout=60)
    if isinstance(world, BaseException):
        raise world
    try:
        world.create_users()
        yield world
    finally:
        world.call(stop.set)
        thread.join(60)
        assert not thread.is_alive()


# -- a client
# --------------------------------------------------------------------------------------------------


def log_in(
    connection: Connection,
    user: str,
    password: str | None = None,
    *,
    mechanism: str = "PLAIN",
    version: int = 2,
) -> Any:
    """The last answer of a log-in."""
    shaken = connection.call("sasl_handshake", 1, mechanism=mechanism)
    assert shaken.error_code == 0, shaken
    ask = partial(connection.call, "sasl_authenticate", version)
    secret = {**USERS, **JAAS_USERS}.get(user, "?") if password is None else password
    if mechanism == "PLAIN":
        return ask(auth_bytes=plain_token(user, secret))
    client = ScramClient(SCRAM[mechanism], user, secret, "client")
    answer = ask(auth_bytes=client.first())
    if answer.error_code:
        return answer
    answer = ask(auth_bytes=client.final(answer.auth_bytes))
    if not answer.error_code:
        client.check(answer.auth_bytes)
    return answer


def plain_token(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def handshake_frame(mechanism: str = "PLAIN") -> bytes:
    content = struct.pack(">hhih", 17, 1, 7, -1) + struct.pack(">h", len(mechanism)) + mechanism.encode()
    return struct.pack(">i", len(content)) + content


def authenticate_frame(token: bytes) -> bytes:
    content = struct.pack(">hhih", 36, 1, 7, -1) + struct.pack(">i", len(token)) + token
    return struct.pack(">i", len(content)) + content


def is_closed(sock: socket.socket) -> bool:
    """Reads to the end of the stream."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True


def read_frame(sock: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", read_exactly(sock, 4))
    return read_exactly(sock, size)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = sock.recv(size - len(received))
        if not part:
            raise ConnectionError("closed")
        received += part
    return received
