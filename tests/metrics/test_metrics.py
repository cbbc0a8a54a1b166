"""Every metric is documented, present, and moves; the most important ones have the right values; a
scrape is sent in small pieces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kbroker.broker.logs import retention
from kbroker.clock import wall_clock_ms
from kbroker.errors import StoreFailed
from kbroker.metrics import SECONDS, Histogram, ShareGroupMetrics
from kbroker.metrics_export import scrape as scrape_module
from kbroker.metrics_export import share_numbers
from kbroker.metrics_export.scrape import Scrape, ScrapeTurns
from kbroker.metrics_export.table import METRICS
from tests.api import dead_letter_queues as queues
from tests.api.conftest import Client
from tests.api.share_consumers import (
    ACCEPT,
    FAST,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    initialize,
    prepare,
    set_up_group,
)
from tests.checks.metrics_doc import METRICS_DOC, render
from tests.metrics.moving import CONFIG, STEPS, ask, fetched, produced
from tests.metrics.queue_metrics import jobs_of_one_key
from tests.metrics.world import Samples, opened, parse, refusing, scrape_text, total

CONSTANT = {"kbroker_info"}
ROW = re.compile(r"^\| `(kbroker_\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> type and labels, from docs/metrics.md."""
    return {
        name: (kind, tuple(filter(None, labels.split(", "))))
        for name, kind, labels in ROW.findall(METRICS_DOC.read_text())
    }


def test_the_document_is_made_from_the_table() -> None:
    assert METRICS_DOC.read_text() == render(), "run `make docs`"


def test_what_the_document_says_is_the_table() -> None:
    assert documented() == {name: (each.kind, each.labels) for name, each in METRICS.items()}
    for name, each in METRICS.items():
        assert name.endswith("_total") == (each.kind == "counter"), name
        assert each.meaning.endswith(".") or "`" in each.meaning, name
        assert "|" not in each.meaning + each.kafka, name


async def test_every_metric_is_there_and_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "WORK_QUEUE_CHECK_S", 3600.0)  # the steps check logs themselves
    async with opened(tmp_path, CONFIG) as world:
        text = await scrape_text(world.export)
        families = {
            each.name + "_total" * (each.type == "counter"): each.type
            for each in text_string_to_metric_families(text)
        }
        assert {name: kind for name, kind in families.items() if not name.startswith("process_")} == {
            name: each.kind for name, each in METRICS.items()
        }
        await world.scrape()
        for step in STEPS:
            await step(world)
        await jobs_of_one_key(world, monkeypatch)
        monkeypatch.setattr(world.broker.share_group_service._persister, "read_summary", never)
        monkeypatch.setattr(share_numbers, "PATIENCE_S", 0)
        world.broker.share_partitions.forget_group(GROUP)
        await world.scrape()
        with (
            refusing(world.broker.log_commits, StoreFailed("broken by a test")),
            pytest.raises(AssertionError),
        ):
            await world.client.append("wire", 1)
        await world.scrape()
        moved, samples = world.moved, world.seen
    async with opened(tmp_path, CONFIG) as world:
        samples.append(await world.scrape())
        moved |= (
            {"kbroker_share_state_loads_total"}
            if total(samples[-1], "kbroker_share_state_loads_total")
            else set()
        )
    assert set(METRICS) - moved == CONSTANT
    assert begun_above_zero(samples) == BY_REQUEST
    assert wrong_labels(samples) == set()


async def never(*_: object, **__: object) -> None:
    await trio.sleep_forever()


def wrong_labels(samples: list[Samples]) -> set[tuple[str, tuple[str, ...]]]:
    """Samples with labels other than those of the table."""
    return {
        (name, tuple(label for label, _ in labels))
        for found in samples
        for name, by_labels in found.items()
        if name in METRICS
        for labels in by_labels
        if {label for label, _ in labels} != set(METRICS[name].labels)
    }


# -- values
# --------------------------------------------------------------------------------------------------


def place(group: str = GROUP, partition: int = 0) -> dict[str, str]:
    return {"group": group, "topic": "orders", "partition": str(partition)}


