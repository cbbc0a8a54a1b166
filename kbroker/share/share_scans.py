"""Records of a share-partition that the broker examines before members get them: it scans them
(scanning.py), learns their keys (ordering.py), and gives up those past their time to live. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kbroker.share import ordering, scanning
from kbroker.share.acquire import Batches, Control, runs_of
from kbroker.share.effects import Persist
from kbroker.share.ordering import Keys
from kbroker.share.parked import Parked
from kbroker.share.parking import Parking
from kbroker.share.runs import joined_runs
from kbroker.share.share_writes import SharePartitionWrites


class SharePartitionScans(SharePartitionWrites):
    def scan_from(self) -> int | None:
        """Where to read for the next scanned(). None: there is nothing to scan now."""
        window, settings, order = self._window, self._settings, self.key_order
        if order is not None:
            if (offset := ordering.learn_at(window, order)) is not None:
                return offset
            if not order.room():
                return None
        offset = scanning.scan_from(window)
        is_full = not settings.limits_undecided and window.in_flight >= settings.max_record_locks
        return None if offset is None or (is_full and offset >= window.unread_from) else offset

    def has_to_scan(self, end_offset: int) -> bool:
        """True if a scan of a log that ends there would find something to do, or keys have to be
        looked up."""
        order = self.key_order
        if order is not None and (order.asked or not order.has_learnt or self.has_unsaved):
            return True
        offset = self.scan_from()
        return offset is not None and offset < end_offset

    def park_again(self, wall_ms: float) -> Persist | None:
        """Park the records once more that a failed write of scanned() left in the window. None:
        there are none."""
        if self.parking is None:
            return None
        to_park = scanning.park_again(
            self._window, self.parking, self._waits, wall_ms + (self._settings.park_from_ms or 0)
        )
        return self._persist_best_effort([], to_park) if to_park else None

    def scanned(
        self,
        offset: int,
        batches: Batches,
        control: Sequence[Control],
        scheduled: Sequence[tuple[int, int]],
        *,
        now_ms: float,
        wall_ms: float,
        keys: Keys | None = None,
    ) -> Persist | None:
        """A read at `offset` returned these batches. None: nothing to save.

        - `control`: the batches between them that members never get.
        - `scheduled`: (offset, due time on the wall clock) of records that are due later. The
          others can be acquired now, or once their keys are free.
        - `keys`: the keys of these records, where the group keeps their order.
        """
        assert self.parking is not None
        window, order = self._window, self.key_order
        learns = order is not None and not order.has_learnt
        for run, is_finished in runs_of(batches, control) if not learns or window.gap_open else ():
            if is_finished is not None:
                for first, last in joined_runs([(batch[0], batch[1]) for batch in run]):
                    self._pass_over(first, last, is_finished=is_finished)
            else:
                scanning.place(window, offset, run)
        if not learns:
            scanning.close_gap(window)
        found = [] if order is None or keys is None else ordering.know(window, order, keys.hashes)
        to_park, soon = self._put_off(self.parking, scheduled, now_ms, wall_ms)
        if order is not None and keys is not None:
            order.found(keys.parked)
            ordering.join(
                window,
                order,
                self._waits,
                found,
                {*(parked.offset for parked in to_park), *(offset for offset, _ in soon)},
            )
            if learns:
                order.learn_from = max(order.learn_from, keys.up_to + 1)
        self._advance()
        return self._persist_best_effort([], to_park) if to_park else None

    def may_look_ahead(self) -> bool:
        """True if place_ahead() would help where the scan is far from the log's end. It does not
        where the limit counts the span of the window, or where the order of keys is kept."""
        if self.key_order is not None or not self._settings.limits_undecided:
            return False
        return scanning.may_look_ahead(self._window)

    def place_ahead(self, first: int, last: int) -> None:
        """Place records that lie ahead of the scan and are not scheduled. The scan still visits
        everything before them."""
        scanning.place_ahead(self._window, first, last)

    def _put_off(
        self, parking: Parking, scheduled: Sequence[tuple[int, int]], now_ms: float, wall_ms: float
    ) -> tuple[list[Parked], list[tuple[int, int]]]:
        """Splits records that are due later into those to park and those that wait in the
        window."""
        park_from_ms = wall_ms + (self._settings.park_from_ms or 0)
        to_park, soon = scanning.put_off(self._window, parking, scheduled, park_from_ms)
        for due in soon:
            self._waits.begin_until(*due, now_ms=now_ms, wall_ms=wall_ms)
        return to_park, soon

    # ---- the order of keys (ordering.py) ---------------------------------------------------------

    def keep_order(self) -> None:
        """Start or stop keeping the order of keys, as the settings say. Call it when they were
        altered, and once `parking` is set, which the order needs. Members keep what they hold. The
        records in the window are scanned first; no member gets records before that is done."""
        order, parking = self.key_order, self.parking
        if parking is None or self._settings.ordered == (order is not None):
            return
        if order is not None:
            self._counters.look_ahead_stops += order.stops
            ordering.end(self._window)
        self.key_order = ordering.begin(self._window) if order is None else None
        parking.order_keys(self.key_order)

    def keys_found(self, asked: Sequence[int], parked: Mapping[int, Sequence[int]]) -> None:
        """The store has answered which keys of due records (`key_order.asked`) are blocked;
        `parked` as in Keys."""
        order = self.key_order
        if order is None or self.parking is None:
            return
        order.found(parked)
        for offset in [
            offset for offset in asked if offset in order.asked and offset not in self.parking.entries
        ]:
            del order.asked[offset]
            if order.admit(offset):
                ordering.go(self._window, offset)
        self.parking.end_asking(asked)

    # ---- records that are past their time --------------------------------------------------------

    def expire_records(self, offsets: Sequence[int]) -> Persist | None:
        """These records are past their time to live. Those that could be acquired now become
        ARCHIVED, or dead letters. None: there are none."""
        parking = self.parking
        assert parking is not None
        archived, to_park = scanning.give_up(self._window, parking, offsets, self._settings)
        expired = len(archived) + len(to_park) + parking.expire_ready(offsets, self._settings)
        if not expired:
            return None
        self._counters.expired += expired
        persist = self._persist_best_effort(joined_runs([(offset, offset) for offset in archived]), to_park)
        self._advance()
        return persist

    def available_in(self, first: int, last: int) -> Iterator[int]:
        """Offsets of first..last in the window that a member could acquire now, limits aside."""
        return self._window.available_in(first, last)

    def next_available(self) -> int | None:
        return self._window.next_available()
