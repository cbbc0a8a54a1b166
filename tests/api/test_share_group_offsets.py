"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets through their
handlers, on active groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.persisters.noop import NoopPersister
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.share_records import encode_share_snapshot
from kbroker.formats.state import ShareStateKey
from kbroker.share.persister import InitializeRequest, ReadRequest, Result, SummaryResult, TopicPartition
from tests.api.conftest import Client, Connect, versions
from tests.api.dead_letter_queues import all_done, letters_of, offsets_of, prepare_dead_letters, reject
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired, prepare, rows, set_up_group
from tests.api.test_live_group_configs import heartbeat

NONE = ErrorCode.none
LEAST = -(1 << 63)


async def describe(
    client: Client, topics: Mapping[str, Sequence[int]] | None = None, version: int = 1, group: str = GROUP
) -> Any:
    asked = (
        None
        if topics is None
        else [{"topic_name": name, "partitions": partitions} for name, partitions in topics.items()]
    )
    (row,) = (
        await client.call(
            "describe_share_group_offsets", version, groups=[{"group_id": group, "topics": asked}]
        )
    ).groups
    assert (row.group_id, row.error_code) == (group, NONE)
    return row.topics


async def starts(client: Client) -> dict[int, tuple[int, int]]:
    """Start offset and lag by partition, of all of the group's partitions."""
    found = await describe(client)
    return {row.partition_index: (row.start_offset, row.lag) for topic in found for row in topic.partitions}


async def alter(client: Client, *offsets: int, group: str = GROUP, topic: str = "orders") -> list[ErrorCode]:
    """One start offset for each partition, from 0 on."""
    partitions = [{"partition_index": index, "start_offset": offset} for index, offset in enumerate(offsets)]
    topics = [{"topic_name": topic, "partitions": partitions}]
    answer = await client.call("alter_share_group_offsets", 0, group_id=group, topics=topics)
    return (
        [answer.error_code]
        if answer.error_code
        else [row.error_code for each in answer.responses for row in each.partitions]
    )


async def delete(client: Client, *names: str, group: str = GROUP) -> list[ErrorCode]:
    topics = [{"topic_name": name} for name in names]
    answer = await client.call("delete_share_group_offsets", 0, group_id=group, topics=topics)
    return [answer.error_code] if answer.error_code else [row.error_code for row in answer.responses]


async def known(client: Client, *sizes: int) -> tuple[UUID, int]:
    """As `prepare`, and the partition is Initialized in the group."""
    key = await prepare(client, *sizes)
    assert await alter(client, 0) == [NONE]
    return key


@pytest.mark.parametrize("version", versions("describe_share_group_offsets"))
async def test_every_version_describes(connect: Connect, version: int) -> None:  # RPC-4, OFF-1
    async with connect() as client:
        key = await known(client, 3)
        (topic,) = await describe(client, version=version)
        assert (topic.topic_name, topic.topic_id) == ("orders", key[0])
        (row,) = topic.partitions
        assert (
            row.partition_index,
            row.start_offset,
            row.leader_epoch,
            row.error_code,
            row.error_message,
        ) == (0, 0, 0, NONE, None)
        assert getattr(row, "lag", 3) == 3


async def test_what_does_not_exist_is_answered_at_once(connect: Connect) -> None:  # OFF-5
    async with connect() as client:
        await known(client, 3)
        with trio.testing.assert_no_checkpoints():
            (topic,) = await describe(client, {"orders": [7]})
        assert [(row.start_offset, row.lag, row.error_code) for row in topic.partitions] == [(-1, -1, NONE)]


async def test_a_start_offset_is_known_from_the_first_fetch_on(connect: Connect) -> None:  # OFF-10, LOAD-6
    async with connect() as client:
        await prepare(client, 3)
        await heartbeat(client, "m", 0, "orders")
        assert await starts(client) == {0: (-1, -1)}
        topic = client.broker.topics.by_name("orders")
        assert topic is not None
        await Member(client, "m").fetch([(topic.topic_id, 0)], wait_ms=5000)
        assert await starts(client) == {0: (0, 3)}


