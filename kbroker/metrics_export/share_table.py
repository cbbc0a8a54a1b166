"""The metrics of share groups and share-partitions: a part of the table of table.py."""

from __future__ import annotations

from kbroker.metrics_export.definition import PARTITION, Section, counter, gauge, histogram

SHARE_COORDINATORS = Section(
    "Coordinators of share groups and share state",
    (
        gauge(
            "share_groups", "state", "group-coordinator-metrics share-group-count",
            "Share groups by state.",
        ),
        gauge("share_group_members", "", "", "Members of all share groups."),
        counter(
            "share_group_rebalances", "", "group-coordinator-metrics share-group-rebalance-count",
            "New target assignments of share groups.",
        ),
        gauge(
            "share_groups_in_administration", "", "",
            "Share groups that are being deleted, or whose offsets are altered or deleted.",
        ),
        gauge(
            "share_partitions_initializing", "", "",
            "Share-partitions that the persister is to initialise and has not answered for.",
        ),
        gauge(
            "share_state_partitions", "", "share-coordinator-metrics num-partitions",
            "Share-partitions whose saved state is in the share coordinator's memory. Kafka counts "
            "partitions of `__share_group_state`.",
        ),
        gauge("share_state_unsaved", "", "", "Changes of share state that are not saved yet."),
        counter("share_state_loads", "", "", "Share-partitions whose state was read from the store."),
        counter(
            "share_state_records", "type", "share-coordinator-metrics write-total",
            "Records of share state: `type` is `update` or `snapshot`.",
        ),
        counter(
            "share_state_cold_snapshots", "", "",
            "Snapshots of idle share-partitions; included in the above.",
        ),
        counter(
            "share_state_housekeeping_rounds", "", "",
            "Searches for share-partitions that need such a snapshot.",
        ),
        counter(
            "share_state_housekeeping_failures", "", "",
            "Such snapshots that were not saved, and searches cut off; both are tried again.",
        ),
        histogram(
            "share_state_write_seconds", "", "share-coordinator-metrics write-latency-avg, -max",
            "Time to save new share state; not with a persister from a plugin.",
        ),
        gauge("share_sessions", "", "ShareSessionCache ShareSessionsCount", "Share sessions."),
        gauge(
            "share_session_partitions", "", "ShareSessionCache SharePartitionsCount",
            "Partitions in these sessions.",
        ),
        counter(
            "share_session_evictions", "", "ShareSessionCache ShareSessionEvictionsPerSec",
            "Share sessions that ended with their connection.",
        ),
        counter(
            "share_sessions_refused", "", "",
            "Share sessions refused: group.share.max.share.sessions were there.",
        ),
        gauge(
            "share_partitions_loaded", "", "",
            "Share-partitions in the broker's memory, those that are just being loaded "
            "included.",
        ),
    ),
)  # fmt: skip

SHARE_GROUPS = Section(
    "Share groups",
    (
        counter(
            "share_group_acknowledged_records", "group type",
            "ShareGroupMetrics RecordAcknowledgementsPerSec",
            "Records acknowledged by `type`: accept, release, reject, renew or gap, as clients' "
            "lists said. Kafka does not tell by group.",
        ),
        histogram(
            "share_group_load_seconds", "group", "ShareGroupMetrics PartitionLoadTimeMs",
            "Time to load a share-partition; Kafka does not tell by group.",
        ),
        histogram(
            "share_group_fetch_percent", "group", "ShareGroupMetrics RequestTopicPartitionsFetchRatio",
            "Of the partitions that a ShareFetch was for: how many had something to deliver, per cent.",
        ),
        histogram(
            "share_group_acquired_records", "group", "SharePartitionMetrics InFlightBatchMessageCount",
            "Records that were handed out together, one batch of an answer each. Kafka tells by partition.",
        ),
        counter(
            "share_group_removed_records", "group", "",
            "Records that retention or DeleteRecords removed before the group was done with them: "
            "lost for it, without a dead letter.",
        ),
        gauge(
            "share_group_held_log_bytes", "group", "",
            "Bytes of logs with `kbroker.queue.retention` that would go if this group alone had finished "
            "its records, "
            "at the last look of retention.",
        ),
        counter(
            "kept_records", "", "",
            "Records that were kept beside a log with `kbroker.queue.retention`, so that it "
            "could go.",
        ),
        counter(
            "share_group_dead_letters", "group", "ShareGroupMetrics DeadLetterQueueRecordCount",
            "Records written to the dead letter topic.",
        ),
        counter(
            "share_group_dead_letter_writes", "group",
            "ShareGroupMetrics DeadLetterQueueTotalProduceRequestsPerSec",
            "Batches of dead letters that were appended, or tried.",
        ),
        counter(
            "share_group_dead_letter_failures", "group",
            "ShareGroupMetrics DeadLetterQueueFailedProduceRequestsPerSec",
            "Those of them that the disk refused; they are tried again without end.",
        ),
        counter(
            "share_group_dead_letters_refused", "group", "",
            "Records archived without a dead letter, since something is wrong with the settings; the log "
            "says what.",
        ),
        counter(
            "share_group_dead_letters_without_copy", "group", "",
            "Dead letters without the copy of key and value that they should have: the record could not be "
            "read.",
        ),
        gauge(
            "share_group_dead_letter_waiting_bytes", "group", "",
            "About how many bytes of dead letters wait for room on the disk; their records stay in their "
            "topic.",
        ),
        counter(
            "share_group_odd_schedules", "group reason", "",
            "Records whose headers kbroker-deliver-at and kbroker-delay-ms cannot be followed, by "
            "`reason`: `malformed` (delivered at "
            "once), `too_far` (delivered when kbroker.queue.scheduling.max.delay.ms allows). A restart "
            "counts those that still wait again.",
        ),
        gauge(
            "queue_cache_batches", "", "",
            "Compressed batches that are held decompressed, since share consumers take parts of "
            "them.",
        ),
        gauge("queue_cache_bytes", "", "", "Their size; kbroker.queue.cache.bytes is the bound."),
        counter(
            "queue_cache_hits", "", "",
            "Compressed batches of which a fetch took a part, and found them decompressed.",
        ),
        counter("queue_cache_misses", "", "", "Those that a fetch had to decompress, or to wait for."),
        counter(
            "queue_uncut_batches", "reason", "",
            "Batches that go whole to consumers that take a part, by `reason`: `crc` (damaged), "
            "`too_large` (more than 64 MiB plain), "
            "`payload` (cannot be decompressed), `records` (not those that the header says).",
        ),
        gauge(
            "dead_letter_partitions", "", "",
            "Share-partitions with dead letters to write, or which had some a moment ago.",
        ),
    ),
)  # fmt: skip

