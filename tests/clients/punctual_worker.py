"""A worker of a queue in a separate process that accepts jobs at once and records when each one
arrived.

    python -m tests.clients.punctual_worker BOOTSTRAP QUEUE FILE FETCH_WAIT_MS

A job's value begins with its number in decimal, followed by a blank. FILE gets a row (ROW) for each
job whose acknowledgement the broker answered. On stdout the worker prints `ready`. On SIGTERM it
acknowledges the jobs at hand and closes.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import AcknowledgeType, ShareConsumer

ROW = struct.Struct("<qqh?")
"""Number of the job, when it arrived (ns since 1970), its delivery count, whether its ACCEPT was
confirmed."""
POLL_S = 0.7
PART = 250


class Row(NamedTuple):
    number: int
    came_ns: int
    count: int
    confirmed: bool


def rows_of(path: Path) -> list[Row]:
    """In file order."""
    return [Row(*each) for each in ROW.iter_unpack(path.read_bytes())]


def work(bootstrap: str, queue: str, path: Path, fetch_wait_ms: int) -> None:
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    consumer = ShareConsumer({
        "bootstrap.servers": bootstrap,
        "group.id": queue,
        "share.acknowledgement.mode": "explicit",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 200,
        "fetch.wait.max.ms": fetch_wait_ms,
        "log_level": 3,
    })  # fmt: skip
    consumer.subscribe([queue])
    sys.stdout.write(json.dumps({"event": "ready"}) + "\n")
    sys.stdout.flush()
    with path.open("wb") as file:
        while not stopping:
            messages = [each for each in consumer.poll(POLL_S) if each.error() is None]
            came_ns = time.time_ns()
            for first in range(0, len(messages), PART):
                rows = []
                for message in messages[first : first + PART]:
                    consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                    number = int((message.value() or b"").partition(b" ")[0])
                    rows.append((number, came_ns, message.delivery_count()))
                confirmed = not any(consumer.commit_sync(60.0).values())
                file.write(b"".join(ROW.pack(*row, confirmed) for row in rows))
            file.flush()
    consumer.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
