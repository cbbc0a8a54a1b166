"""Writes dead letters into the topic that a group has for them (KIP-1191): whether that is allowed,
into which partition, and with which contents.

Topics and settings may change, so each portion checks them again. If the settings allow no dead
letter, the result is the reason, and the records are archived without one. An error of the
disk is raised, and the caller tries again.

It must not know which records are waiting, nor what is stored about them (dead_letters.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from kbroker.broker.commits.waiting import Decision
from kbroker.broker.logs.auto_creation import AutoCreation
from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.broker.logs.topics import Topic, Topics
from kbroker.broker.logs.validation import UNLIMITED_MS, BatchRules
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import BatchHeader, Record, encoded_size, read_header, stored_records
from kbroker.formats.compression import CorruptPayload, TooLarge
from kbroker.settings.altering import BrokerConfig
from kbroker.share.dead_letter import Contents, Origin, encode, letter_of, offsets_found, pack
from kbroker.share.reasons import Reason

READ_BYTES: Final = 1 << 20
"""How much of a log one read returns, for copies of records and in search of dead letters; a larger
batch is returned alone."""
_COPIED_BYTES: Final = 8 << 20
"""Limit for the records of a portion, which the last one may exceed: batches that are small on disk
may hold large records."""
_EVERYTHING = (1 << 63) - 1
LEAST_BATCH_BYTES: Final = 128 << 10
"""Dead letters are packed into batches of this size at least, however little room there is."""
_threads: Final = trio.CapacityLimiter(2)
NEEDS_KEYS: Final = "topic {} is compacted, and their dead letters have no key"


class Portion(NamedTuple):
    """The requested offsets up to `last_offset`.

    - `records`: those that could be read
    - `unread`: why others could not, although their topic has them and no damage is known
    """

    last_offset: int
    records: Mapping[int, Record]
    unread: Mapping[int, str] = {}


class EncodedBatch(NamedTuple):
    """Dead letters as they are stored, and the offsets of their records."""

    data: bytearray
    offsets: tuple[int, ...]


class Written(NamedTuple):
    """`offsets` have their dead letter, which is durable. `error`: why others have none yet."""

    offsets: set[int]
    batches: int
    failed_batches: int = 0
    error: Exception | None = None


class DeadLetterWriter:
    def __init__(
        self, topics: Topics, config: BrokerConfig, disk_floor: DiskFloor, auto_creation: AutoCreation
    ) -> None:
        self._topics = topics
        self._config = config
        self._auto_creation = auto_creation
        self.disk_floor = disk_floor

    async def find_partition(self, name: str, source: Partition) -> Partition | str:
        """The partition for dead letters of `source`, or in words for an operator why there can be
        none. Creates the topic if that is allowed. Raises NoSpace and StoreFailed."""
        found = self._refusal(name, source) or self._topics.by_name(name) or await self._create(name)
        return (
            found
            if isinstance(found, str)
            else found.partitions[source.log.partition % len(found.partitions)]
        )

    def _refusal(self, name: str, source: Partition) -> str:
        """Kafka's checks in Kafka's order, but for the prefix of existing topics (DLQ-33). The last
        one is kbroker's own."""
        topic = self._topics.by_name(name)
        prefix = self._config["errors.deadletterqueue.topic.name.prefix"]
        if not name:
            return "errors.deadletterqueue.topic.name is empty"
        if name.startswith("__"):
            return f"topic {name} is internal"
        if topic is not None and not topic.config["errors.deadletterqueue.group.enable"]:
            return f"topic {name} does not have errors.deadletterqueue.group.enable=true"
        if topic is None and not self._config["errors.deadletterqueue.auto.create.topics.enable"]:
            return f"there is no topic {name}, and errors.deadletterqueue.auto.create.topics.enable is false"
        if topic is None and not name.startswith(prefix):
            return f"there is no topic {name}, and only topics whose names begin with {prefix} are made"
        if name == source.topic_name:
            return f"topic {name} is the queue itself: its records are there already"
        return ""

    async def _create(self, name: str) -> Topic | str:
        configs = {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}
        try:
            return await self._auto_creation.create(name, configs, "a share group's dead letter queue")
        except KafkaError as error:
            if error.code is ErrorCode.unknown_topic_or_partition:
                raise NotYet(error.message) from error
            # Another task is creating it: it is there at the next try.
            if error.code is ErrorCode.topic_already_exists:
                raise NotYet(f"topic {name} is being made") from error
            return f"topic {name} cannot be made: {error.message}"

    async def append(self, target: Partition, batches: Sequence[EncodedBatch], *, last_half: bool) -> Written:
        """Append the result of encode_letters(), as far as the disk has room for it
        (DiskFloor.letter_room), even beyond max.message.bytes and segment.bytes of the topic.
        Returns when it is durable or cannot be written."""
        room, size_bytes, admitted = self.disk_floor.letter_room(last_half=last_half), 0, 0
        while admitted < len(batches) and size_bytes + len(batches[admitted].data) <= room:
            size_bytes += len(batches[admitted].data)
            admitted += 1
        with self.disk_floor.promised(size_bytes):
            written = await self._append(target, batches[:admitted])
        if admitted < len(batches) and written.error is None:
            return written._replace(error=_no_room(batches, batches[admitted]))
        return written

    async def _append(self, target: Partition, batches: Sequence[EncodedBatch]) -> Written:
        now_ms, written = wall_clock_ms(), Written(set(), len(batches))
        under_way: list[tuple[tuple[int, ...], Decision]] = []
        try:
            for data, offsets in batches:
                decision = Decision()
                target.append(memoryview(data), now_ms, decision.decide, header=read_header(data))
                under_way.append((offsets, decision))
                if self.disk_floor.has_holes_only:
                    # The store joins batches that wait together, and a hole may fit one only.
                    with suppress(NoSpace, StoreFailed):
                        await decision.wait()
        except KafkaError as error:  # The topic is gone, or the store has failed.
            written = written._replace(error=error, failed_batches=len(batches) - len(under_way))
        for offsets, decision in under_way:
            try:
                await decision.wait()
            except (NoSpace, StoreFailed) as error:
                written = written._replace(error=error, failed_batches=written.failed_batches + 1)
            else:
                written.offsets.update(offsets)
        return written


