"""Unmodified consumers of a group behind one interface, so that each behavior is tested with all of
them.

A consumer joins by `subscribe` or `subscribe_pattern`. Everything else happens within `poll`, as in
an application. Settings have the names of librdkafka and of the Java client; each class maps them
to the names of its library, and lists the ones that its library lacks (`lacks`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

PATIENCE_S = 60.0
QUICK: Mapping[str, Any] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "metadata.max.age.ms": 500,
    "fetch.max.wait.ms": 100,
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 250,
}
"""The defaults of the tests: a consumer that notices changes quickly."""

UNKNOWN_TOPIC_OR_PARTITION = 3

Place: TypeAlias = tuple[str, int]


class Got(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: str


class Committed(NamedTuple):
    offset: int
    metadata: str


class ClientError(Exception):
    """What a client library reports to its application: Kafka's code, or None if it gives none, and
    the library's own text."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class GroupConsumer(ABC):
    lacks: frozenset[str] = frozenset()
    """Settings that the library lacks, and situations that it does not survive."""
    shortest_poll_s = 0.1

    def __init__(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None:
        """`settings` override QUICK."""
        self.got: list[Got] = []
        self.changes = 0
        """How often the library reported that partitions were assigned or revoked."""
        self._open(bootstrap, group, {**QUICK, **settings})

    @abstractmethod
    def _open(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def subscribe(self, *topics: str) -> None: ...

    @abstractmethod
    def subscribe_pattern(self, pattern: str) -> None:
        """Subscribe to all topics whose whole name matches a regular expression."""

    @abstractmethod
    def assign(self, *places: Place) -> None:
        """Read these partitions without being a member of the group."""

    def poll(self, seconds: float = 0.1) -> list[Got]:
        """Return the records that arrived; `got` keeps all of them. Raises ClientError, but not for
        a topic that is missing: the library keeps requesting it."""
        try:
            new = self._poll(max(seconds, self.shortest_poll_s))
        except ClientError as error:
            if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return []
        self.got += new
        return new

    def until(self, what: str, holds: Callable[[], bool], *others: GroupConsumer) -> None:
        """Poll this consumer and the others in turn."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            for consumer in (self, *others):
                consumer.poll()
            state = [(each.assignment(), len(each.got), each.got[-3:]) for each in (self, *others)]
            assert time.monotonic() < deadline, f"{what}: {state}"

    @abstractmethod
    def _poll(self, seconds: float) -> list[Got]: ...

    @abstractmethod
    def assignment(self) -> set[Place]: ...

    @abstractmethod
    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        """Commit and wait for the response; None: commit the positions read so far. Raises
        ClientError."""

    @abstractmethod
    def commit_async(self) -> None:
        """Commit the positions read so far, without waiting for the response."""

    @abstractmethod
    def committed(self, place: Place) -> Committed | None: ...

    @abstractmethod
    def seek(self, place: Place, offset: int) -> None: ...

    @abstractmethod
    def pause(self, places: Iterable[Place]) -> None: ...

    @abstractmethod
    def resume(self, places: Iterable[Place]) -> None: ...

    @abstractmethod
    def offset_for_time(self, place: Place, timestamp_ms: int) -> int | None: ...

    @abstractmethod
    def close(self) -> None:
        """Close cleanly: a member that is not static leaves; with auto commit the positions read so
        far are committed."""

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def values(self) -> set[str]:
        """The distinct values received so far: after a rebalance, records that were not committed
        may be delivered twice."""
        return {each.value for each in self.got}


class ConfluentConsumer(GroupConsumer):
    protocol = "classic"
    _NAMES: Mapping[str, str] = {"fetch.max.wait.ms": "fetch.wait.max.ms"}
    _OF_THE_BROKER = frozenset(
        {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}
    )

    def _open(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Consumer

        self.errors: list[Any] = []
        ours = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": self.protocol,
            "error_cb": self.errors.append,
        }
        ours |= {
            "topic.metadata.refresh.interval.ms": settings["metadata.max.age.ms"],
            "topic.metadata.propagation.max.ms": 100,
        }
        ours |= {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 500}
        left_out = self._OF_THE_BROKER if self.protocol == "consumer" else frozenset()
        ours |= {
            self._NAMES.get(name, name): value for name, value in settings.items() if name not in left_out
        }
        self._consumer = Consumer(ours)

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(
            list(topics), on_assign=self._changed, on_revoke=self._changed, on_lost=self._changed
        )

    def subscribe_pattern(self, pattern: str) -> None:
        self.subscribe(f"^{pattern}$")

    def assign(self, *places: Place) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(*place) for place in places])

    def _changed(self, *_: object) -> None:
        self.changes += 1

    def _poll(self, seconds: float) -> list[Got]:
        new = []
        for message in self._consumer.consume(500, seconds):
            if (error := message.error()) is not None:
                raise ClientError(error.code(), error.str())
            new.append(
                Got(message.topic(), message.partition(), message.offset(), (message.value() or b"").decode())
            )
        return new

    def assignment(self) -> set[Place]:
        return {(each.topic, each.partition) for each in self._consumer.assignment()}

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        rows = (
            None
            if offsets is None
            else [TopicPartition(*place, row.offset, row.metadata) for place, row in offsets.items()]
        )
        try:
            answer = self._consumer.commit(asynchronous=False, **({} if rows is None else {"offsets": rows}))
        except KafkaException as error:
            raise ClientError(error.args[0].code(), error.args[0].str()) from error
        for each in answer or []:
            if each.error is not None:
                raise ClientError(each.error.code(), each.error.str())

    def commit_async(self) -> None:
        self._consumer.commit(asynchronous=True)

    def committed(self, place: Place) -> Committed | None:
        from confluent_kafka import TopicPartition

        (row,) = self._consumer.committed([TopicPartition(*place)], timeout=PATIENCE_S)
        return None if row.offset < 0 else Committed(row.offset, row.metadata or "")

    def seek(self, place: Place, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.seek(TopicPartition(*place, offset))

    def pause(self, places: Iterable[Place]) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Iterable[Place]) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.resume([TopicPartition(*place) for place in places])

    def offset_for_time(self, place: Place, timestamp_ms: int) -> int | None:
        from confluent_kafka import TopicPartition

        (row,) = self._consumer.offsets_for_times([TopicPartition(*place, timestamp_ms)], PATIENCE_S)
        return None if row.offset < 0 else row.offset

    def close(self) -> None:
        self._consumer.close()


class ConfluentNewConsumer(ConfluentConsumer):
    protocol = "consumer"


_STRATEGIES: Mapping[str, str] = {
    "range": "range.RangePartitionAssignor",
    "roundrobin": "roundrobin.RoundRobinPartitionAssignor",
    "sticky": "sticky.sticky_assignor.StickyPartitionAssignor",
    "cooperative-sticky": "cooperative_sticky.CooperativeStickyAssignor",
}


def _python_settings(library: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """For the two clients written in Python."""
    from importlib import import_module

    ours = {name.replace(".", "_"): value for name, value in settings.items()}
    if strategies := ours.pop("partition_assignment_strategy", None):
        paths = [
            f"{library}.coordinator.assignors.{_STRATEGIES[name]}".rpartition(".")
            for name in strategies.split(",")
        ]
        ours["partition_assignment_strategy"] = [
            getattr(import_module(module), name) for module, _, name in paths
        ]
    return ours


class KafkaPythonConsumer(GroupConsumer):
    """If a poll ends just as the member joins the group, the library never gets partitions. The
    polls of the tests are long enough."""

    lacks = frozenset({"allow.auto.create.topics", "topics made again at once"})
    shortest_poll_s = 1.0

    def _open(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer

        consumer, ours = self, _python_settings("kafka", settings)

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, _: object) -> None:
                consumer.changes += 1

            def on_partitions_revoked(self, _: object) -> None:
                consumer.changes += 1

        ours["client_rack"] = ours.get("client_rack", "")
        ours["allow_auto_create_topics"] = ours.pop("allow_auto_create_topics", False)
        self._listener = Listener()
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, reconnect_backoff_max_ms=500, **ours
        )

    def subscribe(self, *topics: str) -> None:
        self._consumer.subscribe(list(topics), listener=self._listener)

    def subscribe_pattern(self, pattern: str) -> None:
        self._consumer.subscribe(pattern=f"^{pattern}$", listener=self._listener)

    def assign(self, *places: Place) -> None:
        from kafka.structs import TopicPartition

        self._consumer.assign([TopicPartition(*place) for place in places])

    def _poll(self, seconds: float) -> list[Got]:
        records = _asked(lambda: self._consumer.poll(int(seconds * 1000)))
        return [_got(record) for each in records.values() for record in each]

    def assignment(self) -> set[Place]:
        return {(each.topic, each.partition) for each in self._consumer.assignment()}

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        rows = (
            None
            if offsets is None
            else {TopicPartition(*place): OffsetAndMetadata(*row, -1) for place, row in offsets.items()}
        )
        _asked(lambda: self._consumer.commit(rows))

    def commit_async(self) -> None:
        self._consumer.commit_async()

    def committed(self, place: Place) -> Committed | None:
        from kafka.structs import TopicPartition

        row = _asked(lambda: self._consumer.committed(TopicPartition(*place), metadata=True))
        return None if row is None else Committed(row.offset, row.metadata)

    def seek(self, place: Place, offset: int) -> None:
        from kafka.structs import TopicPartition

        self._consumer.seek(TopicPartition(*place), offset)

    def pause(self, places: Iterable[Place]) -> None:
        from kafka.structs import TopicPartition

        self._consumer.pause(*[TopicPartition(*place) for place in places])

    def resume(self, places: Iterable[Place]) -> None:
        from kafka.structs import TopicPartition

        self._consumer.resume(*[TopicPartition(*place) for place in places])

    def offset_for_time(self, place: Place, timestamp_ms: int) -> int | None:
        from kafka.structs import TopicPartition

        row = self._consumer.offsets_for_times({TopicPartition(*place): timestamp_ms})[TopicPartition(*place)]
        return None if row is None else row.offset

    def close(self) -> None:
        self._consumer.close()


class AiokafkaConsumer(GroupConsumer):
    """The event loop runs in a thread, with heartbeats and rebalances."""

    lacks = frozenset({"allow.auto.create.topics"})

    def _open(self, bootstrap: str, group: str, settings: Mapping[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        ours = _python_settings("aiokafka", {"client.rack": None, **settings})
        ours.pop("allow_auto_create_topics", None)
        try:
            self._consumer = self._run(self._started(bootstrap, group, ours))
        except BaseException:
            self._end()
            raise

    async def _started(self, bootstrap: str, group: str, ours: Mapping[str, Any]) -> Any:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

        consumer = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, _: object) -> None:
                consumer.changes += 1

            async def on_partitions_revoked(self, _: object) -> None:
                consumer.changes += 1

        self._listener = Listener()
        made = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, **ours)
        await made.start()
        return made

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return _asked(lambda: asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S))

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a synchronous function within the event loop."""

        async def call() -> Any:
            return function(*arguments, **named)

        return self._run(call())

    def subscribe(self, *topics: str) -> None:
        self._call(self._consumer.subscribe, list(topics), listener=self._listener)

    def subscribe_pattern(self, pattern: str) -> None:
        self._call(self._consumer.subscribe, pattern=f"^{pattern}$", listener=self._listener)

    def assign(self, *places: Place) -> None:
        from aiokafka import TopicPartition

        self._call(self._consumer.assign, [TopicPartition(*place) for place in places])

    def _poll(self, seconds: float) -> list[Got]:
        records = self._run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [_got(record) for each in records.values() for record in each]

    def assignment(self) -> set[Place]:
        return {(each.topic, each.partition) for each in self._call(self._consumer.assignment)}

    def commit(self, offsets: Mapping[Place, Committed] | None = None) -> None:
        from aiokafka import TopicPartition

        rows = (
            None
            if offsets is None
            else {TopicPartition(*place): tuple(row) for place, row in offsets.items()}
        )
        self._run(self._consumer.commit(rows))

    def commit_async(self) -> None:
        asyncio.run_coroutine_threadsafe(self._consumer.commit(), self._loop)

    def committed(self, place: Place) -> Committed | None:
        from aiokafka import TopicPartition

        where = TopicPartition(*place)
        coordinator = self._consumer._coordinator
        rows = self._run(coordinator.fetch_committed_offsets([where]))
        return Committed(rows[where].offset, rows[where].metadata) if where in rows else None

    def seek(self, place: Place, offset: int) -> None:
        from aiokafka import TopicPartition

        self._call(self._consumer.seek, TopicPartition(*place), offset)

    def pause(self, places: Iterable[Place]) -> None:
        from aiokafka import TopicPartition

        self._call(self._consumer.pause, *[TopicPartition(*place) for place in places])

    def resume(self, places: Iterable[Place]) -> None:
        from aiokafka import TopicPartition

        self._call(self._consumer.resume, *[TopicPartition(*place) for place in places])

    def offset_for_time(self, place: Place, timestamp_ms: int) -> int | None:
        from aiokafka import TopicPartition

        row = self._run(self._consumer.offsets_for_times({TopicPartition(*place): timestamp_ms}))[
            TopicPartition(*place)
        ]
        return None if row is None else row.offset

    def close(self) -> None:
        try:
            self._run(self._consumer.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _got(record: Any) -> Got:
    return Got(record.topic, record.partition, record.offset, (record.value or b"").decode())


def _asked(ask: Callable[[], Any]) -> Any:
    """Turn the errors of the two clients written in Python into ClientError: both carry Kafka's
    code."""
    from aiokafka.errors import KafkaError as OneError
    from kafka.errors import KafkaError as OtherError

    try:
        return ask()
    except (OneError, OtherError) as error:
        code = getattr(error, "errno", None)
        raise ClientError(code, repr(error)) from error


CONSUMERS: Mapping[str, type[GroupConsumer]] = {
    "confluent-classic": ConfluentConsumer,
    "confluent-consumer": ConfluentNewConsumer,
    "kafka-python": KafkaPythonConsumer,
    "aiokafka": AiokafkaConsumer,
}
