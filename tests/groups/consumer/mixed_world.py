"""Groups of both protocols with their surroundings in the broker, and members of the classic
protocol."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription, TopicPartition
from kio.serial import entity_writer

from kbroker.errors import ErrorCode
from kbroker.formats.state import GroupKey
from kbroker.groups.classic.coordinator import ClassicGroups
from kbroker.groups.classic.messages import (
    ClassicGroupSettings,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    Leaving,
    Protocol,
    SyncReply,
    SyncRequest,
)
from kbroker.groups.ids import GroupIds
from kbroker.groups.offsets.committed import Offsets
from kbroker.groups.offsets.messages import CommitRequest, OffsetsSettings
from kbroker.groups.outcome import Answer, GenerationSaved, Outcome, Ticket
from kbroker.groups.routing import Groups
from kbroker.protocol.consumer_protocol import read_assignment, write_assignment
from tests.groups.consumer import world as consumer_world
from tests.groups.consumer.world import TopicNumbers


class World(consumer_world.World):
    """The consumer groups' world with classic groups. Decisions are saved at once, and answers go
    to the members' tickets."""

    def restart(self) -> None:
        super().restart()
        self.group_ids = GroupIds()
        settings = ClassicGroupSettings(min_session_timeout_ms=1, initial_rebalance_delay_ms=0)
        classic = ClassicGroups(lambda: settings, self.group_ids, self.new_id)
        self.groups = consumer_world.ConsumerGroups(
            lambda group_id: self.settings, self.group_ids, self.topics, self.assignors, self.new_id
        )
        self.all = Groups(classic, self.groups, Offsets(OffsetsSettings), self.group_ids, self.topics)
        self.all.load(self.store.scan(GroupKey.namespace), (), now_ms=self.now_ms)
        self.answers: dict[Ticket, object] = {}

    def save(self, outcome: Outcome[object]) -> None:
        self.store.write(outcome.changes)
        for effect in outcome.effects:
            if isinstance(effect, Answer):
                self.answers[effect.ticket] = effect.reply
            elif isinstance(effect, GenerationSaved):
                self.save(self.all.classic.saved(effect, now_ms=self.now_ms))

    def after(self, wait_ms: int) -> None:
        self.now_ms += wait_ms
        self.save(self.all.expire(self.now_ms))

    def type(self) -> str | None:
        return self.group_ids.type_of("g")


def subscription(topics: Iterable[str], owned: Mapping[str, tuple[int, ...]]) -> bytes:
    """ConsumerProtocolSubscription, version 1."""
    rows = tuple(TopicPartition(topic=name, partitions=numbers) for name, numbers in owned.items())  # type: ignore[arg-type]
    out = io.BytesIO(b"\0\1")
    out.seek(2)
    write = entity_writer(ConsumerProtocolSubscription)
    write(out, ConsumerProtocolSubscription(topics=tuple(topics), user_data=None, owned_partitions=rows))
    return out.getvalue()


class ClassicClient:
    """A consumer of the classic protocol. In groups that it leads, it gets all partitions."""

    def __init__(
        self, world: World, name: str, *topics: str, instance: str | None = None, eager: bool = False
    ) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.instance = instance
        self.eager = eager
        self.member_id = ""
        self.generation = -1
        self.has: set[TopicNumbers] = set()
        self.joined = JoinReply()
        self.protocols = ("range",)
        self.ticket = Ticket()
        self.session_timeout_ms = 30_000

    def request(self, **more: object) -> JoinRequest:
        owned = {} if self.eager else _by_topic(self.has)
        metadata = subscription(self.topics, owned)
        values: dict[str, object] = {
            "group_id": "g",
            "member_id": self.member_id,
            "instance_id": self.instance,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": tuple(Protocol(name, metadata) for name in self.protocols),
            "client_id": self.name,
            "client_host": "/h",
            "takes_member_id": False,
        }
        return JoinRequest(**(values | more))  # type: ignore[arg-type]

    def join(self, code: ErrorCode | None = ErrorCode.none, **more: object) -> ClassicClient:
        """JoinGroup. `code` None: it must wait."""
        self.ticket = Ticket()
        outcome = self.world.all.join(self.request(**more), self.ticket, now_ms=self.world.now_ms)
        self.world.save(outcome)
        reply = outcome.reply or self.world.answers.pop(self.ticket, None)
        if code is None:
            assert reply is None
            return self
        assert isinstance(reply, JoinReply)
        assert reply.error_code is code, reply
        return self.take(reply)

    def take(self, reply: JoinReply) -> ClassicClient:
        self.joined = reply
        if reply.error_code is ErrorCode.none:
            self.member_id, self.generation = reply.member_id, reply.generation_id
        return self

    def answered(self) -> ClassicClient:
        """Take the answer to the JoinGroup that waited."""
        reply = self.world.answers.pop(self.ticket)
        assert isinstance(reply, JoinReply)
        return self.take(reply)

    def sync(self, code: ErrorCode = ErrorCode.none, **more: object) -> ClassicClient:
        """SyncGroup; a leader gives itself all partitions."""
        shares: tuple[tuple[str, bytes], ...] = ()
        if self.joined.leader == self.member_id and self.joined.leader:
            everything = {name: tuple(self.world.topics.found[name].partitions) for name in self.topics}
            shares = ((self.member_id, write_assignment(everything, 1)),)
        ticket = Ticket()
        values: dict[str, object] = {
            "protocol_type": "consumer",
            "protocol_name": self.joined.protocol_name,
            "assignments": shares,
        }
        request = SyncRequest("g", self.member_id, self.instance, self.generation, **(values | more))  # type: ignore[arg-type]
        outcome = self.world.all.sync(request, ticket, now_ms=self.world.now_ms)
        self.world.save(outcome)
        reply = outcome.reply or self.world.answers.pop(ticket)
        assert isinstance(reply, SyncReply)
        assert reply.error_code is code, reply
        if code is ErrorCode.none:
            partitions = read_assignment(reply.assignment).partitions if reply.assignment else {}
            self.has = {(name, number) for name, numbers in partitions.items() for number in numbers}
        return self

    def enter(self) -> ClassicClient:
        return self.join().sync()

    def heartbeat(self, generation: int | None = None) -> ErrorCode:
        wanted = HeartbeatRequest(
            "g", self.member_id, self.instance, self.generation if generation is None else generation
        )
        outcome = self.world.all.classic_heartbeat(wanted, now_ms=self.world.now_ms)
        self.world.save(outcome)
        assert outcome.reply is not None
        return outcome.reply.error_code

    def committing(self) -> CommitRequest:
        return CommitRequest(
            "g", {}, member_id=self.member_id, instance_id=self.instance, generation=self.generation
        )

    def beat(self) -> ClassicClient:
        """Send heartbeats, and rejoin, until the group needs no rebalance from it."""
        for _ in range(10):
            if self.heartbeat() is ErrorCode.none:
                return self
            self.enter()
        raise AssertionError(f"{self.name} must join again and again")

    def leave(self) -> LeaveReply:
        return leave(self.world, [Leaving(self.member_id, self.instance)])


def leave(world: World, members: Iterable[Leaving]) -> LeaveReply:
    outcome = world.all.leave(LeaveRequest("g", tuple(members)), now_ms=world.now_ms)
    world.save(outcome)
    assert outcome.reply is not None
    return outcome.reply


def _by_topic(has: set[TopicNumbers]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, number in sorted(has):
        found[name] = (*found.get(name, ()), number)
    return found
