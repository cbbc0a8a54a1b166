"""`kbroker produce`, `consume`, `share-consume` and `share-groups` against a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.cli.exits import INTERRUPTED, OK, REFUSED
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command

NOTHING_COMES_MS = "1000"
"""Long enough for a member to join and receive records, if there were any."""


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Twenty lines `key-N:value-N`."""
    path = tmp_path / "lines"
    path.write_text("".join(f"key-{n}:value-{n}\n" for n in range(20)))
    return path


@pytest.fixture
def filled(command: Command, topic: str, lines: Path) -> str:
    """The topic with twenty records in partition 1."""
    produced = command("produce", topic, lines, "-k", ":", "-p", "1")
    assert produced.code == OK
    assert f"20 records confirmed in {topic}, 0 failed" in produced.err
    return topic


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_in_lines_out(command: Command, topic: str, lines: Path, codec: str) -> None:
    assert command("produce", topic, lines, "--compression", codec).code == OK
    consumed = command("consume", topic, "-n", "20")
    assert consumed.code == OK
    assert sorted(consumed.lines) == sorted(lines.read_text().splitlines())


def test_consume_as_json_from_an_offset(command: Command, filled: str) -> None:
    found = command("consume", filled, "--from", "15", "-p", "1", "-n", "5", "--json").json_lines
    assert [(each["partition"], each["offset"], each["key"], each["value"]) for each in found] == [
        (1, n, f"key-{n}", f"value-{n}") for n in range(15, 20)
    ]
    assert all(
        each["topic"] == filled and each["headers"] == [] and each["timestamp_ms"] > 0 for each in found
    )


def test_consume_ends_when_nothing_comes(command: Command, filled: str) -> None:
    assert command("consume", filled, "--timeout-ms", "300", "-k", "=").lines == [
        f"key-{n}=value-{n}" for n in range(20)
    ]
    assert command("consume", filled, "--timeout-ms", "300", "--from", "latest").lines == []
    assert len(command("consume", filled, "--timeout-ms", "300", "-p", "1", "-p", "1").lines) == 20


def test_an_offset_out_of_range_is_refused(command: Command, filled: str) -> None:
    refused = command("consume", filled, "-p", "1", "--from", "1000")
    assert refused.code == REFUSED
    assert "out of range" in refused.err


def test_a_partition_that_does_not_exist(command: Command, filled: str, lines: Path) -> None:
    assert (
        command("consume", filled, "-p", "7").err
        == f"kbroker: topic {filled} has no partition 7 (it has 3)\n"
    )
    refused = command("produce", filled, lines, "-p", "7", "--timeout-ms", "2000")
    assert refused.code == REFUSED
    assert "20 records were not confirmed" in refused.err


