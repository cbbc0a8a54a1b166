"""What test brokers log while a test runs, for the report of a failing test.

pytest does not throw a test's failure into the generator of a fixture, so a broker that a fixture
opened never learns of it. `open_test_broker` therefore enters its broker here, and the pytest
plugin asks here when it reports a failure. A broker that several tests share contributes only what
it logged since the running test began. This file knows no pytest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

MAX_CHARACTERS = 4000
MAX_CLOSED = 3
"""Of the brokers that a test itself closed; some open dozens one after the other."""


@dataclass(slots=True)
class _Entry:
    """`begin` is in bytes of the log file, which all lives of one broker append to."""

    address: str
    log_file: Path
    begin: int = 0


class BrokerLogs:
    """The brokers that are open, and the logs of those that were closed since the running test
    began."""

    def __init__(self) -> None:
        self._open: list[_Entry] = []
        self._closed: deque[tuple[str, str]] = deque(maxlen=MAX_CLOSED)

    def opened(self, address: str, log_file: Path) -> None:
        self._open.append(_Entry(address, log_file))

    def closed(self, log_file: Path, *, keep: bool) -> None:
        """Call it while the file is there. Without `keep` the log is forgotten, as an error tells
        it already."""
        entry = next(each for each in self._open if each.log_file == log_file)
        self._open.remove(entry)
        if keep:
            self._closed.append((entry.address, _read(entry)))

    def begin_test(self) -> None:
        """From here on `texts` has only what is logged from here on."""
        self._closed.clear()
        for entry in self._open:
            entry.begin = entry.log_file.stat().st_size if entry.log_file.exists() else 0

    def texts(self) -> list[tuple[str, str]]:
        """Address and end of the log of each broker that logged something since the test began, at
        most MAX_CHARACTERS each."""
        found = [*self._closed, *((entry.address, _read(entry)) for entry in self._open)]
        return [(address, text) for address, text in found if text]


def _read(entry: _Entry) -> str:
    if not entry.log_file.exists():
        return ""
    return entry.log_file.read_bytes()[entry.begin :].decode(errors="replace")[-MAX_CHARACTERS:]


LOGS = BrokerLogs()
