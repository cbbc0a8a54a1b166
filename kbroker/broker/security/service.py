"""The security of a broker as one part: users, sessions, and log-ins on listeners with SASL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from kbroker.broker.security.credentials import Credentials, CredentialsStatistics
from kbroker.broker.security.derivations import Derivations, DerivationsStatistics
from kbroker.broker.security.log_in import LogIn, new_nonce
from kbroker.broker.security.token_keys import TokenKeys
from kbroker.formats.security_values import ScramCredential, ScramMechanism
from kbroker.metrics import SaslMetrics
from kbroker.security.exchange import Found
from kbroker.security.principals import Principal
from kbroker.security.sasl import Sasl
from kbroker.security.sasl_settings import SaslSettings

End: TypeAlias = Callable[[bool], None]
"""Ends a connection, at once, or (True) after the answer to the request that it is serving. It must
not wait."""


class SessionsStatistics(NamedTuple):
    sessions: int
    principals: int


class Sessions:
    """The connections of each user, as long as they are open, so that an administrator can end them
    at once.

    Browsers that have logged in at the admin endpoint are not connections. They compare
    `disconnected` with the number that it had at their log-in."""

    def __init__(self) -> None:
        self._by_principal: dict[Principal, dict[int, End]] = {}
        self.disconnected: Counter[Principal] = Counter()
        """How often `disconnect` was called for a principal."""

    def statistics(self) -> SessionsStatistics:
        return SessionsStatistics(sum(map(len, self._by_principal.values())), len(self._by_principal))

    def add(self, principal: Principal, connection_id: int, end: End) -> None:
        self._by_principal.setdefault(principal, {})[connection_id] = end

    def remove(self, principal: Principal, connection_id: int) -> None:
        """Nothing happens if it is not there."""
        found = self._by_principal.get(principal, {})
        found.pop(connection_id, None)
        if not found:
            self._by_principal.pop(principal, None)

    def disconnect(self, principal: Principal, requested_by: int | None = None) -> int:
        """End all connections of the principal. Returns how many. `requested_by`: the connection
        that still gets an answer, if it is one of them."""
        self.disconnected[principal] += 1
        found = list(self._by_principal.get(principal, {}).items())
        for connection_id, end in found:
            end(connection_id == requested_by)
        return len(found)


class SecurityStatistics(NamedTuple):
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
