"""A work queue that workers drain needs little disk, even if some jobs stay parked or held: a real
broker, gigabytes of jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.client import admin
from kbroker.client.rpc import Connection
from kbroker.formats.batches import Record, build_batch
from kbroker.testing.broker import RunningBroker, open_test_broker

SEGMENT_BYTES = 512 << 20
TRAFFIC_BYTES = 10 << 30
AHEAD_BYTES = 64 << 20
JOB_BYTES, JOBS_A_BATCH = 65_000, 16
LONG_S = 1000.0
MONTH_MS = 30 * 86_400_000
GROUPS = ("jobs", "audit")
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "kbroker.queue.scheduling": "true",
    "kbroker.share.in.flight.limit": "undecided",
    "kbroker.queue.lock.max.ms": "86400000",
}


class Member:
    """A share consumer that acquires whole batches, and sends heartbeats to the coordinator."""

    def __init__(self, connection: Connection, group: str, member_id: str, topic_id: UUID) -> None:
        self._connection, self._group, self._member_id, self._topic_id = (
            connection,
            group,
            member_id,
            topic_id,
        )
        self._epoch = self._beats_from = 0
        self._member_epoch = 0
        self.acks: list[tuple[int, int]] = []

    def beat(self) -> None:
        if time.monotonic() < self._beats_from:
            return
        answer = self._connection.call(
            "share_group_heartbeat", 1, group_id=self._group, member_id=self._member_id,
            member_epoch=self._member_epoch, rack_id=None,
            subscribed_topic_names=["jobs"] if not self._member_epoch else None,
        )  # fmt: skip
        assert answer.error_code == 0, answer
        self._member_epoch, self._beats_from = answer.member_epoch, int(time.monotonic()) + 1

    def fetch(self, max_records: int = 256, wait_ms: int = 200) -> list[tuple[int, int, int]]:
        """(first, last, delivery count) of the acquired records; the previous ones are accepted."""
        self.beat()
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [1]}
            for first, last in self.acks
        ]
        topic = {
            "topic_id": self._topic_id,
            "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}],
        }
        answer = self._connection.call(
            "share_fetch", 2, group_id=self._group, member_id=self._member_id,
            share_session_epoch=self._epoch, share_acquire_mode=1, topics=[topic], forgotten_topics_data=[],
            is_renew_ack=False, max_wait=wait_ms, min_bytes=1, max_bytes=16 << 20, max_records=max_records,
            batch_size=max_records,
        )  # fmt: skip
        assert answer.error_code == 0, answer
        self._epoch += 1
        rows: list[Any] = [row for each in answer.responses for row in each.partitions]
        assert all(row.error_code == row.acknowledge_error_code == 0 for row in rows), rows
        found = [
            (run.first_offset, run.last_offset, run.delivery_count)
            for row in rows
            for run in row.acquired_records
        ]
        self.acks = [(first, last) for first, last, _ in found]
        return found


class Traffic:
    """One producer, and in each group one member that accepts everything it acquires."""

    def __init__(self, broker: RunningBroker, topic_id: UUID, total_bytes: int) -> None:
        self.broker, self.topic_id = broker, topic_id
        self.jobs = total_bytes // (JOB_BYTES * JOBS_A_BATCH) * JOBS_A_BATCH
        self.done = {group: bytearray(self.jobs + 64) for group in GROUPS}
        self.finished = dict.fromkeys(GROUPS, 0)
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []

    def produce(self) -> None:
        batch = build_batch(
            [Record(0, 1_700_000_000_000 + each, None, bytes(JOB_BYTES)) for each in range(JOBS_A_BATCH)]
        )
        ahead = AHEAD_BYTES // JOB_BYTES
        with self.broker.connect(timeout_s=LONG_S) as connection:
            sent = 0
            while sent < self.jobs and not self.is_over.is_set():
                if sent - min(self.finished.values()) > ahead:
                    time.sleep(0.005)
                    continue
                send(connection, self.topic_id, batch)
                sent += JOBS_A_BATCH

    def consume(self, group: str) -> None:
        done = self.done[group]
        with self.broker.connect(timeout_s=LONG_S) as connection:
            member = Member(connection, group, f"{group}-drain", self.topic_id)
            while not self.is_over.is_set():
                for first, last, count in member.fetch():
                    assert count == 1
                    for offset in range(first, last + 1):
                        assert not done[offset], f"{offset} again"
                        done[offset] = 1
                    self.finished[group] += last + 1 - first

    @contextmanager
    def running(self) -> Iterator[None]:
        def run(work: Any, *arguments: object) -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.errors.append(error)
                self.is_over.set()

        threads = [threading.Thread(target=run, args=(self.produce,))]
        threads += [threading.Thread(target=run, args=(self.consume, group)) for group in GROUPS]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()
        for error in self.errors:
            raise error


def send(connection: Connection, topic_id: UUID, batch: bytes) -> None:
    topics = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch}]}]
    answer = connection.call("produce", 13, acks=-1, timeout=30_000, topic_data=topics, transactional_id=None)
    assert answer.responses[0].partition_responses[0].error_code == 0


def size_of(directory: Path) -> int:
    """The disk space that it uses. Segments are removed meanwhile."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_blocks * 512
    return total


