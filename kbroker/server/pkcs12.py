"""Reads PKCS12 files with `cryptography`, which the extra kbroker[security] installs."""

from __future__ import annotations

from kbroker.errors import OperatorError


def to_pem(data: bytes, password: str | None) -> bytes:
    """The private key and all certificates. Raises ValueError for a wrong password or file,
    OperatorError without `cryptography`."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as error:
        raise OperatorError("PKCS12 files need `pip install cryptography`") from error
    try:
        found = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    parts = []
    if found.key is not None:
        parts.append(found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificates = ([found.cert] if found.cert else []) + list(found.additional_certs)
    return b"".join([*parts, *(each.certificate.public_bytes(Encoding.PEM) for each in certificates)])
