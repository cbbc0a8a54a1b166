"""Compacted topics on a broker that is killed with kill -9 repeatedly, most times in the middle of
a pass.

Producers write values and tombstones, some in transactions; readers of both isolation levels read
whole logs meanwhile, and so does a share group (compaction_worker.py). The cleaner looks without a
pause, and notes its passes in the history (pass_notes.py). At the end no key has two records, and
tombstones are gone. The history goes to tests.judges.compaction_history.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kbroker.testing.broker import RunningBroker
from tests.crash import pass_notes
from tests.crash.compaction_reading import PARTITIONS, TABLE, WINDOW
from tests.crash.compaction_worker import ROLES
from tests.crash.harness import BROKER_CONFIG, GROUP_CONFIG, LAUNCHER, SETTINGS, Torment, row_of
from tests.crash.tally import Progress, silent
from tests.crash.transaction_rounds import TransactionTorment
from tests.crash.worker import GROUP, History
from tests.judges.compaction_events import Stage
from tests.judges.compaction_history import (
    CompactionHistorySettings,
    CompactionStatistics,
    Report,
    check,
)
from tests.judges.history_events import Event, LifeEnded, merge
from tests.powercut import recorded
from tests.powercut.recording import Recording

MODULE = "tests.crash.compaction_worker"
CLIENTS = ("write", "read", "consume")
DELETE_RETENTION_MS = 2500
MAY_LOSE_MS = 300
"""With durability `os`: what was answered so shortly before a power cut may be lost."""
CONFIG = {
    **BROKER_CONFIG,
    "log.cleaner.backoff.ms": "20",
    "log.retention.check.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
TABLE_CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "12000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
WINDOW_CONFIG = {
    **TABLE_CONFIG,
    "cleanup.policy": "compact,delete",
    "retention.bytes": "14000",
    "retention.ms": "-1",
}
IN_PASS_WITHIN_S = 30.0


def settings_of(durability: str = "disk") -> CompactionHistorySettings:
    may_lose_ms = MAY_LOSE_MS if durability == "os" else 0
    return CompactionHistorySettings(DELETE_RETENTION_MS, SETTINGS, frozenset({WINDOW}), may_lose_ms)


@dataclass(slots=True)
class CompactionTorment(TransactionTorment):
    """`notes`: where the cleaner notes its passes."""

    notes: Path = Path()

    def round(self) -> None:
        """Load, kill, start. Most kills wait until a segment is being replaced, the others at least
        until the cleaner has begun in this life."""
        noted = self._noted_bytes()
        self.load(self._random.uniform(0.3, 1.5))
        self._wait_until(lambda: self._noted_bytes() > noted)
        if self._random.random() < 0.25:
            self._replace_a_client()
        if self._random.random() < 0.7:
            self.wait_for(Stage.REPLACING)
        self.torment.kill_broker()
        if self._random.random() < 0.2:
            self.torment.start_and_kill_early()
        self.torment.start_broker()

    def wait_for(self, stage: Stage) -> None:
        """Until the cleaner is there, or some time."""
        self._wait_until(lambda: self.stage() is stage)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + IN_PASS_WITHIN_S
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _noted_bytes(self) -> int:
        return self.notes.stat().st_size if self.notes.exists() else 0

    def stage(self) -> Stage | None:
        if not self.notes.exists():
            return None
        with self.notes.open("rb") as file:
            file.seek(max(0, self.notes.stat().st_size - 1000))
            lines = file.read().splitlines()
        return Stage(json.loads(lines[-1])["stage"]) if lines else None

    def _replace_a_client(self) -> None:
        clients = [each for each in self.torment.clients if each.role != "read"]
        chosen = self._random.choice(clients)
        if chosen.role != "consume":
            self._replace(chosen)
            return
        self.torment.kill_a_consumer()  # It notes that their records are free.
        self.replaced += 1

    def finish(self) -> None:
        """All clients end; passes do what is left, and so does the share group."""
        self._stop(*CLIENTS)
        self._run("finish-briefly" if self.is_brief else "finish")

    def judge(self) -> Report:
        """Records that were not drained get a second chance, as in Torment.judge()."""
        report = check(self.torment.events(), settings_of())
        if "unfinished" in {violation.rule for violation in report.violations}:
            self._run("drain-again")
            report = check(self.torment.events(), settings_of())
        return report

    def back_up(self, target: Path) -> list[Event]:
        """Copy the data directory as it is at one moment, in the middle of a pass. Returns the
        history up to that moment."""
        broker = self.torment.broker
        while True:
            self.wait_for(Stage.REPLACING)
            broker.sigstop()
            while _state_of(broker.pid) != "T":
                time.sleep(0.001)
            if self.stage() is Stage.REPLACING:
                break
            broker.sigcont()
        stopped_ns = time.monotonic_ns()
        shutil.copytree(broker.data_dir, target)
        broker.sigcont()
        before = [event for event in self.torment.events() if event.at_ns <= stopped_ns]
        return [*before, LifeEnded(stopped_ns, self.torment.life)]


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def tormented(
    broker: RunningBroker, home: Path, seed: int, *, one_log: Path | None = None
) -> Iterator[CompactionTorment]:
    """A running broker with its topics and clients; all are stopped afterwards."""
    torment = Torment(broker, home, seed, one_log, module=MODULE)
    with torment.running():
        for topic, config in ((TABLE, TABLE_CONFIG), (WINDOW, WINDOW_CONFIG)):
            broker.create_topic(topic, partitions=PARTITIONS, config=config)
        broker.set_group_config(GROUP, {**GROUP_CONFIG, "share.isolation.level": "read_committed"})
        for role in CLIENTS:
            torment.start_client(role)
        yield CompactionTorment(torment, notes=notes_of(home), _random=random.Random(seed))


def notes_of(home: Path) -> Path:
    return home / "passes.jsonl"


def broker_of(
    home: Path,
    engine: str,
    state_storage: str | None = None,
    *,
    durability: str = "disk",
    fault: str = "",
    notes: Path | None = None,
    recording: Recording | None = None,
) -> RunningBroker:
    """`fault`: one of broken_compaction. `notes`: if not those of `home`."""
    command = [*LAUNCHER, *([fault] if fault else []), pass_notes.ARGUMENT, str(notes or notes_of(home))]
    stores = {"storage": engine, "state_storage": state_storage}
    return recorded.broker_of(
        home, recording, **stores, config=CONFIG, command=command, durability=durability
    )


def run(
    home: Path,
    engine: str,
    *,
    rounds: int,
    seed: int,
    durability: str = "disk",
    fault: str = "",
    progress: Progress | None = None,
) -> Report:
    """Kill a broker for some rounds and judge. `home`: an empty directory, which keeps all
    histories. `fault`: one of broken_compaction."""
    progress = progress or silent()
    progress.begin(f"compaction on {row_of(engine, engine, durability)}", "round", rounds)
    broker = broker_of(home, engine, durability=durability, fault=fault)
    with tormented(broker, home, seed) as torment:
        for _ in range(rounds):
            before = torment.torment.kills
            torment.round()
            progress.step(kills=torment.torment.kills - before)
        torment.is_brief = bool(fault)
        torment.finish()
        report = torment.judge()
        progress.count(replaced=torment.replaced)
    progress.count(**counts(report.statistics), violations=len(report.violations))
    return report


def judge_state(
    broker: RunningBroker,
    home: Path,
    before: Sequence[Event],
    life: int,
    settings: CompactionHistorySettings,
    *,
    is_settled: bool,
) -> Report:
    """Start a broker on a state of its disk, let clients look, and judge. `before`: the history up
    to there, with `life` lives. `is_settled`: passes run until they have nothing left to do."""
    torment = Torment(broker, home, 0, life=life)
    try:
        torment.start_broker()
        history = History(torment.history_of("after"))
        try:
            for role in ("look", *(["settle"] if is_settled else []), "drain", "end"):
                ROLES[role](f"{role}-after", broker.bootstrap, history, 0)
            report = check(merge([before, torment.events()]), settings)
            if "unfinished" in {violation.rule for violation in report.violations}:
                ROLES["drain-again"]("last-after", broker.bootstrap, history, 0)
                report = check(merge([before, torment.events()]), settings)
        finally:
            history.close()
        return report
    finally:
        torment.broker.kill9()
        torment.close()


def counts(done: CompactionStatistics) -> dict[str, int]:
    """For the summary."""
    return {
        "kills_in_passes": done.kills_in_passes,
        "kills_in_replacements": done.kills_in_replacements,
        "entries": done.entries,
        "cleaned": done.cleaned,
        "scans": done.scans,
        "passes": done.passes,
        "excused": done.excused,
    }
