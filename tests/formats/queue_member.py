"""A share consumer over one connection, for stored queues: it decides about every record alone.

Writer and test use it, so it imports only what commit 633126e1 and later versions have.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from kbroker.client import admin, group_admin
from kbroker.client.queues.plan import plan
from kbroker.client.queues.settings import Part, Wish
from kbroker.client.rpc import Connection, Entity
from kbroker.client.topic_logs import append, bounds, read_records
from kbroker.formats.batches import Record, build_batch, iter_headers, iter_records
from kbroker.formats.compression import Codec
from kbroker.share.dead_letter import origin_of, reason_of
from kbroker.share.reasons import Reason
from kbroker.testing.broker import RunningBroker
from tests.reject_reasons import with_reasons

ACCEPT, RELEASE, REJECT = 1, 2, 3
PATIENCE_S = 30.0
_ACKNOWLEDGE, _VERSION = "share_acknowledge", 2
_EXACTLY_SO_MANY = 1
"""The acquire mode `record_limit`."""


class Job(NamedTuple):
    """A record that a member holds."""

    value: str
    partition: int
    offset: int
    count: int


NO_REASONS: Mapping[Job, Reason] = {}


class Member:
    """A member of the group of a queue. `partitions`: those that it reads; the queue has no
    others."""

    def __init__(self, broker: RunningBroker, name: str, partitions: int = 1) -> None:
        self.connection = broker.connect()
        self._group = name
        self._id = str(uuid4())
        self._partitions = range(partitions)
        self._topic = topic_named(self.connection, name)
        self._session = 0
        self._beat(0, [name])

    def _beat(self, epoch: int, topics: Sequence[str] | None) -> None:
        answer = self.connection.call(
            "share_group_heartbeat",
            group_id=self._group,
            member_id=self._id,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=topics,
        )
        assert answer.error_code == 0, answer

    def fetch(self, most: int = 500, *, wait_ms: int = 0) -> list[Job]:
        is_first = self._session == 0
        answer = self.connection.call(
            "share_fetch",
            _VERSION,
            group_id=self._group,
            member_id=self._id,
            share_session_epoch=self._session,
            max_wait=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=most,
            batch_size=most,
            share_acquire_mode=_EXACTLY_SO_MANY,
            is_renew_ack=False,
            topics=self._topics({partition: [] for partition in self._partitions} if is_first else {}),
            forgotten_topics_data=(),
        )
        assert answer.error_code == 0, answer
        self._session += 1
        return [job for topic in answer.responses for row in topic.partitions for job in _jobs(row)]

    def wait_for(self, number: int, *, patience_s: float = PATIENCE_S) -> list[Job]:
        """Fetch until there are so many jobs."""
        found: list[Job] = []
        deadline = time.monotonic() + patience_s
        while len(found) < number:
            assert time.monotonic() < deadline, f"{self._group}: only {found} came"
            found += self.fetch(wait_ms=500)
        assert len(found) == number, found
        return found

    def settle(self, kind: int, *jobs: Job, reasons: Mapping[Job, Reason] = NO_REASONS) -> list[int]:
        """Acknowledge, in one request; returns the error code of each partition."""
        rows: dict[int, list[dict[str, object]]] = {}
        for job in jobs:
            row = {"first_offset": job.offset, "last_offset": job.offset, "acknowledge_types": [kind]}
            rows.setdefault(job.partition, []).append(row)
        fields = {
            "group_id": self._group,
            "member_id": self._id,
            "share_session_epoch": self._session,
            "is_renew_ack": False,
            "topics": self._topics(rows),
        }
        frame = self.connection.encode(_ACKNOWLEDGE, _VERSION, fields)
        if reasons:
            topic_id = self._topic.topic_id
            given = [(topic_id, job.partition, job.offset, reason) for job, reason in reasons.items()]
            body = with_reasons(frame[4:], given)
            frame = struct.pack(">i", len(body)) + body
        self.connection.send_raw(frame)
        answer = self.connection.read_response(_ACKNOWLEDGE, _VERSION)
        assert answer.error_code == 0, answer
        self._session += 1
        return [int(row.error_code) for topic in answer.responses for row in topic.partitions]

    def do(self, kind: int, *jobs: Job, reasons: Mapping[Job, Reason] = NO_REASONS) -> None:
        """As settle(), which must succeed."""
        codes = self.settle(kind, *jobs, reasons=reasons)
        assert not any(codes), (jobs, codes)

    def leave(self) -> None:
        """Jobs that it holds come back at once."""
        self._beat(-1, None)
        self.connection.close()

    def _topics(self, rows: Mapping[int, Sequence[object]]) -> list[dict[str, object]]:
        if not rows:
            return []
        return [
            {
                "topic_id": self._topic.topic_id,
                "partitions": [
                    {"partition_index": partition, "acknowledgement_batches": batches}
                    for partition, batches in rows.items()
                ],
            }
        ]


def _jobs(row: Entity) -> Iterator[Job]:
    assert row.error_code == 0, row
    data = bytes(row.records or b"")
    values = {
        record.offset: (record.value or b"").decode()
        for position, header in iter_headers(data)
        if not header.is_control
        for record in iter_records(data, position)
    }
    for run in row.acquired_records:
        for offset in range(run.first_offset, run.last_offset + 1):
            if offset in values:  # Others are records of the persister's own.
                yield Job(values[offset], row.partition_index, offset, run.delivery_count)


class Sent(NamedTuple):
    """A job to send. `due_ms`: since 1970; None: now."""

    value: str
    due_ms: int | None = None
    key: str | None = None
    delay_ms: int | None = None


def send(
    broker: RunningBroker, name: str, jobs: Sequence[Sent], *, partition: int = 0, codec: Codec = Codec.NONE
) -> None:
    """One batch."""
    now_ms = time.time_ns() // 1_000_000
    records = []
    for value, due_ms, key, delay_ms in jobs:
        headers: tuple[tuple[str, bytes | None], ...] = (("h", b"\x00"),)
        if due_ms is not None:
            headers += (("kbroker-deliver-at", str(due_ms).encode()),)
        if delay_ms is not None:
            headers += (("kbroker-delay-ms", str(delay_ms).encode()),)
        records.append(Record(0, now_ms, key.encode() if key else None, value.encode(), headers))
    with broker.connect() as connection:
        append(connection, topic_named(connection, name), partition, build_batch(records, codec=codec))


def create_queue(
    broker: RunningBroker,
    name: str,
    group: Mapping[str, str],
    *,
    partitions: int = 1,
    topic: Mapping[str, str] | None = None,
) -> None:
    """As `kbroker queues create` makes it; its dead letters are kept forever."""
    configs = {Part.GROUP: group, Part.TOPIC: topic or {}, Part.DEAD_LETTERS: {"retention.ms": "-1"}}
    with broker.connect() as connection:
        for step in plan(connection, Wish(name, partitions=partitions, configs=configs)).steps:
            step.run(connection)


def topic_named(connection: Connection, name: str) -> admin.Topic:
    (found,) = (topic for topic in admin.topics(connection) if topic.name == name)
    return found


def start_offsets(broker: RunningBroker, name: str) -> list[int | None]:
    with broker.connect() as connection:
        return [row.start_offset for row in group_admin.describe_share_group_offsets(connection, name)]


def unfinished(broker: RunningBroker, name: str) -> int:
    """The lag of all partitions."""
    with broker.connect() as connection:
        rows = group_admin.describe_share_group_offsets(connection, name)
    assert rows, name
    assert all(row.lag is not None for row in rows), rows
    return sum(row.lag or 0 for row in rows)


def letters(broker: RunningBroker, name: str) -> list[tuple[str, list[Any]]]:
    """Of every dead letter of a queue the value, and [delivery count, cause, reason]; sorted."""
    found: list[tuple[str, list[Any]]] = []
    with broker.connect() as connection:
        topic = topic_named(connection, f"dlq.{name}")
        for partition, (start, end) in bounds(connection, topic).items():
            for record in read_records(connection, topic, partition, start, end):
                origin, reason = origin_of(record.headers), reason_of(record.headers)
                assert origin is not None
                about = [origin.delivery_count, origin.message, None if reason is None else [*reason]]
                found.append(((record.value or b"").decode(), about))
    return sorted(found, key=str)


def until(condition: Callable[[], object], what: str, *, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
