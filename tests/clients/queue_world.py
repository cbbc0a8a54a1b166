"""Queues judged from outside: a real broker, queues created by `kbroker queues create`, and workers
in separate processes.

The workers' histories are merged by the monotonic clock, which all processes of a machine share.
The broker's costs are read from its metrics and from the kernel, as an operator would read them.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from kbroker.cli import run as run_command
from kbroker.client.group_admin import describe_share_group_offsets
from kbroker.testing.broker import RunningBroker, free_port, open_test_broker
from tests.brokers import require_engine

PATIENCE_S = 90.0
REPOSITORY = Path(__file__).parents[2]
SETUPS = (
    ("segment", "default", "disk"),
    ("segment", "control-records", "os"),
    ("lmdb", "default", "os"),
    ("lmdb", "control-records", "disk"),
    ("rocksdb", "default", "disk"),
    ("rocksdb", "control-records", "os"),
)
"""Engine, persister, durability: each value of one with each value of the other two."""
Job = dict[str, Any]


def setups() -> list[Any]:
    """Parameters of a test: the first setup always, the others in long runs."""
    return [SETUPS[0], *(pytest.param(each, marks=pytest.mark.full) for each in SETUPS[1:])]


class Delivery(NamedTuple):
    """`kind`, `code`, `sent_at`, `answered_at`: those of the worker's answer; None: no answer."""

    worker: QueueWorker
    topic: str
    partition: int
    offset: int
    count: int
    job: int
    at: float
    kind: str | None = None
    code: int | None = None
    sent_at: float | None = None
    answered_at: float | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    @property
    def is_done(self) -> bool:
        return self.kind == "ACCEPT" and self.code == 0


