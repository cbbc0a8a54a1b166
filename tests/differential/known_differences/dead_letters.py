"""Dead letters of share groups: those that Kafka loses or writes without a copy, and others."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.known_differences.matching import (
    Difference,
    any_of,
    more_rows,
    only_here,
    only_there,
    values,
)
from tests.differential.transcript import Json

_LETTERS = r"^\d+\.letters$"
_VALUE = r"^\d+\.letters\[\d\]\.value$"
_LAG = r"^\d+\.lag$"


def _copied(theirs: Json, ours: Json) -> bool:
    return theirs is None and isinstance(ours, str)


def _more_letters(theirs: Json, ours: Json) -> bool:
    """Kafka lacks some of the letters, so that others have lower offsets."""
    return more_rows([_placeless(row) for row in theirs], [_placeless(row) for row in ours])


def _without_the_marker(theirs: Json, ours: Json) -> bool:
    """kbroker has the same letters, but for that of a transaction marker."""
    rest = [_placeless(row) for row in theirs if ["__dlq.errors.offset", "2"] not in row["headers"]]
    return len(rest) == len(theirs) - 1 and [_placeless(row) for row in ours] == rest


def _placeless(row: Json) -> Json:
    return {name: value for name, value in row.items() if name != "offset"}


def _fewer_letters(theirs: Json, ours: Json) -> bool:
    return _more_letters(ours, theirs)


def _records_alone(theirs: Json, ours: Json) -> bool:
    """kbroker has no letters in the topic, only the records that were sent to it."""
    return more_rows(ours, theirs) and all(row["headers"] == [["own", "header"]] for row in ours)


def _joined(theirs: Json, ours: Json) -> bool:
    """All of Kafka's batches in one."""
    whole = {**theirs[0], "last_offset": theirs[-1]["last_offset"]}
    return ours == [whole]


KNOWN: Sequence[Difference] = (
    Difference(
        "DIF-120",
        _LETTERS,
        only_here,
        "dead_letters_checks.an_existing_topic_without_the_prefix "
        "dead_letters_checks.another_prefix_than_that_of_the_topic",
    ),
    Difference(
        "DIF-121",
        _VALUE,
        _copied,
        "dead_letters_copies.a_batch_that_decompresses_to_more_than_the_topic_allows "
        "dead_letters_copies.a_copy_that_is_too_large dead_letters_copies.one_of_the_copies_is_too_large",
    ),
    Difference(
        "DIF-122",
        _LETTERS,
        _more_letters,
        "dead_letters_copies.a_letter_that_is_too_large* dead_letters_copies.headers_that_are_too_large",
    ),
    Difference(
        "DIF-123", _LETTERS, only_here, "dead_letters_topics.a_compacted_topic_and_one_letter_without_key"
    ),
    Difference(
        "DIF-124",
        _LETTERS,
        _records_alone,
        "dead_letters_topics.the_source_is_its_own_dead_letter_topic",
    ),
    Difference("DIF-125", _LETTERS, only_there, "dead_letters_topics.the_source_is_deleted"),
    Difference("DIF-126", _VALUE, _copied, "dead_letters_copies.a_range_that_begins_below_the_log_start"),
    Difference(
        "DIF-127",
        r"^\d+\.batches$",
        _joined,
        "dead_letters_batches.different_counts dead_letters_batches.every_second_record",
    ),
    Difference(
        "DIF-128",
        _LETTERS,
        any_of(only_there, _fewer_letters),
        "dead_letters_why.held_records_that_the_log_no_longer_has* "
        "dead_letters_why.locks_of_records_that_the_log_no_longer_has",
    ),
    Difference(
        "DIF-58",
        r"^2\.share_acknowledge\.responses\[0\]\.partitions\[0\]\.error_(code|message)$",
        any_of(values("none", "invalid_record_state"), values(None, "text")),
        "dead_letters_why.a_transaction_and_its_marker",
        # Once the letters of the two records before it are written, the marker lies below the start
        # offset, where each acknowledgement is confirmed.
        is_certain=False,
    ),
    Difference("DIF-58", _LETTERS, _without_the_marker, "dead_letters_why.a_transaction_and_its_marker"),
    Difference(
        "DIF-58",  # a marker that no member has acknowledged yet
        _LAG,
        values(1, 0),
        "dead_letters_why.an_aborted_transaction dead_letters_copies.copies_of_a_transaction",
    ),
    Difference(
        "DIF-86",
        _LAG,
        any_of(values(2, 0), values(3, 0)),
        "dead_letters_why.a_log_start_that_moves_past_available_records "
        "dead_letters_copies.a_batch_that_begins_below_the_log_start",
    ),
)
