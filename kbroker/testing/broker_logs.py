"""The log output of test brokers during a test, for the report of a failing test.

pytest does not throw a test's failure into the generator of a fixture, so a fixture cannot add its
broker's log. `open_test_broker` therefore registers its broker here, and the pytest plugin reads
the logs when it reports a failure. A broker that several tests share contributes only its output
since the running test began. This file does not import pytest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

MAX_CHARACTERS = 4000
MAX_CLOSED = 3
"""How many logs of closed brokers are kept: some tests open dozens, one after the other."""


@dataclass(slots=True)
class _Entry:
    """`begin`: where the test's output begins in the log file, in bytes. All lives of a broker
    append to the same file."""

    address: str
    log_file: Path
    begin: int = 0


class BrokerLogs:
    """The open brokers, and the logs of brokers that were closed since the running test began."""

    def __init__(self) -> None:
        self._open: list[_Entry] = []
        self._closed: deque[tuple[str, str]] = deque(maxlen=MAX_CLOSED)

    def opened(self, address: str, log_file: Path) -> None:
        self._open.append(_Entry(address, log_file))

    def closed(self, log_file: Path, *, keep: bool) -> None:
        """Call this while the file exists. Without `keep` the log is dropped, because the error of
        the block has it already."""
        entry = next(each for each in self._open if each.log_file == log_file)
        self._open.remove(entry)
        if keep:
            self._closed.append((entry.address, _read(entry)))

    def begin_test(self) -> None:
        """Let `texts` return only output from now on."""
        self._closed.clear()
        for entry in self._open:
            entry.begin = entry.log_file.stat().st_size if entry.log_file.exists() else 0

    def texts(self) -> list[tuple[str, str]]:
        """Address and log of each broker that logged something since the test began; the last
        MAX_CHARACTERS of each log."""
        found = [*self._closed, *((entry.address, _read(entry)) for entry in self._open)]
        return [(address, text) for address, text in found if text]


def _read(entry: _Entry) -> str:
    if not entry.log_file.exists():
        return ""
    return entry.log_file.read_bytes()[entry.begin :].decode(errors="replace")[-MAX_CHARACTERS:]


LOGS = BrokerLogs()
