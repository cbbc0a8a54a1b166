"""Records of a share-partition on their way to the dead letter queue (KIP-1191), in the window
(archiving.py) or parked (parking.py). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from kbroker.share import archiving
from kbroker.share.effects import DeadLetter, Persist
from kbroker.share.record_state import (
    ARCHIVING_CODES,
    DEAD_LETTER_CODES,
    HANDED_OUT_CODES,
    PASSABLE,
    PENDING_ARCHIVING_CODES,
    UNSAVED_ARCHIVING,
)
from kbroker.share.runs import joined_runs, runs_of
from kbroker.share.share_writes import SharePartitionWrites

_FIRST_OFFSET = attrgetter("first_offset")
_FINISHED_BY_LETTERS = PASSABLE + DEAD_LETTER_CODES + HANDED_OUT_CODES


class SharePartitionDeadLetters(SharePartitionWrites):
    @property
    def letters_wait(self) -> bool:
        """Whether dead letters wait for room on the disk. Then their records are not counted as
        undecided (columns.py)."""
        return self._window.letters_wait

    @letters_wait.setter
    def letters_wait(self, value: bool) -> None:
        self._window.letters_wait = value

    @property
    def has_dead_letters(self) -> bool:
        """True if take_dead_letters() would return some."""
        if self.parking is not None and (not self.parking.knows_archiving or self.parking.has_dead_letters):
            return self.parking.knows_archiving
        return self._has(*DEAD_LETTER_CODES)

    def waits_for_letters(self, first: int, end_offset: int) -> bool:
        """Whether at least half of these offsets are finished, or will be with their dead
        letters."""
        window = self._window
        finished = min(window.start_offset, end_offset) - first
        finished += window.count_of(_FINISHED_BY_LETTERS, max(first, window.start_offset), end_offset - 1)
        return 2 * finished >= end_offset - first

    def take_dead_letters(self) -> list[DeadLetter]:
        """Hand out the records that are saved as ARCHIVING and are not handed out yet, in offset
        order. The caller reports each of them with dead_lettered() or give_back_dead_letters()."""
        if self.parking is not None and not self.parking.knows_archiving:
            return []
        taken = archiving.take(self._window)
        parked = [] if self.parking is None else self.parking.take_dead_letters()
        return sorted([*taken, *parked], key=_FIRST_OFFSET) if parked else taken

    def dead_lettered(self, runs: Sequence[tuple[int, int]]) -> Persist | None:
        """These offsets, handed out before, are durable in the dead letter queue, or never will be:
        they are ARCHIVED. Offsets that the log's start has passed meanwhile are skipped; None if no
        other is left. If the Persist fails, the next one carries them.

        Raises ValueError for an offset that is not handed out; nothing has changed then.
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
        """Splits these offsets into parked records and runs of the window."""
        parked = [] if self.parking is None else self.parking.handed_out(runs)
        if not parked:
            return [], runs
        known = set(parked)
        rest = [offset for first, last in runs for offset in range(first, last + 1) if offset not in known]
        return parked, runs_of(rest)

    def give_back_dead_letters(self, runs: Sequence[tuple[int, int]]) -> None:
        """These offsets, handed out before, were not written: take_dead_letters() returns them
        again."""
        parked, runs = self._handed_out(runs)
        archiving.give_back(self._window, runs)
        if self.parking is not None:
            self.parking.give_back_dead_letters(parked)

    @property
    def has_unsaved_archiving(self) -> bool:
        """True if a failed write left records ARCHIVING in memory only: time for
        retry_unsaved()."""
        if self.parking is not None and self.parking.has_unsaved_archiving:
            return True
        return any(self._window.has((UNSAVED_ARCHIVING,), first, last) for first, last in self._unsaved)

    @property
    def has_archiving(self) -> bool:
        """True while a record is ARCHIVING, is becoming so, or is still saved as ARCHIVING although
        it is ARCHIVED here. Notes about its way into the dead letter queue must be kept until then.
        With nothing else left to do, retry_unsaved() ends it."""
        if self._unsaved or any(decided or passed for _, decided, passed, _, _ in self._writes.values()):
            return True
        if self.parking is not None and self.parking.has_archiving:
            return True
        return self._has(*ARCHIVING_CODES, *PENDING_ARCHIVING_CODES)
