"""A broker that is killed with kill -9 repeatedly under load, and the history of it.

`torment` starts a broker and its clients, kills the broker (and sometimes a client) at random
moments, and restarts it on the same port and directory. At the end a last consumer drains the group
and another one reads the logs. The history goes to tests.judges.history.check. All random
choices come from one seed; the exact moments depend on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.testing.broker import FAST_CONFIG, BrokerStartFailed, RunningBroker
from tests.crash.tally import Progress, silent
from tests.crash.worker import CONSUMERS_PER_PROCESS, GROUP, LOCK_MS, PARTITIONS, SESSION_MS, TOPIC, History
from tests.judges.history import GroupSettings, Report, check
from tests.judges.history_events import Closing, Event, LifeBegan, LifeEnded, merge, read_lines

ROOT = Path(__file__).parents[2]
LAUNCHER = [sys.executable, str(ROOT / "tests" / "crash" / "launcher.py")]
DELIVERY_LIMIT = 10
SETTINGS = GroupSettings(lock_ms=LOCK_MS, delivery_limit=DELIVERY_LIMIT)
GROUP_CONFIG = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": str(LOCK_MS),
    "share.session.timeout.ms": str(SESSION_MS),
    "share.heartbeat.interval.ms": "500",
}
BROKER_CONFIG = {
    **FAST_CONFIG,
    "group.share.delivery.count.limit": str(DELIVERY_LIMIT),
    "group.share.record.lock.duration.ms": str(LOCK_MS),
}
CLIENT_END_S = 90


class ClientFailed(AssertionError):
    """A client ended by itself after an error that no client should meet, such as a fatal error of
    an idempotent producer."""


LIBRARY_CRASH = "unaligned tcache chunk detected"


class Client:
    """One client process."""

    def __init__(
        self, module: str, role: str, name: str, bootstrap: str, history: Path, seed: int, errors: Path
    ) -> None:
        self.role, self.name = role, name
        self._errors = errors
        command = [sys.executable, "-m", module, role, name, bootstrap, str(history), str(seed)]
        with errors.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        code = self._process.wait(CLIENT_END_S)
        if code != 0:
            raise ClientFailed(f"client {self.name} ended with {code}:\n{self._errors.read_text()[-4000:]}")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise ClientFailed(f"client {self.name} ended early:\n{self._errors.read_text()[-4000:]}")

    @property
    def ended_by_its_library(self) -> bool:
        """Whether librdkafka destroyed its own heap, which happens when several fenced producers of
        a process end at once. The history has everything up to then, as after a kill."""
        if self._process.poll() != -signal.SIGABRT:
            return False
        return self._errors.read_text().rstrip().endswith(LIBRARY_CRASH)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(slots=True)
class Torment:
    """One broker with its clients. `history_of` maps a process name to the file that it writes
    to."""

    broker: RunningBroker
    home: Path
    seed: int
    one_log: Path | None = None
    """If set, all processes write their events there, as marks of the power-cut recorder."""
    module: str = "tests.crash.worker"
    """The module of the client processes."""
    life: int = 0
    kills: int = 0
    """Kills of the broker, with kill -9."""
    clients: list[Client] = field(default_factory=list)
    _started: int = 0
    _random: random.Random = field(default_factory=random.Random)
    _own: History | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._own = History(self.history_of("harness"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the broker; at the end kill it and all clients."""
        self.start_broker()
        try:
            yield
        finally:
            for client in self.clients:
                client.kill()
            self.broker.kill9()
            self.close()

    def history_of(self, name: str) -> Path:
        return self.one_log or self.home / f"{name}.jsonl"

    def write(self, event: Event) -> None:
        assert self._own is not None
        self._own.write(event)

    def close(self) -> None:
        assert self._own is not None
        self._own.close()

    def start_broker(self) -> None:
        self.life += 1
        self.write(LifeBegan(time.monotonic_ns(), self.life))
        self.broker.start()

    def kill_broker(self) -> None:
        self.broker.kill9()
        self.kills += 1
        self.write(LifeEnded(time.monotonic_ns(), self.life))

    def stop_broker(self) -> None:
        """Stop cleanly, whatever the clients are doing."""
        self.broker.stop()
        self.write(LifeEnded(time.monotonic_ns(), self.life, orderly=True))

    def start_and_kill_early(self) -> None:
        """Kill it while it starts or recovers, if that takes long enough."""
        timer = threading.Timer(self._random.uniform(0.05, 0.6), self._kill_what_runs)
        timer.start()
        try:
            self.start_broker()
        except BrokerStartFailed:
            pass
        finally:
            timer.join()
        self.kill_broker()

    def _kill_what_runs(self) -> None:
        """In a thread: after a failed start there is no process left."""
        if self.broker.is_running:
            os.kill(self.broker.pid, signal.SIGKILL)

    def start_client(self, role: str) -> Client:
        self._started += 1
        name = f"{role}{self._started}"
        seed = self._random.randrange(1 << 30)
        client = Client(
            self.module,
            role,
            name,
            self.broker.bootstrap,
            self.history_of(name),
            seed,
            self.home / f"{name}.err",
        )
        self.clients.append(client)
        return client

    def kill_a_consumer(self) -> None:
        """Kill one and start a replacement."""
        client = self._random.choice([client for client in self.clients if client.role.startswith("consume")])
        for number in range(CONSUMERS_PER_PROCESS):
            self.write(Closing(time.monotonic_ns(), f"{client.name}.{number}"))
        client.kill()
        self.clients.remove(client)
        self.start_client(client.role)

    def round(self) -> None:
        """Load, kill, start."""
        time.sleep(self._random.uniform(0.2, 1.6))
        for client in self.clients:
            client.check_alive()
        if self._random.random() < 0.2:
            self.kill_a_consumer()
        self.kill_broker()
        if self._random.random() < 0.15:
            self.start_and_kill_early()
        self.start_broker()

    def finish(self) -> None:
        """Stop the clients cleanly, drain, read."""
        for role in ("produce", "consume"):
            stopped = [client for client in self.clients if client.role == role]
            for client in stopped:
                client.stop()
            for client in stopped:
                with self._stacks_if_it_fails():
                    client.wait()
                self.clients.remove(client)
        for role in ("drain", "read"):
            self._run_client(role)

    def judge(self) -> Report:
        """Records that were not drained get a second chance (worker.MUCH_LONGER_S)."""
        report = check(self.events(), SETTINGS)
        if "unfinished" in {violation.rule for violation in report.violations}:
            self._run_client("drain-again")
            report = check(self.events(), SETTINGS)
        return report

    def _run_client(self, role: str) -> None:
        with self._stacks_if_it_fails():
            self.start_client(role).wait()
        self.clients.clear()

    @contextmanager
    def _stacks_if_it_fails(self) -> Iterator[None]:
        """A client that does not finish may wait for a broker that does not answer: the broker's
        stacks go to its log."""
        try:
            yield
        except ClientFailed as failure:
            if self.broker.is_running:
                before = len(self.broker.logs())
                self.broker.tell_stacks()
                deadline = time.monotonic() + 10
                while len(self.broker.logs()) == before and time.monotonic() < deadline:
                    time.sleep(0.05)
            raise ClientFailed(f"{failure}\nthe broker's log ends:\n{self.broker.log_tail()}") from failure

    def events(self) -> list[Event]:
        histories = [
            path.read_bytes().splitlines(keepends=True) for path in sorted(self.home.glob("*.jsonl"))
        ]
        return merge(read_lines(lines) for lines in histories)


