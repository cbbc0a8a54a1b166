"""What the SASL mechanisms have in common: tokens in, tokens out, and the look-up of users.

An exchange asks for a slow derivation as an effect, which its caller carries out in a thread. Every
refusal is `AuthenticationFailed`, with the text that the client receives: it tells no more than
Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..formats.security_values import ScramCredential, ScramMechanism


class AuthenticationFailed(Exception):
    """The text is for the client. It contains nothing of what the client sent."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """Wanted: PBKDF2 of a password. `digest` is hashlib's name."""

    password: bytes = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int
    digest: str


class Reply(NamedTuple):
    """The server's next token. `user`: set if the client has proved to be that user. `lifetime_ms`:
    how long that is certain; None: without an end."""

    token: bytes
    user: str | None = None
    lifetime_ms: int | None = None


class Found(NamedTuple):
    """The credential of a user. Of an unknown one it is made up (the same each time), so that the
    exchange takes as long, and fails at its end."""

    mechanism: ScramMechanism
    credential: ScramCredential
    is_known: bool


class UserLookup(Protocol):
    def for_scram(self, name: str, mechanism: ScramMechanism) -> Found:
        """The user's credential for this mechanism."""

    def for_password(self, name: str) -> Found:
        """The credential with which a password is compared."""


class Exchange(Protocol):
    """One log-in by one mechanism. Every method raises AuthenticationFailed, after which the
    exchange must not be used."""

    def respond(self, token: bytes) -> Reply | Derivation:
        """The client's next token."""

    def derived(self, salted_password: bytes) -> Reply:
        """The result of the Derivation that `respond` returned."""
