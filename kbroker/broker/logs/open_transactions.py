"""The transactions of one log: which are open, and which were aborted. Two readers need them:

    last stable offset   all below it is decided; consumers with read_committed see no more
    aborted in a range   what such a consumer has to leave out of the records that it gets

A transaction is open from its first record until its marker is durable. The aborted ones are
stored with the snapshots of producers (producer_snapshots.py), and a replay of the log finds those
after the last snapshot. So memory and store have each of them as long as the log has its marker.

It must not know what a producer may append (producer_state.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from kbroker.formats.transactions import AbortedTransaction

_last_offset = attrgetter("last_offset")


class OpenTransactions:
    """Of one log. `aborted`: in the order of their markers."""

    __slots__ = ("_open", "aborted", "unsaved")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._open: dict[int, int] = {}
        """Producer id by first offset, the lowest offset first."""
        self.aborted = list(aborted)
        self.unsaved: list[AbortedTransaction] = []
        """Those of `aborted` that are not stored yet."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def first_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return next(iter(self._open), None)

    def begin(self, producer_id: int, offset: int) -> None:
        self._open[offset] = producer_id

    def reset(self, found: Iterable[tuple[int, int]]) -> None:
        """First offsets and producer ids of all that are open."""
        self._open = dict(sorted(found))

    def end(self, first_offset: int, marker_offset: int, *, is_abort: bool) -> None:
        """The marker of the transaction that begins there is durable. A marker without an open
        transaction changes nothing."""
        producer_id = self._open.pop(first_offset, None)
        if producer_id is None or not is_abort:
            return
        if self.aborted and self.aborted[-1].last_offset >= marker_offset:
            return  # A replay finds it again.
        # A transaction that begins after the marker may not be durable yet.
        stable_offset = min(next(iter(self._open), marker_offset + 1), marker_offset + 1)
        found = AbortedTransaction(producer_id, first_offset, marker_offset, stable_offset)
        self.aborted.append(found)
        self.unsaved.append(found)

    def aborted_in(self, first: int, end: int) -> Sequence[AbortedTransaction]:
        """Those with records or a marker in [first, end)."""
        found: list[AbortedTransaction] = []
        for each in self.aborted[bisect_left(self.aborted, first, key=_last_offset) :]:
            if each.first_offset < end:
                found.append(each)
            if each.stable_offset >= end:
                break  # All that ended later begin at or above that offset.
        return found

    def forget(self, last_offsets: Collection[int]) -> Sequence[AbortedTransaction]:
        """Forget the aborted transactions with these markers, of which no record is left; returns
        them. Clients would leave out later records of the producer once the marker is gone."""
        gone = [each for each in self.aborted if each.last_offset in last_offsets]
        if gone:
            self.aborted = [each for each in self.aborted if each.last_offset not in last_offsets]
            self.unsaved = [each for each in self.unsaved if each.last_offset not in last_offsets]
        return gone

    def saved_below(self, offset: int) -> None:
        """Those whose marker is below it are stored."""
        self.unsaved = [each for each in self.unsaved if each.last_offset >= offset]

    def trim(self, log_start_offset: int) -> Sequence[AbortedTransaction]:
        """Forget those whose marker the log has lost; returns them."""
        count = bisect_left(self.aborted, log_start_offset, key=_last_offset)
        gone, self.aborted = self.aborted[:count], self.aborted[count:]
        self.unsaved = [each for each in self.unsaved if each.last_offset >= log_start_offset]
        return gone
