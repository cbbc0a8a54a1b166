"""Disks that fail or fill up: no engine confirms data that is not on disk, and each survives a full
disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.powercut.engine_cuts import ROOT
from tests.powercut.engine_process import open_store
from tests.powercut.fault_process import SCENARIOS, numbers_in
from tests.powercut.recording import Faults, Recording
from tests.powercut.test_engines import ENGINES


@pytest.mark.parametrize(("kind", "engine"), ENGINES)
def test_an_engine_on_a_bad_disk(kind: str, engine: str, home: Path) -> None:
    """All scenarios run in one process; the traceback names the one that failed."""
    (home / "data").mkdir()
    recording = Recording(home / "data", home / "record.log", faults=Faults(home / "faults"))
    command = [
        sys.executable,
        "-m",
        "tests.powercut.fault_process",
        kind,
        engine,
        str(home / "data"),
        str(home / "faults"),
        *SCENARIOS,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **recording.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    recording.close()
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == SCENARIOS.keys()
    for scenario, numbers in told.items():
        store = open_store(kind, engine, home / "data" / scenario)
        found = numbers_in(kind, store)
        store.close()
        assert set(numbers["kept"]) <= set(found), f"{scenario}: what was confirmed is gone"
        if scenario == "full_disk":
            assert not set(numbers["refused"]) & set(found), "what was refused came back"
