"""Power cuts for a work queue whose log is trimmed as its jobs are finished: the kept records must
be durable with the trim.

The recording covers the broker and the clients of tests.crash.queue_rounds, killed with kill -9 at
least once meanwhile. After a cut one worker finishes the remaining jobs, and
tests.judges.queue_history judges the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kbroker.client.broker_process import RunningBroker
from tests.crash import queue_rounds
from tests.crash.harness import Torment
from tests.crash.queue_rounds import QueueTorment
from tests.crash.queue_worker import ROLES
from tests.crash.worker import History
from tests.judges.history_events import LogCut
from tests.judges.queue_history import QueueStatistics, Report
from tests.powercut.broker_cuts import Cut, Scene, Setup, check_clients
from tests.powercut.disk import save
from tests.powercut.recording import Entry, Recording

PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class QueueSetup(Setup):
    """`retention`: kbroker.queue.retention of the topic. `roles`: those of the clients, if not the
    usual ones."""

    retention: str = "workqueue"
    roles: tuple[str, ...] = ()

    def broker(self, home: Path, recording: Recording | None = None) -> RunningBroker:
        return queue_rounds.broker_of(
            home,
            self.storage,
            self.state_storage,
            persister=self.persister,
            retention=self.retention,
            recording=recording,
        )


class _Afterwards(QueueTorment):
    """Its clients run in this process."""

    def _run(self, *roles: str) -> None:
        for role in roles:
            history = History(self.torment.history_of(role))
            try:
                ROLES[role](role, self.broker.bootstrap, history, 0)
            finally:
                history.close()


def record(setup: QueueSetup, home: Path, *, seed: int, load_s: float, kills: int) -> list[Entry]:
    data, log = home / "data", home / "record.log"
    data.mkdir()
    recording = Recording(data, log)
    broker = setup.broker(home, recording)
    with queue_rounds.tormented(
        broker, home, seed, retention=setup.retention, roles=setup.roles, one_log=log
    ) as queue:
        queue.load_until_cut()
        for kill in range(kills + 1):
            queue.load(load_s / (kills + 1))
            queue.load_until_kept()
            check_clients(queue.torment)
            queue.torment.kill_broker()
            if kill < kills:
                queue.torment.start_broker()
    recording.close()
    return list(recording.entries())


def judge(setup: QueueSetup, cut: Cut, home: Path) -> Report | None:
    """As broker_cuts.judge()."""
    home.mkdir()
    save(cut.state, home / "data")
    ended = cut.end()
    torment = Torment(setup.broker(home), home, 0, life=cut.lives)
    try:
        torment.start_broker()
        if not cut.has_load:
            return None
        queue = _Afterwards(torment, PATIENCE_S, retention=setup.retention)
        queue.end()
        return queue.judge([*cut.history, *ended])
    finally:
        torment.broker.kill9()
        torment.close()


def _counts(done: QueueStatistics) -> dict[str, int]:
    return {
        "records": done.confirmed_sends,
        "acknowledgements": done.confirmed_acknowledgements,
        "cut": done.cut,
        "kept": done.kept,
    }


CUT_LOGS = Scene("cut logs", record, judge, _counts, since=LogCut)
