"""Counts the work of hot requests: Python calls, C calls, writes, syncs, sends and receives for
each request, in every thread of a broker.

Counts do not depend on how busy a machine is, unlike seconds. A broker runs in a thread of this
process, with a profile hook in that thread and in every thread that it starts. Requests
(hot_requests.py) come over a socket from a thread without a hook. The cost of a request is the
minimum over several windows, since a background task or one more turn of the loop usually adds to
it.

    python -m tests.server.counted_work
        print the counts, beside those of counted_work.txt
    python -m tests.server.counted_work --write
        write them to counted_work.txt, which the test compares with
    python -m tests.server.counted_work segment-os --calls fetch
        print how often each function is called, for requests with `fetch` in their name
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from kbroker.broker.options import Durability
from kbroker.client.rpc import Connection
from tests.server.broker_in_thread import broker_in_thread
from tests.server.hot_requests import SERIES, Requests, Series

TABLE = Path(__file__).with_suffix(".txt")
BROKERS: Mapping[str, tuple[str, Durability]] = {
    "segment-disk": ("segment", "disk"),
    "segment-os": ("segment", "os"),
    "lmdb-disk": ("lmdb", "disk"),
    "rocksdb-disk": ("rocksdb", "disk"),
}

_WARM_UP = 5
_WINDOWS, _REQUESTS = 3, 20
_WAITING_WINDOWS = 12
"""Where an answer waits for another request, which takes more turns on a busy machine."""
_BURST_WINDOWS = 12
"""Windows of one burst each: on a busy machine some bursts arrive in two pieces."""
_PACKAGES = ("kbroker", "trio", "kio")
_WRITES = {"Files.pwritev": 1.0, "Rdict.write": 1.0, "LmdbEnvironment.write": 0.5}
"""The last is a generator, which is entered and left: two calls."""
_SYNCS = ("Files.fdatasync", "Files.syncfs", "Rdict.flush_wal")

Calls: TypeAlias = Counter[str]
"""Python functions as `package/file.py:name`, C functions as `C name`."""


class Work(NamedTuple):
    """The work of one request, on average. `encodes`: messages encoded by kio, which is slow."""

    python: float
    c: float
    writes: float
    syncs: float
    sends: float
    receives: float
    encodes: float


class Counts:
    """The hook, and its counts since `start`."""

    def __init__(self) -> None:
        self._is_counting = False
        self._of_threads: list[tuple[dict[CodeType, int], dict[str, int]]] = []

    def hook(self, _frame: FrameType, _event: str, _arg: Any) -> None:
        """The first event of a thread. Each thread has its own hook and counts, as counting is not
        atomic."""
        python: dict[CodeType, int] = {}
        c: dict[str, int] = {}
        self._of_threads.append((python, c))

        def count(frame: FrameType, event: str, arg: Any) -> None:
            if not self._is_counting:
                return
            if event == "call":
                python[frame.f_code] = python.get(frame.f_code, 0) + 1
            elif event == "c_call":
                c[arg.__qualname__] = c.get(arg.__qualname__, 0) + 1

        sys.setprofile(count)

    def of(self, ask: Callable[[], None]) -> Calls:
        """Count the calls during `ask`."""
        for python, c in self._of_threads:
            python.clear()
            c.clear()
        self._is_counting = True
        try:
            ask()
        finally:
            self._is_counting = False
        calls: Calls = Counter()
        for python, c in self._of_threads:
            for code, count in list(python.items()):
                calls[_name(code)] += count
            for name, count in list(c.items()):
                calls[f"C {name}"] += count
        return calls


def _name(code: CodeType) -> str:
    parts = Path(code.co_filename).parts
    package = next((at for at in range(len(parts) - 1, -1, -1) if parts[at] in _PACKAGES), len(parts) - 1)
    return f"{'/'.join(parts[package:])}:{code.co_qualname}"


def _work_of(calls: Calls, requests: int) -> Work:
    def total(weight: Callable[[str], float]) -> float:
        return round(sum(weight(name) * count for name, count in calls.items()) / requests, 2)

    return Work(
        python=total(lambda name: not name.startswith("C ")),
        c=total(lambda name: name.startswith("C ")),
        writes=total(lambda name: _WRITES.get(name.rpartition(":")[2].removeprefix("C "), 0)),
        syncs=total(lambda name: name.endswith(_SYNCS)),
        sends=total(lambda name: name == "C socket.sendmsg"),
        receives=total(lambda name: name == "C socket.recv_into"),
        encodes=total(lambda name: name == "kbroker/protocol/messages.py:encode"),
    )


class Counted(NamedTuple):
    """One kind of request on one broker."""

    work: Work
    calls: Calls
    requests: int

    def most(self, count: int | None = None) -> str:
        """The most frequent calls, one line each."""
        return "\n".join(
            f"{calls / self.requests:10.2f}  {name}" for name, calls in self.calls.most_common(count)
        )


def counted_requests(broker: str, data_dir: Path, wanted: str = "") -> Iterator[tuple[str, Counted]]:
    """Each kind of request with `wanted` in its name."""
    with (
        counted_broker(data_dir, *BROKERS[broker]) as (address, counts),
        Connection(*address) as one,
        Connection(*address) as other,
    ):
        requests = Requests(one, other)
        for name, (series, burst) in SERIES.items():
            if wanted in name:
                windows = _WAITING_WINDOWS if "waiting" in name else _WINDOWS
                yield name, counted(counts, series(requests), burst, windows)


def counted(counts: Counts, ask: Series, burst: int = 1, windows: int = _WINDOWS) -> Counted:
    """The least that a request costs in one of several windows."""
    for _ in range(_WARM_UP):
        ask()
    windows, times = (windows, _REQUESTS) if burst == 1 else (_BURST_WINDOWS, 1)
    calls = min((counts.of(lambda: _repeat(ask, times)) for _ in range(windows)), key=Counter.total)
    return Counted(_work_of(calls, times * burst), calls, times * burst)


def _repeat(ask: Series, times: int) -> None:
    for _ in range(times):
        ask()


@contextmanager
def counted_broker(
    data_dir: Path, engine: str, durability: Durability, config: Mapping[str, str] | None = None
) -> Iterator[tuple[tuple[str, int], Counts]]:
    """A broker whose calls are counted, and its address."""
    counts = Counts()
    threading.setprofile(counts.hook)
    try:
        with broker_in_thread(data_dir, engine, durability, config) as address:
            yield address, counts
    finally:
        threading.setprofile(None)


# -- the table
# --------------------------------------------------------------------------------------------------

_HEAD = f"{'broker':14}{'request':34}" + "".join(f"{field:>10}" for field in Work._fields)
_ABOUT = """\
Calls and system calls for one request; `encodes` are messages that went through kio's encoder.
Written by `python -m tests.server.counted_work --write`.
test_counted_work.py fails where a count grows by more than a tenth.

