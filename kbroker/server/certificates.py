"""The principal of a client certificate, read with `cryptography`."""

from __future__ import annotations

from typing import Any

from kbroker.errors import OperatorError
from kbroker.security.principal_mapping import PrincipalMapper
from kbroker.security.principals import Principal, user

_SPECIAL = ',=+<>#;"\\'


class CertificatePrincipals:
    """Of one listener. `rules`: its ssl.principal.mapping.rules."""

    def __init__(self, rules: str) -> None:
        """Raises ValueError for wrong rules, OperatorError without `cryptography`."""
        self._mapper = PrincipalMapper(rules)
        try:
            from cryptography import x509
        except ImportError as error:
            raise OperatorError("client certificates need `pip install 'kbroker[security]'`") from error
        self._load = x509.load_der_x509_certificate
        # OpenSSL takes certificates that `cryptography` does not.
        self._unreadable = (ValueError, x509.InvalidVersion)

    def principal_of(self, certificate: bytes) -> Principal | None:
        """`certificate`: DER, checked already. None if its subject cannot be read, or no rule
        matches it."""
        try:
            subject = _text(self._load(certificate).subject)
        except self._unreadable:
            return None
        name = self._mapper.name_of(subject)
        return None if name is None else user(name)


def _text(subject: Any) -> str:  # noqa: ANN401 - cryptography is not always there
    """The subject as Java writes it, so that rules and ACLs of a Kafka cluster name the same
    clients. RFC 4514, but = is escaped, and # everywhere."""
    return ",".join(
        "+".join(f"{each.rfc4514_attribute_name}={_escaped(each)}" for each in part)
        for part in reversed(subject.rdns)
    )


def _escaped(attribute: Any) -> str:  # noqa: ANN401 - as above
    value = attribute.value
    if isinstance(value, bytes):
        return f"#{value.hex()}"
    first, last = len(value) - len(value.lstrip(" ")), len(value.rstrip(" "))
    return "".join(
        "\\00" if letter == "\0"
        else f"\\{letter}" if letter in _SPECIAL or not first <= at < last
        else letter
        for at, letter in enumerate(value)
    )  # fmt: skip
