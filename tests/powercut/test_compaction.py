"""Compacted topics under replayed power cuts, judged by the history checker, with both
durabilities.

`make powercut` makes the long runs. A failure leaves the states of the disk, and the histories, in
pytest's temporary directory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.tally import Progress
from tests.crash.test_crash import ENGINES
from tests.judges.compaction_events import PassNoted, Stage
from tests.judges.history_events import LifeEnded, to_json
from tests.powercut.broker_cuts import run
from tests.powercut.compaction_cuts import COMPACTION, NEW_DATA, UNSYNCED, CompactionSetup, stretches
from tests.powercut.recording import Entry, Op

STEPS = {"(": Stage.BEGAN, "[": Stage.REPLACING, "]": Stage.REPLACED, ")": Stage.ENDED}


def test_cuts_come_in_passes_and_in_replacements() -> None:
    """`.` is a write of the broker, `r` a rename of new contents, `s` a sync of all files, `!` the
    end of its life."""
    entries = []
    calls = {".": Op.WRITE, "r": Op.RENAME, "s": Op.ALLSYNC_BEGIN}
    for step in "..(..[..r.].[s.)..(.[.!..(.)":
        event = PassNoted(0, STEPS[step], "table-0") if step in STEPS else LifeEnded(0, 1)
        data = b"" if step in calls else to_json(event).encode()
        path = "log/0" + NEW_DATA if step == "r" else ""
        entries.append(Entry(calls.get(step, Op.MARK), 0, 0, 0, 0, 0, path, "", data))
    passes, replacements, renamed = stretches(entries)
    assert passes == [range(3, 16), range(19, 23), range(26, 28)]
    assert replacements == [
        range(6, 11), range(8, 11), range(13, 16), range(14, 16), range(21, 23), range(22, 23)
    ]  # fmt: skip
    assert renamed == [range(9, 14)]


def test_the_latest_values_are_there_after_a_cut(home: Path, progress: Progress) -> None:
    setup = CompactionSetup("segment", "segment")
    wrong = run(setup, home, count=4, seed=1, load_s=3, scene=COMPACTION, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("engine", ENGINES)
def test_the_latest_values_are_there_after_many_cuts(
    engine: str, seed: int, home: Path, progress: Progress
) -> None:
    setup = CompactionSetup(engine, engine)
    wrong = run(setup, home, count=50, seed=seed, load_s=8, kills=2, scene=COMPACTION, progress=progress)
    assert not wrong, "\n".join(wrong)
    assert progress.counted("cuts_in_passes") >= 20
    assert progress.counted("cuts_in_replacements") >= 8


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_no_pass_takes_the_only_value_without_syncs(engine: str, home: Path, progress: Progress) -> None:
    setup = CompactionSetup(engine, engine, durability="os")
    wrong = run(setup, home, count=40, seed=3, load_s=8, kills=2, scene=UNSYNCED, progress=progress)
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
def test_new_contents_without_a_sync_are_caught(home: Path) -> None:
    setup = CompactionSetup("segment", "lmdb", fault="syncs-nothing")
    wrong = run(setup, home, count=40, seed=1, load_s=4, scene=COMPACTION)
    assert any("lost" in each or "resurrected" in each for each in wrong), "\n".join(wrong)
