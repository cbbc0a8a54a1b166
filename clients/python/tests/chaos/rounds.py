"""Eight share consumers and a producer behind a bad network, while they and their broker are killed
with kill -9: the processes of the test, and what happens to them.

All random choices come from one seed; the exact moments depend on the machine.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clients.python.tests.chaos.judging import Verdict, judge
from clients.python.tests.chaos.notes import GROUP, TOPIC, Note, Notes, runs_of_records
from clients.python.tests.chaos.processes import END_S, ROOT, Client, read_log
from kbroker.client.group_admin import describe_share_group_offsets
from kbroker.testing.broker import FAST_CONFIG, BrokerStartFailed, RunningBroker, free_port

MODES = "explicit", "free", "implicit"
LOOPS = "asyncio", "trio"
OPENINGS = ["kill consumer", "broker", "producer", "kill consumer"]
"""What every run does first, in a random order."""
STRIKES = {"kill consumer": 7, "stop consumer": 2, "broker": 2, "starting broker": 1, "producer": 1}
DELIVERY_LIMIT = 10
DRAIN_S = 90
SAMPLE_S = 0.2


@dataclass(frozen=True)
class Plan:
    """- `records`: how many are confirmed before the consumers end
    - `per_second`: how fast they are sent, at most
    - `pause_s`: between two kills
    - `faults`: of the first process of a role (consuming.py, producing.py), for the proof of the
      judge
    - `is_disturbed`: whether anything is killed, and the network is bad
    """

    records: int
    storage: str = "segment"
    consumers: int = 8
    partitions: int = 4
    per_second: float = 400
    pause_s: tuple[float, float] = (0.4, 1.6)
    lock_ms: int = 1000
    faults: dict[str, str] = field(default_factory=dict)
    is_disturbed: bool = True


class Chaos:
    """`done`: what was done to the processes."""

    def __init__(self, home: Path, plan: Plan, seed: int) -> None:
        self.plan, self.home = plan, home
        self.done: Counter[str] = Counter()
        self.clients: list[Client] = []
        self._chance = random.Random(seed)
        self._notes = Notes(home / "harness.notes")
        self._started = self._life = 0
        self._faults = dict(plan.faults)
        self._openings = self._chance.sample(OPENINGS, len(OPENINGS))
        self._proxy_port = free_port()
        self.broker = RunningBroker(
            home,
            storage=plan.storage,
            extra_args=["--advertise", self._address],
            config={**FAST_CONFIG, "group.share.delivery.count.limit": str(DELIVERY_LIMIT)},
        )
        self._proxy = self._start_proxy(seed)

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._proxy_port}"

    # -- processes
    # ----------------------------------------------------------------------------------------------

    def _start_proxy(self, seed: int) -> subprocess.Popen[str]:
        module = "clients.python.tests.chaos.proxy"
        arguments = map(str, (self._proxy_port, self.broker.port, seed, self.home / "proxy.json"))
        proxy = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert proxy.stdout is not None
        assert proxy.stdout.readline() == "ready\n", "the proxy did not start"
        if not self.plan.is_disturbed:
            proxy.send_signal(signal.SIGUSR1)
        return proxy

    def begin(self) -> None:
        self._start_broker()
        self.broker.create_topic(TOPIC, partitions=self.plan.partitions)
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": str(self.plan.lock_ms),
            "share.session.timeout.ms": "4000",
            "share.heartbeat.interval.ms": "500",
        }
        self.broker.set_group_config(GROUP, settings)
        for index in range(self.plan.consumers):
            self._start_consumer(MODES[index % len(MODES)], LOOPS[index % len(LOOPS)])
        self._start_producer()

    def _start_broker(self) -> None:
        self._life += 1
        self._notes.write(Note.BEGAN, self._life)
        self.broker.start()

    def _kill_broker(self) -> None:
        self.broker.kill()
        self._notes.write(Note.ENDED, self._life)
        self.done["kills of the broker"] += 1

    def _start_client(self, role: str, name: str, *arguments: object) -> None:
        own = [name, self._address, self.home / f"{name}.notes", self._chance.randrange(1 << 30)]
        log = self.home / f"{name}.log"
        fault = self._faults.pop(role, "")
        self.clients.append(Client(role, name, log, list(map(str, (*own, *arguments))), fault))

    def _start_consumer(self, mode: str, loop: str) -> None:
        self._started += 1
        self._start_client("consuming", f"{mode}-{loop}-{self._started}", loop, mode)

    def _start_producer(self) -> None:
        self._started += 1
        left = max(1, self.plan.records - self._confirmed())
        loop = self._chance.choice(LOOPS)
        plan = self.plan.partitions, left, self.plan.per_second
        self._start_client("producing", f"p{self._started}", loop, *plan)

    def _confirmed(self) -> int:
        """Records that all producers together have noted as stored."""
        lines = [line for path in self.home.glob("p*.notes") for line in path.read_text().splitlines()]
        stored = [json.loads(line)[2] for line in lines if line.startswith(f'["{Note.STORED}"')]
        return sum(run[2] for runs in stored for run in runs)

    # -- what happens to them
    # ----------------------------------------------------------------------------------------------

    def disturb(self, until_s: float) -> None:
        """Until all records are confirmed and the group has finished them."""
        while True:
            assert time.monotonic() < until_s, f"records are left after too long: {self._lag()}"
            time.sleep(self._chance.uniform(*self.plan.pause_s))
            for client in [each for each in self.clients if each.is_dead]:
                self._replace(client)
            is_sending = any(
                each.role == "producing" and each.process.poll() is None for each in self.clients
            )
            is_struck = not self._openings or not self.plan.is_disturbed
            if is_struck and not is_sending and self._lag() == 0:
                return
            if self.plan.is_disturbed:
                self._strike(is_sending=is_sending)

    def _strike(self, *, is_sending: bool) -> None:
        what = self._chance.choices(list(STRIKES), list(STRIKES.values()))[0]
        if self._openings:
            what = self._openings.pop()
        if what.endswith("consumer"):
            client = self._chance.choice([each for each in self.clients if each.role == "consuming"])
            self._replace(client, in_order=what == "stop consumer")
        elif what == "producer":
            if is_sending:
                self._replace(next(each for each in self.clients if each.role == "producing"))
        else:
            self._kill_broker()
            if what == "starting broker":
                self._start_and_kill_early()
            self._start_broker()

    def _replace(self, client: Client, *, in_order: bool = False) -> None:
        self.clients.remove(client)
        if in_order:
            client.stop()
            client.wait()
        else:
            self._notes.write(Note.CLOSING, client.name)
            client.kill()
        self.done[f"{'ends' if in_order else 'kills'} of {client.role} processes"] += 1
        if client.role == "producing":
            self._start_producer()
        else:
            self._start_consumer(*client.name.split("-")[:2])

    def _start_and_kill_early(self) -> None:
        timer = threading.Timer(self._chance.uniform(0.05, 0.6), self._kill_what_runs)
        timer.start()
        try:
            self._start_broker()
        except BrokerStartFailed:
            self.done["kills of a broker that started"] += 1
        finally:
            timer.join()
        self._kill_broker()

    def _kill_what_runs(self) -> None:
        if self.broker.is_running:
            os.kill(self.broker.pid, signal.SIGKILL)

    def _lag(self) -> int | None:
        """Records that the group has not finished; None: not known yet."""
        with self.broker.connect() as connection:
            lags = [each.lag for each in describe_share_group_offsets(connection, GROUP)]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == self.plan.partitions else None

    # -- the end
    # ----------------------------------------------------------------------------------------------

    def finish(self) -> Verdict:
        """End the faults and the clients, finish what is left, and judge."""
        self._proxy.send_signal(signal.SIGUSR1)
        self._end_clients()
        self._start_client("consuming", "drain", "trio", "drain")
        deadline_s = time.monotonic() + DRAIN_S
        while (is_left := self._lag() != 0) and time.monotonic() < deadline_s:
            time.sleep(SAMPLE_S)
        if not is_left:
            self._notes.write(Note.DRAINED)
        self._end_clients()
        self._read_log()
        return judge(self.home, self.plan.lock_ms, DELIVERY_LIMIT, self.plan.partitions)

    def _end_clients(self) -> None:
        for client in self.clients:
            client.stop()
        for client in self.clients:
            client.wait()
        self.clients.clear()

    def _read_log(self) -> None:
        for partition in range(self.plan.partitions):
            records = read_log(self.broker, partition)
            self._notes.write(Note.READ, runs_of_records(records))
            self._notes.write(Note.READ_DONE, partition)

    def network(self) -> Counter[str]:
        """What the proxy did. It ends."""
        self._proxy.terminate()
        assert self._proxy.wait(END_S) == 0, "the proxy failed"
        return Counter(json.loads((self.home / "proxy.json").read_text()))

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        self.broker.kill()
        self._proxy.kill()
        self._proxy.wait()
        if self._proxy.stdout is not None:
            self._proxy.stdout.close()
        self._notes.close()


@contextmanager
def chaos(home: Path, plan: Plan, seed: int) -> Iterator[Chaos]:
    running = Chaos(home, plan, seed)
    try:
        running.begin()
        yield running
    finally:
        running.close()
