"""A window of time in which several client processes work and are measured.

Each client counts its work by slot of the machine's monotonic clock, which all processes share.
Afterwards the parent decides which slots were in the window. So measuring costs a client one
addition, and no figure includes joining, the warm-up or the end of a topic.

    begin     all processes have started: they connect and subscribe together, and wait for their
              first success
    go        each client has had its first success. Clients may wait for this without holding
              records, so that the first ones do not use up a topic before the others have any
    opened    after the warm-up
    closed    after `seconds`, or when the work is nearly used up
    stop      clients send their reports, and only then close: so a client library that hangs in a
              call costs a process, but not the figure
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple, Protocol

from perf.workloads.client_process import (
    FIRST_TIMEOUT_S,
    SLOT_S,
    ClientReport,
    Word,
    Work,
    WorkloadFailed,
    run_client,
)
from perf.workloads.outcome import Percentiles, WorkloadOutcome

__all__ = ["SLOT_S", "Client", "Plan", "Watch", "Window", "WorkloadFailed", "measure"]

_UP_TIMEOUT_S = 120.0
_REPORT_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 5.0
_LOOK_CLOSELY_S = 0.001
_LISTEN_EVERY = 20
_WARM_UP_SHARE = 0.3
_NEARLY_DONE = 0.9
_SHORTEST_S = 0.1
_PRELOAD = [
    "confluent_kafka",
    *(f"perf.workloads.{name}" for name in ("produce", "fetch", "share", "latency")),
]
"""Imported once, by the process from which all clients are forked. Without it, 32 clients took five
times as long to start."""


class Watch(Protocol):
    """Called in the parent's process when the window opens and closes. It should be quick."""

    def opened(self) -> None: ...

    def closed(self) -> None: ...


class NoWatch:
    """A Watch that does nothing."""

    def opened(self) -> None: ...

    def closed(self) -> None: ...


class Plan(NamedTuple):
    """How long to measure. With `seconds` 0, only until every client has had its first success."""

    seconds: float = 3.0
    warm_up_s: float = 0.5
    watch: Watch = NoWatch()


class Client(NamedTuple):
    """A client process to start: `work` is a module's function, `arguments` are pickled."""

    work: Work
    arguments: Mapping[str, Any]


class Span(NamedTuple):
    """Slots from `first` up to, but not including, `last`. The first may begin a little before the
    window, the last may end a little after it."""

    first: int
    last: int
    seconds: float
    ran_dry: bool = False


class Window(NamedTuple):
    """The clients' reports, and the slots of the window."""

    reports: Sequence[ClientReport]
    span: Span

    def sum(self, counters: Sequence[Counter[int]]) -> int:
        """The sum of these counters within the window."""
        first, last = self.span.first, self.span.last
        return sum(count for counter in counters for slot, count in counter.items() if first <= slot < last)

    def latencies_ms(self) -> array[float]:
        """Latencies of all clients whose moment is in the window."""
        found = array("d")
        for report in self.reports:
            pairs = zip(report.times, report.latencies_ms, strict=True)
            found.extend(
                latency for at_s, latency in pairs if self.span.first <= at_s / SLOT_S < self.span.last
            )
        return found

    def outcome(self, **details: float) -> WorkloadOutcome:
        """`details` gets `stuck`, the number of clients whose library hung at the end, if there
        were any."""
        first_ms = [report.first_ms for report in self.reports if report.first_ms is not None]
        if stuck := sum(report.is_stuck for report in self.reports):
            details["stuck"] = stuck
        return WorkloadOutcome(
            records=self.sum([report.units for report in self.reports]),
            bytes=self.sum([report.bytes for report in self.reports]),
            seconds=self.span.seconds,
            requests=self.sum([report.requests for report in self.reports]),
            latencies_ms=Percentiles.of(self.latencies_ms()),
            first_record_ms=max(first_ms, default=None),
            ran_dry=self.span.ran_dry,
            details=details,
        )


def measure(
    plan: Plan, clients: Sequence[Client], *, most: int | None = None, all_of_it: bool = False
) -> Window:
    """Run the clients through one window. `most`: the number of units available; the window ends
    before they are used up.

    all_of_it: without a warm-up, the window begins with "go" and ends with the last of the `most`
    units. For workloads that are too small for a window within them. It fails if they are not
    finished within the plan's seconds.

    Blocks until all processes have ended. Raises WorkloadFailed if a client fails, ends by itself,
    or has no success in time.
    """
    crew = _Crew(clients)
    try:
        crew.hear_from_all("up", _UP_TIMEOUT_S)
        crew.tell("begin")
        crew.hear_from_all("first", FIRST_TIMEOUT_S + _REPORT_TIMEOUT_S)
        if all_of_it and most is not None:
            span = _from_go_to_the_end(plan, crew, most)
        else:
            crew.tell("go")
            span = _open_and_close(plan, crew, most)
        crew.tell("stop")
        reports = crew.reports()
        crew.join(_CLOSE_TIMEOUT_S)
    finally:
        crew.kill()
    return Window(reports, span)


