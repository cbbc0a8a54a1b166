"""The broker's settings of SASL: Kafka's names. All may be set for one listener
(settings/per_listener.py)."""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.settings.definition import ConfigDef, ConfigType, Value
from kbroker.settings.jaas import plain_users

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_of_a_listener = partial(ConfigDef, per_listener=True)


def _mechanisms_fault(value: Value) -> str | None:
    assert isinstance(value, tuple)
    return None if set(value) <= set(MECHANISMS) else f"String must be one of: {', '.join(MECHANISMS)}"


def _jaas_fault(value: Value) -> str | None:
    assert isinstance(value, str)
    try:
        plain_users(value)
    except ValueError as error:
        return str(error)
    return None


SASL_CONFIGS: Final = (
    _of_a_listener(
        name="sasl.enabled.mechanisms",
        type=ConfigType.LIST,
        default="",
        fault=_mechanisms_fault,
        doc="How clients log in on listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER, separated by commas. Such a listener does not start without it.",
    ),
    _of_a_listener(
        name="sasl.jaas.config",
        type=ConfigType.PASSWORD,
        default=None,
        fault=_jaas_fault,
        doc="Users of PLAIN beside those that are stored, as Kafka's JAAS line: "
        "`listener.name.NAME.plain.sasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="PASSWORD";`. '
        "Stored users are better (`kbroker users`).",
    ),
    _of_a_listener(
        name="connections.max.reauth.ms",
        type=ConfigType.LONG,
        default="0",
        doc="How long a log-in lasts before the client must log in again on the same connection; 0: as "
        "long as the connection. Changed passwords and deleted users take effect then.",
    ),
    _of_a_listener(
        name="connection.failed.authentication.delay.ms",
        type=ConfigType.INT,
        default="100",
        minimum=0,
        doc="How long the answer to a failed log-in waits. Then the connection is closed.",
    ),
    _of_a_listener(
        name="sasl.server.max.receive.size",
        type=ConfigType.INT,
        default="524288",
        minimum=1,
        doc="Largest request before a client has logged in, in bytes.",
    ),
)
