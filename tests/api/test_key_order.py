"""Records of one key are delivered one after another: `kbroker.queue.ordering=key`."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.queues import scanner
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch
from kbroker.formats.compression import Codec
from kbroker.formats.parked_records import BY_KEY, ParkedKey, end_of, read_parked_entries
from kbroker.share import key_order, parked_order, parking
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import (
    ACCEPT,
    REJECT,
    RELEASE,
    Member,
    acquired,
    prepare,
    rows,
    sent,
    set_up_group,
)
from tests.api.test_parked_records import engine_of, parked
from tests.api.test_work_queue import FAST, heartbeat, lag

pytestmark = pytest.mark.usefixtures("parks_at_once")

ORDERED = {"kbroker.queue.ordering": "key", "kbroker.share.in.flight.limit": "undecided"}
DELAYED = {**ORDERED, "kbroker.queue.redelivery.delay.ms": "300", "kbroker.queue.redelivery.jitter": "0"}
STORES = [
    ("memory", {}),
    ("segment", {}),
    ("lmdb", {}),
    ("rocksdb", {}),
    ("segment", {"kbroker.persister": "control-records"}),
]
LATER = (("kbroker-delay-ms", b"400"),)
Key = tuple[UUID, int]


def record(key: str | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> Record:
    return Record(0, wall_clock_ms(), None if key is None else key.encode(), b"x", tuple(headers))


async def send(client: Client, keys: Sequence[str | None], codec: Codec = Codec.NONE) -> None:
    """One batch; "-" is a null key."""
    await client.append_raw(
        "orders", build_batch([record(None if key == "-" else key) for key in keys], codec=codec)
    )


async def take(member: Member, key: Key, *, wait_ms: int = 0, most: int = 500) -> list[int]:
    answer = await member.fetch(
        [key] if member.epoch == 0 else (), wait_ms=wait_ms, max_records=most, share_acquire_mode=1
    )
    offsets = [offset for first, last, _ in acquired(answer) for offset in range(first, last + 1)]
    assert sent(answer) == offsets
    return offsets


async def end(member: Member, key: Key, *offsets: int, how: int = ACCEPT) -> None:
    answer = await member.acknowledge({key: [(offset, offset, [how]) for offset in sorted(offsets)]})
    assert rows(answer)[key].error_code == ErrorCode.none


def blocked(client: Client) -> list[int]:
    """Offsets that the store lists as waiting for their key."""
    store, prefix = client.broker.state_store, ParkedKey.namespace
    entries = read_parked_entries(store.scan_range(prefix, end_of(prefix)))
    return sorted(key.offset for key, _ in entries if key.kind == BY_KEY)


class TestKeyOrder:
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
    async def test_one_of_a_key_at_a_time(self, connect: Connect, codec: Codec) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await send(client, "aab-ba--", codec)
            one, two = Member(client, "m1"), Member(client.another(2), "m2")
            assert await take(one, key, wait_ms=5000) == [0, 2, 3, 6, 7]
            assert await take(two, key) == []
            await end(one, key, 2)
            assert await take(two, key) == [4]
            await end(one, key, 0, how=REJECT)
            assert await take(two, key) == [1]
            await end(two, key, 1, 4)
            assert await take(one, key) == [5]
            await end(one, key, 3, 5, 6, 7)
            assert engine_of(client, key).start_offset == 8
            assert engine_of(client, key).statistics().behind_keys == 0

    async def test_a_whole_batch_goes_to_clients_that_cannot_ask_for_less(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await send(client, "abab-")
            answer = await Member(client, "m1").fetch([key], wait_ms=5000)
            assert acquired(answer) == [(0, 1, 1), (4, 4, 1)]

    async def test_a_waiting_fetch_is_notified_when_the_key_is_free(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await send(client, "aa")
            one, two = Member(client, "m1"), Member(client.another(2), "m2")
            assert await take(one, key, wait_ms=5000) == [0]
            found: list[int] = []

            async def wait() -> None:
                found.extend(await take(two, key, wait_ms=60_000))

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    assert found == []
                    await end(one, key, 0)
            assert found == [1]

    async def test_a_release_comes_first(self, connect: Connect) -> None:
        """In the window, and parked: the key waits as long as its released record."""
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, DELAYED)
            await send(client, "aab")
            member = Member(client, "m1")
            assert await take(member, key, wait_ms=5000) == [0, 2]
            await end(member, key, 0, how=RELEASE)
            await end(member, key, 2)
            assert parked(client, key) == 1
            assert blocked(client) == [0]
            assert await take(member, key, wait_ms=50) == []
            assert await take(member, key, wait_ms=5000) == [0]
            assert await take(member, key, wait_ms=50) == []
            await end(member, key, 0)
            assert blocked(client) == []
            assert await take(member, key) == [1]

    async def test_a_lock_that_ran_out_comes_first(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await send(client, "aa")
            one, two = Member(client, "m1"), Member(client.another(2), "m2")
            assert await take(one, key, wait_ms=5000) == [0]
            assert await take(two, key, wait_ms=5000) == [0]
            await end(two, key, 0)
            assert await take(one, key) == [1]

    async def test_a_dead_letter_frees_its_key(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await client.create_topic("dlq", configs={"errors.deadletterqueue.group.enable": "true"})
            limit = {"errors.deadletterqueue.topic.name": "dlq", "share.delivery.count.limit": "2"}
            await set_up_group(client, {**ORDERED, **limit})
            await send(client, "aaa")
            member = Member(client, "m1")
            assert await take(member, key, wait_ms=5000) == [0]
            await end(member, key, 0, how=REJECT)
            for _ in range(2):
                assert await take(member, key) == [1]
                await end(member, key, 1, how=RELEASE)
            assert await take(member, key) == [2]
            await until(lambda: client.partition("dlq").high_watermark == 2)

    async def test_a_scheduled_record_joins_when_it_is_due(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, {**ORDERED, "kbroker.queue.scheduling": "true"})
            await client.append_raw(
                "orders", build_batch([record("a", LATER), record("a"), record("a"), record("b", LATER)])
            )
            member = Member(client, "m1")
            assert await take(member, key, wait_ms=5000) == [1], "it does not block its key before"
            assert await take(member, key, wait_ms=5000) == [3]
            await until(lambda: engine_of(client, key).statistics().behind_keys == 2)
            assert await take(member, key, wait_ms=50) == []
            await end(member, key, 1)
            assert await take(member, key) == [0]
            await end(member, key, 0)
            assert await take(member, key) == [2]

    async def test_schedules_need_their_own_setting(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await client.append_raw("orders", build_batch([record("a", (("kbroker-delay-ms", b"3600000"),))]))
            assert await take(Member(client, "m1"), key, wait_ms=5000) == [0]


class TestRestarts:
    @pytest.mark.parametrize(("engine", "more"), STORES)
    async def test_keys_are_learnt_again(self, connect: Connect, engine: str, more: dict[str, str]) -> None:
        """After a restart: records that wait for others, were held by members, or wait in the
        window and outside."""
        config = {**FAST, "group.share.record.lock.duration.ms": "30000", **more}
        async with connect(engine, config=config) as client:
            key = await prepare(client)
            await set_up_group(client, DELAYED)
            await heartbeat(client, "m1", 0)
            await send(client, "aabbccdd-")
            member = Member(client, "m1")
            offsets = await take(member, key, wait_ms=5000)
            a, b, c, d, null = offsets
            await end(member, key, a)
            await end(member, key, b, how=RELEASE)
            await end(member, key, c, how=REJECT)
            assert parked(client, key) == 1
            later = {**DELAYED, "kbroker.queue.redelivery.delay.ms": "1000"}
            await set_up_group(client, later)  # It still waits when the broker is back.
            assert await take(member, key) == [a + 1, c + 1]
            await end(member, key, a + 1, how=RELEASE)
        async with connect(engine, config=config) as client:
            member = Member(client, "m2")
            found: list[int] = []
            with trio.fail_after(30):
                while len(found) < 5:
                    found += await take(member, key, wait_ms=5000)
            assert sorted(found) == sorted([a + 1, b, c + 1, d, null])
            assert found.index(a + 1) == 4, "it has to wait for longer than the others"
            assert await take(member, key, wait_ms=50) == []
            await end(member, key, *found)
            assert sorted(await take(member, key)) == sorted([b + 1, d + 1])
            await end(member, key, b + 1, d + 1)
            assert await lag(client) == 0
            assert blocked(client) == []
            assert engine_of(client, key).statistics().behind_keys == 0

    async def test_what_is_parked_is_looked_up(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Keys of parked records that are not in memory wait as well."""
        async with connect("lmdb", config=FAST) as client:
            key = await prepare(client)
            await set_up_group(
                client,
                {**DELAYED, "kbroker.queue.redelivery.delay.ms": "3600000", "kbroker.queue.prefetch": "0"},
            )
            await heartbeat(client, "m1", 0)
            await send(client, [str(number) for number in range(40)])
            member = Member(client, "m1")
            assert len(await take(member, key, wait_ms=5000)) == 40
            await end(member, key, *range(40), how=RELEASE)
            assert (parked(client, key), len(blocked(client))) == (40, 40)
        monkeypatch.setattr("kbroker.broker.queues.parked_reading.READ_AT_ONCE", 2)
        monkeypatch.setattr(parking.Parking.end_read, "__defaults__", (2,))
        monkeypatch.setattr(parked_order.LaneOrder.__init__, "__kwdefaults__", {"few": 2, "many": 4})
        async with connect("lmdb", config=FAST) as client:
            member = Member(client, "m2")
            assert await take(member, key, wait_ms=10) == []
            await send(client, [*(str(number) for number in range(40)), "new"])
            assert await take(member, key, wait_ms=5000) == [80]
            engine = engine_of(client, key)
            assert engine.parking is not None
            assert not engine.parking.knows_redeliveries
            assert engine.statistics().behind_keys == 40


