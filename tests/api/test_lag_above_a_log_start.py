"""Lag and age after retention or DeleteRecords: records that have left the log are no longer
included in either, at once, with every persister and store.

Twelve records in batches of one, each a thousand seconds younger than the one before; the group has
finished some of them when the log's start moves. No member fetches afterwards. The expected numbers
are counted record by record.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.cli.inflight_view import draw
from kbroker.clock import wall_clock_ms
from kbroker.metrics_export.exposition import MetricsExport
from kbroker.security.principals import ANONYMOUS
from kbroker.server.admin_access import AdminCaller
from kbroker.server.admin_requests import HttpRequest
from kbroker.server.admin_views import AdminViews
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import SummaryResult
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.outcome import ShareStateOutcome
from tests.api.conftest import ENGINES, Client
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, GROUP, RELEASE, Member, acquired
from tests.metrics.world import Samples, parse, scrape_text

PERSISTERS = ("default", "control-records")
RECORDS = 12
YOUNGEST_S = 1000
LAG, AGE = "kbroker_share_partition_lag", "kbroker_share_partition_oldest_unprocessed_seconds"


class Case(NamedTuple):
    """`finished`: offsets; `log_start`: the log's new start, None: its end. `later`: records that
    arrive in between."""

    finished: Sequence[int]
    log_start: int | None
    later: int = 0

    @property
    def left(self) -> list[int]:
        """Those of the twelve that still exist and are not finished."""
        log_start = RECORDS if self.log_start is None else self.log_start
        return [offset for offset in range(log_start, RECORDS) if offset not in self.finished]


CASES = {
    "nothing was finished, everything is gone": Case((), None),
    "some of it was finished, everything is gone": Case((0, 1, 5, 6, 11), None),
    "everything was finished": Case(range(RECORDS), None),
    "nothing was finished": Case((), 5),
    "finished below": Case((1, 2, 3), 5),
    "finished above": Case((7, 8), 5),
    "finished below and above": Case((1, 2, 7, 8, 11), 5),
    "finished around it": Case((3, 4, 5, 6, 9), 5),
    "finished right up to it": Case((2, 3, 4), 5),
    "finished all above": Case(range(5, RECORDS), 5),
    "below the start offset": Case((0, 1, 2, 3, 4, 5, 8), 4),
    "past the window, and more has come": Case((1, 2, 7), None, later=3),
    "nothing is gone, the first were finished": Case((0, 1, 2), 0),
    "nothing is gone, all was finished, and more has come": Case(range(RECORDS), 0, later=2),
    "past the window of what was finished, and more has come": Case(range(RECORDS), None, later=2),
}
ON_EVERY_ENGINE = ("some of it was finished, everything is gone", "finished below and above")


@asynccontextmanager
async def opened(directory: Path, engine: str, persister: str) -> AsyncIterator[Client]:
    config = BrokerConfig({"kbroker.persister": persister, "log.segment.bytes": "1048576"})
    options = StartOptions(data_dir=directory, storage=engine, state_storage=engine, config=config)
    async with open_broker(options) as broker:
        yield Client(broker)


async def described(client: Client) -> tuple[int, int]:
    """Start offset and lag."""
    groups = [{"group_id": GROUP, "topics": None}]
    (group,) = (await client.call("describe_share_group_offsets", 1, groups=groups)).groups
    ((row,),) = [topic.partitions for topic in group.topics]
    assert (group.error_code, row.error_code) == (0, 0)
    return int(row.start_offset), int(row.lag)


async def scraped(client: Client) -> Samples:
    return parse(await scrape_text(MetricsExport(client.broker)))


async def in_flight(client: Client) -> dict[str, Any]:
    view = AdminViews(client.broker).views()["in_flight"]
    request = HttpRequest(("v1", "share-groups", GROUP, "inflight"), {})
    answer = await view(request, AdminCaller(ANONYMOUS, is_known=False, rights=None), {"GROUP": GROUP})
    assert not isinstance(answer.body, bytes)
    document: dict[str, Any] = json.loads(b"".join([piece async for piece in answer.body]))
    return document


async def delete_before(client: Client, offset: int) -> None:
    rows = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = await client.call("delete_records", 2, topics=rows)
    assert answer.topics[0].partitions[0].error_code == 0


async def consumed(client: Client, case: Case, now_ms: int) -> Client:
    """The group has fetched all records and finished some of them; returns the connection that
    holds the others."""
    key = ((await client.create_topic("orders")).topic_id, 0)
    for age in range(RECORDS):
        await client.append("orders", now_ms - 1000 * YOUNGEST_S * (RECORDS - age))
    rows = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
    assert (await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=rows)).error_code == 0
    member = Member(client.another(2), "M1")
    assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, RECORDS - 1, 1)]
    for offset in case.finished:
        await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
    return member.client


@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for name in CASES for engine in (ENGINES if name in ON_EVERY_ENGINE else ("segment",))],
)
# OFF-9, OFF-12
async def test_lag_and_age_count_what_is_there(
    tmp_path: Path, persister: str, engine: str, name: str
) -> None:
    """Loaded, not loaded, and after a restart."""
    case, now_ms = CASES[name], wall_clock_ms()
    async with opened(tmp_path, engine, persister) as client:
        consumer = await consumed(client, case, now_ms)
        partition = client.partition("orders")
        end = partition.high_watermark
        for number in range(case.later):
            await client.append("orders", now_ms - 1000 * (case.later - number))
        await delete_before(client, end if case.log_start is None else case.log_start)
        lag = len(case.left) + case.later
        age_s = YOUNGEST_S * (RECORDS - case.left[0]) if case.left else case.later
        assert len(client.broker.share_partitions.loaded()) == 1
        await check(client, lag, age_s, now_ms)
        ((shown,), drawn) = (await in_flight(client))["share_partitions"], draw(await in_flight(client), 80)
        assert shown["start_offset"] >= partition.log_start_offset or case.log_start == 4
        assert all(found["first_offset"] >= shown["start_offset"] for found in shown["ranges"])
        if case.log_start is None and persister == "default":
            assert f"nothing in flight, next offset {end}, {case.later} behind it" in drawn[2].plain
        consumer.disconnect()
        await until(lambda: not client.broker.share_partitions.loaded())
        await check(client, lag, age_s, now_ms)
    async with opened(tmp_path, engine, persister) as client:
        await check(client, lag, age_s, now_ms)
        assert not client.broker.share_partitions.loaded()
        await check(client, lag, age_s, now_ms)


async def check(client: Client, lag: int, age_s: int, now_ms: int) -> None:
    assert (await described(client))[1] == lag
    samples = await scraped(client)
    at = (("group", GROUP), ("partition", "0"), ("topic", "orders"))
    assert samples[LAG][at] == lag
    late_s = (wall_clock_ms() - now_ms) / 1000
    assert age_s <= samples[AGE][at] <= age_s + late_s, (
        "the age of the oldest record that is not finished, which is there"
    )


@pytest.mark.parametrize("persister", PERSISTERS)
@pytest.mark.parametrize("seed", range(4))
async def test_lag_is_what_can_be_consumed(tmp_path: Path, persister: str, seed: int) -> None:  # OFF-12
    """The lag is the number of records that the group then receives, including released ones."""
    case = Case((range(3), (1, 4, 9), range(2, 11), ())[seed], (2, 4, 9, 11)[seed])
    async with opened(tmp_path, "segment", persister) as client:
        consumer = await consumed(client, case, wall_clock_ms())
        await delete_before(client, case.log_start or 0)
        lag = (await described(client))[1]
        consumer.disconnect()
        await until(lambda: not client.broker.share_partitions.loaded())
        assert (await described(client))[1] == lag
        key = (client.partition("orders").log.topic_id, 0)
        member = Member(client.another(3), "M2")
        runs = acquired(await member.fetch([key], wait_ms=5000)) if lag else []
        assert [offset for first, last, _ in runs for offset in range(first, last + 1)] == case.left
        for first, last, _ in runs:
            await member.acknowledge({key: [(first, last, [RELEASE])]})
        assert (await described(client))[1] == lag
        await delete_before(client, RECORDS)
        assert (await described(client))[1] == 0


async def test_a_persister_that_cannot_tell_is_believed_as_far_as_the_log_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may have only the five required methods."""
    case = Case((1, 2, 7), 5)
    async with opened(tmp_path, "memory", "default") as client:
        await consumed(client, case, wall_clock_ms())
        read_summary = ShareStateCoordinator.read_summary

        def by_count(*asked: Any) -> ShareStateOutcome[SummaryResult]:
            outcome = read_summary(*asked)
            return replace(outcome, results=tuple(replace(row, stands_from=None) for row in outcome.results))

        monkeypatch.setattr(ShareStateCoordinator, "read_summary", by_count)
        assert (await described(client))[1] == 12 - 3
        await delete_before(client, 5)
        assert (await described(client))[1] == 7, "all that the log has: the three may be gone"
        await delete_before(client, 12)
        assert (await described(client))[1] == 0


async def test_a_persister_that_fails_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no way to the persister")

    async with opened(tmp_path, "memory", "default") as client:
        await consumed(client, Case((1, 2, 7), 5), wall_clock_ms())
        await delete_before(client, 5)
        monkeypatch.setattr(ShareStateCoordinator, "stands_from", fail)
        assert (await described(client))[1] == 7
        assert "the persister failed on a share-partition of group g1" in caplog.text
