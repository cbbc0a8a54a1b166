"""A share group coordinator with its surroundings in the broker: topics, a store, and a persister
that answers on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import Message, RecordType
from kbroker.formats.state import GroupKey, group_prefix, parse_key
from kbroker.groups.ids import GroupIds
from kbroker.groups.outcome import DeleteShareState, InitializeSharePartitions, Outcome
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.groups.share.messages import (
    GroupHeartbeatReply,
    OffsetsReply,
    ShareGroupHeartbeatRequest,
    ShareGroupSettings,
    TopicView,
)
from kbroker.share.persister import InitializeRequest, Result, TopicPartition
from kbroker.storage.memory_store import MemoryStateStore


@dataclass
class Topics:
    version: int = 0
    found: dict[str, SimpleNamespace] = field(default_factory=dict)

    def by_name(self, name: str) -> TopicView | None:
        return self.found.get(name)

    def by_id(self, topic_id: UUID) -> TopicView | None:
        return next((topic for topic in self.found.values() if topic.topic_id == topic_id), None)

    def put(self, name: str, partitions: int) -> UUID:
        self.version += 1
        old = self.found.get(name)
        topic_id = old.topic_id if old else UUID(int=self.version)
        self.found[name] = SimpleNamespace(topic_id=topic_id, name=name, partitions=range(partitions))
        return topic_id

    def remove(self, name: str) -> UUID:
        self.version += 1
        topic_id: UUID = self.found.pop(name).topic_id
        return topic_id


class World:
    """Saves every outcome at once, and answers initialisations at once unless it is `patient`."""

    def __init__(self, **settings: int) -> None:
        self.settings = ShareGroupSettings(**settings)
        self.topics = Topics()
        self.store = MemoryStateStore({})
        self.now_ms = 1_000_000
        self.patient = False
        self.refuse: dict[TopicPartition, ErrorCode] = {}
        self.asked: list[InitializeRequest] = []
        self.deleted: tuple[TopicPartition, ...] = ()
        self.pending: list[InitializeSharePartitions | DeleteShareState] = []
        self.group_ids = GroupIds()
        self.restart()

    def restart(self) -> None:
        self.group_ids = GroupIds()
        self.coordinator = ShareGroupCoordinator(lambda group_id: self.settings, self.group_ids)
        self.coordinator.load(self.store.scan(GroupKey.namespace), now_ms=self.now_ms)

    def save(self, outcome: Outcome[object]) -> None:
        self.store.write(outcome.changes)
        self.pending += outcome.effects

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        topics: Iterable[str] | None = None,
        *,
        group: str = "g",
        rack: str | None = None,
        client: str = "c",
    ) -> GroupHeartbeatReply | None:
        names = None if topics is None else tuple(topics)
        outcome = self.coordinator.heartbeat(
            ShareGroupHeartbeatRequest(group, member_id, epoch, rack, names, client, "/h"),
            now_ms=self.now_ms,
            topics=self.topics,
        )
        self.save(outcome)
        if not self.patient:
            self.answer()
        return outcome.reply or (None if self.patient else self.finish(member_id, group))

    def join(self, member_id: str, *topics: str, group: str = "g") -> GroupHeartbeatReply:
        reply = self.heartbeat(member_id, 0, topics, group=group)
        assert reply is not None
        assert reply.error_code is ErrorCode.none
        return reply

    def again(self, member_id: str, after_ms: int = 5_000) -> GroupHeartbeatReply:
        """A plain heartbeat, with the epoch that the member has."""
        self.now_ms += after_ms
        group = self.coordinator.describe("g")
        (member,) = [each for each in group.members if each.member_id == member_id]
        reply = self.heartbeat(member_id, member.member_epoch)
        assert reply is not None
        return reply

    def answer(self) -> None:
        """The persister answers all pending requests."""
        for effect in self.pending:
            if isinstance(effect, InitializeSharePartitions):
                self.asked += effect.requests
                results = self.results(request.partition for request in effect.requests)
                self.save(self.coordinator.initialized(effect.group_id, results, now_ms=self.now_ms))
        self.pending = [
            effect for effect in self.pending if not isinstance(effect, InitializeSharePartitions)
        ]

    def results(self, partitions: Iterable[TopicPartition]) -> list[Result]:
        return [Result(each, self.refuse.get(each, ErrorCode.none)) for each in partitions]

    def finish(self, member_id: str, group: str = "g") -> GroupHeartbeatReply:
        outcome = self.coordinator.heartbeat_reply(group, member_id, now_ms=self.now_ms)
        self.save(outcome)
        assert outcome.reply is not None
        return outcome.reply

    def delete(self, group: str = "g") -> ErrorCode:
        outcome = self.coordinator.delete(group, self.topics)
        self.save(outcome)
        if outcome.reply is None:
            (effect,) = outcome.effects
            assert isinstance(effect, DeleteShareState)
            self.pending.remove(effect)
            outcome = self.coordinator.deleted(group, self.results(effect.partitions))
            self.save(outcome)
        if outcome.reply is ErrorCode.none:
            self.coordinator.deletion_saved(group)
        assert outcome.reply is not None
        return outcome.reply

    def alter(self, starts: Mapping[str, Mapping[int, int]], group: str = "g") -> OffsetsReply:
        outcome = self.coordinator.alter_offsets(group, starts, self.topics)
        self.save(outcome)
        assert outcome.reply is not None
        if not outcome.effects:
            return outcome.reply
        effect = self.pending.pop()
        assert isinstance(effect, InitializeSharePartitions)
        self.asked += effect.requests
        results = self.results(request.partition for request in effect.requests)
        done = self.coordinator.offsets_altered(group, outcome.reply, results, now_ms=self.now_ms)
        self.save(done)
        assert done.reply is not None
        return done.reply

    def delete_offsets(self, *names: str, group: str = "g") -> OffsetsReply:
        outcome = self.coordinator.delete_offsets(group, names, self.topics)
        self.save(outcome)
        assert outcome.reply is not None
        if not outcome.effects:
            return outcome.reply
        effect = self.pending.pop()
        assert isinstance(effect, DeleteShareState)
        self.deleted = effect.partitions
        done = self.coordinator.offsets_deleted(group, outcome.reply, self.results(effect.partitions))
        self.save(done)
        assert done.reply is not None
        return done.reply

    def fail(self, outcome: Outcome[object]) -> None:
        """The save of this outcome failed."""
        for group_id in outcome.group_ids:
            self.coordinator.not_saved(group_id, self.store.scan(group_prefix(group_id)), now_ms=self.now_ms)

    def records(self, group: str = "g") -> dict[tuple[RecordType, str | None], Message]:
        found = {}
        for key, value in self.store.scan(group_prefix(group)):
            parsed = parse_key(key)
            assert isinstance(parsed, GroupKey)
            found[parsed.record_type, parsed.member_id] = parsed.decode_value(value)
        return found

    def group_epoch(self) -> int:
        return self.coordinator.describe("g").group_epoch


def assigned(reply: GroupHeartbeatReply | None) -> set[TopicPartition] | None:
    assert reply is not None
    if reply.assignment is None:
        return None
    return {
        TopicPartition(each.topic_id, number)
        for each in reply.assignment.topic_partitions
        for number in each.partitions
    }
