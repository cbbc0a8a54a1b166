"""The side of a client's process: what a workload's client is given, and what it sends back."""

from __future__ import annotations

import os
import signal
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple, NoReturn, TypeAlias

SLOT_S = 0.02
FIRST_TIMEOUT_S = 60.0
"""How long a client looks for its first success."""
_STOPPED = 0


class WorkloadFailed(Exception):
    """A workload gives no figure; the text is one line."""


@dataclass
class Report:
    """Of one client. Counters by slot of SLOT_S; `times` in seconds of the monotonic clock, one for each of `latencies_ms`."""

    units: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)
    requests: Counter[int] = field(default_factory=Counter)
    others: Counter[int] = field(default_factory=Counter)
    times: array[float] = field(default_factory=lambda: array("d"))
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    first_ms: float | None = None


class Shared(NamedTuple):
    """What all processes see. `numbers`: whether to stop, then each client's units so far, then whether each has finished."""

    numbers: Any
    begin: Event
    go: Event


class Link:
    """A client's end of the window. Not for several threads."""

    def __init__(self, number: int, clients: int, shared: Shared, connection: Connection) -> None:
        self.number = number
        self.report = Report()
        self._progress_at, self._finished_from = 1 + number, 1 + clients
        self._shared, self._numbers, self._connection = shared, shared.numbers, connection
        self._began_s = 0.0

    @property
    def running(self) -> bool:
        """False as soon as the parent wants the client's report."""
        return not self._numbers[_STOPPED]

    def begin(self) -> None:
        """Wait for the other clients. What a client does before is in no figure."""
        self._connection.send("up")
        self._shared.begin.wait()
        self._began_s = time.monotonic()

    def first(self, *, wait: bool = True) -> None:
        """The client has had its first success; with `wait` it goes on when all have."""
        self.report.first_ms = (time.monotonic() - self._began_s) * 1000
        self._connection.send("first")
        if wait:
            self._shared.go.wait()

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
        self.finish()
        self._connection.send(self.report)


Work: TypeAlias = Callable[[Link, Mapping[str, Any]], None]
"""A client: it calls begin(), first(), count() while `running`, and at last send_report(), after which it may close what it has."""


def run_client(work: Work, arguments: Mapping[str, Any], link: Link, connection: Connection) -> None:
    """The process. An error travels to the parent as one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, which ends its clients.
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        work(link, arguments)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        connection.send(WorkloadFailed(text if isinstance(error, (WorkloadFailed,)) else f"{type(error).__name__}: {text}"))
        os._exit(1)
    connection.close()
    os._exit(0)  # Nothing of a client library's may hold up the end.


def _die_with_parent() -> NoReturn:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
