"""The unmodified clients behind one small interface, so that each promise is tested with all of
them.

A driver sends contents to the partitions in turn and waits for every answer (`Refused` carries
Kafka's code of the first refused record). It yields what a consumer with assigned partitions
receives. Nothing is retried here, and every wait is bounded.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from typing import Any, NamedTuple

from tests.clients.workload import Content, Placed

PATIENCE_S = 60.0
EARLIEST, LATEST = -2, -1
QUICK_RECONNECT: Mapping[str, Any] = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 500}
"""Without these, tests of restarts would wait for seconds. The other clients have their own names
for them."""


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class TooLittle(AssertionError):
    """Fewer records arrived than requested, and for a long time no further one."""


class Sending(NamedTuple):
    """How records are sent."""

    partitions: int = 1
    codec: str = "none"
    acks: int = -1
    idempotent: bool = False
    max_request_bytes: int = 1_000_000

    def python_settings(self, batch_size: str) -> dict[str, Any]:
        """For the two clients written in Python: only the setting for the batch size differs in
        name."""
        return {
            "compression_type": None if self.codec == "none" else self.codec,
            "acks": "all" if self.acks == -1 else self.acks,
            "enable_idempotence": self.idempotent,
            "max_request_size": self.max_request_bytes,
            "linger_ms": 5,
            batch_size: 65_536,
        }


class Driver(ABC):
    name: str
    codecs: tuple[str, ...]

    def send(self, bootstrap: str, topic: str, contents: Iterable[Content], **how: Any) -> list[int]:
        """`how`: the fields of Sending. Returns the offsets from the responses, in any order (with
        acks 0 they mean nothing)."""
        return self._send(bootstrap, topic, contents, Sending(**how))

    @abstractmethod
    def _send(self, bootstrap: str, topic: str, contents: Iterable[Content], how: Sending) -> list[int]: ...

    @abstractmethod
    def receive(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        *,
        start: Mapping[int, int] | None = None,
        partitions: int = 1,
    ) -> Iterator[Placed]:
        """Return `count` records from `start` (partition -> offset; None: all partitions from the
        earliest offset)."""

    @abstractmethod
    def find_offset(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """`timestamp` may also be EARLIEST or LATEST. None if no record is that young."""


class Confluent(Driver):
    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def _send(self, bootstrap: str, topic: str, contents: Iterable[Content], how: Sending) -> list[int]:
        from confluent_kafka import Producer

        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "compression.type": how.codec,
            "acks": how.acks,
            "linger.ms": 5,
        }
        settings |= {"enable.idempotence": how.idempotent, "message.max.bytes": how.max_request_bytes}
        producer = Producer(settings | QUICK_RECONNECT)
        offsets: list[int] = []
        errors: list[Any] = []

        def answered(error: Any, message: Any) -> None:
            offsets.append(message.offset())
            if error is not None:
                errors.append(error)

        for partition, content in zip(cycle(range(how.partitions)), contents, strict=False):
            timestamp_ms, key, value, headers = content
            more = {
                "partition": partition,
                "timestamp": timestamp_ms,
                "headers": list(headers),
                "on_delivery": answered,
            }
            while True:
                try:
                    producer.produce(topic, value, key, **more)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(PATIENCE_S)
        if errors:
            raise Refused(errors[0].code(), errors[0].str())
        assert left == 0, f"{left} records were not answered"
        return offsets

    def receive(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        *,
        start: Mapping[int, int] | None = None,
        partitions: int = 1,
    ) -> Iterator[Placed]:
        from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition

        places = start if start is not None else dict.fromkeys(range(partitions), EARLIEST)
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
        }
        consumer = Consumer(settings | QUICK_RECONNECT)
        try:
            consumer.assign(
                [TopicPartition(topic, partition, offset) for partition, offset in places.items()]
            )
            left = count
            while left > 0:
                messages = consumer.consume(min(left, 1000), 1.0) or consumer.consume(
                    min(left, 1000), PATIENCE_S
                )
                if not messages:
                    raise TooLittle(f"{count - left} of {count} records came")
                for message in messages:
                    assert message.error() is None, message.error()
                    kind, timestamp_ms = message.timestamp()
                    assert kind != TIMESTAMP_NOT_AVAILABLE
                    headers = tuple(message.headers() or ())
                    yield Placed(
                        message.partition(),
                        message.offset(),
                        Content(timestamp_ms, message.key(), message.value(), headers),
                    )
                left -= len(messages)
        finally:
            consumer.close()

    def find_offset(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        try:
            if timestamp_ms in (EARLIEST, LATEST):
                bounds = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)
                return int(bounds[0 if timestamp_ms == EARLIEST else 1])
            found = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], PATIENCE_S)[
                0
            ]
            assert found.error is None, found.error
            return None if found.offset == OFFSET_END else int(found.offset)
        finally:
            consumer.close()


class KafkaPython(Driver):
    name = "kafka-python"
    codecs = ("none", "gzip", "zstd")
    """kafka-python's snappy and lz4 need python-snappy and lz4, which are not installed for the
    tests."""

    def _send(self, bootstrap: str, topic: str, contents: Iterable[Content], how: Sending) -> list[int]:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        settings = how.python_settings(batch_size="batch_size") | {"reconnect_backoff_max_ms": 500}
        producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
        try:
            sent = []
            for partition, content in zip(cycle(range(how.partitions)), contents, strict=False):
                timestamp_ms, key, value, headers = content
                sent.append(
                    producer.send(
                        topic,
                        value=value,
                        key=key,
                        headers=list(headers),
                        partition=partition,
                        timestamp_ms=timestamp_ms,
                    )
                )
            producer.flush(PATIENCE_S)
            return [future.get(PATIENCE_S).offset for future in sent]
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), str(error)) from error
        finally:
            producer.close(PATIENCE_S)

    def receive(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        *,
        start: Mapping[int, int] | None = None,
        partitions: int = 1,
    ) -> Iterator[Placed]:
        from kafka import KafkaConsumer, TopicPartition

        settings: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "max_poll_records": 5000,
        }
        settings |= {"reconnect_backoff_max_ms": 500}
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, **settings)
        try:
            consumer.assign([TopicPartition(topic, partition) for partition in start or range(partitions)])
            for partition, offset in (start or {}).items():
                consumer.seek(TopicPartition(topic, partition), offset)
            left, deadline = count, time.monotonic() + PATIENCE_S
            while left > 0:
                for records in consumer.poll(timeout_ms=1000, max_records=min(left, 5000)).values():
                    for record in records:
                        content = Content(record.timestamp, record.key, record.value, tuple(record.headers))
                        yield Placed(record.partition, record.offset, content)
                    left -= len(records)
                    deadline = time.monotonic() + PATIENCE_S
                if time.monotonic() > deadline:
                    raise TooLittle(f"{count - left} of {count} records came")
        finally:
            consumer.close()

    def find_offset(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
        place = TopicPartition(topic, partition)
        try:
            if timestamp_ms in (EARLIEST, LATEST):
                ask = consumer.beginning_offsets if timestamp_ms == EARLIEST else consumer.end_offsets
                return int(ask([place])[place])
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()


class AioKafka(Driver):
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def _send(self, bootstrap: str, topic: str, contents: Iterable[Content], how: Sending) -> list[int]:
        return asyncio.run(self._produce(bootstrap, topic, contents, how))

    async def _produce(
        self, bootstrap: str, topic: str, contents: Iterable[Content], how: Sending
    ) -> list[int]:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        settings = how.python_settings(batch_size="max_batch_size")
        async with (
            asyncio.timeout(PATIENCE_S * 5),
            AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer,
        ):
            try:
                sent = []
                for partition, content in zip(cycle(range(how.partitions)), contents, strict=False):
                    timestamp_ms, key, value, headers = content
                    sent.append(
                        await producer.send(
                            topic,
                            value,
                            key,
                            partition=partition,
                            timestamp_ms=timestamp_ms,
                            headers=list(headers),
                        )
                    )
                answers = await asyncio.gather(*sent)
            except KafkaError as error:
                raise Refused(getattr(error, "errno", -1), str(error)) from error
            return [answer.offset if answer is not None else -1 for answer in answers]

    def receive(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        *,
        start: Mapping[int, int] | None = None,
        partitions: int = 1,
    ) -> Iterator[Placed]:
        with asyncio.Runner() as runner:
            consumer = runner.run(self._start_consumer(bootstrap, topic, start or {}, partitions))
            try:
                left = count
                while left > 0:
                    records = runner.run(self._poll(consumer, left))
                    if not records:
                        raise TooLittle(f"{count - left} of {count} records came")
                    yield from records
                    left -= len(records)
            finally:
                runner.run(consumer.stop())

    async def _start_consumer(
        self, bootstrap: str, topic: str, start: Mapping[int, int], partitions: int
    ) -> Any:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([TopicPartition(topic, partition) for partition in start or range(partitions)])
        for partition, offset in start.items():
            consumer.seek(TopicPartition(topic, partition), offset)
        return consumer

    async def _poll(self, consumer: Any, most: int) -> list[Placed]:
        fetched = await consumer.getmany(timeout_ms=int(PATIENCE_S * 1000), max_records=min(most, 5000))
        return [
            Placed(
                record.partition,
                record.offset,
                Content(record.timestamp, record.key, record.value, tuple(record.headers)),
            )
            for records in fetched.values()
            for record in records
        ]

    def find_offset(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        return asyncio.run(self._find_offset(bootstrap, topic, partition, timestamp_ms))

    async def _find_offset(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int | None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        place = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None) as consumer:
            if timestamp_ms in (EARLIEST, LATEST):
                ask = consumer.beginning_offsets if timestamp_ms == EARLIEST else consumer.end_offsets
                return int((await ask([place]))[place])
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)


DRIVERS: Mapping[str, Driver] = {driver.name: driver for driver in (Confluent(), KafkaPython(), AioKafka())}
CODECS = Confluent.codecs
