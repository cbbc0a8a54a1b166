"""docs/queues.md: its worker and its other snippets run unchanged, and its tables are complete.

The worker is the file that readers save: it is taken from the page, and only the broker's address
comes from outside, by the environment variable that it reads.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.exits import OK
from kbroker.client.queues.settings import SETTINGS
from kbroker.client.queues.values import shown
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine
from tests.cli.conftest import Command
from tests.cli.consumer_groups import until as until_found
from tests.cli.snippets import run_lines

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "queues.md").read_text()
QUEUE = "jobs"
PATIENCE_S = 60


class Worker:
    """A process that runs the page's worker; its stderr is a file, so that writing never blocks."""

    def __init__(self, folder: Path, number: int) -> None:
        self._said = folder / f"stderr-{number}"
        with self._said.open("w") as stderr:
            self.process = subprocess.Popen([sys.executable, str(folder / "worker.py")], stderr=stderr)

    def said(self) -> str:
        return self._said.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Stop it; returns its stderr."""
        self.process.send_signal(number)
        assert self.process.wait(PATIENCE_S) == 0, self.said()
        return self.said()


Start = Callable[[], Worker]


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def worker_code() -> str:
    (code,) = (each for each in snippets() if "class Poison" in each)
    return str(code)


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A new broker for each test, as the page's queue has a fixed name."""
    with open_test_broker(storage=require_engine("segment"), extra_args=["--admin", "0"]) as running:
        yield running


