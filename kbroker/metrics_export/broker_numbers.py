"""Numbers of the broker as a whole, its topics, stores and coordinators, read from the counters of
these parts.

Each function runs in one step of the loop, so that its numbers belong to one moment; only the loop
over topics, which may be many, pauses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import kbroker
from kbroker.api import APIS
from kbroker.api.transactions import STATE_NAMES
from kbroker.broker.broker import Broker
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.topics import Topic
from kbroker.errors import ErrorCode
from kbroker.metrics import TopicMetrics
from kbroker.metrics_export.scrape import Labels, Scrape
from kbroker.security.acls import SUPPORTED
from kbroker.security.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE

_THROTTLING = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)


async def add_broker(scrape: Scrape, broker: Broker) -> None:
    _add_whole(scrape, broker)
    _add_requests(scrape, broker)
    _add_connections(scrape, broker)
    _add_log_ins(scrape, broker)
    _add_quotas(scrape, broker)
    await scrape.pace.rest()
    await _add_topics(scrape, broker)
    _add_commits(scrape, "log", broker.log_commits)
    _add_commits(scrape, "state", broker.state_commits)
    _add_engines(scrape, broker)
    _add_groups(scrape, broker)
    _add_transactions(scrape, broker)
    _add_compaction(scrape, broker)
    _add_share_state(scrape, broker)
    _add_share_sessions(scrape, broker)
    _add_opened_batches(scrape, broker)


def _add_whole(scrape: Scrape, broker: Broker) -> None:
    options = broker.options
    engines = {"log_engine": options.storage, "state_engine": options.state_storage}
    scrape.add(
        "kbroker_info", 1, {"version": kbroker.__version__, **engines, "durability": options.durability}
    )
    topics, configs = broker.topics.statistics(), broker.configs.statistics()
    scrape.add("kbroker_topics", topics.topics)
    scrape.add("kbroker_partitions", topics.partitions)
    scrape.add("kbroker_topics_half_deleted", topics.unfinished_deletions)
    creation = broker.missing_topics.statistics().creation
    scrape.add("kbroker_auto_creations_prevented_total", creation.prevented)
    disk = broker.disk_floor.statistics()
    scrape.add("kbroker_disk_short", int(disk.is_short))
    scrape.add("kbroker_disk_floor_bytes", disk.floor_bytes)
    scrape.add("kbroker_disk_shortages_total", disk.shortages)
    scrape.add("kbroker_disk_refused_total", disk.refused)
    scrape.add("kbroker_deadlines", broker.deadlines.statistics().scheduled)
    scrape.add("kbroker_altered_settings", configs.broker_settings)
    scrape.add("kbroker_groups_with_settings", configs.groups)
    scrape.add("kbroker_producer_ids", broker.producer_ids.statistics().next_id)


def _add_requests(scrape: Scrape, broker: Broker) -> None:
    """Only APIs that clients have used: the others would be thirty empty histograms."""
    for api_key, counted in broker.metrics.requests.items():
        if not any(counted.by_version):
            continue
        name = api_name(api_key)
        labels = {"request": name}
        for version, count in enumerate(counted.by_version):
            if count:
                scrape.add("kbroker_requests_total", count, {"request": name, "version": str(version)})
        for code, count in counted.errors.items():
            scrape.add(
                "kbroker_request_errors_total",
                count,
                {"request": name, "error": ErrorCode(code).name.upper()},
            )
        scrape.add("kbroker_request_bytes_total", counted.request_bytes, labels)
        scrape.add("kbroker_response_bytes_total", counted.response_bytes, labels)
        scrape.add_histogram("kbroker_request_seconds", counted.seconds, labels)


def api_name(api_key: int) -> str:
    """`ShareFetch`."""
    return APIS[api_key].module.title().replace("_", "")


def _add_connections(scrape: Scrape, broker: Broker) -> None:
    metrics = broker.metrics
    for name, waits in (("Fetch", metrics.fetch), ("ShareFetch", metrics.share_fetch)):
        scrape.add("kbroker_requests_waiting", waits.waiting, {"request": name})
        scrape.add("kbroker_requests_expired_total", waits.expired, {"request": name})
    scrape.add("kbroker_connections", metrics.connections)
    scrape.add("kbroker_connections_accepted_total", metrics.accepted)
    scrape.add("kbroker_connections_refused_total", metrics.refused)
    scrape.add("kbroker_acls", broker.acls.statistics().acls)
    if broker.config["authorizer.class.name"]:
        for kind, operations in SUPPORTED.items():
            for operation in operations:
                labels = {"operation": operation.name, "resource": kind.name}
                count = broker.acls.denied.get((operation, kind), 0)
                scrape.add("kbroker_denied_operations_total", count, labels)
    scrape.add("kbroker_received_bytes_total", metrics.received_bytes)
    scrape.add("kbroker_sent_bytes_total", metrics.sent_bytes)
    sessions = broker.fetch_sessions.statistics()
    scrape.add("kbroker_fetch_sessions", sessions.sessions)
    scrape.add("kbroker_fetch_session_partitions", sessions.partitions)
    scrape.add("kbroker_fetch_session_evictions_total", sessions.evictions)


def _add_log_ins(scrape: Scrape, broker: Broker) -> None:
    counted, security = broker.metrics.sasl, broker.security.statistics()
    for outcome, by_mechanism in (
        ("success", counted.successes),
        ("renewal", counted.renewals),
        ("failure", counted.failures),
    ):
        for mechanism, count in by_mechanism.items():
            scrape.add("kbroker_authentications_total", count, {"mechanism": mechanism, "outcome": outcome})
    scrape.add("kbroker_expired_sessions_total", counted.expired)
    scrape.add("kbroker_authenticated_connections", security.sessions.sessions)
    scrape.add("kbroker_users", security.credentials.users)
    scrape.add("kbroker_password_checks", security.derivations.waiting)
    scrape.add("kbroker_password_checks_refused_total", security.derivations.refused)


def _add_quotas(scrape: Scrape, broker: Broker) -> None:
    counted, quotas = broker.metrics.quotas, broker.quotas.statistics()
    scrape.add("kbroker_quotas", quotas.entities)
    scrape.add("kbroker_quota_rates", quotas.rates)
    for key in _THROTTLING:
        scrape.add("kbroker_throttled_requests_total", counted.requests.get(key, 0), {"quota": key})
        scrape.add("kbroker_throttle_seconds_total", counted.wait_ms.get(key, 0) / 1000, {"quota": key})
    scrape.add("kbroker_muted_connections", counted.muted)
    scrape.add("kbroker_connections_throttled_total", counted.refused)


async def _add_topics(scrape: Scrape, broker: Broker) -> None:
    for topic in broker.topics:
        labels = {"topic": topic.name}
        _add_topic(scrape, topic.metrics, labels)
        open_transactions = _open_transactions(topic)
        if open_transactions is not None:
            scrape.add("kbroker_topic_open_transactions", open_transactions, labels)
        for partition in topic.partitions:
            place = {"topic": topic.name, "partition": str(partition.log.partition)}
            scrape.add("kbroker_log_start_offset", partition.log_start_offset, place)
            scrape.add("kbroker_log_end_offset", partition.high_watermark, place)
            await scrape.pace.rest()


def _open_transactions(topic: Topic) -> int | None:
    """None if no log of the topic has had a transaction. Reads no log."""
    if not any(each.has_transactions for each in topic.partitions):
        return None
    return sum(each.producers.statistics().open for each in topic.partitions if each.producers is not None)


def _add_topic(scrape: Scrape, counted: TopicMetrics, labels: Labels) -> None:
    scrape.add("kbroker_topic_records_in_total", counted.records_in, labels)
    scrape.add("kbroker_topic_bytes_in_total", counted.bytes_in, labels)
    scrape.add("kbroker_topic_bytes_out_total", counted.bytes_out, labels)
    scrape.add("kbroker_topic_bytes_rejected_total", counted.bytes_rejected, labels)
    for name, requests, failed in (
        ("Produce", counted.produce_requests, counted.failed_produce_requests),
        ("Fetch", counted.fetch_requests, counted.failed_fetch_requests),
        ("ShareFetch", counted.share_fetch_requests, counted.failed_share_fetch_requests),
        ("ShareAcknowledge", counted.share_acknowledge_requests, counted.failed_share_acknowledge_requests),
    ):
        scrape.add("kbroker_topic_requests_total", requests, {**labels, "request": name})
        scrape.add("kbroker_topic_failed_requests_total", failed, {**labels, "request": name})


def _add_commits(scrape: Scrape, store: str, commits: GroupCommit[Any]) -> None:
    labels, counted = {"store": store}, commits.statistics()
    scrape.add("kbroker_commit_groups_total", counted.groups, labels)
    scrape.add("kbroker_commit_entries_total", counted.entries, labels)
    scrape.add("kbroker_commit_refused_total", counted.refused, labels)
    scrape.add("kbroker_commit_pending", counted.pending, labels)
    scrape.add("kbroker_commit_syncs_total", counted.syncs, labels)
    scrape.add_histogram("kbroker_commit_seconds", commits.seconds, labels)
    scrape.add("kbroker_store_failed", commits.failed, labels)


def _add_engines(scrape: Scrape, broker: Broker) -> None:
    options = broker.options
    for store, engine, statistics in (
        ("log", options.storage, broker.log_store.statistics()),
        ("state", options.state_storage, broker.state_store.statistics()),
    ):
        for name, value in _numbers(statistics):
            scrape.add("kbroker_store_statistic", value, {"store": store, "engine": engine, "name": name})


def _numbers(statistics: object) -> Iterator[tuple[str, float]]:
    """The numbers of a dataclass or named tuple and of nested ones; none for other objects."""
    names = (
        [field.name for field in fields(statistics)]
        if is_dataclass(statistics)
        else getattr(statistics, "_fields", ())
    )
    for name in names:
        value = getattr(statistics, name)
        if isinstance(value, (int, float)):
            yield name, value
        else:
            yield from _numbers(value)


def _add_groups(scrape: Scrape, broker: Broker) -> None:
    coordinator = broker.share_group_service.statistics()
    groups = coordinator.groups
    scrape.add("kbroker_groups", groups.groups, {"protocol": "share"})
    scrape.add("kbroker_share_groups", groups.empty_groups, {"state": "Empty"})
    scrape.add("kbroker_share_groups", groups.groups - groups.empty_groups, {"state": "Stable"})
    scrape.add("kbroker_share_group_members", groups.members)
    scrape.add("kbroker_share_group_rebalances_total", groups.rebalances)
    scrape.add("kbroker_share_groups_in_administration", coordinator.in_administration)
    scrape.add("kbroker_share_partitions_initializing", groups.initializing)


def _add_transactions(scrape: Scrape, broker: Broker) -> None:
    service = broker.transactions
    counted = service.statistics()
    for state, ids in counted.by_state.items():
        scrape.add("kbroker_transactional_ids", ids, {"state": STATE_NAMES[state]})
    scrape.add("kbroker_transaction_changes_pending", counted.pending)
    scrape.add("kbroker_transactions_total", counted.committed, {"outcome": "committed"})
    scrape.add("kbroker_transactions_total", counted.aborted, {"outcome": "aborted"})
    scrape.add("kbroker_transactions_timed_out_total", counted.timed_out)
    scrape.add("kbroker_transaction_markers_total", service.ending.markers.written)
    scrape.add_histogram("kbroker_transaction_end_seconds", service.ending.seconds)
    pending = broker.consumer_group_service.groups.offsets.pending
    scrape.add("kbroker_pending_group_offsets", len(pending))


def _add_compaction(scrape: Scrape, broker: Broker) -> None:
    counted = broker.log_cleaner.statistics()
    scrape.add("kbroker_compaction_passes_total", counted.passes)
    scrape.add("kbroker_compaction_read_bytes_total", counted.read_bytes)
    scrape.add("kbroker_compaction_removed_bytes_total", counted.removed_bytes)
    scrape.add("kbroker_compaction_removed_records_total", counted.removed_records)
    scrape.add("kbroker_compaction_dirty_ratio", counted.dirty_ratio)
    scrape.add("kbroker_uncleanable_logs", counted.uncleanable)


def _add_share_state(scrape: Scrape, broker: Broker) -> None:
    state, housekeeping = broker.state_counts.statistics(), broker.state_housekeeping.statistics()
    scrape.add("kbroker_share_state_partitions", state.loaded)
    scrape.add("kbroker_share_state_unsaved", state.unsaved)
    scrape.add("kbroker_share_state_loads_total", state.loads)
    scrape.add("kbroker_share_state_records_total", state.updates, {"type": "update"})
    scrape.add("kbroker_share_state_records_total", state.snapshots, {"type": "snapshot"})
    scrape.add("kbroker_share_state_cold_snapshots_total", state.cold_snapshots)
    scrape.add("kbroker_share_state_housekeeping_rounds_total", housekeeping.rounds)
    scrape.add("kbroker_share_state_housekeeping_failures_total", housekeeping.failures)
    scrape.add_histogram("kbroker_share_state_write_seconds", broker.state_counts.write_seconds)


def _add_share_sessions(scrape: Scrape, broker: Broker) -> None:
    sessions = broker.share_partitions.sessions.statistics()
    scrape.add("kbroker_share_sessions", sessions.sessions)
    scrape.add("kbroker_share_session_partitions", sessions.partitions)
    scrape.add("kbroker_share_session_evictions_total", sessions.evictions)
    scrape.add("kbroker_share_sessions_refused_total", sessions.refused)
    scrape.add("kbroker_share_partitions_loaded", len(broker.share_partitions.loaded()))


def _add_opened_batches(scrape: Scrape, broker: Broker) -> None:
    opened = broker.opened_batches.statistics()
    scrape.add("kbroker_queue_cache_batches", opened.batches)
    scrape.add("kbroker_queue_cache_bytes", opened.size_bytes)
    scrape.add("kbroker_queue_cache_hits_total", opened.hits)
    scrape.add("kbroker_queue_cache_misses_total", opened.misses)
    for reason, count in opened.refused.items():
        scrape.add("kbroker_queue_uncut_batches_total", count, {"reason": reason})
