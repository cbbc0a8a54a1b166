"""Rates over windows, and the time that a client waits: against a literal model of Kafka's
SampledStat and Rate, and by its formula."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.rates import Rate, Rates, Windows, throttle_ms

KAFKAS = Windows(11, 1000)


@dataclass
class _Sample:
    start_ms: float
    last_ms: float
    value: float = 0.0

    def reset(self, now_ms: float) -> None:
        self.start_ms, self.last_ms, self.value = now_ms, now_ms, 0.0


class SampledStat:
    """A ring of samples that are reset in place, as in org.apache.kafka.common.metrics.stats."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.samples: list[_Sample] = []
        self.current = 0

    def record(self, value: float, now_ms: float) -> None:
        if not self.samples:
            self.samples.append(_Sample(now_ms, now_ms))
        sample = self.samples[self.current]
        if now_ms - sample.start_ms >= self.windows.window_ms:
            self.current = (self.current + 1) % (self.windows.samples + 1)
            if self.current >= len(self.samples):
                self.samples.append(_Sample(now_ms, now_ms))
            sample = self.samples[self.current]
            sample.reset(now_ms)
        sample.value += value
        sample.last_ms = now_ms

    def purge(self, now_ms: float) -> None:
        for sample in self.samples:
            if now_ms - sample.last_ms >= self.windows.samples * self.windows.window_ms:
                sample.reset(now_ms)

    def window_ms(self, now_ms: float) -> float:
        self.purge(now_ms)
        elapsed_ms = now_ms - min(sample.start_ms for sample in self.samples)
        full = int(elapsed_ms / self.windows.window_ms)
        least = self.windows.samples - 1
        if full < least:
            elapsed_ms += (least - full) * self.windows.window_ms
        return max(elapsed_ms, 1)

    def per_second(self, now_ms: float) -> float:
        self.purge(now_ms)
        return sum(sample.value for sample in self.samples) / (self.window_ms(now_ms) / 1000)


steps = st.lists(st.tuples(st.integers(0, 15_000), st.integers(0, 10_000)), min_size=1, max_size=60)


@given(steps, st.integers(1, 12), st.sampled_from([100, 1000, 3000]))
def test_rates_are_those_of_kafkas_metrics(
    steps: list[tuple[int, int]], samples: int, window_ms: int
) -> None:
    windows = Windows(samples, window_ms)
    rate, model = Rate(windows), SampledStat(windows)
    now_ms = 0
    for wait_ms, value in steps:
        now_ms += wait_ms
        rate.record(value, now_ms)
        model.record(value, now_ms)
        assert rate.over_ms(now_ms) == model.window_ms(now_ms)
        assert rate.per_second(now_ms) == pytest.approx(model.per_second(now_ms))


@given(steps, st.integers(1, 100_000))
def test_a_client_that_waits_is_within_its_quota_again(steps: list[tuple[int, int]], limit: int) -> None:
    """The time is that after which the rate would be the limit, if no window ended meanwhile."""
    rate = Rate(KAFKAS)
    now_ms = 0
    for wait_ms, value in steps:
        now_ms += wait_ms
        rate.record(value, now_ms)
        observed, over_ms = rate.per_second(now_ms), rate.over_ms(now_ms)
        waited = throttle_ms(rate, limit, now_ms)
        assert (waited > 0) <= (observed > limit)
        if observed > limit:
            assert waited == pytest.approx((observed - limit) / limit * over_ms, abs=0.5)
            assert rate.total(now_ms) / (over_ms + waited) * 1000 <= limit * 1.0001 + 1


def test_ten_seconds_worth_may_be_used_at_once() -> None:
    rate = Rate(KAFKAS)
    rate.record(10_000_000, 0)
    assert throttle_ms(rate, 1_000_000, 0) == 0
    rate.record(1_000_000, 0)
    assert throttle_ms(rate, 1_000_000, 0) == 1000
    assert throttle_ms(rate, 1_000_000, 999) == 1, "the time that has passed counts"


def test_what_is_taken_back_does_not_count() -> None:
    rate = Rate(KAFKAS)
    rate.record(500, 0)
    rate.record(10_000, 10)
    rate.record(-10_000, 10)
    assert rate.total(10) == 500


def test_a_rate_is_forgotten_after_all_windows() -> None:
    rate = Rate(KAFKAS)
    rate.record(500, 0)
    assert not rate.is_idle(10_999)
    assert rate.is_idle(11_000)
    assert rate.per_second(11_000) == 0


def test_rates_of_clients_that_are_gone_take_no_memory() -> None:
    rates: Rates[str] = Rates(KAFKAS)
    for number in range(5000):
        rates.of(f"client {number}", number * 100).record(1, number * 100)
    assert len(rates) < 1200, "those of the last 11 seconds, and some of which nothing is left"
    rates.of("client 4999", 500_000)
    assert rates.of("client 4999", 500_000).total(500_000) == 1


@pytest.mark.parametrize("limit", [1.0, 1e-7, 1e-300, 5e-324])
def test_no_wait_is_longer_than_an_answer_can_name(limit: float) -> None:
    """The largest of Kafka's 32 bits. Quotas may be so small that the time would be infinite."""
    rate = Rate(KAFKAS)
    rate.record(10_000_000, 0)
    assert throttle_ms(rate, limit, 0) == (1 << 31) - 1
