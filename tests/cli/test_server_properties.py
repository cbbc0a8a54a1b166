"""A server.properties of Apache Kafka: all that kbroker refuses in it at once, and the start
without these lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, USAGE
from kbroker.client import admin
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import Connection
from tests.cli.test_start import ends, start

KAFKA = Path(__file__).parents[1] / "settings" / "kafka" / "server.properties"
REFUSED = [
    "controller.quorum.bootstrap.servers: remove it: one broker is the whole cluster",
    "controller.quorum.voters: remove it: one broker is the whole cluster",
    "inter.broker.listener.name: remove it: one broker is the whole cluster",
    "controller.listener.names: remove it, and its listeners from listeners and advertised.listeners: one "
    "broker is the whole cluster",
    "num.network.threads: remove it: one thread serves all requests",
    "num.io.threads: remove it: one thread serves all requests",
    "socket.send.buffer.bytes: remove it: the operating system sizes the buffers of sockets",
    "socket.receive.buffer.bytes: remove it: the operating system sizes the buffers of sockets",
    "log.dirs: use --data-dir, or a line data-dir=DIR of the file",
    "num.recovery.threads.per.data.dir: remove it: engines decide how a start recovers",
    "log.flush.interval.messages: use --durability",
    "log.flush.interval.ms: use --durability",
]


def test_a_file_of_kafka_and_the_start_without_its_refused_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # CFG-49 CFG-51
    lines = KAFKA.read_text().splitlines()
    assert run(["start", "--config-file", str(KAFKA)]) == USAGE
    *refusals, count = capsys.readouterr().err.splitlines()
    assert count == f"kbroker: {len(REFUSED)} settings are refused"
    numbers = []
    for refusal, expected in zip(refusals, REFUSED, strict=True):
        found = re.fullmatch(rf"kbroker: {re.escape(str(KAFKA))}, line (\d+): (.*)", refusal)
        assert found
        assert found[2] == expected
        numbers.append(int(found[1]))
        assert lines[numbers[-1] - 1].startswith(expected.partition(":")[0] + "=")
    assert numbers == sorted(numbers)
    kept = "\n".join(line for number, line in enumerate(lines, 1) if number not in numbers)
    port = free_port()
    file = tmp_path / "server.properties"
    file.write_text(kept.replace("node.id=1", "node.id=3").replace("9092", str(port)).replace(":9093", ":0"))
    with start("--data-dir", tmp_path / "data", "--config-file", file) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"kbroker ready on 0.0.0.0:{port} ")
        with Connection("127.0.0.1", port) as connection:
            rows = admin.describe_configs(connection, admin.ResourceType.BROKER, "3")
            configs = {each.name: each.value for each in rows}
        process.terminate()
        assert ends(process)[0] == OK
    assert (configs["node.id"], configs["log.retention.bytes"]) == ("3", "1073741824")
    capsys.readouterr()
    assert run(["storage", "inspect", str(tmp_path / "data"), "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["node_id"] == 3


def test_options_of_the_file_are_refused_together_with_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # CFG-51
    file = tmp_path / "f"
    file.write_text("num.partitions=0\nlisten=nowhere\nconfig=a=b\nbroker.rack=a\ndurability=hope\n")
    assert run(["start", "--config-file", str(file), "--config", "log.dirs=/d"]) == USAGE
    lines = capsys.readouterr().err.splitlines()
    for line, (where, what) in zip(
        lines,
        [
            (f"{file}, line 1", "Invalid value 0 for configuration num.partitions"),
            (f"Invalid value for {file}, line 2 (listen)", "'nowhere' is not HOST:PORT"),
            (f"{file}, line 3", "config cannot be given in the file"),
            (f"{file}, line 4", "broker.rack: remove it"),
            (f"Invalid value for {file}, line 5 (durability)", "'hope' is not one of"),
            ("--config", "log.dirs: use --data-dir"),
            ("6 settings are refused", ""),
        ],
        strict=True,
    ):
        assert line.startswith(f"kbroker: {where}: {what}" if what else f"kbroker: {where}")


def test_of_a_name_given_twice_the_last_line_applies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # CFG-54
    file = tmp_path / "f"
    file.write_text("num.partitions=x\nlisten=nowhere\nnum.partitions : 2\nlisten 127.0.0.1:0\nlog.dirs=a\n")
    assert run(["start", "--config-file", str(file)]) == USAGE
    assert capsys.readouterr().err.splitlines() == [
        f"kbroker: warning: {file}, line 3: num.partitions is given again: this line applies, and not that "
        f"of {file}, line 1",
        f"kbroker: warning: {file}, line 4: listen is given again: this line applies, and not that of "
        f"{file}, line 2",
        f"kbroker: {file}, line 5: log.dirs: use --data-dir, or a line data-dir=DIR of the file",
    ]
