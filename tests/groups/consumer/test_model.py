"""Consumer groups with members of both protocols, in any order, with failed saves, lost answers and
restarts.

Outcomes are saved in order (`flying`), and then answered. Clients behave like real ones: they own
the partitions from their answers, give up revoked ones some time later, and rejoin when they are
fenced. Invariants: no two clients that the group knows own the same partition, and a client may
commit for all of its partitions. At the end all members get their answers, and each has its share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.formats.state import GroupKey, group_prefix
from kbroker.groups.classic import messages as classic
from kbroker.groups.classic.coordinator import ClassicGroups
from kbroker.groups.consumer.coordinator import ConsumerGroups
from kbroker.groups.consumer.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupSettings,
    MigrationPolicy,
)
from kbroker.groups.ids import CLASSIC, CONSUMER, GroupIds
from kbroker.groups.offsets.committed import Offsets
from kbroker.groups.offsets.messages import Commit, CommitRequest, OffsetsSettings
from kbroker.groups.outcome import Answer, GenerationSaved, Outcome, Ticket
from kbroker.groups.routing import Groups
from kbroker.groups.share.messages import GroupHeartbeatReply
from kbroker.protocol.consumer_protocol import read_assignment, read_subscription, write_assignment
from kbroker.storage.memory_store import MemoryStateStore
from tests.groups.consumer.mixed_world import subscription
from tests.groups.consumer.world import ASSIGNORS, Topics

NAMES = ("a", "b", "c")
TOPICS = ("t", "u")
LOST = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.group_id_not_found,
        ErrorCode.fenced_instance_id,
    }
)
Partition = tuple[str, int]
subscriptions = st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda found: tuple(sorted(found)))


@dataclass(eq=False)
class Client:
    """`epoch`: for a classic member its generation. `asked`: the request in flight, at most one."""

    name: str
    speaks_classic: bool
    instance: str | None = None
    member_id: str = ""
    epoch: int = 0
    topics: tuple[str, ...] = ("t",)
    has: set[Partition] = field(default_factory=set)
    is_to_have: set[Partition] = field(default_factory=set)
    says_all: bool = True
    asked: Call | None = None
    must_join: bool = True
    joined: classic.JoinReply | None = None

    def abandon(self) -> None:
        self.has, self.is_to_have, self.epoch, self.must_join, self.says_all, self.joined = (
            set(),
            set(),
            0,
            True,
            True,
            None,
        )

    def give_up(self) -> None:
        self.has = set(self.is_to_have)


class Call(Ticket):
    __slots__ = ("client", "what")

    def __init__(self, client: Client, what: str) -> None:
        self.client = client
        self.what = what


class ConsumerGroupMachine(RuleBasedStateMachine):
    @initialize(interval_ms=st.sampled_from((0, 1_000)), policy=st.sampled_from(MigrationPolicy))
    def start(self, interval_ms: int, policy: MigrationPolicy) -> None:
        self.topics = Topics()
        self.topics.put("t", 3)
        self.store = MemoryStateStore({})
        self.now_ms = 1_000_000
        self.settings = ConsumerGroupSettings(assignment_interval_ms=interval_ms, migration_policy=policy)
        self.flying: list[tuple[Outcome[Any], Call | None]] = []
        self.clients: dict[str, Client] = {}
        self.made = 0
        self.new_life()

    def new_life(self) -> None:
        ids = GroupIds()
        classic_settings = classic.ClassicGroupSettings(initial_rebalance_delay_ms=0)
        groups = ClassicGroups(lambda: classic_settings, ids, self.new_id)
        consumer = ConsumerGroups(lambda group_id: self.settings, ids, self.topics, ASSIGNORS, self.new_id)
        self.ids = ids
        self.groups = Groups(groups, consumer, Offsets(OffsetsSettings), ids, self.topics)
        self.groups.load(self.store.scan(GroupKey.namespace), (), now_ms=self.now_ms)

    def new_id(self) -> str:
        self.made += 1
        return f"id-{self.made}"

    # --- clients ---

    @rule(
        name=st.sampled_from(NAMES), speaks_classic=st.booleans(), topics=subscriptions, static=st.booleans()
    )
    def start_client(self, name: str, speaks_classic: bool, topics: tuple[str, ...], static: bool) -> None:
        """Start a client, unless it runs already. A killed one lives on in its group only."""
        if name not in self.clients:
            self.clients[name] = Client(
                name, speaks_classic, f"instance-{name}" if static else None, topics=topics
            )
            self.clients[name].member_id = "" if speaks_classic else self.new_id()

    @rule(name=st.sampled_from(NAMES))
    def kill(self, name: str) -> None:
        self.clients.pop(name, None)

    @rule(name=st.sampled_from(NAMES), topics=subscriptions)
    def subscribe(self, name: str, topics: tuple[str, ...]) -> None:
        client = self.clients.get(name)
        if client is not None and client.asked is None:
            client.topics, client.says_all = topics, True
            client.must_join = client.must_join or client.speaks_classic

    @rule(name=st.sampled_from(NAMES))
    def give_up(self, name: str) -> None:
        client = self.clients.get(name)
        if client is not None and not client.speaks_classic:
            client.give_up()

    @rule(name=st.sampled_from(NAMES), leaves=st.sampled_from((0, 0, 0, 0, -1, -2)))
    def send(self, name: str, leaves: int) -> None:
        """Send the client's next request."""
        client = self.clients.get(name)
        if client is None or client.asked is not None:
            return
        if client.speaks_classic:
            self.send_classic(client, leaves=leaves == -1)
        elif leaves and client.epoch and (leaves == -1 or client.instance):
            client.abandon()
            self.heartbeat(client, leaves, "leave")
        else:
            if client.must_join:
                client.abandon()
            self.heartbeat(client, client.epoch, "beat")

    @rule(rounds=st.integers(1, 3), waits_ms=st.sampled_from((0, 1_000)))
    def all_go_on(self, rounds: int, waits_ms: int) -> None:
        """All clients send their next request and get the answer. Clients that must give up
        partitions continue reading."""
        for _ in range(rounds):
            self.time_passes(waits_ms)
            for name in tuple(self.clients):
                self.send(name, 0)
                self.save_all()
                self.a_partition_is_had_by_one()

    def heartbeat(self, client: Client, epoch: int, what: str) -> None:
        owned: dict[UUID, tuple[int, ...]] = {}
        for topic, number in sorted(client.has):
            if (found := self.topics.by_name(topic)) is not None:
                owned[found.topic_id] = (*owned.get(found.topic_id, ()), number)
        request = ConsumerGroupHeartbeatRequest("g", client.member_id, epoch, client.instance, owned=owned)
        if client.says_all and epoch >= 0:
            request = ConsumerGroupHeartbeatRequest(
                "g",
                client.member_id,
                epoch,
                client.instance,
                None,
                20_000,
                subscribed_topic_names=client.topics,
                owned=owned,
            )
        call = client.asked = Call(client, what)
        self.submit(self.groups.consumer.heartbeat(request, now_ms=self.now_ms), call)

    def send_classic(self, client: Client, *, leaves: bool) -> None:
        """Join as an eager member, which gives up all partitions first."""
        call = client.asked = Call(client, "join")
        outcome: Outcome[Any]
        if leaves and client.member_id:
            call.what = "leave"
            member_id = client.member_id
            client.abandon()
            client.member_id = ""
            outcome = self.groups.leave(
                classic.LeaveRequest("g", (classic.Leaving(member_id, client.instance),)), now_ms=self.now_ms
            )
        elif client.must_join:
            member_id = client.member_id
            client.abandon()
            client.member_id = member_id
            protocols = (classic.Protocol("range", subscription(client.topics, {})),)
            request = classic.JoinRequest(
                "g", member_id, client.instance, 45_000, 20_000, "consumer", protocols, client.name
            )
            outcome = self.groups.join(request, call, now_ms=self.now_ms)
        elif client.joined is not None:
            call.what = "sync"
            request_ = classic.SyncRequest(
                "g",
                client.member_id,
                client.instance,
                client.epoch,
                "consumer",
                "range",
                self.shares(client.joined),
            )
            outcome = self.groups.sync(request_, call, now_ms=self.now_ms)
        else:
            call.what = "heartbeat"
            beat = classic.HeartbeatRequest("g", client.member_id, client.instance, client.epoch)
            outcome = self.groups.classic_heartbeat(beat, now_ms=self.now_ms)
        self.submit(outcome, call)

    def shares(self, joined: classic.JoinReply) -> tuple[tuple[str, bytes], ...]:
        """The leader's assignments: each partition in turn goes to one of its subscribers."""
        given: dict[str, dict[str, tuple[int, ...]]] = {member.member_id: {} for member in joined.members}
        for topic in TOPICS:
            takers = [
                each.member_id for each in joined.members if topic in read_subscription(each.metadata).topics
            ]
            found = self.topics.by_name(topic)
            for number in range(len(found.partitions) if found is not None and takers else 0):
                share = given[takers[number % len(takers)]]
                share[topic] = (*share.get(topic, ()), number)
        return tuple((member_id, write_assignment(share, 1)) for member_id, share in given.items())

    # --- answers ---

    def submit(self, outcome: Outcome[Any], call: Call | None) -> None:
        """Queue an outcome; one without changes is carried out at once, as in the broker."""
        if outcome.changes:
            self.flying.append((outcome, call))
        else:
            self.saved(outcome, call)

    def saved(self, outcome: Outcome[Any], call: Call | None, *, lose: bool = False) -> None:
        for effect in outcome.effects:
            if isinstance(effect, Answer):
                assert isinstance(effect.ticket, Call)
                self.deliver(effect.ticket, effect.reply, lose)
            elif isinstance(effect, GenerationSaved):
                self.submit(self.groups.classic.saved(effect, now_ms=self.now_ms), None)
        if call is not None and outcome.reply is not None:
            self.deliver(call, outcome.reply, lose)

    def deliver(self, call: Call, reply: Any, lose: bool) -> None:
        client = call.client
        if client.asked is not call:
            return
        client.asked = None
        if lose or (reply is not None and reply.error_code is ErrorCode.coordinator_not_available):
            client.says_all = True
            client.must_join = client.must_join or (client.speaks_classic and client.joined is not None)
        elif isinstance(reply, GroupHeartbeatReply):
            self.take_heartbeat(client, call, reply)
        else:
            self.take_classic(client, reply)

    def take_heartbeat(self, client: Client, call: Call, reply: GroupHeartbeatReply) -> None:
        if call.what == "leave":
            return
        if reply.error_code is not ErrorCode.none:
            assert reply.error_code in {*LOST, ErrorCode.unreleased_instance_id}, reply
            client.abandon()
            return
        client.must_join = client.says_all = False
        client.epoch = reply.member_epoch
        if reply.assignment is not None:
            client.is_to_have = {
                (self.topics.name_of(each.topic_id), number)
                for each in reply.assignment.topic_partitions
                for number in each.partitions
            }
            if client.has <= client.is_to_have:
                client.give_up()

    def take_classic(self, client: Client, reply: Any) -> None:
        code = reply.error_code
        if isinstance(reply, classic.JoinReply):
            if code in (ErrorCode.none, ErrorCode.member_id_required):
                client.member_id = reply.member_id
                client.must_join = code is not ErrorCode.none
                client.joined, client.epoch = (
                    (reply, reply.generation_id) if code is ErrorCode.none else (None, 0)
                )
                return
        elif isinstance(reply, classic.SyncReply) and code is ErrorCode.none:
            client.joined = None
            found = read_assignment(reply.assignment).partitions if reply.assignment else {}
            client.has = {(topic, number) for topic, numbers in found.items() for number in numbers}
            return
        elif code is ErrorCode.none:
            return
        if code is not ErrorCode.rebalance_in_progress:
            assert code in {*LOST, ErrorCode.illegal_generation, ErrorCode.inconsistent_group_protocol}, reply
            client.abandon()
            client.member_id = client.member_id if code is ErrorCode.illegal_generation else ""
        client.must_join = True

    # --- the store, the topics, the time ---

    @precondition(lambda self: self.flying)
    @rule(count=st.integers(1, 4), lose=st.booleans())
    def save(self, count: int, lose: bool) -> None:
        for outcome, call in [self.flying.pop(0) for _ in range(min(count, len(self.flying)))]:
            self.store.write(outcome.changes)
            self.saved(outcome, call, lose=lose)

    @precondition(lambda self: self.flying)
    @rule()
    def fail(self) -> None:
        failed, self.flying = self.flying, []
        not_available = GroupHeartbeatReply(ErrorCode.coordinator_not_available)
        for outcome, call in failed:
            for ticket in (
                call,
                *(effect.ticket for effect in outcome.effects if isinstance(effect, Answer)),
            ):
                if isinstance(ticket, Call):
                    self.deliver(ticket, not_available, lose=False)
        for outcome, _ in failed:
            for group_id in outcome.group_ids:
                found = list(self.store.scan(group_prefix(group_id)))
                answers = self.groups.not_saved(group_id, found, now_ms=self.now_ms)
                assert not answers.changes
                self.saved(answers, None)

    @rule()
    def restart(self) -> None:
        self.flying.clear()
        self.new_life()
        for client in self.clients.values():
            if client.asked is not None:
                self.deliver(client.asked, None, lose=True)

    @rule(passed_ms=st.sampled_from((1, 1_000, 5_000, 20_000, 45_000)))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for _ in range(4):  # A timer may make another one due at once.
            self.submit(self.groups.expire(self.now_ms), None)
            deadline_ms = self.groups.next_deadline_ms()
            if deadline_ms is None or deadline_ms > self.now_ms:
                return
        raise AssertionError(f"the time does not advance: {deadline_ms}")

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 2))
    def create_or_grow(self, name: str, more: int) -> None:
        old = self.topics.by_name(name)
        self.topics.put(name, more + (len(old.partitions) if old else 0))

    # --- invariants ---

    def known(self) -> list[Client]:
        """Clients whose member is in the group. The others will learn that they lost everything."""
        group = self.groups.consumer.get("g")
        if group is None:
            return []
        members = {
            each: group.members.get(each.member_id) for each in self.clients.values() if each.epoch > 0
        }
        return [
            client
            for client, member in members.items()
            if member is not None and member.is_classic == client.speaks_classic
        ]

    @invariant()
    def a_partition_is_had_by_one(self) -> None:
        if self.ids.type_of("g") != CONSUMER:
            return
        owners: dict[Partition, str] = {}
        for client in self.known():
            for partition in client.has:
                assert owners.setdefault(partition, client.name) == client.name, (partition, owners, client)

    @invariant()
    def what_is_had_may_be_committed(self) -> None:
        if self.flying or self.ids.type_of("g") != CONSUMER:
            return
        for client in self.known():
            topics = {
                name: found.topic_id
                for name, _ in client.has
                if (found := self.topics.by_name(name)) is not None
            }
            offsets = {(topics[name], number): Commit(1) for name, number in client.has if name in topics}
            if offsets and client.joined is None:
                self.groups.consumer.check_commit(
                    CommitRequest("g", offsets, client.member_id, generation=client.epoch)
                )

    @invariant()
    def nothing_is_in_memory_that_is_not_stored(self) -> None:
        if self.flying or self.ids.type_of("g") != CONSUMER:
            return
        again = ConsumerGroups(
            lambda group_id: self.settings, GroupIds(), self.topics, ASSIGNORS, self.new_id
        )
        again.load(self.store.scan(GroupKey.namespace), now_ms=self.now_ms)
        rows = [[each.describe("g"), each.get("g")] for each in (again, self.groups.consumer)]
        for row, _ in rows:
            assert isinstance(row.members, tuple)
        (stored, stored_group), (present, present_group) = rows
        assert sorted(stored.members, key=lambda each: each.member_id) == sorted(
            present.members, key=lambda each: each.member_id
        )
        assert (stored.group_epoch, stored.assignment_epoch) == (
            present.group_epoch,
            present.assignment_epoch,
        )
        assert stored_group.owners == present_group.owners  # type: ignore[union-attr]
        assert stored_group.instances == present_group.instances  # type: ignore[union-attr]

    # --- the end ---

    def teardown(self) -> None:
        if not hasattr(self, "clients"):
            return
        self.save_all()
        for number in range(120):
            self.time_passes(1_000)
            self.save_all()
            if number == 60:
                self.leaders_see_new_topics()
            for client in self.clients.values():
                client.give_up() if not client.speaks_classic else None
                self.send(client.name, 0)
                self.save_all()
        assert self.groups.next_deadline_ms() is not None or not self.clients
        self.check_shares()
        self.clients.clear()
        for _ in range(20):
            self.time_passes(60_000)
            self.save_all()
        assert self.groups.consumer.is_empty("g")
        assert self.groups.classic.get("g") is None or self.groups.classic.is_empty("g")

    def leaders_see_new_topics(self) -> None:
        """Only the leader of a classic group notices that topics have grown. Answers to the other
        members stay the same."""
        for client in self.clients.values():
            client.must_join = client.must_join or client.speaks_classic

    def save_all(self) -> None:
        while self.flying:
            self.save(1, False)

    def check_shares(self) -> None:
        """All members have settled, and every subscribed partition has exactly one owner."""
        members = [client for client in self.clients.values() if client.epoch > 0]
        if self.settings.migration_policy is MigrationPolicy.BIDIRECTIONAL:
            assert len(members) == len(self.clients), self.clients
        had = [partition for client in members for partition in client.has]
        assert len(had) == len(set(had))
        wanted = {
            (name, number)
            for client in members
            for name in client.topics
            if (found := self.topics.by_name(name)) is not None
            for number in range(len(found.partitions))
        }
        assert set(had) == wanted, (members, wanted)
        state = self.groups.consumer.describe("g").group_state
        assert state in ("Stable", "Empty", ""), state
        assert self.ids.type_of("g") in (CLASSIC, CONSUMER, None)


ConsumerGroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerGroups = ConsumerGroupMachine.TestCase


@pytest.mark.full
class TestConsumerGroupsLong(ConsumerGroupMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=600, stateful_step_count=60, deadline=None)
