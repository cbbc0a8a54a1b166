"""The comparison of client libraries: each takes every record once, and a run reports all rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbroker.testing.broker import RunningBroker
from perf.python_client.__main__ import main
from perf.python_client.comparison import AGAINST, KINDS, goals
from perf.python_client.consumers import SIDES, Side, one_at_a_time
from perf.workloads.fill import fill
from perf.workloads.window import Plan

RECORDS = 300
_LONG_ENOUGH = Plan(seconds=60.0, warm_up_s=60.0)
"""The window ends when the topic is nearly empty."""


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.key)
@pytest.mark.parametrize(("processes", "consumers"), [(1, 2), (2, 1)])
def test_a_side_takes_records_one_by_one(
    kbroker: RunningBroker, side: Side, processes: int, consumers: int
) -> None:
    name = f"{side.key}-{processes}"
    kbroker.create_topic(name, partitions=2)
    kbroker.set_group_config(name, {"share.auto.offset.reset": "earliest"})
    fill(kbroker.bootstrap, name, RECORDS, 100, batch_records=1, partitions=2)
    outcome = one_at_a_time(
        _LONG_ENOUGH, kbroker.bootstrap, name, name, side, processes=processes, consumers=consumers,
        most=RECORDS,
    )  # fmt: skip
    assert 0 < outcome.records <= RECORDS
    assert outcome.records == outcome.requests
    assert outcome.details["client_us"] > 0
    assert outcome.latencies_ms is not None


def test_a_short_run_reports_every_row(tmp_path: Path) -> None:
    file = tmp_path / "readings.json"
    arguments = ["--rounds", "1", "--seconds", "0.2", "--side", "asyncio", "--json", str(file)]
    result = CliRunner().invoke(main, [*arguments, "--home", str(tmp_path / "home")])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert found["notes"] == []
    assert [row["key"] for row in found["rows"]] == [kind.key for kind in KINDS]
    for row in found["rows"]:
        assert len(row["readings"]["asyncio"]) == 1, row


def test_the_goals_are_against_one_library() -> None:
    keys = [side.key for side in SIDES]
    assert AGAINST in keys
    assert {goal.against for goal in goals(keys)} == {AGAINST}
    assert goals(["asyncio"]) == []
