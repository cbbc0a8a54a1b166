"""Long runs show their progress and end with a summary (tests.crash.tally)."""

from __future__ import annotations

import pytest

from tests.crash import tally

progress = tally.progress


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tally.summarize(terminalreporter, "crash")
