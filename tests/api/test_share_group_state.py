"""RPCs 83-87: the share coordinator over the wire. Its rules have their own tests; these are about
rows, versions and persistence."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import UUID, uuid4

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect

Rows = dict[int, dict[str, Any]]


class State:
    """The five RPCs for one topic; answers are {partition: {field: value}}."""

    def __init__(self, client: Client, topic_id: UUID | None, group_id: str = "g") -> None:
        self._client = client
        self.topic_id = topic_id
        self.group_id = group_id

    async def _call(self, api: str, version: int, rows: tuple[dict[str, Any], ...]) -> Rows:
        answer = await self._client.call(
            api, version, group_id=self.group_id, topics=[{"topic_id": self.topic_id, "partitions": rows}]
        )
        if not answer.results:
            return {}
        (result,) = answer.results
        assert result.topic_id == self.topic_id
        found = {
            row.partition: {field.name: getattr(row, field.name) for field in fields(row)}
            for row in result.partitions
        }
        assert len(found) == len(result.partitions)
        return found

    async def initialize(self, *partitions: int, state_epoch: int = 1, start_offset: int = 0) -> Rows:
        rows = tuple(
            {"partition": index, "state_epoch": state_epoch, "start_offset": start_offset}
            for index in partitions
        )
        return await self._call("initialize_share_group_state", 0, rows)

    async def read(self, *partitions: int, leader_epoch: int = 0) -> Rows:
        return await self._call(
            "read_share_group_state",
            0,
            tuple({"partition": i, "leader_epoch": leader_epoch} for i in partitions),
        )

    async def write(
        self, partition: int, *batches: tuple[int, int, int, int], version: int = 1, **more: int
    ) -> Rows:
        row: dict[str, Any] = {
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": -1,
            "delivery_complete_count": 0,
            **more,
        }
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        row |= {
            "partition": partition,
            "state_batches": [dict(zip(names, batch, strict=True)) for batch in batches],
        }
        return await self._call("write_share_group_state", version, (row,))

    async def summary(self, *partitions: int, version: int = 1) -> Rows:
        rows = tuple({"partition": index, "leader_epoch": 0} for index in partitions)
        return await self._call("read_share_group_state_summary", version, rows)

    async def delete(self, *partitions: int) -> Rows:
        return await self._call(
            "delete_share_group_state", 0, tuple({"partition": index} for index in partitions)
        )


async def state_of(client: Client, partitions: int = 2) -> State:
    return State(client, (await client.create_topic("a", partitions)).topic_id)


def codes(rows: Rows) -> dict[int, ErrorCode]:
    return {partition: row["error_code"] for partition, row in rows.items()}


def batches(row: dict[str, Any]) -> list[tuple[int, ...]]:
    return [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in row["state_batches"]
    ]


@pytest.mark.parametrize("version", [0, 1])
async def test_all_five(connect: Connect, version: int) -> None:  # RPC-3, RPC-11, SC-41, SC-44
    async with connect() as client:
        state = await state_of(client)
        assert codes(await state.initialize(0, 1, state_epoch=1, start_offset=10)) == {
            0: ErrorCode.none,
            1: ErrorCode.none,
        }
        written = await state.write(
            1, (10, 12, 2, 1), (13, 13, 0, 3), version=version, start_offset=10, delivery_complete_count=3
        )
        assert codes(written) == {1: ErrorCode.none}
        read = (await state.read(1, leader_epoch=4))[1]
        assert (read["error_code"], read["error_message"]) == (ErrorCode.none, None)
        assert (read["state_epoch"], read["start_offset"]) == (1, 10)
        assert batches(read) == [(10, 12, 2, 1), (13, 13, 0, 3)]
        summary = (await state.summary(0, 1, version=version))[1]
        assert (summary["state_epoch"], summary["leader_epoch"], summary["start_offset"]) == (1, 4, 10)
        if version == 1:
            assert summary["delivery_complete_count"] == 3
        assert codes(await state.delete(0, 1)) == {0: ErrorCode.none, 1: ErrorCode.none}
        assert (await state.summary(1))[1]["start_offset"] == -1


async def test_without_state(connect: Connect) -> None:  # SC-21..23
    async with connect() as client:
        state = await state_of(client)
        assert codes(await state.read(0)) == {0: ErrorCode.invalid_request}
        assert (await state.read(0))[0]["error_message"]
        assert codes(await state.write(0)) == {0: ErrorCode.invalid_request}
        assert codes(await state.delete(0)) == {0: ErrorCode.none}
        found = (await state.summary(0))[0]
        del found["error_message"]
        assert found == {
            "partition": 0,
            "error_code": ErrorCode.none,
            "state_epoch": 0,
            "leader_epoch": 0,
            "start_offset": -1,
            "delivery_complete_count": -1,
        }


async def test_fencing(connect: Connect) -> None:  # SC-24..26
    async with connect() as client:
        state = await state_of(client)
        await state.initialize(0, state_epoch=5)
        await state.read(0, leader_epoch=3)
        assert codes(await state.initialize(0, state_epoch=4)) == {0: ErrorCode.fenced_state_epoch}
        assert codes(await state.write(0, state_epoch=4, leader_epoch=3)) == {0: ErrorCode.fenced_state_epoch}
        assert codes(await state.write(0, state_epoch=5, leader_epoch=2)) == {
            0: ErrorCode.fenced_leader_epoch
        }
        assert codes(await state.read(0, leader_epoch=2)) == {0: ErrorCode.fenced_leader_epoch}
        assert codes(await state.summary(0)) == {0: ErrorCode.none}


@pytest.mark.parametrize("topic_id", [None, uuid4()])
@pytest.mark.parametrize("partition", [0, -1])
# SC-18, SC-21, SC-27
async def test_rows_that_name_nothing(connect: Connect, topic_id: UUID | None, partition: int) -> None:
    async with connect() as client:
        state = State(client, topic_id)
        bad = partition < 0
        code = ErrorCode.invalid_request if bad else ErrorCode.unknown_topic_or_partition
        assert codes(await state.initialize(partition)) == {partition: code}
        assert codes(await state.summary(partition)) == {partition: code}
        assert codes(await state.delete(partition)) == {partition: code}
        for unread in (await state.read(partition), await state.write(partition)):
            assert codes(unread) == {partition: ErrorCode.invalid_request}


async def test_negative_epochs(connect: Connect) -> None:  # SC-19, SC-20
    async with connect() as client:
        state = await state_of(client)
        assert codes(await state.initialize(0, state_epoch=-1)) == {0: ErrorCode.invalid_request}
        await state.initialize(0)
        assert codes(await state.read(0, leader_epoch=-1)) == {0: ErrorCode.invalid_request}
        assert codes(await state.write(0, leader_epoch=-1)) == {0: ErrorCode.invalid_request}
        assert codes(await state.write(0, state_epoch=-1)) == {0: ErrorCode.invalid_request}


async def test_one_bad_row_refuses_no_other(connect: Connect) -> None:  # SC-34
    async with connect() as client:
        state = await state_of(client)
        assert codes(await state.initialize(1, 7, 0)) == {
            1: ErrorCode.none,
            7: ErrorCode.unknown_topic_or_partition,
            0: ErrorCode.none,
        }


async def test_a_row_twice_is_answered_once_and_nobody_gets_nothing(connect: Connect) -> None:  # SC-31, SC-32
    async with connect() as client:
        state = await state_of(client)
        assert codes(await state.initialize(0, 0)) == {0: ErrorCode.none}
        assert await state.initialize() == {}
        state.group_id = ""
        assert await state.initialize(0) == {}
        assert await state.summary(0) == {}


@pytest.mark.parametrize("persister", ["default", "control-records"])
# SC-50
async def test_state_is_there_after_a_restart(connect: Connect, every_engine: str, persister: str) -> None:
    """With every persister it is the state that the broker itself uses."""
    config = {"kbroker.persister": persister}
    async with connect(every_engine, config) as client:
        state = await state_of(client)
        await state.initialize(0, 1, start_offset=10)
        await state.read(0, leader_epoch=2)
        await state.write(0, (10, 14, 2, 1), leader_epoch=2, delivery_complete_count=5)
        await state.write(0, (16, 16, 4, 5), leader_epoch=2, start_offset=12, delivery_complete_count=4)
        await state.delete(1)
        topic_id = state.topic_id
    async with connect(every_engine, config) as client:
        state = State(client, topic_id)
        found = await state.summary(0, 1)
        assert (found[0]["start_offset"], found[0]["leader_epoch"], found[0]["delivery_complete_count"]) == (
            12,
            2,
            4,
        )
        assert found[1]["start_offset"] == -1
        assert codes(await state.write(0, leader_epoch=1)) == {0: ErrorCode.fenced_leader_epoch}
        assert batches((await state.read(0, leader_epoch=2))[0]) == [(12, 14, 2, 1), (16, 16, 4, 5)]
