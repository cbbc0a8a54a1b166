"""The share coordinator's API, and the offsets of share groups."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, only_here, only_there, values

KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-43",
        r"^[2-6]\.write_share_group_state\.results.*\.error_(code|message)$",
        any_of(
            values("none", "invalid_request"),
            values(None, "text"),
            # A batch that Kafka cannot combine with others; later writes fail, too.
            values("unknown_server_error", "invalid_request"),
            values("unknown_server_error", "none"),
            values("text", None),
        ),
        "share_state_refusals.state_that_makes_no_sense",
    ),
    Difference(
        "DIF-44",
        r"^4\.read_share_group_state\.results.*\.state_batches$",
        only_here,
        "share_state.initialised_twice",
    ),
    Difference(
        "DIF-45",
        r"^2\.share_acknowledge\.(responses.*\.(error_code|leader_id)|node_endpoints)$",
        any_of(
            values("not_leader_or_follower", "unknown_topic_or_partition"),
            values("unknown_server_error", "unknown_topic_or_partition"),
            values("leader_id", -1),
            only_there,
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