async def lag_as_described(client: Client) -> int:
    answer = await client.call(
        "describe_share_group_offsets", 1, groups=[{"group_id": GROUP, "topics": None}]
    )
    return int(answer.groups[0].topics[0].partitions[0].lag)


async def test_requests_topics_and_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.client.create_topic("wire", configs={"max.message.bytes": "200"})
        await ask(world, "produce", 9, **produced(b"fits"))
        await ask(world, "produce", 9, **produced(b"x" * 300))
        await ask(world, "produce", 8, **produced(b"", "none"))
        answer = await ask(world, "fetch", 11, **fetched(0))
        size = len(answer.responses[0].partitions[0].records)
        await ask(world, "fetch", 11, **fetched(7))
        found = await world.scrape()
        produce, fetch = (("request", "Produce"),), (("request", "Fetch"),)
        assert found["kbroker_requests_total"][*produce, ("version", "9")] == 2
        assert found["kbroker_requests_total"][*produce, ("version", "8")] == 1
        assert found["kbroker_request_seconds"][produce] == 3
        assert found["kbroker_request_errors_total"] == {
            (("error", "MESSAGE_TOO_LARGE"), *produce): 1,
            (("error", "UNKNOWN_TOPIC_OR_PARTITION"), *produce): 1,
            (("error", "OFFSET_OUT_OF_RANGE"), *fetch): 1,
        }
        topic = ("topic", "wire")
        assert found["kbroker_topic_requests_total"][*produce, topic] == 2
        assert found["kbroker_topic_failed_requests_total"][*produce, topic] == 1
        assert found["kbroker_topic_requests_total"][*fetch, topic] == 2
        assert found["kbroker_topic_failed_requests_total"][*fetch, topic] == 1
        assert found["kbroker_topic_records_in_total"] == {(topic,): 1}
        assert (
            found["kbroker_topic_bytes_in_total"]
            == found["kbroker_topic_bytes_out_total"]
            == {(topic,): size}
        )
        assert total(found, "kbroker_topic_bytes_rejected_total") > 300
        assert total(found, "kbroker_request_bytes_total") == total(found, "kbroker_received_bytes_total")
        assert total(found, "kbroker_response_bytes_total") == total(found, "kbroker_sent_bytes_total")


async def test_refusals_of_administration_are_counted_by_code(tmp_path: Path) -> None:
    """Also those of nested rows, which no handler counts."""
    async with opened(tmp_path) as world:
        unknown = [{"resource_type": 2, "resource_name": "none", "configuration_keys": None}] * 2
        await ask(
            world,
            "describe_configs",
            4,
            resources=unknown,
            include_synonyms=False,
            include_documentation=False,
        )
        assert (
            await world.value(
                "kbroker_request_errors_total", request="DescribeConfigs", error="UNKNOWN_TOPIC_OR_PARTITION"
            )
            == 2
        )


BY_REQUEST = {
    "kbroker_requests_total",
    "kbroker_request_errors_total",
    "kbroker_request_bytes_total",
    "kbroker_response_bytes_total",
}
"""Series of APIs that clients have used: too many to begin with all of them."""
OWNED = frozenset({"group", "topic", "partition"})


def begun_above_zero(seen: list[Samples]) -> set[str]:
    """Counters of the broker as a whole with a series whose first sample is more than 0, and that
    `increase` therefore does not see. A group or topic may be created and used between two
    scrapes."""
    found, known = set(), set[tuple[str, object]]()
    for samples in seen:
        for name, series in samples.items():
            if name in METRICS and METRICS[name].kind == "counter" and not OWNED & set(METRICS[name].labels):
                found |= {name for labels, value in series.items() if (name, labels) not in known and value}
                known |= {(name, labels) for labels in series}
    return {name for name in found if METRICS[name].labels}


