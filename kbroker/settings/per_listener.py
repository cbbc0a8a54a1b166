"""Settings of one listener: `listener.name.<listener>.<setting>`, or with a SASL mechanism,
`listener.name.<listener>.<mechanism>.<setting>`, as in Kafka.

Listener and mechanism are written in lower case there. Such a value overrides the setting without
the prefix, for this listener only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kbroker.settings.definition import ConfigDef

PREFIX: Final = "listener.name."
MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")


class ListenerSetting(NamedTuple):
    """`mechanism`: empty if the name has none."""

    listener: str
    mechanism: str
    definition: ConfigDef


def parse_name(name: str, table: Mapping[str, ConfigDef]) -> ListenerSetting | None:
    """The parts of a prefixed name; None if it is no such name, or its setting is not one that a
    listener may have."""
    if not name.startswith(PREFIX):
        return None
    listener, _, setting = name.removeprefix(PREFIX).partition(".")
    mechanism = next((each for each in MECHANISMS if setting.startswith(each + ".")), "")
    definition = table.get(setting.removeprefix(mechanism + ".") if mechanism else setting)
    if not listener or definition is None or not definition.per_listener:
        return None
    return ListenerSetting(listener, mechanism, definition)


def names_for(listener: str, setting: str, mechanism: str = "") -> Iterator[str]:
    """The names that may hold a listener's value, strongest first."""
    prefix = f"{PREFIX}{listener.lower()}."
    if mechanism:
        yield f"{prefix}{mechanism.lower()}.{setting}"
    yield prefix + setting
    yield setting


def value_for(values: Mapping[str, Any], listener: str, setting: str, mechanism: str = "") -> Any:  # noqa: ANN401 - typed by the table
    """The value of `setting` on `listener`: the strongest one that is set."""
    return next(values[name] for name in names_for(listener, setting, mechanism) if name in values)