@contextmanager
def tormented(
    broker: RunningBroker, home: Path, seed: int, *, one_log: Path | None = None
) -> Iterator[Torment]:
    """A running broker with its topic and group, two consumer processes and a producer process; all
    are stopped afterwards."""
    torment = Torment(broker, home, seed, one_log)
    with torment.running():
        broker.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": "1048576"})
        broker.set_group_config(GROUP, GROUP_CONFIG)
        for role in ("produce", "consume", "consume"):
            torment.start_client(role)
        yield torment


def broker_of(
    home: Path,
    storage: str,
    state_storage: str,
    *,
    command: Sequence[str] | None = None,
    durability: str = "disk",
    persister: str = "default",
) -> RunningBroker:
    """A broker whose `command` is LAUNCHER, which knows the engines that are broken on purpose."""
    config = {**BROKER_CONFIG, "kbroker.persister": persister}
    return RunningBroker(
        home,
        storage=storage,
        state_storage=state_storage,
        config=config,
        command=command,
        durability=durability,
    )


def run(
    home: Path,
    storage: str,
    state_storage: str,
    *,
    rounds: int,
    seed: int,
    command: Sequence[str] | None = None,
    durability: str = "disk",
    persister: str = "default",
    progress: Progress | None = None,
) -> Report:
    """Kill a broker for some rounds and judge. `home`: an empty directory, which keeps all
    histories and logs."""
    progress = progress or silent()
    progress.begin(row_of(storage, state_storage, durability, persister), "round", rounds)
    broker = broker_of(
        home, storage, state_storage, command=command, durability=durability, persister=persister
    )
    with tormented(broker, home, seed) as torment:
        for _ in range(rounds):
            before = torment.kills
            torment.round()
            progress.step(kills=torment.kills - before)
        torment.finish()
        report = torment.judge()
    done = report.statistics
    progress.count(
        records=done.records,
        acknowledgements=done.confirmed_acknowledgements,
        violations=len(report.violations),
    )
    return report


def row_of(storage: str, state_storage: str, durability: str = "disk", persister: str = "default") -> str:
    """The name of a setup in the summary."""
    engines = storage if storage == state_storage else f"{storage} + {state_storage}"
    if persister != "default":
        engines += f", persister {persister}"
    return engines if durability == "disk" else f"{engines}, durability {durability}"
