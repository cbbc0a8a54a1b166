"""TLS listeners with real clients: certificates of every form, a new certificate beside living
connections, client certificates, and peers that break the handshake."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.broker.options import StartOptions
from kbroker.client import user_admin
from kbroker.client.broker_process import BrokerStartFailed, RunningBroker, free_port
from kbroker.client.rpc import Connection
from kbroker.server import run
from kbroker.server.tls import ListenerTls
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.listeners import Listener, SecurityProtocol
from tests.certificates import Authority, Pair

MIB = bytes(range(256)) * 4096


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Starts a broker with an SSL and a PLAINTEXT listener; `_` in a setting stands for a dot."""
    brokers: list[RunningBroker] = []

    def started(**settings: str) -> RunningBroker:
        port = free_port()
        config = {
            "listeners": f"SSL://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{free_port()}",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        broker = RunningBroker(tmp_path / "broker", storage="memory", config=config, port=port)
        broker.log_file.parent.mkdir(exist_ok=True)
        brokers.append(broker)
        broker.start()
        return broker

    yield started
    for broker in brokers:
        broker.kill()


def written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def client(broker: RunningBroker, authority: Authority, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.file),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def produce_and_consume(settings: dict[str, Any], values: list[bytes]) -> None:
    topic = f"t{time.monotonic_ns()}"
    producer = Producer({**settings, "message.max.bytes": 4 << 20, "linger.ms": 20})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        got: list[bytes] = []
        ends = time.monotonic() + 20
        while len(got) < len(values) and time.monotonic() < ends:
            got += [found.value() for found in consumer.consume(100, 1) if found.error() is None]
        assert got == values
    finally:
        consumer.close()


def context_of(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def secured(broker: RunningBroker, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection((broker.host, broker.port), timeout=10)
    return context.wrap_socket(sock, server_hostname="localhost")


def serves(sock: socket.socket) -> bool:
    """Whether an ApiVersions request is answered."""
    request = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    sock.sendall(request)
    return sock.recv(8)[4:8] == struct.pack(">i", 7)


def test_records_of_every_size_pass(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(
        ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()),
        message_max_bytes=str(4 << 20),
    )
    sizes = [0, 1, 100, 16_383, 16_384, 16_385, 1 << 20, 3 << 20]
    produce_and_consume(client(broker, authority), [(MIB * 3)[:size] for size in sizes])


def test_clients_are_sent_to_the_listener_on_which_they_asked(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()))
    plain_port = int(broker.config["listeners"].rpartition(":")[2])
    (through_tls,) = AdminClient(client(broker, authority)).list_topics(timeout=10).brokers.values()
    plain = AdminClient({"bootstrap.servers": f"127.0.0.1:{plain_port}"}).list_topics(timeout=10)
    assert through_tls.port == broker.port
    assert [each.port for each in plain.brokers.values()] == [plain_port]
    assert f"PLAINTEXT://127.0.0.1:{plain_port}" in broker.ready_line


@pytest.mark.parametrize("form", ["encrypted", "inline", "pkcs12"])
def test_every_form_of_a_key_is_read(
    form: str, start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    pair = authority.server()
    settings = {
        "encrypted": lambda: {
            "ssl_keystore_location": written(tmp_path / "server.pem", pair.pem(b"secret")),
            "ssl_key_password": "secret",
        },
        "inline": lambda: {
            "ssl_keystore_key": pair.key_pem().decode().replace("\n", "\\n"),
            "ssl_keystore_certificate_chain": pair.certificate_pem().decode().replace("\n", "\\n"),
        },
        "pkcs12": lambda: {
            "ssl_keystore_location": written(tmp_path / "server.p12", pair.pkcs12(b"secret")),
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_password": "secret",
        },
    }[form]()
    broker = start(**settings)
    with secured(broker, context_of(authority)) as sock:
        assert serves(sock)


def not_a_key(pair: Pair, other: Pair) -> bytes:
    return other.key_pem() + pair.certificate_pem()


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (lambda pair, other: None, "cannot read"),
        (lambda pair, other: b"nothing", "ssl.keystore.location"),
        (not_a_key, "key values mismatch"),
        (lambda pair, other: pair.pem(b"secret"), "ssl.keystore.location"),
        (lambda pair, other: pair.pkcs12(b"secret"), "a PKCS12 file needs ssl.keystore.type=PKCS12"),
        (lambda pair, other: b"\xfe\xed\xfe\xed\0\0\0\2", "is a JKS file, .* `keytool -importkeystore"),
    ],
    ids=["missing", "garbage", "of another key", "without its password", "without its type", "of Java"],
)
def test_a_broker_without_a_good_certificate_does_not_start(
    contents: Callable[[Pair, Pair], bytes | None],
    error: str,
    start: Callable[..., RunningBroker],
    authority: Authority,
    tmp_path: Path,
) -> None:
    path = tmp_path / "server.pem"
    if (data := contents(authority.server(), authority.server())) is not None:
        path.write_bytes(data)
    with pytest.raises(BrokerStartFailed, match=error) as raised:
        start(ssl_keystore_location=str(path))
    assert "Traceback" not in str(raised.value)
    assert "listener SSL: " in str(raised.value)


def test_authorities_need_the_type_of_their_file(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    path = written(tmp_path / "trust.p12", authority.server().pkcs12(b"secret"))
    with pytest.raises(BrokerStartFailed, match=r"a PKCS12 file needs ssl\.truststore\.type=PKCS12"):
        start(
            ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()),
            ssl_client_auth="required",
            ssl_truststore_location=path,
        )


def test_a_new_certificate_is_used_without_a_restart(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    first, second = authority.server(), authority.server()
    path = tmp_path / "server.pem"
    broker = start(ssl_keystore_location=written(path, first.pem()))

    def shown() -> int:
        with secured(broker, context_of(authority)) as sock:
            certificate = sock.getpeercert()
            assert certificate is not None
            return int(str(certificate["serialNumber"]), 16)

    with secured(broker, context_of(authority)) as old:
        path.write_bytes(b"half a fi")
        wait_for(lambda: "keeps the certificate that it has" in broker.logs())
        assert shown() == first.certificate.serial_number
        path.write_bytes(second.pem())
        wait_for(lambda: shown() == second.certificate.serial_number)
        assert serves(old)


def test_a_certificate_is_read_later_if_there_are_no_files_left(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the system must not end the broker, as strangers can use up its files."""
    path = tmp_path / "server.pem"
    path.write_bytes(authority.server().pem())
    config = BrokerConfig({"ssl.keystore.location": str(path)})
    tls = ListenerTls(config, Listener("SSL", SecurityProtocol.SSL, ("127.0.0.1", 0)))
    before = tls.context
    path.write_bytes(authority.server().pem())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with suppress(OSError):
            while True:
                files.enter_context(open(os.devnull))
        tls.reload_if_changed()
        assert tls.context is before
    assert "SSL keeps the certificate that it has" in caplog.text
    tls.reload_if_changed()
    assert tls.context is not before


async def test_sighup_reads_certificates_at_once(authority: Authority, tmp_path: Path) -> None:
    """Without waiting for the next look."""
    path = tmp_path / "server.pem"
    path.write_bytes(authority.server().pem())
    config = BrokerConfig({"ssl.keystore.location": str(path)})
    tls = ListenerTls(config, Listener("SSL", SecurityProtocol.SSL, ("127.0.0.1", 0)))
    before, calls = tls.context, list[str]()
    path.write_bytes(authority.server().pem())
    options = StartOptions(
        data_dir=tmp_path, storage="memory", state_storage="memory", config=config,
        on_reload=lambda: calls.append("log level"),
    )  # fmt: skip
    await run._reload(options, [tls])
    assert tls.context is not before
    assert calls == ["log level"]


def wait_for(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends, "it did not become true in 30 s"
        time.sleep(0.1)


def test_a_required_client_certificate_must_be_signed_by_the_authority(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(
        ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()),
        ssl_client_auth="required",
        ssl_truststore_location=str(authority.file),
    )
    other = Authority(tmp_path, "other")
    good, expired, strange = authority.client("alice"), authority.client("bob", days=-1), other.client("eve")
    context = context_of(authority)
    context.load_cert_chain(written(tmp_path / "alice.pem", good.pem()))
    with secured(broker, context) as sock:
        assert serves(sock)
    for name, pair in (("expired", expired), ("strange", strange), ("none", None)):
        context = context_of(authority)
        if pair is not None:
            context.load_cert_chain(written(tmp_path / f"{name}.pem", pair.pem()))
        # With TLS 1.3 the client learns of the refusal when it reads.
        with pytest.raises((ssl.SSLError, ConnectionError)), secured(broker, context) as sock:
            assert serves(sock)
    assert 1 <= broker.logs().count("closing connection of 127.0.0.1") <= 3


def test_a_client_that_does_not_trust_the_broker_is_logged(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()))
    other = Authority(tmp_path, "other")
    with pytest.raises(KafkaException):
        AdminClient(client(broker, other)).list_topics(timeout=3)
    wait_for(lambda: "it does not trust the certificate of SSL://" in broker.logs())


def test_peers_that_break_the_handshake_do_not_hold_others_up(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    """Half-open connections, plain bytes, an HTTP request, a torn record and a downgrade."""
    broker = start(ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()))
    address = (broker.host, broker.port)
    silent = ExitStack()
    for _ in range(50):
        silent.enter_context(socket.create_connection(address))
    for data in (
        struct.pack(">ihhih", 10, 18, 0, 7, -1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x40\x00" + b"\0" * 300,
    ):
        with socket.create_connection(address, timeout=5) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    old = context_of(authority)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secured(broker, old)
    with secured(broker, context_of(authority)) as sock:
        assert serves(sock)
    silent.close()
    assert "Traceback" not in broker.logs()
    assert "does not speak the TLS that" in broker.logs()


def test_fragments_of_one_byte_are_put_together(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context_of(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((broker.host, broker.port), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exchange(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    result = step()
                except ssl.SSLWantReadError:
                    result = None
                for byte in outgoing.read():
                    sock.sendall(bytes([byte]))
                if result is not None:
                    return result
                incoming.write(sock.recv(4096))

        exchange(lambda: tls.do_handshake() or True)
        exchange(lambda: tls.write(struct.pack(">ihhih", 10, 18, 0, 7, -1)))
        assert exchange(lambda: tls.read(4096))[4:8] == struct.pack(">i", 7)


def test_one_address_has_at_most_its_connections(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(
        ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()),
        max_connections_per_ip="2",
    )
    with secured(broker, context_of(authority)), secured(broker, context_of(authority)) as second:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            secured(broker, context_of(authority))
        assert serves(second)
    wait_for(lambda: has_room(broker, authority))
    assert "max.connections.per.ip" in broker.logs()


def has_room(broker: RunningBroker, authority: Authority) -> bool:
    try:
        with secured(broker, context_of(authority)) as sock:
            return serves(sock)
    except (ssl.SSLError, ConnectionError):
        return False


def test_the_subject_of_a_certificate_is_the_principal(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    """alice may do everything, bob nothing; a subject that no rule names is refused."""
    broker = start(
        ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()),
        ssl_client_auth="required",
        ssl_truststore_location=str(authority.file),
        ssl_principal_mapping_rules="RULE:CN=(alice|bob),O=Acme,C=DE/$1/",
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:alice",
    )
    assert topics_that(broker, authority, tmp_path, "alice") == ["orders"]
    assert topics_that(broker, authority, tmp_path, "bob") == []
    with pytest.raises(KafkaException):
        topics_that(broker, authority, tmp_path, "carol")
    assert "no rule of ssl.principal.mapping.rules matches" in broker.logs()


def test_the_connections_of_a_certificate_can_be_ended(
    start: Callable[..., RunningBroker], authority: Authority, tmp_path: Path
) -> None:
    broker = start(
        ssl_keystore_location=written(tmp_path / "server.pem", authority.server().pem()),
        ssl_client_auth="requested",
        ssl_truststore_location=str(authority.file),
        ssl_principal_mapping_rules="RULE:CN=([^,]*),O=Acme,C=DE/$1/",
    )
    plain = int(broker.config["listeners"].rpartition(":")[2])
    context = context_of(authority)
    with secured(broker, context) as nobody:
        context.load_cert_chain(written(tmp_path / "alice.pem", authority.client("alice").pem()))
        with secured(broker, context) as alice, Connection(broker.host, plain) as administrator:
            assert serves(alice)
            assert user_admin.disconnect(administrator, "alice")
            alice.settimeout(20)
            while alice.recv(4096):
                pass
            assert not user_admin.disconnect(administrator, "alice")
        assert serves(nobody)


def topics_that(broker: RunningBroker, authority: Authority, tmp_path: Path, name: str) -> list[str]:
    """The topics that a client with a certificate of this name sees, if it tries to create one."""
    pair = authority.client(name)
    settings = client(
        broker,
        authority,
        ssl_certificate_location=written(tmp_path / f"{name}.pem", pair.certificate_pem()),
        ssl_key_location=written(tmp_path / f"{name}.key", pair.key_pem()),
    )
    admin = AdminClient(settings)
    (created,) = admin.create_topics([NewTopic("orders", 1, 1)], request_timeout=10).values()
    failure = created.exception(15)
    assert (failure is None) == (name == "alice"), failure
    return sorted(admin.list_topics(timeout=5).topics)
