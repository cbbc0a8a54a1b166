"""Counting control offsets after a start offset: compared with a set, with more runs than are
kept."""

from __future__ import annotations

import random

import pytest

from kbroker_control_records import offsets as control_offsets
from kbroker_control_records.offsets import ControlOffsets


@pytest.mark.parametrize("seed", range(30))
def test_the_count_is_that_of_a_set(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_offsets, "MOST_RUNS", 32)
    rng = random.Random(seed)
    earlier = sorted(rng.sample(range(100), 20))
    offsets, real, end = ControlOffsets(100), set(earlier), 100
    for step in range(200):
        end += rng.choice((0, 0, 1, 3))
        size = rng.choice((1, 1, 2, 5))
        offsets.append(end, end + size - 1)
        real.update(range(end, end + size))
        end += size
        if step == 5:
            offsets.learn(0, [(offset, offset) for offset in earlier])
        start = max(rng.randrange(end + 5), offsets.known_from)
        assert offsets.count(start) == sum(offset >= start for offset in real)
        assert len(offsets) <= 33


def test_runs_that_touch_are_one() -> None:
    offsets = ControlOffsets(0)
    for number in range(1000):
        offsets.append(number, number)
    assert (len(offsets), offsets.count(0), offsets.count(990), offsets.count(2000)) == (1, 1000, 10, 0)
