"""The broker's settings: the table of all settings, and `BrokerConfig`, the values that this broker
runs with.

Only settings with an effect are in the table, with Kafka's names, defaults and bounds; kbroker's
own begin with `kbroker.`. A name that is not in the table stops the start: a setting that is
silently ignored is worse than none.

The first of these wins: a value altered for this broker while running, one altered for all brokers,
the command line or configuration file, the table's default. Read values by name at the moment of
use: `config["num.partitions"]`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.errors import OperatorError
from kbroker.settings.broker_authorizer import AUTHORIZER_CONFIGS
from kbroker.settings.broker_cleaner import CLEANER_CONFIGS
from kbroker.settings.broker_cluster import CLUSTER_CONFIGS, with_both_ids
from kbroker.settings.broker_contradictions import contradictions
from kbroker.settings.broker_groups import CONSUMER_GROUP_CONFIGS
from kbroker.settings.broker_listeners import LISTENER_CONFIGS
from kbroker.settings.broker_oauth import OAUTH_CONFIGS
from kbroker.settings.broker_own import OWN_CONFIGS
from kbroker.settings.broker_quotas import QUOTA_CONFIGS
from kbroker.settings.broker_sasl import SASL_CONFIGS
from kbroker.settings.broker_share_groups import SHARE_GROUP_CONFIGS
from kbroker.settings.broker_unserved import instead
from kbroker.settings.compression import BROKER_COMPRESSION
from kbroker.settings.definition import (
    ARRAY_MAX,
    INT_MAX,
    LONG_MAX,
    ConfigDef,
    ConfigType,
    Source,
    Value,
    by_name,
)
from kbroker.settings.per_listener import parse_name, value_for
from kbroker.settings.properties import properties

_BOOLEAN, _STRING, _INT, _LONG, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
)

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""Partitions that one request may create, as in Kafka: a typing error must not fill the disk with
logs."""

