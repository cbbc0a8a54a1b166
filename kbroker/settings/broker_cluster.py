"""Settings of Kafka about the nodes of a cluster: the broker's id, and those with one value here.

The others of a cluster are refused (settings/broker_unserved.py). A setting is taken with one value
only where that value promises what this broker keeps: a file that asks for one replica, or says
that this node is broker and controller, is right. Any other value would promise copies or parts
that do not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.settings.definition import ConfigDef, ConfigType

_ONE_COPY: Final = "one broker holds the only copy"
_IDS: Final = ("node.id", "broker.id")


def _fixed(name: str, kind: ConfigType, value: str, doc: str, reason: str = _ONE_COPY) -> ConfigDef:
    return ConfigDef(name=name, type=kind, default=value, only=(value,), reason=reason, doc=doc)


CLUSTER_CONFIGS: Final = (
    ConfigDef(
        name="node.id",
        type=ConfigType.INT,
        default="1",
        minimum=0,
        doc="The broker's id in all answers. The data directory keeps that of its first start; another one "
        "is refused later.",
    ),
    ConfigDef(
        name="broker.id",
        type=ConfigType.INT,
        default=None,
        minimum=0,
        doc="Another name of node.id. If both are set, they are equal.",
    ),
    ConfigDef(
        name="process.roles",
        type=ConfigType.LIST,
        default="broker,controller",
        only=("broker,controller", "controller,broker"),
        reason="one broker is the whole cluster",
        doc="What this node does.",
    ),
    _fixed("min.insync.replicas", ConfigType.INT, "1", "Replicas that acks=all waits for."),
    _fixed(
        "unclean.leader.election.enable", ConfigType.BOOLEAN, "false", "Whether a replica that lags may lead."
    ),
    *(
        _fixed(f"{of}.{name}", kind, "1", doc)
        for of, kind, name, doc in (
            ("offsets.topic", ConfigType.SHORT, "replication.factor", "Copies of committed offsets."),
            ("transaction.state.log", ConfigType.SHORT, "replication.factor", "Copies of transactions."),
            ("transaction.state.log", ConfigType.INT, "min.isr", "Copies of a transaction to wait for."),
            (
                "share.coordinator.state.topic",
                ConfigType.SHORT,
                "replication.factor",
                "Copies of share state.",
            ),
            (
                "share.coordinator.state.topic",
                ConfigType.SHORT,
                "min.isr",
                "Copies of share state to wait for.",
            ),
        )
    ),
    _fixed(
        "log.cleaner.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether logs are compacted.",
        "log.cleanup.policy and cleanup.policy decide",
    ),
    _fixed(
        "remote.log.storage.system.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether there is remote storage.",
        "there is no remote storage",
    ),
)


def with_both_ids(static: Mapping[str, str]) -> dict[str, str]:
    """`node.id` and `broker.id` are two names of one setting, as in Kafka: the one that is set is
    the value of both."""
    given = {name: static[name] for name in _IDS if name in static}
    return {**static, **(dict.fromkeys(_IDS, *given.values()) if len(given) == 1 else {})}