async def test_counters_of_a_group_begin_with_zero(tmp_path: Path) -> None:
    """Before it is used: the first burst is an increase."""
    async with opened(tmp_path, FAST) as world:
        client = world.client
        await client.create_topic("orders")
        await client.append("orders", wall_clock_ms())
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        topics = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
        answer = await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=topics)
        assert answer.error_code == 0
        assert not world.broker.share_partitions.loaded()
        found = await world.scrape()
        counters = {
            name
            for name, each in METRICS.items()
            if each.kind == "counter" and name.startswith("kbroker_share_") and "group" in each.labels
        }
        rates = {f"kbroker_share_partition_{name}_total" for name in (
            "deliveries", "redeliveries", "prolonged_locks", "delayed_deliveries", "dead_lettered",
            "look_ahead_stops",
        )}  # fmt: skip
        """Of work that goes well."""
        assert counters - found.keys() == rates
        assert {value for name in counters - rates for value in found[name].values()} == {0}
        at = tuple(sorted(place().items()))
        for cause in ("rejected", "exhausted", "expired"):
            assert found["kbroker_share_partition_archived_total"][("cause", cause), *at] == 0


async def test_a_share_partition_in_memory_and_out_of_it(tmp_path: Path) -> None:
    """Counters continue; lag equals DescribeShareGroupOffsets in every state; age is that of the
    record at the start."""
    async with opened(tmp_path, FAST) as world:
        now_ms = wall_clock_ms()
        client = world.client
        await client.create_topic("orders")
        for age_s in (5000, 4000, 3000):
            await client.append("orders", *[now_ms - age_s * 1000] * 2)
        await set_up_group(client, {"share.auto.offset.reset": "earliest"})
        heartbeat = {
            "group_id": GROUP,
            "member_id": "M1",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": ["orders"],
        }
        joined = await client.call("share_group_heartbeat", 1, **heartbeat)
        key = (joined.assignment.topic_partitions[0].topic_id, 0)
        assert "kbroker_share_partition_lag" not in await world.scrape(), "no start offset is decided"
        assert not world.broker.share_partitions.loaded(), "a scrape loads nothing"
        another = client.another(1002)
        member = Member(another, "M1")
        await member.fetch([key], wait_ms=5000)
        assert await world.value("kbroker_share_partition_lag", **place()) == 6
        await member.acknowledge({key: [(0, 2, [ACCEPT]), (3, 3, [REJECT]), (4, 4, [RELEASE])]})
        found = await world.scrape()
        at = tuple(sorted(place().items()))
        assert found["kbroker_share_partition_lag"][at] == 2 == await lag_as_described(client)
        assert found["kbroker_share_partition_start_offset"][at] == 4
        assert 3000 <= found["kbroker_share_partition_oldest_unprocessed_seconds"][at] < 4000
        assert found["kbroker_share_partition_in_flight"][at] == 2
        assert found["kbroker_share_partition_records"][*at[:2], ("state", "available"), at[2]] == 1
        assert found["kbroker_share_partition_archived_total"][("cause", "rejected"), *at] == 1
        counted = found["kbroker_share_group_acknowledged_records_total"]
        assert [
            counted[("group", GROUP), ("type", kind)]
            for kind in ("gap", "accept", "release", "reject", "renew")
        ] == [0, 3, 1, 1, 0]
        another.disconnect()
        await queues.until(lambda: not world.broker.share_partitions.loaded())
        found = await world.scrape()
        assert found["kbroker_share_partition_lag"][at] == 2 == await lag_as_described(client)
        assert "kbroker_share_partition_in_flight" not in found
        assert found["kbroker_share_partition_deliveries_total"][at] == 6
        await Member(client, "M2").fetch([key], wait_ms=5000)
        found = await world.scrape()
        assert found["kbroker_share_partition_deliveries_total"][at] == 8
        assert found["kbroker_share_partition_redeliveries_total"][at] == 2
        assert found["kbroker_share_group_load_seconds"][("group", GROUP),] == 2


