"""Lag of a group with read_committed that is idle, when the log's start passes its saved start
offset: markers and records of aborted transactions are finished, wherever they lie. OFF-12, ISO-4.

Records 0 to 4 are plain ones. A member finishes those in `finished`. The others are an aborted
transaction of thirty records, its marker, a committed record and its marker. No member fetches
afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.formats.transactions import MarkerType
from kbroker.inspection.topics import inspect
from kbroker.share.persister import TopicPartition
from tests.api.conftest import ENGINES, Client
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired, set_up_group
from tests.api.test_lag_above_a_log_start import LAG, PERSISTERS, delete_before, described, opened, scraped
from tests.broker.transactional_log import Log

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT
PLAIN, ABORTED = 5, 30
COMMITTED_AT = PLAIN + ABORTED + 1


async def worked(client: Client, finished: Sequence[int]) -> int:
    """Returns the log's end before the group begins."""
    topic = await client.create_topic("orders")
    rows = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=rows)
    await set_up_group(client, {"share.isolation.level": "read_committed"})
    partition = client.partition("orders")
    first = partition.high_watermark
    partition.has_transactions = True  # As AddPartitionsToTxn does before the first batch.
    await partition.load_producers()
    log = Log(partition)
    for _ in range(PLAIN):
        await log.send(7, transactional=False)
    for _ in range(ABORTED):
        await log.send(5)
    await log.end(5, ABORT)
    await log.send(6)
    await log.end(6, COMMIT)
    key = topic.topic_id, 0
    member = Member(client.another(2), "M1")
    taken = acquired(await member.fetch([key], wait_ms=5000))
    offsets = [offset for run, last, _ in taken for offset in range(run, last + 1)]
    assert offsets == [first + number for number in (*range(PLAIN), COMMITTED_AT)]
    acks = [(first + number, first + number, [ACCEPT]) for number in finished]
    await member.acknowledge({key: acks})
    member.client.disconnect()
    await until(lambda: not client.broker.share_partitions.loaded())
    return first


async def check(client: Client, lag: int) -> None:
    assert (await described(client))[1] == lag
    at = (("group", GROUP), ("partition", "0"), ("topic", "orders"))
    assert (await scraped(client))[LAG][at] == lag


@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("finished", "log_start", "lag"),
    [
        ((*range(PLAIN), COMMITTED_AT), 3, 0),
        ((*range(PLAIN), COMMITTED_AT), PLAIN + 10, 0),
        ((*range(1, PLAIN), COMMITTED_AT), 2, 0),  # An unfinished record is removed.
        (tuple(range(1, PLAIN)), PLAIN + 10, 1),
        ((2, COMMITTED_AT), 2, 2),
    ],
)
async def test_lag_is_right_at_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    persister: str,
    engine: str,
    finished: Sequence[int],
    log_start: int,
    lag: int,
) -> None:
    left = [number for number in (*range(PLAIN), COMMITTED_AT) if number not in finished]
    lost = [number for number in left if number < log_start]
    async with opened(tmp_path, engine, persister) as client:
        first = await worked(client, finished)
        await check(client, len(left))
        with caplog.at_level(logging.WARNING):
            await delete_before(client, first + log_start)
        removed = [each.args for each in caplog.records if "was not done with" in each.message]
        assert [each[1] for each in removed if isinstance(each, tuple)] == [len(lost)] * bool(lost)
        await check(client, lag)
        partition = client.partition("orders")
        # Of the persister's own control records the store knows as little as of records to come.
        held = (await client.broker.held_logs.holders(partition)).get(GROUP, partition.high_watermark)
        rest = [number for number in left if number >= log_start]
        assert held == first + (rest[0] if rest else COMMITTED_AT + 2)
    async with opened(tmp_path, engine, persister) as client:
        await check(client, lag)
        assert not client.broker.share_partitions.loaded()
        if persister == "default" and engine != "memory":
            broker = client.broker
            (found,) = inspect(broker.log_store, broker.state_store).share_partitions
            assert found.lag == lag
        key = TopicPartition(client.partition("orders").log.topic_id, 0)
        member = Member(client.another(3), "M2")
        taken: list[tuple[int, int, int]] = []
        while lag > (count := sum(last + 1 - begin for begin, last, _ in taken)):
            more = acquired(await member.fetch([key], wait_ms=5000))
            assert more, f"{count} of {lag} came"
            taken += more
        assert acquired(await member.fetch([key])) == []
