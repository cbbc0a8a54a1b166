"""The shipped pytest plugin, as another project's test suite sees it: pytest in an empty directory, nothing but the entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
from confluent_kafka import Producer, ShareConsumer


def test_a_record_survives_kill_and_restart(kbroker):
    kbroker.create_topic("orders", partitions=2)
    kbroker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": kbroker.bootstrap})
    producer.produce("orders", b"one")
    assert producer.flush(30) == 0
    kbroker.kill()
    kbroker.restart()
    consumer = ShareConsumer({"bootstrap.servers": kbroker.bootstrap, "group.id": "workers"})
    consumer.subscribe(["orders"])
    messages = []
    while not messages:
        messages = list(consumer.poll(1))
    assert [message.value() for message in messages] == [b"one"]
    consumer.close()
    assert kbroker.data_dir.is_dir()
    assert "ready" in kbroker.ready_line
    assert kbroker.logs()


def test_each_test_has_its_own_broker(kbroker):
    kbroker.create_topic("orders")
"""

SHARED = """
import pytest


@pytest.mark.parametrize("number", range(2))
def test_shared(kbroker, number):
    kbroker.create_topic(f"topic-{number}")
    print("PID", kbroker.pid)
"""


def run_suite(directory: Path, suite: str, *arguments: str) -> str:
    (directory / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "test_suite.py"]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("storage", ["segment", pytest.param("lmdb", marks=pytest.mark.full)])
def test_a_suite_of_somebody_else(tmp_path: Path, storage: str) -> None:
    assert "2 passed" in run_suite(tmp_path, SUITE, "--kbroker-storage", storage)


def test_one_broker_for_the_session(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nkbroker_scope = session\n")
    output = run_suite(tmp_path, SHARED, "-s")
    pids = [line.rpartition("PID ")[2] for line in output.splitlines() if "PID " in line]
    assert len(pids) == 2
    assert len(set(pids)) == 1
