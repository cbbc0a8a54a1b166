"""Parked records that are kept, so that the log can be removed: those in memory, those in the store
alone, and some of the window. Pure.

    begin_look()    the store is about to be read: which records are parked below the new log start
    keep()          keep these with the next write
    move_in()       park a record of the window, and keep it

Records that a write changes between begin_look() and keep() are left out, because the read may show
their earlier state. parked_memory.py describes what holds until the write is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappush
from math import ceil

from kbroker.share.locks import Lock
from kbroker.share.parked import Lane, Parked
from kbroker.share.parked_memory import Code, Entry, ParkedMemory


class Look:
    """A read of the store. `changed`: records whose state in the store may be outdated in it."""

    __slots__ = ("changed", "floor")

    def __init__(self, floor: int, changed: Iterable[int]) -> None:
        self.floor = floor
        self.changed = set(changed)


class ParkedKeeping(ParkedMemory):
    def __init__(self, waiting: int, *, leader_epoch: int, life_ahead_ms: float, now_ms: float) -> None:
        super().__init__(waiting, leader_epoch=leader_epoch, life_ahead_ms=life_ahead_ms, now_ms=now_ms)
        self._locks: list[tuple[float, int]] = []
        self._looks: list[Look] = []

    def begin_look(self, under_way: Iterable[int]) -> Look:
        """The caller is about to read the store for keep() or sweep(). `under_way`: offsets of
        records in writes that have not ended."""
        look = Look(self.floor, under_way)
        self._looks.append(look)
        return look

    def end_look(self, look: Look) -> None:
        if look in self._looks:
            self._looks.remove(look)

    def keep(self, found: Iterable[Parked], records: Mapping[int, bytes], look: Look) -> int:
        """Keep these records of the look with the next write, except those that have changed
        meanwhile. Returns how many there are to save."""
        number = 0
        for parked in found:
            offset, record = parked.offset, records.get(parked.offset)
            if record is None:
                continue
            entry = self.entries.get(offset)
            if entry is None:
                is_leaving = offset in self._ghosts or offset in self._leaving
                if (
                    is_leaving
                    or offset in look.changed
                    or parked.kept
                    or self._orders[parked.lane].reaches(parked.place)
                ):
                    continue
                entry = self.entries[offset] = Entry(parked)
                self._line_up(entry)
                if parked.lane is Lane.REDELIVERY:
                    self._hold_key(entry)
            if entry.code == Code.PENDING or entry.is_kept:
                continue
            self._keep(entry, record)
            number += 1
        return number

    def move_in(self, parked: Parked, record: bytes) -> Entry:
        """Park and keep a record of the window. The next write saves it."""
        offset = parked.offset
        entry = self.entries[offset] = Entry(parked)
        entry.places[:0] = self._ghosts.pop(offset, ())
        self._moving.add(offset)
        self.waiting += 1
        self._line_up(entry)
        self._keep(entry, record)
        return entry

    def hold(self, entry: Entry, lock: Lock, since_ms: float) -> None:
        """The member that held the record in the window holds it here, until the same deadline."""
        self._leave_line(entry)
        self.held += 1
        entry.code, entry.member_id, entry.since_ms = Code.HELD, lock.member_id, since_ms
        entry.count += 1
        self._lock(entry, lock.deadline_ms)

    def due_at(self, due_ms: float) -> int:
        """A time of the engine's clock, as milliseconds since 1970."""
        return ceil(due_ms + self._ahead_ms[Lane.REDELIVERY])

    def _keep(self, entry: Entry, record: bytes) -> None:
        entry.record = record
        self._unsaved[entry.offset] = None
        self.kept_from = min(self.kept_from, entry.offset)

    def _lock(self, entry: Entry, deadline_ms: float) -> None:
        entry.deadline_ms = deadline_ms
        heappush(self._locks, (deadline_ms, entry.offset))
