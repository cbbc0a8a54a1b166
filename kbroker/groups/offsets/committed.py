"""The offsets that groups have committed (OffsetCommit, OffsetFetch, OffsetDelete), and when they
expire. Pure.

Save, then apply: a committed offset is in the outcome's changes and in an ApplyOffsets effect.
Fetches see it only when that is applied. Until then, or until `not_saved`, it is in progress; a
removal also covers offsets in progress, since it is saved after them. routing.py first checks with
the group whether the member may commit.

Offsets of transactions are kept apart until they are committed (pending.py).

Offsets belong to topics by id: they are removed with a topic, and a new topic of that name has
none.

    expire after the retention time, from     if the group
    the commit                                has nothing but offsets, or does not subscribe to the
                                              topic
    the last member's leaving                 is a classic group without members
    (never)                                   subscribes to the topic

A commit of version 2 to 4 may state its own retention time. Times in memory are the session
clock's, times in records the wall clock's (stored_times.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.formats.group_records import MAX_METADATA_BYTES, AnyGroupOffset, ExpiringGroupOffset, GroupOffset
from kbroker.formats.state import (
    GroupOffsetKey,
    PendingOffsetKey,
    group_offset_key_end,
    group_offsets_prefix,
    parse_key,
)
from kbroker.groups.offsets.messages import Commit, CommitRequest, OffsetErrors, OffsetsSettings
from kbroker.groups.offsets.pending import PendingOf, PendingOffsets
from kbroker.groups.outcome import (
    ApplyOffsets,
    ApplyPending,
    EndPending,
    OffsetOf,
    Outcome,
    R,
    WhyGone,
    together,
)
from kbroker.groups.stored_times import StoredTimes

OffsetsByTopic = Mapping[UUID, Mapping[int, AnyGroupOffset]]
"""By topic id and partition."""
_NONE: Final[OffsetsByTopic] = {}


class OffsetRetention(NamedTuple):
    """When a group's offsets expire. `counted_from_ms`: when the group became empty; None: the time
    of each offset's commit. `is_subscribed`: says whether a topic's offsets stay."""

    counted_from_ms: int | None
    is_subscribed: Callable[[UUID], bool]


class OffsetsStatistics(NamedTuple):
    """`groups` with offsets, and `offsets` of all of them. Saved since the start, in offsets:
    `commits`, `expired`, and `deleted` (by OffsetDelete, or with their group or topic)."""

    groups: int
    offsets: int
    commits: int
    expired: int
    deleted: int


class Offsets:
    """`times` is shared with the coordinators of the groups."""

    def __init__(self, settings: Callable[[], OffsetsSettings], times: StoredTimes | None = None) -> None:
        self._settings = settings
        self._times = times or StoredTimes()
        self._groups: dict[str, dict[UUID, dict[int, AnyGroupOffset]]] = {}
        self._on_their_way: dict[str, dict[ApplyOffsets, None]] = {}
        self.pending = PendingOffsets()
        self._count = 0
        self._commits = 0
        self._gone: Counter[WhyGone] = Counter()

    def statistics(self) -> OffsetsStatistics:
        gone = self._gone
        return OffsetsStatistics(
            len(self._groups), self._count, self._commits, gone[WhyGone.EXPIRED], gone[WhyGone.DELETED]
        )

    def of(self, group_id: str) -> OffsetsByTopic:
        """All committed offsets of the group; empty for an unknown group."""
        return self._groups.get(group_id, _NONE)

    def has_any(self, group_id: str) -> bool:
        """Whether the group has offsets, including those in progress or in a transaction."""
        return group_id in self._groups or bool(self._in_progress(group_id))

    def group_ids(self) -> Iterable[str]:
        return {**self._groups, **{each.group_id: None for each in self.pending}}

    def topic_ids(self) -> set[UUID]:
        """All topics that have offsets."""
        return {each.partition[0] for each in self.pending}.union(*self._groups.values())

    # --- deciding ---

    def commit(self, request: CommitRequest, *, now_ms: int) -> Outcome[OffsetErrors]:
        """Commit offsets; the group has accepted the member. Metadata that is too long refuses its
        own partition only."""
        offsets, rows = self._checked(request, now_ms)
        return self._outcome(request.group_id, offsets, OffsetErrors(rows=rows))

    def commit_later(self, request: CommitRequest, producer_id: int, *, now_ms: int) -> Outcome[OffsetErrors]:
        """Commit offsets with the producer's transaction; it has the group, which has accepted the
        member."""
        offsets, rows = self._checked(request, now_ms)
        if not offsets:
            return Outcome(reply=OffsetErrors(rows=rows))
        group_id, ahead_ms = request.group_id, self._times.ahead_ms
        changes = tuple(
            (PendingOf(producer_id, group_id, partition).key(), offset.encode(ahead_ms))
            for partition, offset in offsets.items()
        )
        saving = ApplyPending(producer_id, group_id, offsets)
        self.pending.begin(saving)
        return Outcome(changes, OffsetErrors(rows=rows), (saving,))

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Outcome[None]:
        """The producer's transaction has ended: its offsets are committed, or dropped."""
        own = self.pending.of_producer(producer_id)
        if not own:
            return Outcome()
        committed, superseded = self.pending.committed_by(own) if is_commit else ({}, [])
        outcomes: list[Outcome[None]] = []
        for group_id, offsets in committed.items():
            newer = self._coming(group_id)
            in_force = {each: offset for each, offset in offsets.items() if each not in newer}
            outcomes.append(self._outcome(group_id, in_force, in_transaction=True))
        gone = tuple((each.key(), None) for each in (*own, *superseded))
        return together([*outcomes, Outcome(gone, effects=(EndPending(producer_id, tuple(superseded)),))])

    def _checked(
        self, request: CommitRequest, now_ms: int
    ) -> tuple[dict[OffsetOf, AnyGroupOffset], dict[OffsetOf, ErrorCode]]:
        """The offsets that are accepted, and a code for each partition."""
        limit = self._settings().metadata_max_bytes
        rows: dict[OffsetOf, ErrorCode] = {}
        offsets: dict[OffsetOf, AnyGroupOffset] = {}
        for partition, commit in request.offsets.items():
            if commit.metadata and _is_too_long(commit.metadata, limit):
                rows[partition] = ErrorCode.offset_metadata_too_large
                continue
            rows[partition] = ErrorCode.none
            offsets[partition] = _offset(commit, request.retention_ms, now_ms)
        return offsets, rows

    def delete(self, group_id: str, partitions: Mapping[OffsetOf, ErrorCode]) -> Outcome[OffsetErrors]:
        """OffsetDelete of the partitions whose code is 0, with or without an offset."""
        known, coming = self.of(group_id), self._in_progress(group_id)
        allowed = [partition for partition, code in partitions.items() if code is ErrorCode.none]
        gone = [each for each in allowed if each[1] in known.get(each[0], ()) or each in coming]
        return self._removal(group_id, gone, WhyGone.DELETED, OffsetErrors(rows=partitions))

    def remove_group(self, group_id: str) -> Outcome[None]:
        """Remove all offsets of a deleted group."""
        gone = {**dict.fromkeys(_all(self.of(group_id))), **self._in_progress(group_id)}
        return self._removal(group_id, gone, WhyGone.DELETED)

    def topic_deleted(self, topic_id: UUID) -> list[Outcome[None]]:
        """Remove the topic's offsets: an outcome for each group that has some."""
        outcomes: list[Outcome[None]] = []
        in_transaction = {each.group_id for each in self.pending if each.partition[0] == topic_id}
        for group_id in {*self._groups, *self._on_their_way, *in_transaction}:
            gone: dict[OffsetOf, None] = {
                (topic_id, number): None for number in self.of(group_id).get(topic_id, ())
            }
            gone |= {each: None for each in self._in_progress(group_id) if each[0] == topic_id}
            if gone:
                outcomes.append(self._removal(group_id, gone, WhyGone.DELETED))
        return outcomes

    def expire(self, group_id: str, retention: OffsetRetention, *, now_ms: int) -> Outcome[bool]:
        """Remove old offsets, unless a transaction is about to replace them. The reply is True if
        none is left."""
        known, coming = self.of(group_id), self._in_progress(group_id)
        newest_ms = now_ms - self._settings().retention_ms
        gone: list[OffsetOf] = []
        count = 0
        for topic_id, offsets in known.items():
            count += len(offsets)
            if retention.is_subscribed(topic_id):
                continue
            gone += [
                (topic_id, number)
                for number, offset in offsets.items()
                if self._is_old(offset, retention.counted_from_ms, newest_ms, now_ms)
                and (topic_id, number) not in coming
            ]
        return self._removal(group_id, gone, WhyGone.EXPIRED, len(gone) == count and not coming)

    def _is_old(
        self, offset: AnyGroupOffset, counted_from_ms: int | None, newest_ms: int, now_ms: int
    ) -> bool:
        if isinstance(offset, ExpiringGroupOffset):
            kept_ms = offset.expire_timestamp - offset.commit_timestamp
            return now_ms - self._times.latest(offset.commit_timestamp) >= kept_ms
        return newest_ms >= (
            self._times.latest(offset.commit_timestamp) if counted_from_ms is None else counted_from_ms
        )

    def _coming(self, group_id: str) -> dict[OffsetOf, None]:
        """Partitions with an offset, or a removal, that is not saved yet."""
        return {each: None for saving in self._on_their_way.get(group_id, ()) for each in saving.offsets}

    def _in_progress(self, group_id: str) -> dict[OffsetOf, None]:
        """These, and partitions with an offset in a transaction."""
        return self._coming(group_id) | {each.partition: None for each in self.pending.of_group(group_id)}

    def _removal(
        self, group_id: str, gone: Iterable[OffsetOf], why: WhyGone, reply: R | None = None
    ) -> Outcome[R]:
        return self._outcome(group_id, dict.fromkeys(gone), reply, why)

    def _outcome(
        self,
        group_id: str,
        offsets: Mapping[OffsetOf, AnyGroupOffset | None],
        reply: R | None = None,
        why: WhyGone | None = None,
        *,
        in_transaction: bool = False,
    ) -> Outcome[R]:
        """`in_transaction`: the end of a transaction commits them."""
        if not offsets:
            return Outcome(reply=reply)
        prefix, ahead_ms = group_offsets_prefix(group_id), self._times.ahead_ms
        changes = tuple(
            (
                prefix + group_offset_key_end(topic_id.bytes, number),
                None if offset is None else offset.encode(ahead_ms),
            )
            for (topic_id, number), offset in offsets.items()
        )
        if self.pending and not in_transaction:
            # They come too late from here on: not even a restart finds them.
            late = self.pending.of_partitions(group_id, offsets)
            changes = (*changes, *((each.key(), None) for each in late))
        saving = ApplyOffsets(group_id, offsets, why, in_transaction)
        self._on_their_way.setdefault(group_id, {})[saving] = None
        return Outcome(changes, reply, (saving,))

    # --- applying ---

    def apply(self, saved: ApplyOffsets) -> None:
        """Make saved offsets visible to fetches."""
        self.not_saved(saved)
        if self.pending and not saved.in_transaction:
            late = self.pending.of_partitions(saved.group_id, saved.offsets)
            self.pending.drop(each for each in late if saved.offsets[each.partition] is None)
            self.pending.supersede(each for each in late if saved.offsets[each.partition] is not None)
        count = self._count
        for (topic_id, number), offset in saved.offsets.items():
            if offset is None:
                self._pop(saved.group_id, topic_id, number)
            else:
                self._put(saved.group_id, topic_id, number, offset)
        if saved.why_gone is None:
            self._commits += len(saved.offsets)
        else:
            self._gone[saved.why_gone] += count - self._count

    def not_saved(self, refused: ApplyOffsets) -> None:
        """Drop offsets that could not be saved."""
        saving = self._on_their_way[refused.group_id]
        del saving[refused]
        if not saving:
            del self._on_their_way[refused.group_id]

    def _put(self, group_id: str, topic_id: UUID, number: int, offset: AnyGroupOffset) -> None:
        offsets = self._groups.setdefault(group_id, {}).setdefault(topic_id, {})
        self._count += number not in offsets
        offsets[number] = offset

    def _pop(self, group_id: str, topic_id: UUID, number: int) -> None:
        """Remove an offset, and its topic and group if they have none left."""
        topics = self._groups.get(group_id, {})
        offsets = topics.get(topic_id, {})
        self._count -= offsets.pop(number, None) is not None
        if topic_id in topics and not offsets:
            del topics[topic_id]
            if not topics:
                del self._groups[group_id]

    def load_pending(self, records: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        """Load the stored offsets of transactions (a scan of PendingOffsetKey.namespace). Raises
        ValueError for damaged ones."""
        for key, value in records:
            parsed = parse_key(key)
            assert isinstance(parsed, PendingOffsetKey)
            offset = self._loaded(parsed.decode_value(value), now_ms)
            log = parsed.topic_id, parsed.partition
            self.pending.put(parsed.producer_id, parsed.group_id, {log: offset})

    def load(self, records: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        """Load the stored offsets (a scan of GroupOffsetKey.namespace). Raises ValueError for
        damaged ones."""
        for key, value in records:
            parsed = parse_key(key)
            assert isinstance(parsed, GroupOffsetKey)
            self._put(
                parsed.group_id,
                parsed.topic_id,
                parsed.partition,
                self._loaded(parsed.decode_value(value), now_ms),
            )

    def _loaded(self, offset: AnyGroupOffset, now_ms: int) -> AnyGroupOffset:
        """The offset with its times on the session clock."""
        commit_ms = self._times.loaded(offset.commit_timestamp, now_ms)
        if isinstance(offset, ExpiringGroupOffset):
            kept_ms = offset.expire_timestamp - offset.commit_timestamp
            return replace(offset, commit_timestamp=commit_ms, expire_timestamp=commit_ms + kept_ms)
        return replace(offset, commit_timestamp=commit_ms)


def _all(offsets: OffsetsByTopic) -> Iterator[OffsetOf]:
    return ((topic_id, number) for topic_id, numbers in offsets.items() for number in numbers)


def _is_too_long(metadata: str, limit: int) -> bool:
    """Like Kafka, measure in UTF-16 code units, although the setting is named bytes. Metadata that
    does not fit into Kafka's record is always too long."""
    if metadata.isascii():
        return len(metadata) > min(limit, MAX_METADATA_BYTES)
    return len(metadata.encode("utf-16-le")) // 2 > limit or len(metadata.encode()) > MAX_METADATA_BYTES


def _offset(commit: Commit, retention_ms: int, now_ms: int) -> AnyGroupOffset:
    metadata = commit.metadata or ""
    if retention_ms >= 0:
        return ExpiringGroupOffset(
            offset=commit.offset,
            metadata=metadata,
            commit_timestamp=now_ms,
            expire_timestamp=now_ms + retention_ms,
        )
    return GroupOffset(
        offset=commit.offset, leader_epoch=commit.leader_epoch, metadata=metadata, commit_timestamp=now_ms
    )
