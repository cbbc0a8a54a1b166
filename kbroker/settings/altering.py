"""Settings as the broker's APIs see them: altering, checking and describing those of a topic, the
broker or a group.

Pure functions over the stored settings of a resource (name to text, only those set): they return
the settings to store next or raise KafkaError, and the caller saves them. The tables are in
settings/broker.py, settings/topic_configs.py and settings/group_configs.py, the classes that read
them in settings/broker.py, settings/topic.py and settings/group.py; other packages use this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.broker import (
    BROKER_CONFIGS,
    BrokerConfig,
    GivenSetting,
    SettingsRefused,
    file_settings,
)
from kbroker.settings.broker_unserved import REMOVE, instead
from kbroker.settings.definition import ConfigDef, ConfigType, Source, to_text
from kbroker.settings.group import GroupConfig, check_group_values, reset_duration_ms
from kbroker.settings.group_configs import GROUP_CONFIGS
from kbroker.settings.topic import TopicConfig, contradictions
from kbroker.settings.topic_configs import TOPIC_CONFIGS

__all__ = [
    "CONFIGS",
    "BrokerConfig",
    "ConfigChange",
    "ConfigOperation",
    "ConfigRow",
    "GivenSetting",
    "GroupConfig",
    "Scope",
    "SettingsRefused",
    "Source",
    "Synonym",
    "TopicConfig",
    "alter_incrementally",
    "check_resource_name",
    "checked_topic_configs",
    "describe",
    "describe_broker_default",
    "file_settings",
    "refuse_duplicates",
    "refuse_nulls",
    "replace_all",
    "reset_duration_ms",
]

_LONGEST_TYPO: Final = 249
"""Longer names are like those of no setting; difflib looks at each of their characters."""


class Scope(Enum):
    """The owner of a setting; the values are Kafka's config resource types."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigOperation(IntEnum):
    """ConfigOperation of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One row of IncrementalAlterConfigs, as sent: `operation` may be no ConfigOperation, `value`
    may be None where it must not."""

    name: str
    operation: int
    value: str | None


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: Source


class ConfigRow(NamedTuple):
    """One row of DescribeConfigs. `synonyms`: the set and default values, strongest first."""

    name: str
    value: str | None
    source: Source
    synonyms: tuple[Synonym, ...]
    read_only: bool
    type: ConfigType
    documentation: str
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        return self.source is Source.DEFAULT


CONFIGS: Final[Mapping[Scope, Mapping[str, ConfigDef]]] = {
    Scope.TOPIC: TOPIC_CONFIGS,
    Scope.BROKER: BROKER_CONFIGS,
    Scope.GROUP: GROUP_CONFIGS,
}
_EFFECTIVE: Final[
    Mapping[Scope, Callable[[Mapping[str, str], BrokerConfig], TopicConfig | BrokerConfig | GroupConfig]]
] = {
    Scope.TOPIC: TopicConfig,
    Scope.BROKER: lambda _, broker: broker,
    Scope.GROUP: GroupConfig,
}
_OWN_SOURCE: Final = {Scope.TOPIC: Source.TOPIC, Scope.GROUP: Source.GROUP}
_INVALID: Final = {
    # An invalid value: Kafka answers INVALID_REQUEST for broker settings only.
    Scope.TOPIC: ErrorCode.invalid_config,
    Scope.BROKER: ErrorCode.invalid_request,
    Scope.GROUP: ErrorCode.invalid_config,
}


def check_resource_name(scope: Scope, name: str, node_id: int) -> None:
    """Raises KafkaError unless `name` can name a resource whose settings are altered; "" means all
    brokers."""
    if scope is not Scope.BROKER:
        if not name:
            raise KafkaError(
                ErrorCode.invalid_request, f"Default {scope.name.lower()} resources are not allowed."
            )
    elif name and name != str(node_id):
        what = f"Unexpected broker id, expected {node_id}, but received {name}"
        raise KafkaError(
            ErrorCode.invalid_request,
            what if name.isdecimal() else f"Node id must be an integer, but it is: {name}",
        )


