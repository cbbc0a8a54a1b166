"""Every metric that /metrics gives: name, kind, labels, what Kafka calls it, what it means.
docs/metrics.md is made from this table.

Names are kbroker's, in Prometheus' way (base units, `_total` for what only grows), since JMX names
hold dots, rates per second and milliseconds; Kafka's own name stands beside each. A metric that is
not in this table cannot be added to a scrape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class MetricDef(NamedTuple):
    """`kafka`: the MBean's type and attribute, empty where Kafka has none."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    kafka: str
    meaning: str


class Section(NamedTuple):
    title: str
    metrics: tuple[MetricDef, ...]


def _counter(name: str, labels: str, kafka: str, meaning: str) -> MetricDef:
    return MetricDef(f"kbroker_{name}_total", "counter", tuple(labels.split()), kafka, meaning)


def _gauge(name: str, labels: str, kafka: str, meaning: str) -> MetricDef:
    return MetricDef(f"kbroker_{name}", "gauge", tuple(labels.split()), kafka, meaning)


def _histogram(name: str, labels: str, kafka: str, meaning: str) -> MetricDef:
    return MetricDef(f"kbroker_{name}", "histogram", tuple(labels.split()), kafka, meaning)


_PARTITION = "group topic partition"

BROKER = Section(
    "Broker",
    (
        _gauge(
            "info",
            "version log_engine state_engine durability",
            "app-info version",
            "Always 1; the labels tell what runs.",
        ),
        _gauge("topics", "", "KafkaController GlobalTopicCount", "Topics."),
        _gauge("partitions", "", "ReplicaManager PartitionCount", "Topic partitions."),
        _gauge(
            "topics_half_deleted",
            "",
            "",
            "Topics that are gone for clients while a full disk keeps their files.",
        ),
        _gauge(
            "deadlines",
            "",
            "",
            "Deadlines of locks and waiting requests in the broker's timer, those that came to nothing "
            "included.",
        ),
        _gauge("altered_settings", "", "", "Broker settings that were altered while it ran."),
        _gauge("groups_with_settings", "", "", "Groups with settings of their own."),
        _gauge("producer_ids", "", "", "Producer ids given out so far, in all lives of the data directory."),
    ),
)

REQUESTS = Section(
    "Requests and connections",
    (
        _counter("requests", "request version", "RequestMetrics RequestsPerSec", "Requests by API and version."),
        _counter(
            "request_errors", "request error", "RequestMetrics ErrorsPerSec",
            "Error codes in answers, each row of an answer counted; NONE is not.",
        ),
        _counter("request_bytes", "request", "RequestMetrics RequestBytes", "Bytes of requests, with their "
                                                                            "size fields."),
        _counter("response_bytes", "request", "", "Bytes of answers, with their size fields."),
        _histogram(
            "request_seconds", "request", "RequestMetrics TotalTimeMs",
            "From the moment a whole request was received until its answer is ready to be sent: waiting "
            "for data and commits included.",
        ),
        _gauge(
            "requests_waiting", "request", "DelayedOperationPurgatory NumDelayedOperations", "Fetch and ShareFetch that wait for records.",
        ),
        _counter(
            "requests_expired", "request", "DelayedShareFetchMetrics and DelayedFetchMetrics ExpiresPerSec",
            "Fetch and ShareFetch that waited until MaxWaitMs and got nothing new.",
        ),
        _gauge("connections", "", "socket-server-metrics connection-count", "Connections that are open now."),
        _counter("connections_accepted", "", "socket-server-metrics connection-creation-total", "Connections accepted."),
        _counter("connections_refused", "", "", "Connections closed at once since max.connections were "
                                                "open."),
        _counter("received_bytes", "", "socket-server-metrics incoming-byte-total", "Bytes read from clients."),
        _counter("sent_bytes", "", "socket-server-metrics outgoing-byte-total", "Bytes sent to clients."),
        _gauge("fetch_sessions", "", "FetchSessionCache NumIncrementalFetchSessions", "Incremental fetch "
                                                                                      "sessions of "
                                                                                      "ordinary consumers."),
        _gauge(
            "fetch_session_partitions", "", "FetchSessionCache NumIncrementalFetchPartitionsCached", "Partitions in these sessions.",
        ),
        _counter(
            "fetch_session_evictions", "", "FetchSessionCache IncrementalFetchSessionEvictionsPerSec",
            "Sessions that had to go for newer ones.",
        ),
    ),
)  # fmt: skip

