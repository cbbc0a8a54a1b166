"""Recognises clients at the wrong port by their first bytes, and logs why a connection is closed.

A browser, a health check or Prometheus may come to the Kafka port, a Kafka client to the admin
port, and TLS to either. The log line names the protocol and the right address. Such clients may
reconnect many times a second, so each line is logged once a minute per host.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from kbroker.protocol.frames import BadFrame
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
_HTTP = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "))
"""The first four bytes of HTTP methods, and of HTTP/2."""
_TLS = b"\x16\x03"
"""The first bytes of a TLS handshake, in all versions since SSL 3."""
_NO_TLS = "it began a TLS handshake, and there is no TLS here"
_LAST_API_KEY = 127
_OTHERS = {b"AMQP": "AMQP (RabbitMQ)", b"SSH-": "SSH"}
"""The first four bytes of other protocols that clients may speak."""
_REFUSAL = (
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "X-Content-Type-Options: nosniff\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n{text}"
)


class Strangers:
    """For the Kafka port. `admin`: the address of the admin port as a URL, if there is one."""

    def __init__(self, admin: str | None = None) -> None:
        where = f"at {admin}/ (--admin)" if admin else "with kbroker start --admin PORT"
        self._http = (
            "this port speaks the Kafka protocol, not HTTP; "
            f"metrics and records in flight are served over HTTP {where}"
        )
        self._seldom = Seldom(INTERVAL_S)

    def closing(self, name: str, host: str, error: Exception, now_s: float) -> bytes:
        """Log that the broker closes the connection `name` of a peer at `host`, because of `error`.

        Returns the bytes to send before that; none for a peer that does not speak HTTP."""
        is_http = False
        reason = str(error)
        kind = getattr(error, "kind", None)
        if isinstance(error, BadFrame):
            kind = BadFrame
            is_http = error.head in _HTTP
            if is_http:
                reason = kind = f"it sent an HTTP request; {self._http}"
            elif error.head.startswith(_TLS):
                reason = kind = f"{_NO_TLS}: set security.protocol=PLAINTEXT in this client"
            elif protocol := _other_protocol(error.head):
                reason = kind = f"it speaks {protocol}, and this port speaks the Kafka protocol"
        self.warn(host, f"closing connection of {name}", reason, now_s, kind)
        return _refusal(self._http) if is_http else b""

    def lost(self, name: str, host: str, error: OSError, now_s: float) -> None:
        """Likewise for a connection that is over, of which clients can make many."""
        if times := self._seldom.times((host, "lost", error.errno), now_s):
            logger.info("connection of %s lost: %s%s", name, error, again(times))

    def warn(self, host: str, what: str, reason: str, now_s: float, kind: Hashable = None) -> None:
        """Log one line a minute for each `host` and `reason`, or for each `kind` if the reason
        contains numbers that vary."""
        warn_seldom(self._seldom, logger, host, what, reason, now_s, kind)


def warn_seldom(
    seldom: Seldom,
    log: logging.Logger,
    host: str,
    what: str,
    reason: str,
    now_s: float,
    kind: Hashable = None,
) -> None:
    if times := seldom.times((host, reason if kind is None else kind), now_s):
        log.warning("%s: %s%s", what, reason, again(times))


def again(times: int) -> str:
    return "" if times == 1 else f" ({times} times since this was last logged)"


def at_the_admin_port(first_bytes: bytes, kafka: str) -> str | None:
    """Names the protocol of a peer that did not send HTTP; None for an unknown one. `kafka`: the
    address of the Kafka port."""
    if first_bytes.startswith(_TLS):
        return f"{_NO_TLS}: use http://"
    # A request begins with its size, here below 16 MiB, and the number of its API.
    has_size, api_key = first_bytes[:1] == b"\0", int.from_bytes(first_bytes[4:6], "big")
    if len(first_bytes) >= 6 and has_size and api_key <= _LAST_API_KEY:
        return (
            "it speaks the Kafka protocol, and this is the admin port (HTTP): "
            f"set bootstrap.servers={kafka} in this client"
        )
    return None


def _other_protocol(head: bytes) -> str | None:
    if head[:1] == b"*" and head[1:2].isdigit():
        return "Redis"
    return _OTHERS.get(head)


def _refusal(text: str) -> bytes:
    text = f"{text[0].upper()}{text[1:]}.\n"
    return _REFUSAL.format(size=len(text.encode()), text=text).encode()
