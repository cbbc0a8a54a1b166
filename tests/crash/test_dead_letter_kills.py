"""kill -9 before every system call of the dead letter flow, on every engine and with both
persisters: each poison record is in the queue exactly once, with the reason of its rejection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.dead_letter_rounds import POISON, SMALL_DISK_BYTES, Rounds, rounds_on
from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.small_disk import small_disk

ROUNDS = 80
FEWEST_CALLS = 18
PERSISTERS = pytest.mark.parametrize("persister", ["default", "control-records"])


def run(rounds: Rounds, points: list[tuple[int, int | None]], progress: Progress) -> None:
    progress.begin(f"dead letters, {rounds.engine}", "round", len(points))
    for first, second in points:
        before = rounds.kills.total()
        rounds.run(first, second)
        progress.step(kills=rounds.kills.total() - before)
    assert rounds.kills["flow"] >= len(points) * 0.9, "the flow has fewer calls than were counted"
    rounds.judge()
    progress.count(
        dead_letters=len(POISON) * len(rounds.rounds),
        **{f"kills_in_the_{where}": count for where, count in rounds.kills.items()},
    )


@PERSISTERS
@pytest.mark.parametrize("engine", ENGINES)
def test_poison_is_in_the_queue_once(engine: str, persister: str, tmp_path: Path, progress: Progress) -> None:
    """DLQ-32, DLQ-14, DLQ-20"""
    number = ENGINES.index(engine)
    points = [(4 + 7 * number, None), (28 - 5 * number, 20 + 9 * number)]
    with rounds_on(tmp_path, engine, seed=1, persister=persister) as rounds:
        run(rounds, points, progress)


@pytest.mark.parametrize("points", [(1, 4), pytest.param(range(2, 8), marks=pytest.mark.full)])
@pytest.mark.parametrize("engine", ENGINES)
def test_letters_that_a_full_disk_has_refused(
    engine: str, points: Sequence[int], tmp_path: Path, progress: Progress
) -> None:
    """kill -9 while they wait, with their cursor saved, and again while they are appended."""
    progress.begin(f"refused dead letters, {engine}", "round", len(points))
    with (
        small_disk(tmp_path / "disk", SMALL_DISK_BYTES) as disk,
        rounds_on(disk, engine, seed=3) as rounds,
    ):
        for first in points:
            rounds.run_refused(disk, first)
            progress.step()
        rounds.judge()
        assert rounds.kills == {"refused": len(points), "flow": len(points)}


@pytest.mark.full
@PERSISTERS
@pytest.mark.parametrize("engine", ENGINES)
def test_poison_is_in_the_queue_once_over_many_rounds(
    engine: str, persister: str, tmp_path: Path, progress: Progress
) -> None:
    """Before every call. Every other time a second kill follows: during the start, or while the
    broker makes up for the first."""
    with rounds_on(tmp_path, engine, seed=2, persister=persister) as rounds:
        calls = min(rounds.calls_of_one() for _ in range(2))
        assert FEWEST_CALLS <= calls <= ROUNDS
        start = rounds.calls_of_start()

        def second(number: int) -> int | None:
            if number % 2 == 0:
                return None
            return (
                rounds.chooser.randrange(1, start)
                if number % 4 == 1
                else start + rounds.chooser.randrange(calls)
            )

        run(rounds, [(1 + number % calls, second(number)) for number in range(ROUNDS)], progress)
