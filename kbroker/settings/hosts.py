"""Addresses of clients, and hosts of ACL entries: every address (`*`), one, or a CIDR range.

Addresses are compared in one spelling, so an IPv4 address inside an IPv6 one is the IPv4 address.
A text with a slash is a range, as in Kafka, and any other text is taken as it is.

    10.0.0.0/8        IPv4, 0 to 32 bits of which all addresses have the same
    10.1.2.3/8        the same range
    2001:db8::/32     IPv6, 0 to 128 bits; never contains an IPv4 address
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

WILDCARD: Final = "*"
_SCOPE: Final = "%"
_LONGEST_ADDRESS: Final = 64
"""Characters. Longer texts are not remembered, and are no addresses and no ranges."""
_RANGE: Final = re.compile(r"([0-9.]+)/([0-9]{1,2})|([0-9A-Fa-f.]*:[0-9A-Fa-f.:]*)/([0-9]{1,3})")


class AddressRange(NamedTuple):
    """The addresses of a version (4 or 6) that are `prefix` without their last `free_bits`."""

    version: int
    prefix: int
    free_bits: int


def canonical_host(text: str) -> str:
    """One spelling for each address; any other text as it is."""
    return text if len(text) > _LONGEST_ADDRESS or _SCOPE in text else _canonical_host(text)


@lru_cache(maxsize=10_000)
def _canonical_host(text: str) -> str:
    try:
        return str(_address(text))
    except ValueError:
        return text


@lru_cache(maxsize=10_000)
def _number(text: str) -> tuple[int, int] | None:
    """The version of an address, and its bits. None: it is none."""
    try:
        address = _address(text)
    except ValueError:
        return None
    return address.version, int(address)


def _address(text: str) -> IPv4Address | IPv6Address:
    """Raises ValueError."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_address(text: str) -> bool:
    """Whether a client can have it. It cannot have that of all interfaces (`0.0.0.0`), and its
    address comes without the scope of an interface."""
    if len(text) > _LONGEST_ADDRESS or _SCOPE in text:
        return False
    number = _number(text)
    return number is not None and number[1] != 0


def is_range(text: str) -> bool:
    """Whether it means a range. It need not be a valid one."""
    return "/" in text


def parse_range(text: str) -> AddressRange | None:
    """None: it is none, or has a spelling that programs read differently: leading zeros (octal to
    some), a netmask, a scope, an IPv4 range inside IPv6."""
    found = _RANGE.fullmatch(text[: _LONGEST_ADDRESS + 1])
    if found is None:
        return None
    bits = int(found[2] or found[4])
    address: IPv4Address | IPv6Address
    try:
        address = IPv4Address(found[1]) if found[1] else IPv6Address(found[3])
    except ValueError:
        return None
    if bits > address.max_prefixlen or (isinstance(address, IPv6Address) and address.ipv4_mapped is not None):
        return None
    free_bits = address.max_prefixlen - bits
    return AddressRange(address.version, int(address) >> free_bits, free_bits)


def is_within(host: str, range_: AddressRange) -> bool:
    """Whether the range contains a client's address."""
    return range_ in ranges_with(host, ((range_.version, range_.free_bits),))


def ranges_with(host: str, lengths: Iterable[tuple[int, int]]) -> Iterator[AddressRange]:
    """The ranges that contain a client's address: at most one for each version with free bits."""
    if (number := _number(host)) is not None:
        for version, free_bits in lengths:
            if version == number[0]:
                yield AddressRange(version, number[1] >> free_bits, free_bits)
