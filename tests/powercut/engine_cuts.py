"""Power cuts for a single engine: record a script, choose moments, build the states that may
remain, and let the judge open them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.tally import Progress, silent
from tests.powercut.disk import Disk, State, save
from tests.powercut.recording import Entry, Op, Recording

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "tests.powercut.engine_process"]


@dataclass(frozen=True, slots=True)
class Work:
    """The recorded work: a script (kind, seed, steps) on an engine."""

    kind: str
    engine: str
    seed: int
    steps: int

    def names_by_fsync(self, path: str) -> bool:
        """See the model in tests/powercut/disk.py."""
        return self.engine.endswith("rocksdb")


def record(work: Work, home: Path) -> list[Entry]:
    """Let a process work under the recorder until it kills itself. The directory is home/data."""
    directory, log = home / "data", home / "record.log"
    directory.mkdir()
    recording = Recording(directory, log)
    return _recorded(
        recording,
        "work",
        work.kind,
        work.engine,
        str(recording.directory),
        str(log),
        str(work.seed),
        str(work.steps),
    )


def _recorded(recording: Recording, *command: str) -> list[Entry]:
    environment = {**os.environ, **recording.environment()}
    done = subprocess.run(
        [*MODULE, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    recording.close()
    assert done.returncode == -signal.SIGKILL, (
        f"the recorded process ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return list(recording.entries())


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut before entry `position` of the log, and the state that it left."""

    position: int
    seed: int
    state: State
    marks: dict[str, object]


def cuts(work: Work, entries: list[Entry], *, count: int, seed: int) -> Iterator[Cut]:
    """`count` cuts at random moments, in the order of the log; half of them around a sync."""
    chooser = random.Random(seed)
    around = [
        place + shift
        for place, entry in enumerate(entries)
        if entry.op.name.endswith("SYNC_END")
        for shift in (0, 1, 2)
    ]
    around = [place for place in around if place <= len(entries)]
    every = range(len(entries) + 1)
    positions = sorted(
        chooser.choice(around) if around and number % 2 else chooser.choice(every) for number in range(count)
    )
    disk, marks, position = Disk(names_by_fsync=work.names_by_fsync), {"begun": 0, "done": 0, "starts": {}}, 0
    for wanted in positions:
        for entry in entries[position:wanted]:
            disk.apply(entry)
            if entry.op is Op.MARK:
                _note(marks, json.loads(entry.data))
        position = wanted
        state_seed = chooser.getrandbits(32)
        yield Cut(position, state_seed, disk.survivor(random.Random(state_seed)), dict(marks))


def cut_again(work: Work, cut: Cut, home: Path) -> Cut:
    """A second power cut, while the store recovers from the first."""
    home.mkdir()
    before = home / "before"
    save(cut.state, before)
    save(cut.state, home / "data")
    recording = Recording(home / "data", home / "record.log")
    entries = _recorded(recording, "recover", work.kind, work.engine, str(recording.directory))
    chooser = random.Random(cut.seed)
    disk = Disk(before, names_by_fsync=work.names_by_fsync)
    for entry in entries[: chooser.randint(0, len(entries))]:
        disk.apply(entry)
    shutil.rmtree(home)
    return Cut(cut.position, cut.seed, disk.survivor(chooser), cut.marks)


def _note(marks: dict[str, object], mark: dict[str, Any]) -> None:
    if "replaced" in mark:
        marks["replaced"] = [*marks.get("replaced", ()), mark.pop("replaced")]  # type: ignore[misc]
    if "start" in mark:
        marks["starts"] = {**marks["starts"], mark.pop("log"): mark.pop("start")}  # type: ignore[dict-item]
    marks.update(mark)


class Judge:
    """The judging process; restarted when a store crashed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def verdict(self, work: Work, cut: Cut, directory: Path) -> str:
        """Empty if all promises are kept, otherwise a description of the failure."""
        save(cut.state, directory)
        if self._process is None:
            self._process = subprocess.Popen(
                [*MODULE, "judge"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "kind": work.kind,
            "engine": work.engine,
            "directory": str(directory),
            "seed": work.seed,
            "steps": work.steps,
        }
        self._process.stdin.write(json.dumps({**request, **cut.marks}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            code = self._process.wait()
            self.close()
            return f"opening the store ended the process with {code}"
        verdict = json.loads(answer)
        if not verdict:
            shutil.rmtree(directory)
        return str(verdict)

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            self._process = None


def run(
    work: Work,
    home: Path,
    judge: Judge,
    *,
    count: int,
    seed: int,
    progress: Progress | None = None,
    until_wrong: bool = False,
) -> list[str]:
    """Record once, cut `count` times, and cut every tenth recovery again; returns the failures,
    each with its cut.

    States that failed are left in `home`. `until_wrong`: stop at the first failure.
    """
    progress = progress or silent()
    progress.begin(f"{work.engine} as {work.kind} store", "cut", count)
    entries, wrong = record(work, home), []
    for number, first_cut in enumerate(cuts(work, entries, count=count, seed=seed)):
        again = number % 10 == 9
        cut = first_cut if not again else cut_again(work, first_cut, home / f"again-{number}")
        verdict = judge.verdict(work, cut, home / f"cut-{number}")
        progress.step(
            cuts_while_recovering=again,
            steps_before_cuts=int(str(cut.marks["done"])),
            violations=bool(verdict),
        )
        if verdict:
            wrong.append(
                f"{work} cut at {cut.position} of {len(entries)}, state seed {cut.seed}, {cut.marks}: "
                f"cut-{number}\n{verdict}"
            )
            if until_wrong:
                break
    return wrong
