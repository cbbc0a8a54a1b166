"""Share groups with a dead letter topic (KIP-1191) for scripts.

    q = queue(s, "a", "b", copies=True)     # prepared: the member "m" has acquired both records
    q.acknowledge((0, 1, [REJECT]))         # a step
    q.outcome()                             # steps: the letters, and the lag

An outcome waits until no record of the source is ARCHIVING in the stored state. Then every letter
that there will be is in the topic. Letters are noted in the order of partition and offset, without
batches: where Kafka's batches end depends on its threads (`batches` for scripts that know).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import LOG_APPEND_TIME, Record, build_batch, iter_headers, iter_records
from kbroker.formats.compression import Codec
from tests.differential.script import RELEASE, Entity, Member, Session, Topic, Value
from tests.differential.transcript import Json

Row: TypeAlias = "str | tuple[str | None, str | None]"
"""A value, or key and value."""

ARCHIVING: Final = 3
ENABLED: Final = {"errors_deadletterqueue_group_enable": "true"}
_NAME: Final = "errors_deadletterqueue_topic_name"
_COPIES: Final = "errors_deadletterqueue_copy_record_enable"
_LONG: Final = 64
"""Keys and values are noted up to this length: longer ones as their beginning and their length."""


def letter_name(s: Session, name: str = "") -> str:
    """With Kafka's default prefix."""
    return f"dlq.{s.name}{name}"


def letter_topic(s: Session, partitions: int = 1, *, name: str | None = None, **configs: str) -> Topic:
    return s.topic(partitions, name=letter_name(s) if name is None else name, **{**ENABLED, **configs})


@dataclass
class Queue:
    """A group, its member, the topic that it reads, and the name of its dead letter topic."""

    s: Session
    topic: Topic
    member: Member
    letters: str
    partitions: int = 1

    @property
    def group(self) -> str:
        assert self.member.group_id is not None
        return self.member.group_id

    # -- preparing

    def put(
        self, *rows: Row, partition: int = 0, codec: Codec = Codec.NONE, per_batch: int | None = None
    ) -> None:
        """Append records with a header and an old timestamp, which no letter has."""
        size = per_batch or len(rows)
        for start in range(0, len(rows), size):
            batch = build_batch(records(rows[start : start + size]), codec=codec)
            self.s.produce_batch(self.topic, batch, partition)

    def take(self, count: int, member: Member | None = None, last: int | None = None, **how: Value) -> None:
        """The member acquires `count` records, or the record at offset `last`. Not part of the
        transcript."""
        member = member or self.member
        mark, taken, ends = len(self.s.steps), 0, set[int]()

        def all_taken() -> bool:
            nonlocal taken
            rows = {self.topic: dict.fromkeys(range(self.partitions), ())} if not member.epoch else None
            answer = member.fetch(rows, **{"wait_ms": 500, **how})
            assert answer is not None
            for topic in answer.responses:
                for row in topic.partitions:
                    taken += sum(each.last_offset - each.first_offset + 1 for each in row.acquired_records)
                    ends.update(each.last_offset for each in row.acquired_records)
            return taken >= count if last is None else last in ends

        self.s.until(all_taken, f"{count} records are acquired")
        del self.s.steps[mark:]

    def configure(self, **configs: str) -> None:
        """Alter the group's settings; None of them is reset."""
        self.s.group(self.group.removeprefix(f"{self.s.name}-"), **configs)

    # -- steps

    def acknowledge(self, *acks: tuple[int, int, Sequence[int]], partition: int = 0, **how: Value) -> None:
        self.member.acknowledge({self.topic: {partition: acks}}, **how)
        self._unnumbered()

    def fetch(self, *acks: tuple[int, int, Sequence[int]], **how: Value) -> None:
        rows = {self.topic: {0: acks}} if acks or not self.member.epoch else None
        self.member.fetch(rows, **how)
        self._unnumbered()

    def _unnumbered(self) -> None:
        """How many fetches `take` needs is up to the broker."""
        self.s.steps[-1]["request"]["share_session_epoch"] = "present"

    def release(self, first: int, last: int) -> None:
        self.acknowledge((first, last, [RELEASE]))

    def outcome(self, lag: int | None = None) -> None:
        """The stored start offset is noted by `state` alone: the write of ARCHIVED has the start
        before it, and which other write follows depends on Kafka's threads."""
        self.settle(lag)
        show(self.s, self.letters)
        self.s.note("lag", self._lag())

    def state(self) -> None:
        """What a leader reads of partition 0."""
        row = {"partition": 0, "leader_epoch": leader_epoch(self.s, self.topic)}
        rows = [{"topic_id": self.topic.topic_id, "partitions": [row]}]
        self.s.call("read_share_group_state", 0, group_id=self.group, topics=rows)
        self.s.call("read_share_group_state_summary", 1, group_id=self.group, topics=rows)

    # -- waiting

    def settle(self, lag: int | None = None) -> None:
        """Wait until no record is ARCHIVING, and until the lag is so where a client's answer does
        not tell that it is: after a lock or a session has ended."""

        def settled() -> bool:
            return not self._archiving() and (lag is None or self._lag() == lag)

        self.s.until(settled, "all letters are written" + ("" if lag is None else f", and the lag is {lag}"))

    def _archiving(self) -> bool:
        epoch = leader_epoch(self.s, self.topic)
        wanted = [{"partition": index, "leader_epoch": epoch} for index in range(self.partitions)]
        answer = self.s.prepare(
            "read_share_group_state", 0, group_id=self.group,
            topics=[{"topic_id": self.topic.topic_id, "partitions": wanted}],
        )  # fmt: skip
        return any(
            row.error_code.value or any(each.delivery_state == ARCHIVING for each in row.state_batches)
            for row in answer.results[0].partitions
        )

    def _lag(self) -> int:
        """Of all partitions."""
        wanted = [{"topic_name": self.topic.name, "partitions": list(range(self.partitions))}]
        answer = self.s.prepare(
            "describe_share_group_offsets", 1, groups=[{"group_id": self.group, "topics": wanted}]
        )
        return sum(row.lag for topic in answer.groups[0].topics for row in topic.partitions)


