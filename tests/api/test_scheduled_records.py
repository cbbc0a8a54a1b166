"""Records that are delivered when they are due: `kbroker.queue.scheduling`."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from kbroker import clock
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.queues import expiry, parked_reading, scanner, share_partitions
from kbroker.broker.queues.expiry import Expiry
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.batches import NO_TIMESTAMP, Record, build_batch
from kbroker.formats.compression import Codec
from kbroker.formats.schedule_headers import DEAD_LETTER_PREFIX, Oddity, Schedule, schedule_of
from kbroker.metrics import ODDITIES
from kbroker.share.dead_letter import HEADER_PREFIX
from kbroker.share.in_flight_view import parked_view
from kbroker.share.share_partition import SharePartition
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, RELEASE, Member, acquired, prepare, sent, set_up_group
from tests.api.test_full_disk import refusing
from tests.api.test_parked_records import engine_of, is_loaded, parked
from tests.api.test_work_queue import FAST, heartbeat, lag

pytestmark = pytest.mark.usefixtures("parks_at_once")

SETTINGS = {
    "kbroker.queue.scheduling": "true",
    "kbroker.share.in.flight.limit": "undecided",
    "kbroker.queue.redelivery.delay.ms": "10",
    "kbroker.queue.redelivery.jitter": "0",
}
NOW, DAY = 1_700_000_000_000, 86_400_000


@pytest.mark.parametrize(
    ("headers", "schedule"),
    [
        ((), Schedule(None)),
        ((("other", b"1"),), Schedule(None)),
        ((("kbroker-delay-ms", b"500"),), Schedule(NOW + 400)),
        ((("kbroker-delay-ms", b"99"),), Schedule(None)),
        ((("kbroker-deliver-at", str(NOW + 7).encode()),), Schedule(NOW + 7)),
        ((("kbroker-deliver-at", b"7"),), Schedule(None)),
        ((("kbroker-deliver-at", str(NOW + 7).encode()), ("kbroker-delay-ms", b"500")), Schedule(NOW + 7)),
        ((("kbroker-delay-ms", b"500"), ("kbroker-delay-ms", b"600")), Schedule(NOW + 500)),
        ((("__dlq.errors.topic", b"t"), ("kbroker-delay-ms", b"500")), Schedule(None)),
        ((("kbroker-delay-ms", b"soon"),), Schedule(None, Oddity.MALFORMED)),
        ((("kbroker-delay-ms", b"-5"),), Schedule(None, Oddity.MALFORMED)),
        ((("kbroker-delay-ms", None),), Schedule(None, Oddity.MALFORMED)),
        ((("kbroker-delay-ms", b"9" * 30),), Schedule(NOW + DAY, Oddity.TOO_FAR)),
        ((("kbroker-deliver-at", b"9223372036854775807"),), Schedule(NOW + DAY, Oddity.TOO_FAR)),
        ((("kbroker-deliver-at", b"9" * 5000),), Schedule(NOW + DAY, Oddity.TOO_FAR)),
        ((("kbroker-delay-ms", b"0" * 30 + b"500"),), Schedule(NOW + 400)),
        ((("kbroker-delay-ms", b"000"),), Schedule(None)),
        ((("kbroker-delay-ms", str(2 * DAY).encode()),), Schedule(NOW + DAY, Oddity.TOO_FAR)),
    ],
)
def test_what_headers_say(headers: tuple[tuple[str, bytes | None], ...], schedule: Schedule) -> None:
    assert schedule_of(Record(0, NOW - 100, None, b"", headers), NOW, DAY) == schedule


def test_a_record_without_a_timestamp_counts_from_now() -> None:
    record = Record(0, NO_TIMESTAMP, None, b"", (("kbroker-delay-ms", b"500"),))
    assert schedule_of(record, NOW, DAY) == Schedule(NOW + 500)


async def send(client: Client, *delays_ms: int | None, codec: Codec = Codec.NONE) -> None:
    """One batch."""
    now = wall_clock_ms()
    headers = [
        () if delay_ms is None else (("kbroker-delay-ms", str(delay_ms).encode()),) for delay_ms in delays_ms
    ]
    await client.append_raw(
        "orders", build_batch([Record(0, now, None, b"x", each) for each in headers], codec=codec)
    )


async def take(member: Member, key: object, wait_ms: int = 5000) -> list[tuple[int, int, int]]:
    """The records of a fetch, all of which are accepted."""
    answer = await member.fetch([key] if member.epoch == 0 else (), wait_ms=wait_ms, share_acquire_mode=1)
    taken = acquired(answer)
    assert sent(answer) == [offset for first, last, _ in taken for offset in range(first, last + 1)]
    if taken:
        await member.acknowledge({key: [(first, last, [ACCEPT]) for first, last, _ in taken]})
    return taken


async def are_parked(client: Client, key: tuple[UUID, int], number: int) -> None:
    """They may still be loading. Not checked in each turn: counting a long window takes as long as
    parking some of it."""
    with trio.fail_after(60):
        while not is_loaded(client, key) or parked(client, key) != number:  # noqa: ASYNC110 (nothing announces it)
            await trio.sleep(0.02)


class TestScheduled:
    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
    async def test_each_comes_when_it_is_due(self, connect: Connect, every_engine: str, codec: Codec) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            began = wall_clock_ms()
            await send(client, 1500, None, 700, None, codec=codec)
            member = Member(client, "m1")
            due = {0: 1500, 1: 0, 2: 700, 3: 0}
            order = []
            while len(order) < 4:
                for first, last, count in await take(member, key):
                    assert count == 1
                    order += range(first, last + 1)
                    assert all(wall_clock_ms() - began >= due[offset] for offset in range(first, last + 1))
            assert order == [1, 3, 2, 0]
            assert (await lag(client), parked(client, key)) == (0, 0)
            assert engine_of(client, key).start_offset == 4

    async def test_it_survives_a_restart(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            began = wall_clock_ms()
            await send(client, None, 1500, 3_600_000, 1500)
            member = Member(client, "m1")
            assert await take(member, key) == [(0, 0, 1)]
            assert await take(member, key, 50) == []
            assert (await lag(client), parked(client, key)) == (3, 3)
        async with connect(every_engine, config=FAST) as client:
            member = Member(client, "m2")
            assert await lag(client) == 3
            assert await take(member, key) == [(1, 1, 1), (3, 3, 1)]
            assert wall_clock_ms() - began >= 1500
            assert (await lag(client), parked(client, key)) == (1, 1)

    async def test_many_of_later_stand_before_nobody(self, connect: Connect, every_engine: str) -> None:
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            for _ in range(10):
                await send(client, *[3_600_000] * 900)
            await send(client, None)
            member = Member(client, "m1")
            assert await take(member, key, 30_000) == [(9000, 9000, 1)]
            await are_parked(client, key, 9000)
            await until(lambda: engine_of(client, key).start_offset == 9001)

    async def test_an_urgent_record_behind_a_burst_comes_first(
        self, connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Alone in its batch, and among others of its batch, before the scan gets there; afterwards
        every record is in the right place."""
        monkeypatch.setattr(scanner, "AHEAD_FROM", 100)
        monkeypatch.setattr(scanner, "OFFSETS_A_TURN", 50)
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            for _ in range(6):
                await send(client, *[3_600_000] * 500, codec=Codec.ZSTD)
            await send(client, None, codec=Codec.ZSTD)
            await send(client, *[3_600_000] * 500, codec=Codec.ZSTD)
            await send(client, 3_600_000, None, 3_600_000, None, codec=Codec.ZSTD)
            member = Member(client, "m1")
            assert await take(member, key) == [(3000, 3000, 1), (3502, 3502, 1), (3504, 3504, 1)]
            assert parked(client, key) < 3502, "the scan is not there yet"
            await are_parked(client, key, 3502)
            await until(lambda: engine_of(client, key).start_offset == 3505)
        async with connect(every_engine, config=FAST) as client:
            member = Member(client, "m2")
            assert await take(member, key, 50) == []
            await are_parked(client, key, 3502)
            assert await take(member, key, 50) == []
            assert await lag(client) == 3502

    async def test_what_was_delivered_ahead_is_kept_over_a_restart(
        self, connect: Connect, every_engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The scan has hardly begun when the broker stops: records that it has not reached are
        neither lost nor delivered early."""
        monkeypatch.setattr(scanner, "AHEAD_FROM", 100)
        monkeypatch.setattr(scanner, "OFFSETS_A_TURN", 5)
        async with connect(every_engine, config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await heartbeat(client, "m1", 0)
            for _ in range(10):
                await send(client, *[3_600_000] * 300)
            await send(client, None, None)
            assert await take(Member(client, "m1"), key) == [(3000, 3001, 1)]
            assert parked(client, key) < 3000
        monkeypatch.setattr(scanner, "OFFSETS_A_TURN", 1000)
        async with connect(every_engine, config=FAST) as client:
            await send(client, None)
            assert await take(Member(client, "m2"), key) == [(3002, 3002, 1)]
            await are_parked(client, key, 3000)
            assert await lag(client) == 3000

    async def test_a_clock_that_is_set(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        """A schedule follows the wall clock, a day ahead and back."""
        step = [0]
        real = clock.wall_clock_ms
        for module in ("kbroker.broker.queues.scanner", "kbroker.broker.queues.share_partitions"):
            monkeypatch.setattr(f"{module}.wall_clock_ms", lambda: real() + step[0])
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await send(client, 20 * 3_600_000, 50 * 3_600_000)
            member = Member(client, "m1")
            assert await take(member, key, 100) == []
            await are_parked(client, key, 2)
            step[0] = DAY
            assert await take(member, key) == [(0, 0, 1)]
            step[0] = -DAY
            assert await take(member, key, 1100) == []

    @pytest.mark.parametrize("ttl_ms", [0, DAY])
    async def test_an_idle_queue_costs_no_look_a_second(
        self,
        connect: Connect,
        monkeypatch: pytest.MonkeyPatch,
        autojump_clock: trio.testing.MockClock,
        ttl_ms: int,
    ) -> None:
        """Thousands of queues may have a job for tomorrow."""
        autojump_clock.autojump_threshold = 0.1  # Not while a thread works.
        looks: Counter[str] = Counter()
        for module in (expiry, parked_reading, scanner, share_partitions):
            monkeypatch.setattr(module, "wall_clock_ms", lambda: NOW + int(now_ms()))
        for kind, name in ((SharePartition, "end_waits"), (Expiry, "look")):
            real: Any = getattr(kind, name)

            def counted(self: Any, *arguments: Any, name: str = name, real: Any = real) -> Any:
                looks[name] += 1
                return real(self, *arguments)

            monkeypatch.setattr(kind, name, counted)
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, {**SETTINGS, "kbroker.queue.ttl.ms": str(ttl_ms)})
            due_ms = now_ms() + 3_600_000
            headers = (("kbroker-deliver-at", str(NOW + int(due_ms)).encode()),)
            await client.append_raw("orders", build_batch([Record(0, NOW, None, b"x", headers)]))
            assert await take(Member(client, "m1"), key, 100) == []
            await are_parked(client, key, 1)
            looks.clear()
            await trio.sleep(40)
            assert looks["end_waits"] <= 1, "40 when it looked each second"
            assert looks["look"] <= 5, "40 with a time to live"
            assert engine_of(client, key).next_deadline_ms() == pytest.approx(due_ms, abs=1)

    async def test_a_scheduled_record_comes_back_as_others_do(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, {**SETTINGS, "share.delivery.count.limit": "3"})
            await send(client, 300)
            member = Member(client, "m1")
            for delivery in (1, 2, 3):
                assert acquired(await member.fetch([key] if delivery == 1 else (), wait_ms=5000)) == [
                    (0, 0, delivery)
                ]
                await member.acknowledge({key: [(0, 0, [RELEASE])]})
            assert await take(member, key, 100) == []
            assert parked(client, key) == 0

    async def test_without_the_setting_they_come_at_once(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await send(client, 3_600_000)
            assert await take(Member(client, "m1"), key) == [(0, 0, 1)]

    async def test_it_is_switched_on_and_off_while_members_wait(self, connect: Connect) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            member = Member(client, "m1")
            assert await take(member, key, 10) == []
            await set_up_group(client, SETTINGS)
            await send(client, 3_600_000, None)
            assert await take(member, key) == [(1, 1, 1)]
            await set_up_group(client, {"kbroker.queue.scheduling": "false"})
            await send(client, 3_600_000)
            assert await take(member, key) == [(2, 2, 1)]
            assert parked(client, key) == 1, "what is parked stays so until it is due"

    async def test_odd_headers_are_delivered_and_said(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            record = Record(0, wall_clock_ms(), None, b"x", (("kbroker-delay-ms", b"soon"),))
            await client.append_raw("orders", build_batch([record, record]))
            assert await take(Member(client, "m1"), key) == [(0, 1, 1)]
            assert "2 records for share group g1 have a schedule that is no number" in caplog.text
            assert client.broker.share_partitions.metrics["g1"].odd_schedules == {
                "malformed": 2,
                "too_far": 0,
            }

    async def test_a_scan_that_cannot_save_is_said_once_and_goes_on(
        self, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scanner, "_RETRY_S", 0.01)
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            member = Member(client, "m1")
            assert await take(member, key, 10) == []
            with refusing(client, NoSpace("the disk is full")):
                await send(client, 3_600_000, None)
                await until(lambda: engine_of(client, key).statistics().failed_writes >= 3)
            assert await take(member, key) == [(1, 1, 1)]
            await until(lambda: parked(client, key) == 1)
        said = [
            record.getMessage() for record in caplog.records if "ahead of its members" in record.getMessage()
        ]
        assert len(said) == 1
        assert "share-partition g1:orders-0 ahead of its members has to wait" in said[0]

    def test_the_headers_of_dead_letters_are_known(self) -> None:
        assert DEAD_LETTER_PREFIX == HEADER_PREFIX

    def test_each_oddity_has_a_count(self) -> None:
        assert tuple(oddity.value for oddity in Oddity) == ODDITIES

    async def test_what_does_not_only_wait_is_shown(self, connect: Connect) -> None:
        """Parked records that are due or held; records that only wait are not listed."""
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await send(client, 1200, 1200, 3_600_000)
            member = Member(client, "m1")
            assert await take(member, key, 300) == []
            engine = engine_of(client, key)

            def shown() -> list[tuple[int, int, str, str | None]]:
                assert engine.parking is not None
                found = parked_view(engine.parking, now_ms(), 0)
                return [(each.first_offset, each.last_offset, each.state, each.member_id) for each in found]

            assert shown() == []
            await until(lambda: shown() == [(0, 1, "available", None)])
            assert acquired(await member.fetch(wait_ms=5000)) == [(0, 1, 1)]
            assert shown() == [(0, 1, "acquired", "m1")]
            await member.acknowledge({key: [(1, 1, [ACCEPT])]})
            assert shown() == [(0, 0, "acquired", "m1")]
            assert parked(client, key) == 2

    @pytest.mark.parametrize("validate_only", [True, False])
    async def test_stores_that_cannot_park_refuse_it(self, connect: Connect, validate_only: bool) -> None:
        """Also if the request only validates: `kbroker queues create` does that first."""
        async with connect(config=FAST) as client:
            client.broker.configs.parks_records = False
            entries = [{"name": "kbroker.queue.scheduling", "config_operation": 0, "value": "true"}]
            resource = {"resource_type": 32, "resource_name": "g1", "configs": entries}
            answer = await client.call(
                "incremental_alter_configs", 1, resources=[resource], validate_only=validate_only
            )
            (row,) = answer.responses
            assert row.error_code == ErrorCode.invalid_config
            assert "`kbroker queues create --scheduling false`" in row.error_message
            assert client.broker.configs.stored_group("g1") == {}

    async def test_a_long_batch_takes_turns(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scanner, "OFFSETS_A_TURN", 7)
        async with connect(config=FAST) as client:
            key = await prepare(client)
            await set_up_group(client, SETTINGS)
            await send(client, *[3_600_000 if index % 3 else None for index in range(100)], codec=Codec.ZSTD)
            member, taken = Member(client, "m1"), []
            with trio.fail_after(20):
                while len(taken) < 34:
                    taken += [
                        offset
                        for first, last, _ in await take(member, key)
                        for offset in range(first, last + 1)
                    ]
            assert taken == list(range(0, 100, 3))
            assert parked(client, key) == 66
