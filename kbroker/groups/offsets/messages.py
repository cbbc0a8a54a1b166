"""Requests and replies of committed offsets: OffsetCommit, OffsetFetch and OffsetDelete.

The API layer has resolved the topics, so all requested partitions exist. Replies are error codes
and offsets by topic id and partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.groups.outcome import OffsetOf

NO_GENERATION = -1


class OffsetsSettings(NamedTuple):
    """Broker settings: offsets.retention.minutes and offset.metadata.max.bytes."""

    retention_ms: int = 7 * 24 * 3_600_000
    metadata_max_bytes: int = 4096


class Commit(NamedTuple):
    """One offset of an OffsetCommit. `leader_epoch` -1: not stated."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = None


class CommitRequest(NamedTuple):
    """OffsetCommit and TxnOffsetCommit.

    - `generation`: of a classic group, or the member epoch. If -1 and there is no member id, the
          client is not a member
    - `version`: of OffsetCommit
    - `retention_ms`: from v2 to v4; -1: the broker's retention time
    - `knows_stale`: False: the client knows no errors of the new protocol's members"""

    group_id: str
    offsets: Mapping[OffsetOf, Commit]
    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    version: int = 10
    retention_ms: int = -1
    knows_stale: bool = True


@dataclass(frozen=True, slots=True)
class OffsetErrors:
    """A code for each partition of the request (OffsetCommit, OffsetDelete). `error_code`: refuses
    the whole request."""

    error_code: ErrorCode = ErrorCode.none
    rows: Mapping[OffsetOf, ErrorCode] = field(default_factory=dict)

    def code(self, partition: OffsetOf) -> ErrorCode:
        return self.rows[partition] if self.error_code is ErrorCode.none else self.error_code
