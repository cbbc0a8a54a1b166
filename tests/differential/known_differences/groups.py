"""Classic groups, consumer groups, and heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, kafka_says, more_rows, values
from tests.differential.transcript import Json


def _cut_to_100_characters(theirs: Json, ours: Json) -> bool:
    return len(theirs) > 200 and ours.partition("(")[0] == theirs[:100]


KNOWN: Sequence[Difference] = (
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
        any_of(values(1, 2), more_rows),
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
)
