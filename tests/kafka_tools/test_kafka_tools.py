"""Apache Kafka's own command-line tools and a Java share consumer, unmodified, against a broker on
each engine.

Each tool must do what its manual says. Its wording may change, so tests look for the facts in its
output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kbroker.testing.broker import RunningBroker
from tests.kafka_tools.java import (
    CONFIGS,
    CONSOLE_PRODUCER,
    CONSOLE_SHARE_CONSUMER,
    DELETE_RECORDS,
    GET_OFFSETS,
    GROUPS,
    HERE,
    MISSING,
    SHARE_CONSUMER_PERFORMANCE,
    SHARE_GROUPS,
    TOPICS,
    VERIFIABLE_SHARE_CONSUMER,
    Tool,
    run,
    running,
)

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
LOCK_MS = 2000


def _ends(tool: Tool, topic: str) -> int:
    return sum(int(line.rsplit(":", 1)[1]) for line in tool(GET_OFFSETS, "--topic", topic).lines)


def _consume(tool: Tool, topic: str, count: int, *options: str) -> list[str]:
    """Through the console share consumer: "Delivery:n value" lines."""
    formatter = ("--formatter-property", "print.delivery=true", "--formatter-property", "key.separator=,")
    arguments = (
        "--topic",
        topic,
        "--group",
        topic,
        "--max-messages",
        str(count),
        "--timeout-ms",
        "30000",
        *formatter,
        *options,
    )
    return tool(CONSOLE_SHARE_CONSUMER, *arguments).lines


def test_topics(tool: Tool, filled: str) -> None:
    assert filled in tool(TOPICS, "--list").lines
    assert "PartitionCount: 2" in tool(TOPICS, "--describe", "--topic", filled).lines[0]
    tool(TOPICS, "--alter", "--topic", filled, "--partitions", "3")
    assert "PartitionCount: 3" in tool(TOPICS, "--describe", "--topic", filled).lines[0]
    tool(TOPICS, "--delete", "--topic", filled)
    assert filled not in tool(TOPICS, "--list").lines


def test_configs_of_topics_and_groups(tool: Tool, filled: str) -> None:
    for kind, config in (
        ("topics", "retention.ms=123456"),
        ("groups", "share.record.lock.duration.ms=20000"),
    ):
        name, value = config.split("=")
        tool(CONFIGS, "--entity-type", kind, "--entity-name", filled, "--alter", "--add-config", config)
        described = tool(CONFIGS, "--entity-type", kind, "--entity-name", filled, "--describe").lines
        assert any(f"{name}={value}" in line for line in described), described
        tool(CONFIGS, "--entity-type", kind, "--entity-name", filled, "--alter", "--delete-config", name)
        described = tool(CONFIGS, "--entity-type", kind, "--entity-name", filled, "--describe").lines
        assert not any(f"{name}={value}" in line for line in described), described


def test_offsets_and_deleted_records(
    tool: Tool, filled: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert _ends(tool, filled) == 20
    ends = dict(line.rsplit(":", 2)[1:] for line in tool(GET_OFFSETS, "--topic", filled).lines)
    partition, end = max(ends.items(), key=lambda each: int(each[1]))
    request = tmp_path_factory.mktemp("tools") / "delete.json"
    row = {"topic": filled, "partition": int(partition), "offset": int(end) - 1}
    request.write_text(json.dumps({"partitions": [row], "version": 1}))
    deleted = tool(DELETE_RECORDS, "--offset-json-file", str(request)).lines
    assert any(f"low_watermark: {int(end) - 1}" in line for line in deleted), deleted
    earliest = dict(
        line.rsplit(":", 2)[1:] for line in tool(GET_OFFSETS, "--topic", filled, "--time", "earliest").lines
    )
    assert int(earliest[partition]) == int(end) - 1


def test_console_share_consumer(tool: Tool, filled: str) -> None:
    released = _consume(tool, filled, 20, "--release")
    assert sorted(released) == sorted(f"Delivery:1,value-{number}" for number in range(20))
    accepted = _consume(tool, filled, 19)
    assert all(line.startswith("Delivery:2,value-") for line in accepted)
    rejected = _consume(tool, filled, 1, "--reject")
    assert len(set(accepted + rejected)) == 20


def test_share_groups(tool: Tool, filled: str) -> None:
    _consume(tool, filled, 12)
    assert any(line.split() == [filled, "Empty"] for line in tool(SHARE_GROUPS, "--list", "--state").lines)
    rows = [
        line.split()
        for line in tool(SHARE_GROUPS, "--describe", "--group", filled).lines
        if line.startswith(filled)
    ]
    assert sum(int(row[4]) for row in rows) == 8, rows
    state = tool(SHARE_GROUPS, "--describe", "--group", filled, "--state", "--verbose").lines
    assert any(line.split()[0] == filled and "Empty" in line for line in state)
    members = tool(SHARE_GROUPS, "--describe", "--group", filled, "--members")
    assert not any(line.startswith(filled) for line in members.lines)

    reset = ("--reset-offsets", "--group", filled, "--topic", filled)
    planned = tool(SHARE_GROUPS, *reset, "--to-earliest", "--dry-run").lines
    assert sorted(line.split()[3] for line in planned if line.startswith(filled)) == ["0", "0"]
    tool(SHARE_GROUPS, *reset, "--to-earliest", "--execute")
    assert len(_consume(tool, filled, 20)) == 20
    tool(SHARE_GROUPS, *reset, "--to-latest", "--execute")
    rows = [
        line.split()
        for line in tool(SHARE_GROUPS, "--describe", "--group", filled).lines
        if line.startswith(filled)
    ]
    assert [row[4] for row in rows] == ["0", "0"], rows

    assert any(
        "Successful" in line
        for line in tool(SHARE_GROUPS, "--delete-offsets", "--group", filled, "--topic", filled).lines
    )
    deleted = tool(SHARE_GROUPS, "--delete", "--group", filled).lines
    assert any(f"'{filled}'" in line and "was successful" in line for line in deleted), deleted
    assert not any(line.split()[0] == filled for line in tool(GROUPS, "--list").lines)


def test_groups_while_a_member_is_there(broker: RunningBroker, tool: Tool, filled: str) -> None:
    arguments = (
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        filled,
        "--group-id",
        filled,
        "--max-messages",
        "-1",
    )
    with running(VERIFIABLE_SHARE_CONSUMER, *arguments) as process:
        _wait_for(process.stdout, "records_consumed")
        assert any(line.split() == [filled, "Share", "share"] for line in tool(GROUPS, "--list").lines)
        members = [
            line.split()
            for line in tool(SHARE_GROUPS, "--describe", "--group", filled, "--members").lines
            if line.startswith(filled)
        ]
        assert len(members) == 1
        assert f"{filled}:0,1" in members[0][-1]
        refused = run(SHARE_GROUPS, "--bootstrap-server", broker.bootstrap, "--delete", "--group", filled)
        assert "not empty" in " ".join([*refused.lines, refused.errors]).lower()


def _wait_for(lines: Iterator[str] | None, name: str) -> None:
    assert lines is not None
    for line in lines:
        if line.startswith("{") and json.loads(line)["name"] == name:
            return
    raise AssertionError(f"it ended without {name}")


def test_share_consumer_performance(tool: Tool, filled: str) -> None:
    arguments = ("--topic", filled, "--group", filled, "--num-records", "20", "--timeout", "30000")
    figures = tool(SHARE_CONSUMER_PERFORMANCE, *arguments).lines[-1].split(", ")
    assert figures[5] == "20"


def test_verifiable_share_consumer(tool: Tool, filled: str) -> None:
    arguments = (
        "--topic",
        filled,
        "--group-id",
        filled,
        "--max-messages",
        "20",
        "--acknowledgement-mode",
        "sync",
    )
    events = [
        json.loads(line)
        for line in tool(VERIFIABLE_SHARE_CONSUMER, *arguments, "--offset-reset-strategy", "earliest").lines
    ]
    # Since 4.4 the end of the process itself says "shutdown_requested", after all others.
    names = [event["name"] for event in events if event["name"] != "shutdown_requested"]
    assert names[0] == "startup_complete"
    assert names[-1] == "shutdown_complete"
    assert "offset_reset_strategy_set" in names
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 20
    acknowledged = [event for event in events if event["name"] == "offsets_acknowledged"]
    assert sum(event["count"] for event in acknowledged) == 20
    assert all(event["success"] for event in acknowledged)


def test_a_java_share_consumer_accepts_releases_rejects_and_renews(
    broker: RunningBroker, tool: Tool, filled: str
) -> None:
    topic = f"{filled}-orders"
    broker.create_topic(topic)
    broker.set_group_config(
        topic, {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": str(LOCK_MS)}
    )
    values = [f"{kind}-{number}" for number in range(10) for kind in ("accept", "release", "reject", "renew")]
    tool(CONSOLE_PRODUCER, "--topic", topic, given="".join(f"{value}\n" for value in values))
    ended = run(
        str(HERE / "ShareConsumerProgram.java"),
        broker.bootstrap,
        topic,
        topic,
        str(len(values)),
        str(LOCK_MS),
    )
    assert ended.lines[-1:] == [f"finished {len(values)}"], ended
    seen: dict[str, list[tuple[str, str]]] = {}
    for line in ended.lines[:-1]:
        value, count, verdict = line.split()
        seen.setdefault(value, []).append((count, verdict))
    assert set(seen) == set(values)
    for value, deliveries in seen.items():
        kind = value.split("-")[0]
        if kind == "release":
            assert deliveries == [("1", "RELEASE"), ("2", "ACCEPT")]
        elif kind == "renew":
            assert len(deliveries) > 1
            assert deliveries == [("1", "RENEW")] * (len(deliveries) - 1) + [("1", "ACCEPT")]
        else:
            assert deliveries == [("1", kind.upper())]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_java_share_consumer_takes_few_records_at_a_time_of_a_big_batch(
    broker: RunningBroker, filled: str, codec: str
) -> None:
    """record_limit: it gets slices, whose CRC it checks, uncompressed even if the batch is
    compressed. Some records are redelivered from the middle."""
    topic = f"{filled}-{codec}"
    broker.create_topic(topic)
    broker.set_group_config(topic, {"share.auto.offset.reset": "earliest"})
    values = [f"{'release' if number % 7 == 0 else 'accept'}-{number}" for number in range(300)]
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 1000, "compression.codec": codec}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, key=str(number), headers={"number": str(number)})
    assert producer.flush(60) == 0
    program = str(HERE / "ShareConsumerProgram.java")
    ended = run(program, broker.bootstrap, topic, topic, "300", str(LOCK_MS), "record_limit", "3")
    assert ended.lines[-1:] == ["finished 300"], ended
    assert ended.errors.count("ERROR") == 0, ended.errors
    seen: dict[str, list[str]] = {}
    for line in ended.lines[:-1]:
        value, count, verdict = line.split()
        seen.setdefault(value, []).append(f"{count} {verdict}")
    assert seen == {
        value: ["1 RELEASE", "2 ACCEPT"] if value.startswith("release") else ["1 ACCEPT"] for value in values
    }