class TestAltering:
    async def test_reaches_a_fetch_that_waits(self, connect: Connect) -> None:  # OFF-13, OFF-29
        """Better than Kafka, whose leader would use the old state until its next write."""
        async with connect() as client:
            key = await known(client, 1, 1, 1)
            member = Member(client.another(2), "m")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
            await member.acknowledge({key: [(0, 2, [ACCEPT])]})
            answers = []

            async def wait() -> None:
                answers.append(await member.fetch(wait_ms=60_000))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert await alter(client, 1) == [NONE]
            assert acquired(answers[0]) == [(1, 2, 1)]

    async def test_takes_what_members_hold(self, connect: Connect) -> None:  # OFF-29
        async with connect() as client:
            key = await known(client, 3)
            member = Member(client.another(2), "m")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
            assert await alter(client, 1) == [NONE]
            late = await member.acknowledge({key: [(0, 2, [ACCEPT])]})
            assert rows(late)[key].error_code == ErrorCode.unknown_topic_or_partition
            assert await starts(client) == {0: (1, 2)}
            assert acquired(await member.fetch(wait_ms=5000)) == [(1, 2, 1)]

    async def test_is_not_undone_by_what_was_to_be_saved_later(self, connect: Connect) -> None:
        """A session that ends releases its records in the background: such a write carries the
        start offset unchanged."""
        async with connect() as client:
            key = await known(client, 3, 3)
            member = Member(client.another(2), "m")
            await member.fetch([key], wait_ms=5000)
            await member.acknowledge({key: [(0, 4, [ACCEPT])]})
            member.client.disconnect()
            assert await alter(client, 0) == [NONE]
            while client.broker.share_state.statistics().unsaved:
                await trio.lowlevel.checkpoint()
            assert await starts(client) == {0: (0, 6)}

    # LSO-11, LOAD-18, OFF-12, OFF-18
    async def test_beyond_the_end(self, connect: Connect, every_engine: str) -> None:
        """It survives restarts, also after a fetch, and is where delivery finally begins."""
        async with connect(engine=every_engine) as client:
            key = await known(client, 3)
            assert await alter(client, 5) == [NONE]
            assert acquired(await Member(client, "m").fetch([key], wait_ms=10)) == []
        for _ in ("read since", "not read since"):
            async with connect(engine=every_engine) as client:
                assert await starts(client) == {0: (5, -2)}
        async with connect(engine=every_engine) as client:
            member = Member(client, "m")
            assert acquired(await member.fetch([key], wait_ms=10)) == []
            await client.append("orders", 1, 2, 3, 4)
            assert acquired(await member.fetch(wait_ms=5000)) == [(5, 6, 1)]
            assert await starts(client) == {0: (5, 2)}

    # OFF-13
    async def test_holds_against_a_load_under_way(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if the group's reset policy was about to decide: its result must not be saved over
        the altered offset."""
        async with connect() as client:
            key = await known(client, 1, 1, 1)
            assert await alter(client, -1) == [NONE]
            await set_up_group(client, {"share.auto.offset.reset": "latest"})
            persister, has_read, may_go_on, answers = client.broker.persister, trio.Event(), trio.Event(), []
            read = persister.read

            async def read_slowly(group_id: str, requests: Sequence[ReadRequest]) -> Any:
                results = await read(group_id, requests)
                has_read.set()
                await may_go_on.wait()
                return results

            async def fetch() -> None:
                answers.append(await Member(client.another(2), "m").fetch([key], wait_ms=5000))

            monkeypatch.setattr(persister, "read", read_slowly)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch)
                await has_read.wait()
                assert await alter(client, 1) == [NONE]
                may_go_on.set()
            assert acquired(answers[0]) == [(1, 2, 1)]
            await trio.testing.wait_all_tasks_blocked()
            await client.broker.state_commits.perform(lambda: None)  # Earlier changes are saved.
            assert await starts(client) == {0: (1, 2)}

    async def test_back_to_the_reset_policy(self, connect: Connect) -> None:  # OFF-18, LOAD-2
        async with connect() as client:
            key = await known(client, 3)
            await set_up_group(client, {"share.auto.offset.reset": "latest"})
            assert await alter(client, -1) == [NONE]
            assert await starts(client) == {0: (-1, -1)}
            member = Member(client, "m")
            assert acquired(await member.fetch([key], wait_ms=100)) == []
            await client.append("orders", 1)
            assert acquired(await member.fetch(wait_ms=5000)) == [(3, 3, 1)]

    @pytest.mark.parametrize("start", [-2, -5, LEAST])
    async def test_below_minus_one_is_refused(self, connect: Connect, start: int) -> None:  # OFF-18
        async with connect() as client:
            await known(client, 1, 1, 1)
            assert await alter(client, 2) == [NONE]
            assert await alter(client, start) == [ErrorCode.invalid_request]
            assert await alter(client, start, group="new") == [ErrorCode.invalid_request]
            assert await starts(client) == {0: (2, 1)}
            listed = await client.call("list_groups", 5, states_filter=(), types_filter=())
            assert [group.group_id for group in listed.groups] == [GROUP]

    @pytest.mark.parametrize("start", [-5, LEAST])
    # OFF-18
    async def test_below_minus_one_of_an_earlier_version(
        self, connect: Connect, every_engine: str, start: int
    ) -> None:
        """State that was stored when such a start offset was accepted: it is described, and still
        means the log's start."""
        async with connect(engine=every_engine) as client:
            key = await known(client, 1, 1, 1)
            snapshot = encode_share_snapshot(9, 1, 0, start, 1, 1, 0, -1, ())
            await client.broker.share_state.delete(GROUP, [TopicPartition(*key)])
            await client.broker.state_commits.commit([(ShareStateKey(*key, GROUP, 0).encode(), snapshot)])
            deleted = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]
            await client.call("delete_records", 2, topics=deleted)
            assert await starts(client) == {0: (start, 2)}
        async with connect(engine=every_engine) as client:
            assert await starts(client) == {0: (start, 2)}
            member = Member(client, "m")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(1, 2, 1)]
            assert await starts(client) == {0: (start, 2)}
            await member.acknowledge({key: [(1, 1, [ACCEPT])]})
            assert await starts(client) == {0: (1, 1)}

    # OFF-13
    async def test_makes_dead_letters_of_records_that_were_some_before(self, connect: Connect) -> None:
        """After a restart, too: dead letters that an earlier state left in the queue are not those
        of this one."""
        async with connect(engine="segment") as client:
            key = await prepare_dead_letters(client, 2)
            for _ in range(2):
                assert await alter(client, 0) == [NONE]
                await reject(client, key, 0)
                await all_done(client)
            assert offsets_of(letters_of(client)) == [0, 0]
        async with connect(engine="segment") as client:
            assert await alter(client, 0) == [NONE]
            await reject(client, key, 0)
            await all_done(client)
            assert offsets_of(letters_of(client)) == [0, 0, 0]

    async def test_is_durable(self, connect: Connect, every_engine: str) -> None:  # OFF-13, OFF-17, GRP-41
        async with connect(engine=every_engine) as client:
            await known(client, 3)
            assert await alter(client, 2) == [NONE]
        async with connect(engine=every_engine) as client:
            assert await starts(client) == {0: (2, 1)}
            answer = await client.call("list_groups", 5, states_filter=(), types_filter=("share",))
            assert [(group.group_id, group.group_state) for group in answer.groups] == [(GROUP, "Empty")]


