"""Work queues without workers: scheduled jobs are parked, expired jobs become dead letters, also
after a restart."""

from __future__ import annotations

import pytest

from kbroker.share.persister import TopicPartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import letters_of, offsets_of, prepare_dead_letters, until
from tests.api.share_consumers import GROUP, Member, acquired, set_up_group
from tests.api.test_expired_records import HOUR
from tests.api.test_expired_records import send as send_old
from tests.api.test_parked_records import engine_of, is_loaded
from tests.api.test_scheduled_records import are_parked, send
from tests.api.test_work_queue import FAST, heartbeat, lag

pytestmark = pytest.mark.usefixtures("parks_at_once")

SCHEDULING = {"kbroker.queue.scheduling": "true", "kbroker.share.in.flight.limit": "undecided"}
EXPIRING = {"kbroker.queue.ttl.ms": str(HOUR), "kbroker.share.in.flight.limit": "undecided"}


async def begin_at(client: Client, offset: int = 0) -> None:
    """As `kbroker queues create` does it: no member has joined yet."""
    topics = [{"topic_name": "orders", "partitions": [{"partition_index": 0, "start_offset": offset}]}]
    assert (await client.call("alter_share_group_offsets", 0, group_id=GROUP, topics=topics)).error_code == 0


class TestUnattended:
    async def test_what_is_for_later_is_put_aside(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SCHEDULING)
            await begin_at(client)
            await send(client, 3_600_000, None, 1500)
            await are_parked(client, key, 2)
        async with connect(every_engine, config=FAST) as client:
            await are_parked(client, key, 2)
            await send(client, 3_600_000)
            await are_parked(client, key, 3)
            assert acquired(await Member(client, "m1").fetch([key], wait_ms=5000))[0][0] in (1, 2)

    async def test_what_is_past_its_time_is_a_dead_letter(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare_dead_letters(client, configs=EXPIRING)
            await begin_at(client)
            await send_old(client, 2 * HOUR)
            await until(lambda: offsets_of(letters_of(client)) == [0])
        async with connect(every_engine, config=FAST) as client:
            await send_old(client, 3 * HOUR, 0)
            await until(lambda: offsets_of(letters_of(client)) == [0, 1])
            await until(lambda: engine_of(client, key).is_settled)
            assert await lag(client) == 1

    async def test_it_stays_when_the_last_worker_leaves_and_goes_with_the_setting(
        self, connect: Connect
    ) -> None:
        async with connect(config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SCHEDULING)
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            await member.fetch([key], wait_ms=10)
            await until(lambda: is_loaded(client, key))
            await member.fetch(epoch=-1)
            assert engine_of(client, key).settings.works_alone
            await send(client, 3_600_000)
            await are_parked(client, key, 1)
            await set_up_group(client, {"kbroker.queue.scheduling": "false"})
            await until(lambda: not is_loaded(client, key))
            await set_up_group(client, {"kbroker.queue.scheduling": "true"})
            await are_parked(client, key, 1)

    async def test_one_that_begins_elsewhere_is_loaded_again(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SCHEDULING)
            await begin_at(client)
            await send(client, 3_600_000, 3_600_000, None)
            await are_parked(client, key, 2)
            await begin_at(client, 1)
            await are_parked(client, key, 1)
            assert engine_of(client, key).statistics().parked == 1

    async def test_others_wait_for_their_first_member(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare_dead_letters(client, configs={"kbroker.queue.prefetch": "1"})
            await begin_at(client)
            await send(client, 3_600_000)
            await set_up_group(client, {"kbroker.queue.redelivery.delay.ms": "1000"})
            assert client.broker.share_partitions.find(GROUP, TopicPartition(*key)) is None
