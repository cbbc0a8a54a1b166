"""The second profile: scripts against a broker with an authorizer and SASL listeners.

    @secured_script()
    def list_offsets(s: Secured) -> None:
        topic = s.topic()                            # prepared, by the super user User:ANONYMOUS
        s.allow(BOB, READ, TOPIC, topic.name)        # prepared, and in force
        s.call("list_offsets", 6, on=BOB, ...)

The name of a connection says how it is opened:

| name | listener, principal |
| --- | --- |
| `bob`, `carol`, with or without `/` and more | SASL_PLAINTEXT, the script's own user |
| `alice`, likewise | SASL_PLAINTEXT, a super user |
| `sasl`, likewise | SASL_PLAINTEXT, not authenticated yet |
| `reauth`, likewise | SASL_PLAINTEXT with a long session lifetime, not authenticated yet |
| `brief`, likewise | SASL_PLAINTEXT with a short session lifetime, not authenticated yet |
| any other | PLAINTEXT, `User:ANONYMOUS`, a super user |

Users belong to one script, so that rights on the cluster do not reach other scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from kbroker.client.broker_process import free_port
from kbroker.client.rpc import BrokerUnreachable, Connection, ConnectionClosed
from tests.certificates import Authority
from tests.differential.script import PATIENCE_S, SCRIPTS, Entity, Keep, Script, Session, Value, script
from tests.differential.transcript import transcribe

ALICE, BOB, CAROL = "alice", "bob", "carol"
SASL, REAUTH, BRIEF = "sasl", "reauth", "brief"
_UNAUTHENTICATED = {SASL: "sasl_plaintext", REAUTH: REAUTH, BRIEF: BRIEF}
_LISTENERS = {
    "plaintext": "PLAINTEXT",
    "sasl_plaintext": "SASL_PLAINTEXT",
    REAUTH: "SASL_PLAINTEXT",
    BRIEF: "SASL_PLAINTEXT",
    "ssl": "SSL",
    "sasl_ssl": "SASL_SSL",
}
MAPPING_RULES = "RULE:^CN=([^,]+)-mapped,.*$/$1/,RULE:^CN=([^,]+)-upper,.*$/$1/U,DEFAULT"
_USERS = (BOB, CAROL)
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, USER = 2, 3, 4, 5, 7
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(2, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(10, 13)
DENY, ALLOW = 2, 3
KAFKA_CLUSTER = "kafka-cluster"
EVERYONE = "*"
LIFETIMES_MS = {REAUTH: 60_000, BRIEF: 3000}
"""Session lifetimes of the listeners: one that no script outlives, and one that some do."""
SILENCE_S = 5.0
"""After this time a request that Kafka may leave unanswered is."""
PROTOCOL_MAP = "listener.security.protocol.map"
_SILENCE = "/silence"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

Run: TypeAlias = "Callable[[Secured], None]"
Right: TypeAlias = tuple[int, int, str]
"""Operation, type of resource, and its literal name."""


class Place:
    """Where a secured broker is: its ports by listener, and who signs certificates."""

    def __init__(self, home: Path) -> None:
        """Writes the certificates of broker and authority into `home`."""
        self.home = home
        self.ports = {name: free_port() for name in _LISTENERS}
        self.authority = Authority(home)
        self.server_file = home / "server.pem"
        self.server_file.write_bytes(self.authority.server().pem())

    @property
    def plain(self) -> int:
        return self.ports["plaintext"]

    def listeners(self) -> str:
        return ",".join(f"{name.upper()}://127.0.0.1:{port}" for name, port in self.ports.items())

    def settings(self, scripts: Iterable[Script]) -> dict[str, str]:
        """The settings of this profile, for both brokers, without `listeners`."""
        names = [user_name(session_name(each), role) for each in scripts if each.secured for role in _USERS]
        users = " ".join(f'user_{name}="{password_of(name)}"' for name in (ALICE, *names))
        logins = {"plain": f"{_PLAIN_MODULE} required {users};"}
        logins |= {name: f"{_SCRAM_MODULE} required;" for name in ("scram-sha-256", "scram-sha-512")}
        settings = {
            PROTOCOL_MAP: ",".join(f"{name.upper()}:{protocol}" for name, protocol in _LISTENERS.items()),
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
            "connection.failed.authentication.delay.ms": "20",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ALICE}",
            "auto.create.topics.enable": "true",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            "ssl.client.auth": "requested",
            "listener.name.ssl.ssl.principal.mapping.rules": MAPPING_RULES,
        }
        for listener, lifetime_ms in LIFETIMES_MS.items():
            settings[f"listener.name.{listener}.connections.max.reauth.ms"] = str(lifetime_ms)
        for listener, protocol in _LISTENERS.items():
            for mechanism, login in logins.items() if protocol.startswith("SASL") else ():
                settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = login
        return settings


def secured_script(*rules: str, seconds: float = 1.0) -> Callable[[Run], Run]:
    """Register a script of this profile; see `script.script`."""

    def registered(run: Run) -> Run:
        def with_secured(session: Session) -> None:
            assert isinstance(session, Secured)
            run(session)

        with_secured.__module__, with_secured.__name__ = run.__module__, run.__name__
        script(*rules, seconds=seconds)(with_secured)
        name = f"{run.__module__.rsplit('.', 1)[-1]}.{run.__name__}"
        SCRIPTS[name] = replace(SCRIPTS[name], secured=True)
        return run

    return registered


def session_name(of: Script) -> str:
    return of.name.replace("_", "-")


def user_name(session: str, role: str) -> str:
    return role if role == ALICE else f"{session}-{role}"


def password_of(name: str) -> str:
    return f"secret-of-{name.rsplit('-', 1)[-1]}"


def plain_token(user: str, password: str, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{user}\0{password}".encode()


@dataclass
class Secured(Session):
    """One script's view of a secured broker."""

    broker: Place | None = None

    @property
    def place(self) -> Place:
        assert self.broker is not None
        return self.broker

    def user(self, role: str) -> str:
        return user_name(self.name, role)

    def principal(self, role: str) -> str:
        return f"User:{EVERYONE if role == EVERYONE else self.user(role)}"

    def token(self, role: str = BOB) -> bytes:
        """The PLAIN token of one of the script's users."""
        return plain_token(self.user(role), password_of(self.user(role)))

    # Connections

    def connection(self, name: str = "a", client_id: str = "differential") -> Connection:
        if name in self._connections:
            return self._connections[name]
        role = name.partition("/")[0]
        authenticated = role in (ALICE, *_USERS)
        listener = "sasl_plaintext" if authenticated else _UNAUTHENTICATED.get(role, "plaintext")
        port = self.place.ports[listener]
        timeout_s = SILENCE_S if name.endswith(_SILENCE) else PATIENCE_S
        opened = Connection("127.0.0.1", port, client_id=client_id, timeout_s=timeout_s)
        self._connections[name] = self._open.enter_context(opened)
        if authenticated:
            self._log_in(opened, role)
        return opened

    def adopt(self, name: str, connection: Connection) -> None:
        """Let the script use an opened connection by this name."""
        self._connections[name] = self._open.enter_context(connection)

    def open_plainly(self, name: str, port: int) -> None:
        self.adopt(name, Connection("127.0.0.1", port, client_id="differential", timeout_s=PATIENCE_S))

    def _log_in(self, connection: Connection, role: str) -> None:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        answer = connection.call("sasl_authenticate", 2, auth_bytes=self.token(role))
        if answer.error_code.value:
            raise AssertionError(f"{self.name}: {role} cannot log in: {answer.error_message}")

    def handshake(self, mechanism: str = "PLAIN", version: int = 1, *, on: str = SASL) -> Entity:
        return self.call("sasl_handshake", version, on=on, mechanism=mechanism)

    def authenticate(self, token: bytes, version: int = 2, *, on: str = SASL) -> Entity:
        return self.call("sasl_authenticate", version, on=on, auth_bytes=token)

    def is_open(self, on: str) -> bool:
        """Whether the script uses the connection, and has not seen its end."""
        return on in self._connections

    def ended(self, on: str = SASL) -> None:
        """A step: whether the broker has closed the connection, without a further answer."""
        if not self.is_open(on):  # It was closed instead of answering.
            self.note("then", "connection closed")
            return
        try:
            self.connection(on).read_frame()
        except ConnectionClosed:
            self.disconnect(on)
            self.note("then", "connection closed")
        except BrokerUnreachable:
            self.disconnect(on)
            self.note("then", "open")
        else:
            self.note("then", "another answer")

    def works(self, on: str) -> None:
        """A step: whether an ordinary request is answered."""
        self.call("find_coordinator", 3, on=on, key="", key_type=9)

    def frame(self, what: str, data: bytes, on: str = SASL) -> bytes | None:
        """Send bytes as they are; whether there was an answer is a step. Returns the answer."""
        connection = self.connection(on)
        connection.send_raw(data)
        try:
            answer = connection.read_frame()
        except ConnectionClosed:
            self.disconnect(on)
            self.note(what, "connection closed")
            return None
        except BrokerUnreachable:
            self.disconnect(on)
            self.note(what, "no answer")
            return None
        self.note(what, "answered")
        return answer

    def call_or_silence(self, api: str, version: int, /, on: str, **values: Value) -> None:
        """A step, for a request that a broker may leave unanswered. Uses a connection of its
        own."""
        name = f"{on}{_SILENCE}"
        answer = self.begin(api, version, name, None, **values)
        try:
            answer()
        except BrokerUnreachable:
            self.steps[-1]["answer"] = "no answer"
        if self.is_open(name):
            self.disconnect(name)

    # Rights

    def allow(
        self, role: str, operation: int, kind: int, name: str = KAFKA_CLUSTER, pattern: int = LITERAL,
        host: str = "*",
    ) -> None:  # fmt: skip
        self._add(self.entry(role, operation, kind, name, pattern, host, ALLOW))

    def deny(
        self, role: str, operation: int, kind: int, name: str = KAFKA_CLUSTER, pattern: int = LITERAL,
        host: str = "*",
    ) -> None:  # fmt: skip
        self._add(self.entry(role, operation, kind, name, pattern, host, DENY))

    def allow_principal(self, principal: str, operation: int, kind: int, name: str) -> None:
        self._add({**self.entry(BOB, operation, kind, name), "principal": principal})

    def entry(
        self, role: str, operation: int, kind: int, name: str = KAFKA_CLUSTER, pattern: int = LITERAL,
        host: str = "*", permission: int = ALLOW,
    ) -> dict[str, Value]:  # fmt: skip
        """A row of CreateAcls."""
        return {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": self.principal(role),
            "host": host,
            "operation": operation,
            "permission_type": permission,
        }

    def _add(self, row: dict[str, Value]) -> None:
        (result,) = self.prepare("create_acls", 3, creations=[row]).results
        if result.error_code.value:
            raise AssertionError(f"{self.name}: cannot create {row}: {result.error_message}")
        self.until(lambda: self.entries(exactly(row)) == 1, f"{row} is in force")

    def revoke(self, role: str, operation: int, kind: int, name: str = KAFKA_CLUSTER) -> None:
        """Delete a literal ALLOW entry for every host."""
        wanted = exactly(self.entry(role, operation, kind, name))
        answer = self.prepare("delete_acls", 3, filters=[wanted])
        assert len(answer.filter_results[0].matching_acls) == 1
        self.until(lambda: self.entries(wanted) == 0, f"{wanted} is gone")

    def entries(self, wanted: dict[str, Value]) -> int:
        """How many entries match a filter, without a step."""
        answer = self.prepare("describe_acls", 3, **wanted)
        return sum(len(row.acls) for row in answer.resources)

    def rising(self, ask: Callable[[], object], *rights: Right, role: str = BOB) -> None:
        """`ask` without rights, and again after each of `rights` was given in addition."""
        ask()
        for operation, kind, name in rights:
            self.allow(role, operation, kind, name)
            ask()

    def kept(self, what: str, api: str, version: int, /, on: str, keep: Keep, **values: Value) -> None:
        """A part of an answer as a note: for answers that name other scripts' things."""
        answer = self.prepare(api, version, on, **values)
        self.note(what, keep(transcribe(answer, self.names)))


def exactly(row: dict[str, Value]) -> dict[str, Value]:
    """The filter that matches this entry alone."""
    return {
        "resource_type_filter": row["resource_type"],
        "resource_name_filter": row["resource_name"],
        "pattern_type_filter": row["resource_pattern_type"],
        "principal_filter": row["principal"],
        "host_filter": row["host"],
        "operation": row["operation"],
        "permission_type": row["permission_type"],
    }
