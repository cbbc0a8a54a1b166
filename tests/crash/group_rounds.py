"""Consumer groups on a broker that is killed with kill -9 repeatedly, while their members join,
leave, die and freeze.

Two groups read one topic at the same time, with producers running. Each kind of members has rounds
with each other kind. At the end the groups read to the end of the topic, their members leave, the
broker is killed once more, and the committed offsets are read after its restart. Each group has its
own history (each includes the broker's lives, the producers and the logs), for
tests.judges.group_history.check.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.testing.broker import FAST_CONFIG, RunningBroker
from tests.consumer_groups.crew import Crew
from tests.consumer_groups.flow import broker_config, is_drained, note_committed
from tests.crash.harness import Torment, row_of
from tests.crash.tally import Progress, silent
from tests.crash.worker import PARTITIONS, TOPIC
from tests.judges.group_history import Report, check

SESSION_MS = 4000
"""Long enough that no member loses its membership just because the machine is busy."""
CONFIG = {**FAST_CONFIG, **broker_config(SESSION_MS)}
KINDS = {
    "range": ["range"],
    "cooperative": ["cooperative"],
    "consumer": ["consumer"],
    "mixed": ["range", "consumer"],
}
"""Names of groups, and the kinds of their members in turn."""
BOTH_PROTOCOLS = ("range", "consumer")
BETWEEN_BOTH = ("cooperative", "mixed")
PATIENCE_S = 120.0


@dataclass(slots=True)
class GroupTorment:
    """`crews`: one per group."""

    torment: Torment
    crews: list[Crew]
    _random: random.Random = field(default_factory=random.Random)

    def round(self) -> None:
        """Load, kill, start. Some lives last longer: a member that died is removed a session
        timeout after the broker's start."""
        longest_s = self._random.choice([2.2, 2.2, 2.2, 2.2 * SESSION_MS / 1000])
        until = time.monotonic() + self._random.uniform(0.3, longest_s)
        while time.monotonic() < until:
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))
            for crew in self.crews:
                crew.thaw_due()
                if self._random.random() < 0.5:
                    crew.stir()
        self._check_alive()
        self.torment.kill_broker()
        if self._random.random() < 0.15:
            self.torment.start_and_kill_early()
        self.torment.start_broker()

    def _check_alive(self) -> None:
        for part in (*self.torment.clients, *self.crews):
            part.check_alive()

    def finish(self) -> None:
        """Producers end, and the groups read everything and end; after one more kill everything is
        read."""
        for client in self.torment.clients:
            client.stop()
        for client in self.torment.clients:
            client.wait()
        self.torment.clients.clear()
        for crew in self.crews:
            crew.settle()
        for crew in self.crews:
            self._until(lambda crew=crew: is_drained(self.torment.broker, crew, PARTITIONS))
        for crew in self.crews:
            crew.finish()
        self.torment.kill_broker()
        self.torment.start_broker()
        self.torment.start_client("read").wait()
        self.torment.clients.clear()
        for crew in self.crews:
            note_committed(self.torment.broker, crew, PARTITIONS)

    def _until(self, happened: Callable[[], bool]) -> None:
        """Returns after a long time in any case; the judge decides."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not happened():
            time.sleep(0.1)

    def judge(self) -> dict[str, Report]:
        return {crew.group: check(crew.events(*self.torment.home.glob("*.jsonl"))) for crew in self.crews}


@contextmanager
def tormented(broker: RunningBroker, home: Path, groups: Sequence[str], seed: int) -> Iterator[GroupTorment]:
    """A running broker with its topic, a process with producers, and the members of the groups; all
    are stopped afterwards."""
    torment = Torment(broker, home, seed)
    torment.start_broker()
    crews = [
        Crew(
            home / group, broker.bootstrap, group, TOPIC, KINDS[group], SESSION_MS, seed * 10 + number, size=2
        )
        for number, group in enumerate(groups)
    ]
    try:
        broker.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": "1048576"})
        torment.start_client("produce")
        for crew in crews:
            crew.fill()
        yield GroupTorment(torment, crews, random.Random(seed))
    finally:
        for part in (*crews, *torment.clients):
            part.dispose() if isinstance(part, Crew) else part.kill()
        broker.kill9()
        torment.close()


def run(
    home: Path,
    engine: str,
    groups: Sequence[str],
    *,
    rounds: int,
    seed: int,
    durability: str = "disk",
    state_storage: str | None = None,
    command: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Report]:
    """Kill a broker for some rounds and judge; returns a report for each group. `home`: an empty
    directory, which keeps all histories."""
    progress = progress or silent()
    progress.begin(f"groups on {row_of(engine, state_storage or engine, durability)}", "round", rounds)
    broker = RunningBroker(
        home,
        storage=engine,
        state_storage=state_storage,
        config=CONFIG,
        command=command,
        durability=durability,
        extra_args=["--log-level", "debug"],  # only the log shows the responses to members
    )
    with tormented(broker, home, groups, seed) as torment:
        for _ in range(rounds):
            before = torment.torment.kills
            torment.round()
            progress.step(kills=torment.torment.kills - before)
        torment.finish()
        reports = torment.judge()
        for crew in torment.crews:
            progress.count(members=crew.joined, killed=crew.killed, frozen=crew.frozen)
    for report in reports.values():
        done = report.statistics
        progress.count(turns=done.turns, reads=done.reads, reread=done.reread, commits=done.confirmed_commits)
        progress.count(refused=done.refused_commits, violations=len(report.violations))
    return reports
