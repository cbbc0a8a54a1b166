"""Random lives of share-partitions that park records; see parked_world.py."""

from __future__ import annotations

from random import Random

import pytest

from tests.share.parked_world import World

COMMANDS = {
    World.append: 3,
    World.scan: 5,
    World.scan_ahead: 2,
    World.step_clock: 1,
    World.configure: 1,
    World.fetch: 6,
    World.fetch_parked: 4,
    World.respond: 1,
    World.plan: 3,
    World.acknowledge: 8,
    World.release: 1,
    World.wait: 6,
    World.read: 4,
    World.settle: 8,
    World.settle_in_any_order: 3,
    World.bury: 2,
    World.give_up: 1,
    World.trim: 1,
    World.sweep: 2,
    World.purge: 1,
    World.retain: 2,
    World.leave: 3,
    World.keep: 2,
    World.crash: 1,
    World.power_cut: 0.5,
    World.unload: 1,
}


def run(seed: int, steps: int) -> World:
    rnd = Random(seed)
    world = World(rnd)
    commands = rnd.choices(list(COMMANDS), list(COMMANDS.values()), k=steps)
    for command in commands:
        command(world)
        world.check()
    world.drain()
    return world


@pytest.mark.parametrize("block", range(4))
def test_random_lives(block: int) -> None:
    parked = delivered = moved = kept = 0
    for seed in range(block * 100, block * 100 + 100):
        world = run(seed, 200)
        parked += world.parked_ever
        delivered += world.parked_delivered
        moved += world.moved_ever
        kept += world.kept_delivered
    assert parked > 1000
    assert delivered > 500
    assert moved > 300
    assert kept > 50


@pytest.mark.full
def test_a_million_commands() -> None:
    for seed in range(10_000, 12_000):
        run(seed, 500)
