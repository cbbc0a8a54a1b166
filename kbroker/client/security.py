"""How a client speaks to a secured broker: with TLS, with a login, or both.

`ClientSecurity.of` takes settings by the names that Kafka's clients use (and librdkafka's, where
they differ), so that one file serves Kafka's tools and kbroker's commands. Every mistake is one
line that names the setting. No error and no `repr` has a password or a key.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.client.fetching import url_fault
from kbroker.client.keystores import Identity, Pem, identity, pem_file, pem_text, trusted
from kbroker.client.oauth import TokenSource
from kbroker.errors import OperatorError
from kbroker.settings.jaas import read_options
from kbroker.settings.listeners import SecurityProtocol

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_JAAS: Final = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
NAMES: Final = (
    "security.protocol",
    "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.jaas.config",
    "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope",
    "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.password",
    "ssl.truststore.type",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type", "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.endpoint.identification.algorithm", "ssl.protocol", "ssl.enabled.protocols",
    "kbroker.admin.token",
)  # fmt: skip
"""The settings of security that are understood."""

AskPassword = Callable[[str], str]
"""(user name) -> the password that a person types. May raise OperatorError."""


@dataclass(frozen=True, slots=True)
class Login:
    """`tokens`: of OAUTHBEARER, in place of the password; `username` is then the client's id."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    tokens: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """`ca`: whom to trust; None: the authorities that the operating system trusts. `identity`: the
    client's own certificate. `checks_host`: the broker's certificate must name its host."""

    ca: Pem | None = None
    identity: Identity | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host: bool = True


@dataclass(frozen=True, slots=True)
class AdminLogin:
    """How to log in at a broker's admin endpoint. `user`: a name and a password. Each is None if
    the client has none."""

    user: tuple[str, str] | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


NO_LOGIN: Final = AdminLogin()


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """`tls` and `login` are there if the protocol has them. `given`: all settings."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: Tls | None = None
    login: Login | None = None
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, settings: Mapping[str, str], ask: AskPassword | None = None) -> ClientSecurity:
        """From settings by Kafka's names. `ask`: for a password that is missing.

        Settings that do not concern security are ignored. Raises OperatorError.
        """
        _check_names(settings)
        given = {name: value.strip() for name, value in settings.items() if name in NAMES}
        for name, value in given.items():
            check_text(value, name)
        protocol = _protocol(given)
        return cls(
            protocol,
            _tls(given) if protocol.has_tls else None,
            _login(given, ask) if protocol.has_sasl else None,
            given,
        )

    def admin_tls(self) -> Tls:
        """For an admin endpoint with TLS, also if the Kafka listener has none. Raises
        OperatorError."""
        return self.tls or _tls(self.given)

    def admin_login(self) -> AdminLogin:
        """The user is that of Kafka's listeners. Where these have no log-in, the settings may name
        one for the admin endpoint alone."""
        name, password = self.given.get("sasl.username"), self.given.get("sasl.password")
        if self.login is not None:
            name, password = self.login.username, self.login.password
        user = (name, password) if name and password else None
        return AdminLogin(user, self.given.get("kbroker.admin.token") or None)

    def library_settings(self) -> dict[str, str]:
        """The same for librdkafka, by its names. Raises OperatorError for a token in a file, which
        it does not read."""
        if self.protocol is SecurityProtocol.PLAINTEXT:
            return {}
        found = {"security.protocol": self.protocol.value}
        if self.login is not None and self.login.tokens is not None:
            found |= _library_tokens(self.login.tokens)
        elif self.login is not None:
            found["sasl.mechanism"] = self.login.mechanism
            found["sasl.username"] = self.login.username
            found["sasl.password"] = self.login.password
        if self.tls is not None:
            found |= _library_pem("ssl.ca", self.tls.ca)
            if self.tls.identity is not None:
                found |= _library_pem("ssl.certificate", self.tls.identity.certificate)
                found |= _library_pem("ssl.key", self.tls.identity.key)
            if self.tls.key_password is not None:
                found["ssl.key.password"] = self.tls.key_password
            found["ssl.endpoint.identification.algorithm"] = "https" if self.tls.checks_host else "none"
        return found


PLAINTEXT: Final = ClientSecurity()


def nearest_name(name: str, names: tuple[str, ...] = NAMES) -> str:
    """Words that suggest the known name that is most like this one; empty if none is."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def check_text(text: str, where: str) -> None:
    """Raises OperatorError for bytes from a terminal or the environment that are not UTF-8. Sent,
    they would be an error of Python's, which shows the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OperatorError(f"{where} is not UTF-8") from None


def _check_names(settings: Mapping[str, str]) -> None:
    for name in settings:
        is_security = name.startswith(("security.", "sasl.", "ssl."))
        if name not in NAMES and (is_security or difflib.get_close_matches(name, NAMES, n=1, cutoff=0.85)):
            raise OperatorError(f"{name} is not a security setting that kbroker knows{nearest_name(name)}")


def _protocol(given: Mapping[str, str]) -> SecurityProtocol:
    text = given.get("security.protocol", "")
    known = ", ".join(SecurityProtocol.__members__)
    if text.upper() in SecurityProtocol.__members__:
        return SecurityProtocol[text.upper()]
    if text:
        raise OperatorError(f"security.protocol: {text!r} is not one of {known}")
    if given.keys() - {"kbroker.admin.token"}:
        raise OperatorError(f"{next(iter(given))} is given without security.protocol: add one of {known}")
    return SecurityProtocol.PLAINTEXT


