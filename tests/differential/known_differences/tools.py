"""Requests of tools: features, delegation tokens, and what rows without an error say."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, values
from tests.differential.transcript import Json

_NO_TIME, _EPOCH = "ff" * 8, "00" * 8
_DISABLED = "00003d"
_OTHER_REFUSALS = ("000041", "000043")
"""Not authorized, and a principal that is no user: the first bytes of an answer."""


def _times_of_zero(theirs: Json, ours: Json) -> bool:
    return theirs != ours and ours == theirs.replace(_NO_TIME, _EPOCH)


def _disabled_instead(theirs: Json, ours: Json) -> bool:
    return theirs.startswith(_OTHER_REFUSALS) and _times_of_zero(_DISABLED + theirs[6:], ours)


def _refused_without_rows(theirs: Json, ours: Json) -> bool:
    return bool(theirs) and all(row[1] == "none" for row in theirs) and ours == []


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-100",
        r"\.(describe_quorum|alter_partition_reassignments)(\.topics\[0\]\.partitions\[0\])?\.error_message$"
        r"|, version [01]\[2\]\[\d\]\[2\]$",
        values("text", None),
        "tool_requests.* tool_features.* security_tools.the_quorum security_tools.levels_of_features",
    ),
    Difference(
        "DIF-101", r"^\d+\.(altered|of another)\[1\]$", values(None, "text"), "security_tools.loggers"
    ),
    Difference(
        "DIF-130",
        r"^\d+\.((share|group|transaction)\.version [23]|'kraft\.version' [01]), version \d\[[012]\]$",
        any_of(values("none", "invalid_update_version"), values(None, "text"), _refused_without_rows),
        "tool_features.lower_levels tool_features.unknown_features_and_types",
    ),
    Difference(
        "DIF-131",
        r"_delegation_token, version \d$",
        any_of(_times_of_zero, _disabled_instead),
        "tool_requests.delegation_tokens security_tools.delegation_tokens*",
    ),
)
