"""Sends numbered records at a steady rate and logs each one, with unmodified confluent-kafka.

python -m tests.consumer_groups.producer BOOTSTRAP TOPIC PARTITIONS HISTORY RECORDS PER_SECOND
"""

from __future__ import annotations

import os
import sys
import time

from confluent_kafka import KafkaError, Message, Producer

from tests.judges.history_events import Record, SendConfirmed, Sent, to_json

NAME = "producer"
BURST_S = 0.05
MOST_WAITING = 20_000
"""Records in flight: a broker that is slower than the rate sets the pace."""


def main(bootstrap: str, topic: str, partitions: int, history: str, records: int, per_second: int) -> None:
    fd = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    lines: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was refused: {error}")
        record = Record(topic, message.partition(), message.offset())  # type: ignore[arg-type]
        value = message.value()
        assert value is not None
        lines.append(to_json(SendConfirmed(time.monotonic_ns(), NAME, value.decode(), record)))

    def write() -> None:
        os.write(fd, "".join(f"{line}\n" for line in lines).encode())
        lines.clear()

    began, sent = time.monotonic(), 0
    while sent < records:
        due = min(records, int((time.monotonic() - began + BURST_S) * per_second))
        values = [f"v{number}" for number in range(sent, due)]
        lines.extend(to_json(Sent(time.monotonic_ns(), NAME, value, True)) for value in values)
        write()
        for number, value in enumerate(values, sent):
            producer.produce(topic, value.encode(), partition=number % partitions, on_delivery=delivered)
        sent = due
        producer.poll(BURST_S)
        while len(producer) > MOST_WAITING:
            producer.poll(BURST_S)
    assert producer.flush(120) == 0, "not all records were confirmed"
    write()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
