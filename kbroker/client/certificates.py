"""Certificates for TLS: an authority, and what it signs. Made with `cryptography`.

Keys are on the curve P-256, which Java, OpenSSL and librdkafka know. Clients compare the host that
they connect to with the names in the server's certificate, never with its subject.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS: Final = 3650
_CLOCKS_DIFFER: Final = timedelta(minutes=10)
_MAX_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_authority(name: str) -> Issued:
    """It signs itself, and may sign certificates but no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(name, name, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Issued(builder.sign(key, hashes.SHA256()), key)


def server_certificate(authority: Issued, names: Sequence[str], days: int) -> Issued:
    """For a broker that is reached by these host names and IP addresses."""
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    return _signed(authority, names[0], days, ExtendedKeyUsageOID.SERVER_AUTH, alternatives)


def client_certificate(authority: Issued, user: str, days: int) -> Issued:
    """For a client whose principal is `User:CN=<user>`, unless the broker maps it."""
    return _signed(authority, user, days, ExtendedKeyUsageOID.CLIENT_AUTH, None)


def _signed(
    authority: Issued,
    name: str,
    days: int,
    purpose: x509.ObjectIdentifier,
    alternatives: x509.SubjectAlternativeName | None,
) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = (
        _builder(name, str(issuer), key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    if alternatives is not None:
        builder = builder.add_extension(alternatives, critical=False)
    return Issued(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(name: str, issuer: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_MAX_COMMON_NAME])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_private(path: Path, *parts: bytes) -> None:
    """Create a file that only its owner reads (mode 0600). Raises FileExistsError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        for part in parts:
            file.write(part)
