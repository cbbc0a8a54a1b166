"""The share group service with a slow persister, on a virtual clock and without threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import trio
import trio.testing

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import Deadlines
from kbroker.broker.commits.session_clock import SessionClock
from kbroker.broker.configs import Configs
from kbroker.broker.groups.runner import DecisionRunner
from kbroker.broker.groups.share_groups import JOIN_PATIENCE_S, ShareGroupService
from kbroker.broker.persisters.noop import NoopPersister
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import ErrorCode, NoSpace
from kbroker.groups.ids import SHARE, GroupIds
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.groups.share.messages import GroupHeartbeatReply, ShareGroupHeartbeatRequest, ShareGroupSettings
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import InitializeRequest, Result, TopicPartition
from kbroker.storage.memory_store import MemoryStateStore
from kbroker.storage.spi import Change
from tests.groups.share.world import Topics as NamedTopics

GROUP = "g"


class Commits:
    """A group commit that ends at once, or after `delay_s`, or fails with `failure`."""

    def __init__(self, store: MemoryStateStore) -> None:
        self._store = store
        self.delay_s = 0.0
        self.failure: Exception | None = None

    def submit(self, changes: Sequence[Change], on_done: Callable[[Exception | None], None]) -> None:
        if self.failure is None:
            self._store.write(changes)
        if self.delay_s:
            trio.lowlevel.spawn_system_task(self._later, on_done, self.failure)
        else:
            on_done(self.failure)

    async def _later(self, on_done: Callable[[Exception | None], None], failure: Exception | None) -> None:
        await trio.sleep(self.delay_s)
        on_done(failure)


class SlowPersister(NoopPersister):
    """Answers an initialisation after `delay_s`, or raises `failure`."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.failure: Exception | None = None
        self.answered = trio.Event()

    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]:
        await trio.sleep(self.delay_s)
        self.answered.set()
        if self.failure is not None:
            raise self.failure
        return [Result(request.partition) for request in requests]

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]:
        return [Result(partition) for partition in partitions]


async def nothing_is_kept(group_id: str, partitions: Sequence[TopicPartition]) -> Callable[[], None]:
    return lambda: None


class Topics(NamedTopics):
    def partition(self, topic_id: UUID, index: int) -> None:
        """These tests need no logs."""


class World:
    def __init__(self, delay_s: float) -> None:
        self.topics = Topics()
        self.topic_id = self.topics.put("orders", 2)
        self.persister = SlowPersister(delay_s)
        store = MemoryStateStore({})
        self.commits = Commits(store)
        topics, persister, commits = (
            cast(Any, self.topics),
            cast(Any, self.persister),
            cast(Any, self.commits),
        )
        self.background = Background()
        configs = Configs(BrokerConfig({}), store, commits)
        share_partitions = SharePartitions(
            topics,
            persister,
            Deadlines(),
            self.background,
            configs,
            flush=trio.lowlevel.checkpoint,
            member_lives_ms=lambda *_: 0,
        )
        self.group_ids = GroupIds()
        self.settings = ShareGroupSettings()
        pure = ShareGroupCoordinator(lambda _: self.settings, self.group_ids)
        runner = DecisionRunner(pure, topics, store, commits, SessionClock(), self.background)
        self.service = ShareGroupService(
            runner, topics, persister, share_partitions, configs, nothing_is_kept, lambda _: None
        )
        self.service.load(store)

    async def heartbeat(self, epoch: int, *topics: str) -> GroupHeartbeatReply:
        return await self.service.heartbeat(
            ShareGroupHeartbeatRequest(GROUP, "M1", epoch, None, topics or None, "c", "/h")
        )


@asynccontextmanager
async def world(delay_s: float) -> AsyncIterator[World]:
    made = World(delay_s)
    async with made.background.running():
        yield made


def partitions(reply: GroupHeartbeatReply) -> list[int] | None:
    if reply.assignment is None:
        return None
    return [index for topic in reply.assignment.topic_partitions for index in topic.partitions]


async def test_a_join_waits_for_a_persister_that_answers_soon(autojump_clock: trio.testing.MockClock) -> None:
    async with world(JOIN_PATIENCE_S - 1) as w:
        assert partitions(await w.heartbeat(0, "orders")) == [0, 1]