TOPICS = Section(
    "Topics",
    (
        _counter("topic_records_in", "topic", "BrokerTopicMetrics MessagesInPerSec", "Records written, "
                                                                                     "dead letters included."),
        _counter("topic_bytes_in", "topic", "BrokerTopicMetrics BytesInPerSec", "Bytes of record batches "
                                                                                "written."),
        _counter("topic_bytes_out", "topic", "BrokerTopicMetrics BytesOutPerSec", "Bytes of record batches "
                                                                                  "sent to consumers of "
                                                                                  "any kind."),
        _counter(
            "topic_bytes_rejected", "topic", "BrokerTopicMetrics BytesRejectedPerSec",
            "Bytes of record batches refused since they were larger than max.message.bytes.",
        ),
        _counter(
            "topic_requests", "topic request",
            "BrokerTopicMetrics TotalProduceRequestsPerSec, TotalFetchRequestsPerSec, "
            "TotalShareFetchRequestsPerSec, "
            "TotalShareAcknowledgementRequestsPerSec",
            "`request` Produce and Fetch: once for each partition that a request names. ShareFetch and "
            "ShareAcknowledge: once for a "
            "request; acknowledgements inside a ShareFetch count as ShareAcknowledge.",
        ),
        _counter(
            "topic_failed_requests", "topic request",
            "BrokerTopicMetrics FailedProduceRequestsPerSec, FailedFetchRequestsPerSec, "
            "FailedShareFetchRequestsPerSec, "
            "FailedShareAcknowledgementRequestsPerSec",
            "Those of them that were answered with an error for this topic.",
        ),
        _gauge("log_start_offset", "topic partition", "Log LogStartOffset", "First offset that can be read."),
        _gauge("log_end_offset", "topic partition", "Log LogEndOffset", "High watermark: the next offset "
                                                                        "that readers will see."),
    ),
)  # fmt: skip

STORES = Section(
    "Stores and commits",
    (
        _counter("commit_groups", "store", "", "Groups of writes that were committed together; `store` is "
                                               "`log` or `state`."),
        _counter("commit_entries", "store", "", "Writes in these groups."),
        _counter("commit_refused", "store", "", "Writes refused: the disk is full, or the store has failed."),
        _gauge("commit_pending", "store", "", "Writes that wait for their group."),
        _counter("commit_syncs", "store", "LogFlushStats LogFlushRateAndTimeMs (rate)", "Syncs to the disk."),
        _histogram(
            "commit_seconds", "store", "LogFlushStats LogFlushRateAndTimeMs (time)",
            "Time for a group: writing, and syncing unless durability is `os`.",
        ),
        _gauge("store_failed", "store", "", "1 when the store takes no more writes until the broker is "
                                            "started again."),
        _gauge(
            "store_statistic", "store engine name", "",
            "What the engine says of itself; every engine has names of its own (`file_bytes`, `segments`, "
            "`rewrites` ...).",
        ),
    ),
)  # fmt: skip

CONSUMER_GROUPS = Section(
    "Consumer groups and committed offsets",
    (
        _gauge(
            "groups", "protocol", "group-coordinator-metrics group-count",
            "Groups by their protocol: `classic` (those that have offsets alone included), `consumer` "
            "(KIP-848) or `share`.",
        ),
        _gauge(
            "classic_groups", "state",
            "GroupMetadataManager NumGroupsEmpty, NumGroupsPreparingRebalance, "
            "NumGroupsCompletingRebalance, NumGroupsStable",
            "Groups of the classic protocol by state.",
        ),
        _gauge("classic_group_members", "", "", "Members of all these groups."),
        _gauge("classic_group_pending_members", "", "", "Member ids that were given out and not used to "
                                                        "join yet."),
        _counter(
            "classic_group_rebalances", "", "group-coordinator-metrics group-completed-rebalance-count",
            "Generations of these groups that became stable.",
        ),
        _gauge(
            "consumer_groups", "state", "group-coordinator-metrics consumer-group-count",
            "Groups of the consumer protocol (KIP-848) by state.",
        ),
        _gauge("consumer_group_members", "protocol", "", "Members of all these groups, by the protocol "
                                                         "that they speak themselves."),
        _counter(
            "consumer_group_rebalances", "", "group-coordinator-metrics consumer-group-rebalance-count",
            "New group epochs of these groups.",
        ),
        _gauge("group_requests_waiting", "", "", "JoinGroup and SyncGroup that wait for other members."),
        _gauge("committed_offsets", "", "GroupMetadataManager NumOffsets", "Offsets that groups have "
                                                                           "committed, one for each "
                                                                           "partition."),
        _counter(
            "offset_commits", "", "group-coordinator-metrics offset-commit-count",
            "Offsets committed, each partition of a request counted.",
        ),
        _counter(
            "offset_expirations", "", "group-coordinator-metrics offset-expiration-count",
            "Offsets forgotten after offsets.retention.minutes.",
        ),
        _counter(
            "offset_deletions", "", "group-coordinator-metrics offset-deletion-count",
            "Offsets deleted, alone or with their group or topic.",
        ),
        _gauge(
            "group_committed_offset", _PARTITION, "",
            "The next record that the group would read; not there where it has committed nothing.",
        ),
        _gauge(
            "group_lag", _PARTITION, "",
            "Records behind that: the log's end less the committed offset. What a consumer has read and "
            "not committed is in it.",
        ),
    ),
)  # fmt: skip

