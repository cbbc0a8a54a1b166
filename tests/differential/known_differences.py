"""Where kbroker deliberately answers differently from Apache Kafka: each difference has its reason
in docs/differences.md under the same id.

A difference is matched by the script, the place in the answers, and both values. Any other
difference is a bug. So is an entry that no script meets any more: the list has present differences
only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kbroker.settings.broker_share_groups import GROUP_SHARE_TRIPLES
from tests.differential.running import Found
from tests.differential.transcript import Json

_GROUP_SOURCE = 8


@dataclass(frozen=True)
class Difference:
    """`path`: a regular expression found in the place. `scripts`: patterns of names. `holds`: a
    condition on Kafka's value and kbroker's."""

    id: str
    path: str
    holds: Callable[[Json, Json], bool]
    scripts: str = "*"

    def explains(self, found: Found) -> bool:
        return (
            any(fnmatchcase(found.script, pattern) for pattern in self.scripts.split())
            and re.search(self.path, found.path) is not None
            and self.holds(found.kafka, found.kbroker)
        )


def values(kafka: Json, kbroker: Json) -> Callable[[Json, Json], bool]:
    """Exactly these two."""
    return lambda theirs, ours: theirs == kafka and ours == kbroker


def kafka_says(*wanted: Json) -> Callable[[Json, Json], bool]:
    """Kafka answers one of these, kbroker something else."""
    return lambda theirs, ours: theirs in wanted


def any_of(*holds: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    return lambda theirs, ours: any(each(theirs, ours) for each in holds)


def _starts_with_an_empty_range(theirs: Json, ours: Json) -> bool:
    return bool(theirs[0]["last_offset"] < theirs[0]["first_offset"] and theirs[1:] == ours)


def _no_rows_but_one_with(field: str, wanted: Callable[[Json], bool]) -> Callable[[Json, Json], bool]:
    """Kafka's answer has no rows at all, kbroker's has some row with this value of `field`."""
    return lambda theirs, ours: (
        theirs == [] and any(wanted(row[field]) for topic in ours for row in topic["partitions"])
    )


def _only_here(theirs: Json, ours: Json) -> bool:
    """Kafka's answer is empty, kbroker's is not."""
    return theirs == [] and bool(ours)


def _only_there(theirs: Json, ours: Json) -> bool:
    return bool(theirs) and ours == []


def _more_rows(theirs: Json, ours: Json) -> bool:
    """Kafka answers some of kbroker's rows."""
    return len(theirs) < len(ours) and all(row in ours for row in theirs)


def _part_of(theirs: Json, ours: Json) -> bool:
    """A lower last offset, or a contiguous part of the same records."""
    if isinstance(theirs, int):
        return bool(ours < theirs)
    return any(theirs[at : at + len(ours)] == ours for at in range(len(theirs) - len(ours) + 1)) and bool(
        ours
    )


def _cut_to_100_characters(theirs: Json, ours: Json) -> bool:
    return len(theirs) > 200 and ours.partition("(")[0] == theirs[:100]


def _settings_of_dead_letters_besides(theirs: Json, ours: Json) -> bool:
    more = [row for row in ours if row["name"].startswith("errors.deadletterqueue.")]
    return bool(more) and theirs == [row for row in ours if row not in more]


def _share_groups_settings_may_be_altered(theirs: Json, ours: Json) -> bool:
    """The same rows, but groups' defaults and bounds are not read-only; kbroker also has the rows
    of dead letters."""
    moved = {f"group.share.{end}{triple}" for end in ("", "min.", "max.") for triple in GROUP_SHARE_TRIPLES}
    rows = [row for row in ours if not row["name"].startswith("errors.deadletterqueue.")]
    fixed_there = {row["name"] for row in theirs if row["read_only"]} & moved
    rows = [{**row, "read_only": True} if row["name"] in fixed_there else row for row in rows]
    return bool(fixed_there) and theirs == rows


def _without_the_group_s_own(theirs: Json, ours: Json) -> bool:
    return (
        isinstance(theirs, list)
        and ours == [row for row in theirs if row["source"] != _GROUP_SOURCE] != theirs
    )


