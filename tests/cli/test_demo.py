"""`kbroker demo` in small: the summary must add up, and the lag on disk must be zero when everything is finished."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kbroker.cli.demo_orders import Verdict, handle, orders


def test_the_summary_adds_up() -> None:
    arguments = [sys.executable, "-m", "kbroker", "demo", "--orders", "3000", "--consumers", "2"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    summary = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in ended.stdout.splitlines() if "  " in line.strip())
    fates = Counter((handle(order, 1), handle(order, 2)) for order in orders(3000))
    flaky = fates[Verdict.RELEASE, Verdict.ACCEPT]
    hopeless = fates[Verdict.RELEASE, Verdict.RELEASE]
    assert number(summary["accepted"]) == fates[Verdict.ACCEPT, Verdict.ACCEPT] + flaky
    assert number(summary["rejected (poison)"]) == fates[Verdict.REJECT, Verdict.REJECT]
    assert number(summary["archived after 5 deliveries"]) == hopeless
    assert number(summary["lag, read from disk"]) == 0
    redelivered = next(number(text) for name, text in summary.items() if "after a failure" in name)
    assert redelivered >= flaky + 4 * hopeless
    assert ended.stdout.endswith("the broker was stopped and ended cleanly\n")


def test_a_demo_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "kbroker", "demo"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        found = re.match(r"kbroker ready on 127.0.0.1:(\d+) ", process.stdout.readline())
        assert found
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(found[1])))


def number(text: str) -> int:
    return int(text.split()[0].replace(",", ""))
