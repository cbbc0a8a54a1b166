"""Dead letters of a share-partition (KIP-1191)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from kbroker.share import archiving
from kbroker.share.effects import DeadLetter, Persist
from kbroker.share.record_state import (
    ARCHIVING_CODES,
    DEAD_LETTER_CODES,
    PENDING_ARCHIVING_CODES,
    UNSAVED_ARCHIVING,
)
from kbroker.share.runs import joined_runs
from kbroker.share.share_writes import SharePartitionWrites

_FIRST_OFFSET = attrgetter("first_offset")


class SharePartitionDeadLetters(SharePartitionWrites):
    """See SharePartition."""

    @property
    def has_dead_letters(self) -> bool:
        """True if take_dead_letters() would give some."""
        if self.parking is not None and (not self.parking.knows_archiving or self.parking.has_dead_letters):
            return self.parking.knows_archiving
        return self._has(*DEAD_LETTER_CODES)

    def take_dead_letters(self) -> list[DeadLetter]:
        """Hand out what is ARCHIVING, saved, and was not handed out before, in offset order.
        Whoever takes it says what became of it with dead_lettered() or give_back_dead_letters()."""
        if self.parking is not None and not self.parking.knows_archiving:
            return []
        taken = archiving.take(self._window)
        parked = [] if self.parking is None else self.parking.take_dead_letters()
        return sorted([*taken, *parked], key=_FIRST_OFFSET) if parked else taken

    def dead_lettered(self, runs: Sequence[tuple[int, int]]) -> Persist | None:
        """These offsets, handed out before, are durable in the dead letter queue, or will never be:
        they are ARCHIVED. What the log start has passed meanwhile is skipped; None if nothing else
        is there. If the Persist fails they go with the next one.

        Raises ValueError for an offset that is not handed out, and then nothing has changed.
        """
        parked, runs = self._handed_out(runs)
        ended = archiving.end(self._window, joined_runs(runs))
        if self.parking is not None:
            self.parking.dead_lettered(parked)
        if not ended and not parked:
            return None
        self._counters.dead_lettered += len(parked) + sum(last - first + 1 for first, last in ended)
        persist = self._persist_best_effort(ended)
        self._advance()
        return persist

    def _handed_out(self, runs: Sequence[tuple[int, int]]) -> tuple[list[int], Sequence[tuple[int, int]]]:
        """Which of these offsets are parked, and the rest."""
        parked = [] if self.parking is None else self.parking.handed_out(runs)
        if not parked:
            return [], runs
        known = set(parked)
        rest = [offset for first, last in runs for offset in range(first, last + 1) if offset not in known]
        return parked, joined_runs([(offset, offset) for offset in rest])

    def give_back_dead_letters(self, runs: Sequence[tuple[int, int]]) -> None:
        """These offsets, handed out before, were not written: take_dead_letters() gives them
        again."""
        parked, runs = self._handed_out(runs)
        archiving.give_back(self._window, runs)
        if self.parking is not None:
            self.parking.give_back_dead_letters(parked)

    @property
    def has_unsaved_archiving(self) -> bool:
        """True if a failed write left records ARCHIVING that are not saved as that: time for
        retry_unsaved()."""
        if self.parking is not None and self.parking.has_unsaved_archiving:
            return True
        return any(self._window.has((UNSAVED_ARCHIVING,), first, last) for first, last in self._unsaved)

    @property
    def has_archiving(self) -> bool:
        """True while a record is or becomes ARCHIVING, or is still saved as that although it is
        ARCHIVED here: what was noted about its way into the dead letter queue may be needed. Then,
        with nothing else left to do, retry_unsaved()."""
        if self._unsaved or any(decided or passed for _, decided, passed, _, _ in self._writes.values()):
            return True
        if self.parking is not None and self.parking.has_archiving:
            return True
        return self._has(*ARCHIVING_CODES, *PENDING_ARCHIVING_CODES)
