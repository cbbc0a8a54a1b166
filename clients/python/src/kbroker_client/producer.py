"""A small idempotent producer: each record is written once, in the order of its partition.

    async with Producer("127.0.0.1:9092") as producer:
        place = await producer.send("emails", b"...", key=b"customer 7")

Records that are sent while a request is under way share the next one. A request is repeated with
the same sequence numbers until the broker has answered it, so a lost answer writes nothing twice.
After a record has failed for good, the producer takes a new producer id.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

import anyio

from ._shared.client.answers import WRITES_NOWHERE, lacking
from ._shared.errors import ErrorCode, KafkaError
from ._shared.formats.batches import NO_PRODUCER, ProducerInfo, build_batch
from ._shared.formats.batches import Record as BatchRecord
from ._shared.formats.compression import Codec
from .background import Background, Signal
from .cluster import Backoff, Cluster, Topic, TopicPartition
from .connection import Connection
from .errors import BrokerUnreachable, ClientClosed, IllegalState, NotAuthenticated, TimedOut
from .partitioning import partition_of
from .security import PLAINTEXT, Security

logger = logging.getLogger(__name__)

_NAMED_TOPICS: Final = 12
"""The last version of Produce that names topics by their names."""
_MAX_BATCH_BYTES: Final = 900_000
"""Below the broker's default for max.message.bytes."""
_MAX_RECORD_BYTES: Final = (100 << 20) - (1 << 16)
"""A broker closes the connection at a request beyond 100 MiB: the record would be sent again and
again, and hold up all others."""
_MAX_BUFFERED_BYTES: Final = 32 << 20
_RECORD_BYTES: Final = 70
"""What a record takes beside its key and value, roughly."""
_DELIVERY_S: Final = 120.0
_REFUSED_S: Final = 5.0
"""A broker whose disk is full refuses records with an error that clients repeat. After so long, in
which it refused each attempt, the refusal is the outcome."""
_LATE_S: Final = 0.25
"""How often the producer looks for records that are late."""
_CLOSE_S: Final = 30.0
_RETRIABLE: Final = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.network_exception,
    ErrorCode.corrupt_message,
)
_NEW_ID: Final = (
    ErrorCode.unknown_producer_id,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.invalid_producer_epoch,
)
_TOO_LARGE: Final = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)
Headers: TypeAlias = Iterable[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """Where a record is. `offset`: -1 if only the answer to an earlier attempt had it."""

    topic: str
    partition: int
    offset: int


class _Waiting:
    """A record and the call that waits for it."""

    __slots__ = ("bytes", "deadline_s", "done", "error", "record", "sent")

    def __init__(self, record: BatchRecord, size: int, deadline_s: float) -> None:
        self.record = record
        self.bytes = size
        self.deadline_s = deadline_s
        self.done = anyio.Event()
        self.sent: Sent | None = None
        self.error: Exception | None = None


class _Batch:
    """`may_be_written`: an attempt got no answer. A later refusal does not tell what became of
    it."""

    __slots__ = ("attempts", "data", "may_be_written", "waiting")

    def __init__(self, waiting: list[_Waiting], data: bytes) -> None:
        self.waiting = waiting
        self.data = data
        self.attempts = 0
        self.may_be_written = False


class _Partition:
    """- `batch`: under way, or to be sent again before anything new
    - `refusal`: the answer to the last attempt of it; None: there was none, or nothing was refused
    - `refused_s`: when that error began; only for a full disk
    - `most_bytes`: of a batch; less if the topic allows less
    """

    __slots__ = ("batch", "most_bytes", "next_sequence", "producer_id", "queue", "refusal", "refused_s")

    def __init__(self) -> None:
        self.queue: deque[_Waiting] = deque()
        self.batch: _Batch | None = None
        self.most_bytes = _MAX_BATCH_BYTES
        self.producer_id = -1
        self.next_sequence = 0
        self.refusal: KafkaError | None = None
        self.refused_s: float | None = None

    def note(self, refusal: KafkaError | None) -> None:
        """The answer to an attempt. Refused for good is what was refused for _REFUSED_S."""
        self.refusal = refusal
        if refusal is None or refusal.code is not ErrorCode.kafka_storage_error:
            self.refused_s = None
        elif self.refused_s is None:
            self.refused_s = anyio.current_time()

    def note_no_answer(self) -> None:
        self.note(None)
        if self.batch is not None and self.batch.attempts:
            self.batch.may_be_written = True

    @property
    def is_refused_for_good(self) -> bool:
        if self.refused_s is None or self.batch is None or self.batch.may_be_written:
            return False
        return anyio.current_time() - self.refused_s >= _REFUSED_S


class Producer:
    """- `compression`: of batches: none, gzip, snappy, lz4 or zstd
    - `linger_s`: how long a record may wait for others; 0: it is sent at once, unless a request is
      under way

    Entering raises BrokerUnreachable if no broker can be reached.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        compression: str = "none",
        linger_s: float = 0.0,
        delivery_timeout_s: float = _DELIVERY_S,
        client_id: str = "kbroker-client",
        security: Security = PLAINTEXT,
    ) -> None:
        try:
            self._codec = Codec[compression.upper()]
        except KeyError:
            known = ", ".join(each.name.lower() for each in Codec)
            raise ValueError(f"compression {compression!r} is not one of {known}") from None
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self._cluster = Cluster(bootstrap, client_id, security)
        self._background = Background()
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._connections: dict[int, Connection] = {}
        self._busy: set[int] = set()
        self._identity = NO_PRODUCER
        self._turn = random.getrandbits(16)  # A program may make a producer for each record.
        self._buffered_bytes = 0
        self._unsent = 0
        self._wake = Signal()
        self._room = anyio.Event()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        if self._background.is_open or self._is_closed:
            raise IllegalState("a producer can be entered once")
        await self._cluster.refresh()
        await self._background.open()
        self._background.start(self._run)
        self._background.start(self._look_for_late)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        finally:
            self._background.cancel()
            await self._background.wait()

    async def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Wait until the records that were given to `send` have been sent, at most `timeout_s`,
        even if it is cancelled. What is left fails with ClientClosed."""
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.move_on_after(timeout_s, shield=True):
            while self._unsent:
                await self._wait_for_room()
        with anyio.CancelScope(shield=True):
            await self._background.stop()
            for connection in self._connections.values():
                await connection.close()
            await self._cluster.close()
        closed = ClientClosed("the producer was closed before the record was sent")
        for partition in self._partitions.values():
            batch = partition.batch.waiting if partition.batch is not None else []
            for waiting in (*batch, *partition.queue):
                self._finish(waiting, None, closed)

    # -- for callers
    # ----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Returns when the broker has the record, as durable as the broker's durability makes it.
        Without a partition the key decides, as in Kafka's Java client, or records go in turns.

        Raises TimedOut after `delivery_timeout_s`, KafkaError, and BrokerUnreachable. A broker
        whose disk is full refuses records with KAFKA_STORAGE_ERROR: if it refuses every attempt of
        5 s, its KafkaError is raised, and the record is not written. If its disk has failed, which
        the error says, the record may be there after a restart. A call that is cancelled may have
        sent the record.
        """
        waiting = await self._queue(topic, value, key, tuple(headers), partition, timestamp_ms)
        return await _outcome(waiting)

    async def send_all(self, topic: str, values: Iterable[bytes]) -> list[Sent]:
        """Records without keys, sent together. Raises as `send`, for the first that failed."""
        queued = [await self._queue(topic, value, None, (), None, None) for value in values]
        return [await _outcome(waiting) for waiting in queued]

    async def _queue(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> _Waiting:
        self._check_open()
        _check_record(value, key, headers, timestamp_ms)
        found = await self._find(topic)
        if partition is None:
            partition = self._place(found, key)
        elif not 0 <= partition < len(found.leaders):
            raise ValueError(
                f"{topic} has {len(found.leaders)} partitions: there is no partition {partition}"
            )
        size = _RECORD_BYTES + len(value or b"") + len(key or b"")
        size += sum(len(name) + len(content or b"") + 8 for name, content in headers)
        if size > _MAX_RECORD_BYTES:
            raise KafkaError(
                ErrorCode.message_too_large, f"topic {topic}: a record of {size} bytes fits in no request"
            )
        while self._buffered_bytes and self._buffered_bytes + size > _MAX_BUFFERED_BYTES:
            await self._wait_for_room()
            self._check_open()
        timestamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        record = BatchRecord(0, timestamp_ms, key, value, headers)
        waiting = _Waiting(record, size, anyio.current_time() + self._delivery_timeout_s)
        self._partitions.setdefault(TopicPartition(topic, partition), _Partition()).queue.append(waiting)
        self._buffered_bytes += size
        self._unsent += 1
        self._wake.set()
        return waiting

    async def _wait_for_room(self) -> None:
        """Until a record has been sent. Several calls may wait, all at one event."""
        if self._room.is_set():
            self._room = anyio.Event()
        await self._room.wait()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the producer has been closed")
        if not self._background.is_open:
            raise IllegalState("use a producer with `async with`")

    async def _find(self, topic: str) -> Topic:
        found = self._cluster.topic(topic)
        if found is None:
            refused = await self._cluster.refresh([topic])
            found = self._cluster.topic(topic)
            if found is None:
                raise KafkaError(refused[topic], lacking(refused[topic], "write", topic) or f"topic {topic}")
        return found

    def _place(self, topic: Topic, key: bytes | None) -> int:
        if key is not None:
            return partition_of(key, len(topic.leaders))
        self._turn += 1
        return self._turn % len(topic.leaders)

    # -- the task
    # ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._linger_s and not self._is_closed:
                await anyio.sleep(self._linger_s)
            self._start_requests()

    async def _look_for_late(self) -> None:
        """A request may wait for an answer for longer than its records."""
        while True:
            await anyio.sleep(_LATE_S)
            if self._unsent:
                for partition in self._partitions.values():
                    self._give_up_late(partition)

    def _start_requests(self) -> None:
        by_node: dict[int, list[TopicPartition]] = {}
        for place, partition in self._partitions.items():
            self._give_up_late(partition)
            if partition.queue or partition.batch is not None:
                topic = self._cluster.topic(place.topic)
                leader = -1 if topic is None else topic.leader(place.partition)
                if leader not in self._busy:
                    by_node.setdefault(leader, []).append(place)
        for node, places in by_node.items():
            self._busy.add(node)
            self._background.start(partial(self._request, node, places))

    def _give_up_late(self, partition: _Partition) -> None:
        now_s = anyio.current_time()
        while partition.queue and partition.queue[0].deadline_s <= now_s:
            late = TimedOut(f"not sent within {self._delivery_timeout_s:g} s{_after(partition.refusal)}")
            self._finish(partition.queue.popleft(), None, late)
        if partition.batch is not None and partition.batch.waiting[0].deadline_s <= now_s:
            within = f"within {self._delivery_timeout_s:g} s"
            text = f"not answered {within}; it may be written"
            if partition.refusal is not None:
                text = f"not confirmed {within}{_after(partition.refusal)}"
                if partition.batch.may_be_written:
                    text += "; an earlier attempt got no answer, and may be written"
            self._fail(partition, TimedOut(text))

    async def _request(self, node: int, places: list[TopicPartition]) -> None:
        try:
            try:
                again = await self._produce(node, places)
            except (NotAuthenticated, KafkaError) as error:
                for place in places:
                    self._fail(self._partitions[place], error)
                again = False
            except BrokerUnreachable as error:
                logger.info("producer: %s", error)
                for place in places:
                    self._partitions[place].note_no_answer()
                again = True
            if again:
                await self._look_again({place.topic for place in places})
        finally:
            self._busy.discard(node)
            self._wake.set()

    async def _look_again(self, topics: set[str]) -> None:
        await Backoff().pause()
        try:
            await self._cluster.refresh(topics)
        except BrokerUnreachable as error:
            logger.debug("producer: %s", error)

    async def _produce(self, node: int, places: list[TopicPartition]) -> bool:
        """One Produce for all these partitions. Returns whether some are to be sent again. Raises
        BrokerUnreachable and KafkaError."""
        if node < 0:
            return True
        connection = self._connections.get(node)
        if connection is None or connection.is_closed:
            connection = self._connections[node] = await self._cluster.connect_to(node)
        await self._identify()  # Right before batches are numbered: another request may lose the id.
        topics: dict[str, list[dict[str, Any]]] = {}
        asked: dict[TopicPartition, _Batch] = {}
        for place in places:
            batch = self._next_batch(self._partitions[place])
            if batch is not None:
                batch.attempts += 1
                asked[place] = batch
                topics.setdefault(place.topic, []).append({"index": place.partition, "records": batch.data})
        if not topics:
            return False
        answer = await connection.call(
            "produce",
            connection.served.version("produce", _NAMED_TOPICS),
            transactional_id=None,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": name, "partition_data": rows} for name, rows in topics.items()],
        )
        return any(
            [
                self._answered(place, asked[place], row)
                for topic in answer.responses
                for row in topic.partition_responses
                if (place := TopicPartition(topic.name, row.index)) in asked
            ]
        )

    async def _identify(self) -> None:
        """Raises BrokerUnreachable and KafkaError."""
        if self._identity.producer_id >= 0:
            return
        answer = await self._cluster.ask(
            "init_producer_id", transactional_id=None, transaction_timeout=60_000, producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip
        if answer.error_code in (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available):
            raise BrokerUnreachable("no producer id at the moment")
        if answer.error_code is not ErrorCode.none:
            is_refused = answer.error_code is ErrorCode.cluster_authorization_failed
            raise KafkaError(answer.error_code, WRITES_NOWHERE if is_refused else "no producer id")
        self._identity = ProducerInfo(answer.producer_id, answer.producer_epoch, 0)

    def _next_batch(self, partition: _Partition) -> _Batch | None:
        if partition.batch is not None or not partition.queue:
            return partition.batch
        identity = self._identity
        if partition.producer_id != identity.producer_id:
            partition.producer_id, partition.next_sequence = identity.producer_id, 0
        waiting: list[_Waiting] = []
        size = 0
        while partition.queue and (not waiting or size + partition.queue[0].bytes <= partition.most_bytes):
            waiting.append(partition.queue.popleft())
            size += waiting[-1].bytes
        numbered = ProducerInfo(identity.producer_id, identity.producer_epoch, partition.next_sequence)
        data = build_batch((each.record for each in waiting), codec=self._codec, producer=numbered)
        partition.next_sequence = (partition.next_sequence + len(waiting)) & 0x7FFFFFFF
        partition.batch = _Batch(waiting, data)
        return partition.batch

    # -- answers
    # ----------------------------------------------------------------------------------------------

    def _answered(self, place: TopicPartition, batch: _Batch, row: Any) -> bool:
        """Returns whether the batch is to be sent again."""
        partition = self._partitions[place]
        if partition.batch is not batch:
            return False  # It was given up while the request was under way.
        code = ErrorCode(row.error_code)
        message = getattr(row, "error_message", None) or f"topic {place.topic}"
        partition.note(KafkaError(code, message) if code in _RETRIABLE else None)
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            base = row.base_offset if code is ErrorCode.none else -1
            partition.batch = None
            for index, waiting in enumerate(batch.waiting):
                self._finish(waiting, Sent(*place, base + index if base >= 0 else -1), None)
            return False
        if partition.is_refused_for_good:
            self._fail(partition, KafkaError(code, message))
            partition.note(None)
            return False
        if code in _RETRIABLE:
            return True
        is_divided = code in _TOO_LARGE and len(batch.waiting) > 1
        if is_divided:
            partition.most_bytes = sum(each.bytes for each in batch.waiting) // 2
        if is_divided or (code in _NEW_ID and batch.attempts == 1):
            # Nothing of it is written. The topic's batches are smaller, the broker has forgotten
            # the producer, or an earlier batch has failed.
            self._identity = NO_PRODUCER
            partition.queue.extendleft(reversed(batch.waiting))
            partition.batch = None
            return True
        self._fail(partition, KafkaError(code, lacking(code, "write", place.topic) or message))
        return False

    def _fail(self, partition: _Partition, error: Exception) -> None:
        """The batch of a partition, or else all that is queued. The sequence has a hole then."""
        if partition.batch is not None:
            failed, partition.batch = partition.batch.waiting, None
            self._identity = NO_PRODUCER
        else:
            failed = list(partition.queue)
            partition.queue.clear()
        for waiting in failed:
            self._finish(waiting, None, error)

    def _finish(self, waiting: _Waiting, sent: Sent | None, error: Exception | None) -> None:
        if waiting.done.is_set():
            return
        waiting.sent, waiting.error = sent, error
        waiting.done.set()
        self._unsent -= 1
        self._buffered_bytes -= waiting.bytes
        self._room.set()


def _after(refusal: KafkaError | None) -> str:
    """What the broker answered to the last attempt."""
    return "" if refusal is None else f"; the broker refused it: {refusal}"


def _check_record(value: object, key: object, headers: Headers, timestamp_ms: int | None) -> None:
    """Raises TypeError and ValueError: a batch is built in the background, where nobody would get
    them."""
    contents = [("value", value), ("key", key)]
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is text, not {type(name).__name__}")
        name.encode(errors="surrogateescape")  # As in a batch.
        contents.append((f"header {name}", content))
    for name, given in contents:
        if given is not None and not isinstance(given, bytes | bytearray | memoryview):
            raise TypeError(f"the {name} of a record is bytes, not {type(given).__name__}")
    if timestamp_ms is not None and not isinstance(timestamp_ms, int):
        raise TypeError(f"the timestamp of a record is whole ms, not {type(timestamp_ms).__name__}")
    if timestamp_ms is not None and not -1 <= timestamp_ms < 1 << 63:
        raise ValueError(f"the timestamp of a record is in ms since 1970, not {timestamp_ms}")


async def _outcome(waiting: _Waiting) -> Sent:
    await waiting.done.wait()
    if waiting.error is not None:
        raise waiting.error
    assert waiting.sent is not None
    return waiting.sent
