"""Connections over TLS for scripts of the second profile."""

from __future__ import annotations

import ssl
from pathlib import Path

from kbroker.client.rpc import BrokerUnreachable, Connection
from tests.certificates import Pair
from tests.differential.script import PATIENCE_S
from tests.differential.secured import Secured


class TlsConnection(Connection):
    """Raises BrokerUnreachable if the handshake fails. With TLS 1.3 a refused certificate may show
    only at the first answer."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, client_id="differential", timeout_s=PATIENCE_S)
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        except OSError as error:
            self.close()
            raise BrokerUnreachable(f"{self.address} refused the handshake: {error}") from error


def client_context(s: Secured, certificate: Pair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=s.place.authority.file)
    if certificate is not None:
        file = Path(s.place.home) / f"{s.name}-{len(list(s.place.home.iterdir()))}.pem"
        file.write_bytes(certificate.pem())
        context.load_cert_chain(file)
    return context


def connect(
    s: Secured, name: str, certificate: Pair | None = None, *, listener: str = "ssl",
    version: ssl.TLSVersion | None = None,
) -> bool:  # fmt: skip
    """Open the script's connection `name`. Whether the broker takes it is a step."""
    context = client_context(s, certificate)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    connection = None
    try:
        connection = TlsConnection(s.place.ports[listener], context)
        software = {"client_software_name": "differential", "client_software_version": "1"}
        connection.call("api_versions", 3, **software)
    except BrokerUnreachable:
        if connection is not None:  # With TLS 1.3 the refusal follows the handshake.
            connection.close()
        s.note(name, "refused")
        return False
    s.note(name, "taken")
    s.adopt(name, connection)
    return True
