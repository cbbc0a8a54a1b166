"""Security for a private broker (broker_process.py) by one word, the protocol: certificates, users
and settings for the broker, and the settings of each user's clients.

    SSL              users have certificates, which the broker requires; User:NAME by the CN
    SASL_PLAINTEXT   users have passwords: SCRAM-SHA-256, and PLAIN
    SASL_SSL         the same, encrypted

There is an authorizer. The user `admin` may do everything; others may do what ACLs allow.
Certificates need `kbroker[security]`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kbroker.client.security import ClientSecurity
from kbroker.errors import OperatorError
from kbroker.formats.security_values import ScramMechanism
from kbroker.settings.listeners import SecurityProtocol

if TYPE_CHECKING:
    from kbroker.client.certificates import Issued
    from kbroker.client.rpc import Connection

ADMIN: Final = "admin"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_DAYS: Final = 30
_ITERATIONS: Final = 4096
"""The fewest: the passwords are random."""


class SecuredSetup:
    """`home`: for the certificates. Raises OperatorError without the package for them."""

    def __init__(self, home: Path, protocol: SecurityProtocol) -> None:
        self.protocol = protocol
        self._folder = home / "certificates"
        self._authority: Issued | None = None
        self._passwords: dict[str, str] = {}
        if protocol.has_tls:
            self._authority = self._new_authority()
        self._add(ADMIN, secrets.token_urlsafe())

    def broker_config(self, port: int) -> dict[str, str]:
        """Settings of the broker, some of them secret."""
        name = self.protocol.value
        config = {
            "listeners": f"{name}://127.0.0.1:{port}",
            "authorizer.class.name": _AUTHORIZER,
            "super.users": f"User:{ADMIN}",
        }
        if self.protocol.has_tls:
            config["ssl.keystore.location"] = str(self._folder / "server.pem")
        if self.protocol is SecurityProtocol.SSL:
            config["ssl.client.auth"] = "required"
            config["ssl.truststore.location"] = str(self._folder / "ca.pem")
            config["ssl.principal.mapping.rules"] = "RULE:CN=([^,]*)/$1/"
        if self.protocol.has_sasl:
            # The first log-in, by PLAIN: it works with every engine, also with one that forgets.
            jaas = f'{_PLAIN} required user_{ADMIN}="{self._passwords[ADMIN]}";'
            config["sasl.enabled.mechanisms"] = "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"
            config[f"listener.name.{name.lower()}.plain.sasl.jaas.config"] = jaas
        return config

    def client_config(self, user: str = ADMIN, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """Settings of the user's clients, by Kafka's names. Raises KeyError for an unknown user."""
        password = self._passwords[user]
        found = {"security.protocol": self.protocol.value}
        if self.protocol.has_tls:
            found["ssl.truststore.type"] = "PEM"
            found["ssl.truststore.location"] = str(self._folder / "ca.pem")
        if self.protocol is SecurityProtocol.SSL:
            found["ssl.keystore.type"] = "PEM"
            found["ssl.keystore.location"] = str(self._client_file(user))
        if self.protocol.has_sasl:
            module = _PLAIN if mechanism == "PLAIN" else _SCRAM
            found["sasl.mechanism"] = mechanism
            log_in = f"username={_quoted(user)} password={_quoted(password)}"
            found["sasl.jaas.config"] = f"{module} required {log_in};"
        return found

    def security(self, user: str = ADMIN, mechanism: str = "SCRAM-SHA-256") -> ClientSecurity:
        return ClientSecurity.of(self.client_config(user, mechanism))

    def add_user(self, user: str, password: str | None, connect: Callable[[], Connection]) -> None:
        """`connect`: as admin. Raises KafkaError and BrokerUnreachable."""
        self._add(user, password or secrets.token_urlsafe())
        self.store_users(connect)

    def store_users(self, connect: Callable[[], Connection]) -> None:
        """Give the broker the passwords that it does not have, after its start. `connect`: as
        admin, by PLAIN. Raises KafkaError and BrokerUnreachable."""
        if not self.protocol.has_sasl:
            return
        from kbroker.client import user_admin

        with connect() as connection:
            present = {each.user for each in user_admin.list_credentials(connection)}
            for user, password in self._passwords.items():
                if user not in present:
                    user_admin.set_credential(connection, user, ScramMechanism.SHA_256, password, _ITERATIONS)

    def _add(self, user: str, password: str) -> None:
        if user in self._passwords:
            raise ValueError(f"there is a user {user} already")
        self._passwords[user] = password
        if self.protocol is SecurityProtocol.SSL:
            from kbroker.client.certificates import client_certificate

            assert self._authority is not None
            self._write(self._client_file(user), client_certificate(self._authority, user, _DAYS))

    def _new_authority(self) -> Issued:
        try:
            from kbroker.client.certificates import new_authority, server_certificate, write_private
        except ImportError as error:
            raise OperatorError(
                "certificates need the package cryptography: pip install cryptography"
            ) from error
        authority = new_authority("kbroker authority for a trial")
        self._folder.mkdir(parents=True)
        write_private(self._folder / "ca.pem", authority.certificate_pem())
        self._write(self._folder / "server.pem", server_certificate(authority, _HOSTS, _DAYS))
        return authority

    def _write(self, path: Path, issued: Issued) -> None:
        from kbroker.client.certificates import write_private

        write_private(path, issued.key_pem(), issued.certificate_pem())

    def _client_file(self, user: str) -> Path:
        return self._folder / f"client-{user}.pem"


def _quoted(text: str) -> str:
    """As a value of a JAAS line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
