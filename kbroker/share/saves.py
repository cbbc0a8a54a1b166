"""What a share-partition has to save: the writes under way, and the changes that wait for the next
one. Pure.

    acknowledge, release_member   pending -.            .- persisted ------> all of it is final
                                           |-> Persist -|
    expire, and others            unsaved -'            '- persist_failed -> pending: its holder's
                                                                             unsaved: in the next

SharePartition decides what becomes of the records when a write ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbroker.formats.makers import maker
from kbroker.share import row_writes
from kbroker.share.effects import Persist, StateBatch
from kbroker.share.in_flight import InFlightWindow
from kbroker.share.parked import Parked, ParkingChange
from kbroker.share.parking import Answered, Parking
from kbroker.share.record_state import HOLE, PASSED, PENDING_CODES, STATE, RecordState
from kbroker.share.row_writes import ParkingWrite
from kbroker.share.runs import Runs, joined_runs, size_of

_UNDECIDED = frozenset((RecordState.ACQUIRED, HOLE, *PENDING_CODES))
_new_persist = maker(
    Persist,
    tuple[int, int, int, int, int, tuple[StateBatch, ...], tuple[ParkingChange, ...], int, tuple[()], int],
)
"""One for each acknowledgement list."""


class Write(NamedTuple):
    """A Persist under way.

    - `pending`: runs that are final if it succeeds, and `holder` their member.
    - `decided`: final in any case; the next Persist carries them if this one fails.
    - `passed`: what its start offset has left behind; as decided.
    - `parked`: what it changes of parked records.
    - `given_up`: how many records of those in `decided` and `parked` it counts as given up.
    """

    pending: Runs
    decided: Sequence[StateBatch]
    passed: Sequence[tuple[int, int]]
    holder: str | None
    parked: ParkingWrite | None
    given_up: int

    @property
    def held(self) -> int:
        """How many records of it a member holds, if it fails."""
        if self.holder is None:
            return 0
        return size_of(self.pending) + (0 if self.parked is None else len(self.parked.pending))


_new_write = maker(
    Write, tuple[Runs, Sequence[StateBatch], Sequence[tuple[int, int]], str | None, ParkingWrite | None, int]
)


class Saves:
    """Every Persist carries the two epochs.

    - `under_way`: by token.
    - `unsaved`: runs whose state is final, but not known to be saved; in order. The SPSO may have
      passed some of them since.
    - `passed`: markers and aborted records that were passed over since the last Persist, in order.
    - `has_given_up`: records have reached a lowered delivery limit since the last Persist.
    """

    __slots__ = (
        "_last_token",
        "_window",
        "has_given_up",
        "leader_epoch",
        "passed",
        "state_epoch",
        "under_way",
        "unsaved",
    )

    def __init__(self, window: InFlightWindow, *, state_epoch: int, leader_epoch: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.under_way: dict[int, Write] = {}
        self.unsaved: Runs = []
        self.passed: Runs = []
        self.has_given_up = False
        self._window = window
        self._last_token = 0

    def note(self, runs: Sequence[tuple[int, int]]) -> None:
        """The next Persist saves the present state of these runs."""
        self.unsaved = joined_runs([*self.unsaved, *runs])

    def note_again(self, write: Write) -> None:
        """The write has failed: the next one saves what is final of it."""
        self.note([*write.passed, *((batch.first_offset, batch.last_offset) for batch in write.decided)])
        self._window.given_up += write.given_up

    def begin(
        self,
        parking: Parking | None,
        pending: Runs,
        holder: str | None = None,
        parked: Answered = (),
        to_park: Sequence[Parked] = (),
    ) -> Persist:
        """Save what is pending, held by the member, together with everything that waits to be
        saved."""
        window, self.has_given_up = self._window, False
        if self.passed:
            self.note(self.passed)
            self.passed = []
        batches: list[StateBatch] = []
        for first, last in pending:
            batches += window.runs(first, last, STATE)
        decided: Sequence[StateBatch] = ()
        passed: Sequence[tuple[int, int]] = ()
        if self.unsaved:
            decided = list(self._decided(self.unsaved))
            lowest = self.unsaved[0][0]
            if lowest < window.start_offset:
                passed = ((lowest, window.start_offset - 1),)
            self.unsaved = []
            batches = sorted([*batches, *decided])
        changes: tuple[ParkingChange, ...] = ()
        write, waiting = None, 0
        if parking is not None and (parked or to_park or parking.has_unsaved):
            (changes, write), waiting = row_writes.begin(parking, parked, to_park), max(0, parking.waiting)
            if write.moved:
                places = self.from_start([(offset, offset) for offset in write.moved])
                batches = sorted(
                    [*batches, *(batch for place in places for batch in window.runs(*place, STATE))]
                )
        given_up = giving_up = 0
        for each in (window,) if parking is None else (window, parking.window):
            given_up, giving_up = given_up + each.given_up, giving_up + each.giving_up
            each.given_up = each.giving_up = 0
        token = self._last_token = self._last_token + 1
        self.under_way[token] = _new_write((pending, decided, passed, holder, write, given_up))
        head = token, self.state_epoch, self.leader_epoch, window.start_offset, window.complete
        return _new_persist((*head, tuple(batches), changes, waiting, (), given_up + giving_up))

    def begin_best_effort(
        self, parking: Parking | None, runs: Runs, to_park: Sequence[Parked] = ()
    ) -> Persist:
        """Save changes that are final whether that succeeds or not, except for `to_park`: those
        records are parked only if it does."""
        self.note(runs)
        return self.begin(
            parking, joined_runs([(parked.offset, parked.offset) for parked in to_park]), to_park=to_park
        )

    def from_start(self, runs: Sequence[tuple[int, int]]) -> Runs:
        """The parts of the runs that are not below the SPSO."""
        start_offset = self._window.start_offset
        return [(max(first, start_offset), last) for first, last in runs if last >= start_offset]

    def _decided(self, runs: Runs) -> Iterator[StateBatch]:
        """The present state of these runs from the SPSO on, except for records that are held or
        pending. Markers and aborted records are saved as acknowledged after no delivery."""
        end_offset = self._window.end_offset if self._window.states else -1
        for first, last in self.from_start(runs):
            for batch in self._window.runs(first, min(last, end_offset)) if first <= end_offset else ():
                if batch.state == PASSED:
                    yield batch._replace(state=RecordState.ACKNOWLEDGED)
                elif batch.state not in _UNDECIDED:
                    yield batch._replace(state=batch.state & STATE)
