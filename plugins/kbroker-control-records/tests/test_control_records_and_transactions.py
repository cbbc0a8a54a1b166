"""The `control-records` persister in logs with transactions: both write control batches, and each
is counted for what it is. OFF-9, ISO-4."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.formats.control_records import has_share_state
from kbroker.formats.transactions import MarkerType, is_marker
from kbroker.metrics_export.exposition import MetricsExport
from kbroker_control_records.logs import ControlLogs
from tests.api.conftest import ENGINES, Client
from tests.api.control_logs import batches_of, drain, lag, opened
from tests.api.share_consumers import ACCEPT, GROUP, Member, acquired, prepare
from tests.broker.transactional_log import Log
from tests.metrics.world import parse, scrape_text, total

ABORT, COMMIT = MarkerType.ABORT, MarkerType.COMMIT


async def log_of(client: Client) -> Log:
    partition = client.partition("orders")
    partition.has_transactions = True  # As AddPartitionsToTxn does before the first batch.
    await partition.load_producers()
    return Log(partition)


async def lags(client: Client) -> tuple[int, float]:
    """For an administrator, and in the metrics."""
    return await lag(client), total(
        parse(await scrape_text(MetricsExport(client.broker))), "kbroker_share_partition_lag"
    )


@pytest.mark.parametrize("engine", ENGINES)
async def test_lag_after_a_restart(tmp_path: Path, engine: str) -> None:
    """Markers are finished for the group, and not control records of the persister."""
    async with opened(tmp_path, engine) as client:
        key = await prepare(client)
        rows = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
        await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=rows)
        log = await log_of(client)
        for producer_id in range(10):
            await log.send(producer_id)
            await log.end(producer_id, COMMIT)
        member = Member(client, "M1")
        taken = acquired(await member.fetch([key], max_records=500, wait_ms=5000))
        offsets = [offset for first, last, _ in taken for offset in range(first, last + 1)]
        assert len(offsets) == 10
        for offset in offsets[:3] + offsets[5:]:
            await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
        assert await lags(client) == (2, 2)
    for _ in range(2):
        async with opened(tmp_path, engine) as client:
            assert await lags(client) == (2, 2)
    async with opened(tmp_path, engine) as client:
        assert await drain(client, key) == offsets[3:5]
        assert await lags(client) == (0, 0)


async def test_each_control_batch_is_of_one_kind(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        key = await prepare(client, 1)
        log = await log_of(client)
        for kind in (ABORT, COMMIT):
            await log.send(1)
            await log.end(1, kind)
        await drain(client, key)
        found = list(batches_of(client, key))
        kinds = [
            (has_share_state(view, position, header), is_marker(header), header.is_control)
            for view, position, header in found
        ]
        assert {(own, marker) for own, marker, control in kinds if control} == {(True, False), (False, True)}
        assert {(own, marker) for own, marker, control in kinds if not control} == {(False, False)}
        assert [own for own, _, _ in kinds] == [
            header.is_control and header.producer_id == -1 for _, _, header in found
        ]


async def test_a_lag_that_cannot_be_right_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is returned as it is, and logged once a minute. A start offset beyond the log's end gives
    a negative lag without a line."""
    async with opened(tmp_path) as client:
        await client.create_topic("orders")
        await client.append("orders", 1, 2, 3)
        count_own, extra = ControlLogs.count_own_offsets, 0
        monkeypatch.setattr(ControlLogs, "count_own_offsets", lambda *asked: count_own(*asked) + extra)
        for start_offset, extra in ((100, 0), (1, 0), (1, 4)):
            starts = [{"partition_index": 0, "start_offset": start_offset}]
            topics = [{"topic_name": "orders", "partitions": starts}]
            await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=topics)
            end = client.partition("orders").high_watermark
            for _ in range(2):
                assert await lag(client) == (end if start_offset == 100 else 3) - start_offset - extra
            lines = [each for each in caplog.records if "are miscounted" in each.message]
            assert [each.levelname for each in lines] == ["ERROR"] * bool(extra)
