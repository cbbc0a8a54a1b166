"""Records flow through one consumer group while its members join, leave, are killed and freeze; the
broker keeps running.

The members of a group are of one kind, or of several that can be in a group together
(crew.COMMANDS). At the end the group has processed all records and its members have left; the whole
history goes to tests.judges.group_history.check.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from kbroker.client import admin, consumer_group_admin
from kbroker.testing.broker import RunningBroker
from tests.consumer_groups.crew import PATIENCE_S, ROOT, Crew, open_crew
from tests.judges.group_history import Report, check
from tests.judges.history_events import CommittedAtEnd, Event, LogRead, LogReadDone, Record, to_json

PARTITIONS = 6
STIR_S = 0.7
"""The interval between two disturbances of members."""


def broker_config(session_ms: int) -> dict[str, str]:
    """Broker settings for sessions of this length, in both protocols."""
    return {
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": str(session_ms // 8),
        "group.consumer.assignment.interval.ms": "100",
    }


def run(
    broker: RunningBroker,
    home: Path,
    name: str,
    kinds: Sequence[str],
    *,
    records: int,
    per_second: int,
    session_ms: int,
    seed: int = 1,
) -> tuple[Report, Crew]:
    """`name`: of topic and group. `home`: an empty directory, for the histories."""
    broker.create_topic(name, partitions=PARTITIONS)
    crew = Crew(home / name, broker.bootstrap, name, name, kinds, session_ms, seed)
    with open_crew(crew), _producing(broker, crew, records, per_second) as producer:
        while producer.poll() is None:
            crew.check_alive()
            crew.stir()
            _wait(producer, STIR_S)
        assert producer.returncode == 0, (crew.home / "producer.err").read_text()[-4000:]
        crew.settle()
        _until_drained(broker, crew)
        crew.finish()
    _read_logs(broker, crew)
    note_committed(broker, crew, PARTITIONS)
    return check(crew.events()), crew


def _producing(broker: RunningBroker, crew: Crew, records: int, per_second: int) -> subprocess.Popen[bytes]:
    arguments = [
        broker.bootstrap,
        crew.topic,
        str(PARTITIONS),
        str(crew.home / "producer.jsonl"),
        str(records),
        str(per_second),
    ]
    with (crew.home / "producer.err").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.consumer_groups.producer", *arguments],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )


def _wait(producer: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        producer.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def is_drained(broker: RunningBroker, crew: Crew, partitions: int) -> bool:
    """The group has committed the end of every log."""
    crew.check_alive()
    with broker.connect() as connection:
        ends = admin.list_offsets(connection, crew.topic, range(partitions), admin.LATEST)
    return committed(broker, crew.group) == {partition: end for partition, end in ends.items() if end}


def _until_drained(broker: RunningBroker, crew: Crew) -> None:
    """Wait as long as the group makes progress. The check of the history finds missing records."""
    before, deadline = committed(broker, crew.group), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and not is_drained(broker, crew, PARTITIONS):
        time.sleep(0.1)
        if (now := committed(broker, crew.group)) != before:
            before, deadline = now, time.monotonic() + PATIENCE_S


def committed(broker: RunningBroker, group: str) -> dict[int, int]:
    with broker.connect() as connection:
        return {
            place.partition: each.offset
            for place, each in consumer_group_admin.committed_offsets(connection, group).items()
        }


def note_committed(broker: RunningBroker, crew: Crew, partitions: int) -> None:
    """Write the committed offsets as events of the group's history."""
    found, now_ns = committed(broker, crew.group), time.monotonic_ns()
    _write(
        crew,
        [
            CommittedAtEnd(now_ns, crew.topic, partition, found.get(partition, -1))
            for partition in range(partitions)
        ],
    )


def _read_logs(broker: RunningBroker, crew: Crew) -> None:
    with broker.connect() as connection:
        ends = admin.list_offsets(connection, crew.topic, range(PARTITIONS), admin.LATEST)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": f"{crew.group}-log", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(crew.topic, partition, OFFSET_BEGINNING) for partition in ends])
    left, deadline = sum(ends.values()), time.monotonic() + PATIENCE_S
    while left > 0:
        assert time.monotonic() < deadline, f"{left} records cannot be read"
        messages = consumer.consume(5000, 0.5)
        now_ns, events = time.monotonic_ns(), []
        for message in messages:
            value = message.value()
            assert message.error() is None
            assert value is not None
            record = Record(crew.topic, message.partition(), message.offset())  # type: ignore[arg-type]
            events.append(LogRead(now_ns, record, value.decode()))
        _write(crew, events)
        left -= len(messages)
    consumer.close()
    _write(crew, [LogReadDone(time.monotonic_ns(), crew.topic, partition) for partition in ends])


def _write(crew: Crew, events: Sequence[Event]) -> None:
    with (crew.home / "end.jsonl").open("a") as file:
        file.write("".join(to_json(event) + "\n" for event in events))