SHARE_COORDINATORS = Section(
    "Coordinators of share groups and share state",
    (
        _gauge("share_groups", "state", "group-coordinator-metrics share-group-count", "Share groups by state."),
        _gauge("share_group_members", "", "", "Members of all share groups."),
        _counter(
            "share_group_rebalances", "", "group-coordinator-metrics share-group-rebalance-count",
            "New target assignments of share groups.",
        ),
        _gauge("share_groups_in_administration", "", "", "Share groups that are being deleted, or whose "
                                                         "offsets are altered or deleted."),
        _gauge("share_partitions_initializing", "", "", "Share-partitions that the persister is to "
                                                        "initialise and has not answered for."),
        _gauge(
            "share_state_partitions", "", "share-coordinator-metrics num-partitions",
            "Share-partitions whose saved state is in the share coordinator's memory. Kafka counts "
            "partitions of `__share_group_state`.",
        ),
        _gauge("share_state_unsaved", "", "", "Changes of share state that are on their way to the disk."),
        _counter("share_state_loads", "", "", "Share-partitions whose state was read from the store."),
        _counter(
            "share_state_records", "type", "share-coordinator-metrics write-total",
            "Records of share state: `type` is `update` or `snapshot`.",
        ),
        _counter(
            "share_state_cold_snapshots", "", "",
            "Snapshots of share-partitions that nobody had written to for a while; also in the above.",
        ),
        _counter("share_state_housekeeping_rounds", "", "", "Searches for share-partitions that need such "
                                                            "a snapshot."),
        _counter(
            "share_state_housekeeping_failures", "", "", "Such snapshots that were not saved, and searches "
                                                         "cut off; both are tried again.",
        ),
        _histogram(
            "share_state_write_seconds", "", "share-coordinator-metrics write-latency-avg, -max",
            "Time to save new share state; not with a persister from a plugin.",
        ),
        _gauge("share_sessions", "", "ShareSessionCache ShareSessionsCount", "Share sessions."),
        _gauge("share_session_partitions", "", "ShareSessionCache SharePartitionsCount", "Partitions in these sessions."),
        _counter(
            "share_session_evictions", "", "ShareSessionCache ShareSessionEvictionsPerSec",
            "Share sessions that ended because their connection did.",
        ),
        _counter("share_sessions_refused", "", "", "Share sessions refused: group.share.max.share.sessions "
                                                   "were there."),
        _gauge("share_partitions_loaded", "", "", "Share-partitions in the broker's memory, those that are "
                                                  "just being loaded included."),
    ),
)  # fmt: skip

