"""Consumer groups with their surroundings in the broker: topics, a store, members that follow their
answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import Message, RecordType
from kbroker.formats.state import GroupKey, group_prefix, parse_key
from kbroker.groups.assignors.range import RangeAssignor
from kbroker.groups.assignors.spi import ConsumerAssignor
from kbroker.groups.assignors.uniform import UniformAssignor
from kbroker.groups.consumer.coordinator import ConsumerGroups
from kbroker.groups.consumer.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupSettings,
    DescribedConsumerGroup,
)
from kbroker.groups.ids import GroupIds
from kbroker.groups.outcome import Outcome
from kbroker.groups.share.messages import DescribedAssignment, GroupHeartbeatReply, TopicView
from kbroker.storage.memory_store import MemoryStateStore
from tests.groups.share import world as group_world

ASSIGNORS: Mapping[str, ConsumerAssignor] = {"uniform": UniformAssignor(), "range": RangeAssignor()}
TopicNumbers = tuple[str, int]


class Topics(group_world.Topics):
    def __iter__(self) -> Iterator[TopicView]:
        return iter(list(self.found.values()))

    def name_of(self, topic_id: UUID) -> str:
        return next(
            (topic.name for topic in self.found.values() if topic.topic_id == topic_id), str(topic_id)
        )


class World:
    """Saves every outcome at once."""

    def __init__(self, assignors: Mapping[str, ConsumerAssignor] = ASSIGNORS, **settings: int) -> None:
        self.settings = ConsumerGroupSettings(**{"assignment_interval_ms": 0, **settings})  # type: ignore[arg-type]
        self.assignors = assignors
        self.topics = Topics()
        self.store = MemoryStateStore({})
        self.now_ms = 1_000_000
        self._ids = count(1)
        self.restart()

    def restart(self) -> None:
        """As after kill -9: only stored state remains."""
        self.group_ids = GroupIds()
        self.groups = ConsumerGroups(
            lambda group_id: self.settings, self.group_ids, self.topics, self.assignors, self.new_id
        )
        self.groups.load(self.store.scan(GroupKey.namespace), now_ms=self.now_ms)

    def set(self, **settings: object) -> None:
        self.settings = self.settings._replace(**settings)  # type: ignore[arg-type]

    def new_id(self) -> str:
        return f"made-{next(self._ids)}"

    def save(self, outcome: Outcome[object]) -> None:
        self.store.write(outcome.changes)

    def send(self, request: ConsumerGroupHeartbeatRequest) -> GroupHeartbeatReply:
        outcome = self.groups.heartbeat(request, now_ms=self.now_ms)
        self.save(outcome)
        assert outcome.reply is not None
        return outcome.reply

    def after(self, wait_ms: int) -> None:
        """Let time pass, and act on expired timers."""
        self.now_ms += wait_ms
        self.save(self.groups.expire(self.now_ms))

    def describe(self, group: str = "g") -> DescribedConsumerGroup:
        row = self.groups.describe(group)
        return row

    def current(self) -> dict[str, set[TopicNumbers]]:
        """The members' partitions, as administrators see them."""
        return {member.member_id: _numbers(member.assignment) for member in self.describe().members}

    def targets(self) -> dict[str, set[TopicNumbers]]:
        return {member.member_id: _numbers(member.target_assignment) for member in self.describe().members}

    def records(self, group: str = "g") -> dict[tuple[RecordType, str | None], Message]:
        found = {}
        for key, value in self.store.scan(group_prefix(group)):
            parsed = parse_key(key)
            assert isinstance(parsed, GroupKey)
            found[parsed.record_type, parsed.member_id] = parsed.decode_value(value)
        return found


class Client:
    """A member that behaves like a client: it remembers its epoch, takes assignments, and reports
    its partitions. It gives up revoked partitions at once or, if it is `slow`, in `give_up`."""

    def __init__(
        self,
        world: World,
        member_id: str,
        *topics: str,
        group: str = "g",
        instance: str | None = None,
        slow: bool = False,
    ) -> None:
        self.world = world
        self.member_id = member_id
        self.group = group
        self.topics = topics
        self.instance = instance
        self.slow = slow
        self.epoch = 0
        self.has: set[TopicNumbers] = set()
        self.is_to_have: set[TopicNumbers] = set()
        self.answer = GroupHeartbeatReply()

    def join(self, code: ErrorCode = ErrorCode.none, **more: object) -> Client:
        """Epoch 0, with all fields of a first heartbeat."""
        self.has, self.is_to_have = set(), set()
        first: dict[str, object] = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": self.topics,
            "owned": {},
        }
        return self._send(code, **(first | more | {"member_epoch": 0}))

    def beat(self, code: ErrorCode = ErrorCode.none, **more: object) -> Client:
        """An ordinary heartbeat, which reports the member's partitions."""
        return self._send(code, **({"owned": self.owned()} | more))

    def leave(self, epoch: int = -1, code: ErrorCode = ErrorCode.none) -> Client:
        return self._send(code, member_epoch=epoch)

    def owned(self) -> dict[UUID, tuple[int, ...]]:
        found: dict[UUID, tuple[int, ...]] = {}
        for name, number in sorted(self.has):
            topic_id = self.world.topics.found[name].topic_id
            found[topic_id] = (*found.get(topic_id, ()), number)
        return found

    def give_up(self) -> None:
        self.has &= self.is_to_have
        self.has |= self.is_to_have

    def _send(self, code: ErrorCode, **values: object) -> Client:
        known: dict[str, object] = {
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "client_id": "c",
            "client_host": "/h",
        }
        request = ConsumerGroupHeartbeatRequest(self.group, self.member_id, **(known | values))  # type: ignore[arg-type]
        self.answer = self.world.send(request)
        assert self.answer.error_code is code, self.answer
        if code is ErrorCode.none:
            self.epoch = self.answer.member_epoch
            self.member_id = self.answer.member_id or self.member_id
            if self.answer.assignment is not None:
                self.is_to_have = {
                    (self.world.topics.name_of(each.topic_id), number)
                    for each in self.answer.assignment.topic_partitions
                    for number in each.partitions
                }
                if not self.slow:
                    self.give_up()
        return self

    @property
    def told(self) -> set[TopicNumbers] | None:
        """The assignment in the last answer, or None."""
        return None if self.answer.assignment is None else self.is_to_have


def settle(clients: Sequence[Client], rounds: int = 10) -> None:
    """All clients send heartbeats until nothing changes any more."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
        if clients[0].world.describe(clients[0].group).group_state == "Stable":
            return
    raise AssertionError(f"not stable after {rounds} rounds: {clients[0].world.describe()}")


def all_of(name: str, partitions: int) -> set[TopicNumbers]:
    return {(name, number) for number in range(partitions)}


def _numbers(assignment: DescribedAssignment) -> set[TopicNumbers]:
    return {(each.topic_name, number) for each in assignment.topic_partitions for number in each.partitions}


__all__ = ["ASSIGNORS", "Client", "Topics", "World", "all_of", "settle"]