def queue(
    s: Session, *rows: Row, letters: str | None = None, copies: bool = False, partitions: int = 1,
    source: Topic | None = None, **group: str,
) -> Queue:  # fmt: skip
    """The member holds `rows`, which are one batch in partition 0. `letters`: the name of the dead
    letter topic, which is made unless it is given."""
    if letters is None:
        letters = letter_topic(s).name
    settings = {_NAME: letters, _COPIES: str(copies).lower(), **group}
    topic, member = s.share_of(source or s.topic(partitions), partitions, **settings)
    q = Queue(s, topic, member, letters, partitions)
    if rows:
        q.put(*rows)
        q.take(len(rows))
    return q


def records(rows: Iterable[Row]) -> list[Record]:
    headers = (("own", b"header"),)
    pairs = (row if isinstance(row, tuple) else (None, row) for row in rows)
    return [
        Record(0, wall_clock_ms() - 1_000_000 - at, _data(key), _data(value), headers)
        for at, (key, value) in enumerate(pairs)
    ]


def leader_epoch(s: Session, topic: Topic) -> int:
    answer = s.prepare(
        "metadata", 12, topics=[{"topic_id": None, "name": topic.name}],
        allow_auto_topic_creation=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    (row,) = answer.topics
    return max((each.leader_epoch for each in row.partitions), default=0)


def switch(s: Session, topic: Topic, **configs: str) -> None:
    """Alter settings of a topic; returns when the broker describes them."""
    wanted = {name.replace("_", "."): value for name, value in configs.items()}
    rows = [{"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()]
    resource = {"resource_type": 2, "resource_name": topic.name, "configs": rows}
    s.prepare("incremental_alter_configs", 1, resources=[resource], validate_only=False)

    def seen() -> bool:
        asked = {"resource_type": 2, "resource_name": topic.name, "configuration_keys": list(wanted)}
        answer = s.prepare(
            "describe_configs", 4, resources=[asked], include_synonyms=False, include_documentation=False
        )
        return {row.name: row.value for row in answer.results[0].configs} == wanted

    s.until(seen, f"{topic.name} has its settings")


def remove(s: Session, topic: Topic) -> None:
    """Delete a topic; returns when the broker no longer knows it."""
    s.prepare("delete_topics", 6, topics=[{"name": topic.name, "topic_id": UUID(int=0)}], timeout=30_000)
    s.until(lambda: s.gone(topic), f"{topic.name} is gone")


# -- letters


def show(s: Session, name: str) -> None:
    """A step: the letters in this topic; null if there is no topic."""
    counts = partitions_of(s, name)
    if counts is None:
        s.note("letters", None)
        return
    s.note("letters", [letter for index in range(counts) for letter in _letters(s, name, index)])


def letter_offsets(s: Session, name: str) -> None:
    """A step: the source offsets that have letters, each once."""
    letters = [letter for index in range(partitions_of(s, name) or 0) for letter in _letters(s, name, index)]
    found = {int(dict(letter["headers"])["__dlq.errors.offset"]) for letter in letters}
    s.note("offsets with letters", sorted(found))


def batches(s: Session, name: str) -> None:
    """A step: the batches of partition 0."""
    found = [
        {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "codec": Codec(header.codec_id).name,
            "producer": header.producer_id,
        }
        for _, _, header in _batches(s, name, 0)
    ]
    s.note("batches", found)


def partitions_of(s: Session, name: str) -> int | None:
    answer = s.prepare(
        "metadata", 12, topics=[{"topic_id": None, "name": name}],
        allow_auto_topic_creation=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    (row,) = answer.topics
    return None if row.error_code.value else len(row.partitions)


def _letters(s: Session, name: str, partition: int) -> Iterator[Json]:
    for data, position, header in _batches(s, name, partition):
        append_time = bool(header.attributes & LOG_APPEND_TIME)
        for record in iter_records(data, position):
            yield {
                "partition": partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "is_recent": abs(record.timestamp_ms - wall_clock_ms()) < 600_000,
                "kind": "LogAppendTime" if append_time else "CreateTime",
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value, None)] for name, value in record.headers],
            }


def _batches(s: Session, name: str, partition: int) -> Iterator[tuple[bytes, int, Entity]]:
    """Each batch of a partition's log up to its end: the bytes around it, its place in them, and
    its header."""
    end = _bound(s, name, partition, -1)
    offset = _bound(s, name, partition, -2)
    while offset < end:
        data = _fetched(s, name, partition, offset)
        for position, header in iter_headers(data):
            if header.last_offset >= offset:
                yield data, position, header
                offset = header.last_offset + 1


def _fetched(s: Session, name: str, partition: int, offset: int) -> bytes:
    row = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 22,
    }
    answer = s.prepare(
        "fetch", 12, replica_id=-1, max_wait=1_000, min_bytes=1, max_bytes=1 << 22, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[{"topic": name, "partitions": [row]}],
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    (found,) = answer.responses[0].partitions
    assert not found.error_code.value, f"{s.name}: {name}: {found.error_code.name}"
    return bytes(found.records or b"")


def _bound(s: Session, name: str, partition: int, timestamp: int) -> int:
    """The end offset (-1) or the start offset (-2) of a log."""
    wanted = [{"name": name, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}]

    def found() -> tuple[int] | None:
        answer = s.prepare("list_offsets", 6, replica_id=-1, isolation_level=0, topics=wanted)
        (row,) = answer.topics[0].partitions
        return None if row.error_code.value else (int(row.offset),)

    (offset,) = s.until(found, f"{name} tells its bounds")
    return int(offset)


def _data(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def _text(data: bytes | None, longest: int | None = _LONG) -> str | None:
    if data is None:
        return None
    text = data.decode("latin-1")
    return text if longest is None or len(text) <= longest else f"{text[:4]}… {len(text)} bytes"
