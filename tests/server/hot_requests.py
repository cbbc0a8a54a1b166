"""The requests whose work is counted: those that clients send all the time, each as an endless
series on open connections.

A function of `SERIES` makes a series. Each call of its result sends one request (or one burst) and
waits for the answer. The answers are checked, since a refused request is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.client import admin
from kbroker.client.queues.plan import plan
from kbroker.client.queues.settings import Wish
from kbroker.client.rpc import Connection
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from tests.server.transactional_requests import transactions

PARTITIONS = 6
BURST = 20
FETCH_BYTES = 16 << 10
_MEMBER = "member-1"
_GROUP_RESOURCE = 32
QUEUE_RECORDS = 200
_LOAD_MS = 1000
_ACCEPT, _RELEASE = 1, 2

Series: TypeAlias = Callable[[], None]


def batch(records: int = 1, producer: ProducerInfo | None = None) -> bytes:
    made = [Record(0, 1_700_000_000_000, None, bytes(1000)) for _ in range(records)]
    return build_batch(made) if producer is None else build_batch(made, producer=producer)


class Requests:
    """`connection` and `other`: two clients of one broker, with topics to write and read."""

    def __init__(self, connection: Connection, other: Connection) -> None:
        self.connection = connection
        self.other = other
        self.topic_id = self._create_topic("written", PARTITIONS)
        self.read_id = self._create_topic("read", PARTITIONS)
        self.queue_id = self._create_topic("queue", 1)
        for partition in range(PARTITIONS):
            self._produce(self.read_id, {partition: batch(15)})
        for _ in range(QUEUE_RECORDS // BURST):
            self._send([self._produce_frame(self.queue_id, {0: batch()}) for _ in range(BURST)])

    def _create_topic(self, name: str, partitions: int) -> UUID:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        }
        (row,) = self.connection.call(
            "create_topics", 7, topics=[topic], timeout=1000, validate_only=False
        ).topics
        assert row.error_code == 0, row
        return UUID(bytes=row.topic_id.bytes)

    def _produce_frame(self, topic_id: UUID, batches: Mapping[int, bytes], acks: int = -1) -> bytes:
        rows = [{"index": index, "records": records} for index, records in batches.items()]
        topics = [{"topic_id": topic_id, "partition_data": rows}]
        return self.connection.encode(
            "produce", 13, {"acks": acks, "timeout": 1000, "topic_data": topics, "transactional_id": None}
        )

    def _produce(self, topic_id: UUID, batches: Mapping[int, bytes]) -> None:
        self._send([self._produce_frame(topic_id, batches)])

    def _send(self, frames: list[bytes]) -> None:
        """Send all at once. Only the sizes of the answers are checked: where all rows are alike,
        they reveal a refusal."""
        self.connection.send_raw(b"".join(frames))
        sizes = {len(self.connection.read_frame()) for _ in frames}
        assert len(sizes) == 1, sizes

    # -- producing
    # ----------------------------------------------------------------------------------------------

    def producing(self, acks: int = -1, partitions: int = 1, burst: int = 1) -> Series:
        frame = self._produce_frame(self.topic_id, {index: batch() for index in range(partitions)}, acks)
        self.connection.send_raw(frame)
        for topic in self.connection.read_response("produce", 13).responses:
            assert [row.error_code for row in topic.partition_responses] == [0] * partitions
        return lambda: self._send([frame] * burst)

    def producing_idempotently(self) -> Series:
        answer = self.connection.call(
            "init_producer_id",
            4,
            transactional_id=None,
            transaction_timeout=60000,
            producer_id=-1,
            producer_epoch=-1,
        )
        frames = (
            self._produce_frame(
                self.topic_id,
                {0: batch(producer=ProducerInfo(answer.producer_id, answer.producer_epoch, sequence))},
            )
            for sequence in count()
        )
        return lambda: self._send([next(frames)])

    def transacting(self, version: int) -> Series:
        return transactions(self.connection, "written", version)

    # -- fetching
    # ----------------------------------------------------------------------------------------------

    def fetching(self, partitions: int = 1) -> Series:
        session = self._fetch_session(self.connection, self.read_id, [0] * partitions)
        epochs = count(1)

        def fetch() -> None:
            answer = self._fetch(self.connection, self.read_id, [0] * partitions, session, next(epochs))
            assert len(answer.responses[0].partitions) == partitions

        return fetch

    def fetching_what_is_produced(self) -> Series:
        """A Fetch that waits for the next record, and the Produce that sends it: the cost of
        immediate delivery."""
        frame = self._produce_frame(self.topic_id, {0: batch()})
        self.connection.send_raw(frame)
        offset = (
            self.connection.read_response("produce", 13).responses[0].partition_responses[0].base_offset + 1
        )
        session = self._fetch_session(self.other, self.topic_id, [offset])
        numbers = count()

        def produce_and_fetch() -> None:
            number = next(numbers)
            self._send_fetch(
                self.other, self.topic_id, [offset + number], session, number + 1, wait_ms=60_000
            )
            self._send([frame])
            answer = self.other.read_response("fetch", 18)
            assert answer.responses[0].partitions[0].high_watermark == offset + number + 1

        return produce_and_fetch

    def _fetch_session(self, connection: Connection, topic_id: UUID, offsets: list[int]) -> int:
        answer = self._fetch(connection, topic_id, offsets, 0, 0)
        assert answer.error_code == 0
        return int(answer.session_id)

    def _fetch(
        self, connection: Connection, topic_id: UUID, offsets: list[int], session_id: int, epoch: int
    ) -> Any:
        self._send_fetch(connection, topic_id, offsets, session_id, epoch)
        return connection.read_response("fetch", 18)

    @staticmethod
    def _send_fetch(
        connection: Connection,
        topic_id: UUID,
        offsets: list[int],
        session_id: int,
        epoch: int,
        wait_ms: int = 0,
    ) -> None:
        rows = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
            for index, offset in enumerate(offsets)
        ]
        fields = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "isolation_level": 0,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": [{"topic_id": topic_id, "partitions": rows}],
            "forgotten_topics_data": (),
        }
        connection.send_raw(connection.encode("fetch", 18, fields))

    # -- sharing
    # ----------------------------------------------------------------------------------------------

    def share_fetching(self, idle: int = 0) -> Series:
        """One record at a time: each request acknowledges the previous record. The session also has
        `idle` partitions without records."""
        epochs, offsets = count(), count()
        if idle:
            idle_id = self._create_topic("idle", idle)
            group_id = self._share_group("counted-beside-idle-ones", "queue", "idle")
            self._fetch_idle_ones(group_id, idle_id, idle, epochs)
        else:
            group_id = self._share_group("counted-fetching")

        def fetch() -> None:
            epoch, offset = next(epochs), next(offsets)
            (row,) = _rows(
                self._share_fetch(
                    group_id, epoch, 1, self._share_topics(self.queue_id, offset - 1 if offset else None)
                )
            )
            assert (row.error_code, row.acknowledge_error_code) == (0, 0)
            assert [(each.first_offset, each.last_offset) for each in row.acquired_records] == [
                (offset, offset)
            ]

        return fetch

    def fetching_jobs(self, verdict: int = _ACCEPT) -> Series:
        """The same from a work queue as `kbroker queues create` configures it. A released job waits
        for a minute."""
        name = f"jobs-{verdict}"
        for step in plan(self.connection, Wish(name, settings={"delay": "60000"})).steps:
            step.run(self.connection)
        (topic,) = admin.topics(self.connection, [name])
        topic_id = topic.topic_id
        for _ in range(QUEUE_RECORDS // BURST):
            self._send([self._produce_frame(topic_id, {0: batch()}) for _ in range(BURST)])
        self._join(name, name)
        epochs, offsets = count(), count()

        def fetch() -> None:
            epoch, offset = next(epochs), next(offsets)
            topics = self._share_topics(topic_id, offset - 1 if offset else None, verdict)
            (row,) = _rows(self._share_fetch(name, epoch, 1, topics))
            assert (row.error_code, row.acknowledge_error_code) == (0, 0)
            assert [(each.first_offset, each.last_offset) for each in row.acquired_records] == [
                (offset, offset)
            ]

        return fetch

    def _fetch_idle_ones(self, group_id: str, topic_id: UUID, partitions: int, epochs: Iterator[int]) -> None:
        """Until all of them are loaded and have had their row."""
        rows = [{"partition_index": index, "acknowledgement_batches": []} for index in range(partitions)]
        seen: set[int] = set()
        # A partition that is not loaded by then gets no row before it has records.
        for wait_ms in (_LOAD_MS, *[100] * 50):
            topics = [] if seen else [{"topic_id": topic_id, "partitions": rows}]
            answer = self._share_fetch(group_id, next(epochs), 1, topics, wait_ms=wait_ms)
            seen |= {
                row.partition_index
                for topic in answer.responses
                for row in topic.partitions
                if row.error_code == 0
            }
            if len(seen) == partitions:
                return
        raise AssertionError(
            f"{partitions - len(seen)} of {partitions} share-partitions were not loaded within {_LOAD_MS} ms"
        )

    def share_fetching_what_is_produced(self) -> Series:
        """A ShareFetch that waits, and the Produce that sends it a record."""
        topic_id = self._create_topic("shared", 1)
        group_id = self._share_group("counted-waiting", "shared")
        frame = self._produce_frame(topic_id, {0: batch()})
        epochs = count()

        def produce_and_fetch() -> None:
            epoch = next(epochs)
            topics = self._share_topics(topic_id, epoch - 1 if epoch else None)
            self._send_share_fetch(self.other, group_id, epoch, 1, topics, wait_ms=60_000)
            self._send([frame])
            (row,) = _rows(self.other.read_response("share_fetch", 2))
            assert [(each.first_offset, each.last_offset) for each in row.acquired_records] == [
                (epoch, epoch)
            ]

        return produce_and_fetch

    def share_acknowledging(self) -> Series:
        group_id = self._share_group("counted-acknowledging")
        (row,) = _rows(self._share_fetch(group_id, 0, QUEUE_RECORDS, self._share_topics(self.queue_id, None)))
        offsets = (
            offset
            for each in row.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        )
        epochs = count(1)

        def acknowledge() -> None:
            answer = self.connection.call(
                "share_acknowledge",
                2,
                group_id=group_id,
                member_id=_MEMBER,
                share_session_epoch=next(epochs),
                is_renew_ack=False,
                topics=self._share_topics(self.queue_id, next(offsets)),
            )
            assert (answer.error_code, _rows(answer)[0].error_code) == (0, 0)

        return acknowledge

    def _share_group(self, group_id: str, *topics: str) -> str:
        """A group that reads the topics (without any: the queue) from their start, with one member
        to which they are assigned."""
        configs = [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}]
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group_id, "configs": configs}
        answer = self.connection.call(
            "incremental_alter_configs", 1, resources=[resource], validate_only=False
        )
        assert answer.responses[0].error_code == 0, answer
        return self._join(group_id, *topics or ["queue"])

    def _join(self, group_id: str, *topics: str) -> str:
        answer = self._share_heartbeat(group_id, 0, list(topics))
        while answer.assignment is None or not answer.assignment.topic_partitions:
            answer = self._share_heartbeat(group_id, answer.member_epoch, None)
        return group_id

    def _share_heartbeat(self, group_id: str, epoch: int, topics: list[str] | None) -> Any:
        answer = self.connection.call(
            "share_group_heartbeat",
            1,
            group_id=group_id,
            member_id=_MEMBER,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=topics,
        )
        assert answer.error_code == 0, answer
        return answer

    @staticmethod
    def _share_topics(
        topic_id: UUID, acknowledged: int | None, verdict: int = _ACCEPT
    ) -> list[dict[str, Any]]:
        acks = (
            []
            if acknowledged is None
            else [{"first_offset": acknowledged, "last_offset": acknowledged, "acknowledge_types": [verdict]}]
        )
        return [
            {"topic_id": topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": acks}]}
        ]

    def _share_fetch(
        self, group_id: str, epoch: int, records: int, topics: list[dict[str, Any]], *, wait_ms: int = 5000
    ) -> Any:
        self._send_share_fetch(self.connection, group_id, epoch, records, topics, wait_ms=wait_ms)
        return self.connection.read_response("share_fetch", 2)

    @staticmethod
    def _send_share_fetch(
        connection: Connection,
        group_id: str,
        epoch: int,
        records: int,
        topics: list[dict[str, Any]],
        *,
        wait_ms: int,
    ) -> None:
        fields = {
            "group_id": group_id,
            "member_id": _MEMBER,
            "share_session_epoch": epoch,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "max_records": records,
            "batch_size": records,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "topics": topics,
            "forgotten_topics_data": (),
        }
        connection.send_raw(connection.encode("share_fetch", 2, fields))

    # -- heartbeats
    # ----------------------------------------------------------------------------------------------

    def share_heartbeats(self) -> Series:
        group_id = self._share_group("counted-heartbeats")
        epoch = self._share_heartbeat(group_id, 0, ["queue"]).member_epoch

        def beat() -> None:
            self._share_heartbeat(group_id, epoch, None)

        return beat

    def classic_heartbeats(self) -> Series:
        fields = {
            "group_id": "classic",
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
        }
        protocols = [{"name": "range", "metadata": b""}]
        joining = {
            **fields,
            "session_timeout": 60_000,
            "rebalance_timeout": 60_000,
            "protocols": protocols,
            "reason": None,
        }
        member_id = self.connection.call("join_group", 9, **joining).member_id
        joined = self.connection.call("join_group", 9, **{**joining, "member_id": member_id})
        assert joined.error_code == 0, joined
        known = {
            "group_id": "classic",
            "member_id": member_id,
            "generation_id": joined.generation_id,
            "group_instance_id": None,
        }
        assignments = [{"member_id": member_id, "assignment": b"x"}]
        synced = self.connection.call(
            "sync_group", 5, **known, protocol_type="consumer", protocol_name="range", assignments=assignments
        )
        assert synced.error_code == 0, synced

        def beat() -> None:
            assert self.connection.call("heartbeat", 4, **known).error_code == 0

        return beat


def _rows(answer: Any) -> Any:
    assert answer.error_code == 0, answer
    (topic,) = answer.responses
    return topic.partitions


SERIES: Mapping[str, tuple[Callable[[Requests], Series], int]] = {
    "produce": (Requests.producing, 1),
    "produce, acks=1": (lambda requests: requests.producing(acks=1), 1),
    "produce, idempotent": (Requests.producing_idempotently, 1),
    "produce, 6 partitions": (lambda requests: requests.producing(partitions=PARTITIONS), 1),
    "produce, in a burst": (lambda requests: requests.producing(burst=BURST), BURST),
    "transaction": (lambda requests: requests.transacting(1), 1),
    "transaction, version 2": (lambda requests: requests.transacting(2), 1),
    "fetch": (Requests.fetching, 1),
    "fetch, 6 partitions": (lambda requests: requests.fetching(PARTITIONS), 1),
    "produce to a waiting fetch": (Requests.fetching_what_is_produced, 1),
    "share fetch": (Requests.share_fetching, 1),
    "share fetch beside 60 idle": (lambda requests: requests.share_fetching(idle=60), 1),
    "produce to a waiting share fetch": (Requests.share_fetching_what_is_produced, 1),
    "share acknowledge": (Requests.share_acknowledging, 1),
    "job": (Requests.fetching_jobs, 1),
    "job given back": (lambda requests: requests.fetching_jobs(_RELEASE), 1),
    "heartbeat": (Requests.classic_heartbeats, 1),
    "share heartbeat": (Requests.share_heartbeats, 1),
}
"""By name: the function that makes the series, and how many requests each call of it sends."""
