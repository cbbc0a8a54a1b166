"""Many jobs with failures, poison and long runs, while workers get SIGTERM and SIGKILL and the
broker is killed: every effect happens once, and every poison job is a dead letter once.

The effects are idempotent, as docs/workers.md describes: a table has the ids of the jobs that are
done.
"""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from clients.python.tests.worker.queues import QUICK
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client import Outcome, Producer, Record, ShareConsumer

ROOT = Path(__file__).parents[4]
MODULE = """
import os, random, sqlite3, time
from contextlib import closing
import anyio
from kbroker_client.worker import App, Reject, Retry

app = App()

def effect(job_id):
    with closing(sqlite3.connect("effects.db", timeout=60)) as db, db:
        db.execute("INSERT INTO runs VALUES (?)", (job_id,))
        if db.execute("INSERT OR IGNORE INTO done VALUES (?)", (job_id,)).rowcount:
            db.execute("INSERT INTO effects VALUES (?)", (job_id,))

def fail(payload, job):
    if payload["do"] == "poison":
        raise ValueError(f"poison {payload['id']}")
    if payload["do"] == "flaky" and job.attempt == 1:
        raise Retry("not yet")

@app.task(queue="on-loop", concurrency=8, reject_on=(ValueError,))
async def on_loop(payload, job):
    fail(payload, job)
    if payload["do"] == "long":
        await anyio.sleep(3)
    effect(payload["id"])

@app.task(queue="in-threads", concurrency=8, reject_on=(ValueError,))
def in_threads(payload, job):
    fail(payload, job)
    if payload["do"] == "long":
        time.sleep(3)
    effect(payload["id"])
"""
QUEUES = ("on-loop", "in-threads")
SHORT_LOCKS = {"share.record.lock.duration.ms": "1000", "kbroker.queue.lock.max.ms": "0"}
POISON = 50
"""One in so many; the same for jobs that fail once. Long ones are rarer."""


def what(number: int) -> str:
    if number % POISON == 7:
        return "poison"
    if number % POISON == 11:
        return "flaky"
    return "long" if number % (10 * POISON) == 13 else "ok"


class Workers:
    def __init__(self, folder: Path, broker: RunningBroker, loop: str) -> None:
        self._folder, self._loop = folder, loop
        path = os.pathsep.join(map(str, (ROOT, ROOT / "clients" / "python" / "src")))
        self._env = {**os.environ, "PYTHONPATH": path, "KBROKER_BOOTSTRAP": broker.bootstrap}
        self._number = 0
        self.running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self) -> None:
        self._number += 1
        log = self._folder / f"worker-{self._number}.log"
        command = [sys.executable, "-m", "kbroker_client.worker", "run", "jobs:app"]
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [*command, "--loop", self._loop, "--drain", "2"],
                cwd=self._folder, env=self._env, stderr=stderr,
            )  # fmt: skip
        self.running.append((process, log))

    def replace(self, chance: random.Random) -> None:
        """One of them ends, in order or not, and another one starts."""
        process, log = self.running.pop(chance.randrange(len(self.running)))
        was_ready = "worker ready" in log.read_text() and process.poll() is None
        if chance.random() < 0.5:
            process.kill()
            process.wait()
        else:
            process.terminate()
            code = process.wait(30)
            assert code == 0 or not was_ready, log.read_text()[-4000:]
        assert "Traceback" not in _without_jobs(log.read_text()), log.read_text()[-6000:]
        self.start()

    def close(self) -> None:
        for process, _ in self.running:
            process.kill()
            process.wait()


def _without_jobs(text: str) -> str:
    """Without the tracebacks of jobs, which the worker logs for brokers that do not store them."""
    return re.sub(r"rejected\n(Traceback .*?\n)(  .*\n)*", "", text)


def done(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "effects.db", timeout=60)) as db:
        (count,) = db.execute("SELECT COUNT(*) FROM done").fetchone()
    return int(count)


async def send(bootstrap: str, jobs: int) -> None:
    async with Producer(bootstrap, linger_s=0.01) as producer:
        for index, queue in enumerate(QUEUES):
            numbers = range(index, jobs, len(QUEUES))
            values = [json.dumps({"id": number, "do": what(number)}).encode() for number in numbers]
            await producer.send_all(queue, values)


async def dead_letters(bootstrap: str, queue: str, expected: int) -> list[int]:
    """The ids of the jobs in the dead letter topic."""
    found: list[int] = []
    topic = f"dlq.{queue}"
    async with ShareConsumer(bootstrap, group=f"reader-{queue}", topics=[topic], mode="free") as consumer:
        with anyio.move_on_after(60):
            while len(found) < expected:
                for record in await consumer.poll():
                    found.append(json.loads(record.value or b"")["id"])
                    check_reason(record, found[-1])
                    consumer.acknowledge(record, Outcome.ACCEPT)
        for record in await consumer.poll(1.0):  # More than there should be.
            found.append(json.loads(record.value or b"")["id"])
    return found


def check_reason(letter: Record, number: int) -> None:
    kind, message, trace = (
        (letter.header(f"__kbroker.error.{name}") or b"").decode()
        for name in ("type", "message", "traceback")
    )
    assert (kind, message) == ("ValueError", f"poison {number}")
    assert "in fail\n" in trace


@pytest.mark.parametrize("jobs", [400, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_effects_happen_once(tmp_path: Path, jobs: int, loop: str) -> None:
    chance = random.Random(jobs)
    (tmp_path / "jobs.py").write_text(MODULE)
    with closing(sqlite3.connect(tmp_path / "effects.db")) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE done (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE effects (id INTEGER)")
        db.execute("CREATE TABLE runs (id INTEGER)")
    with open_test_broker() as broker:
        for queue in QUEUES:
            broker.create_queue(queue, {**QUICK, **SHORT_LOCKS})
            broker.set_group_config(f"reader-{queue}", {"share.auto.offset.reset": "earliest"})
        anyio.run(send, broker.bootstrap, jobs, backend=loop)
        poison = {number for number in range(jobs) if what(number) == "poison"}
        workers = Workers(tmp_path, broker, loop)
        try:
            for _ in range(3):
                workers.start()
            disturb_until(lambda: done(tmp_path) >= jobs - len(poison), workers, broker, chance)
            for index, queue in enumerate(QUEUES):
                own = sorted(number for number in poison if number % len(QUEUES) == index)
                letters = anyio.run(dead_letters, broker.bootstrap, queue, len(own), backend=loop)
                assert sorted(letters) == own
        finally:
            workers.close()
    with closing(sqlite3.connect(tmp_path / "effects.db")) as db:
        effects = Counter(number for (number,) in db.execute("SELECT id FROM effects"))
        (runs,) = db.execute("SELECT COUNT(*) FROM runs").fetchone()
    assert effects == dict.fromkeys(set(range(jobs)) - poison, 1)
    print(f"{jobs} jobs, {runs - len(effects)} second runs of finished work")


def disturb_until(is_done: object, workers: Workers, broker: RunningBroker, chance: random.Random) -> None:
    """A worker ends every second or so, and the broker is killed twice."""
    assert callable(is_done)
    deadline, turn = time.monotonic() + 600, 0
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(chance.uniform(0.5, 1.5))
        turn += 1
        if turn in (3, 9):
            broker.kill()
            broker.start()
        else:
            workers.replace(chance)
