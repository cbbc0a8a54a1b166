"""The client's side of SCRAM (RFC 5802), for scripts that send its messages well or badly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from tests.differential.script import Entity
from tests.differential.secured import SASL, Secured

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS: Mapping[str, int] = {SHA_256: 1, SHA_512: 2}
"""Their numbers in APIs 50 and 51."""
SALT = b"sixteen.bytes.ok"
ITERATIONS = 4096
PASSWORD = "secret-of-dave"


def hash_of(mechanism: str) -> str:
    return mechanism.removeprefix("SCRAM-").replace("-", "").lower()


def salted(mechanism: str, password: str, salt: bytes = SALT, iterations: int = ITERATIONS) -> bytes:
    return hashlib.pbkdf2_hmac(hash_of(mechanism), password.encode(), salt, iterations)


class ScramClient:
    """One exchange. `user` is sent as it is: a script escapes it, or does not."""

    def __init__(self, mechanism: str, user: str, password: str = PASSWORD) -> None:
        self.mechanism = mechanism
        self.nonce = secrets.token_urlsafe(18)
        self._password = password
        self._bare = f"n={user},r={self.nonce}"

    def first(self, header: str = "n,,", more: str = "") -> bytes:
        self._header = header
        self._bare += more
        return f"{header}{self._bare}".encode()

    def final(
        self, server_first: bytes, *, nonce: str | None = None, binding: str | None = None, more: str = "",
        proof: str | None = None,
    ) -> bytes:  # fmt: skip
        """The answer to the server's first message; fields replace the right ones."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        header = base64.b64encode(self._header.encode()).decode() if binding is None else binding
        without_proof = f"c={header},r={fields['r'] if nonce is None else nonce}{more}"
        message = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        key = salted(self.mechanism, self._password, base64.b64decode(fields["s"]), int(fields["i"]))
        client_key = self._hmac(key, b"Client Key")
        stored_key = hashlib.new(hash_of(self.mechanism), client_key).digest()
        signature = self._hmac(stored_key, message)
        right = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._verifier = self._hmac(self._hmac(key, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(right).decode() if proof is None else proof}".encode()

    def verified(self, server_final: bytes) -> bool:
        """Whether the server knows the credential too."""
        return server_final == b"v=" + base64.b64encode(self._verifier)

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, hash_of(self.mechanism))


def create(
    s: Secured, user: str, *mechanisms: str, password: str = PASSWORD, iterations: int = ITERATIONS
) -> None:
    """Credentials of a user, in force at the broker. Not part of the transcript."""
    rows = [
        {
            "name": user, "mechanism": MECHANISMS[mechanism], "iterations": iterations, "salt": SALT,
            "salted_password": salted(mechanism, password, iterations=iterations),
        }
        for mechanism in mechanisms
    ]  # fmt: skip
    for row in rows:
        answer = s.prepare("alter_user_scram_credentials", 0, deletions=(), upsertions=[row])
        assert not answer.results[0].error_code.value, answer
    s.until(lambda: has(s, user, *mechanisms, iterations=iterations), f"{user} has credentials")


def remove(s: Secured, user: str, mechanism: str) -> None:
    rows = [{"name": user, "mechanism": MECHANISMS[mechanism]}]
    answer = s.prepare("alter_user_scram_credentials", 0, deletions=rows, upsertions=())
    assert not answer.results[0].error_code.value, answer
    s.until(lambda: not has(s, user, mechanism), f"{user} has lost credentials")


def has(s: Secured, user: str, *mechanisms: str, iterations: int = ITERATIONS) -> bool:
    answer = s.prepare("describe_user_scram_credentials", 0, users=[{"name": user}])
    rows = answer.results[0].credential_infos
    found = {row.mechanism for row in rows if row.iterations == iterations}
    return found >= {MECHANISMS[mechanism] for mechanism in mechanisms}


def log_in(
    s: Secured, mechanism: str, user: str, password: str = PASSWORD, *, on: str = SASL
) -> Entity:  # fmt: skip
    """A whole exchange in steps, as far as it gets; returns the last answer."""
    client = ScramClient(mechanism, user, password)
    s.handshake(mechanism, on=on)
    answer = s.authenticate(client.first(), on=on)
    if answer is None or answer.error_code.value:
        return answer
    answer = s.authenticate(client.final(answer.auth_bytes), on=on)
    if answer is not None and not answer.error_code.value:
        s.note("the server is verified", client.verified(answer.auth_bytes))
    return answer
