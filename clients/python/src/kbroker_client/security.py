"""How to connect to a secured broker: TLS, a log-in, or both.

    Security(tls=True)                                        authorities that the system trusts
    Security(tls="ca.pem", username="alice", password="…")    SCRAM-SHA-256 over TLS
    Security(tls=context, mechanism="OAUTHBEARER", token=fetch)

The broker's certificate is always checked; a context of the caller's own decides how.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import Final

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
Token = Callable[[], Awaitable[str]]
"""Fetches a bearer token; called for each log-in."""


@dataclass(frozen=True)
class Security:
    """- `tls`: True, the file of the authorities to trust (PEM), or a context
    - `mechanism`: of SASL; SCRAM-SHA-256 if only a user is given

    Raises ValueError for settings that do not fit together, and for files that cannot be used."""

    tls: bool | str | PathLike[str] | ssl.SSLContext = False
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: Token | None = field(default=None, repr=False)
    context: ssl.SSLContext | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", _context(self.tls))
        if self.mechanism is None and self.username is not None:
            object.__setattr__(self, "mechanism", "SCRAM-SHA-256")
        if self.mechanism is None:
            if self.password is not None or self.token is not None:
                raise ValueError("a password needs a username, and a token the mechanism OAUTHBEARER")
            return
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"mechanism {self.mechanism!r} is not one of {', '.join(MECHANISMS)}")
        if self.mechanism == "OAUTHBEARER":
            if self.token is None:
                raise ValueError("OAUTHBEARER needs a token: a function that fetches one")
        elif not self.username or not self.password:
            raise ValueError(f"{self.mechanism} needs a username and a password")


def _context(tls: bool | str | PathLike[str] | ssl.SSLContext) -> ssl.SSLContext | None:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is False:
        return None
    try:
        context = ssl.create_default_context(cafile=None if tls is True else tls)
    except OSError as error:
        raise ValueError(f"the certificates in {tls} cannot be read: {error.strerror or error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


PLAINTEXT: Final = Security()
