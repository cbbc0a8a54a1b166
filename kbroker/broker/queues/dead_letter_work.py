"""What the broker knows about the dead letters of one share-partition, between its task and the
events that wake it (dead_letters.py)."""

from __future__ import annotations

import trio

from kbroker.broker.commits.waiting import Decision
from kbroker.broker.queues.dead_letter_writer import NoRoom
from kbroker.broker.queues.loaded import Key
from kbroker.formats.state import DeadLetterCursor, DeadLetterKey
from kbroker.share.share_partition import SharePartition


class Work:
    """One share-partition's dead letters.

    - `cursor`: the one in the state store, or on its way there; `saved` is decided when it is there
    - `known`: the engine that knows all dead letters of its ARCHIVING records; another engine has
      to search for them
    - `uncertain`: a record with a dead letter may be ARCHIVING on disk, because a save has failed
    - `no_room`: why the disk has no room for dead letters at present; `waiting`: how many wait
    - `stuck`: why records cannot be copied at present; their topic keeps them for the group
    """

    __slots__ = (
        "closed",
        "cursor",
        "is_running",
        "key",
        "known",
        "no_room",
        "saved",
        "stuck",
        "topic",
        "uncertain",
        "waiting",
        "woken",
    )

    def __init__(self, key: Key, topic: str) -> None:
        self.key = key
        self.topic = topic
        self.cursor: DeadLetterCursor | None = None
        self.saved = Decision()
        self.known: SharePartition | None = None
        self.uncertain = False
        self.no_room: NoRoom | None = None
        self.waiting = 0
        self.stuck: dict[int, str] = {}
        self.woken = trio.Event()
        self.is_running = False
        self.closed = False

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes of dead letters wait for room on the disk."""
        return 0 if self.no_room is None else round(self.waiting * self.no_room.letter_bytes)

    def cursor_saved(self, cursor: DeadLetterCursor, saved: Decision, error: Exception | None) -> None:
        if error is not None and self.cursor is cursor:
            self.cursor = None
        saved.decide(error)

    @property
    def state_key(self) -> bytes:
        group_id, (topic_id, partition) = self.key
        return DeadLetterKey(topic_id, partition, group_id).encode()

    def __str__(self) -> str:
        return f"{self.key[0]}:{self.topic}-{self.key[1].partition}"
