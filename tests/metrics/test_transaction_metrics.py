"""Metrics of transactions: ids by state, ends, markers, open transactions, pending offsets."""

from __future__ import annotations

from pathlib import Path

from tests.api.transaction_clients import begin, end, init
from tests.metrics.transaction_metrics import send, send_offset
from tests.metrics.world import Samples, opened, total

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def by_label(found: Samples, name: str) -> dict[str, float]:
    return {labels[0][1]: value for labels, value in found.get(name, {}).items()}


async def test_transactions_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        client = world.client
        await client.create_topic("wire", 3)
        found = await world.scrape()
        assert by_label(found, "kbroker_transactional_ids") == dict.fromkeys(STATES, 0)
        assert "kbroker_topic_open_transactions" not in found, "no log has had a transaction"
        await init(client, "new")
        producer = await begin(client, "one", wire=[0, 1])
        another = await begin(client, "two", wire=[0])
        await send(client, "one", producer)
        await send(client, "two", another)
        await send_offset(client, "one", producer, "g")
        found = await world.scrape()
        ids = dict.fromkeys(STATES, 0) | {"Empty": 1, "Ongoing": 2}
        assert by_label(found, "kbroker_transactional_ids") == ids
        assert by_label(found, "kbroker_topic_open_transactions") == {"wire": 2}
        assert total(found, "kbroker_pending_group_offsets") == 1
        assert total(found, "kbroker_transaction_markers_total") == 0
        await end(client, "one", producer, commit=True)
        found = await world.scrape()
        assert by_label(found, "kbroker_transactions_total") == {"committed": 1, "aborted": 0}
        assert by_label(found, "kbroker_topic_open_transactions") == {"wire": 1}
        assert total(found, "kbroker_pending_group_offsets") == 0
        assert total(found, "kbroker_transaction_markers_total") == 2, "one for each log"
        await end(client, "two", another, commit=False)
        found = await world.scrape()
        assert by_label(found, "kbroker_transactions_total") == {"committed": 1, "aborted": 1}
        assert by_label(found, "kbroker_topic_open_transactions") == {"wire": 0}
        assert total(found, "kbroker_transaction_markers_total") == 3
        assert total(found, "kbroker_transaction_end_seconds") == 2
        assert total(found, "kbroker_transactions_timed_out_total") == 0
        ids = dict.fromkeys(STATES, 0) | {"Empty": 1, "CompleteCommit": 1, "CompleteAbort": 1}
        assert by_label(found, "kbroker_transactional_ids") == ids
