"""What the requests of one client use, and the times that it waits: over half a minute from idle, a
client that sends as fast as it may stays near its limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.security.metering import Meter, Metering
from kbroker.security.quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaTable,
    entity_of,
)
from kbroker.security.rates import Windows

MB = 1_000_000
KAFKAS = Windows(11, 1000)
_ROUND_TRIP_MS = 0.5


def meter(windows: Windows = KAFKAS, **limits: float) -> Meter:
    table = QuotaTable()
    table.put(entity_of({"user": "alice"}), limits)
    return Meter(table, windows)


def request(found: Meter, user: str = "alice", client_id: str = "app") -> Metering:
    return Metering(found, user, client_id)


def produce(each: Metering, size: int, now_ms: float) -> int:
    each.produced(size, now_ms)
    return size


def fetch(each: Metering, size: int, now_ms: float) -> int:
    """A batch has `size` bytes, and at least one is fetched."""
    room = each.room_bytes(now_ms)
    taken = 0 if not room else max(size, min(room, 50 * MB) // size * size)
    if taken:
        each.fetched(taken, now_ms)
    return taken


@pytest.mark.parametrize("use", [produce, fetch])
@pytest.mark.parametrize("size", [1_000, 16_384, 100_000])
@pytest.mark.parametrize("begins_ms", [0, 123_456])
def test_a_client_stays_within_15_percent_over_30_seconds(
    use: Callable[[Metering, int, float], int], size: int, begins_ms: int
) -> None:
    assert 0.85 * 30 * MB <= total_of(use, size, 30_000, begins_ms) <= 1.15 * 30 * MB


@pytest.mark.parametrize("use", [produce, fetch])
@pytest.mark.parametrize("size", [1_000, 16_384, 100_000, MB])
def test_a_client_has_its_limit_in_the_long_run(
    use: Callable[[Metering, int, float], int], size: int
) -> None:
    """Whatever the size of its requests is. With requests of a megabyte it is a quarter above it in
    the first half of a minute, as in Kafka."""
    assert 0.9 * 600 * MB <= total_of(use, size, 600_000) <= 1.12 * 600 * MB


def total_of(use: Callable[[Metering, int, float], int], size: int, lasts_ms: int, begins_ms: int = 0) -> int:
    found = meter(producer_byte_rate=MB, consumer_byte_rate=MB)
    now_ms, total = float(begins_ms), 0
    while now_ms < begins_ms + lasts_ms:
        each = request(found)
        total += use(each, size, now_ms)
        now_ms += _ROUND_TRIP_MS + each.longest_wait[1]
    return total


def test_the_longest_wait_holds() -> None:
    found = meter(producer_byte_rate=1000, request_percentage=1)
    each = request(found)
    each.produced(15_000, 0)
    each.busy_s = 10.0
    each.worked(0)
    assert each.waits_ms == {PRODUCER_BYTE_RATE: 5000, REQUEST_PERCENTAGE: 1000}
    assert each.longest_wait == (PRODUCER_BYTE_RATE, 5000)
    assert each.busy_s == 0.0


def test_a_client_without_quotas_never_waits() -> None:
    each = request(meter(producer_byte_rate=1), user="bob")
    each.produced(10**9, 0)
    each.busy_s = 100
    each.worked(0)
    each.fetched(10**9, 0)
    assert each.room_bytes(0) == (1 << 31) - 1
    assert each.longest_wait == ("", 0)


def test_work_for_an_answer_counts_for_the_next_request() -> None:
    found = meter(request_percentage=10)
    each = request(found)
    each.busy_s = 2.0
    each.worked_after(0)
    assert each.longest_wait == ("", 0)
    after = request(found)
    after.worked(0)
    assert after.longest_wait == (REQUEST_PERCENTAGE, 1000)


def test_a_fetch_gets_the_room_that_is_left() -> None:
    found = meter(consumer_byte_rate=1000)
    first = request(found)
    assert first.room_bytes(0) == 10_000
    first.fetched(9_000, 0)
    assert first.longest_wait == ("", 0)
    assert request(found).room_bytes(0) == 1_000
    request(found).fetched(3_000, 0)
    refused = request(found)
    assert refused.room_bytes(0) == 0
    assert refused.longest_wait == (CONSUMER_BYTE_RATE, 2_000)