SHARE_GROUPS = Section(
    "Share groups",
    (
        _counter(
            "share_group_acknowledged_records", "group type", "ShareGroupMetrics "
                                                              "RecordAcknowledgementsPerSec",
            "Records acknowledged by `type`: accept, release, reject, renew or gap, as clients' lists "
            "said. Kafka does not tell by group.",
        ),
        _histogram(
            "share_group_load_seconds", "group", "ShareGroupMetrics PartitionLoadTimeMs",
            "Time to load a share-partition; Kafka does not tell by group.",
        ),
        _histogram(
            "share_group_fetch_percent", "group", "ShareGroupMetrics RequestTopicPartitionsFetchRatio",
            "Of the partitions that a ShareFetch was for: how many had something to deliver, per cent.",
        ),
        _histogram(
            "share_group_acquired_records", "group", "SharePartitionMetrics InFlightBatchMessageCount",
            "Records that were handed out together, one batch of an answer each. Kafka tells by partition.",
        ),
        _counter(
            "share_group_removed_records", "group", "",
            "Records that retention or DeleteRecords removed before the group was done with them: "
            "lost for it, without a dead letter.",
        ),
        _gauge(
            "share_group_held_log_bytes", "group", "",
            "Bytes of logs with `kbroker.queue.retention` that would go if this group alone had finished "
            "its records, "
            "at the last look of retention.",
        ),
        _counter("kept_records", "", "", "Records that were kept beside a log with "
                                         "`kbroker.queue.retention`, so that it could go."),
        _counter(
            "share_group_dead_letters", "group", "ShareGroupMetrics DeadLetterQueueRecordCount",
            "Records written to the dead letter topic.",
        ),
        _counter(
            "share_group_dead_letter_writes", "group", "ShareGroupMetrics "
                                                       "DeadLetterQueueTotalProduceRequestsPerSec",
            "Batches of dead letters that were appended, or tried.",
        ),
        _counter(
            "share_group_dead_letter_failures", "group", "ShareGroupMetrics "
                                                         "DeadLetterQueueFailedProduceRequestsPerSec",
            "Those of them that the disk refused; they are tried again without end.",
        ),
        _counter(
            "share_group_dead_letters_refused", "group", "",
            "Records archived without a dead letter, since something is wrong with the settings; the log "
            "says what.",
        ),
        _counter(
            "share_group_dead_letters_without_copy", "group", "",
            "Dead letters without the copy of key and value that they should have: the record could not be "
            "read or was too large.",
        ),
        _counter(
            "share_group_odd_schedules", "group reason", "",
            "Records whose headers kbroker-deliver-at and kbroker-delay-ms cannot be followed, by "
            "`reason`: `malformed` (delivered at "
            "once), `too_far` (delivered when kbroker.queue.scheduling.max.delay.ms allows). A restart "
            "counts those that still wait again.",
        ),
        _gauge("queue_cache_batches", "", "", "Compressed batches that are held decompressed, since share "
                                              "consumers take parts of them."),
        _gauge("queue_cache_bytes", "", "", "Their size; kbroker.queue.cache.bytes is the bound."),
        _counter("queue_cache_hits", "", "", "Compressed batches of which a fetch took a part, and found "
                                             "them decompressed."),
        _counter("queue_cache_misses", "", "", "Those that a fetch had to decompress, or to wait for."),
        _counter(
            "queue_uncut_batches", "reason", "",
            "Batches that go whole to consumers that take a part, by `reason`: `crc` (damaged), "
            "`too_large` (more than 64 MiB plain), "
            "`payload` (cannot be decompressed), `records` (not those that the header says).",
        ),
        _gauge("dead_letter_partitions", "", "", "Share-partitions with dead letters to write, or which "
                                                 "had some a moment ago."),
    ),
)  # fmt: skip

SHARE_PARTITIONS = Section(
    "Share-partitions",
    (
        _gauge(
            "share_partition_lag", _PARTITION, "",
            "Records that the group has not finished: as DescribeShareGroupOffsets tells. Negative where "
            "the start offset was set "
            "beyond the log's end. Not there while no start offset is decided.",
        ),
        _gauge(
            "share_partition_oldest_unprocessed_seconds", _PARTITION, "",
            "Age of the oldest record that the group has not finished; 0 without lag. See below.",
        ),
        _gauge("share_partition_start_offset", _PARTITION, "", "SPSO: everything below is finished."),
        _gauge(
            "share_partition_in_flight", _PARTITION, "SharePartitionMetrics InFlightMessageCount",
            "Offsets from the start offset to the last one handed out (SPSO to SPEO), finished ones "
            "between them included.",
        ),
        _gauge("share_partition_in_flight_batches", _PARTITION, "SharePartitionMetrics InFlightBatchCount", "Cached batches among them."),
        _gauge(
            "share_partition_records", f"{_PARTITION} state", "",
            "Records among them by `state`: available (came back, or read with a batch of which only a "
            "part was handed out), "
            "waiting (for its redelivery, or for another record of its key), acquired, saving, archiving "
            "(waits for its dead letter), "
            "done. Beside them parked: those that wait for longer, outside. Parked ones that are acquired "
            "count as acquired.",
        ),
        _gauge(
            "share_partition_behind_keys", _PARTITION, "",
            "Records that wait for others of their keys, parked ones included. Only in groups with "
            "kbroker.queue.ordering=key.",
        ),
        _gauge(
            "share_partition_next_due_seconds", _PARTITION, "",
            "Time until the next parked record is due; below 0 while it waits for a consumer. Only where "
            "records are parked.",
        ),
        _counter("share_partition_deliveries", _PARTITION, "", "Records handed out, each time counted."),
        _counter("share_partition_redeliveries", _PARTITION, "", "Of these, those that were handed out "
                                                                 "before."),
        _counter(
            "share_partition_lock_timeouts", _PARTITION, "SharePartitionMetrics AcquisitionLockTimeoutPerSec",
            "Records whose acquisition lock ran out.",
        ),
        _counter(
            "share_partition_prolonged_locks", _PARTITION, "",
            "Locks of records that the broker prolonged for a consumer that is alive "
            "(kbroker.queue.lock.max.ms), each time counted.",
        ),
        _counter("share_partition_delayed_deliveries", _PARTITION, "", "Deliveries of records that were "
                                                                       "parked until they were due."),
        _counter(
            "share_partition_archived", f"{_PARTITION} cause", "",
            "Records given up, by `cause`: `rejected` by a consumer, `exhausted` at the delivery limit, "
            "`expired` (kbroker.queue.ttl.ms).",
        ),
        _counter(
            "share_partition_dead_lettered", _PARTITION, "",
            "Records that went through the dead letter queue and are finished; those refused for the "
            "settings included.",
        ),
        _counter(
            "share_partition_look_ahead_stops", _PARTITION, "",
            "How often the broker stopped looking for records of other keys, because 20 000 were waiting "
            "for theirs "
            "(kbroker.queue.ordering).",
        ),
        _counter("share_partition_failed_saves", _PARTITION, "", "Changes of state that could not be "
                                                                 "saved; undone, or tried again."),
    ),
)  # fmt: skip