BROKER_CONFIGS: Final = by_name(
    ConfigDef(
        name="auto.create.topics.enable",
        type=_BOOLEAN,
        default="true",
        doc="Whether a producer's metadata request for a missing topic creates it.",
    ),
    ConfigDef(
        name="num.partitions",
        type=_INT,
        default="1",
        minimum=1,
        maximum=MAX_PARTITIONS_PER_REQUEST,
        doc="Partitions of a topic that is created without a number of partitions.",
    ),
    ConfigDef(
        name="default.replication.factor",
        type=_INT,
        default="1",
        minimum=1,
        only=("1",),
        reason="one broker holds the only copy",
        doc="Replicas of a topic that is created without a number of replicas.",
    ),
    ConfigDef(
        name="delete.topic.enable", type=_BOOLEAN, default="true", doc="Whether clients may delete topics."
    ),
    # Logs: defaults of the topic settings of the same meaning.
    ConfigDef(
        name="message.max.bytes",
        type=_INT,
        default="1048588",
        minimum=0,
        doc="Largest accepted record batch, in bytes as sent; default of the topic setting "
        "max.message.bytes.",
    ),
    ConfigDef(
        name="max.decompressed.message.bytes",
        type=_INT,
        default=str(ARRAY_MAX),
        minimum=1,
        maximum=ARRAY_MAX,
        dynamic=True,
        doc="Largest accepted record of a compressed batch, in bytes; default of the topic setting of "
        "the same name.",
    ),
    ConfigDef(
        name="log.retention.ms",
        type=_LONG,
        default=None,
        dynamic=True,
        doc="How long records are kept at least; -1 forever. Default of retention.ms; unset: "
        "log.retention.minutes decides.",
    ),
    ConfigDef(
        name="log.retention.minutes",
        type=_INT,
        default=None,
        doc="The same in minutes; unset: log.retention.hours decides.",
    ),
    ConfigDef(name="log.retention.hours", type=_INT, default="168", doc="The same in hours; -1 forever."),
    ConfigDef(
        name="log.retention.bytes",
        type=_LONG,
        default="-1",
        dynamic=True,
        doc="How large a partition may grow before its oldest segments are removed; negative for no limit. "
        "Default of retention.bytes.",
    ),
    ConfigDef(
        name="log.retention.check.interval.ms",
        type=_LONG,
        default="300000",
        minimum=1,
        doc="How often retention is applied to all logs.",
    ),
    ConfigDef(
        name="log.segment.bytes",
        type=_INT,
        default="1073741824",
        minimum=1 << 20,
        doc="Size at which a log starts a new segment; default of segment.bytes.",
    ),
    ConfigDef(
        name="log.roll.ms",
        type=_LONG,
        default=None,
        minimum=1,
        doc="Age at which a log starts a new segment; default of segment.ms; unset: log.roll.hours decides.",
    ),
    ConfigDef(name="log.roll.hours", type=_INT, default="168", minimum=1, doc="The same in hours."),
    ConfigDef(
        name="log.message.timestamp.type",
        type=_STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="Whose clock a record's timestamp is of: the producer's or the broker's. Default of "
        "message.timestamp.type.",
    ),
    ConfigDef(
        name="log.message.timestamp.before.max.ms",
        type=_LONG,
        default=str(LONG_MAX),
        minimum=0,
        doc="How far in the past a producer's timestamp may lie; default of message.timestamp.before.max.ms.",
    ),
    ConfigDef(
        name="log.message.timestamp.after.max.ms",
        type=_LONG,
        default="3600000",
        minimum=0,
        doc="How far in the future a producer's timestamp may lie; default of "
        "message.timestamp.after.max.ms.",
    ),
    ConfigDef(
        name="producer.id.expiration.ms",
        type=_INT,
        default="86400000",
        minimum=1,
        doc="How long the last sequence numbers of an idle idempotent producer are remembered.",
    ),
    # Transactions.
    ConfigDef(
        name="transaction.max.timeout.ms",
        type=_INT,
        default="900000",
        minimum=1,
        doc="The longest transaction.timeout.ms that a producer may ask for.",
    ),
    ConfigDef(
        name="transactional.id.expiration.ms",
        type=_INT,
        default="604800000",
        minimum=1,
        doc="How long a transactional id without a transaction is remembered after its last use.",
    ),
    ConfigDef(
        name="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        type=_INT,
        default="10000",
        minimum=1,
        doc="How often transactions that have lasted longer than their time-out are aborted.",
    ),
    ConfigDef(
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
        type=_INT,
        default="3600000",
        minimum=1,
        doc="How often unused transactional ids are removed.",
    ),
    # Connections and requests.
    ConfigDef(
        name="max.connections",
        type=_INT,
        default=str(INT_MAX),
        minimum=0,
        doc="Connections at one time; further ones are closed. There are never more than half of the "
        "files that the process may have open (`ulimit -n`).",
    ),
    ConfigDef(
        name="connections.max.idle.ms",
        type=_LONG,
        default="600000",
        doc="How long a connection may be silent before it is closed; negative forever.",
    ),
    ConfigDef(
        name="socket.request.max.bytes",
        type=_INT,
        default="104857600",
        minimum=1,
        doc="Largest request; a connection that announces a larger one is closed.",
    ),
    ConfigDef(
        name="queued.max.request.bytes",
        type=_LONG,
        default="-1",
        doc="Bytes of requests held in memory at one time, over all connections; reading stops beyond it. "
        "Not positive: no limit.",
    ),
    ConfigDef(
        name="fetch.max.bytes",
        type=_INT,
        default="57671680",
        minimum=1024,
        doc="Upper limit of a fetch answer, whatever the client requests.",
    ),
    ConfigDef(
        name="max.incremental.fetch.session.cache.slots",
        type=_INT,
        default="1000",
        minimum=0,
        doc="Fetch sessions kept at one time, in at most 128 MiB (250 000 partitions; one session a quarter "
        "of them). Other consumers name their partitions in every request.",
    ),
    *SHARE_GROUP_CONFIGS,
    ConfigDef(
        name="share.coordinator.snapshot.update.records.per.snapshot",
        type=_INT,
        default="500",
        minimum=0,
        maximum=500,
        doc="Updates of a share-partition's state that are written before a snapshot; 0 writes "
        "snapshots only.",
    ),
    ConfigDef(
        name="share.coordinator.cold.partition.snapshot.interval.ms",
        type=_INT,
        default="300000",
        minimum=1,
        hidden=True,
        doc="How old a share-partition's snapshot becomes before a new one takes in the updates after it.",
    ),
    ConfigDef(
        name="errors.deadletterqueue.auto.create.topics.enable",
        type=_BOOLEAN,
        default="false",
        dynamic=True,
        doc="Whether the first dead letter of a share group creates its topic.",
    ),
    ConfigDef(
        name="errors.deadletterqueue.topic.name.prefix",
        type=_STRING,
        default="dlq.",
        dynamic=True,
        doc="Prefix of the names of topics that are created for dead letters.",
    ),
    *CONSUMER_GROUP_CONFIGS,
    *CLEANER_CONFIGS,
    *BROKER_COMPRESSION,
    *LISTENER_CONFIGS,
    *SASL_CONFIGS,
    *OAUTH_CONFIGS,
    *AUTHORIZER_CONFIGS,
    *QUOTA_CONFIGS,
    *CLUSTER_CONFIGS,
    *OWN_CONFIGS,
)