class TestAlterations:
    async def test_what_members_hold_keeps_its_key(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, {})
            await send(client, "aaab")
            one, two = Member(client, "m1"), Member(client.another(2), "m2")
            assert await take(one, key, wait_ms=5000, most=2) == [0, 1]
            await set_up_group(client, ORDERED)
            assert await take(two, key, wait_ms=5000) == [3]
            assert await take(two, key, wait_ms=50) == []
            await end(one, key, 0, 1, how=RELEASE)
            assert await take(two, key) == [0], "one of those that came back, and the first of them"
            await end(two, key, 0)
            assert await take(two, key) == [1]
            await end(two, key, 1)
            assert await take(two, key) == [2]

    async def test_without_it_all_go_at_once(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await send(client, "aaa")
            member = Member(client, "m1")
            assert await take(member, key, wait_ms=5000) == [0]
            await set_up_group(client, {"kbroker.queue.ordering": "none"})
            assert await take(member, key, wait_ms=5000) == [1, 2]

    @pytest.mark.parametrize("validate_only", [True, False])
    async def test_stores_that_cannot_park_refuse_it(self, connect: Connect, validate_only: bool) -> None:
        async with connect(config=FAST) as client:
            client.broker.configs.parks_records = False
            entries = [{"name": "kbroker.queue.ordering", "config_operation": 0, "value": "key"}]
            resource = {"resource_type": 32, "resource_name": "g1", "configs": entries}
            answer = await client.call(
                "incremental_alter_configs", 1, resources=[resource], validate_only=validate_only
            )
            (row,) = answer.responses
            assert row.error_code == ErrorCode.invalid_config
            assert "`kbroker queues create --ordering none`" in row.error_message
            assert client.broker.configs.stored_group("g1") == {}


class TestLookAhead:
    async def test_a_hot_key_stops_the_scan_at_the_bound(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bound = 40
        monkeypatch.setattr(key_order.KeyOrder.__init__, "__kwdefaults__", {"look_ahead": bound})
        monkeypatch.setattr(scanner, "OFFSETS_A_TURN", 7)
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, ORDERED)
            await send(client, "h" * 100 + "o")
            member = Member(client, "m1")
            assert await take(member, key, wait_ms=5000) == [0]
            await until(lambda: engine_of(client, key).statistics().look_ahead_stops == 1)
            assert engine_of(client, key).statistics().behind_keys == bound
            order = found = [0]
            with trio.fail_after(30):
                while len(order) < 101:
                    await end(member, key, *found)
                    found = await take(member, key, wait_ms=5000)
                    order = order + found
            assert [offset for offset in order if offset != 100] == list(range(100))
            assert 60 <= order.index(100) <= 90, "found when the bound let the scan go so far"
            assert engine_of(client, key).statistics().look_ahead_stops >= 2