SCRAPE = Section(
    "The scrape itself",
    (
        _gauge("scrape_seconds", "", "", "Time that was spent on gathering what this answer says, others' "
                                         "turns included."),
        _gauge(
            "scrape_unanswered_share_partitions", "", "",
            "Share-partitions without lag or age in this answer, since the persister or the disk did not "
            "answer in time.",
        ),
    ),
)  # fmt: skip

SECTIONS = (
    BROKER,
    REQUESTS,
    TOPICS,
    STORES,
    CONSUMER_GROUPS,
    SHARE_COORDINATORS,
    SHARE_GROUPS,
    SHARE_PARTITIONS,
    SCRAPE,
)

METRICS: Mapping[str, MetricDef] = {metric.name: metric for section in SECTIONS for metric in section.metrics}

LEFT_OUT: Mapping[str, str] = {
    "RequestMetrics RequestQueueTimeMs, LocalTimeMs, RemoteTimeMs, ResponseQueueTimeMs, ResponseSendTimeMs":
        "One loop handles all requests, nothing is queued between threads, handlers take turns: only the "
        "total has a meaning. "
        "What waits is in `kbroker_requests_waiting`, what commits cost in `kbroker_commit_seconds`.",
    "RequestMetrics ThrottleTimeMs": "There are no quotas.",
    "RequestMetrics MessageConversionsTimeMs, TemporaryMemoryBytes": "Batches are neither converted nor "
                                                                     "recompressed.",
    "ShareGroupMetrics TopicPartitionsAcquireTimeMs; SharePartitionMetrics FetchLockTimeMs, FetchLockRatio":
        "There is no fetch lock: fetches of one share-partition take their records in one step each.",
    "group-coordinator-metrics and share-coordinator-metrics thread-idle-ratio, event-queue times":
        "There are no coordinator threads and no event queue.",
    "group-coordinator-metrics share-group-count, consumer-group-count {state=Dead}; GroupMetadataManager "
    "NumGroupsDead":
        "A deleted group is gone at once.",
    "group-coordinator-metrics group-count {protocol=streams}, streams-group-count, "
    "streams-group-rebalance-count":
        "Streams groups are not served.",
    "share-coordinator-metrics partition-load-time":
        "No state topic is loaded at the start: a share-partition's state is read when it is first asked for "
        "(`kbroker_share_group_load_seconds`).",
    "share-coordinator-metrics last-pruned-offset":
        "Obsolete state is removed by the write that makes it so; the segment engine rewrites the log of "
        "its state as a whole "
        "(`rewrites` in `kbroker_store_statistic`).",
    "share-coordinator-metrics batch-buffer-cache-size-bytes, -discard-count": "There is no such cache.",
    "ReplicaManager, Partition and Controller metrics of replication": "There is one broker and one copy.",
}  # fmt: skip
"""Kafka's metrics that make no sense here, with the reason."""
