"""Subjects of client certificates as text: the form that Java gives them."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kbroker.security.principals import user
from kbroker.server.tls import CertificatePrincipals

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def certificate(*parts: x509.RelativeDistinguishedName) -> bytes:
    """DER, signed by itself."""
    name = x509.Name(parts)
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, BEGIN, BEGIN)
    return builder.sign(KEY, SHA256()).public_bytes(Encoding.DER)


def part(*names: str) -> x509.RelativeDistinguishedName:
    oids = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
    return x509.RelativeDistinguishedName(
        x509.NameAttribute(oid, name) for oid, name in zip(oids, names, strict=False)
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("alice", "alice"),
        ("a, b", "a\\, b"),
        ("a+b", "a\\+b"),
        ('"a"', '\\"a\\"'),
        ("a\\b", "a\\\\b"),
        ("<a>;", "\\<a\\>\\;"),
        ("a=b", "a\\=b"),
        ("a#b", "a\\#b"),
        ("#a", "\\#a"),
        ("  a b  ", "\\ \\ a b\\ \\ "),
        ("  ", "\\ \\ "),
        ("é", "é"),
    ],
)
def test_special_characters_are_escaped(name: str, text: str) -> None:
    principals = CertificatePrincipals("DEFAULT")
    assert principals.principal_of(certificate(part(name))) == user(f"CN={text}")


def test_the_last_part_comes_first() -> None:
    found = CertificatePrincipals("DEFAULT").principal_of(certificate(part("a"), part("b", "c")))
    assert found == user("CN=b+O=c,CN=a")


def test_a_subject_that_cannot_be_read_names_nobody() -> None:
    """OpenSSL does not mind such certificates. An authority may have signed one."""
    good = certificate(part("a"))
    principals = CertificatePrincipals("DEFAULT")
    assert principals.principal_of(good) == user("CN=a")
    for part_of, spoilt in (
        (b"\x0c\x01a", b"\x13\x01\xff"),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"),
    ):
        assert part_of in good
        assert principals.principal_of(good.replace(part_of, spoilt)) is None