def test_bytes_that_are_no_text(command: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    command("produce", topic, tmp_path / "binary")
    (found,) = command("consume", topic, "-n", "1", "--json").json_lines
    assert (found["key"], found["value_base64"]) == (None, "//4=")


def test_a_record_that_is_too_large(command: Command, broker: RunningBroker, tmp_path: Path) -> None:
    broker.create_topic("small-records", config={"max.message.bytes": "1000"})
    (tmp_path / "large").write_text("x" * 5000)
    refused = command("produce", "small-records", tmp_path / "large")
    assert refused.code == REFUSED
    assert "1 record was not confirmed" in refused.err


def test_a_record_without_a_key_for_a_compacted_topic(
    command: Command, broker: RunningBroker, tmp_path: Path
) -> None:
    broker.create_topic("by-key", config={"cleanup.policy": "compact"})
    (tmp_path / "lines").write_text("a=1\nno key\n")
    refused = command("produce", "by-key", tmp_path / "lines", "-k", "=")
    assert refused.code == REFUSED
    assert "a compacted topic refuses records without a key" in refused.err


def test_a_new_share_group_begins_at_the_earliest_record_and_goes_on_where_it_was(
    command: Command, filled: str
) -> None:
    first = command("share-consume", filled, "-g", "begins", "-n", "8", "--json")
    assert first.code == OK
    assert [each["value"] for each in first.json_lines] == [f"value-{n}" for n in range(8)]
    assert {each["delivery_count"] for each in first.json_lines} == {1}
    rest = command("share-consume", filled, "-g", "begins", "-n", "12")
    assert sorted(rest.lines) == sorted(f"value-{n}" for n in range(8, 20))
    assert command("share-consume", filled, "-g", "begins", "--timeout-ms", NOTHING_COMES_MS).lines == []


def test_released_records_come_back_with_a_raised_count(command: Command, filled: str) -> None:
    command("share-consume", filled, "-g", "releases", "-n", "20", "--release")
    again = command("share-consume", filled, "-g", "releases", "-n", "20", "--json").json_lines
    assert {each["value"] for each in again} == {f"value-{n}" for n in range(20)}
    assert {each["delivery_count"] for each in again} == {2}


def test_rejected_records_are_gone(command: Command, filled: str) -> None:
    assert len(command("share-consume", filled, "-g", "rejects", "-n", "20", "--reject").lines) == 20
    assert command("share-consume", filled, "-g", "rejects", "--timeout-ms", NOTHING_COMES_MS).lines == []


def test_from_latest_and_a_group_that_exists(command: Command, filled: str) -> None:
    assert (
        command(
            "share-consume", filled, "-g", "late", "--from", "latest", "--timeout-ms", NOTHING_COMES_MS
        ).lines
        == []
    )
    again = command(
        "share-consume", filled, "-g", "late", "--from", "earliest", "--timeout-ms", NOTHING_COMES_MS
    )
    assert (again.code, again.out) == (OK, "")
    assert "share group late exists" in again.err


def test_a_reset_that_was_set_before_stays(command: Command, filled: str) -> None:
    command("configs", "set", "--group", "careful", "share.auto.offset.reset=latest")
    assert command("share-consume", filled, "-g", "careful", "--timeout-ms", NOTHING_COMES_MS).lines == []


def test_a_group_whose_name_steers_terminals(command: Command, filled: str) -> None:
    assert command("share-consume", filled, "-g", "bell\x07\nline", "-n", "1").code == OK
    assert "bell\\x07\\nline" in command("share-groups", "list").lines
    described = command("share-groups", "describe", "bell\x07\nline", "--state")
    assert described.lines[1].startswith("bell\\x07\\nline  ")


@contextmanager
def share_consumer(broker: RunningBroker, topic: str, group: str) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", "kbroker", "share-consume", topic, "-g", group, "-b", broker.bootstrap]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of background jobs ignore it
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_groups_with_a_member_that_leaves_on_ctrl_c(
    command: Command, broker: RunningBroker, filled: str
) -> None:
    with share_consumer(broker, filled, "watched") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "value-0\n"
        assert "watched" in command("share-groups", "list").lines
        (group,) = command("share-groups", "describe", "watched", "--members", "--json").json
        (member,) = group["members"]
        assert (group["state"], member["client_id"], member["assignment"]) == (
            "Stable",
            "kbroker-cli",
            {filled: [0, 1, 2]},
        )
        row = command("share-groups", "describe", "watched", "--members").lines[1].split()
        assert (row[0], row[1], row[4], row[-1]) == ("watched", member["member_id"], "3", f"{filled}:0,1,2")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors.strip()) == (INTERRUPTED, "")
    (group,) = command("share-groups", "describe", "watched", "--state", "--json").json
    assert (group["state"], group["member_count"]) == ("Empty", 0)


def test_a_reader_that_leaves_early_is_no_error_message(
    command: Command, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "many").write_text(f"{'x' * 200}\n" * 5000)
    assert command("produce", topic, tmp_path / "many").code == OK
    pipe = f"{sys.executable} -m kbroker consume {topic} -n 5000 -b {broker.bootstrap} | head -n 1"
    ended = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.stderr) == (f"{'x' * 200}\n", "")
