"""Groups of unmodified consumers that speak the new protocol (KIP-848), on every engine: members
join, leave, die and freeze, subscribe by regular expressions, and the broker dies. One engine by
default, all in the full run. The Java consumer is in test_consumer_lives.py, and actions that
members take themselves are in test_consumer_members.py."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.client.rpc import Entity
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, ENGINES, require_engine
from tests.clients.group_consumers import ClientError
from tests.clients.test_consumer_groups_rebalancing import PARTITIONS, Group, has_all

CLIENT = "confluent-consumer"
LIVELY = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "250",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.assignment.interval.ms": "0",
}
every_engine = pytest.mark.parametrize(
    "engine",
    ["segment", *(pytest.param(each, marks=pytest.mark.full) for each in ENGINES if each != "segment")],
)
every_durable_engine = pytest.mark.parametrize(
    "engine",
    [
        "segment",
        *(pytest.param(each, marks=pytest.mark.full) for each in DURABLE_ENGINES if each != "segment"),
    ],
)


class NewGroup(Group):
    def described(self) -> Entity:
        with self.broker.connect() as connection:
            answer = connection.call(
                "consumer_group_describe", 1, group_ids=[self.name], include_authorized_operations=False
            )
        return answer.groups[0]


@pytest.fixture
def group(engine: str, name: str) -> Iterator[NewGroup]:
    with open_test_broker(storage=require_engine(engine), config=LIVELY) as broker, ExitStack() as stack:
        yield NewGroup(broker, name, stack)


@every_engine
def test_partitions_go_from_member_to_member(group: NewGroup) -> None:
    first = group.start(CLIENT)
    group.until_shared(first)
    group.send(1_000)
    group.until_read()
    first.commit()
    second, third = group.start(CLIENT), group.start(CLIENT)
    group.until(
        "all have something", lambda: has_all([first, second, third]) and group.state() == ("Stable", 3)
    )
    kept = first.assignment()
    group.send(1_000)
    group.until_read()
    for member in (first, second, third):
        member.commit()
    read_by_all = [*first.values, *second.values, *third.values]
    assert sorted(read_by_all, key=int) == sorted(group.sent(), key=int), (
        "nothing was read twice: everything read was committed"
    )
    group.close(third)
    group.until("two share", lambda: has_all([first, second]) and group.state() == ("Stable", 2))
    assert first.assignment() >= kept, "a member keeps what it need not give up"
    group.close(second)
    group.close(first)
    assert group.state() == ("Empty", 0)


@every_engine
def test_members_that_die_and_that_freeze(group: NewGroup) -> None:
    survivor = group.start(CLIENT)
    dying, freezing = group.start_process(CLIENT), group.start_process(CLIENT)
    group.until("three are members", lambda: group.state() == ("Stable", 3))
    dying.kill()
    freezing.send_signal(signal.SIGSTOP)
    group.send(100)
    group.until_read()
    assert has_all([survivor])
    freezing.send_signal(signal.SIGCONT)
    group.until(
        "the frozen one is back",
        lambda: group.state() == ("Stable", 2) and len(survivor.assignment()) == PARTITIONS // 2,
    )


@every_durable_engine
def test_members_go_on_in_their_epoch_after_the_broker_was_killed(group: NewGroup) -> None:
    members = [group.start(CLIENT) for _ in range(2)]
    group.until_shared(*members)
    group.send(100)
    group.until_read()
    for member in members:
        member.commit()
    group.until("both have come to rest", lambda: group.state() == ("Stable", 2))
    had, before = [(member.assignment(), member.changes) for member in members], group.described()
    group.broker.kill()
    group.broker.start()
    group.send(100)
    group.until_read()
    for member in members:
        member.commit()
    assert [(member.assignment(), member.changes) for member in members] == had
    after = group.described()
    assert (after.group_epoch, after.group_state) == (before.group_epoch, "Stable")
    assert {row.member_id: row.member_epoch for row in after.members} == {
        row.member_id: row.member_epoch for row in before.members
    }


def test_the_broker_resolves_regular_expressions(group: NewGroup) -> None:
    consumer = group.start(CLIENT)
    consumer.subscribe_pattern(f"{group.name}-[a-z]+")
    group.broker.create_topic(f"{group.name}-one", partitions=1)
    group.broker.create_topic(f"{group.name}-2", partitions=1)
    group.until("one topic matches", lambda: consumer.assignment() == {(f"{group.name}-one", 0)})
    (member,) = group.described().members
    assert f"^{group.name}-[a-z]+$" in member.subscribed_topic_regex
    assert member.subscribed_topic_names == ()
    group.broker.create_topic(f"{group.name}-two", partitions=2)
    group.until("another one matches", lambda: len(consumer.assignment()) == 3)
    consumer.subscribe(group.name)
    group.until("names instead", lambda: {name for name, _ in consumer.assignment()} == {group.name})


def test_an_expression_that_is_none_is_told_to_the_application(group: NewGroup) -> None:
    consumer = group.start(CLIENT)
    consumer.subscribe_pattern(r"(a)\1")  # The library accepts it.
    with pytest.raises(ClientError, match="regular expression is not valid"):
        group.until("the error", lambda: False)


def test_a_member_that_leaves_the_group_and_comes_back_reads_on(group: NewGroup) -> None:
    group.send(100)
    with_id = group.start(CLIENT, group_instance_id="i")
    group.until_read()
    with_id.commit()
    group.close(with_id)
    assert [row.member_epoch for row in group.described().members] == [-2]
    group.send(50)
    back = group.start(CLIENT, group_instance_id="i")
    group.until("the new values are read", lambda: len(back.got) == 50)
    assert group.state() == ("Stable", 1)


def test_one_broker_serves_both_protocols_in_one_group(group: NewGroup) -> None:
    old = group.start("confluent-classic")
    group.until_shared(old)
    group.send(100)
    group.until_read()
    old.commit()
    new = group.start(CLIENT)
    group.until_shared(old, new)
    assert sorted(row.member_type for row in group.described().members) == [0, 1]
    group.send(100)
    group.until_read()
    group.close(new)
    group.until_shared(old)
    group.until("the group is a classic one", lambda: _type(group.broker, group.name) == "classic")


def _type(broker: RunningBroker, group_id: str) -> str:
    with broker.connect() as connection:
        answer = connection.call("list_groups", states_filter=(), types_filter=())
    found: str = next(group.group_type for group in answer.groups if group.group_id == group_id)
    return found
