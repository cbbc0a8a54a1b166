"""The model of one log in producer_history.py: DeleteRecords and retention remove its oldest
records."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kbroker.testing.history_events import Event, LogRead


class Retention(Enum):
    """Which records a topic's retention may remove."""

    NOTHING = "nothing"
    OLD = "old"
    """Leading segments that have only old records (`is_old` of Sent and BatchSent)."""
    ANYTHING = "anything"


class Held(NamedTuple):
    value: str
    is_old: bool
    event: Event


@dataclass(slots=True)
class LogState:
    """What the history says of a log.

    - `start`, `end`: offsets that the log's start and end have certainly reached.
    - `requested`: the offset below which DeleteRecords may have removed records.
    - `open_ended`: a DeleteRecords of all records is in flight.
    """

    retention: Retention
    start: int = 0
    end: int = 0
    requested: int = 0
    open_ended: bool = False
    is_new: bool = False
    """After a power cut that may have lost unsynced data: the next read is the new beginning."""
    held: dict[int, Held] = field(default_factory=dict)
    reads: dict[int, LogRead] = field(default_factory=dict)
    is_read: bool = False
    confirmed_ends: list[tuple[int, int]] = field(default_factory=list)

    def may_start_at(self, offset: int) -> bool:
        """Whether requested purges, or retention, can have removed everything below `offset`."""
        if self.open_ended or offset <= self.requested or self.retention is Retention.ANYTHING:
            return True
        young = (at for at, held in self.held.items() if not held.is_old)
        return self.retention is Retention.OLD and not any(self.requested <= at < offset for at in young)

    def surely_keeps(self, offset: int) -> bool:
        return offset >= self.start and not self.may_start_at(offset + 1)

    def begin_at(self, start: int) -> None:
        if start > self.start:
            self.start = start
            self.held = {offset: held for offset, held in self.held.items() if offset >= start}

    def known_end(self, asked_ns: int) -> int:
        """The end offset that records confirmed before `asked_ns` prove. Later calls must not pass
        an earlier time."""
        self.end = max([self.end, *(end for at_ns, end in self.confirmed_ends if at_ns < asked_ns)])
        self.confirmed_ends = [(at_ns, end) for at_ns, end in self.confirmed_ends if at_ns >= asked_ns]
        return self.end
