"""A worker of a queue in a separate process that holds many jobs and acknowledges them in random
order; it writes its answers to a file.

    python -m tests.clients.shuffling_worker BOOTSTRAP QUEUE SEED FILE

It acknowledges the jobs of each poll in random order, some with each commit. Jobs whose offset is a
multiple of three are released on their first delivery. FILE gets a row (ROW) for each
acknowledgement that the broker has answered. On stdout the worker prints `ready`. On SIGTERM it
acknowledges the jobs at hand and closes.
"""

from __future__ import annotations

import json
import random
import signal
import struct
import sys
from pathlib import Path

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

ROW = struct.Struct("<qhhh")
"""Offset, delivery count, acknowledge type, error code of the commit."""
POLL_S = 0.7
PART = 100


def answer_for(message: Message) -> AcknowledgeType:
    is_first = message.delivery_count() == 1
    return (
        AcknowledgeType.RELEASE if (message.offset() or 0) % 3 == 0 and is_first else AcknowledgeType.ACCEPT
    )


def rows_of(path: Path) -> list[tuple[int, int, int, int]]:
    """(offset, delivery count, acknowledge type, error code), in file order."""
    return list(ROW.iter_unpack(path.read_bytes()))


def work(bootstrap: str, queue: str, seed: int, path: Path) -> None:
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    chooser = random.Random(seed)
    consumer = ShareConsumer({
        "bootstrap.servers": bootstrap,
        "group.id": queue,
        "share.acknowledgement.mode": "explicit",
        "log_level": 3,
    })  # fmt: skip
    consumer.subscribe([queue])
    sys.stdout.write(json.dumps({"event": "ready"}) + "\n")
    sys.stdout.flush()
    with path.open("wb") as file:
        while not stopping:
            messages = list(consumer.poll(POLL_S))
            for message in messages:
                assert message.error() is None, message.error()
            chooser.shuffle(messages)
            for first in range(0, len(messages), PART):
                part = messages[first : first + PART]
                file.write(b"".join(answered(consumer, part)))
            file.flush()
    consumer.close()


def answered(consumer: ShareConsumer, part: list[Message]) -> list[bytes]:
    kinds = [answer_for(message) for message in part]
    for message, kind in zip(part, kinds, strict=True):
        consumer.acknowledge(message, kind)
    (error,) = consumer.commit_sync(60.0).values()
    code = 0 if error is None else error.args[0].code()
    return [
        ROW.pack(message.offset(), message.delivery_count(), kind.value, code)
        for message, kind in zip(part, kinds, strict=True)
    ]


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
