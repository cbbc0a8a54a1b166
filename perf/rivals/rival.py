"""What the comparison asks of a rival: a server to start and to fill, and a client function that
takes and acknowledges."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

from kbroker.client.broker_process import free_port
from kbroker.workloads.client_process import Link
from kbroker.workloads.window import Client
from perf.queues.jobs import JobReport
from perf.rivals.server_process import ServerProcess

HOST = "127.0.0.1"
RECORD_BYTES = 100
_NUMBER_DIGITS = 12
# Debian's commands of the same names only run as one user, with the machine's own node.
_BEFORE_PATH = "/usr/lib/rabbitmq/bin"
_BEHIND_PATH = "/usr/sbin"


class Rival(ABC):
    """One server with one way of keeping a queue durable. A queue that is filled is worked on once
    and then dropped.

    `package`: Debian's name of the server; `client`: the distribution of its Python client.
    `delays`: whether it takes part where jobs come back after a delay. `version`: of the server,
    once it runs.
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
        """One line, or None."""
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
        """On an empty directory; returns when it answers. Raises ServerFailed, also when a setting
        of durability is not in force."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.server = self.launch()
        self.server.wait_until(self.answers)
        self.version = self.check()

    def kill(self) -> None:
        """No error if it does not run."""
        if self.server is not None:
            self.server.kill()

    @abstractmethod
    def launch(self) -> ServerProcess:
        """On `port`, with everything it writes below `home`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether clients are served."""

    @abstractmethod
    def check(self) -> str:
        """Ask the running server for its version, and for its settings of durability. Raises
        ServerFailed."""

    @abstractmethod
    def fill(self, queue: str, records: int, *, delay_s: float | None = None) -> None:
        """A new durable queue with so many records of `RECORD_BYTES`, all of them stored. Raises
        ServerFailed unless the server says that the queue is kept as it is meant to be.

        `delay_s`: of jobs that fail, which the queue is then made for."""

    @abstractmethod
    def consumer(self, queue: str) -> Client:
        """A process that takes a record, acknowledges it, and takes the next. What it has counted
        is acknowledged when it has reported."""

    @abstractmethod
    def failing_consumer(self, queue: str, delay_s: float) -> Client:
        """The same, but each job fails the first time and asks to come back after `delay_s`. Its
        report is a JobReport; only jobs that are done are units. With its first job answered it
        waits for the others'."""

    @abstractmethod
    def left(self, queue: str) -> int:
        """Records that are not acknowledged, when no client is connected any more."""

    @abstractmethod
    def drop(self, queue: str) -> None:
        """The queue and all it holds."""


def payload(number: int) -> bytes:
    """Of RECORD_BYTES."""
    return b"%0*d" % (_NUMBER_DIGITS, number) + b"x" * (RECORD_BYTES - _NUMBER_DIGITS)


def number_of(value: bytes) -> int:
    return int(value[:_NUMBER_DIGITS])


class Failing:
    """What a consumer counts whose jobs fail at their first delivery."""

    def __init__(self, link: Link) -> None:
        self._link, self._report = link, JobReport()
        link.report = self._report

    def came_again(self, value: bytes) -> None:
        """Just now; its acknowledgement comes next."""
        self._report.back.append(number_of(value))
        self._report.back_s.append(time.monotonic())

    def fails(self, value: bytes) -> None:
        """The request that gives it back comes next."""
        self._report.released.append(number_of(value))
        self._report.released_s.append(time.monotonic())

    def failed(self) -> None:
        """The request has been sent."""
        self._link.count(0, others=1)
        self._answered()

    def done(self) -> None:
        """It is acknowledged."""
        self._link.count(1, RECORD_BYTES)
        self._answered()

    def _answered(self) -> None:
        if self._report.first_ms is None:
            self._link.first()


def count_one(link: Link) -> None:
    """A record was taken and acknowledged. With its first one a client waits for the others'
    first."""
    if link.report.first_ms is None:
        link.first()
    link.count(1, RECORD_BYTES)


def find_program(name: str) -> str | None:
    """Where it is, or None."""
    return shutil.which(
        name, path=os.pathsep.join([_BEFORE_PATH, os.environ.get("PATH", os.defpath), _BEHIND_PATH])
    )


def program(name: str) -> str:
    """Raises FileNotFoundError."""
    found = find_program(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def client_version(rival: type[Rival]) -> str:
    """Empty where it is not installed."""
    try:
        return version(rival.client)
    except PackageNotFoundError:
        return ""
