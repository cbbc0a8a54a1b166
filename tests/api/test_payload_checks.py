"""Topics with kbroker.payload.check: which batches are refused, which requests wait for others, and
what happens if something else happens first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from kbroker.api.request import CloseConnection
from kbroker.broker.logs import append_queues
from kbroker.broker.logs.recompression import stored_form
from kbroker.broker.logs.validation import BadBatch, BatchRules
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.batches import BatchHeader, ProducerInfo, Record, build_batch, iter_headers
from kbroker.formats.compression import Codec
from tests.api.conftest import Client, Connect
from tests.api.producing import batch, produce
from tests.broker.logs.test_payload_check import CODES
from tests.odd_batches import ODD_BATCHES, odd_batch

CHECKED = {"kbroker.payload.check": "true"}
PATIENCE_S = 30


def large(number: int = 0, *, producer: ProducerInfo | None = None) -> bytes:
    """A valid batch that is checked in a thread; its size identifies it."""
    now_ms = wall_clock_ms()
    more = {} if producer is None else {"producer": producer}
    return build_batch([Record(0, now_ms, None, bytes(100_000 + number))], codec=Codec.ZSTD, **more)


def large_odd(*, producer: ProducerInfo | None = None) -> bytes:
    return odd_batch(
        "a bomb", time_ms=wall_clock_ms(), **({} if producer is None else {"producer": producer})
    )


class Gate:
    """Stands in for the check in the thread: it runs when the test releases it."""

    def __init__(self) -> None:
        self._tokens = threading.Semaphore(0)
        self._began, self._begins = trio.open_memory_channel[None](1000)
        self._trio = trio.lowlevel.current_trio_token()

    def __call__(
        self, records: memoryview, header: BatchHeader, rules: BatchRules, keys_of: str = "", **more: Any
    ) -> tuple[memoryview, BatchHeader] | BadBatch:
        self._trio.run_sync_soon(self._began.send_nowait, None)
        assert self._tokens.acquire(timeout=PATIENCE_S)
        return stored_form(records, header, rules, keys_of, **more)

    async def begun(self, times: int = 1) -> None:
        with trio.fail_after(PATIENCE_S):
            for _ in range(times):
                await self._begins.receive()

    @property
    def has_begun(self) -> int:
        return self._begins.statistics().current_buffer_used

    def go_on(self, checks: int = 1) -> None:
        self._tokens.release(checks)


@pytest.fixture
def gate_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Gate]]:
    gates: list[Gate] = []

    def make() -> Gate:
        gates.append(Gate())
        monkeypatch.setattr(append_queues, "stored_form", gates[-1])
        return gates[-1]

    yield make
    for gate in gates:
        gate.go_on(1000)


class Sent:
    """Answers to Produce requests, by name, in order of arrival."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.rows: dict[str, Any] = {}

    async def send(self, client: Client, topic: Any, name: str, records: bytes, **more: Any) -> None:
        """On return the request's handler has run."""
        self._nursery.start_soon(self._send, client, topic, name, records, more)
        await trio.testing.wait_all_tasks_blocked()

    async def _send(
        self, client: Client, topic: Any, name: str, records: bytes, more: dict[str, Any]
    ) -> None:
        self.rows[name] = await produce(client, topic, records, **more)

    def codes(self) -> dict[str, ErrorCode]:
        return {name: row.error_code for name, row in self.rows.items()}

    def offsets(self) -> dict[str, int]:
        return {name: row.base_offset for name, row in self.rows.items()}


@pytest.mark.parametrize("kind", ODD_BATCHES)
async def test_what_is_refused(connect: Connect, kind: str) -> None:
    """BASE-24: the answer has the same fields as Kafka's; nothing of the batch is stored, and later
    ones are accepted."""
    async with connect() as client:
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        assert (await produce(client, topic, batch(b"a"))).base_offset == 0
        row = await produce(client, topic, odd_batch(kind, time_ms=wall_clock_ms()))
        code = CODES.get(kind, ErrorCode.invalid_record)
        log_start = -1 if code is ErrorCode.message_too_large else 0
        assert (row.error_code, row.base_offset, row.log_start_offset, row.error_message) == (
            code,
            -1,
            log_start,
            None,
        )
        assert client.partition("orders").next_offset == 1
        assert (await produce(client, topic, batch(b"b"))).base_offset == 1
        metrics = client.partition("orders").metrics
        assert metrics.failed_produce_requests == 1
        assert (metrics.bytes_rejected > 0) == (code is ErrorCode.message_too_large)


async def test_what_clients_write(connect: Connect, every_engine: str) -> None:
    async with connect(every_engine) as client:
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        now_ms = wall_clock_ms()
        records = [Record(0, now_ms, b"k", b"v" * 50, (("h", b"x"),)) for _ in range(3000)]
        end = 0
        for codec in Codec:
            for count in (1, 3, 500, 3000):
                row = await produce(client, topic, build_batch(records[:count], codec=codec))
                assert (row.error_code, row.base_offset) == (0, end)
                end += count
        partition = client.partition("orders")
        views = partition.read_now(0, max_bytes=1 << 30, end_offset=end)
        assert sum(header.record_count for view in views for _, header in iter_headers(view)) == end
        assert partition.high_watermark == end
        assert client.broker.append_queues.statistics() == (0, 0)


