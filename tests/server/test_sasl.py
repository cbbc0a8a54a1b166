"""Log-ins over real sockets: every answer of Kafka's in every state, and clients that do harm."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from kbroker.api import APIS
from kbroker.client.admin import create_topic
from kbroker.client.rpc import BrokerUnreachable, Connection, ConnectionClosed
from kbroker.errors import ErrorCode
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.principals import user
from kbroker.security.sasl import MECHANISMS
from kbroker.security.scram import ScramClient
from tests.server.sasl_world import (
    SETTINGS,
    SaslBroker,
    authenticate_frame,
    handshake_frame,
    is_closed,
    log_in,
    open_sasl_broker,
    plain_token,
    read_frame,
    upsertion,
)

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
TOPICS = {"topics": None, "allow_auto_topic_creation": False}


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with open_sasl_broker(tmp_path_factory.mktemp("sasl")) as opened:
        yield opened


def ask(connection: Connection) -> None:
    assert connection.call("metadata", 7, **TOPICS).brokers


def ask_for_ever(connection: Connection) -> None:
    """Until the broker closes the connection."""
    try:
        while True:
            ask(connection)
    except BrokerUnreachable:
        return


def closes(connection: Connection, api: str, version: int, **values: object) -> bool:
    """Whether the request is answered by the end of the connection."""
    with pytest.raises(ConnectionClosed):
        connection.call(api, version, **values)
    return True


# -- the answers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_log_in_and_ordinary_requests(sasl: SaslBroker, mechanism: str, version: int) -> None:
    with sasl.connect() as connection:
        assert len(connection.call("api_versions", 3, **SOFTWARE).api_keys) > 50
        answer = log_in(connection, "alice", mechanism=mechanism, version=version)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        ask(connection)
        assert user("alice") in sasl.broker.security.sessions._by_principal


def test_a_user_of_the_jaas_line(sasl: SaslBroker) -> None:
    with sasl.connect() as connection:
        assert log_in(connection, "carol").error_code == ErrorCode.none
        ask(connection)
    with sasl.connect() as connection:
        assert log_in(connection, "carol", mechanism="SCRAM-SHA-256").error_code != ErrorCode.none


def test_api_versions_before_the_log_in(sasl: SaslBroker) -> None:
    with sasl.connect() as connection:
        odd = connection.call("api_versions", 3, **{**SOFTWARE, "client_software_name": "a b"})
        assert odd.error_code == ErrorCode.invalid_request
        frame = bytearray(connection.encode("api_versions", 3, SOFTWARE))
        frame[6:8] = struct.pack(">h", 99)
        connection.send_raw(bytes(frame))
        assert connection.read_response("api_versions", 3).error_code == ErrorCode.unsupported_version
        rows = connection.call("api_versions", 3, **SOFTWARE).api_keys
        assert {row.api_key for row in rows} == {api.key for api in APIS.values() if api.listed}
        assert {17, 36, 50, 51} <= {row.api_key for row in rows}
        assert closes(connection, "api_versions", 3, **SOFTWARE)


@pytest.mark.parametrize("asks_for_versions", [False, True])
def test_no_other_request_comes_first(sasl: SaslBroker, asks_for_versions: bool) -> None:
    for api, version, values in (
        ("metadata", 7, TOPICS),
        ("sasl_authenticate", 2, {"auth_bytes": plain_token("alice", "canary-alice")}),
        ("describe_user_scram_credentials", 0, {"users": None}),
    ):
        with sasl.connect() as connection:
            if asks_for_versions:
                connection.call("api_versions", 3, **SOFTWARE)
            assert closes(connection, api, version, **values)


def test_an_unknown_mechanism(sasl: SaslBroker) -> None:
    with sasl.connect() as connection:
        answer = connection.call("sasl_handshake", 1, mechanism="scram-sha-256")
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert answer.mechanisms == MECHANISMS
        assert closes(connection, "sasl_handshake", 1, mechanism="PLAIN")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("name", "password"), [("alice", "wrong"), ("nobody", "canary-alice"), ("alice", "")]
)
def test_a_failed_log_in(sasl: SaslBroker, mechanism: str, name: str, password: str) -> None:
    with sasl.connect() as connection:
        answer = log_in(connection, name, password, mechanism=mechanism)
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        expected = "Authentication failed: Invalid username or password"
        if mechanism != "PLAIN":
            expected = (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                f"{mechanism}"
            )
        elif not password:
            expected = "Authentication failed: password not specified"
        assert (answer.error_message, answer.auth_bytes) == (expected, b"")
        assert closes(connection, "metadata", 7, **TOPICS)


def test_an_unknown_user_looks_like_a_known_one(sasl: SaslBroker) -> None:
    """The same steps, a salt of the same kind, and the same salt each time."""
    seen = []
    for name in ("alice", "nobody", "nobody", "nobody else"):
        with sasl.connect() as connection:
            connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
            client = ScramClient(ScramMechanism.SHA_256, name, "x", "client")
            first = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
            nonce, salt, iterations = first.auth_bytes.split(b",")
            seen.append((len(nonce), salt, iterations))
    assert len({(length, len(salt), iterations) for length, salt, iterations in seen}) == 1
    assert seen[1] == seen[2]
    assert len({salt for _, salt, _ in seen}) == 3


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_raw_tokens(sasl: SaslBroker, mechanism: str) -> None:
    """After SaslHandshake version 0."""
    with sasl.connect() as connection:
        assert connection.call("sasl_handshake", 0, mechanism=mechanism).error_code == 0

        def exchange(token: bytes) -> bytes:
            connection.send_raw(struct.pack(">i", len(token)) + token)
            return connection.read_frame()

        if mechanism == "PLAIN":
            assert exchange(plain_token("alice", "canary-alice")) == b""
        else:
            kind = ScramMechanism[mechanism.removeprefix("SCRAM-").replace("-", "_")]
            client = ScramClient(kind, "alice", "canary-alice", "client")
            client.check(exchange(client.final(exchange(client.first()))))
        ask(connection)
    with sasl.connect() as connection:
        connection.call("sasl_handshake", 0, mechanism=mechanism)
        with pytest.raises(ConnectionClosed):
            exchange(b"\0alice\0wrong")


def test_sasl_requests_where_there_is_none(sasl: SaslBroker) -> None:
    """On a listener without SASL, and after a log-in without an end: 34; the connection stays."""
    for connection in (sasl.connect(plain=True), sasl.logged_in()):
        with connection:
            for _ in range(2):
                shaken = connection.call("sasl_handshake", 1, mechanism="PLAIN")
                assert (shaken.error_code, shaken.mechanisms) == (ErrorCode.illegal_sasl_state, ())
                answer = connection.call("sasl_authenticate", 2, auth_bytes=plain_token("bob", "canary-bob"))
                assert answer.error_code == ErrorCode.illegal_sasl_state
                assert answer.error_message == (
                    "SaslAuthenticate request received after successful authentication"
                )
            ask(connection)


# -- sessions
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    """Sessions last one and a half seconds."""
    settings = replace(SETTINGS, max_session_ms=1500)
    with open_sasl_broker(tmp_path_factory.mktemp("short"), settings) as opened:
        yield opened


def test_a_session_ends(short: SaslBroker) -> None:
    with short.connect() as connection:
        answer = log_in(connection, "alice", mechanism="SCRAM-SHA-512", version=1)
        assert answer.session_lifetime.total_seconds() == 1.5
        ask_for_ever(connection)
    assert short.call(lambda: short.broker.metrics.sasl.expired) > 0


@pytest.mark.parametrize("sends_raw_tokens", [False, True])
def test_a_session_ends_for_a_client_that_knows_no_lifetimes(
    short: SaslBroker, sends_raw_tokens: bool
) -> None:
    """No version is a way around connections.max.reauth.ms."""
    expired = short.call(lambda: short.broker.metrics.sasl.expired)
    with short.connect() as connection:
        if sends_raw_tokens:
            token = plain_token("alice", "canary-alice")
            connection.call("sasl_handshake", 0, mechanism="PLAIN")
            connection.send_raw(struct.pack(">i", len(token)) + token)
            assert connection.read_frame() == b""
        else:
            assert log_in(connection, "alice", version=0).error_code == 0
        ask_for_ever(connection)
    assert short.call(lambda: short.broker.metrics.sasl.expired) > expired


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_session_is_renewed(short: SaslBroker, mechanism: str) -> None:
    with short.connect() as connection:
        log_in(connection, "alice", mechanism=mechanism)
        ends = monotonic() + 3.5
        renewals = 0
        while monotonic() < ends:
            ask(connection)
            shaken = connection.call("sasl_handshake", 1, mechanism="PLAIN" if renewals > 90 else mechanism)
            if shaken.error_code:
                assert shaken.error_code == ErrorCode.illegal_sasl_state, "not more often than once a second"
                continue
            renewals += 1
            if mechanism == "PLAIN":
                answer = connection.call(
                    "sasl_authenticate", 2, auth_bytes=plain_token("alice", "canary-alice")
                )
            else:
                client = ScramClient(
                    ScramMechanism[mechanism.removeprefix("SCRAM-").replace("-", "_")],
                    "alice",
                    "canary-alice",
                    "client",
                )
                first = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
                answer = connection.call("sasl_authenticate", 2, auth_bytes=client.final(first.auth_bytes))
            assert answer.error_code == ErrorCode.none
            assert answer.session_lifetime.total_seconds() == 1.5
        assert renewals >= 2


def test_nobody_becomes_another_one(short: SaslBroker) -> None:
    with short.connect() as connection:
        log_in(connection, "alice")
        answer = log_in(connection, "bob")
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert answer.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert closes(connection, "metadata", 7, **TOPICS)
    with short.connect() as connection:
        log_in(connection, "alice")
        connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        client = ScramClient(ScramMechanism.SHA_256, "alice", "canary-alice", "client")
        answer = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert closes(connection, "metadata", 7, **TOPICS)


def test_requests_in_one_burst_with_a_renewal(short: SaslBroker) -> None:
    """They are answered in order, and so is a request that follows a failed one: not at all."""
    with short.connect() as connection:
        log_in(connection, "alice")
        right, wrong = plain_token("alice", "canary-alice"), plain_token("alice", "wrong")
        connection.send_raw(
            connection.encode("metadata", 7, TOPICS)
            + connection.encode("sasl_handshake", 1, {"mechanism": "PLAIN"})
            + connection.encode("sasl_authenticate", 2, {"auth_bytes": right})
            + connection.encode("metadata", 7, TOPICS)
        )
        first, shaken, renewed = (connection.read_frame() for _ in range(3))
        assert (shaken[4:6], renewed[4:6]) == (b"\0\0", b"\0\0")
        assert connection.read_response("metadata", 7).brokers
        assert len(first) > 50
    with short.connect() as connection:
        log_in(connection, "alice")
        connection.send_raw(
            connection.encode("sasl_handshake", 1, {"mechanism": "PLAIN"})
            + connection.encode("sasl_authenticate", 2, {"auth_bytes": wrong})
            + connection.encode("metadata", 7, TOPICS)
        )
        shaken, refused = (connection.read_frame() for _ in range(2))
        assert (shaken[4:6], refused[5:7]) == (b"\0\0", struct.pack(">h", 58))
        with pytest.raises(ConnectionClosed):
            connection.read_frame()


def test_a_request_in_the_middle_of_a_renewal(short: SaslBroker) -> None:
    with short.connect() as connection:
        log_in(connection, "alice")
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        answer = connection.call("list_groups", 3, states_filter=())
        assert answer.error_code == ErrorCode.illegal_sasl_state
        with pytest.raises(ConnectionClosed):
            connection.read_frame()


def test_deleted_users_and_changed_passwords(short: SaslBroker) -> None:
    """They end at the next re-authentication, or at once."""
    short.create_users({"dave": "before"})
    with short.connect() as connection, short.connect(plain=True) as admin, short.connect() as other:
        log_in(connection, "dave", "before")
        rows = [upsertion("dave", "after", mechanism) for mechanism in (1, 2)]
        for row in rows:
            admin.call("alter_user_scram_credentials", 0, deletions=[], upsertions=[row])
        ask(connection)
        assert log_in(connection, "dave", "before").error_code == ErrorCode.sasl_authentication_failed
        assert log_in(other, "dave", "after").error_code == 0
        disconnect = [{"name": "dave", "mechanism": 127}]
        answer = admin.call("alter_user_scram_credentials", 0, deletions=disconnect, upsertions=[])
        assert [row.error_code for row in answer.results] == [ErrorCode.none]
        ask_for_ever(other)
        left = ErrorCode.none
        while left == ErrorCode.none:
            again = admin.call("alter_user_scram_credentials", 0, deletions=disconnect, upsertions=[])
            left = again.results[0].error_code
        assert left == ErrorCode.resource_not_found


def test_a_user_that_disconnects_itself_gets_its_answer(sasl: SaslBroker) -> None:
    with sasl.logged_in("bob") as own, sasl.logged_in("bob") as other, sasl.logged_in("alice") as alice:
        answer = own.call(
            "alter_user_scram_credentials", 0, deletions=[{"name": "bob", "mechanism": 127}], upsertions=[]
        )
        assert [row.error_code for row in answer.results] == [ErrorCode.none]
        for ended in (own, other):
            with pytest.raises(ConnectionClosed):
                ended.read_frame()
        ask(alice)


def test_a_waiting_request_does_not_keep_a_user_who_is_disconnected(sasl: SaslBroker) -> None:
    with sasl.logged_in("bob") as waiting, sasl.connect(plain=True) as admin:
        create_topic(admin, "waiting")
        row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic": "waiting", "partitions": [row]}]
        wait = {"max_wait": 3_600_000, "min_bytes": 1, "topics": topics, "forgotten_topics_data": []}
        waiting.send_raw(waiting.encode("fetch", 12, wait))
        while not sasl.call(lambda: sasl.broker.metrics.fetch.waiting):
            pass
        answer = admin.call(
            "alter_user_scram_credentials", 0, deletions=[{"name": "bob", "mechanism": 127}], upsertions=[]
        )
        assert answer.results[0].error_code == 0
        with pytest.raises(ConnectionClosed):
            waiting.read_frame()


# -- clients that do harm
# --------------------------------------------------------------------------------------------------


def test_one_byte_at_a_time(sasl: SaslBroker) -> None:
    with sasl.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for frame in (handshake_frame(), authenticate_frame(plain_token("alice", "canary-alice"))):
            for position in range(len(frame)):
                sock.sendall(frame[position : position + 1])
            assert read_frame(sock)[4:6] == b"\0\0"


def test_everything_in_one_burst(sasl: SaslBroker) -> None:
    """A client that does not wait for answers, and continues with a request."""
    with sasl.connect() as connection:
        connection.send_raw(
            handshake_frame()
            + authenticate_frame(plain_token("alice", "canary-alice"))
            + connection.encode("metadata", 7, TOPICS)
        )
        assert connection.read_frame()[4:6] == b"\0\0"
        assert connection.read_frame()[4:6] == b"\0\0"
        assert connection.read_response("metadata", 7).brokers


def test_the_largest_token_and_one_byte_more(sasl: SaslBroker) -> None:
    limit = SETTINGS.max_receive_bytes
    for excess in (0, 1):
        token = b"x" * (limit - 14 + excess)
        with sasl.socket() as sock:
            sock.sendall(handshake_frame())
            read_frame(sock)
            frame = authenticate_frame(token)
            assert len(frame) == 4 + limit + excess
            sock.sendall(frame[:4])
            if excess:
                assert is_closed(sock)
            else:
                sock.sendall(frame[4:])
                assert read_frame(sock)[4:6] == struct.pack(">h", 58)


@pytest.mark.parametrize("size", [0, -1, 1 << 30])
def test_a_frame_of_an_absurd_size(sasl: SaslBroker, size: int) -> None:
    for before in (b"", handshake_frame()):
        with sasl.socket() as sock:
            sock.sendall(before + struct.pack(">i", size))
            assert is_closed(sock)


PARTS = [
    b"",
    b"\0",
    handshake_frame()[:9],
    handshake_frame(),
    handshake_frame() + authenticate_frame(b"\0alice\0canary-alice")[:20],
    handshake_frame("SCRAM-SHA-256") + authenticate_frame(b"n,,n=alice,r=abc"),
    handshake_frame() + authenticate_frame(b"\0alice\0wrong"),
    handshake_frame() + authenticate_frame(b"\0alice\0canary-alice"),
]


def is_closed_now(sock: socket.socket) -> bool:
    """After a wait of 50 ms at most."""
    sock.settimeout(0.05)
    try:
        return not sock.recv(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    finally:
        sock.settimeout(60)


def connections_of(sasl: SaslBroker) -> int:
    return int(sasl.call(lambda: sasl.broker.security.sessions.statistics().sessions))


@pytest.mark.parametrize("sent", PARTS, ids=range(len(PARTS)))
@pytest.mark.parametrize("how", ["close", "shutdown", "reset"])
def test_a_client_leaves_in_each_state(sasl: SaslBroker, sent: bytes, how: str) -> None:
    for _ in range(3):
        sock = sasl.socket()
        sock.sendall(sent)
        if how == "shutdown":
            sock.shutdown(socket.SHUT_WR)
            assert is_closed(sock)
        elif how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    with sasl.logged_in() as connection:
        ask(connection)
    while connections_of(sasl):
        pass


def test_half_open_connections_are_ended(tmp_path: Path) -> None:
    """They say nothing, or not enough; the deadline is for the log-in as a whole."""
    with open_sasl_broker(tmp_path, replace(SETTINGS, log_in_s=1.0)) as sasl, ExitStack() as stack:
        silent = [stack.enter_context(sasl.socket()) for _ in range(50)]
        for number, sock in enumerate(silent):
            sock.sendall(PARTS[number % 6])
        with sasl.socket() as dripping:
            dripping.sendall(struct.pack(">i", 1000))
            while not is_closed_now(dripping):
                dripping.sendall(b"x")
        assert all(is_closed(sock) for sock in silent)
        with sasl.logged_in() as connection:
            ask(connection)


def test_replayed_messages_do_not_log_in(sasl: SaslBroker) -> None:
    with sasl.connect() as connection:
        connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        client = ScramClient(ScramMechanism.SHA_256, "alice", "canary-alice", "client")
        first = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
        final = client.final(first.auth_bytes)
        assert connection.call("sasl_authenticate", 2, auth_bytes=final).error_code == 0
    with sasl.connect() as connection:
        connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        connection.call("sasl_authenticate", 2, auth_bytes=client.first())
        answer = connection.call("sasl_authenticate", 2, auth_bytes=final)
        assert answer.error_code == ErrorCode.sasl_authentication_failed
