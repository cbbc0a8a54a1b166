"""Acquisition: which of the records read from the log a member gets (KIP-932, "In-flight records";
KIP-1206 for the modes).

The input is a list of record batches (base offset, last offset) from the fetch offset on. Below the
SPEO these are records that have returned, or holes of the gap window; above it they are new. The
result is a list of AcquiredRecords entries in offset order:

    window      |--- acknowledged ---|-- available --|-- acquired --|   SPEO
    read                       |-----------------------------------------------------|
    entries                          |---- 1 entry --|              |- new: cut at record batches -|

Mode batch_optimized acquires whole record batches, perhaps more than the member asked for. Mode
record_limit acquires exactly what it asked for.

An acquisition changes the window and is never saved.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from kbroker.formats.makers import maker
from kbroker.share import rules, throttle
from kbroker.share.effects import AcquiredRange, ShareSettings
from kbroker.share.in_flight import MAX_SPAN, InFlightWindow
from kbroker.share.record_state import AVAILABLE, BEHIND, HOLE, WAITING

__all__ = ["AcquireMode", "Acquisition", "Control"]

_AFTER_ANY = 1 << 64

Batches: TypeAlias = Sequence[tuple[int, int, *tuple[Any, ...]]]
"""Record batches in offset order: base and last offset first, then anything else that their reader
needs."""

_range = maker(AcquiredRange, tuple[int, int, int])
"""Where batches are small, there is one for each batch."""
_AVAILABLE_BYTE = bytes([AVAILABLE])
_DELIVERED = re.compile(rb"[^\0]")
_LOOKED_AT = 2000
"""Offsets that are looked at for records at a lowered limit, in one turn of a member."""


class AcquireMode(IntEnum):
    """ShareAcquireMode of ShareFetch v2; v1 is BATCH_OPTIMIZED."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


_RECORD_LIMIT = int(AcquireMode.RECORD_LIMIT)


