"""`kbroker demo` on a small scale: after two kills the tally must be exact, and the lag on disk
zero."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kbroker.cli.demo.orders import Verdict, handle, orders
from kbroker.cli.demo.tally import Tally
from kbroker.cli.demo.view import open_bars


def test_the_tally_is_exact_after_two_kills() -> None:
    """A consumer and the broker are killed while orders are in flight; each order is still
    finished, and once."""
    shown, summary = run_demo("--orders", "3000", "--consumers", "2")
    fates = Counter((handle(order, 1), handle(order, 2)) for order in orders(3000))
    flaky = fates[Verdict.RELEASE, Verdict.ACCEPT]
    hopeless = fates[Verdict.RELEASE, Verdict.RELEASE]
    assert number(summary["accepted"]) == fates[Verdict.ACCEPT, Verdict.ACCEPT] + flaky
    assert number(summary["rejected (poison)"]) == fates[Verdict.REJECT, Verdict.REJECT]
    assert number(summary["given up after 5 deliveries"]) == hopeless
    assert summary["finished"] == "3,000 of 3,000, each exactly once"
    assert number(summary["lag, read from disk"]) == 0
    in_hand, in_flight = (
        number(summary["held when the consumer was killed"]),
        number(summary["in flight when the broker was killed"]),
    )
    assert summary["held when the consumer was killed"] == f"{in_hand:,}, all delivered again"
    assert f"killed with kill -9, {in_hand:,} orders held; consumer 3 replaces it\n" in shown
    assert f"broker killed with kill -9, {in_flight:,} orders in flight to " in shown
    assert min(in_hand, in_flight) > 0
    assert number(summary["deliveries, from one partition"]) == 3000 + number(
        summary["of these, redelivered"]
    )
    assert number(summary["of these, redelivered"]) >= in_hand
    killed_at, again_at, done_at = (
        shown.index(text) for text in ("broker killed", "broker ready again", "3,000 of 3,000 finished")
    )
    assert killed_at < again_at < done_at


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "sasl_plaintext"])
def test_clients_with_tls_and_log_ins(protocol: str) -> None:
    shown, summary = run_demo("--orders", "300", "--consumers", "2", "--protocol", protocol)
    assert f" by {protocol.upper()}, data in " in shown
    assert summary["finished"] == "300 of 300, each exactly once"


@pytest.mark.parametrize(("count", "consumers"), [(1, 1), (10, 3)])
def test_a_demo_with_hardly_any_orders(count: int, consumers: int) -> None:
    """Both kills happen although one poll returns all orders, and there is only one consumer."""
    _, summary = run_demo("--orders", str(count), "--consumers", str(consumers))
    in_hand = summary["held when the consumer was killed"]
    assert in_hand == f"{number(in_hand)}, all delivered again"
    assert min(number(in_hand), number(summary["in flight when the broker was killed"])) > 0
    assert summary["finished"] == f"{count} of {count}, each exactly once"


def test_next_steps_are_commands_that_there_are() -> None:
    shown, _ = run_demo("--orders", "1", "--consumers", "1")
    steps = [line.strip() for line in shown.partition("To continue ")[2].splitlines()[1:]]
    assert len(steps) == 5
    for step in steps:
        command = shlex.split(step.removesuffix("&").rpartition("|")[2], comments=True)
        ended = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False, timeout=120)
        assert (ended.returncode, ended.stderr) == (0, "")
        options = {word for word in command if word.startswith("--")}
        assert options == {option for option in options if option in ended.stdout}


def test_bars_fit_into_80_columns() -> None:
    screen = StringIO()
    with open_bars(50_000, 4, Console(file=screen, width=80, height=24, force_terminal=True)) as view:
        tally = Tally(50_000, 5, by_worker=Counter({number: 12_500 for number in range(1, 6)}), again=12_345)
        tally.fates = dict.fromkeys(range(50_000), "accepted")
        view.produced(50_000)
        view.say("consumer 4 killed with kill -9, 50,000 orders held; consumer 5 replaces it")
        view.consumed(tally)
    lines = [
        line
        for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
        if line.strip()
    ]
    assert [line for line in lines if len(line) > 80 or "…" in line] == []
    last = [line.split() for line in lines[-8:]]
    assert [words[-3:] for words in last[:2]] == [["50,000", "of", "50,000"]] * 2
    assert [(words[1], words[-1]) for words in last[2:7]] == [
        (str(number), "12,500") for number in range(1, 6)
    ]
    assert lines[-1] == "12,345 delivered again, 0 rejected, 0 given up"


def test_a_demo_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "kbroker", "demo"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as process:
        assert process.stdout is not None
        found = re.match(r"broker ready on 127.0.0.1:(\d+), data in ", process.stdout.readline())
        assert found
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(found[1])))


def run_demo(*arguments: str) -> tuple[str, dict[str, str]]:
    """Returns its output, whose lines all fit a small terminal, and the rows of its summary."""
    command = [sys.executable, "-m", "kbroker", "demo", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "COLUMNS": "80"}
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\nthe broker was stopped and ended cleanly; " in ended.stdout
    body = ended.stdout.partition("\n")[2].partition("To continue ")[0]
    assert [line for line in body.splitlines() if len(line) > 80] == []
    return ended.stdout, dict(
        re.split(" {2,}", line.strip(), maxsplit=1) for line in body.splitlines() if "  " in line.strip()
    )


def number(text: str) -> int:
    found = re.match(r"\d{1,3}(,\d{3})*", text)
    assert found
    return int(found[0].replace(",", ""))
