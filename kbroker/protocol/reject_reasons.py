"""The reasons of rejected records, in a tagged field of kbroker's own at the end of a
ShareAcknowledge request (v1 and later).

    tag 10000    compact array of reasons
    reason       topic id (16), partition (4), offset (8), type, message, traceback (compact
                 strings), tagged fields

A client sends it only to a broker whose ApiVersions lists the feature FEATURE. kio refuses unknown
tags, so array_check.py cuts the field out before decoding, and this module parses it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from ..share.reasons import Reason
from .array_check import Buffer, Edit, skip_tags, uvarint

FEATURE: Final = "kbroker.reject.reason"
SHARE_ACKNOWLEDGE: Final = 79
_PLACE: Final = struct.Struct(">16siq")
_LEAST_BYTES: Final = _PLACE.size + 4


class RejectReason(NamedTuple):
    """Why a client rejects the record at `offset`. The texts may be longer than what is stored."""

    topic_id: UUID
    partition: int
    offset: int
    reason: Reason


class ReasonedAcknowledge(NamedTuple):
    """A ShareAcknowledge request with reasons: the fields of kio's entity, and they."""

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    topics: Sequence[Any]
    is_renew_ack: bool
    reasons: Sequence[RejectReason]


def with_reasons(entity: Any, frame: Buffer, edits: Sequence[Edit]) -> Any:
    """`entity`, with the reasons that were cut out of its frame. Raises ValueError and IndexError
    for reasons that cannot be parsed."""
    fields = [edit for edit in edits if edit.aside >= 0]
    if not fields:
        return entity
    if len(fields) > 1:
        raise ValueError("more than one field with reasons")
    reasons = parse_reasons(frame[fields[0].aside : fields[0].end])
    is_renew_ack = getattr(entity, "is_renew_ack", False)
    common = entity.group_id, entity.member_id, entity.share_session_epoch, entity.topics
    return ReasonedAcknowledge(*common, is_renew_ack, reasons)


def parse_reasons(content: Buffer) -> list[RejectReason]:
    """Raises ValueError, and IndexError if `content` ends too soon."""
    count, at = uvarint(content, 0)
    if not count:
        raise ValueError("null where reasons must be")
    if (count - 1) * _LEAST_BYTES > len(content) - at:
        raise ValueError(f"{count - 1} reasons in {len(content) - at} bytes")
    reasons = []
    for _ in range(count - 1):
        reason, at = _reason(content, at)
        reasons.append(reason)
    if at != len(content):
        raise ValueError(f"{len(content) - at} bytes after the last reason")
    return reasons


def _reason(content: Buffer, at: int) -> tuple[RejectReason, int]:
    if at + _PLACE.size > len(content):
        raise ValueError("the reasons end too soon")
    topic_id, partition, offset = _PLACE.unpack_from(content, at)
    at += _PLACE.size
    texts = []
    for _ in range(3):
        text, at = _text(content, at)
        texts.append(text)
    return RejectReason(UUID(bytes=topic_id), partition, offset, Reason(*texts)), skip_tags(content, at)


def _text(content: Buffer, at: int) -> tuple[str, int]:
    length, at = uvarint(content, at)
    end = at + length - 1
    if not length:
        raise ValueError("null where a text must be")
    if end > len(content):
        raise ValueError("a text ends beyond the reasons")
    return str(content[at:end], "utf-8"), end
