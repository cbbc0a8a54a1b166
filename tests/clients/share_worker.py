"""A share consumer in a separate process, which a test may steer, kill or freeze. It is
confluent-kafka's, unmodified.

    python -m tests.clients.share_worker BOOTSTRAP GROUP MODE MAX_POLL_RECORDS

Commands are lines on stdin, events are JSON lines on stdout; share_workers.py is the other side of
both.

    subscribe TOPIC...      subscribe and begin to poll
    accept|release|reject   acknowledge each record of a poll so, held records first
    obey                    the record's value decides: "accept…", "reject…", "release N…" (release
                            the first N deliveries, then accept) or "hold N…" (release the first N,
                            then hold)
    hold                    after the next poll that returns records: acknowledge nothing and stop
                            polling until the next command
    close                   leave cleanly, with all held records

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer, TopicPartition

_POLL_S = 0.1
_saying = threading.Lock()


def say(event: str, **details: Any) -> None:
    with _saying:
        sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **details}) + "\n")
        sys.stdout.flush()


class Orders:
    """The test's current commands; written by the thread that reads stdin."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.verdict = "accept"
        self.topics: list[str] = []
        self.closing = False
        self.resubscribed = False

    def read(self) -> None:
        for line in sys.stdin:
            word, *arguments = line.split()
            with self.changed:
                if word == "subscribe":
                    self.topics, self.resubscribed = arguments, True
                elif word == "close":
                    self.closing = True
                else:
                    self.verdict = word
                self.changed.notify_all()
            say(f"told to {word}")

    def wait_while_holding(self) -> None:
        with self.changed:
            held = self.verdict
            self.changed.wait_for(lambda: self.verdict != held or self.closing)

    def wait_for_topics(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.resubscribed or self.closing)


class Worker:
    def __init__(self, bootstrap: str, group: str, mode: str, max_poll_records: int) -> None:
        self.orders = Orders()
        self.explicit = mode == "explicit"
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": mode}
        settings |= {
            "max.poll.records": max_poll_records,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
        }
        self.consumer = ShareConsumer(settings)
        self.consumer.set_acknowledgement_commit_callback(self.acknowledged)

    def acknowledged(self, offsets: Mapping[TopicPartition, set[int]], error: KafkaException | None) -> None:
        code = 0 if error is None else error.args[0].code()
        for place, which in offsets.items():
            say(
                "acknowledged", topic=place.topic, partition=place.partition, offsets=sorted(which), code=code
            )

    def run(self) -> None:
        threading.Thread(target=self.orders.read, daemon=True).start()
        say("ready")
        self.orders.wait_for_topics()
        while not self.orders.closing:
            if self.orders.resubscribed:
                self.orders.resubscribed = False
                say("subscribing")
                self.consumer.subscribe(self.orders.topics)
            asked_at = time.monotonic()
            messages = list(self.consumer.poll(_POLL_S))
            for message in messages:
                self.report(message, asked_at)
            held = any(self.must_hold(message) for message in messages)
            if held:
                say("holding")
                self.orders.wait_while_holding()
            if self.explicit and messages and not (held and self.orders.closing):
                self.acknowledge([message for message in messages if message.error() is None])
        self.consumer.close()
        say("closed")

    def report(self, message: Message, asked_at: float) -> None:
        error, value = message.error(), message.value()
        if error is not None:
            say("error", code=error.code(), text=error.str(), topic=message.topic())
            return
        say(
            "record",
            topic=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
            count=message.delivery_count(),
            value=None if value is None else value.decode("latin-1"),
            asked_at=asked_at,
        )

    def must_hold(self, message: Message) -> bool:
        if self.orders.verdict == "obey":
            word, *more = (message.value() or b"").decode().split()
            return word == "hold" and (message.delivery_count() or 0) > int(more[0])
        return self.orders.verdict == "hold"

    def acknowledge(self, messages: list[Message]) -> None:
        for message in messages:
            self.consumer.acknowledge(message, AcknowledgeType[self.verdict_on(message)])
        self.consumer.commit_sync(60.0)

    def verdict_on(self, message: Message) -> str:
        if self.orders.verdict != "obey":
            return self.orders.verdict.upper()
        word, *more = (message.value() or b"").decode().split()
        if word in ("release", "hold"):
            return "RELEASE" if (message.delivery_count() or 0) <= int(more[0]) else "ACCEPT"
        return word.upper()


if __name__ == "__main__":
    Worker(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
