"""A candidate that is unavailable on this machine says why, and does not end a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from perf.suite import candidates, command, kafka_broker
from perf.suite.runner import Runner
from tests.differential import apache_kafka

_PROGRAMS = {
    "java": "exit 0",
    "mvn": "echo '[ERROR] Unknown host repo.maven.apache.org'; echo '[ERROR] -> [Help 1]'; exit 1",
}


@pytest.fixture
def without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Java, a Maven without network, and nothing fetched before."""
    for name, text in _PROGRAMS.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(apache_kafka, "POM", tmp_path / "pom.xml")
    for module in (apache_kafka, kafka_broker):
        monkeypatch.setattr(module, "LIBS", tmp_path / "libs")
    kafka_broker.why_missing.cache_clear()
    yield
    kafka_broker.why_missing.cache_clear()


@pytest.mark.usefixtures("without_network")
def test_kafka_that_cannot_be_fetched_leaves_a_run_whose_columns_say_why(tmp_path: Path) -> None:
    keys, path = ["kafka", "kafka-sync"], tmp_path / "new" / "run.json"
    assert candidates.make_candidates(keys, tmp_path) == []
    runner = Runner(
        keys,
        command.chosen_rows(["produce-100b-1p"], quick=True),
        command.QUICK,
        tmp_path,
        Console(quiet=True),
    )
    runner.run()
    command.finish(runner.results, Console(quiet=True), path, None)
    for each in json.loads(path.read_text())["candidates"]:
        assert each["version"] == ""
        assert each["missing"].startswith("not installed, and could not be fetched: mvn ")
        assert each["missing"].endswith("[ERROR] Unknown host repo.maven.apache.org [ERROR] -> [Help 1]")