async def test_what_leaves_the_memory_during_a_scrape_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, FAST) as world:
        topic_id, _ = await prepare(world.client, 3, partitions=2)
        await world.client.append("orders", 1, partition=1)
        heartbeat = {
            "group_id": GROUP,
            "member_id": "M0",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": ["orders"],
        }
        await world.client.call("share_group_heartbeat", 1, **heartbeat)
        another = world.client.another(1002)
        for partition in range(2):
            await Member(another, f"M{partition}").fetch([(topic_id, partition)], wait_ms=5000)
        before = await world.scrape()

        add_loaded = share_numbers._Turn._add_loaded

        async def add_and_leave(self: share_numbers._Turn, *arguments: Any) -> None:
            await add_loaded(self, *arguments)
            another.disconnect()
            await queues.until(lambda: not world.broker.share_partitions.loaded())

        monkeypatch.setattr(share_numbers._Turn, "_add_loaded", add_and_leave)
        name = "kbroker_share_partition_deliveries_total"
        assert (await world.scrape())[name] == before[name]
        assert sorted(before[name].values()) == [1, 3]


async def test_what_is_done_has_no_age_and_what_is_deleted_no_samples(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        key = await prepare(world.client, 3)
        member = Member(world.client, "M1")
        await member.fetch([key], wait_ms=5000)
        assert await world.value("kbroker_share_partition_oldest_unprocessed_seconds", **place()) > 0
        await member.acknowledge({key: [(0, 2, [ACCEPT])]})
        found = await world.scrape()
        assert list(found["kbroker_share_partition_oldest_unprocessed_seconds"].values()) == [0]
        await world.client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
        found = await world.scrape()
        assert not any(("topic", "orders") in labels for samples in found.values() for labels in samples)
        assert world.broker.share_partitions.metrics[GROUP].unloaded == {}


async def test_lag_of_many_share_partitions_of_which_few_are_in_memory(tmp_path: Path) -> None:
    partitions = 3 * share_numbers.SUMMARIES_AT_ONCE + 7
    async with opened(tmp_path) as world:
        topic = await world.client.create_topic("orders", partitions)
        await set_up_group(world.client, {"share.auto.offset.reset": "earliest"})
        for index in range(partitions):
            await world.client.append("orders", *[1] * (index % 5), 1, partition=index)
        start = {
            "group_id": GROUP,
            "member_epoch": 0,
            "member_id": "M",
            "rack_id": None,
            "subscribed_topic_names": ["orders"],
        }
        await world.client.call("share_group_heartbeat", 1, **start)
        rows = [{"partition": index, "state_epoch": 100, "start_offset": 0} for index in range(partitions)]
        topics = [{"topic_id": topic.topic_id, "partitions": rows}]
        await world.client.call("initialize_share_group_state", 0, group_id=GROUP, topics=topics)
        await Member(world.client, "M").fetch(
            [(topic.topic_id, 1), (topic.topic_id, partitions - 1)], wait_ms=5000
        )
        lags = (await world.scrape())["kbroker_share_partition_lag"]
        assert lags == {
            tuple(sorted(place(partition=index).items())): index % 5 + 1 for index in range(partitions)
        }
        assert len(world.broker.share_partitions.loaded()) == 2


async def test_what_is_not_answered_in_time_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_numbers, "PATIENCE_S", 0)
    async with opened(tmp_path) as world:
        key = await prepare(world.client, 3)
        await Member(world.client, "M1").fetch([key], wait_ms=5000)
        with monkeypatch.context() as cold:
            cold.setattr(world.client.partition("orders"), "read", never)
            found = await world.scrape()
        assert total(found, "kbroker_share_partition_lag") == 3
        assert "kbroker_share_partition_oldest_unprocessed_seconds" not in found
        assert total(found, "kbroker_scrape_unanswered_share_partitions") == 1
        assert await world.value("kbroker_share_partition_oldest_unprocessed_seconds", **place()) > 0


