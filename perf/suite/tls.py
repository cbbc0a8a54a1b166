"""A second listener with TLS for a measured broker: the first one stays plain, for administration
and for filling topics. The server has a certificate, and clients have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kbroker.client.broker_process import free_port

_DAYS = 7


@dataclass(frozen=True)
class TlsListener:
    """`keys`: the server's private key and certificate; `authority`: what clients trust. PEM."""

    port: int
    keys: Path
    authority: Path

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client_settings(self) -> dict[str, str]:
        """For confluent-kafka."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.authority)}

    def broker_config(self, plain_port: int) -> dict[str, str]:
        """Of kbroker, and a part of Kafka's. Both have the same defaults: TLS 1.2 and 1.3."""
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain_port},SSL://127.0.0.1:{self.port}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keys),
        }

    def kafka_config(self, plain_port: int, controller_port: int) -> Mapping[str, str]:
        both = self.broker_config(plain_port)
        return {
            **both,
            "listeners": f"{both['listeners']},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": both["listeners"],
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
            "inter.broker.listener.name": "PLAINTEXT",
        }


def new_tls_listener(home: Path) -> TlsListener:
    """With a certificate for 127.0.0.1 from a new authority, in files below `home`."""
    from kbroker.client.certificates import new_authority, server_certificate, write_private

    home.mkdir(parents=True, exist_ok=True)
    authority = new_authority("perf")
    server = server_certificate(authority, ("127.0.0.1", "localhost"), _DAYS)
    listener = TlsListener(free_port(), home / "server.pem", home / "ca.pem")
    write_private(listener.keys, server.key_pem(), server.certificate_pem())
    write_private(listener.authority, authority.certificate_pem())
    return listener
