"""Records past their time to live are archived instead of delivered: `kbroker.queue.ttl.ms`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker.broker.queues import expiry, share_partitions
from kbroker.broker.queues.expiry import times_of
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.formats.batches import NO_TIMESTAMP, Record, build_batch
from kbroker.formats.compression import Codec
from kbroker.share import offers
from kbroker.share.dead_letter import origin_of
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import letters_of, offsets_of, prepare_dead_letters, until
from tests.api.share_consumers import ACCEPT, RELEASE, Member, acquired, prepare, sent, set_up_group
from tests.api.test_parked_records import engine_of, parked
from tests.api.test_work_queue import FAST, heartbeat, lag

pytestmark = pytest.mark.usefixtures("parks_at_once")

HOUR = 3_600_000
SETTINGS = {
    "kbroker.queue.ttl.ms": str(HOUR),
    "kbroker.share.in.flight.limit": "undecided",
    "kbroker.queue.redelivery.delay.ms": "10",
    "kbroker.queue.redelivery.jitter": "0",
}
NOW = 1_700_000_000_000


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How far the broker's wall clock is ahead."""
    step, real = [0], wall_clock_ms
    for module in (expiry, share_partitions):
        monkeypatch.setattr(module, "wall_clock_ms", lambda: real() + step[0])
    monkeypatch.setattr("kbroker.broker.queues.scanner.wall_clock_ms", lambda: real() + step[0])
    return step


def batch(
    *ages_ms: int | None, codec: Codec = Codec.NONE, headers: tuple[tuple[str, bytes | None], ...] = ()
) -> bytes:
    """Records of this age; None: without a timestamp."""
    now = wall_clock_ms()
    return build_batch(
        [Record(0, NO_TIMESTAMP if age is None else now - age, None, b"x", headers) for age in ages_ms],
        codec=codec,
    )


async def send(client: Client, *ages_ms: int | None, codec: Codec = Codec.NONE) -> None:
    await client.append_raw("orders", batch(*ages_ms, codec=codec))


async def take(
    member: Member, key: tuple[UUID, int], wait_ms: int = 5000, mode: int = 1
) -> list[tuple[int, int, int]]:
    """The records of a fetch, all of which are accepted."""
    answer = await member.fetch([key] if member.epoch == 0 else (), wait_ms=wait_ms, share_acquire_mode=mode)
    taken = acquired(answer)
    if mode:
        assert sent(answer) == [offset for first, last, _ in taken for offset in range(first, last + 1)]
    if taken:
        await member.acknowledge({key: [(first, last, [ACCEPT]) for first, last, _ in taken]})
    return taken


async def is_all_done(client: Client) -> None:
    """The lag depends on the saved state."""
    with trio.fail_after(20):
        while await lag(client):
            await trio.lowlevel.checkpoint()


def causes(client: Client) -> list[str]:
    origins = [origin_of(record.headers) for record in letters_of(client)]
    return [origin.message for origin in origins if origin is not None]


class TestTimes:
    def test_of_each_record(self) -> None:
        records = [Record(0, NOW + delta, None, b"") for delta in (5, -7, 0)]
        times = times_of(memoryview(build_batch(records)), schedules=True)
        assert (times.earliest_ms, [times.of(delta) - NOW for delta in range(3)]) == (NOW - 7, [5, -7, 0])

    def test_the_time_of_a_schedule_counts_if_it_is_later(self) -> None:
        headers = [
            (("kbroker-delay-ms", b"100"),),
            (("kbroker-deliver-at", str(NOW - 9).encode()),),
            (("kbroker-delay-ms", b"?"),),
        ]
        stored = memoryview(build_batch([Record(0, NOW, None, b"", each) for each in headers]))
        assert [times_of(stored, schedules=True).of(delta) - NOW for delta in range(3)] == [100, 0, 0]
        assert [times_of(stored, schedules=False).of(delta) - NOW for delta in range(3)] == [0, 0, 0]

    def test_a_record_without_a_timestamp_and_one_that_cannot_be_read_have_none(self) -> None:
        times = times_of(
            memoryview(build_batch([Record(0, NO_TIMESTAMP, None, b""), Record(0, NOW, None, b"")])),
            schedules=True,
        )
        assert times.earliest_ms == NOW
        assert times.of(0) > NOW + (1 << 60)
        broken = bytearray(build_batch([Record(0, NOW, None, b"x")], codec=Codec.LZ4))
        broken[-4:] = b"\xff" * 4
        assert times_of(memoryview(broken), schedules=False).earliest_ms > NOW + (1 << 60)

    def test_times_beyond_64_bits_are_the_longest_there_are(self) -> None:
        last = (1 << 63) - 1
        records = [Record(0, last, None, b"", (("kbroker-delay-ms", b"9" * 18),)), Record(0, NOW, None, b"")]
        times = times_of(memoryview(build_batch(records)), schedules=True)
        assert [times.of(delta) for delta in range(2)] == [last, NOW]

    def test_a_delay_that_counts_from_no_timestamp_or_from_the_end_of_time(self) -> None:
        headers = (("kbroker-delay-ms", b"999999999999999999"),)
        for timestamp_ms in (NO_TIMESTAMP, (1 << 63) - 1):
            stored = memoryview(build_batch([Record(0, timestamp_ms, None, b"", headers)]))
            assert times_of(stored, schedules=True).earliest_ms == (1 << 63) - 1


