"""The offsets that groups have committed (OffsetCommit, OffsetFetch, OffsetDelete), and when they are forgotten. Pure.

Save, then apply: an offset that is committed is in the outcome's changes and in an ApplyOffsets effect; nobody sees it before that
is applied. Whether a group's member may commit is the group's business: groups.py asks it first.

Offsets belong to topics by id: those of a deleted topic go with it, and one that is created anew under the name has none.

    forgotten after the retention time, counted from     when the group
    the commit                                           was never more than its offsets, or does not subscribe to the topic
    when the last member left                            is a classic group without members
    (never)                                              subscribes to the topic

A commit of version 2 to 4 may say how long its offsets are kept; that holds whatever the group does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from kbroker.consumer_group_records import AnyGroupOffset, ExpiringGroupOffset, GroupOffset
from kbroker.coordinator.offsets_api import Commit, CommitRequest, OffsetErrors, OffsetsSettings
from kbroker.coordinator.outcome import ApplyOffsets, OffsetOf, Outcome, R
from kbroker.errors import ErrorCode
from kbroker.state_records import GroupOffsetKey, parse_key


class Retention(NamedTuple):
    """How long a group's offsets are kept. `counted_from_ms`: since when it is empty; None: each counts from its commit.
    `is_subscribed`: topics whose offsets stay."""

    counted_from_ms: int | None
    is_subscribed: Callable[[UUID], bool]


@dataclass(frozen=True, slots=True)
class OffsetsStatistics:
    """`groups` with offsets; since the start: `commits` of single offsets that were saved, `expired` ones."""

    groups: int
    offsets: int
    commits: int
    expired: int


class Offsets:
    def __init__(self, settings: Callable[[], OffsetsSettings]) -> None:
        self._settings = settings
        self._groups: dict[str, dict[OffsetOf, AnyGroupOffset]] = {}
        self._commits = 0
        self._expired = 0

    def statistics(self) -> OffsetsStatistics:
        return OffsetsStatistics(len(self._groups), sum(map(len, self._groups.values())), self._commits, self._expired)

    def of(self, group_id: str) -> Mapping[OffsetOf, AnyGroupOffset]:
        """What the group has committed; empty for a group that nobody knows."""
        return self._groups.get(group_id, {})

    def group_ids(self) -> Iterable[str]:
        return self._groups.keys()

    def topic_ids(self) -> set[UUID]:
        """All topics that there are offsets for, so that at start those that exist no more can be told to be deleted."""
        return {topic_id for offsets in self._groups.values() for topic_id, _ in offsets}

    # --- deciding ---

    def commit(self, request: CommitRequest, *, now_ms: int) -> Outcome[OffsetErrors]:
        """The group has let the member commit. Metadata that is too long refuses its own partition only."""
        limit = self._settings().metadata_max_bytes
        rows: dict[OffsetOf, ErrorCode] = {}
        offsets: dict[OffsetOf, AnyGroupOffset | None] = {}
        for partition, commit in request.offsets.items():
            if commit.metadata is not None and _java_length(commit.metadata) > limit:
                rows[partition] = ErrorCode.offset_metadata_too_large
                continue
            rows[partition] = ErrorCode.none
            offsets[partition] = _offset(commit, request.retention_ms, now_ms)
        return self._outcome(request.group_id, offsets, OffsetErrors(rows=rows))

    def delete(self, group_id: str, partitions: Mapping[OffsetOf, ErrorCode]) -> Outcome[OffsetErrors]:
        """OffsetDelete of those partitions whose code is 0; there need not be an offset."""
        known = self.of(group_id)
        gone = {partition: None for partition, code in partitions.items() if code is ErrorCode.none and partition in known}
        return self._outcome(group_id, gone, OffsetErrors(rows=partitions))

    def remove_group(self, group_id: str) -> Outcome[None]:
        """The group is deleted."""
        return self._outcome(group_id, dict.fromkeys(self.of(group_id)))

    def topic_deleted(self, topic_id: UUID) -> list[Outcome[None]]:
        """One for each group that has offsets of the topic."""
        of_topic = {group_id: [each for each in offsets if each[0] == topic_id] for group_id, offsets in self._groups.items()}
        return [self._outcome(group_id, dict.fromkeys(gone)) for group_id, gone in of_topic.items() if gone]

    def expire(self, group_id: str, retention: Retention, *, now_ms: int) -> Outcome[bool]:
        """Forget what is old. The reply says whether nothing is left."""
        known = self.of(group_id)
        gone = {partition: None for partition, offset in known.items() if self._is_old(partition[0], offset, retention, now_ms)}
        self._expired += len(gone)
        return self._outcome(group_id, gone, len(gone) == len(known))

    def _is_old(self, topic_id: UUID, offset: AnyGroupOffset, retention: Retention, now_ms: int) -> bool:
        if retention.is_subscribed(topic_id):
            return False
        if isinstance(offset, ExpiringGroupOffset):
            return now_ms >= offset.expire_timestamp
        since_ms = offset.commit_timestamp if retention.counted_from_ms is None else retention.counted_from_ms
        return now_ms >= since_ms + self._settings().retention_ms

    @staticmethod
    def _outcome(group_id: str, offsets: Mapping[OffsetOf, AnyGroupOffset | None], reply: R | None = None) -> Outcome[R]:
        if not offsets:
            return Outcome(reply=reply)
        changes = tuple(
            (GroupOffsetKey(group_id, *partition).encode(), None if offset is None else offset.encode())
            for partition, offset in offsets.items()
        )
        return Outcome(changes, reply, (ApplyOffsets(group_id, offsets),))

    # --- applying ---

    def apply(self, saved: ApplyOffsets) -> None:
        """These are saved: they are what fetches are answered with from now on."""
        known = self._groups.setdefault(saved.group_id, {})
        for partition, offset in saved.offsets.items():
            if offset is None:
                known.pop(partition, None)
            else:
                known[partition] = offset
                self._commits += 1
        if not known:
            del self._groups[saved.group_id]

    def load(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in what is stored (a scan of GroupOffsetKey.namespace). Raises ValueError for what is damaged."""
        for key, value in records:
            parsed = parse_key(key)
            assert isinstance(parsed, GroupOffsetKey)
            self._groups.setdefault(parsed.group_id, {})[parsed.topic_id, parsed.partition] = parsed.decode_value(value)


def _java_length(text: str) -> int:
    """In UTF-16 code units, as Kafka counts what its setting calls bytes."""
    return len(text.encode("utf-16-le")) // 2


def _offset(commit: Commit, retention_ms: int, now_ms: int) -> AnyGroupOffset:
    metadata = commit.metadata or ""
    if retention_ms >= 0:
        return ExpiringGroupOffset(offset=commit.offset, metadata=metadata, commit_timestamp=now_ms, expire_timestamp=now_ms + retention_ms)
    return GroupOffset(offset=commit.offset, leader_epoch=commit.leader_epoch, metadata=metadata, commit_timestamp=now_ms)