async def test_scrapes_that_nobody_stays_for_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the time of another oldest record, and is cancelled in its last step."""
    run = share_numbers._Turn.run

    async def run_and_fail(self: share_numbers._Turn) -> None:
        await run(self)
        raise ConnectionError

    monkeypatch.setattr(share_numbers, "_KEPT", 3)
    monkeypatch.setattr(share_numbers._Turn, "run", run_and_fail)
    kept = []
    async with opened(tmp_path) as world:
        key = await prepare(world.client, *[1] * 9)
        member = Member(world.client, "M1")
        await member.fetch([key], wait_ms=5000)
        for offset in range(8):
            with pytest.raises(ConnectionError):
                await world.scrape()
            kept.append(len(world.export._share_partitions._timestamps))
            await member.acknowledge({key: [(offset, offset, [ACCEPT])]})
    assert kept == [1, 2, 3, 1, 2, 3, 1, 2]


# -- output
# --------------------------------------------------------------------------------------------------


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 5.0))
    for value in (0, 1, 1.5, 5, 6, 100):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 2], 113.5)
    scrape = Scrape(ScrapeTurns())
    scrape.add_histogram("kbroker_commit_seconds", histogram, {"store": "log"})
    (family,) = [each for each, _ in scrape.pieces() if each.samples]
    buckets = {
        sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")
    }
    assert buckets == {"1.0": 2, "5.0": 4, "+Inf": 6}


def test_acknowledged_records_by_type() -> None:
    counted = ShareGroupMetrics()
    counted.count_acknowledged(
        [(0, 9, [ACCEPT]), (10, 13, [REJECT, ACCEPT, GAP, RENEW]), (14, 14, [RELEASE])]
    )
    assert counted.acknowledged == [1, 11, 1, 1, 1]


@pytest.mark.parametrize(
    "accept", ["", "text/plain;version=1.0.0", "application/openmetrics-text; version=1.0.0", "*/*"]
)
async def test_many_samples_are_one_text_in_small_pieces(
    tmp_path: Path, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HELP and TYPE once for each metric, and an end marker only at the end, as the library's own
    parsers require."""
    monkeypatch.setattr(scrape_module, "SAMPLES_AT_ONCE", 10)
    async with opened(tmp_path) as world:
        await world.client.create_topic("orders", 45)
        given = await world.export.scrape(accept)
        pieces = [piece async for piece in given.pieces]
        text = b"".join(pieces).decode()
        is_open = given.content_type.startswith("application/openmetrics-text")
        assert is_open == ("openmetrics" in accept)
        families = {
            each.name: each
            for each in (parse_openmetrics if is_open else text_string_to_metric_families)(text)
        }
        assert len(families["kbroker_log_end_offset"].samples) == 45
        assert text.count("# TYPE kbroker_log_end_offset gauge") == 1
        assert text.count("# EOF") == is_open
        assert len(pieces) > len(families)
        assert max(map(len, pieces)) < 2000


async def test_a_scrape_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """Other tasks run repeatedly while one scrape of 4 000 samples is collected and written."""
    async with opened(tmp_path) as world:
        await world.client.create_topic("orders", 2000)
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await scrape_text(world.export)
            nursery.cancel_scope.cancel()
        assert turns > 10


def test_scrapes_at_the_same_time_take_turns() -> None:
    """However many there are, they use half of the time; one that does not arrive costs the others
    nothing."""
    turns, moment = ScrapeTurns(), scrape_module._MOMENT_S
    assert [turns.take(10.0) for _ in range(3)] == pytest.approx([10 + n * moment for n in (1, 3, 5)])
    assert turns.take(10 + 2 * moment) == pytest.approx(10 + 7 * moment)
    assert turns.take(20.0) == pytest.approx(20 + moment)


async def test_labels_may_hold_anything(tmp_path: Path) -> None:
    group = 'a"b\\c\nd'
    async with opened(tmp_path) as world:
        topic = await world.client.create_topic("orders")
        await initialize(world.client, topic.topic_id, 1, group)
        await set_up_group(world.client, {"share.auto.offset.reset": "earliest"}, group)
        await world.client.append("orders", 1)
        await Member(world.client, "M", group).fetch([(topic.topic_id, 0)], wait_ms=5000)
        assert await world.value("kbroker_share_partition_lag", **place(group)) == 1


def test_buckets_are_in_order() -> None:
    assert list(SECONDS) == sorted(SECONDS)
    assert parse('# TYPE a histogram\na_bucket{le="1"} 1\na_count 1\na_sum 3\n') == {
        "a": {(): 1},
        "a_sum": {(): 3},
    }
