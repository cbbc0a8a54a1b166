"""Settings of groups, topics, client metrics and the broker."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, only_there, values
from tests.differential.transcript import Json

_GROUP_SOURCE = 8


def _without_the_group_s_own(theirs: Json, ours: Json) -> bool:
    return (
        isinstance(theirs, list)
        and ours == [row for row in theirs if row["source"] != _GROUP_SOURCE] != theirs
    )


def _as_written(theirs: Json, ours: Json) -> bool:
    """The same value, which Kafka returns with the blanks and capital letters of the request."""
    parts = [each.strip() for each in theirs.split(",")]
    return parts == ours.split(",") or (ours in {"true", "false"} and parts[0].lower() == ours)


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-88",
        r"^\d+\.create_topics\.topics\[0\]\.configs\[\d\]\.value$",
        _as_written,
        "no_effect_settings.*",
    ),
    Difference(
        "DIF-116",
        r"^(1|7|10)\.create_topics\.topics\[0\]\.",
        any_of(
            values("none", "invalid_config"),
            values("id?", None),
            values(None, "text"),
            values(1, -1),
            lambda theirs, ours: ours == [] and len(theirs) == 1,
        ),
        "no_effect_settings.promises",
    ),
    Difference(
        "DIF-117",
        r"^1\.asked for$",
        values("none", "unknown_topic_or_partition"),
        "refused_names.metadata_after_a_refused_creation refused_names.metadata_after_refused_replicas",
    ),
    Difference(
        "DIF-118",
        r"^[37]\.describe_configs\.results\[0\]\.configs\[0\]\.synonyms$",
        lambda theirs, ours: ours == [each for each in theirs if each["source"] == _GROUP_SOURCE],
        "consumer_configs.of_the_assignor_s_thread",
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
        only_there,
        "group_descriptions.a_deleted_group_begins_from_nothing",
    ),
    Difference(
        "DIF-73",
        r"^(0\.incremental_alter_configs\.responses|1\.describe_configs\.results)\[0\]\.",
        any_of(values("none", "invalid_request"), values(None, "text"), only_there),
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
        r"^0\.describe_configs\.results\[0\]\.configs\[\d+\]\.read_only$",
        values(True, False),
        "group_configs.broker_settings",
    ),
)
