"""How a classic group gets from one generation to the next, and what happens when members are late.
Pure.

    prepare     all members must join again. A group that was empty waits for more members (the
                initial rebalance delay). Another group waits until all have joined, but no longer
                than the longest rebalance timeout of its members
    complete    members that have joined get their answers, the others are removed. Static members
                stay until their session ends (KIP-345)
    saved       the leader's assignments are in the store: members that wait for theirs get them

    timer     of          when it runs out
    SESSION   member      the member is removed, unless its request waits here for late members
    SESSION   pending id  the id is forgotten
    JOIN      group       the rebalance continues without the missing members
    SYNC      group       members that did not ask for their assignment are removed

Every request that waits here is answered in the end. While a group is preparing, a JOIN timer runs.
While it is completing, its leader's session runs, which ends by removing the leader. This module
must not know how requests are checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import RecordType
from kbroker.groups.classic.messages import ClassicGroupSettings, JoinReply, JoinRequest, SyncReply
from kbroker.groups.classic.state import ClassicEvent, ClassicGroup, ClassicMember, GroupState
from kbroker.groups.outcome import GenerationSaved, Records, Ticket
from kbroker.groups.timers import Timers

logger = logging.getLogger(__name__)

NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long the first JoinGroup of a member waits, as in Kafka. Its client cannot send heartbeats
yet, and may have given up."""

_NOBODY_JOINED_MS: Final = 1_000
"""The minimum of a further wait for static members, whatever their timeouts."""


class ClassicTimerKind(Enum):
    SESSION = auto()
    JOIN = auto()
    SYNC = auto()


class ClassicTimer(NamedTuple):
    kind: ClassicTimerKind
    group_id: str
    member_id: str = ""