class Acquisition:
    """One member's turn at one share-partition.

    - `discarded`: runs of AVAILABLE records that the log no longer has.
    - `given_up`: runs of records that have reached a lowered delivery limit.
    - `throttled`: nothing may follow in this response, because a record of it is near its delivery
      limit.
    """

    __slots__ = (
        "_batch_size",
        "_batches",
        "_by_record",
        "_deadline_ms",
        "_follows",
        "_given_back_only",
        "_max_records",
        "_member_id",
        "_settings",
        "_window",
        "discarded",
        "given_up",
        "ranges",
        "redelivered",
        "taken",
        "throttled",
    )

    def __init__(
        self,
        window: InFlightWindow,
        settings: ShareSettings,
        member_id: str,
        mode: AcquireMode,
        batch_size: int,
        max_records: int,
        deadline_ms: float,
    ) -> None:
        self._window = window
        self._settings = settings
        self._member_id = member_id
        self._by_record = mode == _RECORD_LIMIT
        self._batch_size = batch_size if batch_size > 0 else 1
        self._max_records = max_records
        self._deadline_ms = deadline_ms
        self._follows = 0
        self.taken = 0
        self.ranges: list[AcquiredRange] = []
        self.discarded: list[tuple[int, int]] = []
        self.given_up: list[tuple[int, int]] = []
        self.redelivered = 0
        self.throttled = False

    def run(self, fetch_offset: int, batches: Batches, follows: int) -> None:
        """Acquire from these batches, which a read at `fetch_offset` returned. `follows`: how many
        records the response already has that no suspect one may follow."""
        window, self._batches, self._follows = self._window, batches, follows
        base, last = batches[0][0], batches[-1][1]
        start_offset, end_offset = window.start_offset, window.end_offset
        if last < start_offset or fetch_offset > (end_offset + 1 if window.states else end_offset):
            return
        settings = self._settings
        left = settings.max_record_locks - (
            window.undecided if settings.limits_undecided else window.in_flight
        )
        self._given_back_only = left <= 0 and settings.limits_undecided
        if left > 0:
            if left < self._max_records:
                self._max_records = left
        # At the limit, only records that are in flight already may be delivered.
        elif fetch_offset <= end_offset:
            last = min(last, end_offset)
        else:
            return
        first = base if base > start_offset else start_offset
        if window.states:
            self._skip_what_the_log_lost(fetch_offset, base)
            last = min(last, end_offset if settings.scans else start_offset + MAX_SPAN - 1)
            if first <= end_offset:
                if len(batches) > 1:
                    self._skip_holes_between()
                self._from_window(first, min(last, end_offset))
                if self.throttled:
                    return
                first = end_offset + 1
        elif settings.scans:
            return
        elif last >= first + MAX_SPAN:
            last = first + MAX_SPAN - 1
        if first <= last and self.taken < self._max_records:
            self._new_data(first, last)

    def _skip_what_the_log_lost(self, fetch_offset: int, base: int) -> None:
        """The read at `fetch_offset` began with `base`: the log has nothing between the two
        (compaction)."""
        if fetch_offset >= base:
            return
        window = self._window
        first, last = max(fetch_offset, window.start_offset), min(base - 1, window.end_offset)
        if first <= last:
            self.discarded = window.discard_available(first, last)
            if window.gap_open and not window.has((HOLE,), window.gap_start, first - 1):
                window.gap_start = max(window.gap_start, last + 1)

    def _skip_holes_between(self) -> None:
        """Compaction may have removed batches between those that the read returned."""
        window, beyond = self._window, self._batches[0][0]
        for batch in self._batches:
            if beyond < batch[0]:
                first, last = max(beyond, window.start_offset), min(batch[0] - 1, window.end_offset)
                if first <= last and window.has((AVAILABLE, WAITING, BEHIND), first, last):
                    self.discarded += window.discard_available(first, last)
            beyond = batch[1] + 1

    def _from_window(self, position: int, last: int) -> None:
        """Redeliver records, and fill holes of the gap window, in position..last."""
        window = self._window
        while position <= last and self.taken < self._max_records and not self.throttled:
            i = position - window.base
            boundary = window.marks.find(1, i + 1)
            end = window.base + boundary - 1 if boundary >= 0 else window.end_offset
            stop = min(end, last) + 1 - window.base
            if window.states[i] == HOLE:
                first = max(position, window.gap_start)
                passes = self._given_back_only or self._settings.scans
                if window.gap_open and first <= min(end, last) and not passes:
                    end = self._new_data(first, min(end, last))
            elif (i := window.states.find(AVAILABLE, i, stop)) >= 0:
                self._deliver_again(i, stop, end)
            position = end + 1

    def _deliver_again(self, i: int, j: int, batch_end: int) -> None:
        """Column indexes i..j-1 of one cached batch."""
        window, settings = self._window, self._settings
        states, counts = window.states, window.counts
        gives_up_from, suspect_from = rules.gives_up_from(settings), rules.suspect_from(settings)
        if window.highest_count >= gives_up_from and throttle.has_reached(
            states, counts, i, j, gives_up_from
        ):
            self._give_up(i, gives_up_from)
        room = self._max_records - self.taken if self._by_record else j - i
        if window.highest_count >= suspect_from and throttle.has_reached(states, counts, i, j, suspect_from):
            if not (self._follows or self.taken):
                size = batch_end + 1 - window.base - window.marks.rfind(1, 0, i + 1)
                picked = throttle.pick(states, counts, i, j, settings, batch_size=size, room=room)
                for start, stop in picked:
                    self._grant(start, stop)
            self.throttled = True
            return
        while room > 0:
            i = states.find(AVAILABLE, i, j)
            if i < 0:
                break
            run = min(j - i, room)
            if run > 1:
                run -= len(states[i : i + run].lstrip(_AVAILABLE_BYTE))
            stop = i + run
            if self._given_back_only and not counts[i]:
                i = stop if (found := _DELIVERED.search(counts, i, stop)) is None else found.start()
                continue
            room -= run
            if counts.count(counts[i], i, stop) == stop - i:
                self._grant(i, stop)
                i = stop
            else:
                for count, equal in groupby(counts[i:stop]):
                    size = sum(1 for _ in equal)
                    if count or not self._given_back_only:
                        self._grant(i, i + size)
                    i += size

    def _give_up(self, i: int, from_count: int) -> None:
        """Records from i on that have reached the delivery limit end as if they had returned now.
        Few are left for later, as each turn is a write."""
        window = self._window
        by_count = rules.returned(rules.Event.LIMIT, self._settings)
        begin = window.base + i
        for first, last, state, count in window.runs(begin, min(begin + _LOOKED_AT, window.end_offset)):
            if state == AVAILABLE and count >= from_count:
                window.exhausted += window.give_back(first, last, by_count)
                self.given_up.append((first, last))

    def _grant(self, i: int, j: int) -> None:
        """One entry: indexes i..j-1, AVAILABLE with one delivery count."""
        window = self._window
        first, last = window.base + i, window.base + j - 1
        window.take(i, j, window.new_lock(self._member_id, first, last, self._deadline_ms))
        self.taken += j - i
        # Otherwise it was read before, in a batch of which others got a part (record_limit).
        if window.counts[i] > 1:
            self.redelivered += j - i
        self._entry(first, last, window.counts[i])

    def _entry(self, first: int, last: int, delivery_count: int) -> None:
        self.ranges.append(_range((first, last, delivery_count)))
        window = self._window
        passes_holes = self._given_back_only or self._settings.scans
        if last >= window.gap_start and not (passes_holes and window.has((HOLE,), window.gap_start, first)):
            window.gap_start = last + 1  # Holes before it are filled, unless they are passed over.

    def _new_data(self, first: int, last: int) -> int:
        """Add unread record batches to the window. Returns the last offset that was handled."""
        batches = self._batches
        k = 0 if batches[0][0] <= first <= batches[0][1] else _batch_at_or_below(batches, first)
        if k < 0 or batches[k][1] < first:
            k += 1
            if k == len(batches) or batches[k][0] > last:
                return last  # The log has nothing here.
            first = batches[k][0]
        room = self._max_records - self.taken
        if room < last - first + 1:
            end = batches[k][1]
            if end < first + room - 1:
                end = batches[_batch_at_or_below(batches, first + room - 1)][1]
            last = min(last, end)
        if self._by_record:
            self._cache(first, last, min(last, first + room - 1))
            return last
        if last - first >= self._batch_size:
            for m in range(k + 1, len(batches)):
                base = batches[m][0]
                if base > last:
                    break
                if base - first >= self._batch_size:
                    self._cache(first, base - 1, base - 1)
                    first = base
        self._cache(first, last, last)
        return last

    def _cache(self, first: int, last: int, acquired_last: int) -> None:
        """One cached batch with one entry."""
        window = self._window
        number = window.new_lock(self._member_id, first, acquired_last, self._deadline_ms)
        window.place(first, last, acquired_last, number)
        self.taken += acquired_last - first + 1
        self._entry(first, acquired_last, 1)


class Control(NamedTuple):
    """A control batch, or one of an aborted transaction: no member gets it. `is_finished`: its
    offsets count as finished. Those of the broker's own control batches do not."""

    first_offset: int
    last_offset: int
    is_finished: bool


def runs_of(batches: Batches, control: Sequence[Control]) -> Iterable[tuple[Batches, bool | None]]:
    """The result of a read, in offset order: record batches with no control batch between them
    (None), or control batches, and whether they are finished."""
    if not control:
        return ((batches, None),)
    order = sorted([(batch[0], batch[1], None) for batch in batches] + list(control), key=itemgetter(0))
    return (
        ([(first, last) for first, last, _ in run], kind) for kind, run in groupby(order, key=itemgetter(2))
    )


def _batch_at_or_below(batches: Batches, offset: int) -> int:
    """Index of the last batch that begins at or below `offset`; -1 if there is none."""
    if len(batches) == 1:
        return 0 if batches[0][0] <= offset else -1
    return bisect_right(batches, (offset, _AFTER_ANY)) - 1
