"""Power cuts for compacted topics, with both durabilities: no pass takes an older value unless the
newer one is safe.

The recording covers the broker and the clients of tests.crash.compaction_rounds, killed with kill
-9 at least once meanwhile. The stages of passes are marks too: a quarter of the cuts come in the
middle of a pass, and another one while a segment is replaced. tests.judges.compaction_history
judges the whole.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from kbroker.client.broker_process import RunningBroker
from tests.crash import compaction_rounds
from tests.crash.compaction_rounds import judge_state, settings_of
from tests.judges.compaction_events import EntryConfirmed, PassNoted, Stage
from tests.judges.compaction_history import CompactionStatistics, Report
from tests.judges.history_events import LifeEnded, PowerLost, from_json
from tests.powercut.broker_cuts import Cut, Scene, Setup
from tests.powercut.disk import save
from tests.powercut.recording import Entry, Op, Recording

REPLACEMENTS = 5
"""Each life of the recorded broker replaces so many segments, however busy the machine is ..."""
PATIENCE_S = 90.0
"""... but does not last longer than this for their sake."""
NEW_DATA = ".cleaned.tmp/data.ninja"
"""Of the segment engine: new contents that are not in their place yet."""
SETTLED = 4
"""After every so manieth cut, passes run until they have nothing left to do."""


@dataclass(frozen=True, slots=True)
class CompactionSetup(Setup):
    """`fault`: of tests.crash.broken_compaction, in the recorded broker."""

    durability: str = "disk"
    fault: str = ""

    def broker(
        self,
        home: Path,
        *,
        fault: str = "",
        notes: Path | None = None,
        recording: Recording | None = None,
    ) -> RunningBroker:
        return compaction_rounds.broker_of(
            home,
            self.storage,
            self.state_storage,
            durability=self.durability,
            fault=fault,
            notes=notes,
            recording=recording,
        )


def record(setup: CompactionSetup, home: Path, *, seed: int, load_s: float, kills: int) -> list[Entry]:
    data, log = home / "data", home / "record.log"
    data.mkdir()
    recording = Recording(data, log)
    broker = setup.broker(home, fault=setup.fault, notes=log, recording=recording)
    with compaction_rounds.tormented(broker, home, seed, one_log=log) as torment:
        for kill in range(kills + 1):
            noted = _replaced(log)
            torment.load(load_s / (kills + 1))
            deadline = time.monotonic() + PATIENCE_S
            while _replaced(log) < noted + REPLACEMENTS and time.monotonic() < deadline:
                time.sleep(0.1)
            torment.torment.kill_broker()
            if kill < kills:
                torment.torment.start_broker()
    recording.close()
    return list(recording.entries())


def _replaced(log: Path) -> int:
    """Replacements that are done, by the marks of the recording."""
    return log.read_bytes().count(b'"stage":"replaced"')


def stretches(entries: list[Entry]) -> list[list[range]]:
    """Where a cut comes in a pass, and where in a replacement of a segment. The new contents take
    their place at the end of it, so that counts twice. Where they do so by a rename, the third kind
    is from there until the whole file system was synced: later, a sync of theirs that was left out
    no longer shows."""
    passes: list[range] = []
    replacements: list[range] = []
    renamed: list[range] = []
    began = replacing = placed = 0
    """Positions just behind; 0: none is under way."""
    for place, entry in enumerate(entries):
        if entry.op is Op.RENAME and entry.path.endswith(NEW_DATA):
            placed = place + 1
        elif entry.op is Op.ALLSYNC_BEGIN and placed:
            renamed.append(range(placed, place + 1))
            placed = 0
        event = from_json(entry.data) if entry.op is Op.MARK else None
        if not isinstance(event, PassNoted | LifeEnded):
            continue
        if replacing:
            replacements += [range(replacing, place + 1), range((replacing + place + 1) // 2, place + 1)]
            replacing = 0
        if isinstance(event, LifeEnded) or event.stage is Stage.ENDED:
            passes += [range(began, place + 1)] if began else []
            began = 0
        elif event.stage is Stage.BEGAN:
            began = place + 1
        elif event.stage is Stage.REPLACING:
            replacing = place + 1
    return [passes, replacements, renamed]


def judge(setup: CompactionSetup, cut: Cut, home: Path) -> Report:
    """As broker_cuts.judge()."""
    home.mkdir()
    save(cut.state, home / "data")
    before = [*cut.history, *cut.end(), PowerLost(cut.last_ns, promises_end=setup.durability == "os")]
    is_settled = cut.seed % SETTLED == 0
    settings = settings_of(setup.durability)
    return judge_state(setup.broker(home), home, before, cut.lives, settings, is_settled=is_settled)


def _counts(done: CompactionStatistics) -> dict[str, int]:
    return {
        "cuts_in_passes": done.cuts_in_passes,
        "cuts_in_replacements": done.cuts_in_replacements,
        "checked": done.checked,
        "excused": done.excused,
    }


COMPACTION = Scene("compaction", record, judge, _counts, since=EntryConfirmed, stretches=stretches)
UNSYNCED = COMPACTION._replace(name="compaction, durability os")
