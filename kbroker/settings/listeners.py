"""The listeners of a broker: their names, protocols and addresses, from `listeners`,
`advertised.listeners` and `listener.security.protocol.map`.

Nothing is opened here. Every error is one line that names the setting and says what to write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from kbroker.errors import OperatorError
from kbroker.settings.broker import BROKER_CONFIGS, BrokerConfig
from kbroker.settings.per_listener import parse_name

Address: TypeAlias = tuple[str, int]

_ENDPOINT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/]*):(?P<port>[0-9]+)"
)
_EXAMPLE: Final = "SASL_SSL://0.0.0.0:9093"
ADMIN: Final = "ADMIN"
"""The name of the admin HTTP endpoint in settings: `listener.name.admin.ssl.*`."""


class SecurityProtocol(Enum):
    """Kafka's protocols of a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. `advertised`: the address that its clients are sent to; None: its own, with
    the port that it is bound to."""

    name: str
    protocol: SecurityProtocol
    address: Address
    advertised: Address | None = None

    def __str__(self) -> str:
        host, port = self.address
        return f"{self.name}://{f'[{host}]' if ':' in host else host}:{port}"


def plain_listener(listen: Address, advertise: Address | None) -> Listener:
    """The listener of `kbroker start --listen`."""
    return Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, listen, advertise)


def admin_listener(config: BrokerConfig, address: Address) -> Listener:
    """The endpoint of `kbroker start --admin`, as a listener with a certificate of its own or the
    common one."""
    return Listener(ADMIN, SecurityProtocol[config["kbroker.admin.protocol"]], address)


def configured_listeners(config: BrokerConfig) -> tuple[Listener, ...]:
    """The listeners of the setting `listeners`; none if it is not set. Raises OperatorError."""
    texts: Sequence[str] | None = config["listeners"]
    advertised = _by_name("advertised.listeners", config["advertised.listeners"] or ())
    if texts is None:
        if advertised:
            raise OperatorError("advertised.listeners: set listeners too, or use --advertise instead")
        _check_named(config, ())
        return ()
    addresses = _by_name("listeners", texts)
    if not addresses:
        raise OperatorError(f"listeners: name at least one listener, such as {_EXAMPLE}")
    if unknown := [name for name in advertised if name not in addresses]:
        raise OperatorError(
            f"advertised.listeners: there is no listener {unknown[0]!r}; listeners has {_listed(addresses)}"
        )
    protocols = _protocols(config["listener.security.protocol.map"])
    found = tuple(
        Listener(name, _protocol(name, protocols), address, advertised.get(name))
        for name, address in addresses.items()
    )
    _check_named(config, found)
    _check_addresses(found)
    return found


def _by_name(setting: str, texts: Sequence[str]) -> dict[str, Address]:
    found: dict[str, Address] = {}
    for text in texts:
        match = _ENDPOINT.fullmatch(text)
        port = int(match["port"]) if match else -1
        if match is None or port > 65535:
            raise OperatorError(f"{setting}: expected NAME://HOST:PORT such as {_EXAMPLE}, found {text!r}")
        name = match["name"].upper()
        if name in found:
            raise OperatorError(f"{setting}: the name {name} stands there twice")
        found[name] = (match["host"].strip("[]"), port)
    return found


def _protocols(texts: Sequence[str]) -> dict[str, SecurityProtocol]:
    found: dict[str, SecurityProtocol] = {}
    for text in texts:
        name, _, protocol = text.rpartition(":")
        if not name or protocol not in SecurityProtocol.__members__:
            raise OperatorError(
                f"listener.security.protocol.map: expected NAME:PROTOCOL, found {text!r}; the protocols are "
                f"{_listed(SecurityProtocol.__members__)}"
            )
        found[name.upper()] = SecurityProtocol[protocol]
    return found


def _protocol(name: str, protocols: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    if name in protocols:
        return protocols[name]
    if name in SecurityProtocol.__members__:
        return SecurityProtocol[name]
    raise OperatorError(
        f"listeners: {name} has no protocol; add {name}:SASL_SSL (or another protocol) to "
        "listener.security.protocol.map"
    )


def _check_named(config: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """A setting for a listener that does not exist is a typing error."""
    names = {listener.name.lower() for listener in listeners} or {"plaintext"}
    for setting in config.static:
        named = parse_name(setting, BROKER_CONFIGS)
        if named is not None and named.listener not in (*names, ADMIN.lower()):
            raise OperatorError(
                f"{setting}: there is no listener {named.listener!r}; listeners has {_listed(sorted(names))}"
            )


def _check_addresses(listeners: Sequence[Listener]) -> None:
    seen: dict[Address, str] = {}
    for listener in listeners:
        host, port = listener.address
        if listener.advertised is None and is_wildcard(host):
            raise OperatorError(
                f"listeners: {listener} is every address of this machine; name the one for clients with "
                f"advertised.listeners={listener.name}://HOST:{port}"
            )
        if port and (other := seen.setdefault((host, port), listener.name)) != listener.name:
            raise OperatorError(f"listeners: {other} and {listener.name} have the same address {host}:{port}")


def is_wildcard(host: str) -> bool:
    return host in ("", "0.0.0.0", "::", "*")


def _listed(names: object) -> str:
    assert isinstance(names, Mapping | Sequence)
    return ", ".join(names)
