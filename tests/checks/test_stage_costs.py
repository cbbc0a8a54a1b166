"""The table of what the stages of `make test` cost: which starts it counts, and that a stage that
fails stands below it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stage_costs import kind

ROOT = Path(__file__).parents[2]

SUITE = """
import subprocess, sys

def test_a_passing_one():
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)

def test_a_failing_one():
    assert False
"""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([sys.executable, "-m", "kbroker", "start", "--data-dir", "x"], "brokers"),
        ([sys.executable, "-W", "error", "-m", "kbroker", "start"], "brokers"),
        ([sys.executable, "-m", "mypy", "kbroker", "start"], "others"),
        (["/bin/kbroker", "start"], "brokers"),
        ([Path("/bin/kbroker"), "queues", "create", "start"], "commands"),
        ([sys.executable, "-c", "kbroker start"], "others"),
        (["make", "kbroker.py"], "others"),
        ("kbroker start", "others"),
    ],
)
def test_a_process_is_a_broker_a_command_or_another(args: object, expected: str) -> None:
    assert kind(args) == expected


def run(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stage_is_one_line_and_what_failed_is_last(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    costs = tmp_path / "costs"
    options = ("-p", "tests.stage_costs", f"--costs={costs / 'stage'}", "-p", "no:cacheprovider")
    tested = run("pytest", *options, "-n", str(workers), f"--rootdir={tmp_path}", tmp_path / "test_it.py")
    assert tested.returncode == 1, tested.stdout + tested.stderr
    assert run("tests.stage_costs", "run", costs / "stage", "false").returncode == 1

    lines = run("tests.stage_costs", costs).stdout.splitlines()
    (stage,) = (line.split() for line in lines if line.startswith("stage  ") and "wall" not in line)
    assert float(stage[3]) > 0
    assert stage[5:] == ["2", "0", "0", "1"]
    assert re.fullmatch(
        r" +\d+\.\d s  test_it.py::test_a_passing_one", lines[lines.index("slowest tests") + 1]
    )
    first, reason, *others = lines[-4:]
    assert (first, *others) == (
        "FAILED: stage (pytest, exit code 1)",
        "",
        "FAILED: stage (false, exit code 1)",
    )
    assert re.fullmatch(r"  test_it.py::test_a_failing_one  assert .*test_it\.py:\d+\)", reason)
