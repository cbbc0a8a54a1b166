"""Random lives of share-partitions that keep the order of keys; see key_order_world.py."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.share import key_order
from tests.share.key_order_world import OrderedWorld
from tests.share.test_parking_model import COMMANDS as PARKING_COMMANDS

COMMANDS = {**PARKING_COMMANDS, OrderedWorld.ask: 3}


@pytest.fixture(autouse=True)
def _forgets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory drops the key of a parked record that no other waits for."""
    monkeypatch.setattr(key_order, "_FORGET_FROM", 1)


def run(seed: int, steps: int) -> OrderedWorld:
    rnd = Random(seed)
    world = OrderedWorld(rnd)
    commands = rnd.choices([each.__name__ for each in COMMANDS], list(COMMANDS.values()), k=steps)
    for command in commands:
        getattr(world, command)()
        world.check()
    world.drain()
    return world


@pytest.mark.parametrize("block", range(3))
def test_random_lives(block: int) -> None:
    behind = stops = lookups = 0
    for seed in range(block * 100, block * 100 + 100):
        world = run(seed, 200)
        behind += world.behind_most
        stops += world.stops
        lookups += world.lookups
    assert behind > 100
    assert stops > 10
    assert lookups > 100


@pytest.mark.full
def test_a_million_commands() -> None:
    for seed in range(10_000, 12_000):
        run(seed, 500)
