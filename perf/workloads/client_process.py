"""The client's side of a workload: its process, its link to the parent, and the report that it
sends."""

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
"""How long a client waits for its first success."""
_STOPPED = 0
_GRACE_S = 3.0


class WorkloadFailed(Exception):
    """A workload yields no figure; the text is one line."""


@dataclass
class ClientReport:
    """The counts of one client. Counters are by slot of SLOT_S; `times` has a moment of the
    monotonic clock, in seconds, for each of `latencies_ms`.

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
    """A client's link to the parent. Only send_report() may be called from any thread.

    numbers: shared memory of all processes: whether to stop, then each client's units so far, then
    whether each has finished. Events to wait for come by the connection, which also ends when the
    parent does. (An event of multiprocessing waits for each process that it wakes: forever, if one
    was killed meanwhile.)

    longest_end_s: time that the client needs to end after "stop", in addition to the few seconds
    that each client has.
    """

    def __init__(self, number: int, clients: int, numbers: Any, connection: Connection) -> None:  # noqa: ANN401 (a RawArray)
        self.number = number
        self.longest_end_s = 0.0
        self.report = ClientReport()
        self._progress_at, self._finished_from = 1 + number, 1 + clients
        self._numbers, self._connection = numbers, connection
        self._told: dict[Word, threading.Event] = {"begin": threading.Event(), "go": threading.Event()}
        self._began_s = 0.0
        self._reporting, self._has_reported = threading.Lock(), False

    @property
    def running(self) -> bool:
        """False as soon as the parent requests the report."""
        return not self._numbers[_STOPPED]

    def begin(self) -> None:
        """Wait for the other clients. Work before this is in no figure."""
        self._connection.send("up")
        self._told["begin"].wait()
        self._began_s = time.monotonic()

    def note_first(self) -> None:
        """Record the moment of the first success."""
        self.report.first_ms = (time.monotonic() - self._began_s) * 1000

    def first(self, *, wait: bool = True) -> None:
        """Report the client's first success: now, unless it was noted. With `wait`, returns when
        all clients have had theirs."""
        if self.report.first_ms is None:
            self.note_first()
        self._connection.send("first")
        if wait:
            self._told["go"].wait()

    def check_patience(self) -> None:
        """Raises WorkloadFailed if the first success takes too long. Call it until then."""
        if self.report.first_ms is None and time.monotonic() - self._began_s > FIRST_TIMEOUT_S:
            raise WorkloadFailed(f"a client had nothing within {FIRST_TIMEOUT_S:.0f} s")

    def count(self, units: int, byte_count: int = 0, *, requests: int = 1, others: int = 0) -> None:
        """Add to the present slot. `others`: a second count, whose meaning the workload defines."""
        slot = int(time.monotonic() / SLOT_S)
        self.report.units[slot] += units
        self.report.bytes[slot] += byte_count
        self.report.requests[slot] += requests
        if others:
            self.report.others[slot] += others
        self._numbers[self._progress_at] += units

    def latency(self, at_s: float, latency_ms: float) -> None:
        """`at_s`: the latency is in the window if this moment is."""
        self.report.times.append(at_s)
        self.report.latencies_ms.append(latency_ms)

    def progress_of(self, client: int) -> int:
        """Units that a client has counted so far."""
        return int(self._numbers[1 + client])

    def finish(self) -> None:
        """Declare that this client counts nothing more."""
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
        """Run in a thread. Ends the process when its parent ends, and sends the report even if the
        client hangs in a call of its library."""
        with contextlib.suppress(EOFError, OSError):
            while (word := self._connection.recv()) != "stop":
                self._told[word].set()
            if not self._connection.poll(_GRACE_S + self.longest_end_s) and not self._has_reported:
                self.report.is_stuck = True
                self.send_report()
            self._connection.recv()
        os._exit(1)


Work: TypeAlias = Callable[[Link, Mapping[str, Any]], None]
"""A client's code. It calls begin(), first(), count() while `running`, and finally send_report().
After that it may close its clients."""


def run_client(
    work: Work,
    arguments: Mapping[str, Any],
    number: int,
    clients: int,
    numbers: Any,  # noqa: ANN401
    connection: Connection,
) -> None:
    """The main function of the process. An error is sent to the parent as one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C, and ends its clients.
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
    os._exit(0)  # Skips the clean-up of client libraries, which may block.
