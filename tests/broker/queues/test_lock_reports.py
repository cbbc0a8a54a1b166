"""Expired locks leave one line a minute for each group, with their number, and no line per
record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from kbroker.broker.queues.lock_reports import LockReports
from kbroker.settings.altering import BrokerConfig
from kbroker.share.effects import ShareSettings
from kbroker.share.statistics import RanOut

NAME = "kbroker.broker.queues.lock_reports"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records if record.name == NAME]


def settings(group_id: str) -> ShareSettings:
    return ShareSettings(
        delivery_count_limit=5,
        lock_duration_ms=30_000,
        max_record_locks=2000,
        renew_enabled=True,
        dead_letter_queue=False,
    )


async def test_one_line_a_minute_for_each_group(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    reports = LockReports(settings, BrokerConfig.load())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        await trio.sleep(100)
        assert lines(caplog) == [], "nothing ran out"
        for _ in range(5):
            reports.ran_out("a", RanOut(100, 0, 0))
            reports.ran_out("b c", RanOut(7, 7, 0))
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert lines(caplog) == [
            "WARNING group a: the locks of 500 records ran out in the last 1 s: they are delivered again; "
            "if its consumers are at work they need longer: kbroker configs set --group a "
            "share.record.lock.duration.ms=60000 (now 30000), or fewer records a poll (max.poll.records)",
            "WARNING group b c: the locks of 35 records ran out in the last 1 s: 35 of them were given up at "
            "share.delivery.count.limit; if its consumers are at work they need longer: kbroker configs set "
            "--group 'b c' share.record.lock.duration.ms=60000 (now 30000), "
            "or fewer records a poll (max.poll.records)",
        ]
        for _ in range(580):
            reports.ran_out("a", RanOut(10, 1, 0))
            await trio.sleep(0.1)
        assert len(lines(caplog)) == 2, "not yet"
        await trio.sleep(4)
        assert (
            "group a: the locks of 5800 records ran out in the last 60 s: 580 of them were given up at"
            in lines(caplog)[2]
        )
        reports.ran_out("a", RanOut(100, 0, 0))
        assert "limit, the others are delivered again;" in lines(caplog)[2]
        nursery.cancel_scope.cancel()
    assert len(lines(caplog)) == 4, "at the end, the rest is reported"
    assert "the locks of 100 records" in lines(caplog)[3]


async def test_where_the_broker_prolongs_locks_it_does_not_advise_longer_ones(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig.load()
    reports = LockReports(lambda group_id: replace(settings(group_id), lock_max_ms=60_000), config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        reports.ran_out("a", RanOut(3, 0, 0))
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert lines(caplog) == [
        "WARNING group a: the locks of 3 records ran out in the last 1 s: they are delivered again; their "
        "consumers "
        "are gone or frozen, or had answered and that could not be saved; all other locks the broker "
        "prolongs "
        "(kbroker.queue.lock.max.ms)"
    ]


async def test_a_group_does_not_wait_for_the_minute_of_another_one(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    reports = LockReports(settings, BrokerConfig.load())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        reports.ran_out("first", RanOut(1, 0, 0))
        await trio.sleep(10)
        for group_id in ("first", "second"):
            reports.ran_out(group_id, RanOut(2, 0, 0))
        await trio.sleep(2)
        assert ["group first" in line for line in lines(caplog)] == [True, False]
        await trio.sleep(50)
        assert len(lines(caplog)) == 3
        assert "group first: the locks of 2 records" in lines(caplog)[2]
        nursery.cancel_scope.cancel()
    assert len(lines(caplog)) == 3
