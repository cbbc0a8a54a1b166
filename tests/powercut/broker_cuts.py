"""Power cuts for a whole broker: record it under load from unmodified clients, cut, start it on what is left, let the checker judge.

The events of all clients are marks in the recorder's own log, so that a cut at any place of the log has its history: what was
answered before the cut is in it, what was not is an unanswered request. After the cut a broker starts on the state, a last
consumer drains the group, another one reads the logs, and kbroker.testing.history judges the whole.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kbroker.client.broker_process import RunningBroker
from kbroker.testing.history import GroupSettings, Report, Statistics, check
from kbroker.testing.history_events import Event, LifeBegan, LifeEnded, Sent, from_json, merge, read_lines
from tests.crash import worker
from tests.crash.harness import BROKER_CONFIG, LAUNCHER, SETTINGS, Torment, broker_of, row_of, tormented
from tests.crash.tally import Progress, silent
from tests.powercut.disk import Disk, State, save
from tests.powercut.recording import Entry, Op, Recording

AT_ONCE = 4
"""Brokers that are judged at the same time: most of a verdict is waiting for the drain to stay quiet."""


@dataclass(frozen=True, slots=True)
class Setup:
    storage: str
    state_storage: str
    persister: str = "default"

    def broker(self, home: Path) -> RunningBroker:
        return broker_of(home, self.storage, self.state_storage, command=LAUNCHER, persister=self.persister)


def record(setup: Setup, home: Path, *, seed: int, load_s: float, kills: int = 1) -> list[Entry]:
    """The log of a broker under load, killed with kill -9 `kills` times meanwhile and once at the end."""
    data, log = home / "data", home / "record.log"
    data.mkdir()
    recording = Recording(data, log)
    config = {**BROKER_CONFIG, "kbroker.persister": setup.persister}
    broker = RunningBroker(
        home, storage=setup.storage, state_storage=setup.state_storage, config=config, command=LAUNCHER, env=recording.environment()
    )
    with tormented(broker, home, seed, one_log=log) as torment:
        for kill in range(kills + 1):
            time.sleep(load_s / (kills + 1))
            _check_clients(torment)
            torment.kill_broker()
            if kill < kills:
                torment.start_broker()
    recording.close()
    return list(recording.entries())


def _check_clients(torment: Torment) -> None:
    for client in torment.clients:
        client.check_alive()


@dataclass(frozen=True, slots=True)
class Cut:
    position: int
    seed: int
    state: State
    history: list[Event]
    """What was known before the cut."""

    @property
    def has_load(self) -> bool:
        """Topic and group were made: before that, a broker only has to start."""
        return any(isinstance(event, Sent) for event in self.history)


def cuts(entries: list[Entry], *, count: int, seed: int) -> Iterator[Cut]:
    """At random moments, in the order of the log; half of them shortly after a mark, when an answer had just arrived."""
    chooser = random.Random(seed)
    marks = [place + 1 for place, entry in enumerate(entries) if entry.op is Op.MARK]
    positions = sorted(chooser.choice(marks) if number % 2 else chooser.randint(1, len(entries)) for number in range(count))
    disk, history, position = Disk(names_by_fsync=lambda path: "rocksdb/" in path), [], 0
    for wanted in positions:
        for entry in entries[position:wanted]:
            disk.apply(entry)
            if entry.op is Op.MARK:
                history.append(from_json(entry.data))
        position = wanted
        state_seed = chooser.getrandbits(32)
        yield Cut(position, state_seed, disk.survivor(random.Random(state_seed)), list(history))


def judge(setup: Setup, cut: Cut, home: Path, settings: GroupSettings = SETTINGS) -> Report | None:
    """Start a broker on the state. None where there was no load yet to judge. Raises what the broker or a client raises."""
    home.mkdir()
    save(cut.state, home / "data")
    broker = setup.broker(home)
    lives = [event for event in cut.history if isinstance(event, LifeBegan | LifeEnded)]
    after: list[Event] = []
    if lives and isinstance(lives[-1], LifeBegan):
        after.append(LifeEnded(time.monotonic_ns(), lives[-1].life))
    after.append(LifeBegan(time.monotonic_ns(), lives[-1].life + 1 if lives else 1))
    broker.start()
    try:
        if not cut.has_load:
            return None
        path = home / "after.jsonl"
        history = worker.History(path)
        try:
            worker.read("reader", broker.bootstrap, history, 0)
            for turn, longest_session_s in enumerate((worker.LONGEST_SESSION_S, worker.MUCH_LONGER_S)):
                worker.drain(f"last{turn}", broker.bootstrap, history, 0, longest_session_s=longest_session_s)
                report = check(merge([cut.history, after, read_lines(path.read_bytes().splitlines(keepends=True))]), settings)
                if "unfinished" not in {violation.rule for violation in report.violations}:
                    break
        finally:
            history.close()
    finally:
        broker.kill9()
    return report


def run(
    setup: Setup, home: Path, *, count: int, seed: int, load_s: float, kills: int = 1, progress: Progress | None = None
) -> list[str]:
    """Record once, cut `count` times; returns what went wrong. The states that went wrong stay in `home`."""
    progress = progress or silent()
    progress.begin(f"{row_of(setup.storage, setup.state_storage, persister=setup.persister)}, whole broker", "cut", count)
    entries = record(setup, home, seed=seed, load_s=load_s, kills=kills)
    room = threading.Semaphore(AT_ONCE + 1)  # states are built as they are judged, not all at once
    wrong: list[str] = []

    def verdict(number: int, cut: Cut) -> Statistics | None:
        place, report = home / f"cut-{number}", None
        try:
            report = judge(setup, cut, place)
            text = "" if report is None or report.ok else str(report)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
        finally:
            room.release()
        if text:
            wrong.append(f"{setup} cut at {cut.position} of {len(entries)}, state seed {cut.seed}: {place.name}\n{text}")
        else:
            shutil.rmtree(place)
        return report.statistics if report else None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts: list[Future[Statistics | None]] = []
        for number, cut in zip(itertools.count(), cuts(entries, count=count, seed=seed)):
            room.acquire()
            verdicts.append(pool.submit(verdict, number, cut))
            _show(progress, verdicts, all_of_them=False)
        _show(progress, verdicts, all_of_them=True)
    progress.count(kills=kills + 1, violations=len(wrong))
    return wrong


def _show(progress: Progress, verdicts: list[Future[Statistics | None]], *, all_of_them: bool) -> None:
    """Tell of the verdicts that are there, in order, and forget them."""
    while verdicts and (all_of_them or verdicts[0].done()):
        done = verdicts.pop(0).result()
        progress.step(records=done.records if done else 0, acknowledgements=done.confirmed_acknowledgements if done else 0)
