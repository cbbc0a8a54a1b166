"""A directory for the power-cut tests, in memory if there is room: only the recorder's log matters,
and real syncs take long.

Long runs show their progress and end with a summary (tests.crash.tally).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import tally

MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 30

progress = tally.progress


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tally.summarize(terminalreporter, "powercut")


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory. Files that a failed test leaves in it are moved to `tmp_path`."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="kbroker-powercut-", dir=MEMORY))
    failures = request.session.testsfailed
    yield directory
    if request.session.testsfailed > failures:
        shutil.copytree(directory, tmp_path / "home")
    shutil.rmtree(directory)
