"""Which share-partition may write dead letters into the room that a nearly full disk has left
(disk_floor.py).

    budget    first half    letters of all share-partitions, in the order of their tasks
              last half     letters of one share-partition at a time, for its log's first segment

A log shrinks by whole segments, so letters free something when a whole segment has its letters.
Without the last half, fifty share-partitions would write a letter each, and all would stand still
for good. The half fits the letters of two segments. A share-partition gets it when most records of
its first segment are finished, or wait for their letters; retention keeps the others beside the log
(kept_records.py). Then retention has the time to remove that segment, before another
share-partition continues.

This module must not know what letters contain.
"""

from __future__ import annotations

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
"""How long the last half stays with a share-partition that writes nothing more: retention checks
queues that often."""
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
    topic = topics.by_id(source.log.topic_id)
    return topic is not None and topic.config[QUEUE_RETENTION] != "time"


class LetterRoom:
    def __init__(self, topics: Topics, disk_floor: DiskFloor) -> None:
        self._topics = topics
        self._disk_floor = disk_floor
        self._turn: tuple[Key, int] | None = None
        """Which share-partition has the last half, and the end of its first segment."""
        self._turn_ends_at = 0.0

    def find(self, loaded: LoadedSharePartition, first_offset: int, no_room: NoRoom | None) -> Room:
        """The room for dead letters of records from `first_offset` on. `no_room`: of the last try.
        Raises NoRoom while the room is less than that needed."""
        room = self._disk_floor.letter_room(last_half=False)
        if no_room is None or no_room.needs_bytes <= room:
            return Room(self._batch_bytes(room), _ANY_OFFSET, is_last_half=False)
        end_offset, now = self._first_end(loaded), trio.current_time()
        turn, room = (loaded.key, end_offset), self._disk_floor.letter_room(last_half=True)
        is_free = self._turn == turn or now >= self._turn_ends_at
        if first_offset < end_offset and no_room.needs_bytes <= room and is_free:
            self._turn, self._turn_ends_at = turn, now + TURN_S
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
