"""The producer state of a partition across restarts, with its transactions: a snapshot in the state
store, and a replay of the log from there on.

A snapshot is saved after every `SNAPSHOT_BYTES` of appends, every ten minutes while batches are
appended, before the log start moves past the newest one, and at a clean stop. So a replay reads
little. A snapshot covers all offsets below its own. It is valid only while the log still has every
batch from that offset on. Three rules follow:

- A snapshot below the log start is ignored: batches between the two are gone. One exactly at the
  log start is valid.
- A snapshot beyond the log's end covers batches that a power cut took. Both kinds are removed at
  the start, durably, before anything is appended (recovery.py): in the next broker life the log may
  have grown past such an offset with other batches.
- After an unreadable batch, the state from before it is discarded. An unknown producer may continue
  at any sequence, while wrong state gives a client a fatal error or stores a retry twice.

A broker life that has not loaded the state has appended no batch of an idempotent producer, so a
replay reads only the batches of earlier lives.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio

from kbroker.broker.logs.producer_state import ProducerStates
from kbroker.broker.logs.stored_batches import iter_possible
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import crc_is_valid, read_header
from kbroker.formats.compression import CorruptPayload
from kbroker.formats.state import ProducerSnapshot, ProducerSnapshotKey
from kbroker.formats.transactions import (
    AbortedKey,
    AbortedTransaction,
    Marker,
    aborted_prefix,
    is_marker,
)
from kbroker.storage.spi import Change, LogId, StateReader

if TYPE_CHECKING:
    from kbroker.broker.logs.partition import Partition

logger = logging.getLogger(__name__)

SNAPSHOT_BYTES = 64 << 20
_REPLAY_BYTES = 4 << 20
_MOST_ENCODED_ON_LOOP = 500


def read_producers(partition: Partition, store: StateReader) -> ProducerStates:
    """The state as of the high watermark. Only valid until this broker life appends a batch of an
    idempotent producer.

    A replayed batch is dated now: records may have any timestamp, and an old one must not expire
    the producer.

    Call it in a trio thread; it ends between two reads if the caller is cancelled. Raises
    KAFKA_STORAGE_ERROR, and UNKNOWN_TOPIC_OR_PARTITION if the log is gone.
    """
    now_ms = wall_clock_ms()
    try:
        states, offset = _newest_readable(partition, store)
        while offset < partition.written_from:
            trio.from_thread.check_cancelled()
            try:
                replayed_to, is_whole = _replay(partition, states, offset, now_ms)
            except KafkaError:  # It has been logged.
                replayed_to, is_whole = _next_readable(partition, offset), False
            if not is_whole:
                states.forget_producers()
            offset = replayed_to
    except KeyError:
        raise KafkaError(ErrorCode.unknown_topic_or_partition) from None
    except (ValueError, CorruptPayload) as error:
        # Without it a reader might be sent records of an aborted transaction.
        name, number = partition.topic_name, partition.log.partition
        reason = f"the transactions of {name}-{number} cannot be read: {error}"
        raise KafkaError(ErrorCode.kafka_storage_error, reason) from error
    return states


def _newest_readable(partition: Partition, store: StateReader) -> tuple[ProducerStates, int]:
    """The newest readable snapshot and its offset; without one, an empty state at the log start."""
    aborted = [
        each for _, each in _aborted(partition, store) if each.last_offset >= partition.log_start_offset
    ]
    for offset, value in sorted(_usable(partition, store), reverse=True):
        try:
            return ProducerStates(ProducerSnapshot.decode(value).producers, aborted), offset
        except (ValueError, TypeError) as error:
            name, number = partition.topic_name, partition.log.partition
            logger.error(
                "%s-%d: what is stored of its producers as of offset %d is damaged: %s",
                name,
                number,
                offset,
                error,
            )
    return ProducerStates((), aborted), partition.log_start_offset


def _replay(partition: Partition, states: ProducerStates, offset: int, now_ms: int) -> tuple[int, bool]:
    """Replay some batches from `offset` on. Returns where they end, and whether all were intact."""
    end_offset = partition.written_from
    views = partition.read_stored(offset, max_bytes=_REPLAY_BYTES, end_offset=end_offset)
    if offset < partition.log_start_offset:  # Moved during the replay.
        return partition.log_start_offset, False
    if not views:
        return end_offset, True
    began_at = offset
    for view, position, header in iter_possible(views, end_offset):
        if not crc_is_valid(view, position, header):
            return header.last_offset + 1, False
        if is_marker(header) and not header.record_count:
            states.replay_emptied_marker(header, now_ms)
        elif is_marker(header):
            states.replay_marker(header, Marker.from_batch(view, position), now_ms)
        elif header.has_producer:
            written_ms = header.max_timestamp_ms if header.is_log_append_time else now_ms
            states.replay(header, header.base_offset, written_ms)
        offset = header.last_offset + 1
    return (offset, True) if offset > began_at else (_next_readable(partition, began_at), False)


def _next_readable(partition: Partition, offset: int) -> int:
    """The base offset of a readable batch after `offset`, close behind the damage there."""
    step = 1
    while (probe := offset + step) < partition.written_from:
        step *= 2
        try:
            views = partition.read_stored(probe, max_bytes=1, end_offset=partition.written_from)
        except KafkaError:
            continue
        if views and (found := read_header(views[0]).base_offset) > offset:
            return found
    return partition.written_from


async def snapshot_changes(partition: Partition, store: StateReader, oldest_ms: int) -> list[Change]:
    """The changes that save the producer state as of the high watermark, and the transactions that
    were aborted below it, and that remove earlier snapshots. Producers whose last batch is older
    than `oldest_ms` are left out. Empty if the state is not loaded and would need a replay.

    Many producers are encoded in a thread. The caller holds `moving_log_start`, so that no older
    state replaces a newer one.
    """
    states, offset = partition.producers, partition.high_watermark
    aborted: list[Change] = []
    if states is not None:
        states.expire(oldest_ms)
        aborted = _changes_of_aborted(partition, states)
        snapshot = ProducerSnapshot(states.confirmed())
        is_large = len(snapshot.producers) > _MOST_ENCODED_ON_LOOP
        value = await trio.to_thread.run_sync(snapshot.encode) if is_large else snapshot.encode()
    else:
        found_at, value = max(_usable(partition, store), default=(-1, b""))
        if found_at < partition.written_from:
            return []
    key = ProducerSnapshotKey(partition.log.topic_id, partition.log.partition, offset).encode()
    changes: list[Change] = [(found, None) for found, _, _ in _stored(partition, store) if found != key]
    changes.append((key, value))
    return [*changes, *aborted]


def _changes_of_aborted(partition: Partition, states: ProducerStates) -> list[Change]:
    """Store the new aborted transactions, and remove those that the log has lost."""
    log, transactions = partition.log, states.transactions
    gone = transactions.trim(partition.log_start_offset)
    return [(_aborted_key(log, each), each.encode()) for each in transactions.unsaved] + [
        (_aborted_key(log, each), None) for each in gone
    ]


def _aborted_key(log: LogId, aborted: AbortedTransaction) -> bytes:
    return AbortedKey(log.topic_id, log.partition, aborted.last_offset).encode()


def _aborted(partition: Partition, store: StateReader) -> Iterator[tuple[bytes, AbortedTransaction]]:
    """Key and value of each stored aborted transaction, in the order of their markers."""
    for key, value in store.scan(aborted_prefix(*partition.log)):
        yield key, _aborted_of(key).decode_value(value)


def _aborted_of(key: bytes) -> AbortedKey:
    return AbortedKey.parse(key[len(AbortedKey.namespace) :])


def can_replay_from(partition: Partition, store: StateReader, offset: int) -> bool:
    """Whether a crash could be recovered from if the log began at `offset`."""
    return any(known >= offset for known, _ in _usable(partition, store))


def is_long_replay(partition: Partition, store: StateReader) -> bool:
    """Whether a replay would read about 128 MiB or more that no snapshot covers. An append waits
    for such a replay; a save that would only speed up the next start skips it."""
    begin = max((known for known, _ in _usable(partition, store)), default=partition.log_start_offset)
    size_bytes = 0.0
    for each in partition.segments():
        offsets = min(each.end_offset, partition.written_from) - max(each.base_offset, begin)
        if offsets > 0:
            size_bytes += each.size_bytes * offsets / (each.end_offset - each.base_offset)
    return size_bytes > 2 * SNAPSHOT_BYTES


def unusable_snapshots(partition: Partition, store: StateReader) -> list[Change]:
    """The changes that remove invalid snapshots, and aborted transactions whose marker the log does
    not have. For a partition to which this broker life has appended nothing."""
    usable = range(partition.log_start_offset, partition.high_watermark + 1)
    stored = range(partition.log_start_offset, partition.high_watermark)
    gone = [key for key, offset, _ in _stored(partition, store) if offset not in usable]
    gone += [
        key
        for key, _ in store.scan(aborted_prefix(*partition.log))
        if _aborted_of(key).last_offset not in stored
    ]
    return [(key, None) for key in gone]


def _usable(partition: Partition, store: StateReader) -> Iterator[tuple[int, bytes]]:
    """Offset and value of each valid snapshot. A snapshot that needs no replay stays valid however
    far the log start has moved."""
    least = min(partition.log_start_offset, partition.written_from)
    return (
        (offset, value)
        for _, offset, value in _stored(partition, store)
        if least <= offset <= partition.high_watermark
    )


def _stored(partition: Partition, store: StateReader) -> Iterator[tuple[bytes, int, bytes]]:
    """Key, offset and value of each snapshot."""
    prefix = ProducerSnapshotKey(partition.log.topic_id, partition.log.partition, 0).encode()[:-8]
    for key, value in store.scan(prefix):
        yield key, ProducerSnapshotKey.parse(key[len(ProducerSnapshotKey.namespace) :]).offset, value
