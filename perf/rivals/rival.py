"""The interface of a rival: a server that can be started and filled, and a client function that
takes and acknowledges records."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

from kbroker.client.broker_process import free_port
from perf.queues.jobs import JobReport
from perf.rivals.server_process import ServerProcess
from perf.workloads.client_process import Link
from perf.workloads.window import Client

HOST = "127.0.0.1"
RECORD_BYTES = 100
_NUMBER_DIGITS = 12
# Debian's wrappers of the same names run only as one user, with the machine's node.
_BEFORE_PATH = "/usr/lib/rabbitmq/bin"
_BEHIND_PATH = "/usr/sbin"


class Rival(ABC):
    """One server with one kind of durability. A queue is filled, consumed once, and dropped.

    - `package`: the Debian package of the server.
    - `client`: the distribution of its Python client.
    - `delays`: whether it takes part in rows with redelivery after a delay.
    - `version`: the version of the running server.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    family: ClassVar[str]
    durability: ClassVar[str]
    package: ClassVar[str]
    client: ClassVar[str]
    delays: ClassVar[bool] = True

    def __init__(self, home: Path) -> None:
        self.home, self.port, self.version = home, free_port(), ""
        self.server: ServerProcess | None = None

    @classmethod
    def why_missing(cls) -> str | None:
        """Why the rival cannot run here, in one line; None if it can."""
        if find_program(cls.package) is None:
            return f"not installed: apt-get install {cls.package}"
        return None if client_version(cls) else f"its client is not installed: pip install {cls.client}"

    @property
    def pid(self) -> int:
        assert self.server is not None
        return self.server.pid

    def is_running(self) -> bool:
        return self.server is not None and self.server.is_running()

    def start(self) -> None:
        """Starts the server on an empty directory and returns when it responds. Raises
        ServerFailed, also if a durability setting is not in effect."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.server = self.launch()
        self.server.wait_until(self.answers)
        self.version = self.check()

    def kill(self) -> None:
        """Kills the server. No error if it does not run."""
        if self.server is not None:
            self.server.kill()

    @abstractmethod
    def launch(self) -> ServerProcess:
        """Starts the server on `port`, with all of its files below `home`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves clients."""

    @abstractmethod
    def check(self) -> str:
        """Returns the running server's version and checks its durability settings. Raises
        ServerFailed."""

    @abstractmethod
    def fill(self, queue: str, records: int, *, delay_s: float | None = None) -> None:
        """Creates a durable queue with this many records of `RECORD_BYTES`, all of them stored.
        Raises ServerFailed unless the server confirms the settings of the queue.

        `delay_s`: the delay of failed jobs, for which the queue is prepared."""

    @abstractmethod
    def consumer(self, queue: str) -> Client:
        """A process that takes a record, acknowledges it, and takes the next. All counted records
        are acknowledged when it has sent its report."""

    @abstractmethod
    def failing_consumer(self, queue: str, delay_s: float) -> Client:
        """The same, but each job fails the first time and is to be redelivered after `delay_s`. Its
        report is a JobReport, and only finished jobs are units. After its first job it waits until
        the others have had one."""

    @abstractmethod
    def left(self, queue: str) -> int:
        """The number of unacknowledged records, after all clients have disconnected."""

    @abstractmethod
    def drop(self, queue: str) -> None:
        """Deletes the queue and its records."""


def payload(number: int) -> bytes:
    """A value of RECORD_BYTES that starts with the number."""
    return b"%0*d" % (_NUMBER_DIGITS, number) + b"x" * (RECORD_BYTES - _NUMBER_DIGITS)


def number_of(value: bytes) -> int:
    return int(value[:_NUMBER_DIGITS])


class Failing:
    """The counters of a consumer whose jobs fail at their first delivery."""

    def __init__(self, link: Link) -> None:
        self._link, self._report = link, JobReport()
        link.report = self._report

    def came_again(self, value: bytes) -> None:
        """The job was redelivered; its acknowledgement comes next."""
        self._report.back.append(number_of(value))
        self._report.back_s.append(time.monotonic())

    def fails(self, value: bytes) -> None:
        """The job fails; the request that returns it comes next."""
        self._report.released.append(number_of(value))
        self._report.released_s.append(time.monotonic())

    def failed(self) -> None:
        """The request that returns the job has been sent."""
        self._link.count(0, others=1)
        self._answered()

    def done(self) -> None:
        """The job is acknowledged."""
        self._link.count(1, RECORD_BYTES)
        self._answered()

    def _answered(self) -> None:
        if self._report.first_ms is None:
            self._link.first()


def count_one(link: Link) -> None:
    """A record was taken and acknowledged. After its first record, a client waits until the others
    have had one."""
    if link.report.first_ms is None:
        link.first()
    link.count(1, RECORD_BYTES)


def find_program(name: str) -> str | None:
    """The path of a program, or None."""
    return shutil.which(
        name, path=os.pathsep.join([_BEFORE_PATH, os.environ.get("PATH", os.defpath), _BEHIND_PATH])
    )


def program(name: str) -> str:
    """The path of a program. Raises FileNotFoundError."""
    found = find_program(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def client_version(rival: type[Rival]) -> str:
    """The version of the rival's client; empty if it is not installed."""
    try:
        return version(rival.client)
    except PackageNotFoundError:
        return ""
