"""Streams over random lives: whatever is written, added, limited and crashed in between, every
record is delivered once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spark.tests.stored_topics import StoredTopics, stored_topics
from spark.tests.stream_steps import Checkpoint, Run

OPTIONS: tuple[dict[str, object], ...] = (
    {},
    {"maxOffsetsPerTrigger": 3},
    {"minOffsetsPerTrigger": 4, "maxOffsetsPerTrigger": 9},
    {"minPartitions": 4, "maxRecordsPerPartition": 2},
)


class World:
    """`wanted`: first and end offset of what the stream must have read at the end, by topic and
    partition."""

    def __init__(self, stored: StoredTopics, chance: random.Random, starting: str) -> None:
        self._stored, self._chance, self._starting = stored, chance, starting
        self._partitions = {"t0": 1}
        self.wanted = {("t0", 0): [0, 0]}
        self.checkpoint = Checkpoint()

    def change(self) -> None:
        """Usually adds records; sometimes a partition or a topic."""
        kind = self._chance.random()
        if kind < 0.05:
            name = f"t{len(self._partitions)}"
            self._stored.create(name)
            self._partitions[name] = 1
            self.wanted[name, 0] = [0, 0]
        elif kind < 0.1:
            name = self._chance.choice(sorted(self._partitions))
            self.wanted[name, self._partitions[name]] = [0, 0]
            self._partitions[name] += 1
            self._stored.create(name, self._partitions[name])
        else:
            topic, partition = self._chance.choice(sorted(self.wanted))
            count = self._chance.randrange(1, 8)
            self._stored.append(topic, count, partition)
            self.wanted[topic, partition][1] += count

    def life(self) -> None:
        """A run that ends somewhere, usually by a crash."""
        run = Run(
            self.checkpoint,
            self._stored.path,
            available_now=self._chance.random() < 0.3,
            subscribePattern="t.*",
            startingOffsets=self._starting,
            **self._chance.choice(OPTIONS),
        )
        if not self.checkpoint.offsets:
            # Spark calls it when it plans the query, and records may arrive before the first batch.
            run.reader.initialOffset()
        for _ in range(self._chance.randrange(6)):
            for _ in range(self._chance.randrange(4)):
                self.change()
            run.clock.seconds += self._chance.choice((0, 1000))
            if run.batch(crash=self._chance.random() < 0.4) and self._crashed():
                return

    def _crashed(self) -> bool:
        return self.checkpoint.committed < len(self.checkpoint.offsets)

    def end(self) -> None:
        Run(
            self.checkpoint,
            self._stored.path,
            available_now=True,
            subscribePattern="t.*",
            startingOffsets=self._starting,
        ).all_batches()


def run(path: Path, seed: int, starting: str) -> World:
    chance = random.Random(seed)
    with stored_topics(path, {"t0": 1}) as stored:
        world = World(stored, chance, starting)
        for _ in range(8):
            world.life()
            world.change()
        world.end()
    return world


@pytest.mark.parametrize("seed", range(6))
def test_every_record_once(tmp_path: Path, seed: int) -> None:
    world = run(tmp_path / "data", seed, "earliest")
    found = {place: world.checkpoint.seen(*place) for place in world.wanted}
    assert found == {place: [*range(first, end)] for place, (first, end) in world.wanted.items()}


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 400))
def test_every_record_once_over_many_lives(tmp_path: Path, seed: int) -> None:
    test_every_record_once(tmp_path, seed)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_behind_the_latest_is_lost(tmp_path: Path, seed: int) -> None:
    """Records that arrive before the first batch is recorded may be skipped; from then on there are
    no gaps."""
    world = run(tmp_path / "data", seed, "latest")
    first = world.checkpoint.pinned
    found = {place: world.checkpoint.seen(*place) for place in world.wanted}
    assert found == {place: [*range(first.get(place, 0), end)] for place, (_, end) in world.wanted.items()}
