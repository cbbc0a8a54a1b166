"""`kbroker queues send` and the client for Python report a disk that is nearly full, with the
words of the broker. Uses a small tmpfs, so it needs the right to mount one; skipped without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import anyio
import pytest

from kbroker.cli.exits import REFUSED
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client import ErrorCode, KafkaError, Producer, TimedOut
from tests.small_disk import fill_the_rest, small_disk

SETTING = "kbroker.disk.min.free.bytes"


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with a queue `jobs`, whose disk another program has filled but for 2 MiB."""
    with (
        small_disk(tmp_path_factory.mktemp("full") / "disk", 96 << 20) as disk,
        open_test_broker(storage="segment", data_dir=disk / "data") as broker,
    ):
        broker.create_topic("jobs")
        broker.set_group_config("jobs", {"share.auto.offset.reset": "earliest"})
        fill_the_rest(disk, but_bytes=2 << 20)
        yield broker


@pytest.mark.parametrize("jobs", [1, 3, 150_000])
def test_the_command_ends_with_the_refusal(short: RunningBroker, jobs: int) -> None:
    """With 150 000 jobs it waits for room in its own memory."""
    command = [sys.executable, "-m", "kbroker", "queues", "send", "jobs", "-b", short.bootstrap]
    ran = subprocess.run(command, input="job\n" * jobs, capture_output=True, text=True, check=False)
    assert ran.returncode == REFUSED, ran.stderr
    assert SETTING in ran.stderr.strip().splitlines()[-1], ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("kind", ["topics", "queues"])
def test_a_creation_says_what_to_do(short: RunningBroker, kind: str) -> None:
    command = [sys.executable, "-m", "kbroker", kind, "create", "more", "-b", short.bootstrap]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == REFUSED, ran.stderr
    assert ran.stderr == f"kbroker: the disk is nearly full ({SETTING}): make room\n"


def test_the_client_says_what_the_broker_said(short: RunningBroker) -> None:
    async def send(delivery_timeout_s: float) -> None:
        async with Producer(short.bootstrap, delivery_timeout_s=delivery_timeout_s) as producer:
            await producer.send("jobs", b"job")

    with pytest.raises(KafkaError) as refused:
        anyio.run(send, 120.0)
    assert refused.value.code is ErrorCode.kafka_storage_error
    assert SETTING in str(refused.value)
    with pytest.raises(TimedOut) as late:
        anyio.run(send, 1.0)
    assert SETTING in str(late.value)
    assert "may be written" not in str(late.value)
