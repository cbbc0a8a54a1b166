"""A member of a consumer group with unmodified confluent-kafka (its behavior:
tests.consumer_groups.turns).

    python -m tests.consumer_groups.confluent_member KIND NAME BOOTSTRAP GROUP TOPIC HISTORY
        SESSION_MS SEED

KIND: `range` and `cooperative` use the classic protocol with that assignor, `consumer` the new one.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.consumer_groups.turns import GROUP_GONE, Member, Orders, Partition

BATCH = 500
PROTOCOLS: dict[str, dict[str, Any]] = {
    "range": {"group.protocol": "classic", "partition.assignment.strategy": "range"},
    "cooperative": {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
STALE_MEMBER_EPOCH = 113
TRIES = 20


def settings_of(orders: Orders) -> dict[str, Any]:
    settings = {
        "bootstrap.servers": orders.bootstrap,
        "group.id": orders.group,
        "client.id": orders.name,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
        "retry.backoff.ms": 50,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
        **PROTOCOLS[orders.kind],
    }
    if settings["group.protocol"] == "classic":
        settings |= {"session.timeout.ms": orders.session_ms, "heartbeat.interval.ms": orders.session_ms // 8}
    return settings


class ConfluentMember:
    def __init__(self, orders: Orders) -> None:
        self._member = Member(orders)
        self._consumer = Consumer({**settings_of(orders), "error_cb": _refuse_fatal})
        self._consumer.subscribe(
            [orders.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def run(self) -> None:
        while not self._member.is_stopping or self._member.uncommitted():
            messages = [message for message in self._consumer.consume(BATCH, 0.1) if message.error() is None]
            if messages:
                self._member.read(map(_read, messages))
            self._commit(self._member.uncommitted())
        self._consumer.close()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """The library fetches the committed offsets after this."""
        self._member.assigned(map(_place, partitions), asked_ns=time.monotonic_ns())

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """If close() is called while a revocation is pending, this library leaves the group between
        the two revocations that it then reports (docs/clients.md). So close() does not repeat
        commits."""
        places = {_place(each) for each in partitions}
        self._commit(self._member.uncommitted() & places if self._member.is_stopping else places)
        self._member.revoked(map(_place, partitions))

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._member.revoked(map(_place, partitions), lost=True)

    def _commit(self, places: set[Partition]) -> None:
        """A member of the new protocol may get a new epoch while its commit is in flight; it then
        repeats the commit, as Kafka requires."""
        for _ in range(TRIES):
            offsets = self._member.committing(places)
            if not offsets:
                return
            codes = self._committed(offsets)
            self._member.answered(offsets, codes)
            if STALE_MEMBER_EPOCH not in codes.values():
                return

    def _committed(self, offsets: dict[Partition, int]) -> dict[Partition, int | None]:
        try:
            asked = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            answer = self._consumer.commit(offsets=asked, asynchronous=False)
        except KafkaException as error:
            _refuse_fatal(error.args[0])
            return dict.fromkeys(offsets, error.args[0].code())
        assert answer is not None
        return {_place(each): each.error.code() if each.error else 0 for each in answer}


def _place(each: TopicPartition) -> Partition:
    return each.topic, each.partition


def _read(message: Message) -> tuple[str, int, int, str]:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    assert value is not None
    return topic, partition, offset, value.decode().rstrip()


def _refuse_fatal(error: KafkaError) -> None:
    """A member of the new protocol gets GROUP_ID_NOT_FOUND, a fatal error, if its group was deleted
    while it was frozen."""
    if error.fatal() or error.code() == KafkaError._FATAL:
        print(f"fatal: {error}", file=sys.stderr, flush=True)
        os._exit(GROUP_GONE if "group id does not exist" in str(error) else 1)


if __name__ == "__main__":
    ConfluentMember(Orders.given()).run()