class QueueWorker:
    """One process; `command` emits the events of queue_worker.py."""

    def __init__(self, world: World, command: Sequence[str]) -> None:
        self._world = world
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        self._log: list[str] = []
        self._is_leaving = False
        self._threads = [threading.Thread(target=each) for each in (self._read_events, self._read_log)]
        for thread in self._threads:
            thread.start()

    def has_said(self, event: str) -> bool:
        return any(each["event"] == event for each in self.events)

    def deliveries(self) -> list[Delivery]:
        """In order."""
        found: list[Delivery] = []
        for event in list(self.events):
            details = {name: value for name, value in event.items() if name != "event"}
            if event["event"] == "took":
                found.append(Delivery(self, **details))
            elif event["event"] == "answered":
                place = event["topic"], event["partition"], event["offset"]
                index = max(number for number, each in enumerate(found) if each.place == place)
                answer = {"kind": event["kind"], "code": event["code"], "sent_at": event["sent_at"]}
                found[index] = found[index]._replace(**answer, answered_at=event["at"])
        return found

    def holds(self) -> list[Delivery]:
        return [each for each in self.deliveries() if each.kind is None]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Send SIGTERM, once: a second one may reach a process whose handlers are gone. Does not
        wait."""
        if not self._is_leaving:
            self._is_leaving = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        self.leave()
        assert self.process.wait(PATIENCE_S) == 0, self.log
        self._threads[0].join()

    @property
    def log(self) -> str:
        return "".join(self._log)

    def dispose(self) -> None:
        self.kill()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._world.changed:
                self.events.append(json.loads(line))
                self._world.changed.notify_all()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self._log.extend(self.process.stderr)


class World:
    """A broker, its queues and their workers. Workers that a test leaves running are killed."""

    def __init__(self, broker: RunningBroker, admin_port: int) -> None:
        self.broker = broker
        self.changed = threading.Condition()
        self.workers: list[QueueWorker] = []
        self._producers: dict[str, Producer] = {}
        """By codec."""
        self._admin = f"127.0.0.1:{admin_port}"

    # --- the operator ---

    def kbroker(self, *arguments: str) -> str:
        """Run a command that must succeed; return its output."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run_command([*arguments, "--bootstrap-server", self.broker.bootstrap])
        assert code == 0, f"kbroker {' '.join(arguments)}: {code}\n{out.getvalue()}{err.getvalue()}"
        return out.getvalue()

    def create_queue(self, name: str, *options: str) -> None:
        self.kbroker("queues", "create", name, *options)

    def describe(self, queue: str) -> dict[str, Any]:
        return dict(json.loads(self.kbroker("queues", "describe", queue, "--admin", self._admin, "--json")))

    def configure(self, queue: str, **configs: str) -> None:
        """Group settings; `__` stands for a dot."""
        self.broker.set_group_config(
            queue, {name.replace("__", "."): value for name, value in configs.items()}
        )

    def dead_letters(self, queue: str) -> list[dict[str, Any]]:
        return list(json.loads(self.kbroker("dead-letters", "list", f"dlq.{queue}", "--json")))

    def lag(self, queue: str) -> int:
        with self.broker.connect() as connection:
            rows = describe_share_group_offsets(connection, queue)
        return sum(row.lag or 0 for row in rows)

    def metrics(self) -> dict[str, float]:
        """By name: sums over all labels. By `name{value}`: sums over the samples with this label
        value."""
        families = list(text_string_to_metric_families(self._scraped()))
        found: Counter[str] = Counter()
        for sample in (sample for family in families for sample in family.samples):
            found[sample.name] += sample.value  # type: ignore[assignment]
            for value in set(sample.labels.values()):
                found[f"{sample.name}{{{value}}}"] += sample.value  # type: ignore[assignment]
        return dict(found)

    def _scraped(self) -> str:
        """A broker whose clock is fast may give up an answer before it is sent."""
        url = f"http://{self._admin}/metrics"
        for _ in range(20):
            with suppress(RemoteDisconnected), urllib.request.urlopen(url) as answer:
                return str(answer.read().decode())
        raise AssertionError(f"no answer from {url}")

    def cpu_s(self) -> float:
        """CPU time of the broker's process, all threads."""
        threads = Path(f"/proc/{self.broker.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    # --- senders ---

    def send(
        self,
        topic: str,
        jobs: Iterable[Job],
        *,
        codec: str = "none",
        partition: int = 0,
        headers: Mapping[str, str] | None = None,
        timestamp_ms: int = 0,
    ) -> int:
        """Send in one batch. Returns the number of payload bytes. `timestamp_ms` 0: now. The
        producer is not idempotent: librdkafka would wait half a second before the first batch, and
        nothing here makes it send a batch twice."""
        producer = self._producers.get(codec)
        if producer is None:
            settings = {
                "bootstrap.servers": self.broker.bootstrap,
                "linger.ms": 1000,
                "compression.type": codec,
            }
            producer = self._producers[codec] = Producer({**settings, "acks": "all", "log_level": 0})
        failed: list[object] = []
        size = 0
        for job in jobs:
            value = json.dumps(job).encode()
            size += len(value)
            producer.produce(
                topic,
                value,
                partition=partition,
                timestamp=timestamp_ms,
                headers=dict(headers or {}),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(60) == 0
        assert not failed, failed
        return size

    def forget_metadata(self) -> None:
        """Let senders see new partitions from now on; producers refresh their metadata only every
        five minutes."""
        self._producers.clear()

    # --- workers ---

    def start(self, count: int, queue: str, *topics: str, **settings: str) -> list[QueueWorker]:
        """Settings of librdkafka; `__` stands for a dot. Returns when the workers are members that
        fetch."""
        return self._start([(queue, topics or (queue,))] * count, settings)

    def start_each(self, queues: Iterable[str], **settings: str) -> list[QueueWorker]:
        """One worker for each of the queues."""
        return self._start([(queue, (queue,)) for queue in queues], settings)

    def _start(
        self, wanted: Sequence[tuple[str, Sequence[str]]], settings: Mapping[str, str]
    ) -> list[QueueWorker]:
        more = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
        program = [sys.executable, "-m", "tests.clients.queue_worker", self.broker.bootstrap]
        sessions = self.metrics().get("kbroker_share_sessions", 0)
        new = [QueueWorker(self, [*program, queue, ",".join(topics), *more]) for queue, topics in wanted]
        self.workers += new
        self.until("the workers are ready", lambda: all(each.has_said("ready") for each in new))
        self.until("they fetch", lambda: self.metrics()["kbroker_share_sessions"] >= sessions + len(new))
        return new

    def run(self, command: Sequence[str]) -> QueueWorker:
        """Run any program that emits the events of queue_worker.py."""
        self.workers.append(QueueWorker(self, command))
        return self.workers[-1]

    def deliveries(self, queue: str | None = None) -> list[Delivery]:
        """Of all workers, by time."""
        found = [each for worker in self.workers for each in worker.deliveries()]
        return sorted((each for each in found if queue in (None, each.topic)), key=lambda each: each.at)

    def by_job(self, topic: str) -> dict[int, list[Delivery]]:
        found: dict[int, list[Delivery]] = {}
        for each in self.deliveries(topic):
            found.setdefault(each.job, []).append(each)
        return found

    def until(self, what: str, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Evaluate the condition after every event, and every tenth of a second."""
        deadline = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {patience_s:.0f} s: {what}\n{self._state()}")
            with self.changed:
                self.changed.wait(0.1)

    def until_empty(self, queue: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until no job is unfinished."""
        self.until(f"{queue} is worked off", lambda: self.lag(queue) == 0, patience_s)

    def _state(self) -> str:
        lines = []
        for number, worker in enumerate(self.workers):
            found = worker.deliveries()
            ended = worker.process.poll()
            lines.append(
                f"worker {number}: {len(found)} deliveries, ended {ended}, {found[-1:]} {worker.log[-1000:]}"
            )
        return "\n".join(lines)

    def check_each_once(self, topic: str, jobs: Iterable[int]) -> None:
        """Each of the jobs was delivered once and done once, and no other job was delivered."""
        self.until(
            "the workers have their answers", lambda: all(each.kind for each in self.deliveries(topic))
        )
        found, wanted = self.by_job(topic), set(jobs)
        missing = sorted(wanted - found.keys())
        assert not missing, f"{len(missing)} jobs were not delivered: {missing[:5]}"
        odd = {
            job: [(each.count, each.kind, each.code) for each in all_of_it]
            for job, all_of_it in found.items()
            if job not in wanted or len(all_of_it) != 1 or all_of_it[0].count != 1 or not all_of_it[0].is_done
        }
        assert not odd, f"{len(odd)} jobs were not done at one delivery: {dict(list(odd.items())[:5])}"

    def dispose(self) -> None:
        for worker in self.workers:
            worker.dispose()
        self.workers.clear()
        self._producers.clear()


def stop(workers: Iterable[QueueWorker]) -> None:
    """Stop all workers at once, each cleanly."""
    every = list(workers)
    for worker in every:
        worker.leave()
    for worker in every:
        worker.stop()


@contextmanager
def open_world(
    engine: str = "segment", *, persister: str = "default", durability: str = "disk", **options: Any
) -> Iterator[World]:
    """Open a broker with lower bounds of locks and sessions that are short enough for tests; `more`
    goes to RunningBroker."""
    port = free_port()
    config = {"kbroker.persister": persister, **options.pop("config", {})}
    with open_test_broker(
        storage=require_engine(engine),
        durability=durability,
        config=config,
        extra_args=["--admin", f"127.0.0.1:{port}"],
        **options,
    ) as broker:
        world = World(broker, port)
        try:
            yield world
        finally:
            world.dispose()