def without_key(
    rules: BatchRules, origins: Sequence[Origin], records: Mapping[int, Record], contents: Contents
) -> set[int]:
    """The offsets whose dead letters a compacted topic refuses, as their letters have no key."""
    if not rules.needs_keys:
        return set()
    keyed = {offset for offset, record in records.items() if record.key is not None}
    return {each.offset for each in origins if not contents.key_and_value or each.offset not in keyed}


async def encode_letters(
    rules: BatchRules,
    origins: Sequence[Origin],
    records: Mapping[int, Record],
    contents: Contents,
    reasons: Mapping[int, Reason],
    batch_bytes: int,
) -> list[EncodedBatch]:
    """One dead letter for each record, in batches as large as the topic and `batch_bytes` allow, in
    the codec that the topic asks for. A larger letter gets a batch of its own, compressed unless
    the topic forbids it. Runs in a thread if there are records to copy, or batches to compress."""
    now_ms = wall_clock_ms()
    max_bytes = min(rules.max_message_bytes, rules.segment_bytes)

    def letter_at(origin: Origin) -> Record:
        record, reason = records.get(origin.offset), reasons.get(origin.offset)
        if record is None or not contents.timestamp:
            return letter_of(origin, record, contents, now_ms, reason)
        return letter_of(origin, record, contents, _allowed(record.timestamp_ms, rules, now_ms), reason)

    def work() -> list[EncodedBatch]:
        return [
            EncodedBatch(
                encode(batch, max_bytes, rules.codec, rules.codec_level),
                tuple(letter.offset for letter in batch),
            )
            for batch in pack(map(letter_at, origins), min(max_bytes, batch_bytes))
        ]

    takes_long = bool(records or reasons or rules.codec)
    return await trio.to_thread.run_sync(work, limiter=_threads) if takes_long else work()


class CannotCopy(Exception):
    """The remaining records cannot be copied: they wait for an operator, or for the disk. `stuck`:
    why, by offset."""

    def __init__(self, group_id: str, partition: str, stuck: Mapping[int, str]) -> None:
        offset, reason = next(iter(stuck.items()))
        super().__init__(
            f"{len(stuck)} records cannot be copied and are kept, the first at offset {offset} of "
            f"{partition} ({reason}); without errors.deadletterqueue.copy.record.enable of group "
            f"{group_id} they get dead letters that have no copy"
        )


class NoRoom(Exception):
    """The disk has no room for these dead letters at present.

    - `needs_bytes`: what the next try needs at least
    - `letter_bytes`: the size of one dead letter, on average"""

    def __init__(self, needs_bytes: int, letter_bytes: float) -> None:
        self.needs_bytes = needs_bytes
        self.letter_bytes = letter_bytes
        super().__init__("the disk has no room for them (kbroker.disk.min.free.bytes)")


