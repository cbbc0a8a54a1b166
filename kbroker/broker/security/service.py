"""The security of a broker as one part: users, sessions, and log-ins on listeners with SASL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.broker.security.credentials import Credentials, CredentialsStatistics
from kbroker.broker.security.derivations import Derivations, DerivationsStatistics
from kbroker.broker.security.log_in import LogIn, new_nonce
from kbroker.broker.security.sessions import Sessions, SessionsStatistics
from kbroker.broker.security.token_keys import TokenKeys
from kbroker.formats.security_values import ScramCredential, ScramMechanism
from kbroker.metrics import SaslMetrics
from kbroker.security.exchange import Found
from kbroker.security.sasl import Sasl
from kbroker.security.sasl_settings import SaslSettings


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

    def log_ins(self, settings: SaslSettings, listener: str) -> LogIns:
        """For one listener, by its name."""
        keys = None if settings.tokens is None else TokenKeys(settings.tokens, listener)
        return LogIns(settings, self.credentials, self.derivations, self._metrics, keys)


class ListenerUsers:
    """The users of a listener: for PLAIN, those of its JAAS line come before the stored ones."""

    def __init__(self, own: Mapping[str, ScramCredential], credentials: Credentials) -> None:
        self._own = own
        self._credentials = credentials

    def for_scram(self, name: str, mechanism: ScramMechanism) -> Found:
        return self._credentials.for_scram(name, mechanism)

    def for_password(self, name: str) -> Found:
        stored, own = self._credentials.for_password(name), self._own.get(name)
        return stored if own is None else Found(ScramMechanism.SHA_256, own, is_known=True)


class LogIns:
    """Begins the log-ins of one listener. `token_keys`: of OAUTHBEARER; the server of the
    listener runs its task."""

    def __init__(
        self,
        settings: SaslSettings,
        credentials: Credentials,
        derivations: Derivations,
        metrics: SaslMetrics,
        token_keys: TokenKeys | None = None,
    ) -> None:
        self.settings = settings
        self.token_keys = token_keys
        self._users = ListenerUsers(settings.users, credentials)
        self._derivations = derivations
        self._metrics = metrics

    def begin(self, host: str) -> LogIn:
        """`host`: the address of the client."""
        settings = self.settings
        sasl = Sasl(settings.mechanisms, self._users, new_nonce, settings.max_session_ms)
        return LogIn(sasl, self._derivations, self._metrics, settings, host, self.token_keys)
