"""The client processes of the test, and the final read of the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

from clients.python.tests.chaos.notes import TOPIC, Place, Value
from kbroker.testing.broker import RunningBroker

ROOT = Path(__file__).parents[4]
END_S = 60
READ_S = 300


class Failed(AssertionError):
    """A process ended that should not have, or did not end."""


class Client:
    def __init__(self, role: str, name: str, log: Path, arguments: list[str], fault: str) -> None:
        self.role, self.name = role, name
        self._log = log
        self._may_die = fault == "early"
        module = f"clients.python.tests.chaos.{role}"
        path = os.pathsep.join(map(str, (ROOT, ROOT / "clients" / "python" / "src")))
        env = {**os.environ, "PYTHONPATH": path + os.pathsep + os.environ.get("PYTHONPATH", "")}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, *([fault] if fault else [])],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def is_dead(self) -> bool:
        """By its own hand, after a fault. Raises Failed for any other end but a good one."""
        code = self.process.poll()
        if code in (None, 0):
            return False
        if code == -signal.SIGKILL and self._may_die:
            return True
        raise Failed(f"{self.name} ended with {code}:\n{self._log.read_text()[-6000:]}")

    def stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.name} did not end:\n{self._log.read_text()[-6000:]}") from None
        if code not in (0, -signal.SIGTERM):  # The latter: before it had begun.
            raise Failed(f"{self.name} ended with {code}:\n{self._log.read_text()[-6000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def read_log(broker: RunningBroker, partition: int) -> Iterator[tuple[Place, Value, int]]:
    """All records of a partition, read by another client and not through the proxy. The count is
    0."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "error"})
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
        assert start == 0, f"the log of partition {partition} begins at {start}"
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        position, deadline_s = 0, time.monotonic() + READ_S
        while position < end:
            assert time.monotonic() < deadline_s, (
                f"partition {partition} was read to {position} of {end} only"
            )
            for message in consumer.consume(5000, 0.2):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    position = max(position, message.offset() or 0)
                    continue
                offset, value = message.offset(), message.value()
                assert offset is not None
                assert isinstance(value, bytes)
                position = offset + 1
                yield Place(partition, offset), Value.read(value), 0
    finally:
        consumer.close()
