"""Apache Kafka's broker settings that kbroker does not have: why, and what to do instead.

A file of a Kafka broker has many of them. Each is refused with its line, so that nobody relies on a
setting that does nothing. The table has every name of Kafka 4.4 that kbroker/settings does not
serve, and a few of earlier versions. A name that ends with `*` stands for all names that begin so;
of several entries that fit, the longest name decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kbroker.settings.per_listener import MECHANISMS, PREFIX

REMOVE: Final = "remove it: "
"""How the advice begins where the broker does the same without the setting."""

_TABLE: Final = """
remove it: one broker is the whole cluster
    controller.* auto.leader.rebalance.enable broker.heartbeat.interval.ms broker.rack
    broker.session.timeout.ms control.plane.listener.name controlled.shutdown.*
    early.start.listeners initial.broker.registration.timeout.ms inter.broker.*
    internal.metadata.* leader.imbalance.* metadata.* num.replica.fetchers replica.*
    sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol
    security.inter.broker.protocol unclean.leader.election.*
remove it: replication has no quota, as one broker replicates nothing
    alter.log.dirs.replication.quota.* follower.replication.* leader.replication.*
    replication.quota.*
remove it: there is no ZooKeeper
    zookeeper.*
remove it: there is one data directory
    cordoned.log.dirs log.dir.failure.timeout.ms num.replica.alter.log.dirs.threads
remove it: creating and deleting topics has no quota
    controller.quota.*
remove it: one thread serves all requests
    background.threads num.io.threads num.network.threads
remove it: a start takes the time that it needs
    server.max.startup.time.ms
remove it: engines decide how a start recovers
    num.recovery.threads.per.data.dir
remove it: the operating system sizes the buffers of sockets
    socket.receive.buffer.bytes socket.send.buffer.bytes
remove it: 1024 connections may wait to be accepted
    socket.listen.backlog.size
remove it: the broker opens no connections to other brokers
    request.timeout.ms socket.connection.setup.*
remove it: requests that wait leave nothing to purge
    delete.records.purgatory.* fetch.purgatory.* producer.purgatory.* share.fetch.purgatory.*
remove it: DescribeTopicPartitions answers at most 2000 partitions at a time, Kafka's default
    max.request.partition.size.limit
remove it: there is no remote storage
    follower.fetch.last.tiered.offset.enable log.local.* log.remote.* remote.*
remove it: engines decide how to lay out and index their files
    log.index.* log.preallocate
remove it: background tasks begin with the broker
    log.initial.task.delay.ms
remove it: removed segments are gone at once
    log.segment.delete.delay.ms
remove it: segments roll at log.roll.ms exactly
    log.roll.jitter.*
remove it: engines note by themselves how far a start must read
    log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
remove it: one task compacts, with a buffer of log.cleaner.dedupe.buffer.size
    log.cleaner.io.buffer.* log.cleaner.threads
remove it: the state storage has committed offsets, so there is no topic __consumer_offsets
    offsets.commit.* offsets.load.* offsets.topic.*
remove it: the state storage has transactions, so there is no topic __transaction_state
    transaction.state.log.*
remove it: the state storage has share state, so there is no topic __share_group_state
    share.coordinator.*
remove it: the broker always verifies that a transaction has the partition
    add.partitions.to.txn.* transaction.partition.verification.enable
remove it: transactions of two phases are not served
    transaction.two.phase.commit.enable
remove it: expired producers are forgotten by themselves
    producer.id.expiration.check.interval.ms
remove it: one thread serves all groups, and saves their changes together
    group.coordinator.* group.consumer.assignor.offload.enable
    group.share.assignor.offload.enable
remove it: classic, consumer and share groups are always on
    group.coordinator.rebalance.protocols
remove it: regular expressions are resolved whenever topics come or go
    group.consumer.regex.refresh.interval.ms
remove it: streams groups are not served
    group.streams.*
remove it: the broker writes dead letters itself
    group.share.dlq.manager.class.name
remove it: the limit of a push is 1 MiB, Kafka's default
    telemetry.max.bytes
remove it: delegation tokens are not served
    delegation.token.*
remove it: Kerberos (GSSAPI) is not served
    sasl.kerberos.*
remove it: it is a setting of clients, and the broker logs in nowhere
    sasl.client.* sasl.login.* sasl.oauthbearer.assertion.* sasl.oauthbearer.client.*
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url ssl.endpoint.identification.algorithm
the closest settings are sasl.oauthbearer.expected.audience and sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.allow.unverified.*
remove it: it names a Java class
    alter.config.policy.class.name client.quota.callback.class config.providers*
    create.topic.policy.class.name sasl.oauthbearer.jwt.validator.class
    sasl.server.callback.handler.class security.providers ssl.engine.factory.class
remove it: OpenSSL does TLS
    ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm
remove it: new certificates need not resemble the earlier ones
    ssl.allow.dn.changes ssl.allow.san.changes
remove it: unreleased versions and features are not served
    unstable.*
remove it: Kafka 4 has no such setting either
    auto.include.jmx.reporter broker.id.generation.enable eligible.leader.replicas.enable
    log.message.downconversion.enable log.message.format.version password.encoder.*
    quota.consumer.default quota.producer.default reserved.broker.max.id
the settings of Kafka 4 are log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms
    log.message.timestamp.difference.max.ms
the settings of Kafka 4 are listeners and advertised.listeners
    advertised.host.name advertised.port host.name port
use --data-dir, or a line data-dir=DIR of the file
    log.dir log.dirs
use --durability
    log.flush.interval.messages log.flush.interval.ms log.flush.scheduler.interval.ms
remove it, and its listeners from listeners and advertised.listeners: one broker is the whole cluster
    controller.listener.names
use kbroker.persister
    group.share.persister.class.name
remove it: the state storage removes obsolete state by itself
    share.coordinator.state.topic.prune.interval.ms
the closest setting is queued.max.request.bytes
    queued.max.requests
use a quota of each address: `kbroker quotas set --default-ip --connection-rate N`
    max.connection.creation.rate
the closest setting is ssl.enabled.protocols
    ssl.protocol
the closest setting is ssl.principal.mapping.rules
    principal.builder.class
use --admin: it serves metrics
    kafka.metrics.* metric.reporters metrics.*
"""
"""What to do, and below it the settings that this is about."""


def _read_table() -> dict[str, str]:
    """Name -> what to do."""
    found, advice = {}, ""
    for line in _TABLE.strip().splitlines():
        if not line.startswith(" "):
            advice = line
            continue
        found.update(dict.fromkeys(line.split(), advice))
    return found


_ADVICE: Final = _read_table()


def instead(name: str) -> str | None:
    """What to do about a setting of Kafka that kbroker does not have; None if Kafka has none of
    that name either."""
    for each in _names_of(name):
        entries = (entry for entry in _ADVICE if each == entry or _fits(entry, each))
        if best := max(entries, key=len, default=None):
            return _ADVICE[best]
    return None


def table_names() -> Iterator[str]:
    """The names and prefixes of the table, for tests."""
    yield from _ADVICE


def _fits(entry: str, name: str) -> bool:
    return entry.endswith("*") and name.startswith(entry[:-1])


def _names_of(name: str) -> Iterator[str]:
    """The name, and that of the setting of which one listener has its own value."""
    yield name
    if name.startswith(PREFIX):
        _, _, rest = name.removeprefix(PREFIX).partition(".")
        yield rest
        mechanism = next((each for each in MECHANISMS if rest.startswith(f"{each}.")), "")
        if mechanism:
            yield rest.removeprefix(f"{mechanism}.")
