"""The login of a client: SaslHandshake, then SaslAuthenticate until the mechanism is done."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Final, TypeAlias

from kbroker.client.fetching import FetchFailed
from kbroker.client.oauth import TokenSource, fetch_token
from kbroker.client.security import Login
from kbroker.client.unreachable import NotAuthenticated
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.oauth import ACKNOWLEDGED, first_message
from kbroker.security.scram import ScramClient, ScramRefused

SCRAM: Final = {"SCRAM-SHA-256": ScramMechanism.SHA_256, "SCRAM-SHA-512": ScramMechanism.SHA_512}
Call: TypeAlias = Callable[..., Any]
"""Connection.call."""
Exchange: TypeAlias = Generator[bytes, bytes, None]
"""Yields the client's messages and is sent the server's."""


def log_in(call: Call, login: Login, address: str) -> int:
    """Authenticate the connection. Returns how many milliseconds the login lasts; 0: as long as the
    connection. Raises NotAuthenticated and BrokerUnreachable; the connection is then useless."""
    _shake_hands(call, login, address)
    exchange = _begun(login)
    try:
        message: bytes | None = next(exchange)
    except FetchFailed as error:
        raise _failed(f"no token: {error}", login, address) from error
    answer = None
    while message is not None:
        answer = call("sasl_authenticate", auth_bytes=message)
        if answer.error_code is not ErrorCode.none:
            reason = answer.error_message or answer.error_code.name.replace("_", " ")
            raise _failed(reason.removeprefix("Authentication failed: "), login, address)
        try:
            message = exchange.send(answer.auth_bytes)
        except StopIteration:
            message = None
        except ScramRefused as error:
            raise _failed(str(error), login, address) from error
    lifetime: timedelta = getattr(answer, "session_lifetime", timedelta())
    return lifetime // timedelta(milliseconds=1)


def _begun(login: Login) -> Exchange:
    if login.tokens is not None:
        return _bearer(login.tokens)
    return _plain(login) if login.mechanism == "PLAIN" else _scram(login)


def _failed(reason: str, login: Login, address: str) -> NotAuthenticated:
    user = f"user {login.username}, " if login.username else ""
    return NotAuthenticated(f"SASL authentication failed: {reason} ({user}{login.mechanism}, {address})")


def _shake_hands(call: Call, login: Login, address: str) -> None:
    no_sasl = f"{address} is a listener without SASL: set security.protocol to PLAINTEXT or SSL"
    try:
        answer = call("sasl_handshake", mechanism=login.mechanism)
    except KafkaError as error:
        if error.code is ErrorCode.unsupported_version:
            raise NotAuthenticated(no_sasl) from error
        raise
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "nothing else"
        raise NotAuthenticated(
            f"{address} does not offer {login.mechanism}: set sasl.mechanism; it offers {offered}"
        )
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise NotAuthenticated(no_sasl)
    if answer.error_code is not ErrorCode.none:
        raise _failed(answer.error_code.name.replace("_", " "), login, address)


def _plain(login: Login) -> Exchange:
    yield f"\0{login.username}\0{login.password}".encode()


def _bearer(tokens: TokenSource) -> Exchange:
    """The broker answers a bad token with a status, and refuses it after the acknowledgement."""
    status = yield first_message(fetch_token(tokens))
    if status:
        yield ACKNOWLEDGED


def _scram(login: Login) -> Exchange:
    mechanism = SCRAM[login.mechanism]
    client = ScramClient(mechanism, login.username, login.password, secrets.token_urlsafe(24))
    server_first = yield client.first()
    server_final = yield client.final(server_first)
    client.check(server_final)