@pytest.fixture
def start(broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts workers of the page; those that a test leaves running are killed."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
    (tmp_path / "worker.py").write_text(worker_code())
    started: list[Worker] = []

    def run() -> Worker:
        started.append(Worker(tmp_path, len(started)))
        return started[-1]

    yield run
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def look(command: Command, broker: RunningBroker) -> Callable[[], dict[str, Any]]:
    """The output of `describe` for the queue."""

    def described() -> dict[str, Any]:
        admin = broker.ready_line.rpartition("admin http://")[2].rstrip(")")
        return dict(command("queues", "describe", QUEUE, "--admin", admin, "--json").json)

    return described


def until(what: str, holds: Callable[[], bool]) -> None:
    until_found(what, lambda: holds() or None)


def send(command: Command, *jobs: str) -> None:
    assert command("queues", "send", QUEUE, *jobs).code == OK


def test_the_worker_is_short() -> None:
    assert len(worker_code().splitlines()) <= 32


def test_jobs_are_done_rejected_or_tried_again(
    command: Command, start: Start, look: Callable[[], dict[str, Any]]
) -> None:
    waits = ("--delay", "10ms", "--max-delay", "20ms", "--deliveries", "3")
    assert command("queues", "create", QUEUE, *waits).code == OK
    send(command, '{"seconds": 0.01}', "no JSON", '{"seconds": -1}', '{"minutes": 1}', '{"seconds": 0}')
    workers = [start(), start()]

    def settled() -> bool:
        found = look()
        return bool(found["unfinished"] == 0 and found["dead_letters"] == 3)

    until("three jobs are dead letters, and the others are done", settled)
    lines = "".join(each.stop() for each in workers)
    assert lines.count("failed:") == 3 + 1 + 3
    assert "not confirmed" not in lines
    letters = command("dead-letters", "list", f"dlq.{QUEUE}", "--json").json
    found = {each["value"]: (each["cause"], each["delivery_count"]) for each in letters}
    assert found == {
        "no JSON": ("exhausted", 3),
        '{"seconds": -1}': ("rejected", 1),
        '{"minutes": 1}': ("exhausted", 3),
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker_finishes_its_job_and_touches_no_other(
    command: Command, start: Start, look: Callable[[], dict[str, Any]], number: signal.Signals
) -> None:
    assert command("queues", "create", QUEUE).code == OK
    send(command, *['{"seconds": 1}'] * 3)
    worker = start()
    until("the worker holds a job", lambda: look()["in_flight"] == 1)
    left = look()["unfinished"] - 1
    assert worker.stop(number) == ""
    found = look()
    assert (found["unfinished"], found["ready"], found["in_flight"], found["workers"]) == (left, left, 0, [])
    taken = command("share-consume", QUEUE, "-g", QUEUE, "-n", str(left), "--json").json_lines
    assert [each["delivery_count"] for each in taken] == [1] * left, "no delivery was used up"


def test_a_killed_worker_and_a_killed_broker(
    command: Command, broker: RunningBroker, start: Start, look: Callable[[], dict[str, Any]]
) -> None:
    """The job of a killed worker goes to another one. A worker whose acknowledgement fails logs
    that, and continues when the broker is back."""
    assert command("queues", "create", QUEUE, "--delay", "10ms").code == OK
    send(command, '{"seconds": 4}')
    first = start()
    until("it holds the job", lambda: look()["in_flight"] == 1)
    first.process.kill()
    second = start()
    until("the other one has it", lambda: held_by(look(), second) == 1)
    broker.kill()
    line = "not confirmed, will be delivered again: b'{\"seconds\": 4}'\n"
    until("it says that its answer was not taken", lambda: line in second.said())
    broker.restart()
    until("it is done", lambda: look()["unfinished"] == 0)
    second.stop()


def held_by(found: dict[str, Any], worker: Worker) -> int | None:
    """How many jobs; None: not a member yet."""
    jobs = {each["client_id"]: each["jobs"] for each in found["workers"]}
    return jobs.get(f"worker-{worker.process.pid}")


def test_the_snippets_for_sending(command: Command, broker: RunningBroker) -> None:
    """The shell snippets begin with creating the queue."""
    lines = re.findall(r"^    (kbroker queues (?:create|send)[^\n]*|seq [^\n]*)", PAGE, re.MULTILINE)
    run_lines(lines[:3], broker.bootstrap)
    (code,) = (each for each in snippets() if "Producer" in each)
    ran = subprocess.run(
        [sys.executable, "-c", code.replace("127.0.0.1:9092", broker.bootstrap)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    values = [
        json.loads(each["value"])["seconds"] for each in command("queues", "peek", QUEUE, "--json").json
    ]
    assert sorted(values) == [0.5, 1, 1, 2, 2, 2, 3]


def test_the_snippets_for_later(command: Command, broker: RunningBroker) -> None:
    """The page's time is replaced by one in the future."""
    assert command("queues", "create", QUEUE).code == OK
    section = PAGE.partition("## Later, and again\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (kbroker queues send [^\n]*)", section, re.MULTILINE)
    in_an_hour = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(time.time() + 3660))
    run_lines([re.sub(r"--at [^ ]+", f"--at {in_an_hour}", line) for line in lines], broker.bootstrap)
    (first,) = (each for each in snippets() if "Producer" in each)
    (later,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    code = (first + later).replace("127.0.0.1:9092", broker.bootstrap)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    found = command("queues", "peek", QUEUE, "--json").json
    headers = [{header["name"]: header["value"] for header in job["headers"]} for job in found]
    due_ms = [job["due_ms"] for job in found]
    assert (headers[:2], due_ms[:2]) == ([{}, {}], [None, None])
    assert due_ms[2:] == sorted(due_ms[2:])
    assert [each for job in headers[2:] for each in job.items() if each[0] == "kbroker-delay-ms"] == [
        ("kbroker-delay-ms", "90000"),
        ("kbroker-delay-ms", "3600000"),
    ]
    assert len([job for job in headers if "kbroker-deliver-at" in job]) == 2


def test_every_setting_is_explained_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| (.*?) \|", PAGE, re.MULTILINE))
    defaults = {name: shown(each, each.default) for name, each in SETTINGS.items()}
    assert {name: rows.get(name) for name in defaults} == defaults
