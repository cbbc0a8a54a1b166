"""What happens while records are copied to be kept (broker/queues/kept_records.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues import kept_records
from kbroker.broker.queues.held_logs import LogHold
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import build_batch
from kbroker.formats.schedule_headers import DELIVER_AT
from tests.api.conftest import Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, Member
from tests.api.test_kept_records import (
    BATCHES,
    LONG_LOCKS,
    MONTH_MS,
    SCHEDULING,
    begin,
    fill,
    look,
    record,
    take,
)
from tests.api.test_parked_records import parked

pytestmark = pytest.mark.usefixtures("parks_at_once", "queues_are_left_alone")


async def test_what_held_the_log_is_finished_before_the_look(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is wanted of the segments that go."""
    async with connect("segment", LONG_LOCKS) as client:
        key = await begin(client, {})
        await fill(client)
        member = Member(client, "m1")
        await take(member, key, hold={3, 4})
        await client.broker.topics.by_name("orders").partitions[0].load_producers()
        held_logs, finished = client.broker.held_logs, list[bool]()
        holds = held_logs.holds

        async def then_finished(partition: Partition) -> Mapping[str, LogHold]:
            found = await holds(partition)
            if not finished:
                finished.append(bool(found))
                await member.acknowledge({key: [(3, 4, [ACCEPT])]})
            return found

        monkeypatch.setattr(held_logs, "holds", then_finished)
        assert await look(client, 4) > 100
        assert finished == [True]


async def test_a_stop_does_not_wait_for_all_copies(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect("segment", LONG_LOCKS) as client:
        key = await begin(client, SCHEDULING)
        due = (DELIVER_AT, str(wall_clock_ms() + MONTH_MS).encode())
        for number in range(BATCHES):
            await client.append_raw("orders", build_batch([record(number, due)]))
        await take(Member(client, "m1"), key, wait_ms=300)
        await until(lambda: parked(client, key) == BATCHES)
        copied, copy_of = list[bytes](), kept_records.copy_of

        def and_stop(*place: Any, **more: Any) -> bytes:
            copied.append(copy_of(*place, **more))
            trio.from_thread.run_sync(scope.cancel)
            return copied[-1]

        monkeypatch.setattr(kept_records, "copy_of", and_stop)
        with trio.CancelScope() as scope:
            await look(client, 2)
        assert scope.cancelled_caught
        assert len(copied) == 1
