"""Certificates for tests of TLS: an authority of our own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.UTC)
_DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self, password: bytes | None = None) -> bytes:
        """Key and certificate, as ssl.keystore.location takes them."""
        return self.key_pem(password) + self.certificate_pem()

    def key_pem(self, password: bytes | None = None) -> bytes:
        sealed = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def pkcs12(self, password: bytes) -> bytes:
        sealed = serialization.BestAvailableEncryption(password)
        return pkcs12.serialize_key_and_certificates(b"x", self.key, self.certificate, None, sealed)


class Authority:
    """Signs certificates. `file`: its own certificate, for ssl.ca.location."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._pair = _signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), None, [])
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._pair.certificate_pem())

    def server(self, *, days: int = 30, has_names: bool = True) -> Pair:
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        return _signed(subject, self._pair, names if has_names else [], days)

    def client(self, name: str, *, days: int = 30) -> Pair:
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Acme"),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        return _signed(subject, self._pair, [], days)


def _signed(subject: x509.Name, issuer: Pair | None, names: list[x509.GeneralName], days: int = 30) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOW - 60 * _DAY)
        .not_valid_after(_NOW + days * _DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))
