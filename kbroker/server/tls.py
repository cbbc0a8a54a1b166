"""TLS contexts of the listeners, made from the settings `ssl.*`, and again when a file changes;
and the principals of client certificates.

A context that failed to load a certificate cannot serve any more. So a change makes a new context,
and the listener takes it only if it is complete; otherwise the old one stays, with one log line.
Connections keep the context that they began with.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from kbroker.errors import OperatorError
from kbroker.security.principal_mapping import PrincipalMapper
from kbroker.security.principals import ANONYMOUS, Principal, user
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.listeners import Listener, SecurityProtocol

logger = logging.getLogger(__name__)

RELOAD_CHECK_S: Final = 5.0
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location")
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""How files of Java begin."""
_SPECIAL = ',=+<>#;"\\'
"""Letters that are escaped in the subject of a certificate."""


class ListenerTls:
    """The context of one listener. `context` is replaced when a file of it changes."""

    def __init__(self, config: BrokerConfig, listener: Listener) -> None:
        """Raises OperatorError."""
        self._config = config
        self._listener = listener
        self._setting = partial(config.of_listener, listener.name)
        self._principals = self._certificate_principals()
        self._stamps = self._refused_stamps = self._file_stamps()
        self.context = self._made()

    def principal_of(self, certificate: bytes | None) -> Principal | None:
        """Of a client that showed this certificate (DER) or none. None: no rule names it."""
        if certificate is None or self._principals is None:
            return ANONYMOUS
        return self._principals.principal_of(certificate)

    def _certificate_principals(self) -> CertificatePrincipals | None:
        """None where no certificate says who a client is: nobody shows one, or clients log in."""
        if self._listener.protocol.has_sasl or self._setting("ssl.client.auth").lower() == "none":
            return None
        with self._naming("ssl.principal.mapping.rules"):
            return CertificatePrincipals(self._setting("ssl.principal.mapping.rules"))

    async def keep_current(self) -> None:
        """Look for changed files every few seconds, until cancelled."""
        while True:
            await trio.sleep(RELOAD_CHECK_S)
            await trio.to_thread.run_sync(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        """Files that cannot be used are read again with the next look: the reason may be gone then.
        It is logged once."""
        stamps = self._file_stamps()
        if stamps == self._stamps:
            return
        try:
            self.context = self._made()
        except OperatorError as error:
            if stamps != self._refused_stamps:
                logger.error("%s keeps the certificate that it has: %s", self._listener.name, error)
            self._refused_stamps = stamps
            return
        self._stamps = stamps
        logger.info("%s uses the new certificate for new connections", self._listener.name)

    def _file_stamps(self) -> list[tuple[int, int, int] | None]:
        """What tells that a file has changed; None for one that is missing or not set."""
        return [_stamp(self._setting(name)) for name in _FILES]

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        versions = [_VERSIONS[each] for each in self._setting("ssl.enabled.protocols")]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        # Kafka's clients keep their connections: tickets to resume one are not worth two records.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        if suites := self._setting("ssl.cipher.suites"):
            with self._naming("ssl.cipher.suites"):
                context.set_ciphers(":".join(suites))
        self._load_key(context)
        self._load_trust(context)
        return context

    def _load_key(self, context: ssl.SSLContext) -> None:
        password: str | None = self._setting("ssl.key.password")
        if chain := self._setting("ssl.keystore.certificate.chain"):
            key: str | None = self._setting("ssl.keystore.key")
            if not key:
                raise self._error(
                    "ssl.keystore.key", "set it, too: the key of ssl.keystore.certificate.chain"
                )
            pem = f"{_lines(key)}\n{_lines(chain)}\n".encode()
            return self._load_pem(context, pem, password, "ssl.keystore.certificate.chain")
        location: str | None = self._setting("ssl.keystore.location")
        if not location:
            what = "a file with the broker's key and certificate; `kbroker tls init` makes one for a trial"
            raise self._error("ssl.keystore.location", f"set it to {what}")
        data, type_ = self._read("ssl.keystore", location)
        if type_ == "PKCS12":
            data, password = self._pkcs12(data, "ssl.keystore.location", "ssl.keystore.password"), None
        return self._load_pem(context, data, password, f"ssl.keystore.location={location}")

    def _load_pem(self, context: ssl.SSLContext, pem: bytes, password: str | None, place: str) -> None:
        with self._naming(place), _as_file(pem) as path:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(path, password=lambda: password or "")

    def _load_trust(self, context: ssl.SSLContext) -> None:
        context.verify_mode = _CLIENT_AUTH[self._setting("ssl.client.auth").lower()]
        place = "ssl.truststore.certificates"
        authorities = self._setting(place) and _lines(self._setting(place)).encode()
        if not authorities and (location := self._setting("ssl.truststore.location")):
            place = f"ssl.truststore.location={location}"
            authorities, type_ = self._read("ssl.truststore", location)
            if type_ == "PKCS12":
                authorities = self._pkcs12(authorities, "ssl.truststore.location", "ssl.truststore.password")
        if not authorities:
            if context.verify_mode is not ssl.CERT_NONE:
                why = "set it to a file with the authorities that sign client certificates (ssl.client.auth)"
                raise self._error("ssl.truststore.location", why)
            return
        with self._naming(place):
            context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))

    def _pkcs12(self, data: bytes, setting: str, password_setting: str) -> bytes:
        """Key and certificates as PEM."""
        from kbroker.server.pkcs12 import to_pem

        password: str | None = self._setting(password_setting)
        with self._naming(f"{setting} and {password_setting}"):
            return to_pem(data, password)

    def _read(self, store: str, location: str) -> tuple[bytes, str]:
        """The file, and the type that it should have. A broker of Kafka reads JKS and PKCS12
        without a type, so the error of such a file says what to do."""
        setting, type_ = f"{store}.location", self._setting(f"{store}.type")
        try:
            data = Path(location).read_bytes()
        except OSError as error:
            raise self._error(setting, f"cannot read {location}: {error.strerror}") from error
        if data.startswith(_JKS):
            how = f"`keytool -importkeystore -deststoretype PKCS12` converts it, for {store}.type=PKCS12"
            raise self._error(setting, f"{location} is a JKS file, which is not read: {how}")
        if type_ == "PEM" and _is_der(data):
            raise self._error(setting, f"{location} is no PEM file; a PKCS12 file needs {store}.type=PKCS12")
        return data, type_

    @contextmanager
    def _naming(self, place: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # An ssl.SSLError is an OSError, as is a lack of files.
            reason = getattr(error, "reason", None) or str(error) or "not a certificate and its key"
            raise self._error(place, reason.replace("_", " ").lower()) from error

    def _error(self, setting: str, why: str) -> OperatorError:
        return OperatorError(f"listener {self._listener.name}: {setting}: {why}")


def tls_of(config: BrokerConfig, listener: Listener) -> ListenerTls | None:
    """None for a listener without TLS. Raises OperatorError if its settings do not fit."""
    protocol: SecurityProtocol = listener.protocol
    return ListenerTls(config, listener) if protocol.has_tls else None


def _is_der(data: bytes) -> bool:
    """A sequence longer than 127 bytes, as every PKCS12 file is, and no text."""
    return data[:1] == b"\x30" and data[1:2] >= b"\x80"


def _stamp(location: str | None) -> tuple[int, int, int] | None:
    if not location:
        return None
    try:
        found: Any = os.stat(location)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _lines(pem: str) -> str:
    """A line of a configuration file may hold a whole PEM text."""
    return pem.replace("\\n", "\n")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A file in memory: the ssl module reads keys from files only, and a key may have no file."""
    descriptor = os.memfd_create("kbroker-tls")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class CertificatePrincipals:
    """The principals of client certificates, of one listener, read with `cryptography`. `rules`:
    its ssl.principal.mapping.rules."""

    def __init__(self, rules: str) -> None:
        """Raises ValueError for wrong rules, OperatorError without `cryptography`."""
        self._mapper = PrincipalMapper(rules)
        try:
            from cryptography import x509
        except ImportError as error:
            raise OperatorError("client certificates need `pip install cryptography`") from error
        self._load = x509.load_der_x509_certificate
        # OpenSSL takes certificates that `cryptography` does not.
        self._unreadable = (ValueError, x509.InvalidVersion)

    def principal_of(self, certificate: bytes) -> Principal | None:
        """`certificate`: DER, checked already. None if its subject cannot be read, or no rule
        matches it."""
        try:
            subject = _text(self._load(certificate).subject)
        except self._unreadable:
            return None
        name = self._mapper.name_of(subject)
        return None if name is None else user(name)


def _text(subject: Any) -> str:  # noqa: ANN401 - cryptography is not always there
    """The subject as Java writes it, so that rules and ACLs of a Kafka cluster name the same
    clients. RFC 4514, but = is escaped, and # everywhere."""
    return ",".join(
        "+".join(f"{each.rfc4514_attribute_name}={_escaped(each)}" for each in part)
        for part in reversed(subject.rdns)
    )


def _escaped(attribute: Any) -> str:  # noqa: ANN401 - as above
    value = attribute.value
    if isinstance(value, bytes):
        return f"#{value.hex()}"
    first, last = len(value) - len(value.lstrip(" ")), len(value.rstrip(" "))
    return "".join(
        "\\00" if letter == "\0"
        else f"\\{letter}" if letter in _SPECIAL or not first <= at < last
        else letter
        for at, letter in enumerate(value)
    )  # fmt: skip