def alter_incrementally(
    scope: Scope,
    stored: Mapping[str, str],
    changes: Sequence[ConfigChange],
    broker: BrokerConfig,
    *,
    broker_name: str = "",
) -> dict[str, str]:
    """The configs to store for a resource after an IncrementalAlterConfigs. Raises KafkaError if
    any change is refused.

    For `Scope.BROKER`, `broker_name` is the resource's name: "" for changes to all
    brokers.
    """
    refuse_duplicates([change.name for change in changes])
    refuse_nulls(
        [
            change.name
            for change in changes
            if change.value is None and change.operation != ConfigOperation.DELETE
        ]
    )
    result = dict(stored)
    for name, operation, value in changes:
        if operation not in ConfigOperation.__members__.values():
            # For a topic or a group the request breaks in Kafka's controller, which says nothing.
            if scope is not Scope.BROKER:
                raise KafkaError(ErrorCode.unknown_server_error)
            raise KafkaError(ErrorCode.invalid_request, f"Unknown operations type {operation}")
        if operation == ConfigOperation.DELETE:
            result.pop(name, None)
        elif operation == ConfigOperation.SET:
            result[name] = value or ""
        else:
            result[name] = _changed_list(scope, ConfigOperation(operation), name, value or "", result, broker)
    return _checked(scope, result, broker, broker_name, {change.name for change in changes})


def replace_all(
    scope: Scope, entries: Sequence[tuple[str, str | None]], broker: BrokerConfig, *, broker_name: str = ""
) -> dict[str, str]:
    """The configs to store for a resource after an AlterConfigs, which removes all that it does not
    name. Raises KafkaError."""
    refuse_duplicates([name for name, _ in entries])
    refuse_nulls([name for name, value in entries if value is None])
    return _checked(
        scope,
        {name: value or "" for name, value in entries},
        broker,
        broker_name,
        {name for name, _ in entries},
    )


def checked_topic_configs(entries: Sequence[tuple[str, str | None]], broker: BrokerConfig) -> dict[str, str]:
    """The configs to store for a topic that is created with these settings. Raises
    INVALID_CONFIG."""
    missing = [name for name, value in entries if value is None]
    if missing:
        raise KafkaError(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(missing)}"
        )
    return _checked(
        Scope.TOPIC, {name: value or "" for name, value in entries}, broker, "", {name for name, _ in entries}
    )


def describe(
    scope: Scope, stored: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigRow]:
    """The rows of a resource, by name; those of `names` only, where given. Unknown names
    have no row, nor have settings of a group that have no default and are not set, as in Kafka.

    `stored`: the values set for the topic or group; ignored for the broker, as `broker` has them.
    """
    defs = [
        each
        for name, each in sorted(CONFIGS[scope].items())
        if not each.hidden
        and (names is None or name in names)
        and not (scope is Scope.GROUP and each.default is None and name not in stored)
    ]
    return [_row(scope, each, stored, broker) for each in defs]


def describe_broker_default(broker: BrokerConfig, names: Collection[str] | None = None) -> list[ConfigRow]:
    """The rows of the broker resource without a name: only the values altered for all brokers."""
    rows = []
    for name, text in sorted(broker.dynamic_default.items()):
        if names is None or name in names:
            each, source = BROKER_CONFIGS[name], Source.DYNAMIC_DEFAULT_BROKER
            rows.append(
                ConfigRow(
                    name,
                    text,
                    source,
                    (Synonym(name, text, source),),
                    not each.dynamic,
                    each.type,
                    each.documentation,
                )
            )
    return rows


def refuse_duplicates(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")


def refuse_nulls(names: Sequence[str]) -> None:
    if names:
        raise KafkaError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(names)}")


def _known(scope: Scope, name: str) -> ConfigDef:
    each = CONFIGS[scope].get(name)
    if scope is Scope.BROKER and (each is None or not each.dynamic):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Cannot update these configs dynamically: [{name}]{_instead(scope, name)}",
        )
    if each is None:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Unknown {scope.name.lower()} config name: {name}{_instead(scope, name)}",
        )
    return each