async def test_a_slow_persister_does_not_hold_a_join_longer_than_its_patience(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Regression: the wait for it was shielded. The assignment comes with the first heartbeat after
    its answer."""
    async with world(JOIN_PATIENCE_S + 15) as w:
        began = trio.current_time()
        joined = await w.heartbeat(0, "orders")
        assert trio.current_time() - began == JOIN_PATIENCE_S
        assert (joined.error_code, partitions(joined)) == (ErrorCode.none, [])
        assert partitions(await w.heartbeat(joined.member_epoch)) is None, "as before"
        await w.persister.answered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert partitions(await w.heartbeat(joined.member_epoch)) == [0, 1]


async def test_a_member_that_hangs_up_leaves_the_initialisation_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(JOIN_PATIENCE_S + 1) as w:
        with trio.move_on_after(1) as scope:
            await w.heartbeat(0, "orders")
        assert scope.cancelled_caught
        await w.persister.answered.wait()
        assert partitions(await w.heartbeat(0, "orders")) == [0, 1]
        assert w.service.coordinator.statistics().initializing == 0


async def test_a_persister_that_raises_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    async with world(1) as w:
        w.persister.failure = OSError("no way to the persister")
        joined = await w.heartbeat(0, "orders")
        assert (joined.error_code, partitions(joined)) == (ErrorCode.none, [])
        w.persister.failure = None
        assert partitions(await w.heartbeat(joined.member_epoch)) == [0, 1]


async def test_a_group_is_not_deleted_while_its_share_state_is_being_made(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """State would appear after the deletion."""
    async with world(JOIN_PATIENCE_S + 1) as w:
        await w.heartbeat(0, "orders")
        await w.heartbeat(-1)
        assert await w.service.delete_group(GROUP) is ErrorCode.coordinator_load_in_progress
        await w.persister.answered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert await w.service.delete_group(GROUP) is ErrorCode.none


async def test_a_group_is_not_deleted_while_a_join_is_being_saved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The member may have left by then, but its share state is about to be initialised."""
    async with world(1) as w:
        w.commits.delay_s = 1.0
        async with trio.open_nursery() as clients:
            clients.start_soon(w.heartbeat, 0, "orders")
            await trio.testing.wait_all_tasks_blocked()
            clients.start_soon(w.heartbeat, -1)
            await trio.testing.wait_all_tasks_blocked()
            assert await w.service.delete_group(GROUP) is ErrorCode.coordinator_load_in_progress
        await w.persister.answered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert w.service.statistics().initializations == 0
        assert await w.service.delete_group(GROUP) is ErrorCode.none


async def test_an_id_is_free_when_its_groups_deletion_is_saved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Regression: a classic group could take the id before. If the deletion then failed, the share
    group could not be restored."""
    async with world(0) as w:
        await w.heartbeat(0, "orders")
        await trio.sleep(1)
        await w.heartbeat(-1)
        w.commits.delay_s = 1.0
        codes: list[ErrorCode] = []

        async def delete() -> None:
            codes.append(await w.service.delete_group(GROUP))

        for failure in (NoSpace(), None):
            async with trio.open_nursery() as clients:
                clients.start_soon(delete)
                await trio.sleep(0.5)  # Its share state is being deleted.
                w.commits.failure = failure
                await trio.sleep(1)  # The group is.
                assert w.group_ids.type_of(GROUP) == SHARE
            w.commits.failure = None
        assert codes == [ErrorCode.coordinator_not_available, ErrorCode.none]
        assert w.group_ids.type_of(GROUP) is None


async def test_a_join_that_cannot_be_saved_keeps_nobody_from_the_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(1) as w:
        w.commits.failure = OSError("the disk is gone")
        assert (await w.heartbeat(0, "orders")).error_code is ErrorCode.coordinator_not_available
        w.commits.failure = None
        assert w.service.statistics().initializations == 0
        assert (await w.service.alter_offsets(GROUP, {"orders": {0: 1}})).error_code is ErrorCode.none


async def test_offsets_are_not_changed_while_share_state_is_being_made(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It would replace the altered state, or appear after the deletion."""
    async with world(JOIN_PATIENCE_S + 1) as w:
        await w.heartbeat(0, "orders")
        await w.heartbeat(-1)
        again = ErrorCode.coordinator_load_in_progress
        assert (await w.service.alter_offsets(GROUP, {"orders": {0: 1}})).error_code is again
        assert (await w.service.delete_offsets(GROUP, ["orders"])).error_code is again
        await w.persister.answered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert (await w.service.alter_offsets(GROUP, {"orders": {0: 1}})).error_code is ErrorCode.none
        assert (await w.service.delete_offsets(GROUP, ["orders"])).error_code is ErrorCode.none


async def test_an_administrator_who_hangs_up_leaves_the_group_as_it_can_be_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A partition new to the group stays Initializing, and the next member retries it."""
    async with world(1) as w:
        with trio.move_on_after(0.5) as scope:
            await w.service.alter_offsets(GROUP, {"orders": {0: 1}})
        assert scope.cancelled_caught
        assert w.service.statistics().in_administration == 0
        assert partitions(await w.heartbeat(0, "orders")) == [0, 1]


async def test_targets_that_could_not_be_saved_come_with_the_next_heartbeat(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The setting is stored, and the alteration was answered: no client would try again."""
    async with world(0) as w:
        epochs = {}
        for member in ("M1", "M2"):
            request = ShareGroupHeartbeatRequest(GROUP, member, 0, None, ("orders",), "c", "/h")
            epochs[member] = (await w.service.heartbeat(request)).member_epoch
        await trio.sleep(2)
        epochs["M1"] = (await w.heartbeat(epochs["M1"])).member_epoch
        w.settings = w.settings._replace(assignor="all")
        w.commits.failure = NoSpace()
        w.service.settings_changed(GROUP)
        w.service.settings_changed(None)
        w.service.settings_changed("nobody")
        w.commits.failure = None
        assert w.service.coordinator.describe(GROUP).group_epoch == epochs["M1"]
        await trio.sleep(2)
        assert partitions(await w.heartbeat(epochs["M1"])) == [0, 1]