class TestExpired:
    async def test_a_scheduled_record_without_a_timestamp_stops_nobody(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, {**SETTINGS, "kbroker.queue.scheduling": "true"})
            await heartbeat(client, "m1", 0)
            await client.append_raw("orders", batch(None, headers=(("kbroker-delay-ms", b"1500"),)))
            await send(client, 0)
            member = Member(client, "m1")
            assert await take(member, key) == [(1, 1, 1)]
            assert await take(member, key) == [(0, 0, 1)]
            await is_all_done(client)

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
    @pytest.mark.parametrize("mode", [0, 1])
    async def test_old_ones_are_passed_over(self, connect: Connect, codec: Codec, mode: int) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            await send(client, 2 * HOUR, 0, 3 * HOUR, None, 0, codec=codec)
            assert await take(Member(client, "m1"), key, mode=mode) == [(1, 1, 1), (3, 4, 1)]
            await is_all_done(client)
            assert (engine_of(client, key).start_offset, engine_of(client, key).statistics().expired) == (
                5,
                2,
            )

    async def test_they_are_dead_letters_once(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SETTINGS)
            await heartbeat(client, "m1", 0)
            await send(client, *[2 * HOUR] * 5, 0)
            assert await take(Member(client, "m1"), key) == [(5, 5, 1)]
            await until(lambda: len(letters_of(client)) == 5)
            assert (offsets_of(letters_of(client)), set(causes(client))) == (
                [0, 1, 2, 3, 4],
                {"Offset expired before it was delivered."},
            )
            await is_all_done(client)
            assert parked(client, key) == 0
        async with connect(every_engine, config=FAST) as client:
            assert await take(Member(client, "m2"), key, 50) == []
            assert (len(letters_of(client)), await lag(client)) == (5, 0)

    async def test_the_cause_survives_a_stop(self, connect: Connect, every_engine: str) -> None:
        """The dead letters are written after a restart of the broker."""
        async with connect(every_engine, config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SETTINGS)

            async def refuse(*arguments: object) -> object:
                raise OSError("not now")

            client.broker.dead_letters._write = refuse  # type: ignore[method-assign, assignment]
            await send(client, 2 * HOUR, 2 * HOUR)
            assert await take(Member(client, "m1"), key, 50) == []
            await until(
                lambda: parked(client, key) == 2 and not engine_of(client, key).statistics().writes_under_way
            )
        async with connect(every_engine, config=FAST) as client:
            await until(lambda: len(letters_of(client)) == 2)
            assert set(causes(client)) == {"Offset expired before it was delivered."}

    async def test_without_a_fetch(self, connect: Connect, later: list[int]) -> None:
        """A group is paused, and its jobs expire."""
        async with connect(config=FAST) as client:
            key = await prepare_dead_letters(client, configs={**SETTINGS, "kbroker.queue.paused": "true"})
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            await send(client, *[0] * 1500)
            assert await take(member, key, 10) == []
            assert await lag(client) == 1500
            later[0] = 2 * HOUR
            await until(lambda: len(letters_of(client)) == 1500)
            assert engine_of(client, key).statistics().expired == 1500

    async def test_dead_letters_that_cannot_be_written_do_not_fill_the_memory(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Meanwhile expired records are not delivered either."""
        monkeypatch.setattr(expiry, "AT_ONCE", 10)
        monkeypatch.setattr(expiry, "DEAD_LETTERS_AT_MOST", 30)
        async with connect(config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SETTINGS)
            await heartbeat(client, "m1", 0)
            write = client.broker.dead_letters._write

            async def refuse(*arguments: object) -> object:
                raise OSError("not now")

            client.broker.dead_letters._write = refuse  # type: ignore[method-assign, assignment]
            await send(client, *[2 * HOUR] * 100, 0)
            member = Member(client, "m1")
            assert await take(member, key, 200) == []
            assert 30 <= parked(client, key) <= 40
            client.broker.dead_letters._write = write  # type: ignore[method-assign]
            assert await take(member, key, 10_000) == [(100, 100, 1)]
            await until(lambda: len(letters_of(client)) == 100)
            assert offsets_of(letters_of(client)) == list(range(100))

    async def test_a_record_that_is_held_does_not_expire(self, connect: Connect, later: list[int]) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            await send(client, 0, 0)
            member = Member(client, "m1")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 1, 1)]
            later[0] = 2 * HOUR
            await member.acknowledge({key: [(0, 0, [ACCEPT]), (1, 1, [RELEASE])]})
            assert await take(member, key, 200) == [], "it came back too late"
            assert engine_of(client, key).statistics().expired == 1
            await is_all_done(client)

    async def test_an_idle_queue_costs_no_look_a_second(self, connect: Connect) -> None:
        """Two thousand of them would cost the loop all the time."""
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, {**SETTINGS, "kbroker.queue.ttl.ms": "5000"})
            await heartbeat(client, "m1", 0)
            member = Member(client, "m1")
            assert await take(member, key, 10) == []
            partitions = client.broker.share_partitions
            await until(lambda: any(each.engine is not None for each in partitions._loaded.values()))
            (loaded,) = partitions._loaded.values()
            engine = engine_of(client, key)
            looker = partitions.scanner._expiry

            def pause_s() -> float:
                return looker.pause_s(loaded, engine)

            await until(lambda: pause_s() == math.inf)
            await send(client, 0)
            await until(lambda: 1 <= pause_s() <= 5)
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            assert pause_s() == 1, "the member may return it"
            await member.acknowledge({key: [(0, 0, [ACCEPT])]})
            await until(lambda: pause_s() == math.inf)

    async def test_looks_at_idle_queues_are_few(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
    ) -> None:
        looks = 0
        look = expiry.Expiry.look

        async def counted(self: expiry.Expiry, *arguments: Any) -> bool:
            nonlocal looks
            looks += 1
            return await look(self, *arguments)

        monkeypatch.setattr(expiry.Expiry, "look", counted)
        # The clock jumps while a thread works, too: sessions would end.
        autojump_clock.rate, autojump_clock.autojump_threshold = 1, math.inf
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            assert await take(Member(client, "m1"), key, 10) == []
            await until(lambda: looks > 0)
            looks = 0
            autojump_clock.autojump_threshold = 0
            await trio.sleep(30)
            assert looks <= 3, "30 when it looked each second"

    async def test_parked_ones_expire_when_their_turn_comes(self, connect: Connect, later: list[int]) -> None:
        """A redelivery expires by the record's age, a scheduled record by its due time."""
        async with connect(config=FAST) as client:
            delayed = {
                **SETTINGS,
                "kbroker.queue.redelivery.delay.ms": "300",
                "kbroker.queue.scheduling": "true",
            }
            key = await prepare_dead_letters(client, configs=delayed)
            await heartbeat(client, "m1", 0)
            await client.append_raw("orders", batch(HOUR - 60_000))
            await client.append_raw(
                "orders", batch(0, headers=(("kbroker-delay-ms", str(2 * HOUR).encode()),))
            )
            member = Member(client, "m1")
            assert acquired(await member.fetch([key], wait_ms=5000)) == [(0, 0, 1)]
            await member.acknowledge({key: [(0, 0, [RELEASE])]})
            await until(lambda: parked(client, key) == 2)
            later[0] = 120_000
            await until(lambda: offsets_of(letters_of(client)) == [0])
            later[0] = 2 * HOUR + 60_000
            assert await take(member, key) == [(1, 1, 1)]

    async def test_one_that_is_due_and_wanted_by_nobody_expires(
        self, connect: Connect, later: list[int]
    ) -> None:
        async with connect(config=FAST) as client:
            paused = {**SETTINGS, "kbroker.queue.scheduling": "true", "kbroker.queue.paused": "true"}
            key = await prepare_dead_letters(client, configs=paused)
            await heartbeat(client, "m1", 0)
            await client.append_raw("orders", batch(0, headers=(("kbroker-delay-ms", str(HOUR).encode()),)))
            assert await take(Member(client, "m1"), key, 300) == []
            await until(lambda: parked(client, key) == 1)
            later[0] = HOUR + 60_000
            await until(lambda: offers.parked_ready(engine_of(client, key)) == 1)
            later[0] = 2 * HOUR + 60_000
            await until(lambda: offsets_of(letters_of(client)) == [0])

    async def test_it_is_switched_on_and_off(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await send(client, 2 * HOUR)
            member = Member(client, "m1")
            assert await take(member, key) == [(0, 0, 1)]
            await set_up_group(client, SETTINGS)
            await send(client, 2 * HOUR, 0)
            assert await take(member, key) == [(2, 2, 1)]
            await set_up_group(client, {"kbroker.queue.ttl.ms": "0"})
            await send(client, 2 * HOUR)
            assert await take(member, key) == [(3, 3, 1)]

    async def test_it_is_switched_off_during_a_read(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the scan or a fetch, whichever reads first: fresh records have not expired then."""
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await send(client, 0)
            member = Member(client, "m1")
            assert await take(member, key) == [(0, 0, 1)]
            partition = client.broker.topics.by_name("orders").partitions[0]
            parts, read = client.broker.share_partitions, partition.read
            settings, switched = parts.settings, list[bool]()

            async def then_off(offset: int, **limits: int) -> Sequence[memoryview]:
                views: Sequence[memoryview] = await read(offset, **limits)
                if views and not switched:
                    switched.append(True)
                    monkeypatch.setattr(parts, "settings", lambda group: replace(settings(group), ttl_ms=0))
                    parts.settings_changed("g1")
                return views

            monkeypatch.setattr(partition, "read", then_off)
            await send(client, 0, 0, 0)
            await until(lambda: bool(switched))
            assert await take(member, key) == [(1, 3, 1)]
            assert engine_of(client, key).counters.expired == 0

    async def test_a_store_that_refuses_the_write(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are neither delivered nor lost, and become dead letters later."""
        async with connect(config=FAST) as client:
            key = await prepare_dead_letters(client, configs=SETTINGS)
            await heartbeat(client, "m1", 0)
            persister = client.broker.share_partitions._persister
            write, refused = persister.write, [0]

            async def refuse(group_id: str, requests: object) -> object:
                refused[0] += 1
                if refused[0] <= 3:
                    raise RuntimeError("no room")
                return await write(group_id, requests)  # type: ignore[arg-type]

            member = Member(client, "m1")
            assert await take(member, key, 10) == []
            monkeypatch.setattr(persister, "write", refuse)
            await send(client, 2 * HOUR, 2 * HOUR, 0)
            assert acquired(await member.fetch(wait_ms=5000)) == [(2, 2, 1)]
            await until(lambda: refused[0] > 3)
            await until(lambda: offsets_of(letters_of(client)) == [0, 1])
            assert [offsets[:2] for offsets in await take(member, key)] == [(2, 2)], (
                "its lock ran out meanwhile"
            )
            await is_all_done(client)
            assert parked(client, key) == 0

    async def test_stores_that_cannot_park_refuse_it(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            client.broker.configs.parks_records = False
            entries = [{"name": "kbroker.queue.ttl.ms", "config_operation": 0, "value": "1000"}]
            resource = {"resource_type": 32, "resource_name": "g1", "configs": entries}
            answer = await client.call(
                "incremental_alter_configs", 1, resources=[resource], validate_only=False
            )
            (row,) = answer.responses
            assert row.error_code == ErrorCode.invalid_config
            assert "kbroker.queue.ttl.ms needs a persister" in row.error_message
            assert "`kbroker queues create --ttl 0`" in row.error_message
