"""The broker's settings of listeners and TLS: Kafka's names.

Those that are marked `per_listener` may also be set for one listener
(settings/per_listener.py). What the addresses mean is settings/listeners.py.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.settings.definition import INT_MAX, ConfigDef, ConfigType, Value
from kbroker.settings.hosts import is_address


def per_ip_overrides(texts: Value) -> dict[str, int]:
    """The limits of max.connections.per.ip.overrides, by address. Raises ValueError."""
    assert isinstance(texts, tuple)
    found = {}
    for text in texts:
        host, _, most = text.rpartition(":")
        if not host or not most.isdecimal():
            raise ValueError(f"Expected ADDRESS:NUMBER, found {text}")
        address = host.strip("[]")
        if not is_address(address):
            raise ValueError(f"{address} is no address of a client")
        found[address] = int(most)
    return found


def _overrides_fault(value: Value) -> str | None:
    try:
        per_ip_overrides(value)
    except ValueError as error:
        return str(error)
    return None


_of_a_listener = partial(ConfigDef, per_listener=True)

_ADDRESSES: Final = (
    ConfigDef(
        name="listeners",
        type=ConfigType.LIST,
        default=None,
        doc="The listeners: NAME://HOST:PORT, separated by commas. It replaces `--listen`. A name is a "
        "protocol (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL), or one that listener.security.protocol.map "
        "has.",
    ),
    ConfigDef(
        name="advertised.listeners",
        type=ConfigType.LIST,
        default=None,
        doc="The addresses for clients, by the same names. A client is sent to the address of the "
        "listener on which it asked. A listener that is not named here advertises its own address.",
    ),
    ConfigDef(
        name="listener.security.protocol.map",
        type=ConfigType.LIST,
        default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="The protocol of each listener: NAME:PROTOCOL, separated by commas.",
    ),
)

_CONNECTIONS: Final = (
    ConfigDef(
        name="max.connections.per.ip",
        type=ConfigType.INT,
        default=str(INT_MAX),
        minimum=0,
        dynamic=True,
        doc="Connections that one address may have at a time. 0: only addresses that "
        "max.connections.per.ip.overrides names.",
    ),
    ConfigDef(
        name="max.connections.per.ip.overrides",
        type=ConfigType.LIST,
        default="",
        dynamic=True,
        fault=_overrides_fault,
        doc="Other limits for single addresses: ADDRESS:NUMBER, separated by commas.",
    ),
)

_KEYSTORE: Final = (
    _of_a_listener(
        name="ssl.keystore.type",
        type=ConfigType.STRING,
        default="PEM",
        choices=("PEM", "PKCS12"),
        doc="The format of the broker's certificate and key. JKS is not read: "
        "`keytool -importkeystore -deststoretype PKCS12` converts it.",
    ),
    _of_a_listener(
        name="ssl.keystore.location",
        type=ConfigType.STRING,
        default=None,
        doc="File with the broker's private key and its certificate, which the certificates of the "
        "intermediate authorities follow. The broker reads it again when it changes.",
    ),
    _of_a_listener(
        name="ssl.keystore.password",
        type=ConfigType.PASSWORD,
        default=None,
        doc="Password of a PKCS12 file.",
    ),
    _of_a_listener(
        name="ssl.keystore.certificate.chain",
        type=ConfigType.STRING,
        default=None,
        doc="The certificates themselves (PEM), instead of a file; \\n stands for a new line.",
    ),
    _of_a_listener(
        name="ssl.keystore.key",
        type=ConfigType.PASSWORD,
        default=None,
        doc="The private key itself (PEM), beside ssl.keystore.certificate.chain.",
    ),
    _of_a_listener(
        name="ssl.key.password",
        type=ConfigType.PASSWORD,
        default=None,
        doc="Password of an encrypted private key.",
    ),
)

_TRUST: Final = (
    _of_a_listener(
        name="ssl.client.auth",
        type=ConfigType.STRING,
        default="none",
        choices=("none", "requested", "required"),
        ignores_case=True,
        doc="Whether clients show a certificate. With SSL its subject is the principal; with SASL_SSL "
        "the SASL user is.",
    ),
    _of_a_listener(
        name="ssl.truststore.type",
        type=ConfigType.STRING,
        default="PEM",
        choices=("PEM", "PKCS12"),
        doc="The format of ssl.truststore.location.",
    ),
    _of_a_listener(
        name="ssl.truststore.location",
        type=ConfigType.STRING,
        default=None,
        doc="File with the certificates of the authorities that may sign client certificates. The broker "
        "reads it again when it changes.",
    ),
    _of_a_listener(
        name="ssl.truststore.password",
        type=ConfigType.PASSWORD,
        default=None,
        doc="Password of a PKCS12 file.",
    ),
    _of_a_listener(
        name="ssl.truststore.certificates",
        type=ConfigType.STRING,
        default=None,
        doc="The certificates themselves (PEM), instead of a file.",
    ),
    _of_a_listener(
        name="ssl.principal.mapping.rules",
        type=ConfigType.STRING,
        default="DEFAULT",
        doc="How the subject of a client certificate becomes a user name: rules separated by commas, of "
        "which the first one that matches applies. DEFAULT: the whole subject. "
        "RULE:PATTERN/REPLACEMENT/ with L or U behind it: lower or upper case.",
    ),
)

_PROTOCOL: Final = (
    _of_a_listener(
        name="ssl.enabled.protocols",
        type=ConfigType.LIST,
        default="TLSv1.2,TLSv1.3",
        doc="The versions of TLS: TLSv1.2, TLSv1.3.",
        fault=lambda value: (
            None
            if value and set(value if isinstance(value, tuple) else ()) <= {"TLSv1.2", "TLSv1.3"}
            else "Only TLSv1.2 and TLSv1.3 are safe to use"
        ),
    ),
    _of_a_listener(
        name="ssl.cipher.suites",
        type=ConfigType.LIST,
        default="",
        doc="Cipher suites of TLS 1.2, by OpenSSL's names. Empty: OpenSSL's choice.",
    ),
)

LISTENER_CONFIGS: Final = (*_ADDRESSES, *_CONNECTIONS, *_KEYSTORE, *_TRUST, *_PROTOCOL)
