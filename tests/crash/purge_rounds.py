"""Idempotent producers on a broker whose logs are purged, and which is repeatedly killed or stopped
cleanly.

The producers of tests.crash.stubborn run until the broker ends, usually midway through their work.
A process with a librdkafka producer runs beside them: it is never notified of a purge and must
never get an error. At the end, after one more kill, each producer repeats its last batch and sends
its next, and all logs are read. The history goes to tests.judges.producer_history.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kbroker.testing.broker import RunningBroker
from tests.crash.harness import ClientFailed, Torment, row_of
from tests.crash.purge_topics import BROKER_CONFIG, RETENTION, create_topics
from tests.crash.stubborn import Stubborn
from tests.crash.tally import Progress, silent
from tests.judges.producer_history import Report, check


class End(Enum):
    """How a life of the broker ends:
    - ORDERLY: with SIGTERM; only then is the state of producers saved
    - PURGED: kill -9 as soon as all logs are empty
    - KILLED: kill -9 in the middle of the work
    """

    ORDERLY = "orderly"
    PURGED = "purged"
    KILLED = "killed"


STEPS = 80
"""Of a life that is not killed midway."""
FIRST_ENDS = (End.ORDERLY, End.PURGED)
"""State saved in the first life is outdated after the second."""
LATER_ENDS = (End.ORDERLY, End.PURGED, End.KILLED, End.KILLED)


@dataclass(slots=True)
class PurgeTorment:
    torment: Torment
    producers: Stubborn
    rounds: int = 0
    _random: random.Random = field(default_factory=random.Random)

    def round(self) -> None:
        """Load, end, start."""
        end = FIRST_ENDS[self.rounds] if self.rounds < len(FIRST_ENDS) else self._random.choice(LATER_ENDS)
        self.rounds += 1
        if end is End.KILLED:
            self._kill_in_the_middle()
        else:
            self.producers.work(steps=STEPS)
            if end is End.PURGED:
                self._purge_everything()
                self.torment.kill_broker()
            else:
                self.torment.stop_broker()
        for client in self.torment.clients:
            client.check_alive()
        if self._random.random() < 0.15:
            self.torment.start_and_kill_early()
        self.torment.start_broker()

    def _kill_in_the_middle(self) -> None:
        pid = self.torment.broker.pid
        timer = threading.Timer(self._random.uniform(0.1, 0.9), lambda: os.kill(pid, signal.SIGKILL))
        timer.start()
        try:
            self.producers.work()
        finally:
            timer.join()
        self.torment.kill_broker()

    def _purge_everything(self) -> None:
        """The client processes are frozen meanwhile. They resume against a broker that finds none
        of their records in its logs."""
        for client in self.torment.clients:
            client.freeze()
        self.producers.purge_everything()
        for client in self.torment.clients:
            client.thaw()

    def finish(self) -> None:
        for client in self.torment.clients:
            client.stop()
        for client in self.torment.clients:
            client.wait()
        self.torment.clients.clear()
        self.torment.kill_broker()
        self.torment.start_broker()
        self.producers.connect()
        self.producers.observe()
        self.producers.probe()
        self.producers.read_all()

    def judge(self) -> Report:
        return check(self.torment.events(), RETENTION)


@contextmanager
def tormented(broker: RunningBroker, home: Path, seed: int) -> Iterator[PurgeTorment]:
    """A running broker with its topics and a process of producers; stopped afterwards."""
    torment = Torment(broker, home, seed)
    with torment.running():
        producers = Stubborn(broker, torment.write, random.Random(seed))
        try:
            create_topics(broker)
            torment.start_client("produce-old")
            yield PurgeTorment(torment, producers, _random=random.Random(seed))
        finally:
            producers.close()


def run(
    home: Path,
    storage: str,
    state_storage: str,
    *,
    rounds: int,
    seed: int,
    durability: str = "disk",
    command: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Kill a broker for some rounds and judge. `home`: an empty directory, which keeps all
    histories and logs."""
    progress = progress or silent()
    progress.begin(f"purges on {row_of(storage, state_storage, durability)}", "round", rounds)
    broker = RunningBroker(
        home,
        storage=storage,
        state_storage=state_storage,
        config=BROKER_CONFIG,
        command=command,
        durability=durability,
    )
    with tormented(broker, home, seed) as torment:
        try:
            for _ in range(rounds):
                before = torment.torment.kills
                torment.round()
                progress.step(kills=torment.torment.kills - before)
            torment.finish()
        except ClientFailed as failure:
            failure.add_note(f"what the other producers met: {torment.judge()}")
            raise
        report = torment.judge()
    done = report.statistics
    progress.count(
        batches=done.confirmed_batches,
        retries=done.retries,
        purges=done.purges,
        violations=len(report.violations),
    )
    return report
