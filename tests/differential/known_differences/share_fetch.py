"""ShareFetch and ShareAcknowledge."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import (
    Difference,
    any_of,
    no_rows_but_one_with,
    only_here,
    only_there,
    values,
)
from tests.differential.transcript import Json


def _starts_with_an_empty_range(theirs: Json, ours: Json) -> bool:
    return bool(theirs[0]["last_offset"] < theirs[0]["first_offset"] and theirs[1:] == ours)


def _part_of(theirs: Json, ours: Json) -> bool:
    """A lower last offset, or a contiguous part of the same records."""
    if isinstance(theirs, int):
        return bool(ours < theirs)
    return any(theirs[at : at + len(ours)] == ours for at in range(len(theirs) - len(ours) + 1)) and bool(
        ours
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
        "DIF-4",
        r"^2\.share_acknowledge\.responses.*\.error_(code|message)$|^[35]\.share_fetch\.responses$",
        any_of(
            values("none", "invalid_record_state"),
            values(None, "text"),
            no_rows_but_one_with("acquired_records", bool),
        ),
        "share_sessions.opened_again share_fetch_requests.unknown_acquire_mode",
    ),
    Difference(
        "DIF-5",
        r"^3\.share_fetch\.(error_code|acquisition_lock_timeout|responses)$",
        any_of(values("none", "share_session_not_found"), values(30_000, 0), only_there),
        "share_session_ends.two_sessions_over_one_connection",
    ),
    Difference(
        "DIF-6",
        r"^3\.share_fetch\.responses.*\.(delivery_count|records|acquired_records)$",
        any_of(values(1, 2), only_here),
        "share_session_ends.forgotten_before_the_end share_session_ends.forgotten_by_the_last_session",
    ),
    Difference(
        "DIF-7",
        r"^0\.share_fetch\.responses.*\.(records|acquired_records)$",
        only_here,
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
        any_of(only_here, only_there),
        "log_start.window_empty",
    ),
    Difference(
        "DIF-30",
        r"^[13]\.share_fetch\.responses$",
        any_of(only_there, no_rows_but_one_with("acquired_records", bool)),
        "share_waiting.records_come_after_the_session_was_opened_elsewhere",
    ),
    Difference(
        "DIF-31",
        r"^\d\.share_fetch\.responses.*\.records\[\d\]\.(last_offset|records)$",
        _part_of,
        "*.record_limit_mode acquisition.modes_mixed *_in_record_limit_mode",
    ),
)
