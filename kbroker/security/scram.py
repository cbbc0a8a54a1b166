"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, both sides of the exchange.

    client-first    n,[a=authzid],n=user,r=client nonce[,extensions]
    server-first    r=client nonce + server nonce,s=salt,i=iterations
    client-final    c=base64 of the header,r=both nonces,p=proof
    server-final    v=signature

As in Kafka, names and passwords are plain UTF-8 (no SASLprep), and there is no channel binding.
Nonces and salts are arguments, since this module has no random numbers. `salt_password` is slow
(milliseconds): the broker must not call it on its loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..formats.security_values import ScramCredential, ScramMechanism
from .exchange import AuthenticationFailed, Found, Reply

DIGESTS: Final[Mapping[ScramMechanism, str]] = {
    ScramMechanism.SHA_256: "sha256",
    ScramMechanism.SHA_512: "sha512",
}
"""hashlib's names."""
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Kafka's bounds of what a broker stores."""
DEFAULT_ITERATIONS: Final = 8192
_MOST_ITERATIONS_FOR_A_SERVER: Final = 1_000_000
"""A client does no more than this (about half a second) for a server that it does not know yet."""
MAX_MESSAGE_BYTES: Final = 16_384
"""Of a client. More than any name and nonce need; parsing half a megabyte would hold up others."""
OTHER_AUTHZID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)

_NONCE = re.compile(r"[!-+\--~]+")
_CLIENT_NONCE = re.compile(f"r={_NONCE.pattern}")
_NAME = re.compile(r"(?:[^=,]|=2C|=3D)+")
_EXTENSION = re.compile(r"[A-Za-z]+=[^,]*")
_TOKEN_AUTHENTICATION = "tokenauth=true"


def salt_password(password: bytes, salt: bytes, iterations: int, digest: str) -> bytes:
    """SaltedPassword. Slow."""
    return hashlib.pbkdf2_hmac(digest, password, salt, iterations)


def credential_of(salted_password: bytes, salt: bytes, iterations: int, digest: str) -> ScramCredential:
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    server_key = hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredential(salt, iterations, _hash(client_key, digest), server_key)


def new_credential(password: str, salt: bytes, iterations: int, mechanism: ScramMechanism) -> ScramCredential:
    """Slow."""
    digest = DIGESTS[mechanism]
    return credential_of(salt_password(password.encode(), salt, iterations, digest), salt, iterations, digest)


def is_password(credential: ScramCredential, salted_password: bytes, digest: str) -> bool:
    """Whether the password that was salted is the credential's."""
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return hmac.compare_digest(_hash(client_key, digest), credential.stored_key)


