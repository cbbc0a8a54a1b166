"""All metrics at /metrics: name, kind, labels, Kafka's name, meaning. docs/metrics.md is made from
this table.

Names follow Prometheus' conventions (base units, `_total` for counters), as JMX names contain dots,
rates per second and milliseconds; Kafka's own name stands beside each. A metric that is not in this
table cannot be added to a scrape.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.metrics_export.definition import PARTITION, MetricDef, Section, counter, gauge, histogram
from kbroker.metrics_export.share_table import SHARE_COORDINATORS, SHARE_GROUPS, SHARE_PARTITIONS

BROKER = Section(
    "Broker",
    (
        gauge(
            "info",
            "version log_engine state_engine durability",
            "app-info version",
            "Always 1; the labels tell what runs.",
        ),
        gauge("topics", "", "KafkaController GlobalTopicCount", "Topics."),
        gauge("partitions", "", "ReplicaManager PartitionCount", "Topic partitions."),
        gauge(
            "topics_half_deleted",
            "",
            "",
            "Deleted topics whose files a full disk keeps.",
        ),
        counter(
            "auto_creations_prevented",
            "",
            "",
            "How often a topic was not created automatically, with default settings, since its creation with "
            "others was refused within the last hour.",
        ),
        gauge(
            "disk_short",
            "",
            "",
            "1 while the broker refuses the records of producers, since less is free on its disk than "
            "they must leave.",
        ),
        gauge(
            "disk_floor_bytes",
            "",
            "",
            "What producers must leave free on the disk: `kbroker.disk.min.free.bytes`, at most a sixteenth "
            "of the disk, and at least what the engines need.",
        ),
        counter("disk_shortages", "", "", "How often the disk became short."),
        counter("disk_refused", "", "", "Batches of producers that were refused while the disk was short."),
        gauge(
            "deadlines",
            "",
            "",
            "Deadlines of locks and waiting requests in the broker's timer, including those no longer "
            "needed.",
        ),
        gauge("altered_settings", "", "", "Broker settings that were altered while it ran."),
        gauge("groups_with_settings", "", "", "Groups with settings of their own."),
        gauge("producer_ids", "", "", "Producer ids assigned since the data directory was created."),
    ),
)

REQUESTS = Section(
    "Requests and connections",
    (
        counter(
            "requests", "request version", "RequestMetrics RequestsPerSec",
            "Requests by API and version.",
        ),
        counter(
            "request_errors", "request error", "RequestMetrics ErrorsPerSec",
            "Error codes in answers, each row of an answer counted; NONE is not.",
        ),
        counter(
            "request_bytes", "request", "RequestMetrics RequestBytes",
            "Bytes of requests, with their size fields.",
        ),
        counter("response_bytes", "request", "", "Bytes of answers, with their size fields."),
        histogram(
            "request_seconds", "request", "RequestMetrics TotalTimeMs",
            "From the moment a whole request was received until its answer is ready to be sent: waiting "
            "for data and commits included.",
        ),
        gauge(
            "requests_waiting", "request", "DelayedOperationPurgatory NumDelayedOperations",
            "Fetch and ShareFetch that wait for records.",
        ),
        counter(
            "requests_expired", "request", "DelayedShareFetchMetrics and DelayedFetchMetrics ExpiresPerSec",
            "Fetch and ShareFetch that waited until MaxWaitMs and got nothing new.",
        ),
        gauge("connections", "", "socket-server-metrics connection-count", "Connections that are open now."),
        counter(
            "connections_accepted", "", "socket-server-metrics connection-creation-total",
            "Connections accepted.",
        ),
        counter(
            "connections_refused", "", "",
            "Connections closed at once: as many are open as max.connections, max.connections.per.ip or the "
            "limit of open files allow, or the address opens them faster than its quota allows.",
        ),
        gauge("acls", "", "", "ACLs that are stored."),
        counter(
            "denied_operations", "operation resource", "",
            "Operations that clients asked for and may not do, by kind of resource. A topic, group or "
            "transactional id counts each time that a request names it.",
        ),
        counter(
            "received_bytes", "", "socket-server-metrics incoming-byte-total",
            "Bytes read from clients.",
        ),
        counter("sent_bytes", "", "socket-server-metrics outgoing-byte-total", "Bytes sent to clients."),
        gauge(
            "fetch_sessions", "", "FetchSessionCache NumIncrementalFetchSessions",
            "Incremental fetch sessions of ordinary consumers.",
        ),
        gauge(
            "fetch_session_partitions", "", "FetchSessionCache NumIncrementalFetchPartitionsCached",
            "Partitions in these sessions.",
        ),
        counter(
            "fetch_session_evictions", "", "FetchSessionCache IncrementalFetchSessionEvictionsPerSec",
            "Sessions evicted by newer ones.",
        ),
    ),
)  # fmt: skip

LOG_INS = Section(
    "Log-ins",
    (
        counter(
            "authentications", "mechanism outcome",
            "socket-server-metrics successful-authentication-total, successful-reauthentication-total, "
            "failed-authentication-total, failed-reauthentication-total",
            "Log-ins by SASL mechanism; `none` if the client asked for one that is not enabled. `outcome` is "
            "`success`, `renewal` (a successful re-authentication) or `failure`.",
        ),
        counter(
            "expired_sessions", "", "socket-server-metrics ExpiredConnectionsKilledCount",
            "Connections closed since their session was over (connections.max.reauth.ms).",
        ),
        gauge("authenticated_connections", "", "", "Connections that have logged in and are open now."),
        gauge("users", "", "", "Users with stored credentials."),
        gauge(
            "password_checks", "", "",
            "Passwords that are being checked or wait for that: two at a time, and at most 64 more.",
        ),
        counter("password_checks_refused", "", "", "Log-ins refused since too many passwords waited."),
    ),
)  # fmt: skip

QUOTAS = Section(
    "Quotas",
    (
        gauge("quotas", "", "", "Users, client ids and addresses with quotas."),
        gauge(
            "quota_rates", "", "",
            "Users, client ids and pairs of them whose rate is measured: for each quota those that were "
            "active lately.",
        ),
        counter(
            "throttled_requests", "quota", "",
            "Requests after which the client had to wait, by the quota that it had exceeded most.",
        ),
        counter(
            "throttle_seconds", "quota",
            "Produce, Fetch and Request throttle-time; RequestMetrics ThrottleTimeMs",
            "For how long these clients had to wait, added up.",
        ),
        gauge(
            "muted_connections", "", "Produce, Fetch and Request queue-size",
            "Connections whose clients wait now.",
        ),
        counter(
            "connections_throttled", "", "socket-server-metrics connection-accept-throttle-time",
            "Connections refused since their address opens them faster than its quota allows.",
        ),
    ),
)  # fmt: skip

TOPICS = Section(
    "Topics",
    (
        counter(
            "topic_records_in", "topic", "BrokerTopicMetrics MessagesInPerSec",
            "Records written, dead letters included.",
        ),
        counter(
            "topic_bytes_in", "topic", "BrokerTopicMetrics BytesInPerSec",
            "Bytes of record batches written.",
        ),
        counter(
            "topic_bytes_out", "topic", "BrokerTopicMetrics BytesOutPerSec",
            "Bytes of record batches sent to consumers of any kind.",
        ),
        counter(
            "topic_bytes_rejected", "topic", "BrokerTopicMetrics BytesRejectedPerSec",
            "Bytes of record batches refused since they were larger than max.message.bytes.",
        ),
        counter(
            "topic_requests", "topic request",
            "BrokerTopicMetrics TotalProduceRequestsPerSec, TotalFetchRequestsPerSec, "
            "TotalShareFetchRequestsPerSec, "
            "TotalShareAcknowledgementRequestsPerSec",
            "`request` Produce and Fetch: once for each partition that a request names. ShareFetch and "
            "ShareAcknowledge: once for a "
            "request; acknowledgements inside a ShareFetch count as ShareAcknowledge.",
        ),
        counter(
            "topic_failed_requests", "topic request",
            "BrokerTopicMetrics FailedProduceRequestsPerSec, FailedFetchRequestsPerSec, "
            "FailedShareFetchRequestsPerSec, "
            "FailedShareAcknowledgementRequestsPerSec",
            "Those of them that were answered with an error for this topic.",
        ),
        gauge("log_start_offset", "topic partition", "Log LogStartOffset", "First offset that can be read."),
        gauge(
            "log_end_offset", "topic partition", "Log LogEndOffset",
            "High watermark: the next offset that readers will see.",
        ),
    ),
)  # fmt: skip

STORES = Section(
    "Stores and commits",
    (
        counter(
            "commit_groups", "store", "",
            "Groups of writes that were committed together; `store` is `log` or `state`.",
        ),
        counter("commit_entries", "store", "", "Writes in these groups."),
        counter("commit_refused", "store", "", "Writes refused: the disk is full, or the store has failed."),
        gauge("commit_pending", "store", "", "Writes that wait for their group."),
        counter("commit_syncs", "store", "LogFlushStats LogFlushRateAndTimeMs (rate)", "Syncs to the disk."),
        histogram(
            "commit_seconds", "store", "LogFlushStats LogFlushRateAndTimeMs (time)",
            "Time for a group: writing, and syncing unless durability is `os`.",
        ),
        gauge(
            "store_failed", "store", "",
            "1 when the store takes no more writes until the broker is started again.",
        ),
        gauge(
            "store_statistic", "store engine name", "",
            "What the engine says of itself; every engine has names of its own (`file_bytes`, `segments`, "
            "`rewrites` ...).",
        ),
    ),
)  # fmt: skip

CONSUMER_GROUPS = Section(
    "Consumer groups and committed offsets",
    (
        gauge(
            "groups", "protocol", "group-coordinator-metrics group-count",
            "Groups by their protocol: `classic` (those that have offsets alone included), `consumer` "
            "(KIP-848) or `share`.",
        ),
        gauge(
            "classic_groups", "state",
            "GroupMetadataManager NumGroupsEmpty, NumGroupsPreparingRebalance, "
            "NumGroupsCompletingRebalance, NumGroupsStable",
            "Groups of the classic protocol by state.",
        ),
        gauge("classic_group_members", "", "", "Members of all these groups."),
        gauge(
            "classic_group_pending_members", "", "",
            "Member ids that were given out and not used to join yet.",
        ),
        counter(
            "classic_group_rebalances", "", "group-coordinator-metrics group-completed-rebalance-count",
            "Generations of these groups that became stable.",
        ),
        gauge(
            "consumer_groups", "state", "group-coordinator-metrics consumer-group-count",
            "Groups of the consumer protocol (KIP-848) by state.",
        ),
        gauge(
            "consumer_group_members", "protocol", "",
            "Members of all these groups, by the protocol that they speak themselves.",
        ),
        counter(
            "consumer_group_rebalances", "", "group-coordinator-metrics consumer-group-rebalance-count",
            "New group epochs of these groups.",
        ),
        gauge("group_requests_waiting", "", "", "JoinGroup and SyncGroup that wait for other members."),
        gauge(
            "committed_offsets", "", "GroupMetadataManager NumOffsets",
            "Offsets that groups have committed, one for each partition.",
        ),
        counter(
            "offset_commits", "", "group-coordinator-metrics offset-commit-count",
            "Offsets committed, each partition of a request counted.",
        ),
        counter(
            "offset_expirations", "", "group-coordinator-metrics offset-expiration-count",
            "Offsets forgotten after offsets.retention.minutes.",
        ),
        counter(
            "offset_deletions", "", "group-coordinator-metrics offset-deletion-count",
            "Offsets deleted, alone or with their group or topic.",
        ),
        gauge(
            "group_committed_offset", PARTITION, "",
            "The offset that the group has committed; missing if it has committed none.",
        ),
        gauge(
            "group_lag", PARTITION, "",
            "Records from the committed offset to the log's end, those included that the consumer has read "
            "but not committed.",
        ),
    ),
)  # fmt: skip

COMPACTION = Section(
    "Compaction",
    (
        counter("compaction_passes", "", "", "Passes over logs of topics with cleanup.policy=compact."),
        counter("compaction_read_bytes", "", "", "Bytes that passes have read, those included that failed."),
        counter("compaction_removed_bytes", "", "", "By how much they have made logs smaller."),
        counter("compaction_removed_records", "", "", "Records that they have removed."),
        gauge(
            "compaction_dirty_ratio", "", "LogCleanerManager max-dirty-percent",
            "The highest part of new bytes of a log, when the cleaner last looked (0 to 1).",
        ),
        gauge(
            "uncleanable_logs", "", "LogCleanerManager uncleanable-partitions-count",
            "Logs that are not compacted any more, because a batch cannot be read; the log says which.",
        ),
    ),
)  # fmt: skip

TRANSACTIONS = Section(
    "Transactions",
    (
        gauge(
            "transactional_ids", "state", "",
            "Transactional ids by state: Empty, Ongoing, PrepareCommit, PrepareAbort (markers are being "
            "written), CompleteCommit, CompleteAbort.",
        ),
        gauge(
            "transaction_changes_pending", "", "",
            "Transactional ids with a new state that is not saved yet; their clients wait.",
        ),
        counter(
            "transactions", "outcome", "",
            "Transactions that have ended: `outcome` is `committed` or `aborted`.",
        ),
        counter(
            "transactions_timed_out", "", "",
            "Transactions that the broker began to abort, since they lasted longer than their client allows.",
        ),
        counter("transaction_markers", "", "", "Markers of these transactions written, one for each log."),
        histogram(
            "transaction_end_seconds", "", "",
            "From the decision about a transaction until all of its markers are written, and the offsets "
            "of groups are saved.",
        ),
        gauge(
            "topic_open_transactions", "topic", "ReplicaManager PartitionsWithLateTransactionsCount",
            "Transactions that are open in logs of the topic, one for each producer and partition. Only "
            "logs whose producers are in memory count. Kafka counts partitions with a late one.",
        ),
        gauge(
            "pending_group_offsets", "", "",
            "Offsets of consumer groups that an open transaction has sent: they are committed with it.",
        ),
    ),
)  # fmt: skip

SCRAPE = Section(
    "The scrape itself",
    (
        gauge(
            "scrape_seconds", "", "",
            "Time that was spent on gathering what this answer says, others' turns included.",
        ),
        gauge(
            "scrape_unanswered_share_partitions", "", "",
            "Share-partitions without lag or age in this answer, since the persister or the disk did not "
            "answer in time.",
        ),
    ),
)  # fmt: skip

SECTIONS = (
    BROKER,
    REQUESTS,
    LOG_INS,
    QUOTAS,
    TOPICS,
    STORES,
    CONSUMER_GROUPS,
    TRANSACTIONS,
    COMPACTION,
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
        "Waiting requests are in `kbroker_requests_waiting`, the duration of commits is in "
        "`kbroker_commit_seconds`.",
    "RequestMetrics MessageConversionsTimeMs, TemporaryMemoryBytes":
        "Batches are not converted. If a topic's compression.type asks for it, a thread compresses them "
        "again.",
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
        "No state topic is loaded at the start: a share-partition's state is read when it is first used "
        "(`kbroker_share_group_load_seconds`).",
    "share-coordinator-metrics last-pruned-offset":
        "Obsolete state is removed by the write that makes it so; the segment engine rewrites the log of "
        "its state as a whole "
        "(`rewrites` in `kbroker_store_statistic`).",
    "share-coordinator-metrics batch-buffer-cache-size-bytes, -discard-count": "There is no such cache.",
    "TransactionMarkerChannelManager UnknownDestinationQueueSize, LogAppendRetryQueueSize":
        "Markers are sent to no other broker. Ids that wait for their markers are in "
        "`kbroker_transactional_ids`.",
    "AddPartitionsToTxnManager VerificationTimeMs, VerificationFailureRate":
        "The coordinator is in the same process: a verification is a look into its memory.",
    "ReplicaManager, Partition and Controller metrics of replication": "There is one broker and one copy.",
}  # fmt: skip
"""Kafka's metrics that kbroker lacks, with the reason."""
