"""The settings of SASL on one listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.formats.security_values import ScramCredential
from kbroker.security.oauth_tokens import TokenRules


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """- `url`: of the key set, https: or file:
    - `refresh_s`: it is read again after this time
    - `retry_backoff_s`: pause after a read that failed; it doubles up to `retry_backoff_max_s`"""

    url: str
    rules: TokenRules
    refresh_s: float = 3600.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """- `mechanisms`: those that clients may use
    - `users`: of PLAIN, from a JAAS line, beside those that are stored; credentials for SHA-256
    - `tokens`: of OAUTHBEARER; None: it is not among the mechanisms
    - `max_session_ms`: 0: as long as the connection
    - `log_in_s`: how long a log-in may take as a whole"""

    mechanisms: tuple[str, ...]
    users: Mapping[str, ScramCredential] = field(default_factory=dict)
    tokens: TokenSettings | None = None
    max_session_ms: int = 0
    failure_delay_ms: int = 100
    max_receive_bytes: int = 524_288
    log_in_s: float = 30.0