async def test_only_where_it_is_asked_for(connect: Connect) -> None:
    """For one topic, altered while it is in use; or for all topics without a value of their own."""
    odd = odd_batch("no gzip", time_ms=wall_clock_ms())

    async def alter(client: Client, operation: int, value: str | None) -> None:
        config = {"name": "kbroker.payload.check", "config_operation": operation, "value": value}
        resource = {"resource_type": 2, "resource_name": "orders", "configs": [config]}
        answer = await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert answer.responses[0].error_code == 0

    async with connect("segment") as client:
        topic = (await client.create_topic("orders")).topic_id
        assert (await produce(client, topic, odd)).error_code == 0
        await alter(client, 0, "true")
        assert (await produce(client, topic, odd)).error_code == ErrorCode.unknown_server_error
        await alter(client, 1, None)
        assert (await produce(client, topic, odd)).error_code == 0
    async with connect("segment", config=CHECKED) as client:
        assert (await produce(client, topic, odd)).error_code == ErrorCode.unknown_server_error
        await alter(client, 0, "false")
        assert (await produce(client, topic, odd)).error_code == 0


async def test_one_waits_for_the_one_before_in_its_partition_only(
    connect: Connect, gate_of: Callable[[], Gate]
) -> None:
    """Whichever client sent it. Offsets are in the order in which requests arrived."""
    async with connect() as client, trio.open_nursery() as nursery:
        gate, sent = gate_of(), Sent(nursery)
        topic = (await client.create_topic("orders", 2, configs=CHECKED)).topic_id
        plain = (await client.create_topic("plain")).topic_id
        await sent.send(client, topic, "large", large())
        await gate.begun()
        await sent.send(client, topic, "small", batch(b"a", b"b"))
        await sent.send(client.another(2), topic, "another's", batch(b"c"))
        await sent.send(client, topic, "odd", odd_batch("zeros", time_ms=wall_clock_ms()))
        await sent.send(client, topic, "another partition", batch(b"d"), partition=1)
        await sent.send(client, plain, "another topic", batch(b"e"))
        await sent.send(client, topic, "damaged", batch(b"f")[:-1])
        with trio.fail_after(PATIENCE_S):
            while len(sent.rows) < 3:
                await trio.lowlevel.checkpoint()
        assert set(sent.rows) == {"another partition", "another topic", "damaged"}, (
            "what its header says is said at once"
        )
        assert client.partition("orders").next_offset == 0
        assert client.broker.append_queues.statistics() == (1, 4)
        gate.go_on()
    assert {name: sent.offsets()[name] for name in ("large", "small", "another's")} == {
        "large": 0,
        "small": 1,
        "another's": 3,
    }
    assert sent.rows["odd"].error_code == ErrorCode.invalid_record


