"""Compacted logs for scripts: the script decides where segments end and when a pass runs.

    log = compacted(s)
    log.put("a", "b", ("a", None))      # a batch; a tuple is a key with its value
    log.cut()                           # the next batch begins a segment
    log.clean()                         # a pass over all of it, which has ended
    log.show()                          # a step: every batch with its header, as a fetch returns it

A segment ends when it is full: `cut` adds a record of the key "fill" that leaves no room.

No log is due with the dirty ratio 1, so no pass runs by itself. `clean` lowers the ratio until the
pass has ended. Kafka cleans a log in one piece, kbroker segment by segment in their order: the last
segment of the pass has a record that goes, and a fetch shows when it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kbroker.formats.batches import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    TRANSACTIONAL,
    BatchHeader,
    ProducerInfo,
    Record,
    build_batch,
    iter_headers,
    iter_records,
)
from kbroker.formats.compacted_batches import DELETE_HORIZON
from kbroker.formats.compression import Codec
from tests.differential.script import Entity, Session, Topic
from tests.differential.transactions import Producer
from tests.differential.transcript import Json

Row: TypeAlias = "str | tuple[str | None, str | None]"
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

START_MS: Final = 4_102_444_800_000
"""The time of a log's first record: the year 2100."""
_SEGMENT_BYTES: Final = 8_192
_SMALLEST_BATCH: Final = 69
"""Bytes of a batch with one record that has a key of one byte, and no value."""
_FILLER: Final = "fill"
_DAY_MS: Final = 86_400_000
_MARKER_VALUE: Final = 2
"""Bytes before the coordinator's epoch."""
_UNKEYED: Final = "invalid_record"
NEVER, ALWAYS = "1", "0"
"""Dirty ratios: a log has to be above."""
CONFIGS: Final[Mapping[str, str]] = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": NEVER,
    "internal_segment_bytes": str(_SEGMENT_BYTES),
    "segment_ms": str((1 << 63) - 1),
    "retention_ms": "-1",
    "message_timestamp_after_max_ms": str((1 << 63) - 1),
}
_FLAGS: Final = {
    LOG_APPEND_TIME: "LogAppendTime",
    TRANSACTIONAL: "transactional",
    CONTROL: "control",
    DELETE_HORIZON: "delete horizon",
}


