"""The events of producers and readers of compacted topics (history_events.py has the others, and
the rules for writers).

An *entry* is one record with a key. Its `name` is used only once, and is in a header of the record,
since a tombstone has no value to tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class EntrySeen(NamedTuple):
    """A record as a reader has received it. `name` and `digest`: as in EntrySent."""

    offset: int
    name: str
    digest: str


class Stage(StrEnum):
    """Where a pass of the cleaner is."""

    BEGAN = "began"
    REPLACING = "replacing"
    """The new contents of a segment are being written."""
    REPLACED = "replaced"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class EntrySent:
    """An idempotent producer is about to send a record.

    - `transaction`: the transaction that it belongs to; "": none
    - `digest`: of key, value, headers and timestamp
    """

    at_ns: int
    producer: str
    name: str
    topic: str
    partition: int
    key: str
    is_tombstone: bool = False
    transaction: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class EntryConfirmed:
    """The broker confirmed the record, with acks=all. In a transaction that says nothing yet of its
    end. `offset` -1: the client library does not know it."""

    at_ns: int
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """The next records that this reader has received of the log. Each name of a reader is that of
    one journey from the beginning of the log. `is_committed`: it reads with read_committed."""

    at_ns: int
    reader: str
    topic: str
    partition: int
    entries: tuple[EntrySeen, ...]
    is_committed: bool = True


@dataclass(frozen=True, slots=True)
class LogScanned:
    """The EntriesRead of this reader are a whole log: from its beginning, at `began_ns` at the
    earliest, to the end that it had at `at_ns`. `start`: the log start offset afterwards. `end`:
    where the reader stopped, which with read_committed is the last stable offset."""

    at_ns: int
    began_ns: int
    reader: str
    topic: str
    partition: int
    start: int
    end: int
    is_committed: bool = True
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """All passes over the records before `end` should be done, and all delete horizons there have
    passed."""

    at_ns: int
    topic: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class PassNoted:
    """The cleaner of the broker has reached this stage of a pass. `log`: TOPIC-PARTITION."""

    at_ns: int
    stage: Stage
    log: str


CompactionEvent: TypeAlias = EntrySent | EntryConfirmed | EntriesRead | LogScanned | Settled | PassNoted