class Rebalances:
    """The timers of all classic groups, and the steps of their rebalances."""

    def __init__(self, settings: Callable[[], ClassicGroupSettings]) -> None:
        self._settings = settings
        self.timers: Timers[ClassicTimer] = Timers()
        self.completed = 0
        """Generations that became stable."""

    # --- requests that wait ---

    def wait_for_join(self, group: ClassicGroup, member_id: str, ticket: Ticket, records: Records) -> None:
        """Let a JoinGroup wait. An earlier one of the same member that still waits is answered,
        since its client has most likely abandoned it."""
        self.answer_join(
            group, member_id, JoinReply(ErrorCode.rebalance_in_progress, member_id=member_id), records
        )
        group.joining[member_id] = ticket

    def wait_for_sync(self, group: ClassicGroup, member_id: str, ticket: Ticket, records: Records) -> None:
        self.answer_sync(group, member_id, SyncReply(ErrorCode.rebalance_in_progress), records)
        group.syncing[member_id] = ticket
        self.synced(group, member_id)

    def answer_join(self, group: ClassicGroup, member_id: str, reply: JoinReply, records: Records) -> None:
        ticket = group.joining.pop(member_id, None)
        if ticket is not None:
            records.answer(ticket, reply)

    def answer_sync(self, group: ClassicGroup, member_id: str, reply: SyncReply, records: Records) -> None:
        ticket = group.syncing.pop(member_id, None)
        if ticket is not None:
            records.answer(ticket, reply)

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        group.unsynced.discard(member_id)
        if not group.unsynced:
            self.timers.cancel(ClassicTimer(ClassicTimerKind.SYNC, group.group_id))

    # --- members ---

    def start_session(self, group: ClassicGroup, member: ClassicMember, now_ms: int) -> None:
        timeout_ms = NEW_MEMBER_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self.timers.set(
            ClassicTimer(ClassicTimerKind.SESSION, group.group_id, member.member_id), now_ms + timeout_ms
        )

    def add_pending(self, group: ClassicGroup, member_id: str, session_timeout_ms: int, now_ms: int) -> None:
        group.pending.add(member_id)
        self.timers.set(
            ClassicTimer(ClassicTimerKind.SESSION, group.group_id, member_id), now_ms + session_timeout_ms
        )

    def replace_static(
        self,
        group: ClassicGroup,
        old_id: str,
        new_id: str,
        request: JoinRequest,
        records: Records,
        now_ms: int,
    ) -> None:
        """Replace a static member. Requests that still wait under the old id are fenced."""
        fenced = ErrorCode.fenced_instance_id
        self.answer_join(group, old_id, JoinReply(fenced, member_id=old_id), records)
        self.answer_sync(group, old_id, SyncReply(fenced), records)
        self.timers.cancel(ClassicTimer(ClassicTimerKind.SESSION, group.group_id, old_id))
        member = group.members[old_id].joining_again(request)._replace(member_id=new_id, is_new=False)
        group.replace_static(old_id, member)
        self.start_session(group, member, now_ms)

    def remove_member(self, group: ClassicGroup, member_id: str, records: Records) -> None:
        """Remove a member or a pending one. Afterwards call `member_gone`, once for all removed
        members."""
        self.answer_join(group, member_id, JoinReply(ErrorCode.unknown_member_id), records)
        self.answer_sync(group, member_id, SyncReply(ErrorCode.unknown_member_id), records)
        self.timers.cancel(ClassicTimer(ClassicTimerKind.SESSION, group.group_id, member_id))
        group.remove(member_id)

    def member_gone(self, group: ClassicGroup, reason: str, records: Records, now_ms: int) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self.prepare(group, reason, records, now_ms)
        else:
            self.complete_if_all_joined(group, records, now_ms)

    def forget(self, group: ClassicGroup) -> None:
        """Cancel all timers of the group."""
        for member_id in (*group.members, *group.pending):
            self.timers.cancel(ClassicTimer(ClassicTimerKind.SESSION, group.group_id, member_id))
        self.timers.cancel(ClassicTimer(ClassicTimerKind.JOIN, group.group_id))
        self.timers.cancel(ClassicTimer(ClassicTimerKind.SYNC, group.group_id))

    # --- from one generation to the next ---

    def prepare_or_complete(self, group: ClassicGroup, reason: str, records: Records, now_ms: int) -> None:
        """A member has joined."""
        if group.state is GroupState.PREPARING:
            self.complete_if_all_joined(group, records, now_ms)
        else:
            self.prepare(group, reason, records, now_ms)

    def prepare(self, group: ClassicGroup, reason: str, records: Records, now_ms: int) -> None:
        self._abandon_generation(group, ErrorCode.rebalance_in_progress, records, now_ms)
        group.move(ClassicEvent.REBALANCE, now_ms)
        logger.info("group %s prepares generation %d: %s", group.group_id, group.generation + 1, reason)
        if not group.is_initial:
            self.complete_if_all_joined(group, records, now_ms)
            if group.state is GroupState.PREPARING:
                self._set_join_timer(group, group.rebalance_timeout_ms(), now_ms)
            return
        group.has_new_member = False
        group.delay_ms = self._settings().initial_rebalance_delay_ms
        group.delay_left_ms = max(group.rebalance_timeout_ms() - group.delay_ms, 0)
        if group.delay_ms:
            self._set_join_timer(group, group.delay_ms, now_ms)
        else:
            self._complete(group, records, now_ms)

    def complete_if_all_joined(self, group: ClassicGroup, records: Records, now_ms: int) -> None:
        """The initial rebalance still takes its full time, so that members that come soon need no
        second one."""
        if group.state is GroupState.PREPARING and not group.is_initial and group.has_all_joined():
            self._complete(group, records, now_ms)

    def _complete(self, group: ClassicGroup, records: Records, now_ms: int) -> None:
        """Keep the members that have joined and the static ones; remove the others."""
        self.timers.cancel(ClassicTimer(ClassicTimerKind.JOIN, group.group_id))
        for member in tuple(group.members.values()):
            if member.instance_id is None and member.member_id not in group.joining:
                self.remove_member(group, member.member_id, records)
        if group.members and not group.elect_joined_leader():
            group.is_initial = False
            self._set_join_timer(group, max(group.rebalance_timeout_ms(), _NOBODY_JOINED_MS), now_ms)
            return
        group.begin_generation()
        if not group.members:
            group.move(ClassicEvent.ALL_LEFT, now_ms)
            records.put(RecordType.CLASSIC_GROUP_METADATA, group.to_record({}, records.times))
            return
        group.move(ClassicEvent.JOINED, now_ms)
        for member in tuple(group.members.values()):
            known = member._replace(is_new=False) if member.is_new else member
            group.members[member.member_id] = known
            self.start_session(group, known, now_ms)
            self.answer_join(group, member.member_id, group.join_reply(member.member_id), records)
        self.timers.set(
            ClassicTimer(ClassicTimerKind.SYNC, group.group_id), now_ms + group.rebalance_timeout_ms()
        )

    def save(self, group: ClassicGroup, assignments: dict[str, bytes], records: Records) -> None:
        """Save the leader's assignments."""
        group.saving = assignments
        records.put(RecordType.CLASSIC_GROUP_METADATA, group.to_record(assignments, records.times))
        records.effects.append(GenerationSaved(group.group_id, group.generation))

    def saved(self, group: ClassicGroup, generation: int, records: Records, now_ms: int) -> None:
        if group.saving is None or group.generation != generation:
            return  # A member came or went meanwhile: another generation follows.
        for member in tuple(group.members.values()):
            group.members[member.member_id] = member._replace(
                assignment=group.saving.get(member.member_id, b"")
            )
        group.saving = None
        group.move(ClassicEvent.SAVED, now_ms)
        self.completed += 1
        self._answer_syncs(group, ErrorCode.none, records, now_ms)

    def not_saved(self, group: ClassicGroup, records: Records, now_ms: int) -> None:
        """Keep the group as it is in memory. A generation that could not be saved does not begin.
        If a change of a stable one could not be saved, another generation follows, since the store
        still has the old state."""
        if group.saving is None and group.state is not GroupState.STABLE:
            return
        self._abandon_generation(group, ErrorCode.coordinator_not_available, records, now_ms)
        self.prepare(group, "it could not be saved", records, now_ms)

    def _abandon_generation(
        self, group: ClassicGroup, code: ErrorCode, records: Records, now_ms: int
    ) -> None:
        if group.state is GroupState.COMPLETING:
            for member in tuple(group.members.values()):
                group.members[member.member_id] = member._replace(assignment=b"")
            self._answer_syncs(group, code, records, now_ms)
        group.saving = None
        group.unsynced.clear()
        self.timers.cancel(ClassicTimer(ClassicTimerKind.SYNC, group.group_id))

    def _answer_syncs(self, group: ClassicGroup, code: ErrorCode, records: Records, now_ms: int) -> None:
        for member_id in tuple(group.syncing):
            self.answer_sync(
                group,
                member_id,
                sync_reply(group, member_id) if code is ErrorCode.none else SyncReply(code),
                records,
            )
            self.start_session(group, group.members[member_id], now_ms)

    def _set_join_timer(self, group: ClassicGroup, delay_ms: int, now_ms: int) -> None:
        self.timers.set(ClassicTimer(ClassicTimerKind.JOIN, group.group_id), now_ms + delay_ms)

    # --- late members ---

    def run_out(self, group: ClassicGroup, name: ClassicTimer, records: Records, now_ms: int) -> None:
        """Act on a timer that was due. Another timer of the same batch may have cancelled it or set
        it again."""
        if self.timers.deadline_ms(name) is not None:
            return
        match name.kind:
            case ClassicTimerKind.SESSION:
                self._session_over(group, name.member_id, records, now_ms)
            case ClassicTimerKind.JOIN:
                self._join_time_over(group, records, now_ms)
            case ClassicTimerKind.SYNC:
                self._sync_time_over(group, records, now_ms)

    def _session_over(self, group: ClassicGroup, member_id: str, records: Records, now_ms: int) -> None:
        member = group.members.get(member_id)
        if member is None:
            self.remove_member(group, member_id, records)
            self.complete_if_all_joined(group, records, now_ms)
        elif member.is_new or not (member_id in group.joining or member_id in group.syncing):
            self.remove_member(group, member_id, records)
            self.member_gone(group, f"the session of {member_id!r} is over", records, now_ms)

    def _join_time_over(self, group: ClassicGroup, records: Records, now_ms: int) -> None:
        if group.state is not GroupState.PREPARING:
            return
        if not (group.is_initial and group.has_new_member and group.delay_left_ms):
            self._complete(group, records, now_ms)
            return
        group.has_new_member = False
        delay_ms = min(self._settings().initial_rebalance_delay_ms, group.delay_left_ms)
        group.delay_ms, group.delay_left_ms = delay_ms, max(group.delay_left_ms - group.delay_ms, 0)
        self._set_join_timer(group, delay_ms, now_ms)

    def _sync_time_over(self, group: ClassicGroup, records: Records, now_ms: int) -> None:
        late = tuple(group.unsynced)
        for member_id in late:
            self.remove_member(group, member_id, records)
        if late:
            self.prepare(group, f"{len(late)} members did not ask for their assignment", records, now_ms)


def sync_reply(group: ClassicGroup, member_id: str) -> SyncReply:
    """The answer to a SyncGroup of a member of a stable group."""
    return SyncReply(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=group.members[member_id].assignment,
    )