def _one(given: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """The name and the value of the one that is given. Raises OperatorError for two."""
    found = [(name, given[name]) for name in names if given.get(name)]
    if len(found) > 1:
        raise OperatorError(f"{found[0][0]} and {found[1][0]} exclude each other")
    return found[0] if found else None


def _tls(given: Mapping[str, str]) -> Tls:
    for name in ("ssl.protocol", "ssl.enabled.protocols"):
        versions = [each.strip() for each in given.get(name, "").split(",") if each.strip()]
        if any(each not in (*_TLS_VERSIONS, "TLS") for each in versions):
            raise OperatorError(f"{name}: only {' and '.join(_TLS_VERSIONS)} are spoken")
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise OperatorError(
            f"ssl.endpoint.identification.algorithm: {algorithm!r} is neither https nor empty (no check)"
        )
    return Tls(_ca(given), _identity(given), given.get("ssl.key.password") or None, algorithm == "https")


def _ca(given: Mapping[str, str]) -> Pem | None:
    found = _one(given, "ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates")
    if found is None:
        return None
    name, value = found
    if name == "ssl.truststore.certificates":
        return pem_text(name, value)
    return trusted(name, value, given.get("ssl.truststore.password"))


def _identity(given: Mapping[str, str]) -> Identity | None:
    found = _one(given, "ssl.keystore.location", "ssl.certificate.location", "ssl.keystore.certificate.chain")
    if found is None:
        if alone := _one(given, "ssl.key.location", "ssl.keystore.key"):
            raise OperatorError(f"{alone[0]} is given without the certificate (ssl.certificate.location)")
        return None
    name, value = found
    if name == "ssl.keystore.location":
        return identity(name, value, given.get("ssl.keystore.password"))
    if name == "ssl.certificate.location":
        certificate = pem_file(name, value)
        key = given.get("ssl.key.location")
        return Identity(certificate, pem_file("ssl.key.location", key) if key else certificate)
    if not given.get("ssl.keystore.key"):
        raise OperatorError("ssl.keystore.certificate.chain is given without ssl.keystore.key")
    return Identity(pem_text(name, value), pem_text("ssl.keystore.key", given["ssl.keystore.key"]))


def _login(given: Mapping[str, str], ask: AskPassword | None) -> Login:
    found = _one(given, "sasl.mechanism", "sasl.mechanisms")
    mechanism = found[1].upper() if found else ""
    if mechanism not in MECHANISMS:
        what = f"{mechanism!r} is not one of" if mechanism else "is missing: add one of"
        raise OperatorError(f"sasl.mechanism {what} {', '.join(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        return _token_login(given)
    username, password = given.get("sasl.username"), given.get("sasl.password")
    if jaas := given.get("sasl.jaas.config"):
        if username is not None or password is not None:
            raise OperatorError("sasl.jaas.config excludes sasl.username and sasl.password")
        username, password = _jaas(jaas, mechanism)
    if not username:
        raise OperatorError("sasl.username is missing: add the name of the user, or sasl.jaas.config")
    if not password and ask is not None:
        password = ask(username)
        check_text(password, "the password")
    if not password:
        raise OperatorError(f"sasl.password is missing: the password of {username}")
    return Login(mechanism, username, password)


def _token_login(given: Mapping[str, str]) -> Login:
    name = "sasl.oauthbearer.token.endpoint.url"
    url = given.get(name, "")
    if not url:
        raise OperatorError(f"{name} is missing: the https: URL that gives tokens, or file:///PATH of one")
    if (fault := url_fault(url)) is not None:
        raise OperatorError(f"{name}: {fault}")
    if url.startswith("file:"):
        return Login(OAUTHBEARER, "", "", TokenSource(url))
    client = _one(given, "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
    secret = _one(
        given, "sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret"
    )
    for found, missing in ((client, "id"), (secret, "secret")):
        if found is None:
            raise OperatorError(f"sasl.oauthbearer.client.{missing} is missing: what the issuer gave you")
    assert client is not None
    assert secret is not None
    scope = given.get("sasl.oauthbearer.scope", "")
    return Login(OAUTHBEARER, client[1], "", TokenSource(url, client[1], secret[1], scope))


def _library_tokens(tokens: TokenSource) -> dict[str, str]:
    if tokens.is_file:
        raise OperatorError(
            "sasl.oauthbearer.token.endpoint.url: this command needs an https: URL, since librdkafka reads "
            "no file"
        )
    found = {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
        "sasl.oauthbearer.client.id": tokens.client_id,
        "sasl.oauthbearer.client.secret": tokens.client_secret,
    }
    if tokens.scope:
        found["sasl.oauthbearer.scope"] = tokens.scope
    # librdkafka does not read the variable by itself; the requests of this package do.
    if authorities := os.environ.get("SSL_CERT_FILE"):
        found["https.ca.location"] = authorities
    return found


def _jaas(text: str, mechanism: str) -> tuple[str | None, str | None]:
    """The user name and the password of Kafka's sasl.jaas.config. An error shows no part of it."""
    found = _JAAS.fullmatch(text)
    modules = " and ".join(name for name, offered in _MODULES.items() if mechanism in offered)
    if found is None:
        raise OperatorError(
            f'sasl.jaas.config: write {modules} required username="..." password="..."; (with the semicolon)'
        )
    module, rest = found.groups()
    if mechanism not in _MODULES.get(module, ()):
        raise OperatorError(f"sasl.jaas.config: {module} does not speak {mechanism}; {modules} does")
    options, left = read_options(rest)
    if left or set(options) - {"username", "password"}:
        raise OperatorError('sasl.jaas.config: after the module write username="..." password="..."; only')
    return options.get("username"), options.get("password")


def _library_pem(name: str, pem: Pem | None) -> dict[str, str]:
    if pem is None:
        return {}
    return {f"{name}.location": pem.path} if pem.path is not None else {f"{name}.pem": pem.text or ""}
