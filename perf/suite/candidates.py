"""The candidates of the suite: kbroker on each engine with both durabilities, and Apache Kafka
without and with a sync for each batch.

Both Kafka candidates share one process, since only a topic config differs (flush.messages=1): one
JVM to warm up and to keep in memory. Each other candidate is a separate broker. All run during the
whole suite, and one of them works.

Durability `os` (a response may precede the sync) is compared with Kafka's default, which never
syncs. `disk` (synced before the response) is compared with Kafka's flush.messages=1, although its
share state is not synced. Both sync for any acks, so there are no rows with acks=1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from kbroker.client import admin
from kbroker.client.rpc import Connection
from perf.measuring.measured_broker import measured_broker
from perf.suite import kafka_broker
from perf.suite.results import CandidateFacts
from perf.suite.tls import TlsListener, new_tls_listener


@dataclass(frozen=True)
class Kind:
    key: str
    title: str
    family: str
    engine: str
    durability: str


KINDS: Mapping[str, Kind] = {
    kind.key: kind
    for kind in (
        Kind("segment-os", "segment, os", "kbroker", "segment", "os"),
        Kind("segment-disk", "segment, disk", "kbroker", "segment", "disk"),
        Kind("lmdb-os", "LMDB, os", "kbroker", "lmdb", "os"),
        Kind("lmdb-disk", "LMDB, disk", "kbroker", "lmdb", "disk"),
        Kind("rocksdb-os", "RocksDB, os", "kbroker", "rocksdb", "os"),
        Kind("rocksdb-disk", "RocksDB, disk", "kbroker", "rocksdb", "disk"),
        Kind("kafka", "Apache Kafka", "kafka", "kafka", "os"),
        Kind("kafka-sync", "Apache Kafka, flush.messages=1", "kafka", "kafka", "disk"),
    )
}
ALL = frozenset(KINDS)
MAIN = ALL - {"lmdb-os", "rocksdb-os"}
"""The candidates of all rows. For LMDB and RocksDB with `os`, a few rows are enough to show the
cost of their syncs."""
NOT_SYNCED_TWICE = ALL - {"kafka-sync"}
READING = MAIN - {"kafka-sync"}
"""For rows that read and acknowledge. flush.messages has no effect there, since Kafka never syncs
its share state."""
SEGMENT = frozenset(("segment-os", "segment-disk"))
"""Together with `kafka` for rows that depend on the broker more than on its engine. Other engines
would cost time and show nothing new."""
_SYNC_EACH_BATCH = {"flush.messages": "1"}
_LARGE_GROUPS = {"group.share.max.size": "1000"}
"""The default of all brokers is 200 members; one row has 500."""


class Broker(Protocol):
    """A broker's process, which can be started again after a kill."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def is_running(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class Candidate:
    """A broker, and the data for its use.

    `filled`: topics that rows have filled and keep. `idle_mb`: its anonymous memory after the
    start, before any work. `tls`: its second listener, in a suite that has one.
    """

    kind: Kind
    broker: Broker
    topic_config: Mapping[str, str] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)
    idle_mb: float = 0.0
    tls: TlsListener | None = None

    @property
    def key(self) -> str:
        return self.kind.key

    @property
    def title(self) -> str:
        return self.kind.title

    @property
    def family(self) -> str:
        return self.kind.family

    @property
    def engine(self) -> str:
        return self.kind.engine

    @property
    def durability(self) -> str:
        return self.kind.durability

    @property
    def version(self) -> str:
        return version_of(self.kind)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    @property
    def pid(self) -> int:
        return self.broker.pid

    @property
    def is_running(self) -> bool:
        return self.broker.is_running

    def prepare(self) -> None:
        """Prepares the first start, outside its measurement: Kafka formats its directory."""
        if isinstance(self.broker, kafka_broker.KafkaBroker):
            self.broker.prepare()

    def start(self) -> None:
        """Starts the broker unless it runs. Returns when connections are accepted. Raises
        BrokerStartFailed or KafkaFailed."""
        if not self.is_running:
            self.broker.start()

    def stop(self) -> None:
        """Sends SIGTERM and waits."""
        self.broker.stop()

    def kill(self) -> None:
        """Sends SIGKILL. No error if the broker has already ended."""
        self.broker.kill()

    def connect(self) -> Connection:
        """For administration. Raises BrokerUnreachable."""
        host, _, port = self.bootstrap.rpartition(":")
        return Connection(host, int(port), client_id="perf")

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic with the candidate's topic configs, which `config` overrides. Raises
        KafkaError."""
        with self.connect() as connection:
            admin.create_topic(
                connection, name, partitions=partitions, config={**self.topic_config, **(config or {})}
            )

    def delete_topic(self, name: str) -> None:
        """Raises KafkaError."""
        with self.connect() as connection:
            admin.delete_topic(connection, name)

    def set_group_config(self, group_id: str, config: Mapping[str, str]) -> None:
        """Sets configs of a share group, which need not exist yet. Raises KafkaError."""
        with self.connect() as connection:
            admin.alter_configs(connection, admin.ResourceType.GROUP, group_id, set_configs=config)

    def another(self, home: Path, config: Mapping[str, str] | None = None) -> Candidate:
        """A broker of the same kind on an empty directory, not started; `config` adds to its broker
        configs."""
        return _candidate(self.kind, _broker(self.kind, home, config))


def make_candidates(keys: Sequence[str], home: Path, *, with_tls: bool = False) -> list[Candidate]:
    """The candidates in the order of `keys`, not started. Unavailable ones (`why_missing`) are left
    out."""
    brokers: dict[str, Broker] = {}
    listeners: dict[str, TlsListener] = {}
    filled: dict[str, set[str]] = {}
    candidates = []
    for key in keys:
        kind = KINDS[key]
        if why_missing(kind) is not None:
            continue
        process = kind.family if kind.family == "kafka" else kind.key
        if process not in brokers:
            if with_tls:
                listeners[process] = new_tls_listener(home / f"{process}-certificates")
            brokers[process] = _broker(kind, home / process, None, listeners.get(process))
        candidate = _candidate(kind, brokers[process])
        candidate.tls = listeners.get(process)
        candidate.filled = filled.setdefault(process, candidate.filled)
        candidates.append(candidate)
    return candidates


def why_missing(kind: Kind) -> str | None:
    """Why candidates of this kind are not available, in one line, or None."""
    return kafka_broker.why_missing() if kind.family == "kafka" else None


def version_of(kind: Kind) -> str:
    """The version; empty if it is not available."""
    if kind.family == "kbroker":
        return version("kbroker")
    from tests.differential import apache_kafka

    return "" if why_missing(kind) else apache_kafka.version()


def facts(kind: Kind, missing: str | None) -> CandidateFacts:
    return CandidateFacts(
        kind.key, kind.title, kind.family, kind.engine, kind.durability, version_of(kind), missing
    )


def _candidate(kind: Kind, broker: Broker) -> Candidate:
    return Candidate(kind, broker, _SYNC_EACH_BATCH if kind.key == "kafka-sync" else {})


def _broker(
    kind: Kind, home: Path, config: Mapping[str, str] | None, tls: TlsListener | None = None
) -> Broker:
    config = {**_LARGE_GROUPS, **(config or {})}
    if kind.family == "kafka":
        return kafka_broker.KafkaBroker(home, config, tls)
    broker = measured_broker(home, kind.engine, kind.durability)
    broker.config.update(config)
    if tls is not None:
        broker.config.update(tls.broker_config(broker.port))
    return broker
