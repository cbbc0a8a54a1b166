"""Members of a group that restart, with each client library that can: static members; members with
another assignor or protocol, one after the other while records flow; and members that stop polling.
`make test` runs some libraries, the full run all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.clients.group_consumers import ClientError, GroupConsumer
from tests.clients.test_consumer_lives import (
    LIVELY,
    collect_refused_connections,
    kinds,
    numbered,
    open_one,
    send,
)

__all__ = ["collect_refused_connections"]

pytestmark = [
    # kafka-python on Python 3.11 and 3.12
    pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(config=LIVELY) as broker:
        yield broker


def places(topic: str, partitions: int) -> set[tuple[str, int]]:
    return {(topic, partition) for partition in range(partitions)}


def settle(members: Sequence[GroupConsumer], wanted: set[tuple[str, int]]) -> None:
    """Wait until each partition has one owner, and each member has a partition."""

    def shared() -> bool:
        held = [member.assignment() for member in members]
        return all(held) and sum(map(len, held)) == len(wanted) and set.union(*held) == wanted

    members[0].until("the partitions are shared", shared, *members[1:])


@kinds("confluent-classic", "confluent-consumer")
def test_a_static_member_restarts_without_a_rebalance(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name, partitions=4)
    with ExitStack() as stack:
        stays = stack.enter_context(open_one(kind, broker, name, group_instance_id="one"))
        goes = open_one(kind, broker, name, group_instance_id="two")
        for member in (stays, goes):
            member.subscribe(name)
        settle([stays, goes], places(name, 4))
        before, changes = goes.assignment(), stays.changes
        goes.close()
        back = stack.enter_context(open_one(kind, broker, name, group_instance_id="two"))
        back.subscribe(name)
        back.until("it has what it had", lambda: back.assignment() == before, stays)
        send(broker, name, numbered(0, 8), 4)
        stays.until("all that was sent", lambda: stays.values | back.values == {*numbered(0, 8)}, back)
        assert stays.changes == changes


@pytest.mark.parametrize("kind", ["confluent-classic", "confluent-consumer"])
def test_two_with_one_instance_id(broker: RunningBroker, kind: str, name: str) -> None:
    """The classic protocol fences the older member; the new protocol refuses the younger one while
    the older is in the group. kafka-python does not report the error."""
    broker.create_topic(name)
    with ExitStack() as stack:
        older = stack.enter_context(open_one(kind, broker, name, group_instance_id="one"))
        older.subscribe(name)
        older.until("the first has it", lambda: bool(older.assignment()))
        younger = stack.enter_context(open_one(kind, broker, name, group_instance_id="one"))
        younger.subscribe(name)
        with pytest.raises(ClientError, match=r"(?i)fenc|instance"):
            older.until("one is refused", lambda: False, younger)


CHANGES_OF_ASSIGNOR = [
    pytest.param("confluent-classic", ["range", "range,roundrobin", "roundrobin"]),
    # no cooperative assignor beside others
    pytest.param("kafka-python", ["range", "range,roundrobin", "roundrobin"], marks=pytest.mark.full),
    pytest.param("aiokafka", ["roundrobin", "sticky,roundrobin", "sticky"], marks=pytest.mark.full),
    pytest.param(
        "java-classic", ["range", "cooperative-sticky,range", "cooperative-sticky"], marks=pytest.mark.full
    ),
]


@pytest.mark.parametrize(("kind", "strategies"), CHANGES_OF_ASSIGNOR)
def test_another_assignor_by_a_rolling_restart(
    broker: RunningBroker, kind: str, strategies: list[str], name: str
) -> None:
    roll(broker, name, [(kind, {"partition_assignment_strategy": strategy}) for strategy in strategies])
    with broker.connect() as connection:
        (group,) = connection.call(
            "describe_groups", groups=[name], include_authorized_operations=False
        ).groups
    assert group.protocol_type == "consumer"


@pytest.mark.parametrize(
    ("library", "strategy"),
    [
        ("confluent", "range"),
        *(
            pytest.param("java", strategy, marks=pytest.mark.full)
            for strategy in ("range", "cooperative-sticky")
        ),
    ],
)
def test_the_other_protocol_and_back_by_a_rolling_restart(
    broker: RunningBroker, library: str, strategy: str, name: str
) -> None:
    """KIP-848: groups convert with the first and the last member of the new protocol; offsets stay.
    Not from librdkafka's sticky assignors: their assignments hold data that the other protocol
    cannot represent, so the group is refused."""
    classic: tuple[str, dict[str, Any]] = (f"{library}-classic", {"partition_assignment_strategy": strategy})
    seen = roll(broker, name, [classic, (f"{library}-consumer", {}), classic])
    assert seen == ["classic", "consumer", "consumer", "consumer", "classic"]


def roll(broker: RunningBroker, name: str, lives: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Two members; each is closed and reopened with the settings of the next life. Records sent
    meanwhile are read and committed, and none is missed. Returns the type of the group before and
    after each step."""
    broker.create_topic(name, partitions=4)
    numbers = itertools.count()
    got: set[str] = set()
    with ExitStack() as stack:
        members = [open_one(lives[0][0], broker, name, **lives[0][1]) for _ in range(2)]
        stack.callback(lambda: [member.close() for member in members])
        for member in members:
            member.subscribe(name)
        types = [_exchange(broker, name, members, numbers, got)]
        for kind, settings in lives[1:]:
            for place in range(2):
                leaving = members[place]
                leaving.close()
                got |= leaving.values
                members[place] = open_one(kind, broker, name, **settings)
                members[place].subscribe(name)
                types.append(_exchange(broker, name, members, numbers, got))
    return types