def _no_room(batches: Sequence[EncodedBatch], first: EncodedBatch) -> NoRoom:
    letters = sum(len(batch.offsets) for batch in batches)
    needs_bytes = len(first.data) if len(first.offsets) == 1 else min(len(first.data), LEAST_BATCH_BYTES)
    return NoRoom(needs_bytes, sum(len(batch.data) for batch in batches) / letters)


class NotYet(Exception):
    """A temporary condition: the caller retries."""


def _allowed(timestamp_ms: int, rules: BatchRules, now_ms: int) -> int:
    """The record's own timestamp if the topic accepts it, else the present time. Producers may send
    timestamps before 1970 and beyond 64 bits, and the difference between two of them may not fit
    into a batch."""
    is_time = 0 <= timestamp_ms <= UNLIMITED_MS
    too_old = (
        rules.timestamp_before_max_ms != UNLIMITED_MS
        and timestamp_ms < now_ms - rules.timestamp_before_max_ms
    )
    too_new = (
        rules.timestamp_after_max_ms != UNLIMITED_MS and timestamp_ms > now_ms + rules.timestamp_after_max_ms
    )
    return timestamp_ms if is_time and not too_old and not too_new else now_ms


async def read_records(source: Partition, offsets: Sequence[int]) -> Portion:
    """The records at the first of these offsets, as many as one read returns, in order and without
    lost and damaged ones."""
    first, last = offsets[0], offsets[-1]
    if first < source.log_start_offset:
        return Portion(min(last, source.log_start_offset - 1), {})
    wanted = frozenset(offsets)
    try:
        portion = await trio.to_thread.run_sync(_pick, source, first, last + 1, wanted, limiter=_threads)
    except (KafkaError, StoreFailed) as error:  # Later offsets may be readable.
        is_damaged = isinstance(error, KafkaError) and error.code is ErrorCode.corrupt_message
        return Portion(first, {}, {} if is_damaged else {first: str(error)})
    return portion._replace(last_offset=min(portion.last_offset, last))


async def search(target: Partition, offset: int, source: tuple[str, str, int]) -> set[int]:
    """The offsets of the share-partition `source` (group, topic, partition) whose dead letter is in
    `target` from `offset` on. Damaged batches are ignored. Raises StoreFailed."""
    found: set[int] = set()
    end_offset = target.high_watermark
    offset = max(offset, target.log_start_offset)
    while offset < end_offset and not target.deleted:
        last_offset = offset
        with suppress(KafkaError):
            last_offset, some = await trio.to_thread.run_sync(
                _find, target, offset, end_offset, source, limiter=_threads
            )
            found |= some
        if last_offset < offset:
            break
        offset = last_offset + 1
    return found


# -- in a thread, because the log may be cold, and records are decompressed


def _read(
    partition: Partition, offset: int, end_offset: int
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """Raises KafkaError, CORRUPT_MESSAGE for bytes that are not a batch."""
    views = partition.read_now(offset, max_bytes=READ_BYTES, end_offset=end_offset)
    return iter_possible(views, end_offset)


def _pick(source: Partition, first: int, end_offset: int, wanted: Set[int]) -> Portion:
    records: dict[int, Record] = {}
    unread: dict[int, str] = {}
    size, last_offset = 0, _EVERYTHING
    for view, position, header in _read(source, first, end_offset):
        try:
            for record in stored_records(view, position):
                if record.offset in wanted:
                    records[record.offset] = record
                    size += encoded_size(record, timestamp_delta=0, offset_delta=0)
        except TooLarge as error:
            there = (offset for offset in wanted if header.base_offset <= offset <= header.last_offset)
            unread.update(dict.fromkeys(there, str(error)))
        except CorruptPayload:  # Records before the damage can be copied.
            pass
        last_offset = header.last_offset
        if size >= _COPIED_BYTES:
            break
    return Portion(last_offset, records, unread)


def _find(
    target: Partition, first: int, end_offset: int, source: tuple[str, str, int]
) -> tuple[int, set[int]]:
    """The last offset that was searched, -1 if there was none, and what was found."""
    last_offset, offsets = -1, set[int]()
    for view, position, header in _read(target, first, end_offset):
        last_offset = header.last_offset
        with suppress(CorruptPayload):  # Only foreign batches can fail: the broker's own can be decompressed.
            offsets |= offsets_found(stored_records(view, position), *source)
    return last_offset, offsets
