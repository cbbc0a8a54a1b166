"""The principal of a client certificate, read with `cryptography`."""

from __future__ import annotations

from kbroker.errors import OperatorError
from kbroker.security.principal_mapping import PrincipalMapper
from kbroker.security.principals import Principal, user


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

    def principal_of(self, certificate: bytes) -> Principal | None:
        """`certificate`: DER, checked already. None if no rule matches its subject."""
        subject = self._load(certificate).subject.rfc4514_string()
        name = self._mapper.name_of(subject)
        return None if name is None else user(name)