class TestDeleting:
    async def test_reaches_a_fetch_that_waits(self, connect: Connect) -> None:  # OFF-20, OFF-30
        """It is answered like any fetch of a share-partition without state, and later fetches get
        records again with the next member."""
        async with connect() as client:
            key = await known(client, 3)
            member = Member(client.another(2), "m")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 2, 1)]
            answers = []

            async def wait() -> None:
                answers.append(await member.fetch(wait_ms=300))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert await delete(client, "orders") == [NONE]
            assert rows(answers[0])[key].error_code == ErrorCode.unknown_server_error
            late = await member.acknowledge({key: [(0, 2, [ACCEPT])]})
            assert rows(late)[key].error_code == ErrorCode.unknown_topic_or_partition
            assert await starts(client) == {}
            await heartbeat(client, "m", 0, "orders")
            assert acquired(await member.fetch(wait_ms=5000)) == [(0, 2, 1)]

    async def test_is_durable(self, connect: Connect, every_engine: str) -> None:  # OFF-20, OFF-22
        async with connect(engine=every_engine) as client:
            await known(client, 3)
            assert await delete(client, "orders", "missing") == [NONE, ErrorCode.unknown_topic_or_partition]
        async with connect(engine=every_engine) as client:
            assert await starts(client) == {}
            assert await delete(client, "orders") == [ErrorCode.unknown_topic_or_partition]


# --- a slow or failing persister ---


