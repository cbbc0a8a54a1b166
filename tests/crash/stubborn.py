"""Idempotent producers that outlive the broker: they keep their ids and sequences over its lives,
and resend batches without a response.

No client library does what they do: repeat a batch that was confirmed long ago, continue with an id
that a broker issued two crashes ago, and predict the allowed responses to each batch. They purge
the logs as well, and check where these begin. All run in one task, so that the history has the
order of requests. Their knowledge is in a `Ledger` (tests.judges.producer_history). Built from a
history, it lets them resume where that ends, even after a power cut.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.client import admin
from kbroker.client.rpc import BrokerUnreachable, Connection, Entity
from kbroker.formats.batches import ProducerInfo, build_batch, iter_headers, iter_records
from kbroker.formats.batches import Record as BatchRecord
from kbroker.testing.broker import RunningBroker
from tests.crash.purge_topics import OLD_MS, RETENTION, TOPICS
from tests.judges.history_events import (
    BatchAnswered,
    BatchSent,
    BoundsSeen,
    Event,
    IdTaken,
    LogRead,
    LogReadDone,
    PurgeAnswered,
    PurgeSent,
    Record,
)
from tests.judges.producer_history import (
    REMEMBERED,
    Batch,
    Ledger,
    Log,
    ProducerLane,
    ProducerPlace,
    Retention,
    value_of,
)

IDS_AT_ONCE = 4
PATIENCE_S = 60.0
_PAGE_BYTES = 1 << 20
_OUT_OF_RANGE = 1


@dataclass(slots=True)
class Stubborn:
    """`write` takes the events: each before its request is sent or after its response arrived. Any
    method that sends requests raises BrokerUnreachable."""

    broker: RunningBroker
    write: Callable[[Event], None]
    chooser: random.Random
    ledger: Ledger = field(default_factory=lambda: Ledger(RETENTION))
    _connection: Connection | None = None

    def note(self, event: Event) -> None:
        self.write(event)
        self.ledger.apply(event)

    # -- a life of the broker
    # -----------------------------------------------------------------------------------------

    def connect(self) -> None:
        self.close()
        self._connection = self.broker.connect()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def work(self, *, steps: int | None = None) -> None:
        """Until the connection ends, or for some steps. Batches without a response are usually
        resent first."""
        try:
            self.connect()
            self.observe()
            if self.chooser.random() < 0.3:  # before the broker has loaded its state of producers
                self.purge()
            self.settle()
            if self.chooser.random() < 0.5:  # the first id of a life is the first of a block
                self.take_id()
            while steps is None or steps > 0:
                self.step()
                steps = None if steps is None else steps - 1
        except BrokerUnreachable:
            self.close()

    def step(self) -> None:
        kinds: Sequence[tuple[Callable[[], None], int]] = (
            (self.send_next, 60),
            (self.repeat_last, 12),
            (self.repeat_older, 10),
            (self.purge, 9),
            (self.observe, 5),
            (self.take_id, 2),
        )
        if not self.ledger.ids:
            self.take_id()
            return
        actions, weights = zip(*kinds, strict=True)
        self.chooser.choices(actions, weights)[0]()

    def settle(self) -> None:
        """Resend the batches without a response."""
        for place, lane in list(self.ledger.lanes.items()):
            if lane.open is not None:
                self._send(place, lane.open)

    def probe(self) -> None:
        """Each producer repeats its last batch and sends the next one."""
        self.settle()
        for place, lane in list(self.ledger.lanes.items()):
            if lane.confirmed:
                self._send(place, lane.confirmed[-1])
                self._send(place, self._next(place, lane))

    # -- batches
    # ----------------------------------------------------------------------------------------------

    def take_id(self) -> None:
        answer = self._call(
            "init_producer_id",
            transactional_id=None,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code == 0, answer
        self.note(IdTaken(time.monotonic_ns(), answer.producer_id))

    def send_next(self) -> None:
        producer_id = self.chooser.choice(self.ledger.ids[-IDS_AT_ONCE:])
        topic = self.chooser.choice(list(TOPICS))
        place = ProducerPlace(producer_id, Log(topic, self.chooser.randrange(TOPICS[topic])))
        if place in self.ledger.lanes or place not in self.ledger.lost:
            self._send(place, self._next(place, self.ledger.lanes.get(place) or ProducerLane()))

    def _next(self, place: ProducerPlace, lane: ProducerLane, count: int | None = None) -> Batch:
        count = count or self.chooser.choice([1, 1, 2, 3, 5, 12])
        is_old = RETENTION[place.log.topic] is Retention.OLD and self.chooser.random() < 0.9
        return Batch(lane.next_sequence, count, is_old)

    def repeat_last(self) -> None:
        self._repeat(1)

    def repeat_older(self) -> None:
        """Only a batch that is certainly in the log: a broker may take any other for a new one,
        which would break the producer's order."""
        self._repeat(self.chooser.randint(2, REMEMBERED + 2))

    def _repeat(self, which: int) -> None:
        lanes = [
            (place, lane)
            for place, lane in self.ledger.lanes.items()
            if len(lane.confirmed) >= which and lane.open is None
        ]
        if not lanes:
            return
        place, lane = self.chooser.choice(lanes)
        batch = lane.confirmed[-which]
        assert batch.base_offset is not None
        if which == 1 or self.ledger.log(*place.log).surely_keeps(batch.base_offset):
            self._send(place, batch)

    def fill(self, offsets: Mapping[Log, int]) -> None:
        """A new producer writes to each log until that ends beyond the given offset."""
        self.take_id()
        for log, offset in offsets.items():
            place = ProducerPlace(self.ledger.ids[-1], log)
            missing = offset + 1 - self.ledger.log(*log).end
            self._send(place, self._next(place, ProducerLane(), count=max(1, missing)))

    def _send(self, place: ProducerPlace, batch: Batch) -> None:
        producer_id, (topic, partition) = place
        timestamp_ms = time.time_ns() // 1_000_000 - (OLD_MS if batch.is_old else 0)
        values = [value_of(place, batch.sequence + number).encode() for number in range(batch.count)]
        data = build_batch(
            (BatchRecord(0, timestamp_ms, None, value) for value in values),
            producer=ProducerInfo(producer_id, 0, batch.sequence),
        )
        self.note(
            BatchSent(
                time.monotonic_ns(), producer_id, topic, partition, batch.sequence, batch.count, batch.is_old
            )
        )
        rows = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
        answer = self._call("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
        row = answer.responses[0].partition_responses[0]
        now_ns = time.monotonic_ns()
        self.note(
            BatchAnswered(
                now_ns, producer_id, topic, partition, batch.sequence, int(row.error_code), row.base_offset
            )
        )

    # -- logs
    # ----------------------------------------------------------------------------------------------

    def purge(self) -> None:
        """Purge up to some offset of a log, often all of it."""
        topic = self.chooser.choice(list(TOPICS))
        self.purge_log(
            Log(topic, self.chooser.randrange(TOPICS[topic])),
            self.chooser.choice([0.0, 0.3, 0.6, 0.9, 1.0, 1.0, None]),
        )

    def purge_log(self, log: Log, part: float | None) -> None:
        """`part` of the log; None: all of it, without naming an offset."""
        state = self.ledger.log(*log)
        end = state.known_end(time.monotonic_ns())
        offset = -1 if part is None else state.start + round((end - state.start) * part)
        self.note(PurgeSent(time.monotonic_ns(), *log, offset))
        rows = [{"name": log.topic, "partitions": [{"partition_index": log.partition, "offset": offset}]}]
        answer = self._call("delete_records", topics=rows, timeout=30_000)
        row = answer.topics[0].partitions[0]
        self.note(PurgeAnswered(time.monotonic_ns(), *log, int(row.error_code), row.low_watermark))

    def purge_everything(self) -> None:
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                self.purge_log(Log(topic, partition), None)

    def purge_newest(self, log: Log) -> None:
        """Nearly all of the log, and thereby nearly all of some records that were just written."""
        place = ProducerPlace(self.ledger.ids[-1], log)
        for _ in range(2):
            self._send(place, self._next(place, self.ledger.lanes.get(place) or ProducerLane(), count=20))
        self.purge_log(log, 0.95)

    def observe(self, *only: Log) -> None:
        """Record the start and end offsets of logs; of all unless some are named."""
        topics = {topic: range(count) for topic, count in TOPICS.items()}
        wanted = {log.topic: [log.partition] for log in only} if only else topics
        asked_ns = time.monotonic_ns()
        starts = admin.find_offsets(self._connected(), wanted, admin.EARLIEST)
        ends = admin.find_offsets(self._connected(), wanted, admin.LATEST)
        for (topic, partition), start in starts.items():
            end = ends[topic, partition]
            assert isinstance(start, int), start
            assert isinstance(end, int), end
            self.note(BoundsSeen(time.monotonic_ns(), asked_ns, topic, partition, start, end))

    def read_all(self) -> None:
        """Read every log completely; no client writes meanwhile."""
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                self._read(Log(topic, partition))

    def _read(self, log: Log) -> None:
        self.observe(log)
        state = self.ledger.log(*log)
        start = offset = state.start
        deadline = time.monotonic() + PATIENCE_S
        while offset < state.end:
            batches = self._fetch(log, offset)
            if not batches:  # retention was faster, or the error will say so
                assert time.monotonic() < deadline, f"nothing comes of {log} at {offset}"
                self.observe(log)
                start = offset = max(start, state.start)
                continue
            for base_offset, values in batches:
                for at, value in enumerate(values, base_offset):
                    if at >= start:
                        self.note(
                            LogRead(time.monotonic_ns(), Record(*log, at), value, is_cut=base_offset < start)
                        )
                offset = base_offset + len(values)
        self.observe(log)
        self.note(LogReadDone(time.monotonic_ns(), *log))

    def _fetch(self, log: Log, offset: int) -> list[tuple[int, list[str]]]:
        """Base offset and values of the batches from there on; none where the log begins later."""
        wanted = {
            "partition": log.partition,
            "fetch_offset": offset,
            "partition_max_bytes": _PAGE_BYTES,
            "current_leader_epoch": -1,
        }
        answer = self._call(
            "fetch", 12, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=_PAGE_BYTES, isolation_level=0,
            session_id=0, session_epoch=-1, rack_id="", forgotten_topics_data=(),
            topics=[{"topic": log.topic, "partitions": [wanted]}],
        )  # fmt: skip
        row = answer.responses[0].partitions[0]
        if row.error_code == _OUT_OF_RANGE:
            return []
        assert row.error_code == 0, row
        data = row.records or b""
        return [
            (
                header.base_offset,
                [(record.value or b"").decode().rstrip() for record in iter_records(data, position)],
            )
            for position, header in iter_headers(data)
        ]

    def _connected(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _call(self, api: str, version: int | None = None, **values: object) -> Entity:
        return self._connected().call(api, version, **values)
