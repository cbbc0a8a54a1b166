"""Connections that speak another protocol than the port they came to, and what is said of those that the broker ends.

A browser, a health check or Prometheus at the Kafka port, a Kafka client at the admin port, TLS at either: each is told by its first
bytes, and the log says what it is and where it belongs. Such clients come again at once, for ever, so that each line comes once a minute.
"""

from __future__ import annotations

import logging

from kbroker.protocol.frames import BadFrame
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
_HTTP = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "))
"""How methods begin, and what HTTP/2 begins with."""
_TLS = b"\x16\x03"
"""A record of the handshake, of any version since SSL 3."""
_LAST_API_KEY = 127
_REFUSAL = (
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"
    "Connection: close\r\nContent-Length: {size}\r\n\r\n{text}"
)


class Strangers:
    """At the Kafka port. `admin`: the address of the admin port, where there is one."""

    def __init__(self, admin: tuple[str, int] | None = None) -> None:
        where = "with kbroker start --admin PORT" if admin is None else f"at http://{_shown(admin)}/ (--admin)"
        self._http = f"this port speaks the Kafka protocol, not HTTP; metrics and records in flight are served over HTTP {where}"
        self._seldom = Seldom(INTERVAL_S)

    def closing(self, name: str, host: str, error: Exception, now_s: float) -> bytes:
        """The broker ends the connection `name` of a peer at `host` for what it sent. Gives what to send it before that."""
        is_http = False
        reason = str(error)
        if isinstance(error, BadFrame):
            is_http = error.head in _HTTP
            if is_http:
                reason = f"it sent an HTTP request; {self._http}"
            elif error.head.startswith(_TLS):
                reason = "it began a TLS handshake, and there is no TLS here: set security.protocol=PLAINTEXT in this client"
        self.warn(host, f"closing connection of {name}", reason, now_s)
        return _refusal(self._http) if is_http else b""

    def warn(self, host: str, what: str, reason: str, now_s: float) -> None:
        """One line for each `host` and `reason`, once a minute."""
        warn_seldom(self._seldom, logger, host, what, reason, now_s)


def warn_seldom(seldom: Seldom, log: logging.Logger, host: str, what: str, reason: str, now_s: float) -> None:
    if times := seldom.times((host, reason), now_s):
        log.warning("%s: %s%s", what, reason, "" if times == 1 else f" ({times} times since this was last logged)")


def at_the_admin_port(first_bytes: bytes, kafka: str) -> str | None:
    """What a peer speaks that did not send HTTP; None for what is not known. `kafka`: the address that it may have meant."""
    if first_bytes.startswith(_TLS):
        return "it began a TLS handshake, and there is no TLS here: use http://"
    # The size of a request, which is less than 16 MiB, and the API that it is for.
    if len(first_bytes) >= 6 and first_bytes[0] == 0 and int.from_bytes(first_bytes[4:6], "big") <= _LAST_API_KEY:
        return f"it speaks the Kafka protocol, and this is the admin port (HTTP): set bootstrap.servers={kafka} in this client"
    return None


def _refusal(text: str) -> bytes:
    text = f"{text[0].upper()}{text[1:]}.\n"
    return _REFUSAL.format(size=len(text.encode()), text=text).encode()


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