SHARE_PARTITIONS = Section(
    "Share-partitions",
    (
        gauge(
            "share_partition_lag", PARTITION, "",
            "Records that the group has not finished: as DescribeShareGroupOffsets tells. Negative where "
            "the start offset was set "
            "beyond the log's end. Not there while no start offset is decided.",
        ),
        gauge(
            "share_partition_oldest_unprocessed_seconds", PARTITION, "",
            "Age of the oldest record that the group has not finished; 0 without lag. See below.",
        ),
        gauge("share_partition_start_offset", PARTITION, "", "SPSO: everything below is finished."),
        gauge(
            "share_partition_in_flight", PARTITION, "SharePartitionMetrics InFlightMessageCount",
            "Offsets from the start offset to the last one handed out (SPSO to SPEO), finished ones "
            "between them included.",
        ),
        gauge(
            "share_partition_in_flight_batches", PARTITION, "SharePartitionMetrics InFlightBatchCount",
            "Cached batches among them.",
        ),
        gauge(
            "share_partition_records", f"{PARTITION} state", "",
            "Records among them by `state`: available (came back, or read with a batch of which only a "
            "part was handed out), "
            "waiting (for its redelivery, or for another record of its key), acquired, saving, archiving "
            "(waits for its dead letter), "
            "done (also the places that parked records have left). "
            "Beside them parked: those that wait for longer, outside. Parked ones that are acquired "
            "count as acquired.",
        ),
        gauge(
            "share_partition_behind_keys", PARTITION, "",
            "Records that wait for others of their keys, parked ones included. Only in groups with "
            "kbroker.queue.ordering=key.",
        ),
        gauge(
            "share_partition_next_due_seconds", PARTITION, "",
            "Time until the next parked record is due; below 0 while it waits for a consumer. Only where "
            "records are parked.",
        ),
        counter("share_partition_deliveries", PARTITION, "", "Records handed out, each time counted."),
        counter(
            "share_partition_redeliveries", PARTITION, "",
            "Of these, those that were handed out before.",
        ),
        counter(
            "share_partition_lock_timeouts", PARTITION, "SharePartitionMetrics AcquisitionLockTimeoutPerSec",
            "Records whose acquisition lock ran out.",
        ),
        counter(
            "share_partition_prolonged_locks", PARTITION, "",
            "Locks of records that the broker prolonged for a consumer that is alive "
            "(kbroker.queue.lock.max.ms), each time counted.",
        ),
        counter(
            "share_partition_delayed_deliveries", PARTITION, "",
            "Deliveries of records that were parked until they were due.",
        ),
        counter(
            "share_partition_archived", f"{PARTITION} cause", "",
            "Records given up, by `cause`: `rejected` by a consumer, `exhausted` at the delivery limit, "
            "`expired` (kbroker.queue.ttl.ms).",
        ),
        counter(
            "share_partition_dead_lettered", PARTITION, "",
            "Records that went through the dead letter queue and are finished; those refused for the "
            "settings included.",
        ),
        counter(
            "share_partition_look_ahead_stops", PARTITION, "",
            "How often the broker stopped looking for records of other keys, because 20 000 were waiting "
            "for theirs "
            "(kbroker.queue.ordering).",
        ),
        counter(
            "share_partition_failed_saves", PARTITION, "",
            "Changes of state that could not be saved; undone, or tried again.",
        ),
    ),
)  # fmt: skip
