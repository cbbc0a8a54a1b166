"""A member of a consumer group with unmodified kafka-python, classic protocol (its behavior:
tests.consumer_groups.turns).

    python -m tests.consumer_groups.kafka_python_member KIND NAME BOOTSTRAP GROUP TOPIC HISTORY
        SESSION_MS SEED

A rebalance happens within poll(), when all records read before have been committed. Its callbacks
must not wait, so they only record the events.
"""

from __future__ import annotations

import logging
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import CommitFailedError, KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.consumer_groups.turns import Member, Orders, Partition

BATCH = 500
UNKNOWN_MEMBER_ID = 25


class Turns(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.assigned(map(_place, assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.revoked(map(_place, revoked))

    def on_partitions_lost(self, lost: Any) -> None:
        self._member.revoked(map(_place, lost), lost=True)


class KafkaPythonMember:
    def __init__(self, orders: Orders) -> None:
        self._member = Member(orders)
        self._consumer = KafkaConsumer(
            bootstrap_servers=orders.bootstrap,
            group_id=orders.group,
            client_id=orders.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=orders.session_ms,
            heartbeat_interval_ms=orders.session_ms // 8,
            fetch_max_wait_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            max_poll_records=BATCH,
        )
        self._consumer.subscribe([orders.topic], listener=Turns(self._member))

    def run(self) -> None:
        while not self._member.is_stopping or self._member.uncommitted():
            for messages in self._consumer.poll(timeout_ms=100).values():
                self._member.read(
                    (each.topic, each.partition, each.offset, each.value.decode().rstrip())
                    for each in messages
                )
            self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        offsets = self._member.committing(self._member.uncommitted())
        if not offsets:
            return
        asked = {TopicPartition(*at): OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}
        try:
            self._consumer.commit(asked)
            code: int | None = 0
        except CommitFailedError:
            code = UNKNOWN_MEMBER_ID
        except KafkaError as error:
            code = getattr(error, "errno", None)
        self._member.answered(offsets, dict.fromkeys(offsets, code))


def _place(each: Any) -> Partition:
    return each.topic, each.partition


if __name__ == "__main__":
    logging.disable()
    KafkaPythonMember(Orders.given()).run()