"""


def line(broker: str, name: str, work: Work) -> str:
    return f"{broker:14}{name:34}" + "".join(f"{number:10g}" for number in work)


def read_table() -> dict[tuple[str, str], Work]:
    rows = TABLE.read_text().partition(_HEAD + "\n")[2].splitlines()
    return {(row[:14].strip(), row[14:48].strip()): Work(*map(float, row[48:].split())) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the work of hot requests.")
    parser.add_argument("brokers", nargs="*", metavar="BROKER", help=", ".join(BROKERS))
    parser.add_argument("--write", action="store_true", help=f"renew {TABLE.name}")
    parser.add_argument(
        "--calls", metavar="NAME", help="print every function for requests with NAME in their name"
    )
    options = parser.parse_args()
    known, lines = read_table(), []
    print(_HEAD)
    for broker in options.brokers or BROKERS:
        with tempfile.TemporaryDirectory() as home:
            for name, counted in counted_requests(broker, Path(home) / "data", options.calls or ""):
                lines.append(line(broker, name, counted.work))
                before = known.get((broker, name))
                print(lines[-1], "" if before is None else f"   before: {before.python:g} + {before.c:g}")
                if options.calls:
                    print(counted.most())
    if options.write:
        TABLE.write_text(_ABOUT + "\n".join((_HEAD, *lines)) + "\n")


if __name__ == "__main__":
    main()