def _features_of_newer_kafka(theirs: Json, ours: Json) -> bool:
    """The four that kbroker has too, with the levels of 4.4."""
    newer = {
        "metadata.version": {30: 31},
        "group.version": {},
        "share.version": {1: 2},
        "transaction.version": {},
    }
    return bool(
        ours
        == [
            [name, *(newer[name].get(level, level) for level in levels)]
            for name, *levels in theirs
            if name in newer
        ]
    )


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-1",
        r"current_leader\.leader_(id|epoch)$",
        lambda theirs, ours: theirs in (0, "epoch") and ours == -1,
    ),
    Difference(
        "DIF-2",
        r"^0\.share_fetch\..*\.acquired_records$",
        _starts_with_an_empty_range,
        "share_fetch_requests.batch_size_zero acquisition.batch_size_below_zero",
    ),
    Difference(
        "DIF-3",
        r"^[123]\.share_fetch\.(error_code|acquisition_lock_timeout|responses)$",
        any_of(
            values("unknown_server_error", "none"),
            values(0, 30_000),
            _no_rows_but_one_with("error_code", lambda code: code == "unknown_topic_id"),
        ),
        "share_fetch_requests.unknown_topic_id share_session_ends.topic_deleted "
        "group_topics.fetching_from_a_deleted_topic",
    ),
    Difference(
        "DIF-4",
        r"^2\.share_acknowledge\.responses.*\.error_(code|message)$|^[35]\.share_fetch\.responses$",
        any_of(
            values("none", "invalid_record_state"),
            values(None, "text"),
            _no_rows_but_one_with("acquired_records", bool),
        ),
        "share_sessions.opened_again share_fetch_requests.unknown_acquire_mode",
    ),
    Difference(
        "DIF-5",
        r"^3\.share_fetch\.(error_code|acquisition_lock_timeout|responses)$",
        any_of(values("none", "share_session_not_found"), values(30_000, 0), _only_there),
        "share_session_ends.two_sessions_over_one_connection",
    ),
    Difference(
        "DIF-6",
        r"^3\.share_fetch\.responses.*\.(delivery_count|records|acquired_records)$",
        any_of(values(1, 2), _only_here),
        "share_session_ends.forgotten_before_the_end share_session_ends.forgotten_by_the_last_session",
    ),
    Difference(
        "DIF-7",
        r"^0\.share_fetch\.responses.*\.(records|acquired_records)$",
        _only_here,
        "share_session_ends.latest_is_decided_again",
    ),
    Difference(
        "DIF-8",
        r"^2\.share_acknowledge\.responses.*\.error_(code|message)$",
        any_of(values("none", "invalid_record_state"), values(None, "text")),
        "share_acknowledge.renewed_in_a_list_that_failed",
    ),
    Difference(
        "DIF-9",
        r"\.answered early$",
        values(False, True),
        "share_waiting.connection_ends share_waiting.release share_waiting.session_ends",
    ),
    Difference(
        "DIF-10",
        r"^1\.share_fetch\.responses.*\.(records|acquired_records)$|^2\.share_fetch\.responses$",
        any_of(_only_here, _only_there),
        "log_start.window_empty",
    ),
    Difference(
        "DIF-11",
        r"\.describe_configs\.results\[0\]\.configs$|\.incremental_alter_configs\.responses\[0\]\.error_(code|message)$",
        any_of(values("invalid_config", "none"), values("text", None), _settings_of_dead_letters_besides),
        "group_configs.dead_letter_queue group_configs.defaults base_other.a_topic_as_dead_letter_queue",
    ),
    Difference(
        "DIF-12",
        r"^4\.describe_configs\.results\[0\]\.configs\[0\]\.(value|config_source|synonyms)$",
        any_of(values("7", "5"), values("7000", "5000"), values(8, 5), _without_the_group_s_own),
        "group_configs.settings_outlive_the_group consumer_configs.outliving_the_group",
    ),
    Difference(
        "DIF-12", r"^5\..*\.heartbeat_interval$", values(7000, 5000), "consumer_configs.outliving_the_group"
    ),
    Difference(
        "DIF-12",
        r"^5\.share_fetch\.responses.*\.(records|acquired_records)$",
        _only_there,
        "group_descriptions.a_deleted_group_begins_from_nothing",
    ),
    Difference(
        "DIF-30",
        r"^[13]\.share_fetch\.responses$",
        any_of(_only_there, _no_rows_but_one_with("acquired_records", bool)),
        "share_waiting.records_come_after_the_session_was_opened_elsewhere",
    ),
    Difference(
        "DIF-31",
        r"^\d\.share_fetch\.responses.*\.records\[\d\]\.(last_offset|records)$",
        _part_of,
        "*.record_limit_mode acquisition.modes_mixed *_in_record_limit_mode",
    ),
    Difference(
        "DIF-13",
        r"^\d\.(features in version \d(\[0\]\[2\])?|finalised)$",
        lambda theirs, ours: (
            _features_of_newer_kafka(theirs, ours) if isinstance(theirs, list) else (theirs, ours) == (30, 31)
        ),
        "base_other.api_versions",
    ),
    Difference("DIF-14", r"^0\.API 0\[0\]$", values(0, 3), "base_other.versions_served"),
    Difference(
        "DIF-15", r"^7\.API 64$", values("answered", "connection closed"), "base_other.apis_for_controllers"
    ),
    Difference(
        "DIF-16",
        r"^[23]\.metadata\.(brokers|cluster_id|controller_id|topics\[\d\]\.(error_code|name|topic_id|partitions))$",
        any_of(kafka_says("unknown_server_error", [], None, -1, ""), lambda theirs, ours: ours is None),
        "base_topics.metadata_of_nothing",
    ),
    Difference(
        "DIF-17",
        r"\.describe_topic_partitions\.topics\[\d\]\.(error_code|topic_id|partitions|topic_authorized_operations)$",
        kafka_says("unknown_server_error", [], None, -2147483648),
        "base_descriptions.odd_names_described base_topics.partitions_described",
    ),
    Difference(
        "DIF-18",
        r"^[0-5]\.produce\.responses.*\.(error_code|error_message|base_offset|log_start_offset)$",
        kafka_says("corrupt_message", "transactional_id_authorization_failed", "text", -1),
        "base_produce_order.one_row_spoils_the_request",
    ),
    Difference(
        "DIF-18",
        r"^[678]\.(produce|list_offsets)\..*\.(base_offset|offset)$",
        lambda theirs, ours: ours == theirs + 6,
        "base_produce_order.one_row_spoils_the_request",
    ),
    Difference(
        "DIF-19",
        r"^[0-6]\.(produce|list_offsets)\..*\.(error_code|base_offset|offset)$",
        any_of(
            values("unknown_server_error", "none"),
            values("invalid_record", "none"),
            kafka_says(-1),
            values(0, 12),
        ),
        "base_batches.payloads_that_cannot_be_read",
    ),
    Difference(
        "DIF-20",
        r"^[12]\.produce\.responses.*\.(error_code|error_message|base_offset|record_errors)$",
        any_of(
            values("none", "invalid_timestamp"),
            values("invalid_timestamp", "none"),
            values(None, "text"),
            values("text", None),
            values(0, -1),
            values(-1, 0),
            _only_there,
        ),
        "base_batches.records_from_far_ahead",
    ),
    Difference(
        "DIF-21",
        r"^(5|17)\.list_offsets\..*\.(timestamp|offset|leader_epoch)$",
        any_of(values(5000, -1), values(3, -1), values("epoch", -1), values(5000, 2000), values(3, 5)),
        "base_offsets_rows.a_log_without_records",
    ),
    Difference(
        "DIF-22",
        r"^[0-7]\.a (key|client id): ",
        values("answered", "connection closed"),
        "base_frames.bytes_that_are_no_text",
    ),
    Difference(
        "DIF-40", r"^[23]\.state of partition [12]\[[12]\]$", values(-1, 0), "group_topics.a_topic_grows"
    ),
    Difference(
        "DIF-40",
        r"^1\.share_fetch\.responses.*\.(records|acquired_records)$",
        _only_here,
        "group_topics.new_partitions_under_the_policy_latest",
    ),
    Difference(
        "DIF-41",
        r"^[0-8]\.(initialize|read|write)_share_group_state\.results.*\.(error_code|error_message|state_epoch)$",
        any_of(
            lambda theirs, ours: (
                theirs in ("none", "fenced_state_epoch", "fenced_leader_epoch") and ours == "invalid_request"
            ),
            values(None, "text"),
            values(5, 0),
        ),
        "share_state_refusals.negative_epochs share_state_refusals.both_epochs_stale",
    ),
    Difference(
        "DIF-42",
        r"^[3579]\.read_share_group_state_summary\.results.*\.start_offset$|\.read_share_group_state_summary\.results.*_complete_count$",
        any_of(
            values(15, 20),
            values(2, 3),
            values(9, 3),
            values(4, 3),
            values(-1, 0),
            values(-1, 1),
            values(-9, 0),
        ),
        "share_state.start_offsets_that_go_back share_state.many_updates share_state.writes_without_a_count "
        "share_state_refusals.state_that_makes_no_sense",
    ),
    Difference(
        "DIF-43",
        r"^[2-5]\.write_share_group_state\.results.*\.error_(code|message)$",
        any_of(values("none", "invalid_request"), values(None, "text")),
        "share_state_refusals.state_that_makes_no_sense",
    ),
    Difference(
        "DIF-44",
        r"^4\.read_share_group_state\.results.*\.state_batches$",
        _only_here,
        "share_state.initialised_twice",
    ),
    Difference(
        "DIF-45",
        r"^2\.share_acknowledge\.(responses.*\.(error_code|leader_id)|node_endpoints)$",
        any_of(
            values("not_leader_or_follower", "unknown_topic_or_partition"),
            values("unknown_server_error", "unknown_topic_or_partition"),
            values("leader_id", -1),
            _only_there,
        ),
        "share_offsets.altered_while_a_session_is_open share_offsets.deleted_while_a_session_is_open",
    ),
    Difference(
        "DIF-47",
        r"^[12]\.alter_share_group_offsets\.responses\[0\]\.partitions$",
        lambda theirs, ours: theirs == 2 * ours,
        "share_offsets.the_same_things_twice",
    ),
    Difference(
        "DIF-50",
        r"^(0|6|10)\.end_txn\.error_code$",
        values("invalid_txn_state", "producer_fenced"),
        "txn_ends.ends_repeated_with_the_epoch_before txn_ends.the_broker_aborts_and_the_client_commits "
        "txn_producers.an_open_transaction_is_aborted",
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
        _only_there,
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
        "DIF-57",
        r"\.describe_producers\..*\.last_timestamp$",
        lambda theirs, ours: theirs < 1_800_000_000_000 and ours == "now",
        "txn_markers.*",
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
    Difference(
        "DIF-60",
        r"^[46]\.join_group\..*(leader|member_id)$",
        _cut_to_100_characters,
        "classic_static.instance_id_that_is_blank_or_long",
    ),
    Difference(
        "DIF-61",
        r"^[1-3]\.(join_group\.(protocol_name|members\[0\]\.metadata)|sync_group\.|describe_groups\.)",
        any_of(
            values("two", "one"),
            values("3", "1"),
            lambda theirs, ours: ours in ("inconsistent_group_protocol", None, "", "CompletingRebalance"),
        ),
        "classic_join.the_same_protocol_twice",
    ),
    Difference(
        "DIF-62",
        r"^(2\.describe_groups\.groups\[0\]\.(group_state|protocol_data|members\[0\]\.member_metadata)|3\.heartbeat\.error_code)$",
        kafka_says("PreparingRebalance", "", "rebalance_in_progress"),
        "classic_leave.id_that_was_not_used_yet",
    ),
    Difference(
        "DIF-63",
        r"^(0\.join_group\.(error_code|generation_id|protocol_type|protocol_name|leader|member_id)|2\.heartbeat\.error_code)$",
        kafka_says("group_max_size_reached", -1, None, "", "none"),
        "classic_static.comes_back_to_a_full_group",
    ),
    Difference(
        "DIF-70",
        r"^[02]\.consumer_group_heartbeat\.(member_epoch|assignment\.topic_partitions)$",
        any_of(values(1, 2), _more_rows),
        "consumer_regex.an_expression",
    ),
    Difference(
        "DIF-71",
        r"^4\.consumer_group_heartbeat\.",
        kafka_says("invalid_regular_expression", "text", None, 0),
        "consumer_regex.expressions_of_newer_re2",
    ),
    Difference(
        "DIF-72",
        r"^[2-5]\.(heartbeat|sync_group)\.",
        any_of(
            *(values("none", code) for code in ("unknown_member_id", "rebalance_in_progress")),
            *(values(kafka, None) for kafka in ("consumer", "range")),
            values("of b", ""),
        ),
        "group_upgrades_midway.a_follower_waits_and_assignments_cannot_be_read",
    ),
    Difference(
        "DIF-75",
        r"^[356]\.heartbeat\.error_code$",
        values("illegal_generation", "rebalance_in_progress"),
        "group_upgrades_members.more_members_than_a_classic_group_may_have "
        "group_upgrades_members.upgraded_and_downgraded_again "
        "group_downgrades.leaving_before_anything_has_settled",
    ),
    Difference(
        "DIF-76",
        r"^(2|9|16)\.consumer_group_heartbeat\.error_code$",
        values("group_id_not_found", "unknown_member_id"),
        "group_upgrades_members.a_native_member_after_the_downgrade "
        "group_downgrades.an_empty_consumer_group group_downgrades.the_last_consumer_member_leaves",
    ),
    Difference(
        "DIF-77",
        r"^(6|8|9|11|45|51)\.(consumer|share)_group_heartbeat\.assignment$",
        lambda theirs, ours: theirs is None and bool(ours),
        "consumer_joining.epochs_of_a_member consumer_reconciling.owned_partitions_that_make_no_sense "
        "consumer_reconciling.the_epoch_while_partitions_are_given_up group_heartbeats.fenced_epochs "
        "consumer_walks.uniform "
        "consumer_walks.uniform_with_static_members",
    ),
    Difference(
        "DIF-73",
        r"^(0\.incremental_alter_configs\.responses|1\.describe_configs\.results)\[0\]\.",
        any_of(values("none", "invalid_request"), values(None, "text"), _only_there),
        "telemetry.settings_of_client_metrics",
    ),
    Difference(
        "DIF-98",
        r"^[02]\.incremental_alter_configs\.responses\[0\]\.error_(code|message)$",
        any_of(values("invalid_request", "none"), values("text", None)),
        "group_configs.broker_settings_that_cannot_be_altered",
    ),
    Difference(
        "DIF-98",
        r"^0\.describe_configs\.results\[0\]\.configs$",
        _share_groups_settings_may_be_altered,
        "group_configs.broker_settings",
    ),
    Difference(
        "DIF-74",
        r"^[123]\.fetch\.responses\[0\]\.partitions\[0\]\.",
        any_of(
            values("unknown_topic_or_partition", "unknown_topic_id"),
            values("inconsistent_topic_id", "unknown_topic_id"),
            values(None, []),
        ),
        "consumer_fetching.deleted_within_a_session consumer_fetching.made_again_within_a_session",
    ),
    Difference(
        "DIF-85",
        r"^[06]\.alter_share_group_offsets\.responses\[0\]\.partitions\[0\]\.error_(code|message)$"
        r"|^5\.initialize_share_group_state\.results\[0\]\.partitions\[0\]\.error_(code|message)$",
        any_of(values("none", "invalid_request"), values(None, "text")),
        "share_offsets.altered share_offsets.consuming_from_below_zero share_state.initial_start_offsets",
    ),
    Difference(
        "DIF-85",  # the previous offset stays
        r"^[27]\.describe_share_group_offsets\..*\.(start_offset|lag)$|^6\.read_share_group_state_summary\..*\.(state_epoch|start_offset)$",
        any_of(values(-5, -1), values(9, -1), values(3, 2), values(-7, 0)),
        "share_offsets.altered share_offsets.consuming_from_below_zero share_state.initial_start_offsets",
    ),
    Difference(
        "DIF-86",
        r"^0\.describe_share_group_offsets\..*\.lag$",
        values(2, 0),
        "share_offsets.lag_is_not_clamped",
    ),
)


def explain(found: Found) -> str | None:
    """The id of the difference that explains this one. None: a bug of kbroker, or a difference that
    is not listed yet."""
    return next((known.id for known in KNOWN if known.explains(found)), None)
