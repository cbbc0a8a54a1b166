"""The settings of SASL on one listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.formats.security_values import ScramCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """- `mechanisms`: those that clients may use
    - `users`: of PLAIN, from a JAAS line, beside those that are stored; credentials for SHA-256
    - `max_session_ms`: 0: as long as the connection
    - `log_in_s`: how long a log-in may take as a whole"""

    mechanisms: tuple[str, ...]
    users: Mapping[str, ScramCredential] = field(default_factory=dict)
    max_session_ms: int = 0
    failure_delay_ms: int = 100
    max_receive_bytes: int = 524_288
    log_in_s: float = 30.0