def _instead(scope: Scope, name: str) -> str:
    """The alternative to a setting that the resource does not have; empty for unknown names."""
    if scope is Scope.BROKER and name in BROKER_CONFIGS:
        how = f"`kbroker start --config {name}=VALUE`, or a line {name}=VALUE in the file of --config-file"
        return f". It is read at start only: set it with {how}, and restart the broker"
    if scope is Scope.BROKER and (advice := instead(name)):
        return f". kbroker has no such setting: {advice.removeprefix(REMOVE)}"
    same = [
        each.name for each in CONFIGS[scope].values() if name in (synonym for synonym, _ in each.synonyms)
    ]
    if not same and scope is Scope.BROKER:
        found = TOPIC_CONFIGS.get(name) or GROUP_CONFIGS.get(name)
        same = [] if found is None else [synonym for synonym, _ in found.synonyms[:1]]
    if same:
        return f". The {scope.name.lower()} setting of that meaning is {same[0]}"
    if others := [other.name.lower() for other, table in CONFIGS.items() if name in table]:
        return f". It is a setting of a {others[0]}"
    if len(name) > _LONGEST_TYPO:
        return ""
    import difflib

    close = difflib.get_close_matches(
        name, [each.name for each in CONFIGS[scope].values() if not each.hidden], n=2
    )
    if not close:
        return ""
    at_start = [scope is Scope.BROKER and not BROKER_CONFIGS[each].dynamic for each in close]
    named = [
        f"{each} (read at start only)" if is_at_start else each
        for each, is_at_start in zip(close, at_start, strict=True)
    ]
    return f". Did you mean {' or '.join(named)}?"


def _checked(
    scope: Scope, entries: Mapping[str, str], broker: BrokerConfig, broker_name: str, altered: Collection[str]
) -> dict[str, str]:
    """`entries` in canonical form, checked one by one and together. `altered`: the names in the
    request."""
    try:
        result = {name: to_text(_known(scope, name).parse(value)) for name, value in entries.items()}
        if scope is Scope.TOPIC:
            for contradiction in contradictions(result):
                raise ValueError(contradiction)
        elif scope is Scope.GROUP:
            check_group_values(result, broker, altered)
        elif scope is Scope.BROKER and broker_name:
            broker.check_dynamic(broker.dynamic_default, result)
        elif scope is Scope.BROKER:
            broker.check_dynamic(result, broker.dynamic)
    except ValueError as error:
        raise KafkaError(_INVALID[scope], str(error)) from None
    return result


def _changed_list(
    scope: Scope,
    operation: ConfigOperation,
    name: str,
    value: str,
    stored: Mapping[str, str],
    broker: BrokerConfig,
) -> str:
    if _known(scope, name).type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.invalid_config, f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    current = stored.get(name)
    if current is None:
        current = describe(scope, stored, broker, (name,))[0].value or ""
    parts = [part for part in current.split(",") if part]
    given = [part.strip() for part in value.split(",")]
    if operation is ConfigOperation.APPEND:
        parts += [part for part in dict.fromkeys(given) if part not in parts]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)


def _row(scope: Scope, each: ConfigDef, stored: Mapping[str, str], broker: BrokerConfig) -> ConfigRow:
    synonyms = tuple(_synonyms(scope, each, stored, broker))
    value = _EFFECTIVE[scope](stored, broker)[each.name]
    return ConfigRow(
        name=each.name,
        value=None if value is None or each.is_sensitive else to_text(value),
        source=synonyms[0].source if synonyms else Source.DEFAULT,
        synonyms=synonyms,
        read_only=scope is Scope.BROKER and not each.dynamic,
        type=each.type,
        documentation=each.documentation,
        is_sensitive=each.is_sensitive,
    )


def _synonyms(
    scope: Scope, each: ConfigDef, stored: Mapping[str, str], broker: BrokerConfig
) -> Iterator[Synonym]:
    """Strongest first. A default is listed only under the synonym that bears the setting's own
    unit; of a group's setting without one under its own name, of a topic's not at all: as in
    Kafka."""
    if scope is not Scope.BROKER and each.name in stored:
        yield Synonym(each.name, stored[each.name], _OWN_SOURCE[scope])
    names = [name for name, _ in each.synonyms] if scope is not Scope.BROKER else [each.name]
    for source, layer in broker.layers():
        for name in names:
            if name in layer:
                shown = None if each.is_sensitive else to_text(BROKER_CONFIGS[name].parse(layer[name]))
                yield Synonym(name, shown, source)
    for name in names[:1]:
        default = BROKER_CONFIGS[name].default
        if default is not None:
            yield Synonym(name, default, Source.DEFAULT)
    if scope is Scope.GROUP and not names and each.default is not None:
        yield Synonym(each.name, each.default, Source.DEFAULT)