def lag(connection: Connection, group: str) -> int:
    groups = [{"group_id": group, "topics": None}]
    (row,) = connection.call("describe_share_group_offsets", 1, groups=groups).groups
    return sum(each.lag for topic in row.topics for each in topic.partitions)


def drain(broker: RunningBroker, total_bytes: int) -> tuple[int, int]:
    """The largest sizes of the log and of the state meanwhile."""
    config = {"kbroker.queue.retention": "workqueue", "segment.bytes": str(SEGMENT_BYTES)}
    broker.create_topic("jobs", config=config)
    for group in GROUPS:
        broker.set_group_config(group, SETTINGS)
    with broker.connect(timeout_s=LONG_S) as connection:
        topic_id = admin.topics(connection, ["jobs"])[0].topic_id
        holders = [Member(connection, group, f"{group}-stuck", topic_id) for group in GROUPS]
        for holder in holders:
            holder.beat()
        due = ("kbroker-deliver-at", str(round(time.time() * 1000) + MONTH_MS).encode())
        first = [Record(0, 1, b"stuck", b"head"), Record(0, 2, b"later", b"job", (due,))]
        send(connection, topic_id, build_batch(first))
        for holder in holders:
            assert holder.fetch(max_records=1, wait_ms=10_000) == [(0, 0, 1)]
            holder.acks = []
        traffic = Traffic(broker, topic_id, total_bytes)
        most = most_state = 0
        with traffic.running():
            while min(traffic.finished.values()) < traffic.jobs and not traffic.is_over.is_set():
                state = sum(map(size_of, broker.data_dir.glob("state-*")))
                most_state, most = max(most_state, state), max(most, size_of(broker.data_dir) - state)
                for holder in holders:
                    holder.beat()
                time.sleep(0.25)
        for group in GROUPS:
            assert sum(traffic.done[group]) == traffic.jobs
            assert not any(traffic.done[group][:2])
        for holder, group in zip(holders, GROUPS, strict=True):
            assert lag(connection, group) == 2
            holder.acks = [(0, 0)]
            assert holder.fetch(wait_ms=0) == []
            assert lag(connection, group) == 1
    return most, most_state


@pytest.mark.full
def test_a_drained_queue_takes_less_than_three_segments() -> None:
    """One job is parked for a month and one is held by a worker, both from the first batch, in two
    groups. None of the other jobs waits, is redelivered, or is lost."""
    with open_test_broker(storage="segment") as broker:
        began = time.monotonic()
        most, state = drain(broker, TRAFFIC_BYTES)
        rate = TRAFFIC_BYTES / (time.monotonic() - began) / 1e6
        print(
            f"{TRAFFIC_BYTES >> 20} MiB at {rate:.0f} MB/s: log at most {most >> 20} MiB, the rest at most "
            f"{state >> 20} MiB"
        )
        assert most < 3 * SEGMENT_BYTES
