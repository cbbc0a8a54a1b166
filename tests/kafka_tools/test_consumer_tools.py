"""Apache Kafka's tools for ordinary consumers, unmodified, against a broker on each engine, in both
group protocols."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.testing.broker import RunningBroker
from tests.kafka_tools.java import (
    CONSOLE_CONSUMER,
    CONSUMER_GROUPS,
    CONSUMER_PERFORMANCE,
    GROUPS,
    MISSING,
    VERIFIABLE_CONSUMER,
    Ended,
    Tool,
    run,
    running,
)

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
PATIENCE_S = 60.0
PROTOCOLS = ("classic", "consumer")

Rows = list[list[str]]


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _consume(tool: Tool, topic: str, group: str, count: int, protocol: str) -> list[str]:
    """Values that the console consumer read and committed."""
    arguments = (
        "--topic",
        topic,
        "--group",
        group,
        "--from-beginning",
        "--max-messages",
        str(count),
        "--timeout-ms",
        "30000",
    )
    return tool(CONSOLE_CONSUMER, *arguments, "--command-property", f"group.protocol={protocol}").lines


def _described(tool: Tool, group: str, *options: str) -> Rows:
    return _rows(tool(CONSUMER_GROUPS, "--describe", "--group", group, *options), group)


def _rows(ended: Ended, group: str) -> Rows:
    return [line.split() for line in ended.lines if line.startswith(group)]


def _until(what: str, found: Callable[[], Rows | None]) -> Rows:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if rows := found():
            return rows
    raise AssertionError(f"{what}: not within {PATIENCE_S} s")


def test_console_consumer_and_group_offsets(tool: Tool, filled: str, protocol: str) -> None:
    group = f"{filled}-{protocol}"
    first = _consume(tool, filled, group, 12, protocol)
    rows = _described(tool, group)
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID; a
    # partition that was never read has no offset.
    assert sum(int(row[3]) for row in rows if row[3] != "-") == 12, rows
    assert all(row[6:9] == ["-", "-", "-"] for row in rows), rows
    assert sum(int(row[4]) for row in rows) == 20
    rest = _consume(tool, filled, group, 8, protocol)
    assert sorted(first + rest) == sorted(f"value-{number}" for number in range(20))
    assert [row[5] for row in _described(tool, group)] == ["0", "0"]


def test_consumer_groups_of_a_group_without_members(tool: Tool, filled: str, tmp_path: Path) -> None:
    assert len(_consume(tool, filled, filled, 20, "classic")) == 20
    assert any(line.split()[0] == filled for line in tool(CONSUMER_GROUPS, "--list").lines)
    assert any(line.split() == [filled, "Empty"] for line in tool(CONSUMER_GROUPS, "--list", "--state").lines)
    assert any(line.split() == [filled, "Classic", "consumer"] for line in tool(GROUPS, "--list").lines)
    (state,) = _described(tool, filled, "--state")
    assert "Empty" in state
    assert state[-1] == "0"
    assert _described(tool, filled, "--members") == []

    reset = ("--reset-offsets", "--group", filled, "--topic", filled)
    ends = {row[2]: int(row[4]) for row in _described(tool, filled)}
    back = sum(max(0, end - 3) for end in ends.values())
    for target, wanted in ((("--to-earliest",), 0), (("--to-latest",), 20), (("--shift-by", "-3"), back)):
        planned = [
            line.split()
            for line in tool(CONSUMER_GROUPS, *reset, *target, "--dry-run").lines
            if line.startswith(filled)
        ]
        done = [
            line.split()
            for line in tool(CONSUMER_GROUPS, *reset, *target, "--execute").lines
            if line.startswith(filled)
        ]
        assert sorted(planned) == sorted(done)
        assert sum(int(row[3]) for row in done) == wanted
        assert sum(int(row[3]) for row in _described(tool, filled)) == wanted
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{filled},0,{ends['0'] // 2}\n{filled},1,{ends['1'] // 2}\n")
    tool(CONSUMER_GROUPS, "--reset-offsets", "--group", filled, "--from-file", str(plan), "--execute")
    assert {row[2]: int(row[3]) for row in _described(tool, filled)} == {
        partition: end // 2 for partition, end in ends.items()
    }

    deleted = tool(CONSUMER_GROUPS, "--delete-offsets", "--group", filled, "--topic", filled).lines
    assert any("Successful" in line for line in deleted), deleted
    gone = tool(CONSUMER_GROUPS, "--delete", "--group", filled).lines
    assert any(f"'{filled}'" in line and "successful" in line for line in gone), gone
    assert not any(line.split()[0] == filled for line in tool(GROUPS, "--list").lines)


def test_offsets_are_reset_to_each_target(tool: Tool, filled: str, protocol: str) -> None:
    """Of a group whose only member has left."""
    assert len(_consume(tool, filled, filled, 20, protocol)) == 20
    ends = {row[2]: int(row[4]) for row in _described(tool, filled, "--offsets", "--verbose")}

    def reset(*target: str) -> dict[str, int]:
        rows = _rows(
            tool(CONSUMER_GROUPS, "--reset-offsets", "--group", filled, *target, "--execute"), filled
        )
        return {row[2]: int(row[3]) for row in rows}

    begins = dict.fromkeys(ends, 0)
    one = ("--topic", filled)
    assert reset("--to-datetime", "2001-01-01T00:00:00.000", *one) == begins
    assert reset("--to-offset", "3", *one) == {partition: min(3, end) for partition, end in ends.items()}
    assert reset("--to-latest", "--all-topics") == ends
    assert reset("--by-duration", "PT1H", *one) == begins
    assert reset("--shift-by", "1", "--topic", f"{filled}:0") == {"0": min(1, ends["0"])}
    assert reset("--to-current", *one) == {**begins, "0": min(1, ends["0"])}
    exported = tool(
        CONSUMER_GROUPS, "--reset-offsets", "--group", filled, *one, "--to-latest", "--dry-run", "--export"
    ).lines
    assert sorted(line.replace('"', "") for line in exported) == sorted(
        f"{filled},{partition},{end}" for partition, end in ends.items()
    )
    everything = tool(CONSUMER_GROUPS, "--describe", "--all-groups", "--state", "--verbose").lines
    assert any(line.split()[0] == filled and "Empty" in line for line in everything)
    wanted = ("--list", "--state", "empty", "--type", protocol)
    assert any(line.split()[0] == filled for line in tool(CONSUMER_GROUPS, *wanted).lines)


@contextmanager
def _member(broker: RunningBroker, topic: str, group: str, protocol: str) -> Iterator[subprocess.Popen[str]]:
    arguments = (
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        topic,
        "--group-id",
        group,
        "--max-messages",
        "-1",
    )
    options = ("--reset-policy", "earliest", "--group-protocol", protocol)
    with running(VERIFIABLE_CONSUMER, *arguments, *options) as process:
        yield process


def test_consumer_groups_while_a_member_is_there(
    broker: RunningBroker, tool: Tool, filled: str, protocol: str
) -> None:
    group = f"{filled}-{protocol}"
    with _member(broker, filled, group, protocol):
        describe = ("--bootstrap-server", broker.bootstrap, "--describe", "--group", group)
        rows = _until(
            "all is read and committed", lambda: _all_read(_rows(run(CONSUMER_GROUPS, *describe), group))
        )
        assert all(row[6] != "-" and row[7].startswith("/") for row in rows), rows
        (member,) = _described(tool, group, "--members", "--verbose")
        assert f"{filled}:0,1" in "".join(member) or f"{filled}(0,1)" in "".join(member), member
        (state,) = _described(tool, group, "--state")
        assert "Stable" in state
        kind = {"classic": "Classic", "consumer": "Consumer"}[protocol]
        assert any(line.split() == [group, kind, "consumer"] for line in tool(GROUPS, "--list").lines)
        refused = run(CONSUMER_GROUPS, "--bootstrap-server", broker.bootstrap, "--delete", "--group", group)
        assert "not empty" in " ".join([*refused.lines, refused.errors]).lower()
        kept = run(
            CONSUMER_GROUPS,
            "--bootstrap-server",
            broker.bootstrap,
            "--delete-offsets",
            "--group",
            group,
            "--topic",
            filled,
        )
        assert "subscribed" in " ".join([*kept.lines, kept.errors]).lower()
    left = _all_read(_described(tool, group))
    assert left is not None
    assert all(row[6] == "-" for row in left), left


def _all_read(rows: Rows) -> Rows | None:
    """A partition that was never read has no offset."""
    return rows if sum(int(row[3]) for row in rows if row[3] != "-") == 20 else None


def test_consumer_performance(tool: Tool, filled: str, protocol: str) -> None:
    arguments = (
        "--topic",
        filled,
        "--group",
        f"{filled}-{protocol}",
        "--messages",
        "20",
        "--timeout",
        "30000",
    )
    lines = tool(CONSUMER_PERFORMANCE, *arguments, "--command-property", f"group.protocol={protocol}").lines
    header, figures = (line.split(", ") for line in lines[-2:])
    assert figures[header.index("data.consumed.in.nMsg")] == "20"


def test_verifiable_consumer(tool: Tool, filled: str, protocol: str) -> None:
    arguments = (
        "--topic",
        filled,
        "--group-id",
        f"{filled}-{protocol}",
        "--max-messages",
        "20",
        "--reset-policy",
        "earliest",
    )
    lines = tool(VERIFIABLE_CONSUMER, *arguments, "--group-protocol", protocol).lines
    events = [json.loads(line) for line in lines if line.startswith("{")]
    names = [event["name"] for event in events]
    assert names[0] == "startup_complete"
    assert "shutdown_complete" in names
    assert "partitions_assigned" in names
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 20
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert committed
    assert all(event["success"] for event in committed)
