"""Clients that exceed their quotas, on real sockets: the answer comes at once and names the time;
after it nothing is read from the connection for that time, and from no other one."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.broker.security.quotas import Alteration
from kbroker.client.rpc import Connection, ConnectionClosed
from kbroker.formats.batches import Record, build_batch
from kbroker.security.quotas import entity_of
from kbroker.server.listener import Door, Server
from kbroker.server.peer import before_locks_end
from kbroker.server.run import bind
from kbroker.settings.altering import BrokerConfig
from tests.api.conftest import Client
from tests.api.share_consumers import ACCEPT, Member, acquired, initialize, set_up_group
from tests.metrics.world import World, opened

SHORT = {"quota.window.num": "2", "group.share.min.record.lock.duration.ms": "1000"}
"""A second's worth may be used at once, instead of ten."""
PATIENCE_S = 60


_opened: list[Connection] = []


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


class Wire:
    """A client with one connection."""

    def __init__(self, world: World, client_id: str = "app") -> None:
        self.connection = Connection(*world.address, client_id=client_id, timeout_s=PATIENCE_S)
        _opened.append(self.connection)

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        return await trio.to_thread.run_sync(lambda: self.connection.call(api, version, **fields))

    async def produce(self, size: int, topic: str = "orders") -> Any:
        """The whole frame has about `size` bytes."""
        return await self.call("produce", 9, **produced(size, topic))

    async def fetch(self, offset: int = 0, session_id: int = 0, epoch: int = -1, **more: Any) -> Any:
        row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        fields = {
            "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
            "session_id": session_id, "session_epoch": epoch,
            "topics": [{"topic": "orders", "partitions": [row]}], "forgotten_topics_data": (), **more,
        }  # fmt: skip
        return await self.call("fetch", 12, **fields)

    async def elapsed(self) -> float:
        """How long the answer to a small request takes."""
        began = trio.current_time()
        await self.call("api_versions", 0)
        return trio.current_time() - began


def produced(size: int, topic: str = "orders") -> dict[str, Any]:
    records = build_batch([Record(0, 1000, None, bytes(max(1, size - 150)), ())])
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"acks": -1, "timeout": 1000, "topic_data": rows, "transactional_id": None}


def throttle_ms(answer: Any) -> int:
    return int(answer.throttle_time.total_seconds() * 1000)


def fetched(answer: Any) -> int:
    return sum(len(row.records or b"") for topic in answer.responses for row in topic.partitions)


async def limit(world: World, names: Mapping[str, str | None], **values: float) -> None:
    (error,) = await world.broker.quotas.alter([Alteration(entity_of(names), values)], validate_only=False)
    assert error is None


@asynccontextmanager
async def served(path: Path, config: Mapping[str, str] | None = None) -> AsyncIterator[World]:
    """A broker with the topic `orders`."""
    with trio.fail_after(PATIENCE_S):
        async with opened(path, {**SHORT, **(config or {})}) as world:
            await world.client.create_topic("orders")
            yield world


@pytest.mark.parametrize(
    "names",
    [
        {"user": "ANONYMOUS"}, {"user": None}, {"client-id": "app"}, {"client-id": None},
        {"user": None, "client-id": "app"},
    ],
)  # fmt: skip
async def test_a_producer_waits_after_its_answer(names: Mapping[str, str | None], tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, names, producer_byte_rate=10_000)
        app = Wire(world)
        assert throttle_ms(await app.produce(9_000)) == 0
        began = trio.current_time()
        waits_ms = throttle_ms(await app.produce(9_000))
        answered_s = trio.current_time() - began
        assert 500 <= waits_ms <= 900, "8 000 bytes too many at 10 000 a second"
        assert answered_s < waits_ms / 1000, "it is answered at once"
        assert await app.elapsed() + 0.05 >= waits_ms / 1000 - answered_s
        assert world.broker.metrics.quotas.requests == {"producer_byte_rate": 1}
        assert world.broker.metrics.quotas.wait_ms == {"producer_byte_rate": waits_ms}


async def test_others_do_not_wait(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, producer_byte_rate=1_000)
        app, other = Wire(world), Wire(world, "other")
        assert throttle_ms(await app.produce(40_000)) > 30_000
        while world.broker.metrics.quotas.muted != 1:  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.001)
        assert throttle_ms(await other.produce(40_000)) == 0
        second = Wire(world)
        assert throttle_ms(await second.call("api_versions", 3, **SOFTWARE)) == 0, "a connection of its own"
        assert throttle_ms(await second.produce(200)) > 30_000, "and the same rate"
        app.connection.close()


SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


async def test_requests_that_are_sent_at_once_wait_in_turn(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, producer_byte_rate=10_000)
        app = Wire(world).connection
        frames = [app.encode("produce", 9, produced(size)) for size in (12_000, 300, 300)]

        def send() -> list[bytes]:
            app.send_raw(b"".join(frames))
            return [app.read_frame() for _ in frames]

        began = trio.current_time()
        answers = await trio.to_thread.run_sync(send)
        assert [int.from_bytes(answer[:4], "big") for answer in answers] == [1, 2, 3], "in order"
        waits_ms = [int.from_bytes(answer[-5:-1], "big") for answer in answers]
        assert waits_ms[0] > 150
        assert (trio.current_time() - began) * 1000 + 50 >= waits_ms[0] + waits_ms[1]


async def test_a_fetch_above_the_quota_has_no_records(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        for _ in range(3):
            await world.client.append_raw("orders", build_batch([Record(0, 1000, None, bytes(6_000), ())]))
        await limit(world, {"client-id": "app"}, consumer_byte_rate=10_000)
        app = Wire(world)
        first = await app.fetch()
        assert (throttle_ms(first), fetched(first) // 6_000) == (0, 1), "no more than a second's worth"
        second = await app.fetch(1)
        assert (throttle_ms(second), fetched(second) // 6_000) == (0, 1), "and at least a batch"
        third = await app.fetch(2)
        waits_ms = throttle_ms(third)
        assert 0 < waits_ms <= 300, "2 000 bytes too many"
        assert third.responses == ()
        began = trio.current_time()
        while not fetched(fourth := await app.fetch(2)):
            assert throttle_ms(fourth) > 0
        assert trio.current_time() - began + 0.05 >= waits_ms / 1000


async def test_a_batch_larger_than_the_quota_is_fetched_after_all(tmp_path: Path) -> None:
    """Kafka never delivers it."""
    async with served(tmp_path) as world:
        await world.client.append_raw("orders", build_batch([Record(0, 1000, None, bytes(25_000), ())]))
        await limit(world, {"client-id": "app"}, consumer_byte_rate=10_000)
        app = Wire(world)
        answer = await app.fetch()
        assert (throttle_ms(answer), fetched(answer) > 25_000) == (0, True)
        assert 1_000 <= throttle_ms(await app.fetch(1)) <= 1_700


async def test_a_session_continues_over_a_throttled_fetch(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        for _ in range(2):
            await world.client.append_raw("orders", build_batch([Record(0, 1000, None, bytes(11_000), ())]))
        await limit(world, {"client-id": "app"}, consumer_byte_rate=10_000)
        app, other = Wire(world), Wire(world)
        began = await app.fetch(0, 0, 0)
        assert (throttle_ms(began), began.session_id > 0) == (0, True)
        session_id = began.session_id
        throttled = await app.fetch(1, session_id, 1)
        assert (throttled.error_code, throttled.session_id, throttled.responses) == (0, session_id, ())
        assert throttle_ms(throttled) > 0
        no_session = await other.fetch(0, 0, 0)
        assert (throttle_ms(no_session) > 0, no_session.session_id, no_session.responses) == (True, 0, ())
        assert world.broker.fetch_sessions.statistics().sessions == 1
        epoch = 2
        while not fetched(answer := await app.fetch(1, session_id, epoch)):
            assert (answer.error_code, answer.session_id) == (0, session_id)
            epoch += 1


async def prepare(world: World, *sizes: int) -> UUID:
    topic = world.broker.topics.by_name("orders")
    assert topic is not None
    for size in sizes:
        await world.client.append_raw("orders", build_batch([Record(0, 1000, None, bytes(size), ())]))
    await set_up_group(world.client, {"share.auto.offset.reset": "earliest"})
    await initialize(world.client, topic.topic_id, 1)
    return topic.topic_id


def member_of(wire: Wire) -> Member:
    return Member(wire, "m1")  # type: ignore[arg-type] - it calls nothing else


async def test_no_record_is_acquired_for_a_worker_that_must_wait(tmp_path: Path) -> None:
    """RPC-44: Kafka acquires records and then sends an answer without them, so that their locks run
    out."""
    async with served(tmp_path) as world:
        topic_id = await prepare(world, 6_000, 6_000, 6_000)
        await limit(world, {"client-id": "app"}, consumer_byte_rate=10_000)
        app = Wire(world)
        worker = member_of(app)
        found: list[tuple[int, int, int]] = []
        acks: dict[tuple[UUID, int], Sequence[tuple[int, int, Sequence[int]]]] | None = None
        waits = 0
        while len(found) < 3:
            answer = await worker.fetch([(topic_id, 0)] if worker.epoch == 0 else (), acks=acks)
            assert answer.error_code == 0
            new = acquired(answer)
            assert not (new and throttle_ms(answer)), "an answer with records has no time to wait"
            waits += throttle_ms(answer) > 0
            found += new
            acks = {(topic_id, 0): [(first, last, [ACCEPT]) for first, last, _ in new]} if new else None
        assert [run[2] for run in found] == [1, 1, 1], "no lock has run out"
        assert waits > 0


async def test_a_worker_that_holds_records_waits_no_longer_than_it_can(tmp_path: Path) -> None:
    """RPC-44: at most half of the time that is left of its first lock."""
    locks = {"group.share.record.lock.duration.ms": "2000"}
    async with served(tmp_path, locks) as world:
        topic_id = await prepare(world, 60_000, 100)
        await limit(world, {"client-id": "app"}, consumer_byte_rate=1_000)
        worker = member_of(Wire(world))
        (run,) = acquired(await worker.fetch([(topic_id, 0)], wait_ms=5000))
        refused = await worker.fetch()
        assert acquired(refused) == []
        assert 0 < throttle_ms(refused) <= 1_000, "instead of a minute"
        done = await worker.acknowledge({(topic_id, 0): [(run[0], run[1], [ACCEPT])]})
        assert done.responses[0].partitions[0].error_code == 0, "the lock has not run out"
        again = await worker.fetch()
        assert acquired(again) == []
        assert throttle_ms(again) > 30_000, "it holds nothing now"


async def test_locks_let_no_produced_bytes_through(tmp_path: Path) -> None:
    """A shorter wait would let the next request in, with its records: a client with a lock that
    nearly ends could write as much as it liked."""
    async with served(tmp_path, {"group.share.record.lock.duration.ms": "1000"}) as world:
        topic_id = await prepare(world, 100)
        await limit(world, {"client-id": "app"}, producer_byte_rate=1_000)
        app = Wire(world)
        assert acquired(await member_of(app).fetch([(topic_id, 0)], wait_ms=5000))
        assert throttle_ms(await app.produce(40_000)) > 30_000


async def test_a_wait_that_no_answer_could_name(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, producer_byte_rate=1e-300)
        assert throttle_ms(await Wire(world).produce(1_000)) == (1 << 31) - 1
        await limit(world, {"client-id": "app"}, request_percentage=5e-324)
        assert throttle_ms(await Wire(world).call("metadata", 12, **METADATA)) == 1000


async def test_acknowledgements_in_a_throttled_fetch_count(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        topic_id = await prepare(world, 20_000, 100)
        await limit(world, {"client-id": "app"}, consumer_byte_rate=10_000)
        worker = member_of(Wire(world))
        (run,) = acquired(await worker.fetch([(topic_id, 0)], wait_ms=5000))
        answer = await worker.fetch(acks={(topic_id, 0): [(run[0], run[1], [ACCEPT])]})
        assert throttle_ms(answer) > 0
        assert answer.responses[0].partitions[0].acknowledge_error_code == 0
        loaded = world.broker.share_partitions.loaded()
        assert [each.engine is not None and each.engine.start_offset for each in loaded] == [1]


def test_the_wait_leaves_half_of_a_locks_time() -> None:
    assert before_locks_end(5_000, math.inf, 0.0) == 5_000
    assert before_locks_end(5_000, 30_000.0, 1_000.0) == 5_000
    assert before_locks_end(50_000, 30_000.0, 1_000.0) == 14_500


@pytest.mark.parametrize("lock_ms", [-5_000.0, 1_000.0, 1_001.0, 1_199.0])
def test_a_lock_that_nearly_ends_lets_nobody_ask_without_end(lock_ms: float) -> None:
    assert before_locks_end(50_000, lock_ms, 1_000.0) == 100
    assert before_locks_end(60, lock_ms, 1_000.0) == 60


async def test_the_time_of_the_broker_is_limited(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, request_percentage=0.001)
        app = Wire(world)
        waits_ms = throttle_ms(await app.call("metadata", 12, **METADATA))
        assert waits_ms == 1000, "never longer than a window"
        assert await app.elapsed() > 0.9
        assert set(world.broker.metrics.quotas.requests) == {"request_percentage"}
        await limit(world, {"client-id": "app"}, request_percentage=100)
        assert throttle_ms(await app.call("metadata", 12, **METADATA)) == 0


METADATA = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


async def test_waiting_for_records_is_no_work(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, request_percentage=50)
        app = Wire(world)
        for _ in range(3):
            assert throttle_ms(await app.fetch(max_wait=300)) == 0


async def test_a_client_that_hangs_up_is_noticed_while_it_waits(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, producer_byte_rate=1)
        app = Wire(world)
        assert throttle_ms(await app.produce(10_000)) > 1_000_000
        assert world.broker.metrics.connections == 1
        app.connection.close()
        while world.broker.metrics.connections:  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.001)
        assert world.broker.metrics.quotas.muted == 0


async def test_requests_before_a_hang_up_are_answered(tmp_path: Path) -> None:
    """As those of a client that does not wait: it cannot see the difference between the two."""
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, producer_byte_rate=1)
        app = Wire(world).connection
        frames = [app.encode("produce", 9, {**produced(500), "acks": 0}) for _ in range(5)]
        await trio.to_thread.run_sync(app.send_raw, b"".join(frames))
        app.close()
        partition = world.client.partition("orders")
        while partition.high_watermark < 5:  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.001)


async def test_a_muted_connection_costs_no_turns(tmp_path: Path) -> None:
    class Turns(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    async with served(tmp_path) as world:
        await limit(world, {"client-id": "app"}, producer_byte_rate=1)
        for _ in range(20):
            assert throttle_ms(await Wire(world).produce(10_000)) > 0
        while world.broker.metrics.quotas.muted < 20:  # noqa: ASYNC110 - the server tells nobody
            await trio.sleep(0.001)
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(1)
        trio.lowlevel.remove_instrument(turns)
        assert turns.count < 40, "20 connections that poll would take hundreds"


async def test_a_stop_does_not_wait_for_those_that_must(tmp_path: Path) -> None:
    options = StartOptions(
        data_dir=tmp_path, storage="memory", state_storage="memory", config=BrokerConfig(SHORT)
    )
    with bind(("127.0.0.1", 0)) as listener, trio.fail_after(PATIENCE_S):
        async with open_broker(options) as broker, trio.open_nursery() as nursery:
            server = Server(broker)
            nursery.start_soon(server.serve, Door(listener))
            world = World(Client(broker, 1001), listener.getsockname()[:2])
            await world.client.create_topic("orders")
            await limit(world, {"client-id": "app"}, producer_byte_rate=1)
            app = Wire(world).connection
            frames = [app.encode("produce", 9, produced(500)) for _ in range(3)]
            await trio.to_thread.run_sync(app.send_raw, b"".join(frames))
            await trio.to_thread.run_sync(app.read_frame)
            began = trio.current_time()
            await server.stop(30)
            assert trio.current_time() - began < 10
            await trio.to_thread.run_sync(app.read_frame)
            await trio.to_thread.run_sync(app.read_frame)
            nursery.cancel_scope.cancel()


async def test_an_address_opens_connections_as_fast_as_its_quota_allows(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"ip": None}, connection_creation_rate=3)
        kept = [Wire(world) for _ in range(3)]
        assert [await each.elapsed() >= 0 for each in kept] == [True] * 3
        refused = Wire(world)
        with pytest.raises(ConnectionClosed):
            await refused.elapsed()
        assert world.broker.metrics.quotas.refused == 1
        await limit(world, {"ip": "127.0.0.1"}, connection_creation_rate=1000)
        assert await Wire(world).elapsed() >= 0, "its own quota comes before the default"


async def test_clients_without_a_quota_are_served_as_before(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await limit(world, {"client-id": "other"}, producer_byte_rate=1, consumer_byte_rate=1)
        app = Wire(world, "")
        assert throttle_ms(await app.produce(100_000)) == 0
        assert fetched(await app.fetch()) > 99_000
        raw = Wire(world, "odd")
        raw.connection.send_raw(b"\0\0\0\4nope")
        with pytest.raises(ConnectionClosed):
            await trio.to_thread.run_sync(raw.connection.read_frame)