async def test_a_topic_that_is_no_longer_checked(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    """Requests that arrive then still wait their turn."""
    async with connect() as client, trio.open_nursery() as nursery:
        gate, sent = gate_of(), Sent(nursery)
        topic = await client.create_topic("orders", configs=CHECKED)
        await sent.send(client, topic.topic_id, "large", large())
        await gate.begun()
        orders = client.broker.topics.by_name("orders")
        assert orders is not None
        await client.broker.topics.set_configs(orders, {})
        await sent.send(client, topic.topic_id, "odd", odd_batch("no gzip", time_ms=wall_clock_ms()))
        assert sent.rows == {}
        gate.go_on()
    assert sent.offsets() == {"large": 0, "odd": 1}


async def test_an_idempotent_producer(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    """As in Kafka, a refused batch is not counted: later ones are out of order (45) until its
    sequence number is repeated."""

    def of_sequence(sequence: int) -> ProducerInfo:
        return ProducerInfo(7, 0, sequence)

    async with connect() as client, trio.open_nursery() as nursery:
        gate, sent = gate_of(), Sent(nursery)
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        await sent.send(client, topic, "0", large(producer=of_sequence(0)))
        await sent.send(client, topic, "1-3", large_odd(producer=of_sequence(1)))
        await sent.send(client, topic, "4", large(producer=of_sequence(4)))
        await sent.send(client, topic, "1", large(producer=of_sequence(1)))
        await sent.send(client, topic, "0 again", large(producer=of_sequence(0)))
        await sent.send(client, topic, "2", large(producer=of_sequence(2)))
        gate.go_on(6)
    assert sent.codes() == {
        "0": 0,
        "1-3": ErrorCode.message_too_large,
        "4": ErrorCode.out_of_order_sequence_number,
        "1": 0,
        "0 again": 0,
        "2": 0,
    }
    assert {name: row.base_offset for name, row in sent.rows.items() if not row.error_code} == {
        "0": 0,
        "1": 1,
        "0 again": 0,
        "2": 2,
    }


async def test_two_are_checked_at_once(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    """In the whole broker: that bounds the memory for decompressed batches."""
    async with connect() as client, trio.open_nursery() as nursery:
        gate, sent = gate_of(), Sent(nursery)
        topic = (await client.create_topic("orders", 6, configs=CHECKED)).topic_id
        for partition in range(6):
            await sent.send(client, topic, str(partition), large(), partition=partition)
        await gate.begun(2)
        await trio.testing.wait_all_tasks_blocked()
        assert gate.has_begun == 0
        gate.go_on(6)
    assert set(sent.codes().values()) == {0}


async def test_several_partitions_in_one_request(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    async with connect() as client, trio.open_nursery() as nursery:
        gate, answers = gate_of(), []
        topic = (await client.create_topic("orders", 4, configs=CHECKED)).topic_id
        records = [large(), batch(b"a"), odd_batch("zeros", time_ms=wall_clock_ms()), large_odd()]
        data = [{"index": index, "records": each} for index, each in enumerate(records)]

        async def ask() -> None:
            topics = [{"topic_id": topic, "partition_data": data}]
            answers.append(
                await client.call("produce", 13, transactional_id=None, acks=-1, topic_data=topics)
            )

        nursery.start_soon(ask)
        await gate.begun(2)
        assert answers == []
        gate.go_on(4)  # The first, tried in vain, ends the turn in which others could be checked.
    (topic_row,) = answers[0].responses
    found = [(row.index, row.error_code, row.base_offset) for row in topic_row.partition_responses]
    assert found == [
        (0, 0, 0),
        (1, 0, 0),
        (2, ErrorCode.invalid_record, -1),
        (3, ErrorCode.message_too_large, -1),
    ]


async def test_a_topic_that_is_deleted_meanwhile(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    async with connect() as client, trio.open_nursery() as nursery:
        gate, sent = gate_of(), Sent(nursery)
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        await sent.send(client, topic, "large", large())
        await sent.send(client, topic, "small", batch(b"a"))
        await gate.begun()
        orders = client.broker.topics.by_name("orders")
        assert orders is not None
        await client.broker.topics.delete(orders)
        gate.go_on()
    assert sent.codes() == dict.fromkeys(("large", "small"), ErrorCode.unknown_topic_or_partition)
    assert client.broker.append_queues.statistics() == (0, 0)


async def test_a_disk_that_is_full_meanwhile(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    def refuse(batches: object) -> NoReturn:
        raise NoSpace("the disk is full")

    async with connect() as client:
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        commits: Any = client.broker.log_commits
        write = commits._write
        async with trio.open_nursery() as nursery:
            gate, sent = gate_of(), Sent(nursery)
            await sent.send(client, topic, "large", large())
            await sent.send(client, topic, "small", batch(b"a"))
            await gate.begun()
            commits._write = refuse
            gate.go_on()
        commits._write = write
        assert sent.codes() == dict.fromkeys(("large", "small"), ErrorCode.kafka_storage_error)
        assert (await produce(client, topic, batch(b"b"))).base_offset == 0


async def test_a_broker_that_stops_meanwhile(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    """It waits for the thread, and for no other batch; what is stored is answered, and what is
    answered is stored."""
    async with trio.open_nursery() as nursery:
        sent = Sent(nursery)
        async with connect("segment") as client:
            gate = gate_of()
            topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
            for number in range(3):
                await sent.send(client, topic, str(number), large())
            await gate.begun()
            nursery.start_soon(_go_on_when_all_wait, gate)
        answered = sent.offsets()
        nursery.cancel_scope.cancel()
    assert answered == {"0": 0}
    async with connect("segment") as client:
        assert client.partition("orders").next_offset == 1


async def _go_on_when_all_wait(gate: Gate) -> None:
    """Release all once everything waits, including the broker that is being closed."""
    await trio.testing.wait_all_tasks_blocked()
    gate.go_on()


async def test_a_check_that_breaks(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It affects one batch, neither the next one nor the broker."""

    def fail(*arguments: object, **more: object) -> NoReturn:
        raise MemoryError

    async with connect() as client:
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        with monkeypatch.context() as broken:
            broken.setattr(append_queues, "stored_form", fail)
            assert (await produce(client, topic, large())).error_code == ErrorCode.unknown_server_error
        assert (await produce(client, topic, large())).base_offset == 0


async def test_acks_0(connect: Connect, gate_of: Callable[[], Gate]) -> None:
    """BASE-29: the connection is closed when a batch is refused, so only once the check has
    ended."""
    async with connect() as client:
        topic = (await client.create_topic("orders", configs=CHECKED)).topic_id
        gate = gate_of()
        gate.go_on(2)
        assert await produce(client, topic, large(), acks=0) is None
        assert client.partition("orders").next_offset == 1
        with pytest.raises(CloseConnection, match="refused"):
            await produce(client, topic, large_odd(), acks=0)
        assert client.partition("orders").next_offset == 1


async def test_acks_1_and_log_append_time(connect: Connect) -> None:
    async with connect() as client:
        configs = {**CHECKED, "message.timestamp.type": "LogAppendTime"}
        topic = (await client.create_topic("orders", configs=configs)).topic_id
        row = await produce(client, topic, large(), acks=1)
        assert (row.error_code, row.base_offset) == (0, 0)
        assert row.log_append_time is not None
