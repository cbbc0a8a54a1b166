"""Power cuts for a broker whose logs are purged, with idempotent producers that live through it:
record, cut, two more lives, judge.

Damage from a cut need not show at the first start. Suppose that a log's start, or a snapshot of
producers, lies beyond the end of the remaining log. It does harm only when the log has grown past
it and the broker starts once more. Hence the producers continue in a second life, fill each log
beyond all earlier offsets, and are judged by the state of a third life.

With durability `os` a cut removes unsynced data, confirmed or not. From then on the state
found by the second life is authoritative, and only producer ids must survive the cut (PowerLost in
tests.judges.history_events).

    python -m tests.powercut.purge_cuts STORAGE STATE_STORAGE DURABILITY SEED COUNT WHERE

prints the errors of a broker for one choice of cuts (WHERE: ids, purges, ends, marks, everywhere).
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kbroker.broker.logs.producer_ids import BLOCK_SIZE
from kbroker.testing.broker import RunningBroker
from tests.crash.harness import LAUNCHER, row_of
from tests.crash.purge_topics import BROKER_CONFIG, ORDERS, RETENTION, TOPICS, create_topics
from tests.crash.stubborn import Stubborn
from tests.crash.tally import Progress, silent
from tests.crash.worker import History
from tests.judges.history_events import (
    BatchAnswered,
    BatchSent,
    Event,
    IdTaken,
    LifeBegan,
    LifeEnded,
    PowerLost,
    PurgeAnswered,
    from_json,
)
from tests.judges.log_rules import Violation
from tests.judges.producer_history import Ledger, Log
from tests.powercut.conftest import MEMORY
from tests.powercut.disk import Disk, State, save
from tests.powercut.recorded import broker_of
from tests.powercut.recording import Entry, Op, Recording

AT_ONCE = 3
SHOWN = 10
ENDS = (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
"""How the recorded lives end: only SIGTERM saves a snapshot of producers."""
CONFIG = {**BROKER_CONFIG, "kbroker.sync.interval.ms": "5000"}
"""With durability `os`: a long interval, so that at most moments something is unsynced."""
WRITTEN_LAST = 8
"""Batches at the end of a recorded life: a purge may sync the logs, and then nothing could be lost.
"""
FAILED = "failed"
"""In addition to the rules of the judge: the broker did not start, or did not answer."""


@dataclass(frozen=True, slots=True)
class Setup:
    storage: str
    state_storage: str
    durability: str

    def broker(self, home: Path, recording: Recording | None = None) -> RunningBroker:
        return broker_of(
            home,
            recording,
            storage=self.storage,
            state_storage=self.state_storage,
            durability=self.durability,
            config=CONFIG,
            command=LAUNCHER,
        )

    def __str__(self) -> str:
        return f"purges on {row_of(self.storage, self.state_storage, self.durability)}"


def record(setup: Setup, home: Path, *, seed: int, steps: int) -> list[Entry]:
    """The log of a broker under load through several lives, each of `steps` requests. The events
    are marks in it."""
    (home / "data").mkdir()
    recording = Recording(home / "data", home / "record.log")
    history = History(recording.log)
    broker = setup.broker(home, recording)
    producers = Stubborn(broker, history.write, random.Random(seed))
    try:
        for life, end in enumerate(ENDS, 1):
            producers.note(LifeBegan(time.monotonic_ns(), life))
            broker.start()
            if life == 1:
                create_topics(broker)
            producers.work(steps=steps)
            producers.purge_newest(Log(ORDERS, life % TOPICS[ORDERS]))
            for _ in range(WRITTEN_LAST):
                producers.send_next()
            if end is signal.SIGTERM:
                broker.stop()
            else:
                broker.kill9()
            producers.note(LifeEnded(time.monotonic_ns(), life, end is signal.SIGTERM))
    finally:
        producers.close()
        broker.kill9()
        history.close()
        recording.close()
    return list(recording.entries())


@dataclass(frozen=True, slots=True)
class Cut:
    position: int
    how: str
    state: State
    history: list[Event]
    """The events before the cut."""


STATE, LOGS, SOME = "state-", "log-", ""
"""The state after a cut: all of one store and only the synced part of the other, or some of both.
"""


class Moment(NamedTuple):
    position: int
    kept: str


@dataclass(slots=True)
class _Seen:
    """Places of a recorder's log to cut at, by the state at that point: after a mark, or before a
    sync has ended."""

    ids: list[int] = field(default_factory=list)
    """The first ids of their blocks: the broker has just written that it may issue them."""
    purges: list[int] = field(default_factory=list)
    """Purges that moved the start of a log to an offset that is not synced, and not to its end:
    there an engine begins a new segment at once."""
    ends: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    _paths: dict[int, str] = field(default_factory=dict)
    _first_sync: int | None = None
    """Since the last mark."""
    _sent: dict[tuple[str, int], int] = field(default_factory=dict)
    _log_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    _synced: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, place: int, entry: Entry) -> None:
        if entry.op is Op.OPEN:
            self._paths[entry.object] = entry.path
        elif entry.op is Op.ALLSYNC_END or (
            entry.op is Op.SYNC_END and self._paths[entry.object].startswith(LOGS)
        ):
            self._synced = dict(self._log_ends)
            self._first_sync = place if self._first_sync is None else self._first_sync
        elif entry.op is Op.MARK:
            self._add_mark(place, from_json(entry.data))
            self._first_sync = None

    def _add_mark(self, place: int, event: Event) -> None:
        match event:
            case BatchSent():
                self._sent[event.topic, event.partition] = event.count
            case BatchAnswered():
                log = event.topic, event.partition
                self._log_ends[log] = max(self._log_ends.get(log, 0), event.base_offset + self._sent[log])
            case IdTaken() if event.producer_id % BLOCK_SIZE == 0:
                self.ids.append(place + 1)
            case PurgeAnswered():
                log = event.topic, event.partition
                if self._synced.get(log, 0) < event.start < self._log_ends.get(log, 0):
                    self.purges.append(place + 1)
            case LifeEnded() if event.orderly and self._first_sync is not None:
                self.ends.append(self._first_sync)
        if self._sent:
            self.marks.append(place + 1)


class Where(Enum):
    IDS, PURGES, ENDS, MARKS, EVERYWHERE = range(5)


def moments(
    entries: list[Entry], *, count: int, seed: int, where: Sequence[Where] = tuple(Where)
) -> list[Moment]:
    """The most harmful moments, in turn:
    - after a response that depends on one store alone
    - before a broker that stops cleanly has synced its logs, when the state store already has the
      saved producers
    - after any mark
    - anywhere
    """
    chooser = random.Random(seed)
    seen = _Seen()
    for place, entry in enumerate(entries):
        seen.add(place, entry)
    everywhere = range(seen.marks[0], len(entries) + 1)
    pools: dict[Where, tuple[Sequence[int], Sequence[str]]] = {
        Where.IDS: (seen.ids, [LOGS]),
        Where.PURGES: (seen.purges, [STATE]),
        Where.ENDS: (seen.ends, [STATE]),
        Where.MARKS: (seen.marks, [STATE, LOGS, SOME]),
        Where.EVERYWHERE: (everywhere, [STATE, LOGS, SOME]),
    }
    found = []
    for number, each in enumerate(where):
        places, kept = pools[each]
        wanted = len(range(number, count, len(where)))
        # Each place once, as long as there are others.
        shuffled = chooser.sample(places or everywhere, len(places or everywhere))
        found += [
            Moment(place, chooser.choice(kept))
            for place in itertools.islice(itertools.cycle(shuffled), wanted)
        ]
    return sorted(found)


def cuts(
    entries: list[Entry], *, count: int, seed: int, where: Sequence[Where] = tuple(Where)
) -> Iterator[Cut]:
    """In the order of the log."""
    disk, history, position = Disk(names_by_fsync=lambda path: "rocksdb/" in path), [], 0
    for number, (wanted, kept) in enumerate(moments(entries, count=count, seed=seed, where=where)):
        for entry in entries[position:wanted]:
            disk.apply(entry)
            if entry.op is Op.MARK:
                history.append(from_json(entry.data))
        position = wanted
        chooser = random.Random(seed * 1000 + number)
        parts = partial(disk.survivor_of_parts, is_kept=lambda path, kept=kept: path.startswith(kept))
        state = parts(chooser) if kept else disk.survivor(chooser)
        yield Cut(position, f"all of {kept}* kept" if kept else "some of all kept", state, list(history))


def judge(setup: Setup, cut: Cut, home: Path, *, seed: int) -> list[Violation]:
    """Two lives of a broker on the remaining state: returns the violations that the history up to
    the cut does not already have. Raises the errors of broker and clients."""
    home.mkdir()
    save(cut.state, home / "data")
    ledger = _ledger_of(cut.history)
    before = len(ledger.violations)
    history = History(home / "after.jsonl")
    producers = Stubborn(setup.broker(home), history.write, random.Random(seed), ledger)
    life = max(event.life for event in cut.history if isinstance(event, LifeBegan))
    grown = {
        Log(topic, partition): ledger.log(topic, partition).known_end(time.monotonic_ns())
        for topic, partitions in TOPICS.items()
        for partition in range(partitions)
    }
    producers.note(LifeEnded(time.monotonic_ns(), life))
    producers.note(PowerLost(time.monotonic_ns(), promises_end=setup.durability == "os"))
    try:
        for more in (1, 2):
            producers.note(LifeBegan(time.monotonic_ns(), life + more))
            producers.broker.start()
            producers.connect()
            producers.observe()
            producers.read_all()
            if more == 1:
                _go_on(producers, grown)
            else:
                producers.probe()
                producers.read_all()
            producers.broker.kill9()
            producers.note(LifeEnded(time.monotonic_ns(), life + more))
    finally:
        producers.close()
        producers.broker.kill9()
        history.close()
    return ledger.violations[before:]


def _ledger_of(history: list[Event]) -> Ledger:
    ledger = Ledger(RETENTION)
    for event in history:
        ledger.apply(event)
    return ledger


def _go_on(producers: Stubborn, grown: dict[Log, int]) -> None:
    """The old producers, then two new ones, one after the other: the last of them fills the logs
    beyond all earlier offsets."""
    producers.probe()
    if producers.chooser.random() < 0.3:
        producers.purge()
    producers.fill(dict.fromkeys(grown, 0))
    producers.fill(grown)


@dataclass(slots=True)
class Verdict:
    """Of one cut: the violated rules, and a readable text."""

    rules: set[str]
    text: str = ""


def _verdict_of(violations: list[Violation]) -> Verdict:
    return Verdict({violation.rule for violation in violations}, "\n".join(map(str, violations[:SHOWN])))


def run(
    setup: Setup,
    home: Path,
    *,
    count: int,
    seed: int,
    steps: int = 60,
    where: Sequence[Where] = tuple(Where),
    until: str | None = None,
    progress: Progress | None = None,
) -> list[Verdict]:
    """Record once, cut `count` times; returns the failures. The states that failed stay in `home`.

    `until`: a rule; once it was violated, no more cuts are judged.
    """
    progress = progress or silent()
    progress.begin(str(setup), "cut", count)
    entries = record(setup, home, seed=seed, steps=steps)
    before_cuts = _verdict_of(
        _ledger_of([from_json(entry.data) for entry in entries if entry.op is Op.MARK]).violations
    )
    before_cuts.text = f"{setup}, while it was recorded\n{before_cuts.text}"
    wrong = [before_cuts] if before_cuts.rules else []

    def verdict(number: int, cut: Cut) -> Verdict:
        place, found = home / f"cut-{number}", Verdict(set())
        try:
            found = _verdict_of(judge(setup, cut, place, seed=seed + number))
        except Exception as error:
            found = Verdict({FAILED}, "".join(traceback.format_exception(error)))
        if not found.rules:
            shutil.rmtree(place)
        found.text = f"{setup} cut at {cut.position} of {len(entries)}, {cut.how}: {place.name}\n{found.text}"
        return found

    numbered = enumerate(cuts(entries, count=count, seed=seed, where=where))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while some := list(itertools.islice(numbered, AT_ONCE)):
            for found in pool.map(lambda each: verdict(*each), some):
                progress.step(violations=bool(found.rules))
                if found.rules:
                    wrong.append(found)
            if until is not None and until in rules_of(wrong):
                break
    return wrong


def rules_of(verdicts: list[Verdict]) -> set[str]:
    return {rule for each in verdicts for rule in each.rules}


def told(verdicts: list[Verdict]) -> str:
    return "\n".join(each.text for each in verdicts)


if __name__ == "__main__":
    storage, state_storage, durability, seed_text, count_text, name = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        setup, where = Setup(storage, state_storage, durability), [Where[name.upper()]]
        found = run(setup, Path(directory), count=int(count_text), seed=int(seed_text), where=where)
    print(told(found))
    print(f"rules that were broken: {', '.join(sorted(rules_of(found))) or 'none'}")
