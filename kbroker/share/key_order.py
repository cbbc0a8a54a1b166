"""Which record of each key is delivered first (`kbroker.queue.ordering=key`). Pure.

    key A    active 12             behind it 15, 18, 40
    key B    active 9 (parked)     behind it 14
    key C    active 13

Each key has one active record: available, held, being saved, or waiting for its redelivery, in the
window or parked. The other records of the key are behind it, in offset order, and are not
delivered. When the end of the active record is saved, the next one becomes active. Keys are known
by 64-bit hashes: two keys with one hash count as one.

A few keys have several active records, because members held several when the setting was altered.
Each of these that returns then goes behind the others.

A million parked records may be active, which is ordinary. Those are forgotten while no record is
behind them, and their keys are looked up in the store when records join, between begin_lookup() and
end_lookup(). A record that ends in between is ignored in the store's answer.

This module must not know states, times or members.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

LOOK_AHEAD: Final = 20_000
_RESUME_ROOM: Final = 500
"""A scan that stopped at the bound resumes when this many records may join, since each turn opens a
batch."""
_FORGET_FROM: Final = 4096


class _Key:
    """`active` is not empty. `behind`: a heap, which may still contain offsets that are no longer
    behind."""

    __slots__ = ("active", "behind")

    def __init__(self, offset: int) -> None:
        self.active: tuple[int, ...] = (offset,)
        self.behind: list[int] = []


class KeyOrder:
    """`look_ahead`: how many records may be behind others. `learn_from`..`learn_to`: the records
    that were in the window when the order began, and whose keys are not known yet. No record is
    delivered before these are learnt."""

    def __init__(self, learn_from: int, learn_to: int, *, look_ahead: int = LOOK_AHEAD) -> None:
        self.learn_from = learn_from
        self.learn_to = learn_to
        self.freed: list[int] = []
        """Records that became active since the caller emptied this list."""
        self.asked: dict[int, int] = {}
        """Hashes of scheduled records that are due. They join when the window is learnt and the
        store has been searched for their keys."""
        self.stops = 0
        """How often the look-ahead bound stopped a scan."""
        self._look_ahead = look_ahead
        self._is_stopped = False
        self._hashes: dict[int, int] = {}
        self._keys: dict[int, _Key] = {}
        self._behind: set[int] = set()
        self._parked: set[int] = set()
        self._forget_from = _FORGET_FROM
        self._lookups = 0
        self._ended: set[int] = set()

    @property
    def has_learnt(self) -> bool:
        return self.learn_from > self.learn_to

    @property
    def waiting(self) -> int:
        return len(self._behind)

    @property
    def is_full(self) -> bool:
        return len(self._behind) >= self._look_ahead

    def room(self) -> int:
        """How many records may be looked at now. 0: the scan stops, which is counted."""
        room = self._look_ahead - len(self._behind)
        if room <= 0 and not self._is_stopped:
            self._is_stopped = True
            self.stops += 1
        elif self._is_stopped and room >= min(_RESUME_ROOM, self._look_ahead // 2 + 1):
            self._is_stopped = False
        return 0 if self._is_stopped else room

    def most_at_once(self) -> int:
        """How many records may be looked at in one turn."""
        return max(1, self._look_ahead - len(self._behind)) if self.has_learnt else self._look_ahead

    def hash_of(self, offset: int) -> int | None:
        return self._hashes.get(offset)

    def is_parked(self, offset: int) -> bool:
        """True for an active record whose place in the window says nothing."""
        return offset in self._parked

    def is_behind(self, offset: int) -> bool:
        return offset in self._behind

    def known_in(self, runs: Iterable[tuple[int, int]]) -> Iterator[int]:
        """Records of these runs whose hashes are known. The caller may change the order between
        them."""
        for first, last in runs:
            if last - first < len(self._hashes):
                yield from [offset for offset in range(first, last + 1) if offset in self._hashes]
            else:
                yield from sorted(offset for offset in self._hashes if first <= offset <= last)

    # ---- records come ----------------------------------------------------------------------------

    def know(self, offset: int, key_hash: int) -> None:
        """Note the hash of a record that does not join yet: it is due later."""
        self._hashes[offset] = key_hash

    def hold(self, offset: int, key_hash: int, *, parked: bool = False) -> None:
        """The record is active, whatever else is: a member has it, or it waits for its
        redelivery."""
        self._hashes[offset] = key_hash
        if parked:
            self._parked.add(offset)
        key = self._keys.get(key_hash)
        if key is None:
            self._keys[key_hash] = _Key(offset)
        elif offset not in key.active:
            key.active = (*key.active, offset)
        self._behind.discard(offset)

    def admit(self, offset: int) -> bool:
        """The record is due. True if it may be delivered: it has no key, or is the only active
        record of it now. Otherwise it is behind."""
        key_hash = self._hashes.get(offset)
        if key_hash is None:
            return True
        key = self._keys.get(key_hash)
        if key is None:
            self._keys[key_hash] = _Key(offset)
            return True
        if key.active == (offset,):
            return True
        key.active = tuple(each for each in key.active if each != offset)
        if offset not in self._behind:
            self._behind.add(offset)
            heappush(key.behind, offset)
        return False

    def park(self, offset: int) -> None:
        """The record's place in the window says nothing any more."""
        if offset in self._hashes:
            self._parked.add(offset)

    def active_beside(self, offset: int) -> tuple[int, ...]:
        """Other active records of its key."""
        key = self._keys.get(self._hashes.get(offset, -1))
        return () if key is None else tuple(each for each in key.active if each != offset)

    # ---- records go ------------------------------------------------------------------------------

    def end(self, offset: int) -> None:
        """The record is finished and that is saved, or the log no longer has it. The next record of
        its key becomes active, and joins `freed`."""
        if self._lookups:
            self._ended.add(offset)
        self.asked.pop(offset, None)
        key_hash = self._hashes.pop(offset, None)
        self._parked.discard(offset)
        self._behind.discard(offset)
        key = None if key_hash is None else self._keys.get(key_hash)
        if key is None or key_hash is None or offset not in key.active:
            return
        key.active = tuple(each for each in key.active if each != offset)
        if key.active:
            return
        if not self._has_behind(key):
            del self._keys[key_hash]
            return
        offset = heappop(key.behind)
        self._behind.discard(offset)
        key.active = (offset,)
        self.freed.append(offset)

    def forget(self, offset: int) -> None:
        """The record leaves memory, and joins another time."""
        if offset not in self._behind and not self.is_active(offset):
            self._hashes.pop(offset, None)

    def is_active(self, offset: int) -> bool:
        key = self._keys.get(self._hashes.get(offset, -1))
        return key is not None and offset in key.active

    def _has_behind(self, key: _Key) -> bool:
        while key.behind and key.behind[0] not in self._behind:
            heappop(key.behind)
        return bool(key.behind)

    def forget_parked(self, in_memory: Container[int]) -> None:
        """Forget parked records that are not in memory otherwise and have no record behind them."""
        if self._lookups or len(self._parked) < self._forget_from:
            return
        for offset in [offset for offset in self._parked if offset not in in_memory]:
            key_hash = self._hashes[offset]
            key = self._keys[key_hash]
            if key.active == (offset,) and not self._has_behind(key):
                del self._keys[key_hash], self._hashes[offset]
                self._parked.discard(offset)
        self._forget_from = max(_FORGET_FROM, 2 * len(self._parked))

    # ---- what the store knows --------------------------------------------------------------------

    def begin_lookup(self) -> None:
        """The caller starts asking the store for keys; it calls end_lookup() afterwards."""
        self._lookups += 1

    def end_lookup(self) -> None:
        self._lookups -= 1
        if not self._lookups:
            self._ended.clear()

    def found(self, parked: Mapping[int, Sequence[int]]) -> None:
        """For these hashes, the store has parked records that wait for their redelivery."""
        for key_hash, offsets in parked.items():
            for offset in offsets:
                if offset not in self._ended and offset not in self._hashes:
                    self.hold(offset, key_hash, parked=True)
