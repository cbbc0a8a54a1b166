"""Groups of unmodified consumers that speak the classic protocol, on every engine: members join,
leave, die and freeze, and the broker dies. Actions that members take themselves are in
test_consumer_members.py.

Consumers that are to die or freeze run in separate processes. The others run in this process and
are polled in turn, as in one application with several consumers.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from kbroker.client.rpc import Entity
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, ENGINES, require_engine
from tests.clients.group_consumers import CONSUMERS, GroupConsumer

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
PATIENCE_S = 60.0
PARTITIONS = 4
CLIENTS = ("confluent-classic", "kafka-python", "aiokafka")
SHORT_SESSION = {"session.timeout.ms": 6_000}

PROCESS = """
import sys
from tests.clients.group_consumers import CONSUMERS
client, bootstrap, group = sys.argv[1:]
consumer = CONSUMERS[client](bootstrap, group, {"session.timeout.ms": 6000})
consumer.subscribe(group)
while True:
    consumer.poll()
"""


def matrix() -> Iterator[object]:
    """Every client on one engine, every engine with one client; all of them in the full run."""
    for client in CLIENTS:
        for engine in ENGINES:
            by_default = (client, engine) in (("confluent-classic", "lmdb"), ("aiokafka", "segment"))
            yield pytest.param(
                client, engine, marks=[] if by_default else [pytest.mark.full], id=f"{client}-{engine}"
            )


every_client = pytest.mark.parametrize(
    "client",
    [
        "confluent-classic",
        *(
            pytest.param(client, marks=pytest.mark.full)
            for client in CLIENTS
            if client != "confluent-classic"
        ),
    ],
)


class Group:
    """Consumers of one topic with the same name as the group; all of them are polled during every
    wait."""

    def __init__(self, broker: RunningBroker, name: str, stack: ExitStack) -> None:
        self.broker = broker
        self.name = name
        self.members: list[GroupConsumer] = []
        self._stack = stack
        self._sent = 0
        broker.create_topic(name, partitions=PARTITIONS)

    def start(self, client: str, **settings: Any) -> GroupConsumer:
        consumer = CONSUMERS[client](
            self.broker.bootstrap,
            self.name,
            {key.replace("_", "."): value for key, value in settings.items()},
        )
        self._stack.callback(lambda: self.close(consumer))
        consumer.subscribe(self.name)
        self.members.append(consumer)
        return consumer

    def close(self, consumer: GroupConsumer) -> None:
        if consumer in self.members:
            self.members.remove(consumer)
            consumer.close()

    def start_process(self, client: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROCESS, client, self.broker.bootstrap, self.name]
        )

        def end() -> None:
            process.kill()
            process.wait()

        self._stack.callback(end)
        return process

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5})
        for number in range(self._sent, self._sent + count):
            producer.produce(self.name, str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0
        self._sent += count

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            found = [(sorted(member.assignment()), len(member.got)) for member in self.members]
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE_S:.0f} s: {what}; {found}; {self.described()}"
            )
            for member in self.members:
                member.poll(0.05)
            # kafka-python's poll returns at once during a rebalance, and would starve its own
            # thread.
            time.sleep(0.005)

    def until_shared(self, *members: GroupConsumer) -> None:
        """Wait until the partitions are spread evenly and all are assigned."""
        each = PARTITIONS // len(members)
        self.until(
            f"{len(members)} members have {each} partitions each",
            lambda: has_all(members) and _sizes(members) == {each},
        )

    def until_read(self) -> None:
        self.until(
            f"{self._sent} values are read",
            lambda: {value for each in self.members for value in each.values} >= self.sent(),
        )

    def sent(self) -> set[str]:
        return set(map(str, range(self._sent)))

    def described(self) -> Entity:
        with self.broker.connect() as connection:
            return connection.call(
                "describe_groups", 6, groups=[self.name], include_authorized_operations=False
            ).groups[0]

    def state(self) -> tuple[str, int]:
        group = self.described()
        return group.group_state, len(group.members)


def has_all(members: Sequence[GroupConsumer]) -> bool:
    places = [place for member in members for place in member.assignment()]
    return len(places) == len(set(places)) == PARTITIONS


def _sizes(members: Sequence[GroupConsumer]) -> set[int]:
    return {len(member.assignment()) for member in members}


@contextmanager
def a_group(broker: RunningBroker, name: str) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(broker, name, stack)


@pytest.fixture
def group(broker: RunningBroker, name: str) -> Iterator[Group]:
    with a_group(broker, name) as group:
        yield group


@pytest.mark.parametrize(("client", "engine"), [*matrix()])
def test_partitions_are_shared_out_anew_when_members_come_and_leave(group: Group, client: str) -> None:
    first = group.start(client)
    group.until_shared(first)
    group.send(1_000)
    group.until_read()
    first.commit()
    second = group.start(client)
    group.until_shared(first, second)
    group.send(1_000)
    group.until_read()
    for member in (first, second):
        member.commit()
    read_by_both = [*first.values, *second.values]
    assert sorted(read_by_both, key=int) == sorted(group.sent(), key=int), (
        "nothing was read twice: everything read was committed"
    )
    group.close(second)
    group.until_shared(first)
    group.send(100)
    group.until("the rest is read", lambda: set(first.values) | set(second.values) >= group.sent())
    group.close(first)
    assert group.state() == ("Empty", 0)


@every_client
def test_what_a_killed_member_had_goes_to_the_others_when_its_session_ends(group: Group, client: str) -> None:
    survivor = group.start(client, **SHORT_SESSION)
    process = group.start_process(client)
    group.until(
        "both are members",
        lambda: len(survivor.assignment()) == PARTITIONS // 2 and group.state() == ("Stable", 2),
    )
    process.kill()
    group.send(100)
    group.until_read()
    assert has_all([survivor])


def test_a_frozen_member_is_given_up_and_joins_again(group: Group) -> None:
    other = group.start("confluent-classic", **SHORT_SESSION)
    process = group.start_process("confluent-classic")
    group.until(
        "both are members",
        lambda: len(other.assignment()) == PARTITIONS // 2 and group.state() == ("Stable", 2),
    )
    process.send_signal(signal.SIGSTOP)
    group.until_shared(other)
    process.send_signal(signal.SIGCONT)
    group.until(
        "both are members again",
        lambda: len(other.assignment()) == PARTITIONS // 2 and group.state() == ("Stable", 2),
    )


@pytest.mark.parametrize(
    "engine",
    [
        "segment",
        *(pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES if each != "segment"),
    ],
)
def test_members_go_on_in_their_generation_after_the_broker_was_killed(engine: str, name: str) -> None:
    with open_test_broker(storage=require_engine(engine)) as broker, a_group(broker, name) as group:
        members = [group.start("confluent-classic", session_timeout_ms=30_000) for _ in range(2)]
        group.until_shared(*members)
        group.send(100)
        group.until_read()
        for member in members:
            member.commit()
        before = [(member.assignment(), member.changes) for member in members]
        ids = {row.member_id for row in group.described().members}
        broker.kill()
        broker.start()
        group.send(100)
        group.until_read()
        for member in members:
            member.commit()
        assert [(member.assignment(), member.changes) for member in members] == before
        assert {row.member_id for row in group.described().members} == ids
        assert group.state() == ("Stable", 2)
