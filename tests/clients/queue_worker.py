"""A worker of a queue in a separate process, as docs/queues.md shows it, which also writes a
history.

    python -m tests.clients.queue_worker BOOTSTRAP QUEUE TOPIC,... [SETTING=VALUE]...

A job is a JSON object with some of these keys:
- `work`: seconds of work, or a list with the seconds of each delivery; the last entry stands for
  all further deliveries
- `fail`: so many deliveries end with RELEASE before one ends with ACCEPT
- `reject`: the job ends with REJECT
- `needs`: the path of a file; the job fails while that file is missing

Settings are those of librdkafka, and override the page's. Two more exist: with `burst=N` the worker
acknowledges N jobs of a poll with one commit, with `hold=1` it acknowledges none and waits to be
ended.

Events are JSON lines on stdout: ready, took (a job was delivered), answered (the broker has
answered the commit; `sent_at` is when it was sent; `code` 0: success), closed. Times are of the
monotonic clock, which all processes of a machine share. On SIGTERM the worker finishes the job at
hand and closes. It reads no other input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

_POLL_S = 0.7
"""More than fetch.wait.max.ms, as the page says."""


def say(event: str, **details: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **details}) + "\n")
    sys.stdout.flush()


def answer_for(message: Message) -> AcknowledgeType:
    job = json.loads(message.value() or b"")
    count, work = message.delivery_count() or 1, job.get("work", 0)
    time.sleep(work[min(count, len(work)) - 1] if isinstance(work, list) else work)
    is_down = "needs" in job and not os.path.exists(job["needs"])
    if job.get("reject"):
        return AcknowledgeType.REJECT
    if is_down or count <= job.get("fail", 0):
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


class Worker:
    def __init__(self, bootstrap: str, queue: str, topics: Sequence[str], settings: dict[str, str]) -> None:
        self._stopping = False
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        self._burst = int(settings.pop("burst", "1"))
        self._holds = settings.pop("hold", "") == "1"
        page = {"bootstrap.servers": bootstrap, "group.id": queue, "client.id": f"worker-{os.getpid()}"}
        page |= {
            "share.acknowledgement.mode": "explicit",
            "max.poll.interval.ms": "3600000",
            "log_level": "3",
        }
        page |= {"reconnect.backoff.ms": "100", "reconnect.backoff.max.ms": "1000"}
        self._consumer = ShareConsumer({**page, **settings})
        self._consumer.subscribe(list(topics))

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def run(self) -> None:
        say("ready")
        while not self._stopping:
            at_hand = []
            for message in self._consumer.poll(_POLL_S):
                if self._stopping and not at_hand:
                    break
                if (error := message.error()) is not None:
                    say("error", text=error.str())
                    continue
                at_hand.append(message)
                self._took(message)
                if self._holds:
                    continue
                if len(at_hand) == self._burst:
                    self._answer(at_hand)
                    at_hand = []
            while at_hand and self._holds and not self._stopping:
                time.sleep(0.1)
            if at_hand and not self._holds:
                self._answer(at_hand)
        self._consumer.close()
        say("closed")

    def _took(self, message: Message) -> None:
        place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
        job = json.loads(message.value() or b"").get("job")
        say("took", **place, count=message.delivery_count(), job=job)

    def _answer(self, at_hand: Sequence[Message]) -> None:
        kinds = [answer_for(message) for message in at_hand]
        sent_at = time.monotonic()
        for message, kind in zip(at_hand, kinds, strict=True):
            self._consumer.acknowledge(message, kind)
        errors = {
            (place.topic, place.partition): error for place, error in self._consumer.commit_sync(60.0).items()
        }
        for message, kind in zip(at_hand, kinds, strict=True):
            place = message.topic(), message.partition()
            error = errors.get(place)  # type: ignore[arg-type]
            code = 0 if error is None else error.args[0].code()
            say("answered", topic=place[0], partition=place[1], offset=message.offset(), kind=kind.name,
                code=code, sent_at=sent_at)  # fmt: skip


if __name__ == "__main__":
    more = dict(each.split("=", 1) for each in sys.argv[4:])
    Worker(sys.argv[1], sys.argv[2], sys.argv[3].split(","), more).run()
