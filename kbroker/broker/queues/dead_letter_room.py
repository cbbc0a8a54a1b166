"""Which share-partition may write dead letters into the room that a nearly full disk has left
(disk_floor.py).

    budget    first half    letters of all share-partitions, in the order of their tasks
              last half     letters of one share-partition at a time, for its log's first segment

A log shrinks by whole segments, so letters free something when a whole segment has its letters.
Without the last half, fifty share-partitions would write a letter each, and all would stand still
for good. The half fits the letters of two segments. A share-partition gets it when most records of
its first segment are finished, or wait for their letters; retention keeps the others beside the log
(kept_records.py). It has the turn until that segment is removed, however slow the disk is: letters
of half a segment, of many share-partitions, would take the room and free nothing. If the segment
stays (another group holds it), the turn ends when retention has looked twice.

This module must not know what letters contain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.dead_letter_writer import LEAST_BATCH_BYTES, NoRoom
from kbroker.broker.queues.held_logs import has_removable
from kbroker.broker.queues.loaded import Key, LoadedSharePartition
from kbroker.settings.queue import QUEUE_RETENTION
from kbroker.share import archiving

TURN_S: Final = 2.0
"""How long the last half stays at least with a share-partition that writes nothing more."""
_CHECKS: Final = 2
"""The turn also waits for so many checks by retention: one may have begun before the last write."""
_LONGEST_TURN_S: Final = 30.0
"""But not longer: retention may be unable to check the log."""
_HOLE_BYTES: Final = 32 << 10
"""Larger batches may find no hole in a file that does not shrink, even if all jobs were larger."""
_ANY_OFFSET: Final = 1 << 63


class Room(NamedTuple):
    """For dead letters of records below `end_offset`.

    - `batch_bytes`: how large their batches should be at most
    - `is_last_half`: a part of the room is left to this share-partition alone
    """

    batch_bytes: int
    end_offset: int
    is_last_half: bool


def is_kept_for_groups(topics: Topics, source: Partition) -> bool:
    """Whether the topic keeps its records only until the groups are done with them."""
    return _queue_retention(topics, source) != "time"


def _queue_retention(topics: Topics, source: Partition) -> str:
    topic = topics.by_id(source.log.topic_id)
    return "time" if topic is None else topic.config[QUEUE_RETENTION]


@dataclass(slots=True)
class _Turn:
    """Of the share-partition that has the last half, for its log's segment up to `end_offset`. It
    writes letters, or has written nothing since `left_at`, when retention had checked its log
    `checks` times."""

    key: Key
    partition: Partition
    end_offset: int
    is_writing: bool = True
    left_at: float = 0.0
    checks: int = 0

    def leave(self) -> None:
        self.is_writing = False
        self.left_at, self.checks = trio.current_time(), self.partition.retention_checks

    def is_over(self, topics: Topics) -> bool:
        partition, idle_s = self.partition, trio.current_time() - self.left_at
        if self.is_writing:
            return False
        if partition.deleted or partition.log_start_offset >= self.end_offset or idle_s > _LONGEST_TURN_S:
            return True
        is_checked = partition.retention_checks >= self.checks + _CHECKS
        is_checked_often = _queue_retention(topics, partition) == "workqueue"
        return idle_s > TURN_S and (is_checked or not is_checked_often)


class LetterRoom:
    def __init__(self, topics: Topics, disk_floor: DiskFloor) -> None:
        self._topics = topics
        self._disk_floor = disk_floor
        self._turn: _Turn | None = None

    @contextmanager
    def writing(self, key: Key) -> Iterator[None]:
        """This share-partition writes dead letters: if it gets the last half, it has it until it is
        done with that, and for a while after."""
        try:
            yield
        finally:
            if self._turn is not None and self._turn.key == key and self._turn.is_writing:
                self._turn.leave()

    def find(self, loaded: LoadedSharePartition, first_offset: int, no_room: NoRoom | None) -> Room:
        """The room for dead letters of records from `first_offset` on. `no_room`: of the last try.
        Called while `writing`. Raises NoRoom while the room is less than that needed."""
        room = self._disk_floor.letter_room(last_half=False)
        if no_room is None or no_room.needs_bytes <= room:
            return Room(self._batch_bytes(room), _ANY_OFFSET, is_last_half=False)
        end_offset, turn = self._first_end(loaded), self._turn
        room = self._disk_floor.letter_room(last_half=True)
        has_turn = turn is not None and (turn.key, turn.end_offset) == (loaded.key, end_offset)
        is_free = has_turn or turn is None or turn.is_over(self._topics)
        if first_offset < end_offset and no_room.needs_bytes <= room and is_free:
            self._turn = _Turn(loaded.key, loaded.partition, end_offset)
            return Room(self._batch_bytes(room), end_offset, is_last_half=True)
        raise NoRoom(no_room.needs_bytes, no_room.letter_bytes)

    def _batch_bytes(self, room: int) -> int:
        return _HOLE_BYTES if self._disk_floor.has_holes_only else max(room, LEAST_BATCH_BYTES)

    def _first_end(self, loaded: LoadedSharePartition) -> int:
        """The end of the segment that retention removes next, if it waits for little else than dead
        letters; -1 if there is none."""
        assert loaded.engine is not None
        if not is_kept_for_groups(self._topics, loaded.partition):
            return -1
        segments = loaded.partition.segments()
        first, end = segments[0].base_offset, segments[0].end_offset
        return (
            end if has_removable(segments) and archiving.waits_for_letters(loaded.engine, first, end) else -1
        )