def _exchange(
    broker: RunningBroker, name: str, members: Sequence[GroupConsumer], numbers: Iterator[int], got: set[str]
) -> str:
    settle(members, places(name, 4))
    sent = [str(next(numbers)) for _ in range(12)]
    send(broker, name, sent, 4)
    first, other = members
    first.until("what was sent", lambda: first.values | other.values >= {*sent}, other)
    for member in members:
        if any(each.value in sent for each in member.got):
            member.commit()
    with broker.connect() as connection:
        answer = connection.call("list_groups", states_filter=(), types_filter=())
    return next(group.group_type for group in answer.groups if group.group_id == name)


@kinds("confluent-classic")
def test_a_member_that_does_not_come_back_to_poll(broker: RunningBroker, kind: str, name: str) -> None:
    """max.poll.interval.ms: the others take over, and the member rejoins when it polls."""
    broker.create_topic(name, partitions=2)
    settings = {"session_timeout_ms": 1500, "heartbeat_interval_ms": 300}
    with (
        open_one(kind, broker, name, **settings) as busy,
        open_one(kind, broker, name, **settings, max_poll_interval_ms=2000) as lazy,
    ):
        for member in (busy, lazy):
            member.subscribe(name)
        settle([busy, lazy], places(name, 2))
        busy.until("it has all", lambda: len(busy.assignment()) == 2)
        with suppress(ClientError):
            lazy.poll()
        settle([busy, lazy], places(name, 2))


@pytest.mark.parametrize(
    "kind",
    [
        "confluent-classic",
        *[pytest.param(kind, marks=pytest.mark.full) for kind in ("kafka-python", "java-classic")],
    ],
)
def test_a_cooperative_rebalance_takes_only_what_moves(broker: RunningBroker, kind: str, name: str) -> None:
    broker.create_topic(name, partitions=4)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    with open_one(kind, broker, name, **settings) as first:
        first.subscribe(name)
        first.until("it has all", lambda: first.assignment() == places(name, 4))
        held = []
        with open_one(kind, broker, name, **settings) as second:
            second.subscribe(name)

            def shared() -> bool:
                held.append(first.assignment())
                return (len(first.assignment()), len(second.assignment())) == (2, 2)

            first.until("each has two", shared, second)
        assert all(each >= held[-1] for each in held)
        first.until("it has all again", lambda: first.assignment() == places(name, 4))
