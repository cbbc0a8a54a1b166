"""`kbroker start --detach`: it returns when the broker is ready, and says where the broker logs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.cli.exits import DATA_DIRECTORY, REFUSED
from kbroker.client.rpc import Connection

PATIENCE_S = 60


def start(data_dir: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kbroker", "start", "--data-dir", str(data_dir), "--detach"]
    return subprocess.run(
        [*command, "--listen", "127.0.0.1:0", *more], capture_output=True, text=True, timeout=PATIENCE_S
    )


def pid_of(started: subprocess.CompletedProcess[str]) -> int:
    found = re.search(r"`kill (\d+)` stops it", started.stderr)
    assert found is not None, started.stderr
    return int(found[1])


def end(pid: int) -> None:
    """Its parent is gone, so nothing tells when it has ended."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and "(zombie)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    started = start(tmp_path / "data")
    assert started.returncode == 0, started.stderr
    try:
        yield started
    finally:
        end(pid_of(started))
    assert "received SIGTERM: closing" in (tmp_path / "data.log").read_text()


def test_it_serves_when_the_command_has_returned(
    detached: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    ready = re.fullmatch(r"kbroker ready on 127\.0\.0\.1:(\d+) \(.*\)\n", detached.stdout)
    assert ready is not None
    assert str(tmp_path / "data.log") in detached.stderr
    with Connection("127.0.0.1", int(ready[1])) as connection:
        assert connection.call("metadata", 7, topics=None, allow_auto_topic_creation=False).brokers
    assert (tmp_path / "data.log").read_text().count(detached.stdout) == 1
    pid = pid_of(detached)
    assert os.getsid(pid) == pid


def test_a_broker_that_does_not_start_ends_the_command(
    detached: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """Its line and its exit code are those of a start in the foreground; the log has them too."""
    refused = start(tmp_path / "data")
    assert refused.returncode == DATA_DIRECTORY
    assert refused.stdout == ""
    (line,) = (line for line in refused.stderr.splitlines() if line.startswith("kbroker: "))
    assert "in use" in line
    assert line in (tmp_path / "data.log").read_text()
    assert "received SIGTERM" not in refused.stderr


def test_a_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.log").mkdir()
    refused = start(tmp_path / "data")
    assert refused.returncode == REFUSED
    assert refused.stderr == (
        f"kbroker: --detach: the log {tmp_path / 'data.log'} cannot be opened: Is a directory\n"
    )
    assert not (tmp_path / "data").exists()
