"""The share group coordinator under commands in any order, with failed saves and restarts: the
properties that hold after each command.

Outcomes wait to be saved in order (`flying`). Their effects are carried out once they are saved;
the persister answers at any time, and refuses some. At the end everything is saved and answered,
and then all members must have their partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import RecordType, ShareGroupMetadata
from kbroker.formats.state import GroupKey, group_prefix
from kbroker.groups.assignors.share import ASSIGNORS
from kbroker.groups.outcome import DeleteShareState, InitializeSharePartitions, Outcome
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.groups.share.messages import (
    GroupHeartbeatReply,
    OffsetsReply,
    ShareGroupHeartbeatRequest,
    ShareGroupSettings,
)
from kbroker.groups.share.state import ShareGroup
from kbroker.share.persister import Result, TopicPartition
from kbroker.storage.memory_store import MemoryStateStore
from tests.groups.share.world import Topics

GROUPS = ("g", "h")
MEMBERS = ("m1", "m2", "m3", "m4")
TOPIC_NAMES = ("a", "b", "c")

groups = st.sampled_from(GROUPS)
members = st.sampled_from(MEMBERS)
names = st.sets(st.sampled_from((*TOPIC_NAMES, "never")), min_size=1).map(lambda found: tuple(sorted(found)))


def stored_part(group: ShareGroup) -> tuple[Any, ...]:
    """All state that a restart must restore. Members are in the order of their ids, as their own
    order is not stored."""
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assignment_ms,
        {
            name: (
                each.rack_id,
                each.client_id,
                each.topic_names,
                each.member_epoch,
                each.previous_epoch,
                each.assigned,
            )
            for name, each in group.members.items()
        },
        {name: target for name, target in group.targets.items() if target},
        group.initialized,
        group.initializing,
        group.deleting,
    )


class ShareGroupMachine(RuleBasedStateMachine):
    @initialize(interval_ms=st.sampled_from((0, 1_000)))
    def start(self, interval_ms: int) -> None:
        self.topics = Topics()
        self.store = MemoryStateStore({})
        self.now_ms = 1_000_000
        self.settings = ShareGroupSettings(assignment_interval_ms=interval_ms, max_size=3)
        self.assignors = dict.fromkeys(GROUPS, "simple")
        self.flying: list[Outcome[Any]] = []
        self.asked: list[InitializeSharePartitions | DeleteShareState] = []
        self.epochs: dict[str, int] = {}
        self.replies: list[tuple[object, OffsetsReply]] = []
        self.gone: set[UUID] = set()
        self.new_life()

    def new_life(self) -> None:
        self.coordinator = self.replayed(self.store.scan)

    def replayed(self, scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]]) -> ShareGroupCoordinator:
        coordinator = ShareGroupCoordinator(
            lambda group_id: self.settings._replace(assignor=self.assignors[group_id])
        )
        coordinator.load(scan(GroupKey.namespace), now_ms=self.now_ms)
        return coordinator

    # --- members ---

    def heartbeat(
        self, group_id: str, member_id: str, epoch: int, topics: tuple[str, ...] | None
    ) -> GroupHeartbeatReply | None:
        request = ShareGroupHeartbeatRequest(group_id, member_id, epoch, None, topics, "c", "/h")
        outcome = self.coordinator.heartbeat(request, now_ms=self.now_ms, topics=self.topics)
        self.flying.append(outcome)
        if outcome.reply is None:
            assert self.coordinator.is_waiting(group_id, member_id) or outcome.effects
        elif outcome.reply.error_code is ErrorCode.none and epoch >= 0:
            self.check_reply(group_id, member_id, outcome.reply, must_have=epoch == 0)
        return outcome.reply

    @rule(group_id=groups, member_id=members, topics=names)
    def join(self, group_id: str, member_id: str, topics: tuple[str, ...]) -> None:
        group = self.coordinator._groups.get(group_id)
        full = (
            group is not None
            and member_id not in group.members
            and len(group.members) >= self.settings.max_size
        )
        reply = self.heartbeat(group_id, member_id, 0, topics)
        assert full == (reply is not None and reply.error_code is ErrorCode.group_max_size_reached)

    @rule(group_id=groups, member_id=members, topics=st.none() | names | st.just(()))
    def stay(self, group_id: str, member_id: str, topics: tuple[str, ...] | None) -> None:
        member = self.member(group_id, member_id)
        if member is not None and member.member_epoch > 0:
            reply = self.heartbeat(group_id, member_id, member.member_epoch, topics)
            assert reply is None or reply.error_code is ErrorCode.none

    @rule(group_id=groups, member_id=members, epoch=st.integers(1, 30))
    def wrong_epoch(self, group_id: str, member_id: str, epoch: int) -> None:
        member = self.member(group_id, member_id)
        if member is not None and epoch not in (member.member_epoch, member.previous_epoch):
            reply = self.heartbeat(group_id, member_id, epoch, None)
            assert reply is not None
            assert reply.error_code is ErrorCode.fenced_member_epoch

    @rule(group_id=groups, member_id=members)
    def leave(self, group_id: str, member_id: str) -> None:
        known = self.member(group_id, member_id) is not None
        reply = self.heartbeat(group_id, member_id, -1, None)
        assert reply is not None
        assert (reply.member_epoch == -1) is known
        assert self.member(group_id, member_id) is None

    @rule(group_id=groups, member_id=members)
    def finish(self, group_id: str, member_id: str) -> None:
        """The rest of a heartbeat that waited, or the end of its patience."""
        outcome = self.coordinator.heartbeat_reply(group_id, member_id, now_ms=self.now_ms)
        self.flying.append(outcome)
        assert outcome.reply is not None
        if self.member(group_id, member_id) is None:
            assert outcome.reply.error_code in (ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)
        else:
            self.check_reply(group_id, member_id, outcome.reply, must_have=True)

    @rule(passed_ms=st.sampled_from((1, 999, 10_000, 30_000, 45_000)))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.flying.append(self.coordinator.expire(self.now_ms))
        deadline_ms = self.coordinator.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.now_ms
        assert all(
            self.coordinator.session_left_ms(group.group_id, member_id, now_ms=self.now_ms) > 0
            for group in self.coordinator._groups.values()
            for member_id in group.members
        )

    # --- topics, groups ---

    @rule(group_id=groups, assignor=st.sampled_from(sorted(ASSIGNORS)))
    def alter_settings(self, group_id: str, assignor: str) -> None:
        """The setting is stored before the coordinator gets it, and no failed save of the targets
        takes it back."""
        before = self.coordinator._groups.get(group_id)
        epoch = before.epoch if before else 0
        changes = before is not None and bool(before.members) and self.assignors[group_id] != assignor
        self.assignors[group_id] = assignor
        self.flying.append(
            self.coordinator.settings_changed(group_id, now_ms=self.now_ms, topics=self.topics)
        )
        group = self.coordinator._groups.get(group_id)
        if changes and group is not None and group.hash_topics(self.topics, assignor) != 0:
            assert (group.epoch, group.assignment_epoch) == (epoch + 1, epoch + 1), "new targets at once"

    @rule(name=st.sampled_from(TOPIC_NAMES), more=st.integers(1, 3))
    def create_or_grow(self, name: str, more: int) -> None:
        old = self.topics.by_name(name)
        self.topics.put(name, more + (len(old.partitions) if old else 0))

    @rule(name=st.sampled_from(TOPIC_NAMES))
    def delete_topic(self, name: str) -> None:
        if self.topics.by_name(name) is not None:
            topic_id = self.topics.remove(name)
            self.gone.add(topic_id)
            self.flying.append(self.coordinator.topic_deleted(topic_id))
            assert topic_id not in self.coordinator.topic_ids()

    @rule(group_id=groups)
    def delete_group(self, group_id: str) -> None:
        group = self.coordinator._groups.get(group_id)
        outcome = self.coordinator.delete(group_id, self.topics)
        self.flying.append(outcome)
        if group is None:
            assert outcome.reply is ErrorCode.group_id_not_found
        elif group.members:
            assert outcome.reply is ErrorCode.non_empty_group
        else:
            assert (outcome.reply is None) == bool(outcome.effects)

    @rule(
        group_id=groups,
        starts=st.dictionaries(
            st.sampled_from(TOPIC_NAMES), st.dictionaries(st.integers(0, 4), st.integers(-1, 9))
        ),
    )
    def alter_offsets(self, group_id: str, starts: dict[str, dict[int, int]]) -> None:
        self.administer(
            group_id,
            self.coordinator.alter_offsets(group_id, starts, self.topics),
            bool(starts),
            must_exist=False,
        )

    @rule(group_id=groups, names=st.lists(st.sampled_from(TOPIC_NAMES)))
    def delete_offsets(self, group_id: str, names: list[str]) -> None:
        self.administer(
            group_id,
            self.coordinator.delete_offsets(group_id, names, self.topics),
            bool(names),
            must_exist=True,
        )

    def administer(
        self, group_id: str, outcome: Outcome[OffsetsReply], is_something: bool, *, must_exist: bool
    ) -> None:
        self.flying.append(outcome)
        assert outcome.reply is not None
        for effect in outcome.effects:
            self.replies.append((effect, outcome.reply))
        group = self.coordinator._groups.get(group_id)
        if is_something and group is not None and group.members:
            assert outcome.reply.error_code is ErrorCode.non_empty_group
        elif is_something and group is None and must_exist:
            assert outcome.reply.error_code is ErrorCode.group_id_not_found
        else:
            assert outcome.reply.error_code is ErrorCode.none

    # --- the store and the persister ---

    @precondition(lambda self: self.flying)
    @rule(count=st.integers(1, 4))
    def save(self, count: int) -> None:
        for outcome in self.flying[:count]:
            self.store.write(outcome.changes)
            self.asked += outcome.effects
        del self.flying[:count]

    @precondition(lambda self: self.flying)
    @rule()
    def fail(self) -> None:
        failed = [group_id for outcome in self.flying for group_id in outcome.group_ids]
        self.flying.clear()
        for group_id in failed:
            self.coordinator.not_saved(group_id, self.store.scan(group_prefix(group_id)), now_ms=self.now_ms)
        self.forget_gone()

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.asked.clear()
        self.new_life()
        self.forget_gone()

    def forget_gone(self) -> None:
        """The broker deletes a topic in one write with the groups' changes, or reports the deletion
        to the coordinator again."""
        for topic_id in self.coordinator.topic_ids() & self.gone:
            self.flying.append(self.coordinator.topic_deleted(topic_id))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        effect = self.asked.pop(0)
        if isinstance(effect, InitializeSharePartitions):
            codes = st.sampled_from((ErrorCode.none, ErrorCode.none, ErrorCode.coordinator_not_available))
            results = [Result(each.partition, data.draw(codes)) for each in effect.requests]
            self.flying.append(self.coordinator.initialized(effect.group_id, results, now_ms=self.now_ms))
        else:
            code = data.draw(st.sampled_from((ErrorCode.none, ErrorCode.coordinator_not_available)))
            self.flying.append(self.deleted(effect, [Result(each, code) for each in effect.partitions]))

    def deleted(self, effect: DeleteShareState, results: list[Result]) -> Outcome[Any]:
        """The persister's answer to the deletion of a group, or of its offsets."""
        for asked, reply in self.replies:
            if asked is effect:
                return self.coordinator.offsets_deleted(effect.group_id, reply, results)
        outcome = self.coordinator.deleted(effect.group_id, results)
        assert outcome.reply is not None
        return outcome

    # --- invariants ---

    def member(self, group_id: str, member_id: str) -> Any:
        group = self.coordinator._groups.get(group_id)
        return group.members.get(member_id) if group else None

    def check_reply(
        self, group_id: str, member_id: str, reply: GroupHeartbeatReply, *, must_have: bool
    ) -> None:
        group, member = self.coordinator._groups[group_id], self.member(group_id, member_id)
        assert (reply.member_id, reply.member_epoch) == (member_id, member.member_epoch)
        assert (reply.assignment is not None) or not must_have
        for topic in reply.assignment.topic_partitions if reply.assignment else ():
            if topic.topic_id in self.gone:
                continue  # deleted within the assignment interval
            assert group.initialized[topic.topic_id].name in member.topic_names
            assert {*topic.partitions} <= group.initialized[topic.topic_id].partitions

    @invariant()
    def epochs_are_in_order(self) -> None:
        if not hasattr(self, "store"):
            return
        for group in self.coordinator._groups.values():
            assert group.assignment_epoch <= group.epoch
            assert all(
                member.previous_epoch <= member.member_epoch <= group.assignment_epoch
                for member in group.members.values()
            )
            assert set(group.targets) <= set(group.members)
            waiting = {each.partition for each in group.asked_ms if each.topic_id in group.initializing}
            assert len(group.asked_ms) == 0 or waiting
        for group_id in GROUPS:
            value = self.store.get(GroupKey(RecordType.SHARE_GROUP_METADATA, group_id).encode())
            epoch = ShareGroupMetadata.decode(value).epoch if value else 0
            assert value is None or epoch >= self.epochs.get(group_id, 0), "a stored group epoch never falls"
            self.epochs[group_id] = epoch

    @invariant()
    def replay_is_memory(self) -> None:
        if not hasattr(self, "store"):
            return
        decided = MemoryStateStore(dict(self.store.scan(b"")))
        for outcome in self.flying:
            decided.write(outcome.changes)
            assert bool(outcome.changes) == bool(outcome.group_ids)
        again = self.replayed(decided.scan)
        found = {name: stored_part(group) for name, group in self.coordinator._groups.items()}
        assert {name: stored_part(group) for name, group in again._groups.items()} == found

    def teardown(self) -> None:
        """Save and answer everything: after two heartbeats all members have their partitions, and
        every partition is assigned."""
        if not hasattr(self, "store"):
            return
        for _ in range(3):
            self.now_ms += 30_000
            self.let_through()
            for group_id, group in list(self.coordinator._groups.items()):
                for member_id, member in list(group.members.items()):
                    topics = member.topic_names if member.member_epoch == 0 else None
                    if self.heartbeat(group_id, member_id, member.member_epoch, topics) is None:
                        self.let_through()
                        self.finish(group_id, member_id)
        self.let_through()
        for group in self.coordinator._groups.values():
            self.check_settled(group)

    def let_through(self) -> None:
        while self.flying or self.asked:
            self.save(len(self.flying))
            for effect in self.asked:
                if isinstance(effect, InitializeSharePartitions):
                    results = [Result(each.partition) for each in effect.requests]
                    self.flying.append(
                        self.coordinator.initialized(effect.group_id, results, now_ms=self.now_ms)
                    )
                else:
                    self.flying.append(self.deleted(effect, [Result(each) for each in effect.partitions]))
            self.asked.clear()

    def check_settled(self, group: ShareGroup) -> None:
        wanted = {
            TopicPartition(topic.topic_id, number)
            for member in group.members.values()
            for topic in map(self.topics.by_name, member.topic_names)
            if topic is not None
            for number in range(len(topic.partitions))
        }
        given = [
            {TopicPartition(topic, each) for topic, found in member.assigned.items() for each in found}
            for member in group.members.values()
        ]
        assert set().union(*given) == wanted
        for member, found in zip(group.members.values(), given, strict=True):
            subscribed = {
                topic.topic_id for topic in map(self.topics.by_name, member.topic_names) if topic is not None
            }
            assert {each.topic_id for each in found} <= subscribed
            assert bool(found) == bool(subscribed), "everybody who can have something has something"
            if self.assignors[group.group_id] == "all":
                assert found == {each for each in wanted if each.topic_id in subscribed}


ShareGroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestShareGroup = ShareGroupMachine.TestCase


@pytest.mark.full
class TestShareGroupLong(ShareGroupMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=600, stateful_step_count=60, deadline=None)
