"""Classic groups, consumer groups and the offsets of both, behind one interface. Pure;
kbroker/broker/groups/runner.py saves its outcomes and carries them out.

A group id belongs to one type, and each request goes to the part that has the group. The part that
a request belongs to creates a group that does not exist yet.

    request                   classic group        consumer group     share group
    JoinGroup                 classic              mixed              INCONSISTENT_GROUP_PROTOCOL
    SyncGroup, Heartbeat,     classic              mixed              UNKNOWN_MEMBER_ID
      LeaveGroup
    ConsumerGroupHeartbeat    is upgraded          consumer           GROUP_ID_NOT_FOUND
    OffsetCommit,             classic checks       consumer checks    GROUP_ID_NOT_FOUND
      OffsetDelete            the member           the member
    OffsetFetch               no check             consumer checks    no offsets
                                                   the epoch

mixed: members of the classic protocol in a consumer group (consumer/mixed.py). This module must not
know how a protocol works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import MAX_GROUP_ID_BYTES, GroupKey, parse_key
from kbroker.groups.classic import messages as classic
from kbroker.groups.classic.coordinator import ClassicGroups, ClassicGroupsStatistics
from kbroker.groups.consumer.coordinator import CONSUMER_RECORD_TYPES, ConsumerGroups
from kbroker.groups.consumer.messages import ConsumerGroupsStatistics
from kbroker.groups.consumer.mixed import MixedGroups
from kbroker.groups.ids import CLASSIC, CONSUMER, SHARE, GroupIds, ListedGroup
from kbroker.groups.offsets.committed import OffsetRetention, Offsets, OffsetsByTopic, OffsetsStatistics
from kbroker.groups.offsets.messages import CommitRequest, OffsetErrors
from kbroker.groups.outcome import (
    ApplyOffsets,
    ApplyPending,
    Coordinator,
    Effect,
    EndPending,
    GenerationSaved,
    OffsetOf,
    Outcome,
    Records,
    Ticket,
    together,
)
from kbroker.groups.share.messages import TopicsView

_GROUP_NOT_FOUND_FROM = 9
"""The first OffsetCommit version with GROUP_ID_NOT_FOUND. Earlier ones get ILLEGAL_GENERATION."""

_RECORD_TYPES = CONSUMER_RECORD_TYPES | {RecordType.CLASSIC_GROUP_METADATA}


class GroupsStatistics(NamedTuple):
    classic: ClassicGroupsStatistics
    consumer: ConsumerGroupsStatistics
    offsets: OffsetsStatistics


class Groups(Coordinator):
    """`group_ids`: shared with the share groups' coordinator."""

    def __init__(
        self,
        classic_groups: ClassicGroups,
        consumer: ConsumerGroups,
        offsets: Offsets,
        group_ids: GroupIds,
        topics: TopicsView,
    ) -> None:
        self.classic = classic_groups
        self.consumer = consumer
        self.mixed = MixedGroups(consumer)
        self.offsets = offsets
        self._group_ids = group_ids
        self._topics = topics
        consumer.convert_with(classic_groups)

    def statistics(self) -> GroupsStatistics:
        return GroupsStatistics(
            self.classic.statistics(), self.consumer.statistics(), self.offsets.statistics()
        )

    # --- members of the classic protocol ---

    def join(
        self, request: classic.JoinRequest, ticket: Ticket, *, now_ms: int
    ) -> Outcome[classic.JoinReply]:
        """JoinGroup. No reply: it waits for the other members."""
        if self._is_classic(request.group_id):
            return self.classic.join(request, ticket, now_ms=now_ms)
        try:
            self.classic.check_join(request)
        except KafkaError as refusal:
            return Outcome(reply=classic.JoinReply(refusal.code, member_id=request.member_id))
        if self._group_ids.type_of(request.group_id) == SHARE:
            return Outcome(reply=classic.JoinReply(ErrorCode.inconsistent_group_protocol))
        if not self.consumer.is_empty(request.group_id):
            return self.mixed.join(request, now_ms=now_ms)
        if request.member_id:
            return Outcome(reply=classic.JoinReply(ErrorCode.unknown_member_id, member_id=request.member_id))
        gone = self.consumer.delete(request.group_id)
        joined = self.classic.join(request, ticket, now_ms=now_ms)
        return Outcome((*gone.changes, *joined.changes), joined.reply, joined.effects, gone.group_ids)

    def sync(
        self, request: classic.SyncRequest, ticket: Ticket, *, now_ms: int
    ) -> Outcome[classic.SyncReply]:
        """SyncGroup. No reply: it waits for the leader."""
        if self._is_classic(request.group_id):
            return self.classic.sync(request, ticket, now_ms=now_ms)
        if self._group_ids.type_of(request.group_id) == SHARE:
            return Outcome(reply=classic.SyncReply(ErrorCode.unknown_member_id))
        return self.mixed.sync(request, now_ms=now_ms)

    def classic_heartbeat(
        self, request: classic.HeartbeatRequest, *, now_ms: int
    ) -> Outcome[classic.HeartbeatReply]:
        """Heartbeat."""
        if self._is_classic(request.group_id):
            return self.classic.heartbeat(request, now_ms=now_ms)
        if self._group_ids.type_of(request.group_id) == SHARE:
            return Outcome(reply=classic.HeartbeatReply(ErrorCode.unknown_member_id))
        return self.mixed.heartbeat(request, now_ms=now_ms)

    def leave(self, request: classic.LeaveRequest, *, now_ms: int) -> Outcome[classic.LeaveReply]:
        """LeaveGroup."""
        if self._is_classic(request.group_id):
            return self.classic.leave(request, now_ms=now_ms)
        return self.mixed.leave(request, now_ms=now_ms)

    def _is_classic(self, group_id: str) -> bool:
        """Whether the id belongs to a classic group, or to no group."""
        return self._group_ids.type_of(group_id) in (None, CLASSIC)

    # --- offsets ---

    def commit_offsets(self, request: CommitRequest, *, now_ms: int) -> Outcome[OffsetErrors]:
        """OffsetCommit. Creates the group, without members, if it does not exist and the client
        does not claim to be a member."""
        group_id = request.group_id
        try:
            if len(group_id.encode()) > MAX_GROUP_ID_BYTES:
                raise KafkaError(ErrorCode.invalid_group_id)
            self._let_commit(request, now_ms)
        except KafkaError as refusal:
            return Outcome(reply=OffsetErrors(refusal.code))
        return self._with_group(request, self.offsets.commit(request, now_ms=now_ms))

    def _with_group(self, request: CommitRequest, outcome: Outcome[OffsetErrors]) -> Outcome[OffsetErrors]:
        """A group that only has these offsets exists only if they are saved."""
        if request.generation >= 0 or not self._is_classic(request.group_id):
            return outcome
        return Outcome(outcome.changes, outcome.reply, outcome.effects, (request.group_id,))

    def commit_offsets_later(
        self, request: CommitRequest, producer_id: int, *, now_ms: int
    ) -> Outcome[OffsetErrors]:
        """TxnOffsetCommit: as `commit_offsets`, but the offsets are committed with the producer's
        transaction. The group must be part of it."""
        group_id = request.group_id
        try:
            if not 0 < len(group_id.encode()) <= MAX_GROUP_ID_BYTES:
                raise KafkaError(ErrorCode.invalid_group_id)
            self._let_commit_later(request, now_ms)
        except KafkaError as refusal:
            is_unknown = refusal.code is ErrorCode.stale_member_epoch and not request.knows_stale
            return Outcome(reply=OffsetErrors(ErrorCode.illegal_generation if is_unknown else refusal.code))
        outcome = self.offsets.commit_later(request, producer_id, now_ms=now_ms)
        return self._with_group(request, outcome)

    def _let_commit_later(self, request: CommitRequest, now_ms: int) -> None:
        """Unlike a commit without a transaction, it is accepted while the group rebalances, and
        from a client that names no member though the group has some."""
        kind = self._group_ids.type_of(request.group_id)
        has_no_member = request.generation < 0 and not request.member_id and request.instance_id is None
        if kind is None and request.generation >= 0:
            raise KafkaError(
                ErrorCode.group_id_not_found if request.knows_stale else ErrorCode.illegal_generation
            )
        if kind is None:
            self.classic.ensure(request.group_id, now_ms=now_ms)
        elif kind == SHARE:
            raise KafkaError(ErrorCode.group_id_not_found)
        elif has_no_member:
            return
        elif kind == CONSUMER:
            self.consumer.check_commit(request)
        else:
            self.classic.check_commit(request, now_ms=now_ms, in_transaction=True)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Outcome[None]:
        """The producer's transaction has ended: its offsets are committed, or dropped."""
        return self.offsets.end_transaction(producer_id, is_commit=is_commit)

    def _let_commit(self, request: CommitRequest, now_ms: int) -> None:
        """Check a commit. Raises KafkaError if the group does not accept it."""
        kind = self._group_ids.type_of(request.group_id)
        if kind is None and request.generation < 0:
            self.classic.ensure(request.group_id, now_ms=now_ms)
            return
        if kind is None and request.version < _GROUP_NOT_FOUND_FROM:
            raise KafkaError(ErrorCode.illegal_generation)
        if kind in (None, SHARE):
            raise KafkaError(ErrorCode.group_id_not_found)
        if kind == CONSUMER:
            self.consumer.check_commit(request)
        else:
            self.classic.check_commit(request, now_ms=now_ms)

    def fetch_offsets(self, group_id: str, member_id: str | None, member_epoch: int) -> OffsetsByTopic:
        """OffsetFetch for one group: all its committed offsets. Raises KafkaError if a consumer
        group does not have the member in that epoch."""
        if self._group_ids.type_of(group_id) == CONSUMER:
            self.consumer.check_fetch(group_id, member_id, member_epoch)
        return self.offsets.of(group_id)

    def delete_offsets(self, group_id: str, wanted: Iterable[OffsetOf]) -> Outcome[OffsetErrors]:
        """OffsetDelete. Offsets of topics that the group subscribes to stay."""
        kind = self._group_ids.type_of(group_id)
        try:
            if not group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            if kind in (None, SHARE):
                raise KafkaError(ErrorCode.group_id_not_found)
            if kind == CLASSIC:
                self.classic.check_offset_delete(group_id)
        except KafkaError as refusal:
            return Outcome(reply=OffsetErrors(refusal.code))
        subscribed, allowed = ErrorCode.group_subscribed_to_topic, ErrorCode.none
        is_subscribed = self._subscribed_topics(group_id)
        rows = {partition: subscribed if is_subscribed(partition[0]) else allowed for partition in wanted}
        return self.offsets.delete(group_id, rows)

    def _subscribed_topics(self, group_id: str) -> Callable[[UUID], bool]:
        """A function that says whether the group subscribes to a topic; valid within this step."""
        subscribed = self._part_of(group_id).subscribed(group_id)

        @cache
        def is_subscribed(topic_id: UUID) -> bool:
            topic = self._topics.by_id(topic_id)
            return topic is not None and subscribed(topic.name)

        return is_subscribed

    def expire_offsets(self, group_id: str, *, now_ms: int) -> Outcome[None]:
        """Remove a group's old offsets, and the group itself if it has neither members nor offsets.
        Does nothing if the group does not exist."""
        kind = self._group_ids.type_of(group_id)
        if kind not in (CLASSIC, CONSUMER) or (kind == CLASSIC and not self.classic.may_expire(group_id)):
            return Outcome()
        counted_from_ms = self.classic.empty_since_ms(group_id) if kind == CLASSIC else None
        retention = OffsetRetention(counted_from_ms, self._subscribed_topics(group_id))
        outcome = self.offsets.expire(group_id, retention, now_ms=now_ms)
        nothing_left = outcome.reply
        if nothing_left and self._part_of(group_id).is_empty(group_id):
            return together([outcome, self._part_of(group_id).delete(group_id)])
        return together([outcome])

    # --- administration ---

    def group_ids(self) -> tuple[str, ...]:
        return (*self.classic.ids(), *self.consumer.ids())

    def listed(self) -> Iterator[ListedGroup]:
        """Rows of ListGroups."""
        yield from self.classic.listed()
        yield from self.consumer.listed()

    def delete(self, group_id: str) -> Outcome[ErrorCode]:
        """DeleteGroups for one group, with its offsets."""
        if self._group_ids.type_of(group_id) not in (CLASSIC, CONSUMER):
            return Outcome(reply=ErrorCode.group_id_not_found)
        outcome = self._part_of(group_id).delete(group_id)
        if outcome.reply is not ErrorCode.none:
            return outcome
        with_offsets = together([outcome, self.offsets.remove_group(group_id)])
        return Outcome(with_offsets.changes, ErrorCode.none, with_offsets.effects, with_offsets.group_ids)

    def topic_ids(self) -> Collection[UUID]:
        """All topics for which a group has committed offsets."""
        return self.offsets.topic_ids()

    def topic_deleted(self, topic_id: UUID) -> Outcome[None]:
        """Remove the offsets of a deleted topic. The groups notice the deletion by themselves."""
        return together(self.offsets.topic_deleted(topic_id))

    def _part_of(self, group_id: str) -> ClassicGroups | ConsumerGroups:
        return self.consumer if self._group_ids.type_of(group_id) == CONSUMER else self.classic

    # --- time ---

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; there may be nothing to do then."""
        found = [
            each
            for each in (self.classic.next_deadline_ms(), self.consumer.next_deadline_ms())
            if each is not None
        ]
        return min(found, default=None)

    def expire(self, now_ms: int) -> Outcome[None]:
        """Act on sessions and rebalances whose timers have run out."""
        return together([self.classic.expire(now_ms), self.consumer.expire(now_ms)])

    # --- records ---

    def load(
        self,
        records: Iterable[tuple[bytes, bytes]],
        offsets: Iterable[tuple[bytes, bytes]],
        pending: Iterable[tuple[bytes, bytes]] = (),
        *,
        now_ms: int,
    ) -> None:
        """Load the stored groups, offsets and offsets of transactions (scans of GroupKey.namespace,
        GroupOffsetKey.namespace and PendingOffsetKey.namespace), and start all sessions. Skips
        records of share groups. Offsets without a group get one."""
        records = list(records)
        self.classic.load(records, now_ms=now_ms)
        self.consumer.load(records, now_ms=now_ms)
        self.offsets.load(offsets, now_ms=now_ms)
        self.offsets.load_pending(pending, now_ms=now_ms)
        for group_id in self.offsets.group_ids():
            if self._group_ids.type_of(group_id) is None:
                self.classic.ensure(group_id, now_ms=now_ms)

    def effect_saved(self, effect: Effect, *, now_ms: int) -> Outcome[None]:
        """Make saved offsets visible to fetches, and send members of a classic group their saved
        assignments."""
        match effect:
            case ApplyOffsets():
                self.offsets.apply(effect)
            case ApplyPending():
                self.offsets.pending.saved(effect)
            case EndPending():
                self.offsets.pending.end(effect)
            case GenerationSaved():
                return self.classic.saved(effect, now_ms=now_ms)
        return Outcome()

    def effect_not_saved(self, effect: Effect) -> None:
        if isinstance(effect, ApplyOffsets):
            self.offsets.not_saved(effect)
        elif isinstance(effect, ApplyPending):
            self.offsets.pending.not_saved(effect)

    def not_saved(
        self, group_id: str, records: Collection[tuple[bytes, bytes]], *, now_ms: int
    ) -> Outcome[None]:
        """A decision about the group could not be saved. `records`: everything that the store has
        of it. If they are of the other group type, a conversion has failed: the stored group
        replaces the one in memory. If a deletion has failed and a share group has taken the id
        meanwhile, that group was not saved either: a call of its coordinator's `not_saved`
        follows."""
        stored = {parsed.record_type for key, _ in records if isinstance(parsed := parse_key(key), GroupKey)}
        if stored <= _RECORD_TYPES:
            self._group_ids.release(group_id, SHARE)
        known = self._group_ids.type_of(group_id)
        if known == CONSUMER and RecordType.CLASSIC_GROUP_METADATA in stored:
            self.consumer.forget(group_id)
            return self.classic.not_saved(group_id, records, now_ms=now_ms)
        if known == CLASSIC and not stored.isdisjoint(CONSUMER_RECORD_TYPES):
            waiting = Records(group_id, self.consumer.times)
            self.classic.take_out(group_id, waiting)
            self.consumer.not_saved(group_id, records, now_ms=now_ms)
            return Outcome(effects=tuple(waiting.effects))
        is_consumer = known == CONSUMER or not stored.isdisjoint(CONSUMER_RECORD_TYPES)
        part = self.consumer if is_consumer else self.classic
        outcome = part.not_saved(group_id, records, now_ms=now_ms)
        self._put_offsets_group_right(group_id, is_stored=bool(stored), now_ms=now_ms)
        return outcome

    def _put_offsets_group_right(self, group_id: str, *, is_stored: bool, now_ms: int) -> None:
        """Create or remove groups without records, which exist exactly as long as they have
        offsets."""
        kind = self._group_ids.type_of(group_id)
        if self.offsets.has_any(group_id):
            if kind is None:
                self.classic.ensure(group_id, now_ms=now_ms)
        elif kind == CLASSIC and not is_stored and self.classic.is_empty(group_id):
            self.classic.forget(group_id)
