"""Runs Kafka Streams and Kafka Connect as they are released, and kills them and their broker in the
middle of transactions.

They come from Maven by java/pom.xml. Tests are skipped where Java or Maven is missing, or where
Maven cannot fetch them.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, Message, TopicPartition

from kbroker.client.broker_process import RunningBroker
from tests.crash.transaction_reading import ends_of, read_from
from tests.differential.apache_kafka import KafkaFailed, fetched

JAVA = Path(__file__).parent / "java"
PATIENCE_S = 240.0
BURST, BURSTS_PER_S = 10, 50


def class_path(framework: str, program: str, home: Path) -> str:
    """The jars, and a program of this folder, compiled to `home`. Skips the test if the framework
    is not to be had, and names what is missing."""
    for needed in ("java", "javac", "mvn"):
        if shutil.which(needed) is None:
            pytest.skip(f"{framework} needs the program {needed}")
    try:
        jars = f"{fetched(JAVA / 'pom.xml')}/*"
    except KafkaFailed as error:
        first = str(error).partition("[ERROR] ")[2].partition("\n")[0] or str(error)
        pytest.skip(f"Maven cannot fetch {framework}: {first[:300]}")
    command = ["javac", "-d", str(home), "-cp", jars, str(JAVA / f"{program}.java")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return f"{home}:{jars}"


class JavaProgram:
    """A JVM over all its starts, with its output in `home`/`name`.log. `arguments`: its main class,
    and what follows."""

    def __init__(self, home: Path, name: str, classes: str, *arguments: str) -> None:
        self._log_file = home / f"{name}.log"
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO"]
        self._command = ["java", *options, "-cp", classes, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """Send SIGKILL and wait. No error if it has ended already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Kill and start it."""
        self.check()
        self.kill()
        self.start()

    def check(self) -> None:
        """Raises AssertionError if it has ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, f"it ended by itself; its log ends:\n{self.tail()}"

    def tail(self) -> str:
        return self._log_file.read_text(errors="replace")[-4000:]


@contextmanager
def started(programs: Sequence[JavaProgram]) -> Iterator[None]:
    """Start them, and kill them at the end. An error gets the ends of their logs."""
    try:
        for program in programs:
            program.start()
        yield
    except BaseException as error:
        for program in programs:
            error.add_note(f"the log of a program ends:\n{program.tail()}")
        raise
    finally:
        for program in programs:
            program.kill()


class Feed(threading.Thread):
    """Calls `feed` with 0, 1, 2 and so on until `end`, some hundred times a second."""

    def __init__(self, feed: Callable[[int], None]) -> None:
        super().__init__()
        self.count = 0
        self._feed, self._ended = feed, threading.Event()

    def run(self) -> None:
        while not self._ended.wait(1 / BURSTS_PER_S):
            for _ in range(BURST):
                self._feed(self.count)
                self.count += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def feeding(feed: Callable[[int], None]) -> Iterator[Feed]:
    """A running Feed, which ends with the block."""
    thread = Feed(feed)
    thread.start()
    try:
        yield thread
    finally:
        thread.end()


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"after {PATIENCE_S:.0f} s: {what} is not so"
        time.sleep(0.05)


class Output:
    """The topic that a framework writes to in transactions, as readers see it."""

    def __init__(self, broker: RunningBroker, topic: str, partitions: int) -> None:
        self._broker = broker
        self._logs = [(topic, partition) for partition in range(partitions)]
        broker.create_topic(topic, partitions=partitions)

    def _ends(self, level: IsolationLevel) -> int:
        return sum(ends_of(self._broker.bootstrap, level, self._logs).values())

    def is_open(self) -> bool:
        """Whether a transaction is open that has written records."""
        return self._ends(IsolationLevel.READ_COMMITTED) < self._ends(IsolationLevel.READ_UNCOMMITTED)

    def read(self, level: str = "read_committed") -> list[Message]:
        """All records, in order within a partition."""
        places = [TopicPartition(topic, partition, 0) for topic, partition in self._logs]
        return list(read_from(self._broker.bootstrap, places, **{"isolation.level": level}))

    def disturb(self, programs: Sequence[JavaProgram], kills: Sequence[Callable[[], None]]) -> None:
        """Call each of `kills` when a transaction is open, and others were committed since the
        last one."""
        for kill in kills:
            before = self._ends(IsolationLevel.READ_COMMITTED)
            until(lambda: self._ends(IsolationLevel.READ_COMMITTED) > before, "more is committed")  # noqa: B023
            until(self.is_open, "a transaction is open")
            kill()
        for program in programs:
            program.check()

    def read_finished(self, count: int) -> list[Message]:
        """As soon as `count` records are committed and no transaction is open."""
        until(lambda: len(self.read()) >= count and not self.is_open(), f"{count} records are committed")
        return self.read()
