"""Share state that no share-partition can hold: it is refused, and stored state of that kind does
not stop a queue."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.share_records import encode_share_snapshot
from kbroker.formats.state import share_partition_prefix, share_state_number
from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.control_logs import drain, lag
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired, prepare, rows, set_up_group
from tests.api.test_share_group_state import State, codes

persisters = pytest.mark.parametrize("persister", ["default", "control-records"])
Batch = tuple[int, int, int, int]


async def served(client: Client, key: tuple[UUID, int]) -> list[tuple[int, int, int]]:
    """The records that a member gets and can accept."""
    member = Member(client.another(50), "M")
    await client.broker.share_partitions.load(GROUP, TopicPartition(*key))
    answer = await member.fetch([key], wait_ms=5000)
    assert rows(answer)[key].error_code == 0
    found = acquired(answer)
    answer = await member.acknowledge({key: [(first, last, [ACCEPT]) for first, last, _ in found]})
    assert rows(answer)[key].error_code == 0
    return found


@persisters
async def test_it_is_refused(connect: Connect, every_engine: str, persister: str) -> None:  # SC-30
    async with connect(every_engine, {"kbroker.persister": persister}) as client:
        key = await prepare(client, 4)
        state = State(client, key[0], GROUP)
        for wrong in [
            (0, 1, 0, 256),
            (0, 1, 0, 32767),
            (0, MAX_SPAN, 2, 1),
            ((1 << 63) - 1, (1 << 63) - 1, 2, 1),
        ]:
            epochs = {"state_epoch": 5, "leader_epoch": 5, "start_offset": 0}
            assert codes(await state.write(0, (0, 0, 2, 1), wrong, **epochs)) == {
                0: ErrorCode.invalid_request
            }
        assert await served(client, key) == [(0, 3, 1)]
    async with connect(every_engine, {"kbroker.persister": persister}) as client:
        assert await lag(client) == 0


@persisters
@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_batches_before_the_start_is_decided(
    connect: Connect, every_engine: str, persister: str, reset: str
) -> None:
    """The future start is unknown: batches below it, or too far beyond it, do not matter."""
    async with connect(every_engine, {"kbroker.persister": persister}) as client:
        key = await prepare(client, 4)
        await client.append("orders", 1, 2)
        await set_up_group(client, {"share.auto.offset.reset": reset})
        state, epoch = State(client, key[0], GROUP), client.partition("orders").leader_epoch
        assert codes(await state.initialize(0, state_epoch=9, start_offset=-1)) == {0: ErrorCode.none}
        assert codes(await state.read(0, leader_epoch=epoch)) == {0: ErrorCode.none}
        far = 2 * MAX_SPAN
        for batch in [(1, 1, 2, 1), (far, far, 2, 1)]:
            assert codes(await state.write(0, batch, state_epoch=9, leader_epoch=epoch)) == {
                0: ErrorCode.none
            }
        if reset == "latest":
            await client.broker.share_partitions.load(GROUP, TopicPartition(*key))
            offset = await client.append("orders", 3)
            assert await served(client, key) == [(offset, offset, 1)]
        else:
            first, *rest = await served(client, key)
            assert first == (0, 0, 1)
            assert sum(last + 1 - first for first, last, _ in rest) == 4


async def test_what_an_earlier_version_has_stored(connect: Connect, every_engine: str) -> None:
    """0.1.0 accepted delivery counts and spans that it could not load."""
    async with connect(every_engine) as client:
        key = await prepare(client, 6)
        batches = (
            StateBatch(1, 1, 0, 300),
            StateBatch(2, 2, 2, 32767),
            StateBatch(MAX_SPAN + 9, MAX_SPAN + 9, 2, 1),
        )
        snapshot = encode_share_snapshot(7, 9, 0, 0, 1, 1, 0, 0, batches)
        stored = [
            (share_partition_prefix(GROUP, *key) + share_state_number(number), None) for number in range(5)
        ]
        await client.broker.state_commits.commit([*stored[1:], (stored[0][0], snapshot)])
    async with connect(every_engine) as client:
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        assert await drain(client, key) == [0, 1, 3, 4, 5]
