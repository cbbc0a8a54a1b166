"""The log-in of a connection: SaslHandshake, then SaslAuthenticate until the mechanism is done."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import anyio

from ._shared.errors import ErrorCode
from ._shared.formats.security_values import ScramMechanism
from ._shared.security.scram import ScramClient, ScramRefused
from .addresses import Address
from .errors import BrokerUnreachable, NotAuthenticated
from .security import Security, Token

_SCRAM: Final = {"SCRAM-SHA-256": ScramMechanism.SHA_256, "SCRAM-SHA-512": ScramMechanism.SHA_512}
_ACKNOWLEDGED: Final = b"\x01"


async def log_in(call: Callable[..., Awaitable[Any]], address: Address, security: Security) -> float:
    """`call`: of the connection to `address`. Returns how many seconds the session lasts; 0: until
    the connection ends. Raises NotAuthenticated and BrokerUnreachable."""
    mechanism = security.mechanism
    assert mechanism is not None
    answer = await call("sasl_handshake", mechanism=mechanism)
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise NotAuthenticated(f"{address} does not offer {mechanism}, but: {offered}")
    _check(answer, address, security)
    exchange = _exchange(security)
    try:
        message = await anext(exchange)
        while True:
            answer = await call("sasl_authenticate", auth_bytes=message)
            _check(answer, address, security)
            message = await exchange.asend(answer.auth_bytes)
    except StopAsyncIteration:
        pass
    except ScramRefused as error:
        raise _refused(str(error), address, security) from error
    finally:
        await exchange.aclose()
    lifetime = getattr(answer, "session_lifetime", None)
    return lifetime.total_seconds() if lifetime is not None else 0.0


def _check(answer: Any, address: Address, security: Security) -> None:
    if answer.error_code is not ErrorCode.none:
        reason = getattr(answer, "error_message", None) or answer.error_code.name.replace("_", " ")
        raise _refused(reason, address, security)


def _refused(reason: str, address: Address, security: Security) -> NotAuthenticated:
    user = f"user {security.username}, " if security.username else ""
    reason = reason.removeprefix("Authentication failed: ")
    return NotAuthenticated(f"log-in refused: {reason} ({user}{security.mechanism}, {address})")


async def _token(fetch: Token) -> bytes:
    """Raises BrokerUnreachable, after which the client tries again."""
    try:
        return (await fetch()).encode()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise BrokerUnreachable(f"no token for the log-in could be fetched: {why}") from error


async def _exchange(security: Security) -> AsyncGenerator[bytes, bytes]:
    """Yields the client's messages and is sent the server's."""
    if security.token is not None:
        status = yield b"n,,\x01auth=Bearer " + await _token(security.token) + b"\x01\x01"
        if status:  # The reason of a refusal, which follows.
            yield _ACKNOWLEDGED
        return
    username, password = security.username or "", security.password or ""
    if security.mechanism == "PLAIN":
        yield f"\0{username}\0{password}".encode()
        return
    client = ScramClient(_SCRAM[security.mechanism or ""], username, password, secrets.token_urlsafe(24))
    server_first = yield client.first()
    # Some thousand iterations: another task may have a heartbeat to send meanwhile. Not in one of
    # anyio's own threads, all of which the program may use for long.
    final = await anyio.to_thread.run_sync(client.final, server_first, limiter=anyio.CapacityLimiter(1))
    client.check((yield final))
