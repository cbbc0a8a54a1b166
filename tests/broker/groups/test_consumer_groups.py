"""The broker's side of classic groups, consumer groups and offsets, on a virtual clock and without
threads: waiting, answers, timers, failed saves, clients that hang up, and the end of the broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import Deadlines
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.session_clock import SessionClock
from kbroker.broker.configs import Configs
from kbroker.broker.connection import ClientConnection, PeerGone
from kbroker.broker.groups.consumer_groups import ConsumerGroupService
from kbroker.broker.groups.runner import DecisionRunner
from kbroker.broker.logs.topics import Topics
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.groups.classic.messages import (
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Leaving,
    Protocol,
    SyncReply,
    SyncRequest,
)
from kbroker.groups.consumer.messages import ConsumerGroupHeartbeatRequest
from kbroker.groups.offsets.messages import Commit, CommitRequest, OffsetErrors
from kbroker.groups.outcome import OffsetOf
from kbroker.settings.altering import BrokerConfig
from kbroker.storage.memory_store import MemoryStateStore
from kbroker.storage.spi import Change
from tests.groups.world import OK, G, subscription
from tests.groups.world import World as Groups

EXPIRY_S = 600.0
NOT_AVAILABLE = ErrorCode.coordinator_not_available


class Commits:
    """A group commit that takes `delay_s`, or refuses everything that is queued with `failure`."""

    def __init__(self, store: MemoryStateStore) -> None:
        self._store = store
        self._queue: list[tuple[Sequence[Change], Callable[[Exception | None], None]]] = []
        self._asked = trio.Event()
        self.delay_s = 0.001
        self.failure: Exception | None = None

    def submit(self, changes: Sequence[Change], on_done: Callable[[Exception | None], None]) -> None:
        self._queue.append((changes, on_done))
        self._asked.set()

    def lose(self) -> None:
        self._queue.clear()

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            await trio.sleep(self.delay_s)
            self._asked = trio.Event()
            entries, self._queue = self._queue, []
            for changes, on_done in entries:
                if self.failure is None:
                    self._store.write(changes)
                on_done(self.failure)


class World:
    """`groups`: the service under test. Clients are `Peer`s."""

    def __init__(self) -> None:
        self.inner = Groups()
        self.topic_id = self.inner.topic()
        self.commits = Commits(self.inner.store)
        self.configs = Configs(BrokerConfig({}), self.inner.store, cast(Any, self.commits))
        self.groups = self.opened()

    def opened(self) -> ConsumerGroupService:
        """A service that has loaded nothing yet. Queued saves are lost."""
        self.commits.lose()
        self.inner.start(load=False)
        commits = cast(GroupCommit[Change], self.commits)
        topics = cast(Topics, self.inner.topics)
        clock = SessionClock()
        self.background = Background()
        runner = DecisionRunner(self.inner.groups, topics, self.inner.store, commits, clock, self.background)
        return ConsumerGroupService(runner, self.configs, expiry_interval_s=EXPIRY_S)

    @property
    def waiting(self) -> int:
        return self.groups.statistics().waiting

    def types(self) -> dict[str, tuple[str, str]]:
        return {row.group_id: (row.group_type, row.group_state) for row in self.groups.groups.listed()}

    def offsets(self, group: str = G) -> dict[OffsetOf, int]:
        of = self.groups.groups.offsets.of(group)
        return {
            (topic_id, number): offset.offset
            for topic_id, numbers in of.items()
            for number, offset in numbers.items()
        }

    async def commit(self, *numbers: int, offset: int = 1, group: str = G) -> ErrorCode:
        request = CommitRequest(group, {(self.topic_id, number): Commit(offset) for number in numbers})
        try:
            errors = await self.groups.ask(
                lambda _, now_ms: self.groups.groups.commit_offsets(request, now_ms=now_ms)
            )
        except KafkaError as error:
            return error.code
        assert isinstance(errors, OffsetErrors)
        return errors.error_code


class Peer:
    """A client on a separate connection. `timeouts_ms`: of its session and of a rebalance;
    `answers`: in order."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.member_id = ""
        self.timeouts_ms = (10_000, 60_000)
        self.connection = ClientConnection(1, "127.0.0.1", Deadlines())
        self.answers: list[object] = []

    async def _ask(self, decide: Callable[..., Any]) -> None:
        try:
            self.answers.append(await self.world.groups.ask(decide, self.connection))
        except KafkaError as error:
            self.answers.append(error.code)
        except PeerGone:
            self.answers.append(PeerGone)

    async def join(self) -> None:
        offered = (Protocol("range", subscription("orders")),)
        request = JoinRequest(
            G, self.member_id, None, *self.timeouts_ms, "consumer", offered, self.name, takes_member_id=False
        )
        await self._ask(lambda ticket, now_ms: self.world.groups.groups.join(request, ticket, now_ms=now_ms))
        if isinstance(self.answers[-1], JoinReply):
            self.member_id = self.answers[-1].member_id

    async def sync(self, assignments: Iterable[tuple[str, bytes]] = ()) -> None:
        joined = next(answer for answer in reversed(self.answers) if isinstance(answer, JoinReply))
        request = SyncRequest(G, self.member_id, None, joined.generation_id, assignments=tuple(assignments))
        await self._ask(lambda ticket, now_ms: self.world.groups.groups.sync(request, ticket, now_ms=now_ms))

    async def leave(self) -> None:
        request = LeaveRequest(G, (Leaving(self.member_id),))
        await self._ask(lambda _, now_ms: self.world.groups.groups.leave(request, now_ms=now_ms))