def _open_and_close(plan: Plan, crew: _Crew, most: int | None) -> Span:
    """`ran_dry`: there was too little work for a figure. The window opens and closes at the
    beginning of a slot, so a watch sees exactly the counted work."""
    if plan.seconds == 0:
        slot = _slot()
        return Span(slot, slot, 0.0)
    first = crew.let_work(plan.warm_up_s, None if most is None else int(most * _WARM_UP_SHARE))
    plan.watch.opened()
    last = crew.let_work(plan.seconds, None if most is None else int(most * _NEARLY_DONE))
    plan.watch.closed()
    seconds = (last - first) * SLOT_S
    used_up = most is not None and crew.done() >= most
    return Span(first, last, seconds, used_up or seconds < min(plan.seconds / 2, _SHORTEST_S))


def _from_go_to_the_end(plan: Plan, crew: _Crew, most: int) -> Span:
    """Excludes the slot of the clients' first successes, during which the others were idle."""
    time.sleep(SLOT_S)
    plan.watch.opened()
    first, began_s = _slot(), time.monotonic()
    crew.tell("go")
    crew.let_work_until_done(plan.seconds, most)
    seconds = time.monotonic() - began_s
    plan.watch.closed()
    return Span(first, _slot() + 1, seconds)


def _slot() -> int:
    return int(time.monotonic() / SLOT_S)


class _Crew:
    """The processes of one measurement."""

    def __init__(self, clients: Sequence[Client]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self._numbers = context.RawArray("q", 1 + 2 * len(clients))
        self._count = len(clients)
        self._processes: list[ForkServerProcess] = []
        self._connections: list[Connection] = []
        self._heard: dict[Connection, list[object]] = {}
        for number, client in enumerate(clients):
            ours, theirs = context.Pipe()
            arguments = (client.work, client.arguments, number, len(clients), self._numbers, theirs)
            process = context.Process(target=run_client, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
            self._heard[ours] = []

    def done(self) -> int:
        """Units that all clients together have counted so far."""
        return sum(self._numbers[1 : 1 + self._count])

    def tell(self, word: Word) -> None:
        """Ignores a client that has ended by itself: the next _listen() finds it."""
        if word == "stop":
            self._numbers[0] = 1
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(word)

    def let_work(self, seconds: float, units: int | None) -> int:
        """Wait until the time is over or this many units are done, and then for the next slot,
        which is returned. Raises WorkloadFailed if a client fails."""
        until = math.ceil((time.monotonic() + seconds) / SLOT_S)
        while True:
            self._listen_until_s(min(until, _slot() + 1) * SLOT_S if units is not None else until * SLOT_S)
            if (slot := _slot()) >= until or (units is not None and self.done() >= units):
                return slot

    def let_work_until_done(self, seconds: float, units: int) -> None:
        """Returns within a millisecond of the last unit, and costs the clients little CPU time.
        Raises WorkloadFailed if the units take longer, or a client fails."""
        until_s = time.monotonic() + seconds
        for look in itertools.count():
            if self.done() >= units:
                return
            if time.monotonic() > until_s:
                raise WorkloadFailed(f"{self.done()} of {units} records were finished within {seconds:.0f} s")
            if look % _LISTEN_EVERY == 0:
                self._listen(0)
            time.sleep(_LOOK_CLOSELY_S)

    def hear_from_all(self, word: object, timeout_s: float) -> None:
        self._listen_until(
            lambda: all(word in heard for heard in self._heard.values()), timeout_s, f"{word!r}"
        )

    def reports(self) -> list[ClientReport]:
        self._listen_until(lambda: len(self._reports()) == self._count, _REPORT_TIMEOUT_S, "the report")
        return self._reports()

    def join(self, timeout_s: float) -> None:
        """Wait at most this long for all processes; kill() ends the others."""
        until_s = time.monotonic() + timeout_s
        for process in self._processes:
            process.join(max(0.0, until_s - time.monotonic()))

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for connection in self._connections:
            connection.close()

    def _reports(self) -> list[ClientReport]:
        return [said for heard in self._heard.values() for said in heard if isinstance(said, ClientReport)]

    def _listen_until(self, heard_enough: Callable[[], bool], timeout_s: float, what: str) -> None:
        until_s = time.monotonic() + timeout_s
        while not heard_enough():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise WorkloadFailed(f"the clients did not send {what} within {timeout_s:.0f} s")
            self._listen(left_s)

    def _listen_until_s(self, until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            self._listen(left_s)

    def _listen(self, timeout_s: float) -> None:
        """Receive words and reports that arrive within this time. Raises WorkloadFailed if a client
        has failed or ended."""
        open_ones = [connection for connection in self._connections if not self._is_done(connection)]
        for ready in wait(open_ones, timeout_s):
            assert isinstance(ready, Connection)
            try:
                said = ready.recv()
            except (EOFError, ConnectionError):
                process = self._processes[self._connections.index(ready)]
                process.join(_CLOSE_TIMEOUT_S)
                raise WorkloadFailed(
                    f"a client's process ended by itself, exit code {process.exitcode}"
                ) from None
            if isinstance(said, WorkloadFailed):
                raise said
            self._heard[ready].append(said)

    def _is_done(self, connection: Connection) -> bool:
        return any(isinstance(said, ClientReport) for said in self._heard[connection])
