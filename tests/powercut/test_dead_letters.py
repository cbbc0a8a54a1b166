"""Power cuts in the dead letter flow: whatever a cut leaves of both stores, each poison record is
in the queue exactly once, with the reason of its rejection."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing.broker import RunningBroker
from tests.crash.dead_letter_rounds import (
    NO_LETTERS_BYTES,
    SMALL_DISK_BYTES,
    Rounds,
    config_for,
    rounds_on,
)
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.powercut.disk import Disk, save
from tests.powercut.recording import Entry, read_log
from tests.small_disk import fill_the_rest, small_disk


def engines(quick: str) -> list[Any]:
    return [
        pytest.param(engine, 3, marks=() if engine in ("segment", quick) else pytest.mark.full)
        for engine in ENGINES
    ]


def record(home: Path, engine: str, persister: str) -> tuple[Rounds, list[Entry], int]:
    """A broker through one round; returns the log of its file operations, and its length before the
    first fetch."""
    with rounds_on(home, engine, seed=0, persister=persister) as rounds:
        round_ = rounds.begin()
        before = len(list(read_log(home / "record.log")))
        rounds.work(round_)
        rounds.wait_for_cursors()
    return rounds, list(read_log(home / "record.log")), before


def judge(recorded: Rounds, home: Path) -> None:
    """Start a broker on the state in `home` and finish the round."""
    broker = RunningBroker(home, storage=recorded.engine, config=config_for(recorded.persister))
    broker.start()
    try:
        round_ = replace(recorded.rounds[0], given=dict(recorded.rounds[0].given))
        rounds = replace(recorded, broker=broker, rounds=[round_])
        rounds.work(round_)
        rounds.judge()
    finally:
        broker.kill9()


@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize(
    ("engine", "count"),
    [*engines("lmdb"), *(pytest.param(each, 60, marks=pytest.mark.full) for each in ENGINES)],
)
def test_poison_is_in_the_queue_once_after_a_power_cut(
    engine: str, count: int, persister: str, home: Path, progress: Progress
) -> None:
    """DLQ-32"""
    progress.begin(f"dead letters, {engine}", "cut", count)
    rounds, entries, before = record(home, engine, persister)
    chooser = random.Random(count)
    positions = sorted(chooser.randint(before, len(entries)) for _ in range(count))
    cut(rounds, entries, positions, home, progress)


@pytest.mark.parametrize(("engine", "count"), engines("lmdb"))
def test_letters_that_a_full_disk_has_refused(
    engine: str, count: int, home: Path, progress: Progress
) -> None:
    """A cut while they wait, with their cursor saved, and others when the disk has room again."""
    progress.begin(f"refused dead letters, {engine}", "cut", count)
    with small_disk(home / "disk", SMALL_DISK_BYTES) as disk:
        with rounds_on(disk, engine, seed=0) as rounds:
            round_ = rounds.begin()
            ballast = fill_the_rest(disk, but_bytes=NO_LETTERS_BYTES)
            rounds.share_until_refused(round_, times=1)
            refused = len(list(read_log(disk / "record.log")))
            ballast.unlink()
            rounds.work(round_)
        entries, chooser = list(read_log(disk / "record.log")), random.Random(count)
    positions = [refused, *sorted(chooser.randint(refused, len(entries)) for _ in range(count - 1))]
    cut(rounds, entries, positions, home, progress)


def cut(rounds: Rounds, entries: list[Entry], positions: list[int], home: Path, progress: Progress) -> None:
    disk, done = Disk(names_by_fsync=lambda path: "rocksdb/" in path), 0
    for number, position in enumerate(positions):
        for entry in entries[done:position]:
            disk.apply(entry)
        done = position
        place = home / f"cut-{number}"
        place.mkdir()
        save(disk.survivor(random.Random(number)), place / "data")
        judge(rounds, place)
        progress.step()
