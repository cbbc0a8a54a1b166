"""Log-ins, credentials, access control entries, and what a refusal says."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import Difference, any_of, kafka_says, values
from tests.differential.transcript import Json

_CLOSED = "connection closed"
_FAILED = "sasl_authentication_failed"
_SERVED = {
    "throttle_time": 0, "error_code": "invalid_request", "error_message": "text", "node_id": -1,
    "host": "host", "port": -1,
}  # fmt: skip
"""The answer to the request by which scripts see whether a connection is served."""


def _refused_with_an_answer(theirs: Json, ours: Json) -> bool:
    return theirs == _CLOSED and isinstance(ours, dict) and ours["error_code"] != "none"


def _invalid_instead_of_closed(theirs: Json, ours: Json) -> bool:
    """In the row, or in the answer of DescribeAcls, which has none."""
    if theirs != _CLOSED or not isinstance(ours, dict):
        return False
    (row,) = ours.get("results") or ours.get("filter_results") or (ours,)
    return bool(row["error_code"] == "invalid_request")


def _without_rows(theirs: Json, ours: Json) -> bool:
    return ours == [] and all(row["user"] == "" for row in theirs)


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-100",
        r"\.(sasl_authenticate|describe_acls|describe_user_scram_credentials)(\.results\[\d+\])?\.error_message$",
        values("text", None),
        "sasl_* acl_filters.* acl_hosts.filters_with_hosts security_tls.*",
    ),
    Difference(
        "DIF-101",
        r"\.(acknowledge_)?error_message$",
        values(None, "text"),
        "security_share_groups.* security_transactions.* "
        "security_cluster.altered_settings_of_everything_else",
    ),
    Difference(
        "DIF-102",
        r"^\d\.sasl_authenticate\.(error_code|auth_bytes)$",
        any_of(values(_FAILED, "none"), values("", "r=nonce,s=salt,i=4096")),
        "sasl_scram.first_message_of_an_unknown_user sasl_scram.token_authentication",
    ),
    Difference(
        "DIF-103",
        r"^[12]\.(sasl_authenticate\.error_code|find_coordinator)$",
        any_of(values(_FAILED, "none"), values(_CLOSED, _SERVED)),
        "sasl_plain.a_user_of_scram_alone",
    ),
    Difference(
        "DIF-104",
        r"^\d\.(sasl_authenticate\.(error_code|auth_bytes)|find_coordinator)$",
        any_of(
            values("none", _FAILED),
            values("v=signature", ""),
            values("r=nonce,s=salt,i=4096", ""),
            values(_SERVED, _CLOSED),
        ),
        "sasl_scram.other_headers_in_the_final_message sasl_scram.a_mandatory_extension",
    ),
    Difference(
        "DIF-105",
        r"^\d\.(sasl_authenticate\.(error_code|auth_bytes)|find_coordinator|Zoë\[[01]\])$",
        any_of(
            values(_FAILED, "none"),
            values("", "v=signature"),
            values(_CLOSED, _SERVED),
            lambda theirs, ours: theirs is True and ours is False,
        ),
        "sasl_scram.an_extension_in_the_final_message sasl_scram.names_with_letters_outside_of_ascii",
    ),
    Difference(
        "DIF-106",
        r"\.(sasl_authenticate|sasl_handshake)$",
        _refused_with_an_answer,
        "sasl_scram.proofs_of_a_wrong_length sasl_reauthentication.an_unknown_mechanism "
        "sasl_reauthentication.another_mechanism",
    ),
    Difference(
        "DIF-107",
        r"^(2\.sasl_handshake\.(error_code|mechanisms)|3\.a raw token)$",
        any_of(
            values("none", "illegal_sasl_state"),
            values(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"], []),
            values("answered", _CLOSED),
        ),
        "sasl_reauthentication.a_handshake_of_version_0",
    ),
    Difference(
        "DIF-108",
        r"^0\.describe_user_scram_credentials$",
        lambda theirs, ours: theirs == "no answer" and ours["error_code"] == "cluster_authorization_failed",
        "sasl_credentials.describing_all_without_rights",
    ),
    Difference(
        "DIF-108",
        r"^[012]\.describe_user_scram_credentials\.(results|error_message)$",
        any_of(values(None, "text"), _without_rows),
        "sasl_credentials.describing_without_rights",
    ),
    Difference(
        "DIF-109",
        r"^[025]\.alter_user_scram_credentials\.results\[0\]\.error_(code|message)$",
        any_of(
            values("none", "unacceptable_credential"),
            values("unknown_server_error", "unacceptable_credential"),
            values(None, "text"),
        ),
        "sasl_credentials.names sasl_credentials.salts_and_passwords",
    ),
    Difference(
        "DIF-110",
        r"^[2346]\.alter_user_scram_credentials\.results\[0\]\.error_code$",
        any_of(
            values("resource_not_found", "duplicate_resource"),
            values("unacceptable_credential", "duplicate_resource"),
        ),
        "sasl_credentials.the_same_user_twice",
    ),
    Difference(
        "DIF-111",
        r"^\d\.create_acls\.results\[0\]\.error_(code|message)$",
        any_of(values("unknown_server_error", "invalid_request"), values(None, "text")),
        "acl_entries.values_that_only_filters_have",
    ),
    Difference(
        "DIF-112",
        r"\.alter_share_group_offsets\.responses\[2\]\.topic_id$",
        values("id(-t2)", None),
        "security_share_groups.altered_offsets",
    ),
    Difference(
        "DIF-113",
        r"^1\.fetch\.responses\[0\]\.partitions\[0\]\.",
        any_of(kafka_says("topic_authorization_failed", -1), lambda theirs, ours: theirs == []),
        "security_records.fetched_as_a_follower",
    ),
    Difference(
        "DIF-114",
        r"^\d+\.((create|describe|delete)_acls|describe_acls\.error_code)$",
        any_of(values("none", "invalid_request"), _invalid_instead_of_closed),
        "acl_entries.values_that_do_not_exist acl_filters.values_that_do_not_exist",
    ),
    Difference(
        "DIF-115",
        r"^[12]\.fetch\.(error_code|session_id|responses)$",
        any_of(
            values("none", "fetch_session_id_not_found"),
            values("session", 0),
            lambda theirs, ours: bool(theirs) and ours == [],
        ),
        "security_records.fetch_sessions_of_another_user",
    ),
    Difference(
        "DIF-140",
        r"^0\.create_acls\.results\[[012]\]\.error_code$",
        values("none", "invalid_request"),
        "acl_hosts.odd_spellings_of_ranges",
    ),
    Difference(
        "DIF-140",
        r"^[123]\.message for '(.*)'$",
        lambda theirs, ours: theirs == "" and str(ours).startswith("Invalid CIDR notation '"),
        "acl_hosts.odd_spellings_of_ranges",
    ),
)
