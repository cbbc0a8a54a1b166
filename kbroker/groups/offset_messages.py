"""What committed offsets take and give: OffsetCommit, OffsetFetch, OffsetDelete as the coordinator
sees them.

The API layer has found the topics out: what is asked for exists. Replies are error codes and
offsets by topic id and partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.errors import ErrorCode
from kbroker.groups.outcome import OffsetOf

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class OffsetsSettings:
    """Broker settings: offsets.retention.minutes and offset.metadata.max.bytes."""

    retention_ms: int = 7 * 24 * 3_600_000
    metadata_max_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset of an OffsetCommit. `leader_epoch` -1: not stated."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """OffsetCommit. `generation`: of a classic group, or the member epoch; -1 with no member id:
    whoever commits is no member. `retention_ms` (v2-4) -1: as the broker keeps them."""

    group_id: str
    offsets: Mapping[OffsetOf, Commit]
    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    version: int = 10
    retention_ms: int = -1


@dataclass(frozen=True, slots=True)
class OffsetErrors:
    """A code for each partition asked for (OffsetCommit, OffsetDelete); `error_code`: what refused
    all of it."""

    error_code: ErrorCode = ErrorCode.none
    rows: Mapping[OffsetOf, ErrorCode] = field(default_factory=dict)

    def code(self, partition: OffsetOf) -> ErrorCode:
        return self.rows[partition] if self.error_code is ErrorCode.none else self.error_code
