"""Why a member rejected a record: kbroker's own addition to REJECT. The reason is saved with the
state ARCHIVING and becomes headers of the dead letter (dead_letter.py). Pure.

rejections.py says which reasons a write saves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_REASON_BYTES: Final = 8192
"""Of all three texts, in UTF-8."""
SHORT_REASON_BYTES: Final = 512
"""The same while dead letters wait for room on the disk, which their reasons would take."""


class Reason(NamedTuple):
    """Each text may be empty. `type` is for instance the class of an exception."""

    type: str
    message: str
    traceback: str


class ReasonChange(NamedTuple):
    """`reason` None: the stored one is removed."""

    offset: int
    reason: Reason | None


def shortened(reason: Reason, most_bytes: int = MAX_REASON_BYTES) -> Reason:
    """Cut to `most_bytes`, without splitting a character: first the traceback, from its start,
    because its last lines say most; then the message and the type, from their ends."""
    over = sum(map(_size, reason)) - most_bytes
    if over <= 0:
        return reason
    traceback = _last(reason.traceback, max(0, _size(reason.traceback) - over))
    kind = _first(reason.type, most_bytes)
    return Reason(kind, _first(reason.message, most_bytes - _size(kind)), traceback)


def _size(text: str) -> int:
    return len(text.encode())


def _first(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


def _last(text: str, size: int) -> str:
    encoded = text.encode()
    return encoded[len(encoded) - size :].decode(errors="ignore")
