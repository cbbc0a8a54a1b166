"""The side of a client's process: what a workload's client is given, and what it sends back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias

SLOT_S = 0.02
FIRST_TIMEOUT_S = 60.0
"""How long a client looks for its first success."""
_STOPPED = 0
_GRACE_S = 3.0


class WorkloadFailed(Exception):
    """A workload gives no figure; the text is one line."""


@dataclass
class Report:
    """Of one client. Counters by slot of SLOT_S; `times` in seconds of the monotonic clock, one for
    each of `latencies_ms`.

    is_stuck: a call of the client library did not return when it was time to report.
    """

    units: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)
    requests: Counter[int] = field(default_factory=Counter)
    others: Counter[int] = field(default_factory=Counter)
    times: array[float] = field(default_factory=lambda: array("d"))
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    first_ms: float | None = None
    is_stuck: bool = False


Word: TypeAlias = Literal["begin", "go", "stop"]


class Link:
    """A client's end of the window. Only the report may be sent by any thread.

    numbers: memory that all processes share: whether to stop, then each client's units so far, then
    whether each has finished. What may be waited for comes by the connection, whose end is also the
    end of the parent. (The events of multiprocessing wait for each process that they wake, and for
    ever for one that was killed meanwhile.)

    longest_end_s: how long the client may go on when it is told to stop, beyond the few seconds
    that any has.
    """

    def __init__(self, number: int, clients: int, numbers: Any, connection: Connection) -> None:  # noqa: ANN401 (a RawArray)
        self.number = number
        self.longest_end_s = 0.0
        self.report = Report()
        self._progress_at, self._finished_from = 1 + number, 1 + clients
        self._numbers, self._connection = numbers, connection
        self._told: dict[Word, threading.Event] = {"begin": threading.Event(), "go": threading.Event()}
        self._began_s = 0.0
        self._reporting, self._has_reported = threading.Lock(), False

    @property
    def running(self) -> bool:
        """False as soon as the parent wants the client's report."""
        return not self._numbers[_STOPPED]

    def begin(self) -> None:
        """Wait for the other clients. What a client does before is in no figure."""
        self._connection.send("up")
        self._told["begin"].wait()
        self._began_s = time.monotonic()

    def note_first(self) -> None:
        """The moment of the first success."""
        self.report.first_ms = (time.monotonic() - self._began_s) * 1000

    def first(self, *, wait: bool = True) -> None:
        """The client has had its first success, just now unless it was noted; with `wait` it goes
        on when all have."""
        if self.report.first_ms is None:
            self.note_first()
        self._connection.send("first")
        if wait:
            self._told["go"].wait()

    def check_patience(self) -> None:
        """While there is no first success yet. Raises WorkloadFailed."""
        if self.report.first_ms is None and time.monotonic() - self._began_s > FIRST_TIMEOUT_S:
            raise WorkloadFailed(f"a client had nothing within {FIRST_TIMEOUT_S:.0f} s")

    def count(self, units: int, byte_count: int = 0, *, requests: int = 1, others: int = 0) -> None:
        """Add to the present slot. `others`: what a workload counts besides."""
        slot = int(time.monotonic() / SLOT_S)
        self.report.units[slot] += units
        self.report.bytes[slot] += byte_count
        self.report.requests[slot] += requests
        if others:
            self.report.others[slot] += others
        self._numbers[self._progress_at] += units

    def latency(self, at_s: float, latency_ms: float) -> None:
        """`at_s`: the moment that decides whether it is in the window."""
        self.report.times.append(at_s)
        self.report.latencies_ms.append(latency_ms)

    def progress_of(self, client: int) -> int:
        """Units that another client, or this one, has counted so far."""
        return int(self._numbers[1 + client])

    def finish(self) -> None:
        """This client will count nothing more."""
        self._numbers[self._finished_from + self.number] = 1

    def has_finished(self, client: int) -> bool:
        return bool(self._numbers[self._finished_from + client])

    def send_report(self) -> None:
        with self._reporting:
            if self._has_reported:
                return
            self.finish()
            self._connection.send(self.report)
            self._has_reported = True

    def listen(self) -> None:
        """A thread's work. The process ends with its parent; the report is sent even if the client
        hangs in a call of its library."""
        with contextlib.suppress(EOFError, OSError):
            while (word := self._connection.recv()) != "stop":
                self._told[word].set()
            if not self._connection.poll(_GRACE_S + self.longest_end_s) and not self._has_reported:
                self.report.is_stuck = True
                self.send_report()
            self._connection.recv()
        os._exit(1)


Work: TypeAlias = Callable[[Link, Mapping[str, Any]], None]
"""A client: it calls begin(), first(), count() while `running`, and at last send_report(), after
which it may close what it has."""


def run_client(
    work: Work,
    arguments: Mapping[str, Any],
    number: int,
    clients: int,
    numbers: Any,  # noqa: ANN401
    connection: Connection,
) -> None:
    """The process. An error travels to the parent as one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which ends its clients.
    link = Link(number, clients, numbers, connection)
    threading.Thread(target=link.listen, daemon=True).start()
    try:
        work(link, arguments)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        connection.send(
            WorkloadFailed(text if isinstance(error, WorkloadFailed) else f"{type(error).__name__}: {text}")
        )
        os._exit(1)
    os._exit(0)  # Nothing of a client library's may hold up the end.