@asynccontextmanager
async def opened(world: World | None = None) -> AsyncIterator[tuple[World, trio.Nursery]]:
    """A running service; given a world, one after a restart."""
    if world is None:
        world = World()
    else:
        world.groups = world.opened()
    world.groups.load(world.inner.store)
    async with trio.open_nursery() as nursery, world.background.running():
        nursery.start_soon(world.commits.run)
        yield world, nursery
        nursery.cancel_scope.cancel()


async def stable(world: World) -> Peer:
    """The only member of a stable group."""
    peer = Peer(world, "m")
    await peer.join()
    await peer.sync([(peer.member_id, b"all")])
    assert peer.answers[-1] == SyncReply(OK, "consumer", "range", b"all")
    return peer


# --- saving ---


async def test_a_commit_is_answered_when_it_is_saved(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (world, _):
        world.commits.delay_s = 3.0
        began = trio.current_time()
        assert await world.commit(0, 1) is OK
        assert trio.current_time() - began >= 3.0 - 0.001
        assert len(world.offsets()) == 2
    async with opened(world) as (world, _):
        assert len(world.offsets()) == 2
        assert world.types() == {G: ("classic", "Empty")}


async def test_a_commit_that_cannot_be_saved_is_as_if_it_had_not_been(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (world, _):
        world.commits.failure = NoSpace()
        assert await world.commit(0) is NOT_AVAILABLE
        assert (world.types(), world.offsets()) == ({}, {})
        assert not world.groups.groups.offsets._on_their_way
        world.commits.failure = None
        assert await world.commit(0) is OK


async def test_an_assignment_that_cannot_be_saved_is_not_given_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Leader and follower are refused, and the group starts another generation."""
    async with opened() as (world, nursery):
        leader, follower = Peer(world, "a"), Peer(world, "b")
        await leader.join()
        nursery.start_soon(follower.join)
        await trio.testing.wait_all_tasks_blocked()
        await leader.join()
        await trio.sleep(0.1)
        world.commits.failure = NoSpace()
        nursery.start_soon(follower.sync)
        await trio.testing.wait_all_tasks_blocked()
        await leader.sync([(leader.member_id, b"a"), (follower.member_id, b"b")])
        await trio.sleep(0.1)
        assert leader.answers[-1] is NOT_AVAILABLE
        assert _code(follower.answers[-1]) is NOT_AVAILABLE
        assert world.types() == {G: ("classic", "PreparingRebalance")}
        world.commits.failure = None
        for peer in (leader, follower):
            nursery.start_soon(peer.join)
        await trio.sleep(0.1)
        nursery.start_soon(follower.sync)
        await leader.sync([(follower.member_id, b"b")])
        await trio.sleep(0.1)
        assert cast(SyncReply, follower.answers[-1]).assignment == b"b"
        assert world.waiting == 0


@pytest.mark.parametrize("failure", [None, NoSpace()])
async def test_what_is_not_saved_yet_is_not_told_to_who_asks_again(
    failure: Exception | None, autojump_clock: trio.testing.MockClock
) -> None:
    """Regression: a member that repeated its heartbeat, as after a lost connection, got partitions
    that were not saved yet, as the repeated heartbeat had nothing to save."""
    async with opened() as (world, nursery):
        world.commits.delay_s, world.commits.failure = 3.0, failure
        request = ConsumerGroupHeartbeatRequest(G, "m", 0, None, None, 60_000, ("orders",), owned={})
        codes: list[tuple[float, ErrorCode]] = []

        async def join() -> None:
            code = OK
            try:
                reply = await world.groups.ask(
                    lambda _, now_ms: world.groups.groups.consumer.heartbeat(request, now_ms=now_ms)
                )
                assert reply.assignment is not None
            except KafkaError as error:
                code = error.code
            codes.append((round(trio.current_time() - began), code))

        began = trio.current_time()
        nursery.start_soon(join)
        await trio.sleep(1)
        nursery.start_soon(join)
        await trio.sleep(10)
        assert codes == [(3, NOT_AVAILABLE if failure else OK)] * 2


@pytest.mark.parametrize(("failure", "told"), [(None, OK), (NoSpace(), NOT_AVAILABLE)])
async def test_what_is_being_saved_is_waited_for_by_whoever_asks_next(
    autojump_clock: trio.testing.MockClock, failure: Exception | None, told: ErrorCode
) -> None:
    """Otherwise a member whose answer is undone by a failed save would be ahead of its group."""
    async with opened() as (world, nursery):
        peer = await stable(world)
        world.commits.delay_s, world.commits.failure = 3.0, failure
        began = trio.current_time()
        nursery.start_soon(partial(world.commit, 0, group="another"))
        await trio.sleep(1)
        await peer.sync()
        assert _code(peer.answers[-1]) is told
        assert trio.current_time() - began >= 3.0 - 0.001
        world.commits.failure = None
        began = trio.current_time()
        await peer.sync()
        assert trio.current_time() == began, "nothing is being saved"


async def test_timers_go_on_after_a_save_that_failed(autojump_clock: trio.testing.MockClock) -> None:
    """The next rebalance has a deadline: no member rejoins, and all are removed."""
    async with opened() as (world, _):
        peer = Peer(world, "m")
        peer.timeouts_ms = (100_000, 50_000)
        await peer.join()
        await trio.sleep(0.1)
        world.commits.failure = NoSpace()
        await peer.sync()
        assert world.types() == {G: ("classic", "PreparingRebalance")}
        world.commits.failure = None
        await trio.sleep(51)
        assert world.types() == {G: ("classic", "Empty")}


async def test_a_store_that_has_failed_leaves_the_group_as_it_is(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (world, _):
        peer = await stable(world)
        world.commits.failure = StoreFailed("broken by a test")

        def broken(_: bytes) -> Any:
            raise StoreFailed("broken by a test")

        world.inner.store.scan = broken  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING):
            await peer.leave()
        assert peer.answers[-1] is NOT_AVAILABLE
        assert "could not be reloaded" in caplog.text


# --- waiting ---


async def test_who_waits_is_answered_by_what_another_does(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (world, nursery):
        first = await stable(world)
        second = Peer(world, "another")
        nursery.start_soon(second.join)
        await trio.sleep(1)
        assert (second.answers, world.waiting) == ([], 1)
        await first.join()
        await trio.testing.wait_all_tasks_blocked()
        assert _code(second.answers[-1]) is OK
        assert world.waiting == 0


async def test_a_client_that_hangs_up_stays_a_member_until_its_session_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The later answer is dropped."""
    async with opened() as (world, nursery):
        first = await stable(world)
        second = Peer(world, "another")
        nursery.start_soon(second.join)
        await trio.sleep(1)
        second.connection.hang_up()
        await trio.sleep(1)
        assert (second.answers, world.waiting) == ([PeerGone], 0)
        await first.join()
        joined = cast(JoinReply, first.answers[-1])
        assert (joined.error_code, len(joined.members)) == (OK, 2)
        await first.sync()
        await trio.sleep(5)
        await first.join()
        assert world.types() == {G: ("classic", "CompletingRebalance")}
        assert len(cast(JoinReply, first.answers[-1]).members) == 1


async def test_who_waits_is_told_when_the_broker_stops(autojump_clock: trio.testing.MockClock) -> None:
    """Also requests that arrive afterwards and would wait."""
    async with opened() as (world, nursery):
        await stable(world)
        waiting, late = Peer(world, "waiting"), Peer(world, "late")
        nursery.start_soon(waiting.join)
        await trio.sleep(1)
        world.groups.refuse_waiting()
        await trio.testing.wait_all_tasks_blocked()
        assert waiting.answers == [NOT_AVAILABLE]
        with trio.fail_after(1):
            await late.join()
        assert late.answers == [NOT_AVAILABLE]
        assert world.waiting == 0
        assert await world.commit(0, group="another") is OK, "what is decided at once is answered to the end"


async def test_a_request_that_is_given_up_while_it_is_saved_is_saved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (world, _):
        world.commits.delay_s = 3.0
        with trio.move_on_after(1):
            await world.commit(0)
        assert world.offsets() == {}
        await trio.sleep(5)
        assert world.offsets() == {(world.topic_id, 0): 1}


# --- time ---


async def test_a_session_ends_when_it_does(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (world, _):
        await stable(world)
        await trio.sleep(9.9)
        assert world.types() == {G: ("classic", "Stable")}
        await trio.sleep(0.2)
        assert world.types() == {G: ("classic", "Empty")}
    async with opened(world) as (world, _):
        assert world.types() == {G: ("classic", "Empty")}, "it was saved"


async def test_a_nearer_deadline_wakes_the_timers(autojump_clock: trio.testing.MockClock) -> None:
    """A member joins while no timer runs, then one with a shorter session than the others."""
    async with opened() as (world, _):
        await trio.sleep(3600)
        await stable(world)
        first = Peer(world, "short")
        offered = (Protocol("range", subscription("orders")),)
        request = JoinRequest("short", "", None, 6_000, 60_000, "consumer", offered, takes_member_id=False)
        await first._ask(lambda ticket, now_ms: world.groups.groups.join(request, ticket, now_ms=now_ms))
        await trio.sleep(6.1)
        assert world.types()["short"] == ("classic", "Empty")
        assert world.types()[G] == ("classic", "Stable")


async def test_sessions_begin_anew_after_a_restart(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as (world, _):
        await stable(world)
        await trio.sleep(9)
    async with opened(world) as (world, _):
        await trio.sleep(9)
        assert world.types() == {G: ("classic", "Stable")}
        await trio.sleep(2)
        assert world.types() == {G: ("classic", "Empty")}


async def test_offsets_and_groups_are_looked_through_now_and_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """offsets.retention.check.interval.ms; retention is a second here."""
    async with opened() as (world, _):
        peer = await stable(world)
        await world.commit(0, group="simple")
        await peer.leave()
        await trio.sleep(EXPIRY_S - 10)
        assert set(world.types()) == {G, "simple"}
        await trio.sleep(20)
        assert world.types() == {}
        assert list(world.inner.store.scan(b"")) == []


async def test_a_group_that_is_deleted_while_the_others_are_looked_through(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (world, nursery):
        for number in range(50):
            await world.commit(0, group=f"g{number}")
        await trio.sleep(EXPIRY_S - trio.current_time() - 0.01)
        world.commits.delay_s = 0.001
        for number in range(49, 0, -1):
            nursery.start_soon(partial(world.groups.delete_group, f"g{number}"))
        await trio.sleep(1)
        assert world.types() == {}


# --- administration ---


async def test_a_group_is_deleted_with_its_settings_or_not_at_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (world, _):
        await world.commit(0)
        world.configs._put_group(G, {"consumer.session.timeout.ms": "50000"})
        world.commits.failure = NoSpace()
        assert await world.groups.delete_group(G) is NOT_AVAILABLE
        assert world.configs.groups_with_configs() == [G]
        assert world.offsets() == {(world.topic_id, 0): 1}
        world.commits.failure = None
        assert await world.groups.delete_group(G) is OK
        assert world.configs.groups_with_configs() == []
        assert world.types() == {}
        assert await world.groups.delete_group(G) is ErrorCode.group_id_not_found


async def test_a_deleted_topics_offsets_go_if_not_now_then_at_the_next_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as (world, _):
        await world.commit(0)
        world.inner.topics.remove("orders")
        world.commits.failure = NoSpace()
        await world.groups.topic_deleted(world.topic_id)
        assert world.groups.groups.offsets.topic_ids() == {world.topic_id}
        world.commits.failure = None
    async with opened(world) as (world, _):
        await trio.sleep(1)
        assert world.groups.groups.offsets.topic_ids() == set()
        assert world.types() == {G: ("classic", "Empty")}


def _code(answer: object) -> ErrorCode:
    return answer if isinstance(answer, ErrorCode) else cast(ErrorCode, cast(Any, answer).error_code)
