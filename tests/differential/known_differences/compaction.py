"""Log compaction: batches after a pass, its settings, and share groups over holes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, values
from tests.differential.transcript import Json


def _as_written(theirs: Json, ours: Json) -> bool:
    """The same value, which Kafka returns as it was sent."""
    if theirs == "1.7976931348623157E308":
        return bool(float(theirs) == float(ours))
    if "," in ours or ours.isalpha():
        return [each.strip() for each in theirs.split(",")] == ours.split(",")
    return float(theirs) == float(ours) and ours == str(float(theirs))


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-87",
        r"\]\.base_time$",
        lambda theirs, ours: theirs != ours and isinstance(ours, int),
        "compaction_*",
    ),
    Difference(
        "DIF-88",
        r"^\d+\.(create_topics\.topics|describe_configs\.results)\[0\]\.configs\[\d\]\.value$",
        _as_written,
        "compaction_settings.*",
    ),
    Difference(
        "DIF-89",
        r"^12\.create_topics\.topics\[0\]\.",
        any_of(
            values("none", "invalid_config"),
            values("id?", None),
            values(None, "text"),
            values(1, -1),
            lambda theirs, ours: ours == [] and theirs[0]["value"] == "NaN",
        ),
        "compaction_settings.ratios_of_new_topics",
    ),
    Difference(
        "DIF-89",
        r"^7\.incremental_alter_configs\.responses\[0\]\.error_(code|message)$",
        any_of(values("none", "invalid_request"), values(None, "text")),
        "compaction_settings.the_broker_s_settings_are_altered",
    ),
    Difference(
        "DIF-90",
        r"^0\.share_fetch\..*\.acquired_records\[1\]\.last_offset$",
        values(5, 3),
        "compaction_share.several_batches_at_once",
    ),
    Difference(
        "DIF-91",
        r"^0\.share_fetch\.responses.*\.(records|acquired_records)(\[0\]|$)",
        lambda theirs, ours: theirs != ours,
        "compaction_share.batches_without_records compaction_share.in_record_limit_mode",
    ),
    Difference(
        "DIF-92",
        r"^(0|9|17)\.(describe_configs\.results\[0\]\.configs\[\d\]\.read_only|incremental_alter_configs\.responses\[0\]\.error_(code|message))$",
        any_of(values(False, True), values("none", "invalid_request"), values(None, "text")),
        "compaction_settings.the_broker_s_settings compaction_settings.the_broker_s_settings_are_altered",
    ),
)
