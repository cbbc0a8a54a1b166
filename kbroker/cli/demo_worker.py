"""One share consumer of the demo, in a process of its own: polls, works, acknowledges, and reports what the broker confirmed."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.demo_orders import Verdict, handle

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

_POLL_S = 0.2


class Progress(NamedTuple):
    """What one poll of one consumer came to. `gave_up`: released at the delivery limit, so that the broker archives it."""

    worker: int
    delivered: int
    redelivered: int
    accepted: int
    released: int
    rejected: int
    gave_up: int


def work(worker: int, bootstrap: str, topic: str, group: str, delivery_limit: int, reports: SimpleQueue[Progress], stop: Event) -> None:
    """Runs until `stop` is set; Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from confluent_kafka import ShareConsumer

    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": f"demo-{worker}",
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    consumer = ShareConsumer(settings)
    try:
        consumer.subscribe([topic])
        while not stop.is_set():
            report = _work_once(worker, consumer, delivery_limit)
            if report is not None:
                reports.put(report)
    finally:
        consumer.close()


def _work_once(worker: int, consumer: ShareConsumer, delivery_limit: int) -> Progress | None:
    from confluent_kafka import AcknowledgeType

    verdicts: defaultdict[int, Counter[str]] = defaultdict(Counter)  # by partition: that is how the broker confirms
    for message in consumer.poll(_POLL_S):
        if message.error() is not None:
            continue  # the library asks again by itself; the demo ends by itself if nothing moves
        partition, value, count = message.partition(), message.value(), message.delivery_count()
        assert partition is not None
        assert isinstance(value, bytes)
        assert count is not None
        verdict = handle(value, count)
        consumer.acknowledge(message, AcknowledgeType(verdict.value))
        of_partition = verdicts[partition]
        of_partition["delivered"] += 1
        of_partition["redelivered"] += count > 1
        of_partition[verdict.name] += 1
        of_partition["gave_up"] += verdict is Verdict.RELEASE and count >= delivery_limit
    if not verdicts:
        return None
    refused = {each.partition for each, error in consumer.commit_sync().items() if error is not None}
    total: Counter[str] = Counter()
    for partition, counted in verdicts.items():
        seen = {name: counted[name] for name in ("delivered", "redelivered")}
        total.update(seen if partition in refused else counted)
    names = ("delivered", "redelivered", "ACCEPT", "RELEASE", "REJECT", "gave_up")
    return Progress(worker, *(total[name] for name in names))
