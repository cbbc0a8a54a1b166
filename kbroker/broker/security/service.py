"""The security of a broker as one part: users, sessions, and log-ins on listeners with SASL."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.broker.security.credentials import SALT_BYTES, Credentials, CredentialsStatistics
from kbroker.broker.security.derivations import Derivations, DerivationsStatistics
from kbroker.broker.security.log_in import LogIn, new_nonce
from kbroker.broker.security.sessions import Sessions, SessionsStatistics
from kbroker.formats.security_values import ScramCredential, ScramMechanism
from kbroker.metrics import SaslMetrics
from kbroker.security.exchange import Found
from kbroker.security.sasl import Sasl
from kbroker.security.scram import DEFAULT_ITERATIONS, new_credential
from kbroker.settings.broker_sasl import SaslSettings


@dataclass(frozen=True, slots=True)
class SecurityStatistics:
    credentials: CredentialsStatistics
    sessions: SessionsStatistics
    derivations: DerivationsStatistics


class Security:
    def __init__(self, credentials: Credentials, metrics: SaslMetrics) -> None:
        self.credentials = credentials
        self.sessions = Sessions()
        self.derivations = Derivations()
        self._metrics = metrics

    def statistics(self) -> SecurityStatistics:
        return SecurityStatistics(
            self.credentials.statistics(), self.sessions.statistics(), self.derivations.statistics()
        )

    def log_ins(self, settings: SaslSettings) -> LogIns:
        """For one listener. Slow: it derives the credentials of the users in `settings`."""
        return LogIns(settings, self.credentials, self.derivations, self._metrics)


class ListenerUsers:
    """The users of a listener: for PLAIN, those of its JAAS line come before the stored ones. Their
    passwords are forgotten once the credentials are derived."""

    def __init__(self, passwords: Mapping[str, str], credentials: Credentials) -> None:
        self._credentials = credentials
        self._own: dict[str, ScramCredential] = {
            name: new_credential(
                password, secrets.token_bytes(SALT_BYTES), DEFAULT_ITERATIONS, ScramMechanism.SHA_256
            )
            for name, password in passwords.items()
        }

    def for_scram(self, name: str, mechanism: ScramMechanism) -> Found:
        return self._credentials.for_scram(name, mechanism)

    def for_password(self, name: str) -> Found:
        stored, own = self._credentials.for_password(name), self._own.get(name)
        return stored if own is None else Found(ScramMechanism.SHA_256, own, is_known=True)


class LogIns:
    """Begins the log-ins of one listener."""

    def __init__(
        self,
        settings: SaslSettings,
        credentials: Credentials,
        derivations: Derivations,
        metrics: SaslMetrics,
    ) -> None:
        self.settings = settings.without_passwords()
        self._users = ListenerUsers(settings.passwords, credentials)
        self._derivations = derivations
        self._metrics = metrics

    def begin(self) -> LogIn:
        settings = self.settings
        sasl = Sasl(settings.mechanisms, self._users, new_nonce, settings.max_session_ms)
        return LogIn(sasl, self._derivations, self._metrics, settings)