@dataclass
class CompactedLog:
    """Partition 0 of a topic. `stamp_ms`: the time of the next record."""

    s: Session
    topic: Topic
    delete_retention_ms: int
    stamp_ms: int = START_MS
    written: int = 0
    segment_start: int = 0
    """Base offset of the active segment."""
    start: int = 0
    """The log start offset, which only DeleteRecords moves."""

    # -- writing

    def batch(
        self, *rows: Row, codec: Codec = Codec.NONE, producer: ProducerInfo = NO_PRODUCER, bits: int = 0,
        headers: Headers = (), times: Sequence[int] = (),
    ) -> bytes:  # fmt: skip
        """The next batch. A value is the key and a number that rises with each record. Times are
        one millisecond apart, or `times` after START_MS."""
        records = []
        for place, row in enumerate(rows):
            self.written += 1
            key, value = row if isinstance(row, tuple) else (row, f"{row}{self.written}")
            stamp_ms = START_MS + times[place] if times else self.stamp_ms
            self.stamp_ms += 1
            records.append(Record(0, stamp_ms, _data(key), _data(value), tuple(headers)))
        return build_batch(records, codec=codec, producer=producer, attributes=bits)

    def put(
        self, *rows: Row, codec: Codec = Codec.NONE, producer: ProducerInfo = NO_PRODUCER,
        headers: Headers = (), times: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Append a batch; returns its base offset. Not part of the transcript."""
        return self.append(self.batch(*rows, codec=codec, producer=producer, headers=headers, times=times))

    def append(self, batch: bytes) -> int:
        def appended() -> tuple[int] | None:
            data = {"name": self.topic.name, "partition_data": [{"index": 0, "records": batch}]}
            answer = self.s.prepare(
                "produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=[data]
            )
            (row,) = answer.responses[0].partition_responses
            code = row.error_code
            if code.value and code.name != _UNKEYED:
                raise AssertionError(f"{self.s.name}: cannot produce to {self.topic.name}: {code.name}")
            return None if code.value else (int(row.base_offset),)

        # Kafka describes a new policy slightly before its logs have it.
        (offset,) = self.s.until(appended, f"{self.topic.name} takes a batch")
        return int(offset)

    def send(self, t: Producer, *rows: Row, codec: Codec = Codec.NONE) -> int:
        """Append a batch of the producer's transaction."""
        if t.generation == 1:
            t.added({self.topic: (0,)})
        info = ProducerInfo(*t.who, t.sequences.get((self.topic.name, 0), 0))
        batch = self.batch(*rows, codec=codec, producer=info, bits=TRANSACTIONAL)
        return t.send_batch(self.topic, batch, len(rows))

    def cut(self) -> None:
        """The next batch begins a segment."""
        used = sum(
            header.size_bytes
            for row in self.rows(start=self.segment_start)
            for _, header in iter_headers(row.records)
        )
        room = _SEGMENT_BYTES - used
        if room >= _SMALLEST_BATCH:
            self.append(_filler(room, self.stamp_ms))
        self.segment_start = self.end()

    # -- passes

    def clean(self) -> None:
        """A pass over all that was written so far. Afterwards the log also has two records of the
        key "~", the last one in the active segment."""
        self.cut()
        gone = self.put("~")
        self.put("~")
        self.close()
        self.run_until_gone(gone)

    def close(self) -> None:
        """End the segment, so that a pass may take it."""
        self.cut()
        self.put("~")

    def run_until_gone(self, offset: int) -> None:
        """Let passes run until there is no record at `offset`."""
        self.alter(min_cleanable_dirty_ratio=ALWAYS)
        self.s.until(lambda: not self.has(offset), f"the record at offset {offset} is gone")
        self.alter(min_cleanable_dirty_ratio=NEVER)

    def alter(self, **configs: str) -> None:
        """Change settings of the topic, and wait until the broker has them."""
        wanted = {name.replace("_", "."): value for name, value in configs.items()}
        rows = [{"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()]
        resource = {"resource_type": 2, "resource_name": self.topic.name, "configs": rows}
        (row,) = self.s.prepare(
            "incremental_alter_configs", 1, resources=[resource], validate_only=False
        ).responses
        if row.error_code.value:
            raise AssertionError(f"{self.s.name}: cannot alter {configs}: {row.error_message}")
        described = {
            "resource_type": 2,
            "resource_name": self.topic.name,
            "configuration_keys": list(wanted),
        }

        def settled() -> bool:
            answer = self.s.prepare(
                "describe_configs", 4, resources=[described], include_synonyms=False,
                include_documentation=False,
            )  # fmt: skip
            found = {row.name: row.value for row in answer.results[0].configs}
            return all(_equal(found[name], value) for name, value in wanted.items())

        self.s.until(settled, f"{self.topic.name} has {configs}", every_s=0.02)

    # -- reading

    def end(self) -> int:
        """The high watermark."""
        rows = [{"name": self.topic.name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        answer = self.s.prepare("list_offsets", 6, replica_id=-1, isolation_level=0, topics=rows)
        return int(answer.topics[0].partitions[0].offset)

    def has(self, offset: int) -> bool:
        """Whether there is a record at `offset`."""
        data = self.fetched(offset, most_bytes=1).records or b""
        return any(
            record.offset == offset for at, _ in iter_headers(data) for record in iter_records(data, at)
        )

    def fetched(self, offset: int, level: int = 0, most_bytes: int = 1 << 20) -> Entity:
        """The row of one Fetch."""
        row = {
            "partition": 0, "current_leader_epoch": -1, "fetch_offset": offset,
            "partition_max_bytes": most_bytes,
        }  # fmt: skip
        answer = self.s.prepare(
            "fetch", 12, max_wait=0, min_bytes=1, max_bytes=most_bytes, isolation_level=level,
            session_id=0, session_epoch=-1, topics=[{"topic": self.topic.name, "partitions": [row]}],
            forgotten_topics_data=(), rack_id="",
        )  # fmt: skip
        (found,) = answer.responses[0].partitions
        if found.error_code.value:
            raise AssertionError(f"{self.s.name}: cannot fetch at {offset}: {found.error_code.name}")
        return found

    def rows(self, level: int = 0, start: int = 0) -> Iterator[Entity]:
        """The rows of all fetches from `start` on, as a consumer reads: from the end of one batch
        to the next. Kafka returns one segment at a time."""
        position = start
        while (row := self.fetched(position, level)).records:
            yield row
            position = [header for _, header in iter_headers(row.records)][-1].last_offset + 1

    def batches(self) -> list[Json]:
        """Every batch with its header and its records."""
        return self.batches_from(self.start)

    def batches_from(self, offset: int) -> list[Json]:
        return [
            self._described(row.records, at, header)
            for row in self.rows(start=offset)
            for at, header in iter_headers(row.records)
        ]

    def offsets(self) -> list[int]:
        """Of all records."""
        return [record[0] for row in self.batches() for record in row["records"]]

    def committed(self) -> None:
        """A step: what a consumer with read_committed takes, and the aborted transactions that the
        broker named to it."""
        named: set[tuple[int, int]] = set()
        taken: list[Json] = []
        for row in self.rows(level=1, start=self.start):
            aborted = [(each.first_offset, each.producer_id) for each in row.aborted_transactions or ()]
            named.update(aborted)
            taken += _without_aborted(row.records, sorted(aborted))
        rows = [{"first_offset": first, "producer_id": producer} for first, producer in sorted(named)]
        self.s.note("committed", {"records": taken, "aborted": rows})

    def show(self, what: str = "layout") -> None:
        """A step: every batch with its header and its records."""
        self.s.note(what, self.batches())

    def _described(self, data: bytes, position: int, header: BatchHeader) -> Json:
        base_ms = header.base_timestamp_ms
        return {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.record_count,
            "codec": Codec(header.attributes & CODEC_MASK).name,
            "flags": [name for bit, name in _FLAGS.items() if header.attributes & bit],
            "base_time": self._horizon(base_ms) if header.attributes & DELETE_HORIZON else moment(base_ms),
            "max_time": moment(header.max_timestamp_ms),
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "records": [_told(header, record) for record in iter_records(data, position)],
        }

    def _horizon(self, ms: int) -> Json:
        return "pass + delete.retention.ms" if _is_recent(ms - self.delete_retention_ms) else moment(ms)


def compacted(s: Session, *, delete_retention_ms: int = _DAY_MS, **configs: str) -> CompactedLog:
    """A log without records. Names of configs with _ for the dots."""
    retention = {"delete_retention_ms": str(delete_retention_ms)}
    return CompactedLog(s, s.topic(**{**CONFIGS, **retention, **configs}), delete_retention_ms)


def moment(ms: int) -> Json:
    """A time of a script in milliseconds since START_MS; others as `now`, or as they are."""
    if _is_recent(ms):
        return "now"
    return ms - START_MS if abs(ms - START_MS) < 1000 * _DAY_MS else ms


def _is_recent(ms: int) -> bool:
    return abs(ms - time.time() * 1000) < 120_000


def _filler(room: int, stamp_ms: int) -> bytes:
    """A batch that leaves less room than the smallest one needs."""
    for size in range(max(room - _SMALLEST_BATCH, 0), -1, -1):
        batch = build_batch([Record(0, stamp_ms, _FILLER.encode(), b"x" * size, ())])
        if len(batch) <= room:
            return batch
    return build_batch([Record(0, stamp_ms, b"f", None, ())])


def _told(header: BatchHeader, record: Record) -> list[Json]:
    value = _text(record.value)
    if record.key == _FILLER.encode() and value:
        value = "filler"
    if header.is_control and value is not None:
        value = value[:_MARKER_VALUE]
    return [
        record.offset, moment(record.timestamp_ms), _text(record.key), value,
        *([name, _text(held)] for name, held in record.headers),
    ]  # fmt: skip


def _without_aborted(data: bytes, aborted: Sequence[tuple[int, int]]) -> list[Json]:
    """The records as clients take them: none of a producer from the first offset of its aborted
    transaction up to the marker."""
    taken: list[Json] = []
    to_come, producers = list(aborted), set[int]()
    for at, header in iter_headers(data):
        while to_come and to_come[0][0] <= header.last_offset:
            producers.add(to_come.pop(0)[1])
        if header.is_control:
            producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in producers):
            taken += [[record.offset, _text(record.value)] for record in iter_records(data, at)]
    return taken


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _data(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _equal(found: str | None, wanted: str) -> bool:
    """Brokers may write a number differently."""
    try:
        return float(found or "") == float(wanted)
    except ValueError:
        return found == wanted
