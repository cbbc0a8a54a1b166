"""The producer: calls that wait for room, records that cannot be sent, late answers."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from clients.python.tests.targets import Target
from kbroker.client.rpc import Connection
from kbroker_client import ErrorCode, KafkaError, Producer, TimedOut, TopicPartition, producer
from kbroker_client._shared.formats.batches import NO_PRODUCER, Record
from kbroker_client.connection import Connection as BrokerConnection
from kbroker_client.producer import _Batch, _Partition, _Waiting

pytestmark = pytest.mark.anyio


async def test_all_calls_that_wait_for_room_go_on(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "_MAX_BUFFERED_BYTES", 1000)
    topic = target.topic()
    async with Producer(target.bootstrap) as sending:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(sending.send, topic, b"x" * 800)


async def test_an_answer_that_comes_too_late(target: Target) -> None:
    if target.broker is None:
        pytest.skip("Apache Kafka is shared, and cannot be stopped for a while")
    topic, late = target.topic(), []

    async with Producer(target.bootstrap, delivery_timeout_s=0.5) as sending:
        await sending.send(topic, b"0")

        async def send(value: bytes) -> None:
            with pytest.raises(TimedOut) as error:
                await sending.send(topic, value)
            late.append(str(error.value))

        target.broker.sigstop()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, b"1")
                await anyio.sleep(0.6)
                tasks.start_soon(send, b"2")  # Finds that the first one is late.
                await anyio.sleep(0.6)
                target.broker.sigcont()
        finally:
            target.broker.sigcont()
        sent = await sending.send(topic, b"3")
    assert late[0] == "not answered within 0.5 s; it may be written"
    assert len(late) == 2
    assert sent.offset >= 2


async def test_a_topic_that_is_recreated_with_fewer_partitions(target: Target) -> None:
    topic = target.topic(partitions=2)
    async with Producer(target.bootstrap, delivery_timeout_s=2.0) as sending:
        await sending.send(topic, b"", partition=1)
        await anyio.to_thread.run_sync(_recreate, target, topic)
        with pytest.raises(TimedOut):
            await sending.send(topic, b"", partition=1)
        assert (await sending.send(topic, b"", partition=0)).offset == 0


def _recreate(target: Target, topic: str) -> None:
    with Connection("127.0.0.1", target.port) as connection:
        answer = connection.call("delete_topics", topics=[{"name": topic, "topic_id": None}], timeout=10_000)
    assert answer.responses[0].error_code == 0, answer
    target.topic(name=topic)


async def test_the_producer_id_may_be_lost_while_a_connection_is_made(target: Target) -> None:
    """A batch is numbered with a new one: without an id, a repeated request writes it twice."""
    topic = target.topic()
    async with Producer(target.bootstrap) as sending:
        connect = sending._cluster.connect_to

        async def lose(node: int) -> BrokerConnection:
            sending._identity = NO_PRODUCER  # As the failure of another node's request does.
            return await connect(node)

        sending._cluster.connect_to = lose  # type: ignore[method-assign]
        await sending.send(topic, b"")
        assert sending._partitions[TopicPartition(topic, 0)].producer_id >= 0


async def test_a_call_ends_in_time(target: Target) -> None:
    """Also if the broker does not answer, and no other call is made."""
    if target.broker is None:
        pytest.skip("Apache Kafka is shared, and cannot be stopped for a while")
    topic = target.topic()
    async with Producer(target.bootstrap, delivery_timeout_s=1.0) as sending:
        await sending.send(topic, b"0")
        target.broker.sigstop()
        try:
            with anyio.fail_after(5), pytest.raises(TimedOut):
                await sending.send(topic, b"1")
        finally:
            target.broker.sigcont()


async def test_records_that_cannot_be_built_are_refused_at_once(target: Target) -> None:
    topic = target.topic()
    async with Producer(target.bootstrap) as sending:
        with pytest.raises(TypeError, match="the header a of a record is bytes, not str"):
            await sending.send(topic, b"", headers=[("a", "text")])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="the name of a header is text, not bytes"):
            await sending.send(topic, b"", headers=[(b"a", b"text")])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="is whole ms, not float"):
            await sending.send(topic, b"", timestamp_ms=1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="in ms since 1970, not"):
            await sending.send(topic, b"", timestamp_ms=1 << 63)
        with pytest.raises(UnicodeEncodeError):
            await sending.send(topic, b"", headers=[("\ud800", b"")])
        await sending.send(
            topic, memoryview(b"x"), key=bytearray(b"y"), headers=[("a", memoryview(b"\1")), ("\udcff", None)]
        )


async def test_producers_of_one_record_share_the_partitions(target: Target) -> None:
    topic, places = target.topic(32), set()
    for _ in range(8):
        async with Producer(target.bootstrap) as sending:
            places.add((await sending.send(topic, b"")).partition)
    assert len(places) > 1


async def test_a_record_that_fits_in_no_request(target: Target) -> None:
    topic = target.topic()
    async with Producer(target.bootstrap) as sending:
        with pytest.raises(KafkaError, match="fits in no request") as error:
            await sending.send(topic, bytes(100 << 20))
        assert error.value.code is ErrorCode.message_too_large


async def test_a_topic_of_small_batches(target: Target) -> None:
    """Each record fits, but not all that are sent together."""
    topic = target.topic()
    target.configure(topic, {"max.message.bytes": "10000"}, kind=2)
    async with Producer(target.bootstrap) as sending:
        sent = await sending.send_all(topic, [b"x" * 1000] * 100)
        assert [each.offset for each in sent] == list(range(100))
        with pytest.raises(KafkaError) as error:
            await sending.send(topic, b"x" * 20_000)
        assert error.value.code is ErrorCode.message_too_large


@pytest.mark.parametrize("is_answered", [True, False])
async def test_refusals_after_an_attempt_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """A broker whose disk is full refuses a repeated batch before it looks whether the log has it
    already. So "not written" is only true if each attempt was refused."""
    monkeypatch.setattr(producer, "_REFUSED_S", 0.0)
    sending, place = Producer("127.0.0.1:1", delivery_timeout_s=5), TopicPartition("t", 0)
    waiting = _Waiting(Record(0, 0, None, b"v"), 1, anyio.current_time() + 5)
    partition = sending._partitions.setdefault(place, _Partition())
    partition.batch = batch = _Batch([waiting], b"")
    batch.attempts = 1
    if not is_answered:
        partition.note_no_answer()
    row = SimpleNamespace(error_code=ErrorCode.kafka_storage_error, error_message="the disk is full")
    assert sending._answered(place, batch, row) is not is_answered
    if is_answered:
        assert isinstance(waiting.error, KafkaError)
        return
    assert waiting.error is None
    waiting.deadline_s = anyio.current_time()
    sending._give_up_late(partition)
    assert isinstance(waiting.error, TimedOut)
    assert "the disk is full" in str(waiting.error)
    assert "may be written" in str(waiting.error)
