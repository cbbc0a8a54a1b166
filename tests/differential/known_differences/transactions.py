"""Transactions, and what their readers get."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, only_there, values

KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-50",
        r"^(0|4|6|10)\.end_txn\.error_code$",
        values("invalid_txn_state", "producer_fenced"),
        "txn_ends.ends_repeated_with_the_epoch_before txn_ends.the_broker_aborts_and_the_client_commits "
        "txn_producers.an_open_transaction_is_aborted txn_epochs.the_last_abort_of_an_id",
    ),
    Difference(
        "DIF-51",
        r"^[12]\.describe_transactions\[0\]\.topics$",
        lambda theirs, ours: theirs == [*ours, "__consumer_offsets"],
        "txn_partitions.the_group_of_a_transaction_is_listed_by_its_topic",
    ),
    Difference(
        "DIF-52",
        r"^[01]\.add_partitions_to_txn\..*\.partition_error_code$",
        values("topic_authorization_failed", "unknown_topic_or_partition"),
        "txn_partitions.the_topic_of_the_groups",
    ),
    Difference(
        "DIF-53",
        r"^[0124]\.(produce|list_offsets)\..*\.(error_code|base_offset|log_start_offset|offset)$",
        any_of(
            values("none", "invalid_record"),
            values(3, 0),
            lambda theirs, ours: theirs in (0, 1, 2) and ours == -1,
        ),
        "txn_produce.a_batch_without_a_producer",
    ),
    Difference(
        "DIF-54",
        r"^[0246]\.fetch\..*\.aborted_transactions$",
        only_there,
        "txn_reading.limits_around_transactions",
    ),
    Difference(
        "DIF-55",
        r"^1\.describe_transactions\[0\]\.topics$",
        lambda theirs, ours: theirs[:-1] == ours,
        "txn_listing.partitions_that_are_left",
    ),
    Difference(
        "DIF-56",
        r"^5\.write_txn_markers\..*\.error_code$",
        values("unknown_server_error", "invalid_request"),
        "txn_markers.markers_of_nothing",
    ),
    Difference(
        "DIF-58",
        r"^0\.share_fetch\.responses.*\.(records|acquired_records\[0\]\.(first|last)_offset)$",
        any_of(
            lambda theirs, ours: (
                isinstance(theirs, list) and ours == [row for row in theirs if "control" not in row] != theirs
            ),
            values(2, 3),
            values(2, 1),
        ),
        "txn_share.*",
    ),
)
