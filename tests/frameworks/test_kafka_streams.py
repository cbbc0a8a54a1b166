"""Kafka Streams with exactly_once_v2 over `kill -9` of its instances and of the broker: each input
has its effect once.

Two instances with a repartition topic and a state store (java/RunningNumbers.java) read inputs
while these are sent. A killed instance starts again on its folder; meanwhile the other takes over.
The state store counts the inputs of each key, and each count is an output. So a lost or repeated
input shows in the outputs, and so does a lost or repeated change of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from kbroker.testing.broker import open_test_broker
from tests.frameworks.jvm import PATIENCE_S, Feed, JavaProgram, Output, class_path, feeding, started

VERSION, PROGRAM = "Kafka Streams 4.4.0", "RunningNumbers"
PARTITIONS, KEYS = 3, 20

pytestmark = pytest.mark.full


@contextmanager
def sending(bootstrap: str, topic: str) -> Iterator[Feed]:
    """Sends the numbers from 0 to `topic`; all are confirmed at the end of the block."""
    errors: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def send(number: int) -> None:
        producer.produce(topic, str(number).encode(), str(number).encode(), on_delivery=note)
        producer.poll(0)

    with feeding(send) as feed:
        yield feed
    assert producer.flush(PATIENCE_S) == 0
    assert not errors


def judge(outputs: Sequence[Message], inputs: int) -> None:
    """The counts of each key are 1, 2, 3 and so on, and each input is in one output."""
    counts, seen = defaultdict(list), []
    for output in outputs:
        count, number = map(int, (output.value() or b"").split())
        assert output.key() == f"key-{number % KEYS}".encode()
        counts[number % KEYS].append(count)
        seen.append(number)
    for key, found in counts.items():
        assert found == list(range(1, len(found) + 1)), f"key {key}"
    assert sorted(seen) == list(range(inputs))


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
def test_each_input_has_its_effect_once(engine: str, tmp_path: Path) -> None:
    classes = class_path(VERSION, PROGRAM, tmp_path)
    with open_test_broker(storage=engine) as broker:
        broker.create_topic("numbers", partitions=PARTITIONS)
        output = Output(broker, "running-numbers", PARTITIONS)
        common = (broker.bootstrap, "counters", "numbers", "running-numbers", str(KEYS))
        one, other = (
            JavaProgram(tmp_path, name, classes, PROGRAM, *common, str(tmp_path / name))
            for name in ("one", "other")
        )

        def restart_broker() -> None:
            broker.kill()
            broker.start()

        def restart_all() -> None:
            broker.kill()
            one.restart()
            other.restart()
            broker.start()

        kills = (one.restart, restart_broker, other.restart, restart_broker, restart_all) * 2
        with started([one, other]):
            with sending(broker.bootstrap, "numbers") as feed:
                output.disturb([one, other], kills)
            outputs = output.read_finished(feed.count)
            judge(outputs, feed.count)
            assert len(output.read("read_uncommitted")) > len(outputs), "no transaction was aborted"
