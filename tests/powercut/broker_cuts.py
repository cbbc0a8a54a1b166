"""Power cuts for a whole broker: record it under load from unmodified clients, cut, start a broker
on the remaining state, and let the checker judge.

The events of all clients are marks in the recorder's own log, so a cut at any place of the log
comes with its history: responses before the cut are in it, later ones are missing, so that their
requests are unanswered. After the cut a broker starts on the state, a last consumer drains the
group, another one reads the logs, and tests.judges.history judges the whole.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.client.broker_process import RunningBroker
from tests.crash import worker
from tests.crash.harness import BROKER_CONFIG, LAUNCHER, SETTINGS, Torment, broker_of, row_of, tormented
from tests.crash.tally import Progress, silent
from tests.judges.history import GroupSettings, Report, check
from tests.judges.history_events import Event, LifeBegan, LifeEnded, Sent, from_json, merge, read_lines
from tests.judges.log_rules import Report as AnyReport
from tests.powercut.disk import Disk, State, save
from tests.powercut.recorded import RecordedBroker
from tests.powercut.recording import Entry, Op, Recording

AT_ONCE = 4
"""Brokers that are judged at the same time: most of that time passes waiting until nothing more
arrives."""


@dataclass(frozen=True, slots=True)
class Setup:
    storage: str
    state_storage: str
    persister: str = "default"

    def broker(self, home: Path) -> RunningBroker:
        return broker_of(home, self.storage, self.state_storage, command=LAUNCHER, persister=self.persister)


def record(setup: Setup, home: Path, *, seed: int, load_s: float, kills: int = 1) -> list[Entry]:
    """The log of a broker under load, killed with kill -9 `kills` times meanwhile and once at the
    end."""
    data, log = home / "data", home / "record.log"
    data.mkdir()
    recording = Recording(data, log)
    config = {**BROKER_CONFIG, "kbroker.persister": setup.persister}
    broker = RecordedBroker(
        home,
        recording,
        storage=setup.storage,
        state_storage=setup.state_storage,
        config=config,
        command=LAUNCHER,
    )
    with tormented(broker, home, seed, one_log=log) as torment:
        for kill in range(kills + 1):
            time.sleep(load_s / (kills + 1))
            check_clients(torment)
            torment.kill_broker()
            if kill < kills:
                torment.start_broker()
    recording.close()
    return list(recording.entries())


def check_clients(torment: Torment) -> None:
    for client in torment.clients:
        client.check_alive()


@dataclass(frozen=True, slots=True)
class Cut:
    position: int
    seed: int
    state: State
    history: list[Event]
    """The events before the cut."""

    @property
    def last_ns(self) -> int:
        """When the latest event was. Clients note what they got when they can, so it need not be
        the last one."""
        return max(event.at_ns for event in self.history)

    @property
    def has_load(self) -> bool:
        """Topic and group were created: before that, a broker only has to start."""
        return any(isinstance(event, Sent) for event in self.history)

    @property
    def lives(self) -> int:
        """The broker's lives, including the one that the cut ended."""
        return max((event.life for event in self.history if isinstance(event, LifeBegan)), default=0)

    def end(self) -> list[Event]:
        """End that life, unless it had ended before."""
        lives = [event for event in self.history if isinstance(event, LifeBegan | LifeEnded)]
        is_open = bool(lives) and isinstance(lives[-1], LifeBegan)
        return [LifeEnded(time.monotonic_ns(), self.lives)] if is_open else []


