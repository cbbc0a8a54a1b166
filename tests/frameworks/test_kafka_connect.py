"""A distributed worker of Kafka Connect with exactly-once sources, over `kill -9` of the worker and
of the broker: each line of a file arrives once and in order.

The connector (java/LineSource.java) reads a file that grows. Kafka's own connector for files is not
used: Maven has no release 4.4.0 of it, and release 4.3.1 does not run with 4.4.0.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kbroker.client.broker_process import free_port
from kbroker.settings.properties import as_properties
from kbroker.testing.broker import open_test_broker
from tests.frameworks.jvm import JavaProgram, Output, class_path, feeding, started, until

VERSION, CONNECTOR = "Kafka Connect 4.4.0", "LineSource"
WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
TOPIC = "lines"
CALL_S = 30.0

pytestmark = pytest.mark.full


def worker_settings(bootstrap: str, port: int) -> dict[str, str]:
    return {
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        "group.id": "workers",
        "exactly.once.source.support": "enabled",
        **{
            f"{kind}.storage.{name}": value
            for kind in ("config", "offset", "status")
            for name, value in (("topic", f"connect-{kind}"), ("replication.factor", "1"))
        },
        "key.converter": STRINGS,
        "value.converter": STRINGS,
        # A restarted worker gets its task as soon as the broker and the group allow.
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "2000",
        "scheduled.rebalance.max.delay.ms": "0",
    }


def connector_settings(file: Path) -> dict[str, str]:
    return {
        "connector.class": CONNECTOR,
        "tasks.max": "1",
        "file": str(file),
        "topic": TOPIC,
        "exactly.once.support": "required",
        # A transaction is open most of the time, so that kills hit one.
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": "500",
    }


def accepts(url: str, settings: dict[str, str]) -> bool:
    """Whether the worker has taken the connector. A worker that is starting refuses it, or does not
    listen yet."""
    body = json.dumps(settings).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=CALL_S) as response:
            return response.status in (200, 201)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
def test_each_line_arrives_once_and_in_order(engine: str, tmp_path: Path) -> None:
    classes = class_path(VERSION, CONNECTOR, tmp_path)
    lines, settings = tmp_path / "lines.txt", tmp_path / "worker.properties"
    port = free_port()
    with open_test_broker(storage=engine) as broker, lines.open("w") as file:
        output = Output(broker, TOPIC, partitions=1)
        settings.write_text(as_properties(worker_settings(broker.bootstrap, port)))
        worker = JavaProgram(tmp_path, "worker", classes, WORKER, str(settings))

        def restart_broker() -> None:
            broker.kill()
            broker.start()

        def restart_both() -> None:
            broker.kill()
            worker.restart()
            broker.start()

        def write(number: int) -> None:
            file.write(f"line {number}\n")
            file.flush()

        with started([worker]):
            url = f"http://127.0.0.1:{port}/connectors/lines/config"
            until(lambda: accepts(url, connector_settings(lines)), "the worker has taken the connector")
            with feeding(write) as feed:
                output.disturb([worker], (worker.restart, restart_broker, restart_both) * 2)
            found = output.read_finished(feed.count)
            assert [record.value() for record in found] == [b"line %d" % each for each in range(feed.count)]
            assert len(output.read("read_uncommitted")) > len(found), "no transaction was aborted"
