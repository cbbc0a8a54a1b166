"""Addresses of brokers as text: "host:port", "[::1]:9092", several with commas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_DEFAULT_PORT = 9092
_NEVER_IN_A_HOST = frozenset("/@ ")  # But in URLs.


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(bootstrap: str | Sequence[str]) -> tuple[Address, ...]:
    """Raises ValueError for a text that is no address."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    found = tuple(_address(text.strip()) for text in texts if text.strip())
    if not found:
        raise ValueError("no address of a broker: give one such as 127.0.0.1:9092")
    return found


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or host.endswith(":") or (":" in host and not host.startswith("[")):
        host, port = text, str(_DEFAULT_PORT)  # No port, or a bare IPv6 address.
    is_host = bool(host) and not _NEVER_IN_A_HOST & set(host)
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or not is_host:
        raise ValueError(f"{text!r} is not an address of a broker, such as 127.0.0.1:9092 or [::1]:9092")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
