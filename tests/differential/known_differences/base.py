"""ApiVersions, Metadata, Produce, Fetch, ListOffsets, and frames."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, kafka_says, only_there, values
from tests.differential.transcript import Json

_OWN_FEATURE: Json = ["kbroker.reject.reason", 1, 1]


def _but_for_features_of_streams_and_quorums(theirs: Json, ours: Json) -> bool:
    """kbroker has its own one besides."""
    named = {"metadata.version", "group.version", "share.version", "transaction.version"}
    return bool([row for row in ours if row != _OWN_FEATURE] == [row for row in theirs if row[0] in named])


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-13",
        r"^\d\.(features in version \d|finalised)$",
        _but_for_features_of_streams_and_quorums,
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
            only_there,
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
        "DIF-23",
        r"^(17|19|21)\.produce\..*\.error_code$",
        values("invalid_record", "unknown_server_error"),
        "base_payloads.framings_of_gzip base_payloads.gzip_of_other_kinds",
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
)