class Persister(NoopPersister):
    """Wraps the broker's own: `hold` makes it wait, `failure` raise, `refuse` refuse."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real = client.broker.persister
        self.hold: trio.Event | None = None
        self.failure: Exception | None = None
        self.refuse = NONE
        monkeypatch.setattr(client.broker.share_group_service, "_persister", self)

    async def _before(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure

    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]:
        await self._before()
        if self.refuse is not NONE:
            return [Result(request.partition, self.refuse) for request in requests]
        return await self.real.initialize(group_id, requests)

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]:
        await self._before()
        if self.refuse is not NONE:
            return [Result(partition, self.refuse) for partition in partitions]
        return await self.real.delete(group_id, partitions)

    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]:
        await self._before()
        if self.refuse is not NONE:
            return [SummaryResult(request.partition, self.refuse) for request in requests]
        return await self.real.read_summary(group_id, requests)


@pytest.mark.parametrize("way", ["refuses", "raises"])
# OFF-7, OFF-23, OFF-27
async def test_a_persister_that_fails(connect: Connect, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Each row has the error, a description has no offsets, and everything can be retried."""
    async with connect() as client:
        await known(client, 3)
        persister = Persister(client, monkeypatch)
        code = ErrorCode.unknown_server_error if way == "raises" else ErrorCode.coordinator_not_available
        if way == "raises":
            persister.failure = OSError("no way to the persister")
        else:
            persister.refuse = code
        assert await alter(client, 1) == [code]
        assert await starts(client) == {0: (-1, -1)}
        assert await delete(client, "orders") == [code]
        deleted = await client.call("delete_groups", 2, groups_names=[GROUP])
        assert deleted.results[0].error_code == code
        persister.failure, persister.refuse = None, NONE
        assert await delete(client, "orders") == [NONE]
        assert await alter(client, 1) == [NONE]
        assert await starts(client) == {0: (1, 2)}
        deleted = await client.call("delete_groups", 2, groups_names=[GROUP])
        assert deleted.results[0].error_code == NONE


# OFF-8
async def test_a_topic_that_goes_while_the_persister_answers(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect() as client:
        await known(client, 3)
        persister = Persister(client, monkeypatch)
        persister.hold = trio.Event()
        found: list[Any] = []

        async def look() -> None:
            found.extend(await describe(client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.testing.wait_all_tasks_blocked()
            summaries = await persister.real.read_summary(
                GROUP, [ReadRequest(TopicPartition(client.partition("orders").log.topic_id, 0), -1)]
            )
            monkeypatch.setattr(persister.real, "read_summary", lambda *_: _given(summaries))
            await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
            persister.hold.set()
        (row,) = found[0].partitions
        assert (row.error_code, row.start_offset, row.lag) == (ErrorCode.unknown_topic_or_partition, 0, -1)


async def _given(summaries: list[SummaryResult]) -> list[SummaryResult]:
    return summaries


@pytest.mark.parametrize("what", ["altered", "deleted", "the group is deleted"])
async def test_nobody_else_changes_the_group_meanwhile(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Members get an error after which they retry."""
    async with connect() as client:
        await known(client, 3)
        persister = Persister(client, monkeypatch)
        persister.hold = trio.Event()
        again = ErrorCode.coordinator_load_in_progress

        async def change() -> None:
            if what == "altered":
                assert await alter(client, 1) == [NONE]
            elif what == "deleted":
                assert await delete(client, "orders") == [NONE]
            else:
                assert (await client.call("delete_groups", 2, groups_names=[GROUP])).results[
                    0
                ].error_code == NONE

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await trio.testing.wait_all_tasks_blocked()
            assert (await heartbeat(client, "m", 0, "orders")).error_code == again
            assert await alter(client, 2) == [again]
            assert await delete(client, "orders") == [again]
            assert (await client.call("delete_groups", 2, groups_names=[GROUP])).results[
                0
            ].error_code == again
            persister.hold.set()
        assert (await heartbeat(client, "m", 0, "orders")).error_code == NONE


# OFF-27
async def test_a_full_disk_changes_nothing(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is unchanged, in memory too, and works when there is space again."""

    def full(changes: object) -> None:
        raise NoSpace("no space left on device")

    async with connect() as client:
        key = await known(client, 3)
        with monkeypatch.context() as patched:
            patched.setattr(client.broker.state_commits, "_write", full)
            assert await alter(client, 2) == [ErrorCode.coordinator_not_available]
            assert await alter(client, 2, group="new") == [ErrorCode.coordinator_not_available]
            assert await delete(client, "orders") == [ErrorCode.coordinator_not_available]
            deleted = await client.call("delete_groups", 2, groups_names=[GROUP])
            assert deleted.results[0].error_code == ErrorCode.coordinator_not_available
        assert await starts(client) == {0: (0, 3)}
        assert [
            group.group_id
            for group in (await client.call("list_groups", 5, states_filter=(), types_filter=())).groups
        ] == [GROUP]
        assert acquired(await Member(client, "m").fetch([key], wait_ms=5000)) == [(0, 2, 1)]
        assert await alter(client, 2) == [NONE]
        assert await delete(client, "orders") == [NONE]
        deleted = await client.call("delete_groups", 2, groups_names=[GROUP])
        assert deleted.results[0].error_code == NONE
