"""The group coordinator's part for share groups (KIP-932): the members, and the partitions that
each of them gets. Pure; kbroker/broker/groups/runner.py saves its outcomes and carries them out.

Better than Kafka, where a joining member must send a second heartbeat: the first one is answered
with the member's assignment. While share-partitions of its topics are being initialised,
`heartbeat` gives no reply. The broker then

    1. saves the changes. If there is an InitializeSharePartitions effect, it calls the persister
       and then initialized(group_id, results, now_ms=...), saves that outcome, and wakes all
       requests that wait for this group
    2. waits until `is_waiting(group_id, member_id)` is false, but no longer than the client's
       patience. One effect serves all members that join meanwhile
    3. answers with heartbeat_reply(group_id, member_id, now_ms=...), an outcome like any other

If the initialisation failed or took too long, the member gets what is assignable, perhaps nothing,
and a later heartbeat tries again.

Each heartbeat compares the version of `topics`, and so notices topics that were created or got more
partitions. `topic_deleted` reports a deleted topic, `settings_changed` an altered setting. The
assignor is part of the stored hash of the topics, so its alteration is noticed even after a restart
that came before the new targets. The API layer checks share.version and authorization first.

`now_ms` is the session clock's; `times` converts it for records (stored_times.py). This module must
not know how share-partitions are initialised, where records are kept, or which connection a member
has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.share_records import SHARE_GROUP_VALUES
from kbroker.formats.state import GroupKey, parse_key
from kbroker.groups.ids import SHARE, GroupIds, ListedGroup
from kbroker.groups.outcome import (
    Coordinator,
    DeleteShareState,
    InitializeSharePartitions,
    Outcome,
    Records,
    together,
)
from kbroker.groups.share import offsets
from kbroker.groups.share.checks import check_epoch, check_form, check_group_id, member_of, not_found
from kbroker.groups.share.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Assignment,
    DescribedAssignment,
    DescribedShareGroup,
    DescribedShareMember,
    DescribedTopicPartitions,
    GroupHeartbeatReply,
    OffsetsReply,
    ShareGroupHeartbeatRequest,
    ShareGroupSettings,
    ShareGroupStatistics,
    TopicPartitions,
    TopicsView,
)
from kbroker.groups.share.partitions import (
    forget_topic,
    is_waiting,
    partitions_to_initialize,
    start_deleting,
    take_deleted,
    take_initialized,
)
from kbroker.groups.share.rebalance import ShareRebalances
from kbroker.groups.share.state import ShareGroup, ShareMember, share_partitions
from kbroker.groups.stored_times import StoredTimes
from kbroker.groups.timers import Timers
from kbroker.share.persister import Result, TopicPartition


class ShareGroupCoordinator(Coordinator):
    """`settings(group_id)` returns the current settings of a group. `group_ids` and `times` are
    shared with the coordinators of other group types."""

    def __init__(
        self,
        settings: Callable[[str], ShareGroupSettings],
        group_ids: GroupIds | None = None,
        times: StoredTimes | None = None,
    ) -> None:
        self._settings = settings
        self._group_ids = group_ids or GroupIds()
        self._times = times or StoredTimes()
        self._groups: dict[str, ShareGroup] = {}
        self._sessions: Timers[tuple[str, str]] = Timers()
        self._rebalances = ShareRebalances(settings)

    # --- members ---

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, *, now_ms: int, topics: TopicsView
    ) -> Outcome[GroupHeartbeatReply]:
        """ShareGroupHeartbeat. No reply: see the head of this file. A refusal is a reply; Kafka's
        order of checks decides which."""
        try:
            self._check(request)
        except KafkaError as refusal:
            return Outcome(reply=GroupHeartbeatReply.refusal(refusal))
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request)
        group = self._groups.get(request.group_id) or self._create(request.group_id)
        settings = self._settings(request.group_id)
        records = Records(request.group_id, self._times)
        member, subscription_changed = group.update_member(request, records)
        self._sessions.set((group.group_id, member.member_id), now_ms + settings.session_timeout_ms)
        topics_changed = group.topics_version != topics.version
        if topics_changed or subscription_changed:
            group.must_look_for_partitions = True
            group.topics_version = topics.version
            self._rebalances.look_at_topics(group, topics, records, subscription_changed=subscription_changed)
        self._rebalances.compare_targets(group, records)
        requests = partitions_to_initialize(
            group, topics, now_ms, settings.initialize_retry_interval_ms, records
        )
        urgent = request.member_epoch == JOIN_EPOCH or subscription_changed
        if requests or (urgent and is_waiting(group, member)):
            effects = [InitializeSharePartitions(group.group_id, requests)] if requests else []
            return records.outcome(None, *effects)
        if urgent or not 0 <= now_ms - group.assignment_ms < settings.assignment_interval_ms:
            self._rebalances.assign(group, now_ms, records)
        # In Kafka such a member never learns its assignment (DIF-77).
        missed_a_reply = request.member_epoch != member.member_epoch
        changed = group.reconcile(member, records)
        wants_assignment = (
            changed
            or missed_a_reply
            or request.member_epoch == JOIN_EPOCH
            or request.subscribed_topic_names is not None
        )
        return records.outcome(self._reply(member, settings, wants_assignment))

    def heartbeat_reply(self, group_id: str, member_id: str, *, now_ms: int) -> Outcome[GroupHeartbeatReply]:
        """The reply that `heartbeat` did not return, with the whole assignment. A refusal if the
        member has left meanwhile."""
        try:
            group = self._existing(group_id)
            member = member_of(group, member_id)
        except KafkaError as refusal:
            return Outcome(reply=GroupHeartbeatReply.refusal(refusal))
        records = Records(group_id, self._times)
        self._rebalances.assign(group, now_ms, records)
        group.reconcile(member, records)
        return records.outcome(self._reply(member, self._settings(group_id), True))

    def is_waiting(self, group_id: str, member_id: str) -> bool:
        """Whether share-partitions of the member's topics are being initialised."""
        group = self._groups.get(group_id)
        member = group.members.get(member_id) if group else None
        return group is not None and member is not None and is_waiting(group, member)

    def initialized(self, group_id: str, results: Iterable[Result], *, now_ms: int) -> Outcome[None]:
        """Process the persister's results for an InitializeSharePartitions. Partitions that became
        assignable are assigned at once."""
        group = self._groups.get(group_id)
        if group is None:
            return Outcome()
        records = Records(group_id, self._times)
        take_initialized(group, results, records)
        if group.members:
            self._rebalances.compare_targets(group, records)
            self._rebalances.assign(group, now_ms, records)
        return records.outcome()

    def settings_changed(self, group_id: str, *, now_ms: int, topics: TopicsView) -> Outcome[None]:
        """A setting of the group was altered. If the assignor has changed, new targets are computed
        at once; each member gets its target with its next heartbeat."""
        group = self._groups.get(group_id)
        if group is None or not group.members:
            return Outcome()  # The first member to join starts a new epoch anyway.
        records = Records(group_id, self._times)
        if self._rebalances.look_at_topics(group, topics, records):
            self._rebalances.assign(group, now_ms, records)
        return records.outcome()

    def expire(self, now_ms: int) -> Outcome[None]:
        """Remove the members whose sessions have ended."""
        expired: dict[str, list[str]] = {}
        for group_id, member_id in self._sessions.take_due(now_ms):
            if self.has_member(group_id, member_id):
                expired.setdefault(group_id, []).append(member_id)
        return together(
            self._remove_members(group_id, member_ids).outcome() for group_id, member_ids in expired.items()
        )

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; there may be nothing to do then. None: no group has
        members."""
        return self._sessions.next_ms()

    # --- administration ---

    def describe(self, group_id: str) -> DescribedShareGroup:
        """A row of ShareGroupDescribe."""
        return describe_group(group_id, self._groups.get(group_id), self._settings(group_id).assignor)

    def has_member(self, group_id: str, member_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and member_id in group.members

    def session_left_ms(self, group_id: str, member_id: str, *, now_ms: int) -> int:
        """Time until the member's session ends without a further heartbeat; 0 if there is no such
        member."""
        deadline_ms = self._sessions.deadline_ms((group_id, member_id))
        return 0 if deadline_ms is None else max(0, deadline_ms - now_ms)

    def listed(self) -> Iterator[ListedGroup]:
        """Rows of ListGroups. Groups may be created and deleted between two rows."""
        for group in tuple(self._groups.values()):
            if group.group_id in self._groups:
                yield ListedGroup(group.group_id, SHARE, group.state, SHARE)

    def delete(self, group_id: str, topics: TopicsView) -> Outcome[ErrorCode]:
        """DeleteGroups for one group. No reply: share state must be deleted first, and `deleted`
        then returns the reply."""
        try:
            group = self._existing(group_id)
        except KafkaError as refusal:
            return Outcome(reply=refusal.code)
        if group.members:
            return Outcome(reply=ErrorCode.non_empty_group)
        records = Records(group_id, self._times)
        partitions = start_deleting(group, topics, records)
        if partitions:
            return records.outcome(None, DeleteShareState(group_id, partitions))
        return self._drop(group, records)

    def deleted(self, group_id: str, results: Sequence[Result]) -> Outcome[ErrorCode]:
        """Process the persister's results for a DeleteShareState. After a failure the group stays,
        and the deletion can be retried."""
        group = self._groups.get(group_id)
        if group is None:
            return Outcome(reply=ErrorCode.none)
        records = Records(group_id, self._times)
        take_deleted(group, results, records)
        failures = [result.code for result in results if result.code is not ErrorCode.none]
        if failures:
            return records.outcome(failures[0])
        if group.members or group.initialized or group.initializing:
            return records.outcome(ErrorCode.non_empty_group)  # A member joined meanwhile.
        return self._drop(group, records)

    def deletion_saved(self, group_id: str) -> None:
        """Free the group's id for groups of other types."""
        if group_id not in self._groups:
            self._group_ids.release(group_id, SHARE)

    def described_partitions(self, group_id: str, topics: TopicsView) -> dict[str, list[int]]:
        """The share-partitions of existing topics that the group has, by the topic's name."""
        group = self._groups.get(group_id)
        return {
            part.name: sorted(part.partitions)
            for topic_id, part in (group.initialized.items() if group else ())
            if topics.by_id(topic_id) is not None
        }

    def alter_offsets(
        self, group_id: str, wanted: Mapping[str, Mapping[int, int]], topics: TopicsView
    ) -> Outcome[OffsetsReply]:
        """AlterShareGroupOffsets: start offsets by topic name and partition. Creates the group,
        without members, if it does not exist. With an effect, the reply assumes that the persister
        succeeds; `offsets_altered` turns it into the final one."""
        try:
            check_group_id(group_id)
            if not wanted:
                return Outcome(reply=OffsetsReply())
            self._check_empty(group_id)
            offsets.check_alterable(wanted, topics)
        except KafkaError as refusal:
            return Outcome(reply=OffsetsReply.refusal(refusal))
        reply = offsets.to_alter(wanted, topics)
        if not offsets.has_alterable(reply):
            return Outcome(reply=reply)
        group = self._groups.get(group_id) or self._create(group_id)
        records = Records(group_id, self._times)
        requests = offsets.start_altering(group, wanted, reply, records)
        return records.outcome(reply, InitializeSharePartitions(group_id, requests))

    def offsets_altered(
        self, group_id: str, reply: OffsetsReply, results: Sequence[Result], *, now_ms: int
    ) -> Outcome[OffsetsReply]:
        """Process the persister's results for the effect of `alter_offsets`."""
        outcome = self.initialized(group_id, results, now_ms=now_ms)
        return Outcome(outcome.changes, offsets.altered(reply, results), group_ids=outcome.group_ids)

    def delete_offsets(
        self, group_id: str, names: Sequence[str], topics: TopicsView
    ) -> Outcome[OffsetsReply]:
        """DeleteShareGroupOffsets: forget the share state of topics. With an effect, the reply
        assumes that the persister succeeds; `offsets_deleted` turns it into the final one."""
        try:
            check_group_id(group_id)
            if not names:
                return Outcome(reply=OffsetsReply())
            self._check_empty(group_id)
            group = self._existing(group_id)
        except KafkaError as refusal:
            return Outcome(reply=OffsetsReply.refusal(refusal))
        records = Records(group_id, self._times)
        reply, partitions = offsets.start_deleting(group, names, topics, records)
        return records.outcome(reply, *([DeleteShareState(group_id, partitions)] if partitions else ()))

    def offsets_deleted(
        self, group_id: str, reply: OffsetsReply, results: Sequence[Result]
    ) -> Outcome[OffsetsReply]:
        """Process the persister's results for the effect of `delete_offsets`. Topics that it
        refused stay Deleting."""
        records = Records(group_id, self._times)
        if (group := self._groups.get(group_id)) is not None:
            take_deleted(group, results, records)
        return records.outcome(offsets.deleted(reply, results))

    def topic_deleted(self, topic_id: UUID) -> Outcome[None]:
        """Remove the topic from all groups. The share coordinator deletes its share state."""
        outcomes: list[Outcome[None]] = []
        for group in self._groups.values():
            records = Records(group.group_id, self._times)
            forget_topic(group, topic_id, records)
            outcomes.append(records.outcome())
        return together(outcomes)

    def topic_ids(self) -> set[UUID]:
        """All topics for which a group has share state."""
        return {
            topic_id
            for group in self._groups.values()
            for topic_id in (*group.initializing, *group.initialized, *group.deleting)
        }

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def partitions_of(self, group_id: str) -> list[TopicPartition]:
        """The share-partitions for which the group has share state."""
        group = self._groups.get(group_id)
        parts = group.initialized.items() if group is not None else ()
        return [
            TopicPartition(topic_id, index) for topic_id, part in parts for index in sorted(part.partitions)
        ]

    def groups_of(self, partition: tuple[UUID, int]) -> list[str]:
        """The groups that have share state for this partition."""
        return [
            group.group_id
            for group in self._groups.values()
            if (part := group.initialized.get(partition[0])) is not None and partition[1] in part.partitions
        ]

    def statistics(self) -> ShareGroupStatistics:
        groups = self._groups.values()
        return ShareGroupStatistics(
            groups=len(groups),
            empty_groups=sum(not group.members for group in groups),
            members=sum(len(group.members) for group in groups),
            rebalances=self._rebalances.count,
            initializing=sum(len(group.asked_ms) for group in groups),
        )

    # --- records ---

    def load(self, records: Iterable[tuple[bytes, bytes]], *, now_ms: int) -> None:
        """Load the records of any number of groups (a scan of GroupKey.namespace), and start all
        sessions. Skips records of other group types. The next heartbeat retries
        initialisations that a crash interrupted."""
        loaded: dict[str, ShareGroup] = {}
        for key, value in records:
            parsed = parse_key(key)
            if isinstance(parsed, GroupKey) and parsed.record_type in SHARE_GROUP_VALUES:
                group = loaded.get(parsed.group_id)
                if group is None:
                    group = loaded[parsed.group_id] = self._groups.get(parsed.group_id) or self._create(
                        parsed.group_id
                    )
                group.replay(parsed, parsed.decode_value(value))
        for group in loaded.values():
            group.assignment_ms = self._times.loaded(group.assignment_ms, now_ms)
            timeout_ms = self._settings(group.group_id).session_timeout_ms
            for member_id in group.members:
                self._sessions.set((group.group_id, member_id), now_ms + timeout_ms)

    def not_saved(
        self, group_id: str, records: Iterable[tuple[bytes, bytes]], *, now_ms: int
    ) -> Outcome[None]:
        """Restore the group from the store. Sessions and initialisations continue."""
        old = self._forget(group_id)
        names = [(group_id, member_id) for member_id in old.members] if old else []
        deadlines_ms = {name: self._sessions.deadline_ms(name) for name in names}
        for name in names:
            self._sessions.cancel(name)
        self.load(records, now_ms=now_ms)
        group = self._groups.get(group_id)
        if old is None or group is None:
            return Outcome()
        still_initializing = set(share_partitions(group.initializing))
        group.asked_ms = {
            each: asked_ms for each, asked_ms in old.asked_ms.items() if each in still_initializing
        }
        group.start_offsets = dict(old.start_offsets)
        for name, deadline_ms in deadlines_ms.items():
            if name[1] in group.members and deadline_ms is not None:
                self._sessions.set(name, deadline_ms)
        return Outcome()

    # --- how it is done ---

    def _check(self, request: ShareGroupHeartbeatRequest) -> None:
        """Kafka's checks; the first that fails decides."""
        check_form(request)
        group = self._groups.get(request.group_id)
        if self._group_ids.type_of(request.group_id) not in (None, SHARE):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {request.group_id} is not a share group.")
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise not_found(request.group_id)
            return
        max_size = self._settings(request.group_id).max_size
        known = request.member_id in group.members
        if not known and request.member_epoch != LEAVE_EPOCH and len(group.members) >= max_size:
            raise KafkaError(
                ErrorCode.group_max_size_reached,
                f"The share group has reached its maximum capacity of {max_size} members.",
            )
        if request.member_epoch != JOIN_EPOCH:
            check_epoch(member_of(group, request.member_id), request.member_epoch)

    def _create(self, group_id: str) -> ShareGroup:
        self._group_ids.claim(group_id, SHARE)
        group = self._groups[group_id] = ShareGroup(group_id)
        return group

    def _forget(self, group_id: str) -> ShareGroup | None:
        self._group_ids.release(group_id, SHARE)
        return self._groups.pop(group_id, None)

    def _existing(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise not_found(group_id)
        return group

    def _check_empty(self, group_id: str) -> None:
        """Raises KafkaError if the id belongs to a group of another type, or the group has
        members."""
        if self._group_ids.type_of(group_id) not in (None, SHARE):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a share group.")
        group = self._groups.get(group_id)
        if group is not None and group.members:
            raise KafkaError(ErrorCode.non_empty_group, f"Group {group_id} is not empty.")

    def _reply(
        self, member: ShareMember, settings: ShareGroupSettings, with_assignment: bool
    ) -> GroupHeartbeatReply:
        topics = tuple(TopicPartitions(topic_id, numbers) for topic_id, numbers in member.assigned.items())
        return GroupHeartbeatReply(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval=timedelta(milliseconds=settings.heartbeat_interval_ms),
            assignment=Assignment(topics) if with_assignment else None,
        )

    def _leave(self, request: ShareGroupHeartbeatRequest) -> Outcome[GroupHeartbeatReply]:
        records = self._remove_members(request.group_id, [request.member_id])
        return records.outcome(GroupHeartbeatReply(member_id=request.member_id, member_epoch=LEAVE_EPOCH))

    def _remove_members(self, group_id: str, member_ids: Sequence[str]) -> Records:
        records = Records(group_id, self._times)
        for member_id in member_ids:
            self._sessions.cancel((group_id, member_id))
        self._groups[group_id].remove_members(member_ids, records)
        return records

    def _drop(self, group: ShareGroup, records: Records) -> Outcome[ErrorCode]:
        """The id stays taken until `deletion_saved`: a failed save brings the group back."""
        group.remove_all(records)
        del self._groups[group.group_id]
        return records.outcome(ErrorCode.none)


def describe_group(group_id: str, group: ShareGroup | None, assignor_name: str) -> DescribedShareGroup:
    """A row of ShareGroupDescribe; an error if the group does not exist or has another type."""
    if not group_id:
        return DescribedShareGroup(group_id, ErrorCode.invalid_group_id)
    if group is None:
        return DescribedShareGroup(group_id, ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    return DescribedShareGroup(
        group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_name,
        members=tuple(_describe_member(group, member) for member in group.members.values()),
    )


def _describe_member(group: ShareGroup, member: ShareMember) -> DescribedShareMember:
    # A deleted topic no longer has a name. The member loses it at its next heartbeat.
    topics = tuple(
        DescribedTopicPartitions(topic_id, group.initialized[topic_id].name, numbers)
        for topic_id, numbers in member.assigned.items()
        if topic_id in group.initialized
    )
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topic_names,
        assignment=DescribedAssignment(topics),
    )