def cuts(
    entries: list[Entry],
    *,
    count: int,
    seed: int,
    since: type[Event] | None = None,
    stretches: Sequence[Sequence[range]] = (),
) -> Iterator[Cut]:
    """At random moments, in the order of the log; half of them shortly after a mark, when a
    response had just arrived. `since`: all cuts come after the first event of that kind, and one is
    at the end. `stretches`: kinds of places, each a list of stretches of the log; as many cuts come
    in any stretch of a kind as at random moments."""
    chooser = random.Random(seed)
    marks = [place + 1 for place, entry in enumerate(entries) if entry.op is Op.MARK]
    if since is not None:
        first = next(
            number
            for number, place in enumerate(marks)
            if isinstance(from_json(entries[place - 1].data), since)
        )
        marks = marks[first:]
    begin = 1 if since is None else marks[0]
    chosen = [kind for kind in stretches if kind]

    def position_of(number: int) -> int:
        match number % (2 + len(chosen)):
            case 0:
                return chooser.randint(begin, len(entries))
            case 1:
                return chooser.choice(marks)
            case kind:
                return chooser.choice(chooser.choice(chosen[kind - 2]))

    positions = sorted(map(position_of, range(count)))
    if since is not None:
        positions[-1] = len(entries)
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
    """Start a broker on the state. None if there was no load yet to judge. Raises the errors of the
    broker and of clients."""
    home.mkdir()
    save(cut.state, home / "data")
    broker = setup.broker(home)
    after = [*cut.end(), LifeBegan(time.monotonic_ns(), cut.lives + 1)]
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
                report = check(
                    merge([cut.history, after, read_lines(path.read_bytes().splitlines(keepends=True))]),
                    settings,
                )
                if "unfinished" not in {violation.rule for violation in report.violations}:
                    break
        finally:
            history.close()
    finally:
        broker.kill9()
    return report


class Scene(NamedTuple):
    """How to record, to judge and to count statistics for the summary, as record(), judge() and
    _counts() do. `since`: cuts come after the first such event. `stretches`: see cuts()."""

    name: str
    record: Callable[..., list[Entry]]
    judge: Callable[[Any, Cut, Path], AnyReport[Any] | None]
    counts: Callable[[Any], dict[str, int]]
    since: type[Event] | None = None
    stretches: Callable[[list[Entry]], Sequence[Sequence[range]]] = lambda _: ()


def _counts(done: Any) -> dict[str, int]:
    return {"records": done.records, "acknowledgements": done.confirmed_acknowledgements}


WHOLE_BROKER = Scene("whole broker", record, judge, _counts)


def run(
    setup: Setup,
    home: Path,
    *,
    count: int,
    seed: int,
    load_s: float,
    kills: int = 1,
    scene: Scene = WHOLE_BROKER,
    progress: Progress | None = None,
) -> list[str]:
    """Record once, cut `count` times; returns the failures. States that failed stay in `home`."""
    progress = progress or silent()
    progress.begin(
        f"{row_of(setup.storage, setup.state_storage, persister=setup.persister)}, {scene.name}", "cut", count
    )
    entries = scene.record(setup, home, seed=seed, load_s=load_s, kills=kills)
    room = threading.Semaphore(AT_ONCE + 1)  # states are built just before they are judged, not all at once
    wrong: list[str] = []

    def verdict(number: int, cut: Cut) -> dict[str, int]:
        place, report = home / f"cut-{number}", None
        try:
            report = scene.judge(setup, cut, place)
            text = "" if report is None or report.ok else str(report)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
        finally:
            room.release()
        if text:
            wrong.append(
                f"{setup} cut at {cut.position} of {len(entries)}, state seed {cut.seed}: "
                f"{place.name}\n{text}"
            )
        else:
            shutil.rmtree(place)
        return scene.counts(report.statistics) if report else {}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts: list[Future[dict[str, int]]] = []
        stretches = scene.stretches(entries)
        chosen = cuts(entries, count=count, seed=seed, since=scene.since, stretches=stretches)
        for number, cut in zip(itertools.count(), chosen):
            room.acquire()
            verdicts.append(pool.submit(verdict, number, cut))
            _show(progress, verdicts, all_of_them=False)
        _show(progress, verdicts, all_of_them=True)
    progress.count(kills=kills + 1, violations=len(wrong))
    return wrong


def _show(progress: Progress, verdicts: list[Future[dict[str, int]]], *, all_of_them: bool) -> None:
    """Report the verdicts in order as far as they have arrived, and drop them."""
    while verdicts and (all_of_them or verdicts[0].done()):
        progress.step(**verdicts.pop(0).result())
