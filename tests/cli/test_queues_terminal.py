"""What `kbroker queues` does at a terminal, and not in a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.cli.queues.describe import _worker_lines
from kbroker.client import admin
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.terminals import in_terminal

DELETE = [sys.executable, "-m", "kbroker", "queues", "delete", "jobs"]


def answer(broker: RunningBroker, log: Path, text: bytes) -> int:
    with in_terminal([*DELETE, "-b", broker.bootstrap], log) as command:
        os.write(command.terminal, text)
        code = command.wait()
        os.close(command.terminal)
    return code


def is_there(broker: RunningBroker) -> bool:
    with broker.connect() as connection:
        return "jobs" in {topic.name for topic in admin.topics(connection)}


def test_a_deletion_asks_also_for_an_empty_queue(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_test_broker(storage="memory") as broker:
        broker.create_queue("jobs")
        assert answer(broker, log, b"n\n") == REFUSED
        assert "Delete queue jobs with its settings permanently? [y/N]" in log.read_text()
        assert is_there(broker)
        assert answer(broker, log, b"y\n") == OK
        assert not is_there(broker)


def test_a_script_is_asked_for_nothing_unless_jobs_would_be_lost() -> None:
    with open_test_broker(storage="memory") as broker:
        for jobs, code in ((0, OK), (1, USAGE)):
            broker.create_queue("jobs")
            for _ in range(jobs):
                send = [sys.executable, "-m", "kbroker", "queues", "send", "jobs", "one"]
                subprocess.run([*send, "-b", broker.bootstrap], check=True, capture_output=True)
            command = [*DELETE, "-b", broker.bootstrap]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            assert (done.returncode, is_there(broker)) == (code, bool(jobs)), done.stderr


WORKER: dict[str, Any] = {
    "member_id": "JAV8uVwnQkG2D9T45PznfA",
    "client_id": "kbroker-worker-web1-4711",
    "host": "10.0.0.11",
    "in_group": True,
    "jobs": 9,
    "left_ms": 25_300,
    "held": [{"partition": 0, "first_offset": at, "last_offset": at + 1} for at in (16, 20, 24, 28)],
}


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (200, "WORKER HOST MEMBER-ID JOBS LOCK-LEFT HOLDS"),
        (100, "WORKER HOST JOBS LOCK-LEFT HOLDS"),
        (80, "WORKER JOBS LOCK-LEFT HOLDS"),
    ],
)
def test_the_places_of_jobs_come_before_random_ids(
    monkeypatch: pytest.MonkeyPatch, width: int, headings: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = _worker_lines([WORKER], width)
    assert lines[0].split() == headings.split()
    assert max(map(len, lines)) <= width
    assert lines[1].endswith("0:16-17, 0:20-21, 0:24-25, 0:28-29")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert "MEMBER-ID" in _worker_lines([WORKER], width)[0]
