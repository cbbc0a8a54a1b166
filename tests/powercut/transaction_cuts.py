"""Power cuts for transactions, with both durabilities: what was committed is there, whole and once.

The recording covers the broker and the clients of tests.crash.transaction_rounds, killed with kill
-9 at least once meanwhile. After a cut the unfinished transactions time out, a member transforms
the remaining inputs, and tests.judges.transaction_history judges the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kbroker.client.broker_process import RunningBroker
from tests.crash import transaction_rounds, transaction_worker
from tests.crash.harness import LAUNCHER, Torment
from tests.crash.transaction_reading import INPUTS, wait_until_stable
from tests.crash.worker import History
from tests.judges.history_events import PowerLost, merge
from tests.judges.transaction_events import TransactionBegan
from tests.judges.transaction_history import Report, TransactionHistorySettings, check
from tests.powercut.broker_cuts import Cut, Scene, Setup
from tests.powercut.disk import save
from tests.powercut.recording import Entry, Recording

MAY_LOSE_MS = 300
"""With durability `os`: how long before the cut an end may have been answered that is lost."""


@dataclass(frozen=True, slots=True)
class TransactionSetup(Setup):
    durability: str = "disk"

    def broker(self, home: Path, recording: Recording | None = None) -> RunningBroker:
        return transaction_rounds.broker_of(
            home,
            self.storage,
            self.state_storage,
            durability=self.durability,
            command=LAUNCHER,
            recording=recording,
        )

    @property
    def settings(self) -> TransactionHistorySettings:
        return TransactionHistorySettings(INPUTS, MAY_LOSE_MS if self.durability == "os" else 0)


def record(setup: TransactionSetup, home: Path, *, seed: int, load_s: float, kills: int) -> list[Entry]:
    data, log = home / "data", home / "record.log"
    data.mkdir()
    recording = Recording(data, log)
    broker = setup.broker(home, recording)
    with transaction_rounds.tormented(broker, home, seed, one_log=log) as torment:
        for kill in range(kills + 1):
            torment.load(load_s / (kills + 1))
            torment.torment.kill_broker()
            if kill < kills:
                torment.torment.start_broker()
    recording.close()
    return list(recording.entries())


def judge(setup: TransactionSetup, cut: Cut, home: Path) -> Report | None:
    """As broker_cuts.judge()."""
    home.mkdir()
    save(cut.state, home / "data")
    ended = [*cut.end(), PowerLost(cut.last_ns, promises_end=setup.durability == "os")]
    torment = Torment(setup.broker(home), home, 0, life=cut.lives)
    try:
        torment.start_broker()
        if not cut.has_load:
            return None
        history = History(torment.history_of("after"))
        try:
            # An open transaction holds back inputs: first they end.
            wait_until_stable(torment.broker.bootstrap)
            for role in ("finish", "end"):
                transaction_worker.ROLES[role](role, torment.broker.bootstrap, history, 0)
        finally:
            history.close()
        return check(merge([cut.history, ended, torment.events()]), setup.settings)
    finally:
        torment.broker.kill9()
        torment.close()


TRANSACTIONS = Scene("transactions", record, judge, transaction_rounds.counts, since=TransactionBegan)
UNSYNCED = TRANSACTIONS._replace(name="transactions, durability os")
