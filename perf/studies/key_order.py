"""The cost of key order: a queue with it (`kbroker queues create --ordering key`) compared with one
without.

    python -m perf.studies.key_order [--jobs 4000] [--job-ms 0] [--engine segment] [--batch 100]

Eight workers (unmodified confluent-kafka, each in its own process) accept all jobs of a queue one
by one, with a commit for each. The jobs have 1 000 keys, one of which may have a larger share. The
rate of a hot key is at most that of one worker; with half of the jobs, it limits the total rate to
twice that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from kbroker.client import group_admin
from kbroker.testing.broker import RunningBroker

WORKERS, KEYS = 8, 1000
CONFIG = {
    "kbroker.queue.prefetch": "1",
    "kbroker.share.in.flight.limit": "undecided",
    "kbroker.queue.assignment": "all",
    "share.auto.offset.reset": "earliest",
}


class Row(NamedTuple):
    name: str
    ordering: str
    hot: float


ROWS = (
    Row("no order", "none", 0.0),
    Row("order, keys alike", "key", 0.0),
    Row("order, one key has half", "key", 0.5),
    Row("order, one key has all", "key", 1.0),
)


def work(bootstrap: str, group: str, job_ms: float, ended: Event) -> None:
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.subscribe([group])
    while not ended.is_set():
        for message in consumer.poll(0.5):
            if message.error() is None:
                time.sleep(job_ms / 1000)
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                consumer.commit_sync()
    consumer.close()


def fill(bootstrap: str, topic: str, jobs: int, hot: float, batch: int) -> None:
    chooser = random.Random(1)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": batch, "linger.ms": 5})
    for _ in range(jobs):
        key = "k0" if chooser.random() < hot else f"k{chooser.randrange(KEYS)}"
        producer.produce(topic, b"x" * 100, key=key)
        producer.poll(0)
    assert producer.flush(60) == 0


def lag(broker: RunningBroker, group: str) -> int:
    with broker.connect() as connection:
        return sum(each.lag or 0 for each in group_admin.describe_share_group_offsets(connection, group))


def measure(broker: RunningBroker, row: Row, number: int, options: argparse.Namespace) -> tuple[float, float]:
    """Jobs per second, and milliseconds of the broker's CPU per job."""
    name = f"jobs{number}"
    broker.create_topic(name)
    broker.set_group_config(name, {**CONFIG, "kbroker.queue.ordering": row.ordering})
    with broker.connect() as connection:
        assert not group_admin.alter_share_group_offsets(
            connection, name, {group_admin.TopicPartition(name, 0): 0}
        )
    fill(broker.bootstrap, name, options.jobs, row.hot, options.batch)
    ended = multiprocessing.Event()
    arguments = broker.bootstrap, name, options.job_ms, ended
    workers = [multiprocessing.Process(target=work, args=arguments) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    while lag(broker, name) > options.jobs * 0.9:
        time.sleep(0.05)
    began, cpu, left = time.monotonic(), cpu_seconds(broker.pid), lag(broker, name)
    while (now_left := lag(broker, name)) > options.jobs * 0.1:
        time.sleep(0.05)
    took, used = time.monotonic() - began, cpu_seconds(broker.pid) - cpu
    ended.set()
    for worker in workers:
        worker.join()
    return (left - now_left) / took, 1000 * used / (left - now_left)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--job-ms", type=float, default=0)
    parser.add_argument("--engine", default="segment")
    parser.add_argument("--batch", type=int, default=100, help="maximum number of records in a batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        broker = RunningBroker(Path(home), storage=options.engine)
        broker.start()
        try:
            print(f"{'':<26}{'jobs/s':>8}{'broker CPU, ms/job':>20}")
            for number, row in enumerate(ROWS):
                rate, cpu_ms = measure(broker, row, number, options)
                print(f"{row.name:<26}{rate:>8.0f}{cpu_ms:>20.2f}", flush=True)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
