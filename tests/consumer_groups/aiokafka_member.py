"""A member of a consumer group with unmodified aiokafka, classic protocol (its behavior:
tests.consumer_groups.turns).

    python -m tests.consumer_groups.aiokafka_member KIND NAME BOOTSTRAP GROUP TOPIC HISTORY
        SESSION_MS SEED

Rebalances run concurrently with the reading. The lock keeps them from revoking partitions between
the work and its commit. Records of a partition that was revoked before the work are left to its
next owner. This library does not distinguish lost partitions from revoked ones, but the response to
the commit does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from tests.consumer_groups.turns import Member, Orders, Partition

BATCH = 500
UNKNOWN_MEMBER_ID = 25


class AiokafkaMember(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, orders: Orders) -> None:
        self._member = Member(orders)
        self._orders = orders
        self._lock = asyncio.Lock()
        self._held: set[Partition] = set()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=orders.bootstrap,
            group_id=orders.group,
            client_id=orders.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=orders.session_ms,
            heartbeat_interval_ms=orders.session_ms // 8,
            rebalance_timeout_ms=60_000,
            fetch_max_wait_ms=100,
            retry_backoff_ms=50,
        )

    async def run(self) -> None:
        self._consumer.subscribe([self._orders.topic], listener=self)
        await self._consumer.start()
        while not self._member.is_stopping or self._member.uncommitted():
            # waits for the end of a rebalance
            found = await self._consumer.getmany(timeout_ms=100, max_records=BATCH)
            async with self._lock:
                places = {_place(each) for each in found} & self._held
                for messages in found.values():
                    if _place(messages[0]) in places:
                        self._member.read(
                            (each.topic, each.partition, each.offset, each.value.decode().rstrip())
                            for each in messages
                        )
                await self._commit(self._member.uncommitted())
        async with self._lock:
            await self._give_up(self._held)
        await self._consumer.stop()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._held = {_place(each) for each in assigned}
        self._member.assigned(self._held)

    async def on_partitions_revoked(self, revoked: Any) -> None:
        async with self._lock:
            await self._give_up({_place(each) for each in revoked} & self._held)

    async def _give_up(self, places: set[Partition]) -> None:
        await self._commit(places)
        self._member.revoked(places)
        self._held = self._held - places

    async def _commit(self, places: set[Partition]) -> None:
        offsets = self._member.committing(places)
        if not offsets:
            return
        try:
            await self._consumer.commit({TopicPartition(*place): offset for place, offset in offsets.items()})
            code: int | None = 0
        except (CommitFailedError, IllegalStateError):
            code = UNKNOWN_MEMBER_ID
        except KafkaError as error:
            code = getattr(error, "errno", None)
        self._member.answered(offsets, dict.fromkeys(offsets, code))


def _place(each: Any) -> Partition:
    return each.topic, each.partition


if __name__ == "__main__":
    logging.disable()

    async def main() -> None:
        await AiokafkaMember(Orders.given()).run()

    asyncio.run(main())