class ScramServer:
    """The broker's side of one exchange.

    - `find`: the user's credential, known or made up
    - `nonce`: the server's part, new for each exchange
    - `refusal`: the text of every failure: a client cannot see what was wrong"""

    def __init__(self, digest: str, find: Callable[[str], Found], nonce: str, refusal: str) -> None:
        self._digest = digest
        self._find = find
        self._nonce = nonce
        self._refusal = refusal
        self._user = ""
        self._found: Found | None = None
        self._header = ""
        self._first_messages = ""
        """client-first without its header, and server-first."""
        self._is_over = False

    def respond(self, token: bytes) -> Reply:
        if self._is_over:
            raise AuthenticationFailed(self._refusal)
        self._is_over = self._found is not None
        try:
            text = token.decode() if len(token) <= MAX_MESSAGE_BYTES else ""
        except UnicodeDecodeError:
            raise AuthenticationFailed(self._refusal) from None
        if self._found is None:
            return Reply(self._first(text))
        return Reply(self._final(self._found, text), self._user)

    def derived(self, salted_password: bytes) -> Reply:
        raise AssertionError("this exchange derives nothing")

    def _first(self, text: str) -> bytes:
        binding, comma, rest = text.partition(",")
        authzid, second_comma, bare = rest.partition(",")
        fields = bare.split(",")
        if binding != "n" or not comma or not second_comma or len(fields) < 2:
            raise AuthenticationFailed(self._refusal)
        self._user = self._name(fields[0], "n=")
        if authzid and self._name(authzid, "a=") != self._user:
            raise AuthenticationFailed(OTHER_AUTHZID)
        client_nonce = fields[1].removeprefix("r=")
        if not fields[1].startswith("r=") or not _NONCE.fullmatch(client_nonce):
            raise AuthenticationFailed(self._refusal)
        if not all(_EXTENSION.fullmatch(each) for each in fields[2:]):
            raise AuthenticationFailed(self._refusal)
        found = self._find(self._user)
        if _TOKEN_AUTHENTICATION in fields[2:]:  # The name is a delegation token's, and there are none.
            found = found._replace(is_known=False)
        self._nonce = client_nonce + self._nonce
        self._header = f"n,{authzid},"
        credential = found.credential
        server_first = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        self._first_messages = f"{bare},{server_first}"
        self._found = found
        return server_first.encode()

    def _name(self, field: str, prefix: str) -> str:
        text = field.removeprefix(prefix)
        if not field.startswith(prefix) or not _NAME.fullmatch(text):
            raise AuthenticationFailed(self._refusal)
        return text.replace("=2C", ",").replace("=3D", "=")

    def _final(self, found: Found, text: str) -> bytes:
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        proof = _decoded(proof_text)
        size = hashlib.new(self._digest).digest_size
        if fields[0] != f"c={_base64(self._header.encode())}" or proof is None or len(proof) != size:
            raise AuthenticationFailed(self._refusal)
        # librdkafka before 2.2 sends its own nonce once more in front of both. Kafka accepts that.
        if not _CLIENT_NONCE.fullmatch("".join(fields[1:2])) or not fields[1].endswith(self._nonce):
            raise AuthenticationFailed(self._refusal)
        credential = found.credential
        message = f"{self._first_messages},{without_proof}".encode()
        client_key = _xor(hmac.digest(credential.stored_key, message, self._digest), proof)
        is_proved = hmac.compare_digest(_hash(client_key, self._digest), credential.stored_key)
        # The user may have been deleted, or the password changed, since the first message.
        is_current = self._find(self._user).credential == credential
        if not (is_proved and found.is_known and is_current):
            raise AuthenticationFailed(self._refusal)
        return b"v=" + _base64(hmac.digest(credential.server_key, message, self._digest)).encode()


class ScramRefused(Exception):
    """The server cannot be trusted, or has refused. One line."""


class ScramClient:
    """The client's side of one exchange: send `first()`, send `final(answer)`, `check(answer)`.

    `nonce`: printable ASCII without commas, new for each exchange."""

    def __init__(self, mechanism: ScramMechanism | str, user: str, password: str, nonce: str) -> None:
        """`mechanism`: or the name of a digest."""
        self._digest = mechanism if isinstance(mechanism, str) else DIGESTS[mechanism]
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Slow. Raises ScramRefused."""
        nonce, salt_text, iterations_text = _fields(server_first, ("r", "s", "i"))
        salt = _decoded(salt_text)
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramRefused("the server's nonce does not continue the client's")
        iterations = int(iterations_text) if re.fullmatch(r"[0-9]{1,9}", iterations_text) else 0
        if not salt or not MIN_ITERATIONS <= iterations <= _MOST_ITERATIONS_FOR_A_SERVER:
            raise ScramRefused(f"the server asks for {iterations} iterations, or has no salt")
        salted = salt_password(self._password.encode(), salt, iterations, self._digest)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        server_key = hmac.digest(salted, b"Server Key", self._digest)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(_hash(client_key, self._digest), message, self._digest)
        self._signature = hmac.digest(server_key, message, self._digest)
        return f"{without_proof},p={_base64(_xor(client_key, signature))}".encode()

    def check(self, server_final: bytes) -> None:
        """Whether the server knows the password too. Raises ScramRefused if not."""
        (signature,) = _fields(server_final, ("v",))
        if not self._signature or not hmac.compare_digest(_decoded(signature) or b"", self._signature):
            raise ScramRefused("the server does not know the password: it is not the broker")


def _fields(token: bytes, names: Sequence[str]) -> list[str]:
    """The values of the first fields of a server's message, which must have these names."""
    try:
        fields = token.decode().split(",")
    except UnicodeDecodeError:
        raise ScramRefused("the server's message is not UTF-8") from None
    found = [field.partition("=") for field in fields[: len(names)]]
    if found and found[0][0] == "e":
        raise ScramRefused("the server has refused the log-in")
    if [name for name, _, _ in found] != list(names):
        raise ScramRefused("the server's message is not one of SCRAM")
    return [value for _, _, value in found]


def _hash(data: bytes, digest: str) -> bytes:
    return hashlib.new(digest, data).digest()


def _xor(one: bytes, two: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, two, strict=True))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes | None:
    """None: not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
