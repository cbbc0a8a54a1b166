"""Where kbroker answers otherwise than Apache Kafka on purpose: each has its reason in docs/differences.md under the same id.

A difference is matched by the script, the place in the answers and both values. Anything else that differs is a bug. One that no
script meets any more is a bug as well: the list tells what is, not what was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.differential.running import Found
from tests.differential.transcript import Json

_GROUP_SOURCE = 8


@dataclass(frozen=True)
class Difference:
    """`path`: a regular expression found in the place; `scripts`: patterns of names; `holds`: of Kafka's value and kbroker's."""

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


def any_of(*holds: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    return lambda theirs, ours: any(each(theirs, ours) for each in holds)


def _starts_with_an_empty_range(theirs: Json, ours: Json) -> bool:
    return bool(theirs[0]["last_offset"] < theirs[0]["first_offset"] and theirs[1:] == ours)


def _no_rows_but_one_with(field: str, wanted: Callable[[Json], bool]) -> Callable[[Json, Json], bool]:
    """Kafka's answer has no rows at all, kbroker's some row whose `field` is as wanted."""
    return lambda theirs, ours: theirs == [] and any(wanted(row[field]) for topic in ours for row in topic["partitions"])


def _only_here(theirs: Json, ours: Json) -> bool:
    """Kafka gives nothing, kbroker something."""
    return theirs == [] and bool(ours)


def _only_there(theirs: Json, ours: Json) -> bool:
    return bool(theirs) and ours == []


def _settings_of_dead_letters_besides(theirs: Json, ours: Json) -> bool:
    more = [row for row in ours if row["name"].startswith("errors.deadletterqueue.")]
    return bool(more) and theirs == [row for row in ours if row not in more]


def _without_the_group_s_own(theirs: Json, ours: Json) -> bool:
    return isinstance(theirs, list) and ours == [row for row in theirs if row["source"] != _GROUP_SOURCE] != theirs


NOT_YET_EQUAL = frozenset((Path(__file__).parent / "not_yet_equal.txt").read_text().split())
"""Scripts whose differences are neither mended nor listed so far. It only ever gets shorter."""

KNOWN: Sequence[Difference] = (
    Difference("DIF-1", r"current_leader\.leader_(id|epoch)$", lambda theirs, ours: theirs in (0, "epoch") and ours == -1),
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
        "share_fetch_requests.unknown_topic_id share_session_ends.topic_deleted",
    ),
    Difference(
        "DIF-4",
        r"^2\.share_acknowledge\.responses.*\.error_(code|message)$|^[35]\.share_fetch\.responses$",
        any_of(values("none", "invalid_record_state"), values(None, "text"), _no_rows_but_one_with("acquired_records", bool)),
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
        "DIF-7", r"^0\.share_fetch\.responses.*\.(records|acquired_records)$", _only_here, "share_session_ends.latest_is_decided_again"
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
        "group_configs.dead_letter_queue group_configs.defaults group_configs.broker_settings",
    ),
    Difference(
        "DIF-12",
        r"^4\.describe_configs\.results\[0\]\.configs\[0\]\.(value|config_source|synonyms)$",
        any_of(values("7", "5"), values(8, 5), _without_the_group_s_own),
        "group_configs.settings_outlive_the_group",
    ),
)


def explain(found: Found) -> str | None:
    """The id of the difference that explains this one, or None: a bug of ours, or a difference that is not listed yet."""
    return next((known.id for known in KNOWN if known.explains(found)), None)
