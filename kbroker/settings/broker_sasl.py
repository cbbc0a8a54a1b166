"""The broker's settings of SASL, and the values that one listener works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kbroker.settings.definition import ConfigDef, ConfigType, Value

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def _mechanisms_fault(value: Value) -> str | None:
    assert isinstance(value, tuple)
    return None if set(value) <= set(MECHANISMS) else f"String must be one of: {', '.join(MECHANISMS)}"


SASL_CONFIGS: Final = (
    ConfigDef(
        name="sasl.enabled.mechanisms",
        type=ConfigType.LIST,
        default="",
        per_listener=True,
        fault=_mechanisms_fault,
        doc="How clients log in on listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. Such a listener "
        "does not start without it.",
    ),
    ConfigDef(
        name="sasl.jaas.config",
        type=ConfigType.PASSWORD,
        default=None,
        per_listener=True,
        doc="Users of PLAIN as Kafka's files give them, for one listener and the mechanism: "
        "`listener.name.NAME.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule "
        'required user_alice="PASSWORD";`. `kbroker users` keeps no password in a file.',
    ),
    ConfigDef(
        name="connections.max.reauth.ms",
        type=ConfigType.LONG,
        default="0",
        per_listener=True,
        doc="How long a log-in lasts before the client must log in again on the same connection; 0: as "
        "long as the connection. Changed passwords and deleted users take effect then.",
    ),
    ConfigDef(
        name="connection.failed.authentication.delay.ms",
        type=ConfigType.INT,
        default="100",
        minimum=0,
        doc="How long the answer to a failed log-in waits. Then the connection is closed.",
    ),
    ConfigDef(
        name="sasl.server.max.receive.size",
        type=ConfigType.INT,
        default="524288",
        minimum=1,
        doc="Largest request before a client has logged in, in bytes.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Of one listener.

    - `passwords`: of users of PLAIN that a JAAS line names, beside those that are stored
    - `max_session_ms`: 0: as long as the connection
    - `log_in_s`: how long a log-in may take as a whole"""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_session_ms: int = 0
    failure_delay_ms: int = 100
    max_receive_bytes: int = 524_288
    log_in_s: float = 30.0

    def without_passwords(self) -> SaslSettings:
        return replace(self, passwords={})
