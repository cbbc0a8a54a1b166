"""Transactions on a broker that is killed with kill -9 repeatedly.

Producers write transactions, a group transforms committed inputs to outputs with its offsets in the
same transaction, and a reader with read_committed looks on (transaction_worker.py). Brokers are
killed, sometimes again while they recover, and so are clients, whose successors take over their
transactional ids. At the end the group finishes, the broker is killed once more, and all logs are
read. The history goes to tests.judges.transaction_history.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.testing.broker import FAST_CONFIG, RunningBroker
from tests.consumer_groups.flow import broker_config
from tests.crash.harness import Client, ClientFailed, Torment, row_of
from tests.crash.tally import Progress, silent
from tests.crash.transaction_reading import INPUTS, SESSION_MS, TOPICS
from tests.crash.worker import PARTITIONS
from tests.judges.transaction_history import (
    Report,
    TransactionHistorySettings,
    TransactionStatistics,
    check,
)
from tests.powercut import recorded
from tests.powercut.recording import Recording

CONFIG = {
    **FAST_CONFIG,
    **broker_config(SESSION_MS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
SETTINGS = TransactionHistorySettings(INPUTS)
ROLES = ("write", "transform", "read")
BUSY_BYTES = 6000
"""Of events: on a busy machine a round lasts until there are so many."""
RECORDED_BYTES = 200_000
"""Likewise, with the broker's own writes."""
PATIENCE_S = 15.0


@dataclass(slots=True)
class TransactionTorment:
    torment: Torment
    replaced: int = 0
    """Clients that were killed."""
    is_brief: bool = False
    """The broker is broken on purpose: do not wait long for what it may never do."""
    _random: random.Random = field(default_factory=random.Random)

    def round(self) -> None:
        """Load, kill, start."""
        self.load(self._random.uniform(0.3, 2.5))
        if self._random.random() < 0.3:
            self._replace_a_client()
        self.torment.kill_broker()
        if self._random.random() < 0.25:
            self.torment.start_and_kill_early()
        self.torment.start_broker()

    def load(self, seconds: float) -> None:
        """At least until some more transactions have ended."""
        deadline = time.monotonic() + PATIENCE_S
        enough = self._written() + (RECORDED_BYTES if self.torment.one_log else BUSY_BYTES)
        time.sleep(seconds)
        while time.monotonic() < deadline and self._written() < enough:
            time.sleep(0.05)
        for client in list(self.torment.clients):
            if client.ended_by_its_library:
                self._replace(client)
            else:
                client.check_alive()

    def _written(self) -> int:
        """The size of the clients' histories, or of the recorder's log."""
        log = self.torment.one_log
        return sum(path.stat().st_size for path in ([log] if log else self.torment.home.glob("*.jsonl")))

    def _replace_a_client(self) -> None:
        """Kill one, and start another with the same transactional ids."""
        chosen = self._random.choice([each for each in self.torment.clients if each.role != "read"])
        self._replace(chosen)

    def _replace(self, client: Client) -> None:
        client.kill()
        self.replaced += 1
        self.torment.clients.remove(client)
        self.torment.start_client(client.role)

    def finish(self) -> None:
        """The writers end, and the group reads everything; then the broker is killed once more."""
        self._stop("write")
        self._run("settle-briefly" if self.is_brief else "settle")
        self._stop("transform", "read")
        self.torment.kill_broker()
        self.torment.start_broker()
        self._run("end")

    def _stop(self, *roles: str) -> None:
        stopped = [client for client in self.torment.clients if client.role in roles]
        for client in stopped:
            client.stop()
        for client in stopped:
            try:
                client.wait()
            except ClientFailed:
                if not client.ended_by_its_library:
                    raise
            self.torment.clients.remove(client)

    def _run(self, role: str) -> None:
        client = self.torment.start_client(role)
        client.wait()
        self.torment.clients.remove(client)

    def judge(self) -> Report:
        return check(self.torment.events(), SETTINGS)


@contextmanager
def tormented(
    broker: RunningBroker, home: Path, seed: int, *, one_log: Path | None = None
) -> Iterator[TransactionTorment]:
    """A running broker with its topics and clients; all are stopped afterwards."""
    torment = Torment(broker, home, seed, one_log, module="tests.crash.transaction_worker")
    with torment.running():
        for topic in TOPICS:
            broker.create_topic(topic, partitions=PARTITIONS, config={"segment.bytes": "1048576"})
        found = TransactionTorment(torment, _random=random.Random(seed))
        found._run("fill")
        for role in ROLES:
            torment.start_client(role)
        yield found


def broker_of(
    home: Path,
    storage: str,
    state_storage: str | None = None,
    *,
    durability: str = "disk",
    command: Sequence[str] | None = None,
    recording: Recording | None = None,
) -> RunningBroker:
    stores = {"storage": storage, "state_storage": state_storage}
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
    state_storage: str | None = None,
    command: Sequence[str] | None = None,
    is_brief: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Kill a broker for some rounds and judge. `home`: an empty directory, which keeps all
    histories."""
    progress = progress or silent()
    progress.begin(f"transactions on {row_of(engine, state_storage or engine, durability)}", "round", rounds)
    broker = broker_of(home, engine, state_storage, durability=durability, command=command)
    with tormented(broker, home, seed) as torment:
        for _ in range(rounds):
            before = torment.torment.kills
            torment.round()
            progress.step(kills=torment.torment.kills - before)
        torment.is_brief = is_brief
        torment.finish()
        report = torment.judge()
        progress.count(replaced=torment.replaced)
    progress.count(**counts(report.statistics), violations=len(report.violations))
    return report


def counts(done: TransactionStatistics) -> dict[str, int]:
    """For the summary."""
    return {
        "committed": done.committed,
        "aborted": done.aborted,
        "unknown": done.unknown,
        "outputs": done.outputs,
        "reads": done.reads,
    }
