"""Certificates and private keys that a client's settings name: PEM files, PEM text, and PKCS12
files.

PEM needs nothing but OpenSSL. A PKCS12 file is converted to PEM text with `cryptography`, which is
imported only then. No error names a password or a part of a key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kbroker.errors import OperatorError

T = TypeVar("T")
_PEM = b"-----BEGIN "
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM data, either in a file or as text. The text is not printed: it may be a private key."""

    path: str | None = None
    text: str | None = field(default=None, repr=False)


class Identity(NamedTuple):
    """A client's certificate, with its chain, and its private key."""

    certificate: Pem
    key: Pem


def trusted(name: str, path: str, password: str | None) -> Pem:
    """The certificates that a file holds. `name`: the setting, for errors. Raises OperatorError."""
    data = _read(name, path)
    if _PEM in data:
        return Pem(path)

    def convert() -> Pem:
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

        found = load_pkcs12(data, _as_bytes(password))
        every = [*([found.cert] if found.cert else []), *found.additional_certs]
        return Pem(text="".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in every))

    return _converted(name, path, data, convert)


def identity(name: str, path: str, password: str | None) -> Identity:
    """The certificate, its chain and the key that one file holds. `name`: the setting, for errors.
    Raises OperatorError."""
    data = _read(name, path)
    if _PEM in data:
        return Identity(Pem(path), Pem(path))

    def convert() -> Identity:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

        found = load_pkcs12(data, _as_bytes(password))
        if found.key is None or found.cert is None:
            raise OperatorError(f"{name}: {path} has no private key with a certificate")
        chain = [found.cert, *found.additional_certs]
        key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        text = "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in chain)
        return Identity(Pem(text=text), Pem(text=key.decode()))

    return _converted(name, path, data, convert)


def pem_file(name: str, path: str) -> Pem:
    """A file that must be PEM. Raises OperatorError."""
    if _PEM not in _read(name, path):
        raise OperatorError(f"{name}: {path} is not a PEM file")
    return Pem(path)


def pem_text(name: str, text: str) -> Pem:
    """Text that must be PEM. Raises OperatorError."""
    if _PEM.decode() not in text:
        raise OperatorError(f"{name} is not PEM text: it begins with {_PEM.decode()}..., in one value")
    return Pem(text=text)


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OperatorError(f"{name}: cannot read {path}: {error.strerror}") from error


def _converted(name: str, path: str, data: bytes, convert: Callable[[], T]) -> T:
    """Raises OperatorError, in one line, whatever is wrong with the file."""
    if data.startswith(_JKS):
        how = f"keytool -importkeystore -srckeystore {path} -destkeystore NEW -deststoretype PKCS12"
        raise OperatorError(f"{name}: {path} is a JKS file, which only Java reads; convert it: {how}")
    try:
        return convert()
    except ImportError as error:
        raise OperatorError(
            f"{name}: {path} is not a PEM file; PKCS12 needs pip install cryptography"
        ) from error
    except ValueError as error:
        reason = "not a PEM file and not a PKCS12 file, or its password is wrong"
        raise OperatorError(f"{name}: {path} is {reason}") from error


def _as_bytes(password: str | None) -> Any:  # noqa: ANN401 (bytes or None)
    return None if password is None else password.encode()
