"""Kept records are counted while jobs end (broker/logs/removed_records.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Connect
from tests.api.share_consumers import ACCEPT, Member
from tests.api.test_kept_records import LONG_LOCKS, begin, fill, look, one, take
from tests.api.test_queue_retention import removed
from tests.api.test_work_queue import lag

pytestmark = pytest.mark.usefixtures("parks_at_once", "queues_are_left_alone")


async def test_one_that_ends_meanwhile_is_not_reported(
    connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention counts what it is about to remove. The difference of two counts would have a
    kept record that ends between them."""
    async with connect(every_engine, LONG_LOCKS) as client:
        key = await begin(client, {})
        await fill(client)
        worker, others = Member(client, "m1"), Member(client.another(2), "m2")
        head, _ = await one(worker, key)
        await take(others, key)
        waiting_rows = client.broker.persister.waiting_rows
        assert waiting_rows is not None
        count, counted = waiting_rows.count, []

        async def ended_meanwhile(*arguments: Any, **more: Any) -> int:
            counted.append(await count(*arguments, **more))
            if len(counted) == 1:
                await worker.acknowledge({key: [(head, head, [ACCEPT])]})
            return counted[-1]

        monkeypatch.setattr(waiting_rows, "count", ended_meanwhile)
        assert await look(client) > 100
        assert (bool(counted), removed(client), await lag(client)) == (True, 0, 0)
