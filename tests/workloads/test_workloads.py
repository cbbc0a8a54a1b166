"""Each workload against a real broker, with windows too short for meaningful figures: tests assert
what is counted, never how fast."""

from __future__ import annotations

from collections import Counter

import pytest

from kbroker.client import admin
from kbroker.client.topic_logs import bounds, read_batches
from kbroker.formats.compression import Codec, compress
from kbroker.testing.broker import RunningBroker
from perf.workloads.fetch import fetch
from perf.workloads.fill import fill, fill_small, record_count
from perf.workloads.latency import latency
from perf.workloads.payload import values
from perf.workloads.produce import produce
from perf.workloads.share import Mix, Mode, share_consume
from perf.workloads.window import Plan, WorkloadFailed

SHORT = Plan(seconds=1, warm_up_s=0)


def batch_sizes(broker: RunningBroker, topic: str, partition: int) -> Counter[int]:
    """How many batches have how many records."""
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])
        _, end = bounds(connection, found)[partition]
        return Counter(len(records) for _, records, _ in read_batches(connection, found, partition, 0, end))


@pytest.mark.parametrize("record_bytes", [1, 7, 100, 1000, 50_000])
def test_values_have_their_size_and_are_not_alike(record_bytes: int) -> None:
    found = values(record_bytes)
    assert {len(value) for value in found} == {record_bytes}
    assert len(set(found)) > len(found) / 2 or record_bytes == 1
    assert found == values(record_bytes)


def test_values_compress_to_about_a_third() -> None:
    plain = b"".join(values(1000)[:500])
    assert 0.3 < len(compress(Codec.LZ4, plain)) / len(plain) < 0.4


def test_a_topic_is_filled_evenly(broker: RunningBroker, topic: str) -> None:
    told: list[int] = []
    fill(broker.bootstrap, topic, 2_501, 50, batch_records=100, partitions=2, progress=told.append)
    sizes = [batch_sizes(broker, topic, partition) for partition in (0, 1)]
    assert sorted(sum(size * count for size, count in each.items()) for each in sizes) in (
        [1000, 1501],
        [1250, 1251],
    )
    assert max(max(each) for each in sizes) <= 100
    assert told[-1] == 2_501
    assert record_count(broker.bootstrap, topic) == 2_501


def test_small_batches_are_of_one_to_three_records_in_equal_numbers(
    broker: RunningBroker, topic: str
) -> None:
    fill_small(broker.bootstrap, topic, 600, 10)
    found = batch_sizes(broker, topic, 0)
    assert sum(size * count for size, count in found.items()) == 600, found
    assert set(found) == {1, 2, 3}, found
    # some batches are sent before they are full
    assert all(count == pytest.approx(100, abs=10) for count in found.values()), found


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_produce_counts_what_the_broker_has(broker: RunningBroker, topic: str, compression: str) -> None:
    outcome = produce(
        SHORT, broker.bootstrap, topic, record_bytes=200, compression=compression, producers=2, linger_ms=1
    )
    assert 0 < outcome.records <= record_count(broker.bootstrap, topic)
    assert outcome.bytes == 200 * outcome.records
    assert outcome.first_record_ms is not None


def test_fetch_begins_again_at_the_end(broker: RunningBroker, topic: str) -> None:
    fill(broker.bootstrap, topic, 100, 30, partitions=2)
    outcome = fetch(SHORT, broker.bootstrap, topic, consumers=3)  # more consumers than partitions
    assert outcome.records > 0
    assert outcome.bytes == 30 * outcome.records
    assert outcome.requests > 0


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_share_consumers_work_until_little_is_left(
    broker: RunningBroker, topic: str, group: str, mode: Mode
) -> None:
    fill(broker.bootstrap, topic, 4_000, 20, batch_records=10, partitions=2)
    plan = Plan(seconds=60, warm_up_s=0)
    outcome = share_consume(
        plan, broker.bootstrap, topic, group, consumers=2, mode=mode, max_poll_records=10, most=4_000
    )
    assert 0 < outcome.records < 4_000
    assert outcome.bytes == 20 * outcome.records
    assert 0 < outcome.requests <= outcome.records
    assert "released" not in outcome.details


def test_verdicts_are_mixed_as_wanted(broker: RunningBroker, topic: str, group: str) -> None:
    fill(broker.bootstrap, topic, 4_000, 20, batch_records=10, partitions=2)
    plan, mix = Plan(seconds=60, warm_up_s=0), Mix(release=0.2, reject=0.05)
    outcome = share_consume(
        plan, broker.bootstrap, topic, group, mode="explicit", verdicts=mix, max_poll_records=10, most=4_000
    )
    released = outcome.details["released"]
    assert released / (outcome.records + released) == pytest.approx(0.2, abs=0.01)
    with pytest.raises(ValueError, match="explicit"):
        share_consume(plan, broker.bootstrap, topic, group, verdicts=mix)


def test_each_commit_is_timed(broker: RunningBroker, topic: str, group: str) -> None:
    fill(broker.bootstrap, topic, 1_000, 20, batch_records=1)
    plan = Plan(seconds=60, warm_up_s=0)
    outcome = share_consume(
        plan, broker.bootstrap, topic, group, mode="explicit", max_poll_records=1, sync=True, most=1_000
    )
    assert outcome.latencies_ms is not None
    # a poll and its commit may be in two slots
    assert abs(outcome.latencies_ms.count - outcome.requests) <= 2
    assert 0 < outcome.latencies_ms.p50 <= outcome.latencies_ms.p999 <= outcome.latencies_ms.max


def test_simulated_work_bounds_the_rate(broker: RunningBroker, topic: str, group: str) -> None:
    fill(broker.bootstrap, topic, 1_000, 20, batch_records=5, partitions=2)
    outcome = share_consume(
        SHORT, broker.bootstrap, topic, group, consumers=2, max_poll_records=5, think_s=0.01
    )
    assert 0 < outcome.records <= 2 * (outcome.seconds / 0.01 + 1)


@pytest.mark.parametrize("via", ["consumer", "share"])
def test_every_record_that_was_due_is_in_the_latencies(broker: RunningBroker, topic: str, via: str) -> None:
    plan = Plan(seconds=0.5, warm_up_s=0.1)
    outcome = latency(
        plan, broker.bootstrap, topic, rate_per_s=200, via="share" if via == "share" else "consumer"
    )
    assert outcome.records == pytest.approx(200 * outcome.seconds, abs=1)
    assert outcome.details == {"missing": 0}
    assert outcome.latencies_ms is not None
    assert outcome.latencies_ms.count == outcome.records
    assert 0 < outcome.latencies_ms.p50 <= outcome.latencies_ms.max


def test_a_topic_that_is_not_there(broker: RunningBroker) -> None:
    with pytest.raises(WorkloadFailed, match="no-such-topic"):
        fetch(SHORT, broker.bootstrap, "no-such-topic")
    with pytest.raises(WorkloadFailed, match="no-such-topic"):
        latency(SHORT, broker.bootstrap, "no-such-topic", rate_per_s=1)