_CLOSE: Final = 0.8
"""How alike a name must be to one that it may have meant (difflib). Less alike ones are seldom
meant."""


class GivenSetting(NamedTuple):
    """`where`: the place to correct, such as a file and its line. `fault`: why it is refused
    whatever it says; the name may be empty then."""

    where: str
    name: str
    value: str
    fault: str = ""


class SettingsRefused(OperatorError):
    """`lines`: one for each setting that is refused, in the order given, and one that counts
    them if there are several."""

    def __init__(self, refusals: Sequence[str]) -> None:
        more = [f"{len(refusals)} settings are refused"] if len(refusals) > 1 else []
        self.lines: Final = (*refusals, *more)
        super().__init__("; ".join(self.lines))


class BrokerConfig:
    """The broker's effective settings, typed as the table says: int, float, bool, str, a tuple for
    a list, or None if unset.

    `config[name]` is one dictionary lookup; the value may change while the broker runs only where
    the table says dynamic.
    """

    def __init__(self, static: Mapping[str, str]) -> None:
        """Raises ValueError for a value out of bounds or values that contradict each other,
        KeyError for an unknown name."""
        self.static: Final = with_both_ids(static)
        self.dynamic: Mapping[str, str] = {}
        self.dynamic_default: Mapping[str, str] = {}
        self._values = self._effective({}, {})

    @classmethod
    def load(cls, lines: Iterable[str] = (), overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """From the lines of a configuration file and the command line's settings, which win. Raises
        OperatorError."""
        given = (GivenSetting("--config", name, value) for name, value in (overrides or {}).items())
        return cls.of([*file_settings("\n".join(lines)), *given])

    @classmethod
    def of(cls, settings: Iterable[GivenSetting], also: Collection[str] = ()) -> BrokerConfig:
        """Of two settings with the same name the later one wins. `also`: other names that a wrong
        one may have meant.

        Raises SettingsRefused for all that are wrong in themselves; otherwise OperatorError for a
        contradiction. Both say where a wrong value stands.
        """
        static: dict[str, str] = {}
        places: dict[str, str] = {}
        refusals = []
        for setting in settings:
            if why := setting.fault or _fault(setting, also):
                refusals.append(f"{setting.where}: {why}")
            static[setting.name], places[setting.name] = setting.value, setting.where
        if refusals:
            raise SettingsRefused(refusals)
        try:
            return cls(static)
        except ValueError as error:
            words = str(error).split()
            given = ", ".join(f"{name} by {where}" for name, where in places.items() if name in words)
            raise OperatorError(
                f"the configuration contradicts itself: {error}{given and f'; set: {given}'}"
            ) from None

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the table knows the type, and callers annotate what they take
        return self._values[name]

    def is_node(self, node_id: int) -> None:
        """The id that the data directory has applies as if the start had given it."""
        for name in ("node.id", "broker.id"):
            self.static[name], self._values[name] = str(node_id), node_id

    def forget(self, secret: str) -> None:
        """Drop the values of a secret, also those of single listeners, after their use."""
        for name in [name for name in self.static if name == secret or name.endswith(f".{secret}")]:
            self.static[name] = self._values[name] = ""

    def of_listener(self, listener: str, name: str, mechanism: str = "") -> Any:  # noqa: ANN401 - likewise
        """The value on the listener of that name: its own, or `config[name]`."""
        return value_for(self._values, listener, name, mechanism)

    def check_dynamic(self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> None:
        """Raises ValueError where these altered settings, together with the static ones, would not
        be valid."""
        self._effective(dynamic_default, dynamic)

    def set_dynamic(self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> None:
        """Replace the altered values, for all brokers and for this one. On ValueError nothing has
        changed."""
        self._values = self._effective(dynamic_default, dynamic)
        self.dynamic_default, self.dynamic = dict(dynamic_default), dict(dynamic)

    def layers(self) -> tuple[tuple[Source, Mapping[str, str]], ...]:
        """Where values were set, strongest first; the table's defaults come after."""
        return (
            (Source.DYNAMIC_BROKER, self.dynamic),
            (Source.DYNAMIC_DEFAULT_BROKER, self.dynamic_default),
            (Source.STATIC_BROKER, self.static),
        )

    def first_set(self, synonyms: Iterable[tuple[str, int]]) -> Value:
        """The value of the first of these settings that is set or has a default, in the unit that
        the factor gives."""
        for name, factor in synonyms:
            value = self._values[name]
            if value is not None:
                return max(-1, value * factor) if isinstance(value, int) and factor != 1 else value
        raise AssertionError("the last synonym has a default")

    def set_dynamic_where_it_fits(
        self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]
    ) -> list[str]:
        """As set_dynamic, for settings of an earlier life, which may not fit the static ones of
        this life.

        Those that do not fit are left out, and no other: a retention time must not fall back to a
        shorter one because of a bound. Gives a line for each that is left out."""
        layers = [dict(dynamic_default), dict(dynamic)]
        left_out = []
        for layer in layers:
            for name, text in list(layer.items()):
                try:
                    BROKER_CONFIGS[name].parse(text)
                except KeyError:
                    left_out.append(f"{name}={layer.pop(name)}: there is no such setting any more")
                except ValueError as error:
                    del layer[name]
                    left_out.append(f"{name}={text}: {error}")
        while (contradiction := next(contradictions(self._merged(*layers)), None)) is not None:
            found = [(layer, name) for layer in layers for name in contradiction.names if name in layer]
            left_out += [f"{name}={layer.pop(name)}: {contradiction.message}" for layer, name in found]
        self.set_dynamic(*layers)
        return left_out

    def _effective(self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> dict[str, Any]:
        values = self._merged(dynamic_default, dynamic)
        for contradiction in contradictions(values):
            raise ValueError(contradiction.message)
        return values

    def _merged(self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {name: each.default_value() for name, each in BROKER_CONFIGS.items()}
        for layer in (self.static, dynamic_default, dynamic):
            values.update({name: _definition(name).parse(text) for name, text in layer.items()})
        return values


def file_settings(text: str, file: str = "configuration file") -> Iterator[GivenSetting]:
    """Every setting of a file's text (settings/properties.py), without blanks around values.
    `file`: what to call it in errors."""
    for line, name, value, fault in properties(text):
        yield GivenSetting(f"{file}, line {line}", name, value.strip(), fault)


def _definition(name: str) -> ConfigDef:
    """Raises KeyError for an unknown name."""
    found = parse_name(name, BROKER_CONFIGS)
    return BROKER_CONFIGS[name] if found is None else found.definition


def _fault(setting: GivenSetting, also: Collection[str]) -> str | None:
    """Why a setting is refused, and what to do about it; None if it is not."""
    name = setting.name
    if name not in BROKER_CONFIGS and parse_name(name, BROKER_CONFIGS) is None:
        if advice := instead(name):
            return f"{name}: {advice}"
        import difflib

        close = difflib.get_close_matches(name, [*BROKER_CONFIGS, *also], cutoff=_CLOSE)
        hint = f"did you mean {' or '.join(close)}?" if close else "`kbroker docs settings` lists all"
        return f"unknown setting {name!r}; {hint}"
    try:
        _definition(name).parse(setting.value)
    except ValueError as error:
        return str(error)
    return None
