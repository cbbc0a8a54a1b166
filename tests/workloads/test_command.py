"""`python -m perf.workloads` against a real broker, in windows too short for meaningful figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli.exits import OK, REFUSED, UNREACHABLE, USAGE
from kbroker.client.broker_process import free_port
from kbroker.testing.broker import RunningBroker
from perf.workloads.command import workloads
from tests.cli.conftest import Command
from tests.cli.test_command_line import check_documented
from tests.workloads.conftest import PROGRAM

ROOT = Path(__file__).parents[2]

SHORT = ("--seconds", "1", "--warm-up", "0")
# Ends before the records are used up.
UNTIL_DONE = (
    "--records",
    "2000",
    "--small-batches",
    "--max-poll-records",
    "1",
    "--seconds",
    "60",
    "--warm-up",
    "0",
)
LATENCIES = ["P50-MS", "P95-MS", "P99-MS", "P99.9-MS", "MAX-MS"]
COMMANDS = {
    "produce": (
        (*SHORT, "--record-bytes", "50", "--batch-bytes", "16384", "--idempotence", "--partitions", "2"),
        [],
    ),
    "fetch": ((*SHORT, "--records", "2000", "--compression", "lz4", "--consumers", "2"), []),
    "share-consume": ((*UNTIL_DONE, "--mode", "explicit", "--release", "0.1"), ["RELEASED"]),
    "latency": ((*SHORT, "--rate", "100", "--via", "share"), [*LATENCIES, "MISSING"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_table_and_nothing_left_behind(command: Command, measure: Command, name: str) -> None:
    before = [command("topics", "list").lines, command("share-groups", "list").lines]
    options, columns = COMMANDS[name]
    ran = measure(name, *options)
    assert ran.code == OK, ran.err
    header, row = ran.lines
    assert header.split()[:4] == ["RECORDS", "SECONDS", "RECORDS/S", "MB/S"]
    assert set(columns) <= set(header.split())
    assert len(row.split()) == len(header.split())
    assert int(row.split()[0]) > 0
    assert [command("topics", "list").lines, command("share-groups", "list").lines] == before


def test_json_has_everything(measure: Command) -> None:
    found = measure("share-consume", *UNTIL_DONE, "--mode", "explicit", "--sync", "--json").json
    assert found["records"] > 0
    assert found["records_per_s"] == pytest.approx(found["records"] / found["seconds"])
    assert found["megabytes_per_s"] == pytest.approx(found["bytes"] / 1e6 / found["seconds"])
    assert set(found["latencies_ms"]) == {"p50", "p95", "p99", "p999", "max", "count"}
    assert {"requests", "first_record_ms", "ran_dry", "details"} <= set(found)


def test_a_topic_and_a_group_of_ones_own_stay(command: Command, measure: Command, topic: str) -> None:
    assert measure("produce", "--topic", topic, *SHORT).code == OK
    assert measure("share-consume", "--topic", topic, "--group", "those-that-measure", *SHORT).code == OK
    assert topic in command("topics", "list").lines
    assert "those-that-measure" in command("share-groups", "list").lines


def test_a_topic_that_was_made_may_be_kept(command: Command, measure: Command) -> None:
    before = set(command("topics", "list").lines)
    ran = measure("latency", "--rate", "50", "--keep", *SHORT)
    (kept,) = set(command("topics", "list").lines) - before
    assert f"topic {kept} is kept" in ran.err
    assert command("topics", "delete", kept).code == OK


def test_too_few_records_are_said(measure: Command) -> None:
    ran = measure("share-consume", "--records", "1", "--seconds", "60")
    assert ran.code == OK
    assert "--records" in ran.err


def test_refusals(measure: Command) -> None:
    assert measure("produce", "--idempotence", "--acks", "1").code == USAGE
    assert measure("share-consume", "--release", "0.1").code == USAGE
    assert measure("latency", "--record-bytes", "15").code == USAGE
    for arguments, hint in (
        (["produce", "--seconds", "nan"], "'nan' is not a finite number"),
        (["produce", "--warm-up", "inf"], "inf is not in the range"),
        (["fech"], "Did you mean 'python -m perf.workloads fetch'?"),
    ):
        wrong = measure(*arguments)
        assert (wrong.code, wrong.out, wrong.err.count("\n")) == (USAGE, "", 1)
        assert hint in wrong.err
    missing = measure("fetch", "--topic", "no-such-topic")
    assert (missing.code, missing.err) == (REFUSED, "kbroker: there is no topic no-such-topic\n")
    assert measure("produce", "--bootstrap", f"127.0.0.1:{free_port()}").code == UNREACHABLE


def test_the_program(broker: RunningBroker) -> None:
    """In a process of its own, as people run it."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "perf.workloads", *arguments, "-b", broker.bootstrap]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)

    ran = run("produce", *SHORT)
    assert (ran.returncode, ran.stderr) == (OK, "")
    assert ran.stdout.startswith("RECORDS ")
    refused = run("fetch", "--topic", "no-such-topic")
    assert (refused.returncode, refused.stderr) == (REFUSED, "kbroker: there is no topic no-such-topic\n")


def test_every_command_and_option_is_documented() -> None:
    check_documented(workloads, PROGRAM, ROOT / "perf" / "workloads" / "README.md")


def test_every_command_has_help(measure: Command) -> None:
    assert set(workloads.commands) == set(COMMANDS)
    for path in ((), *((name,) for name in COMMANDS)):
        ran = measure(*path, "-h")
        assert ran.code == OK
        assert ran.out.startswith(f"Usage: {' '.join((PROGRAM, *path))}")
