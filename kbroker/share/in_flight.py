"""The in-flight window of a share-partition: how commands change its columns (columns.py).

    place, pass_over            records that were read join it
    take, answer, give_back     members acquire, finish and return records
    settle, roll_back           a save has succeeded or failed
    advance, drop_below         the SPSO moves

Each method works on a range of offsets with a few bytes operations, and keeps the counters of the
window right.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby

from kbroker.share.columns import WindowColumns
from kbroker.share.effects import ShareSettings, StateBatch
from kbroker.share.locks import ANSWERED, Lock
from kbroker.share.record_state import (
    ACQUIRED,
    AVAILABLE,
    BEHIND,
    CONTROL,
    HOLE,
    PASSABLE,
    PASSED,
    PENDING,
    SETTLE,
    TERMINAL_CODES,
    TERMINAL_OR_PENDING,
    WAITING,
    RecordState,
)
from kbroker.share.rules import ACKNOWLEDGED, COUNT_UP, Event, code_of_stored, returned

MAX_SPAN = 1 << 20
"""The window never spans more offsets, whatever a batch header claims. The rest is read later."""

_RELEASE = int(Event.RELEASE)
_REJECT = int(Event.REJECT)
_ARCHIVED_PENDING = RecordState.ARCHIVED | PENDING
_ACQUIRED_BYTE = bytes([ACQUIRED])
_HOLE_BYTE = bytes([HOLE])
_SINGLE = tuple(bytes([code]) for code in range(256))
_NOT_BEHIND = bytes(AVAILABLE if code == BEHIND else code for code in range(256))
_STRIP_CHUNK = 512
_SET_UP_TO = 20_000
_TRIM_FROM = 512


class InFlightWindow(WindowColumns):
    """WindowColumns with the changes that commands make. Offsets are absolute, `i` and `j` are
    column indexes."""

    __slots__ = ()

    def renew(
        self, member_id: str, first: int, last: int, deadline_ms: float, since_ms: float | None = None
    ) -> None:
        """Put first..last, all held by the member, under a new Lock. `since_ms`: as in Lock."""
        i, j = first - self.base, last + 1 - self.base
        number = self.new_lock(member_id, first, last, deadline_ms)
        self.locks.by_number[number].since_ms = since_ms
        self.lock_numbers[i:j] = array("I", [number]) * (j - i)

    def new_lock(self, member_id: str, first: int, last: int, deadline_ms: float) -> int:
        """Returns the number of a new Lock; the caller writes it into the column."""
        if len(self.locks.by_deadline) > self.locks.sweep_at:
            # For a long window, the set of its numbers costs more than checking each lock.
            live = set(self.lock_numbers) if len(self.lock_numbers) <= _SET_UP_TO else None
            self.locks.sweep(lambda lock: (live is None or lock.number in live) and self._in_use(lock))
        return self.locks.grant(member_id, first, last, deadline_ms)

    def end_prolonging(self, member_id: str, runs: Sequence[tuple[int, int]]) -> None:
        """The member has finished with these records although it holds them: their locks are no
        longer prolonged."""
        held = [
            (run, lock)
            for lock in self.locks.of_member(member_id)
            if lock.since_ms != ANSWERED
            for run in self.held_runs(lock)
        ]
        for (held_first, held_last), lock in held:
            for first, last in runs:
                if first <= held_last and last >= held_first:
                    first, last = max(first, held_first), min(last, held_last)
                    self.renew(member_id, first, last, lock.deadline_ms, ANSWERED)

    def first_lock_ms(self, member_id: str) -> float | None:
        """When the first lock ends under which the member holds a record; None: it holds none."""
        locks = (lock for lock in self.locks.by_deadline if lock.member_id == member_id)
        return next((lock.deadline_ms for lock in locks if any(self.held_runs(lock))), None)

    def next_lock_ms(self) -> float | None:
        """When the next lock runs out. Locks that hold nothing any more are forgotten before it."""
        by_deadline = self.locks.by_deadline
        while by_deadline and not self._in_use(by_deadline[0]):
            del self.locks.by_number[by_deadline.popleft().number]
        return by_deadline[0].deadline_ms if by_deadline else None

    def holder_of(self, offset: int) -> str:
        """Of an acquired record."""
        return self.locks.by_number[self.lock_numbers[offset - self.base]].member_id

    def _in_use(self, lock: Lock) -> bool:
        if lock.first == lock.last >= self.start_offset:
            i, number = lock.first - self.base, lock.number
            code = self.states[i]
            return self.lock_numbers[i] == number and (code == ACQUIRED or code & PENDING != 0)
        i, j = max(lock.first, self.start_offset) - self.base, lock.last + 1 - self.base
        columns = zip(self.lock_numbers[i:j], self.states[i:j], strict=True) if i < j else ()
        return any(number == lock.number and (code == ACQUIRED or code & PENDING) for number, code in columns)

    def place(self, first: int, last: int, acquired_last: int, number: int) -> None:
        """Add a cached batch first..last, in a hole or behind the SPEO. Offsets up to
        `acquired_last` are delivered once under the Lock `number`, the rest is AVAILABLE. A batch
        in front of all cached ones moves the SPSO back to itself."""
        if not self.states:
            self.base = self.start_offset = first
        elif self.states[self.start_offset - self.base] == HOLE and not self.cached_below(first):
            self.start_offset = first
        i, size = first - self.base, last - first + 1
        if last > self.end_offset:
            self.end_offset = last
        if size == 1 and i == len(self.states) and acquired_last == last:
            self.states += _ACQUIRED_BYTE
            self.counts += b"\1"
            self.marks += b"\1"
            self.lock_numbers.append(number)
            return
        held = acquired_last - first + 1
        if i > len(self.states):  # The log has no records between the SPEO and here.
            self._append(HOLE, i - len(self.states))
        j, rest = i + size, size - held
        self.states[i:j] = _ACQUIRED_BYTE * held + bytes(rest)
        self.counts[i:j] = b"\1" * held + bytes(rest)
        self.marks[i:j] = b"\1" + bytes(size - 1)
        numbers = array("I", [number]) * held
        if rest:
            self.undelivered += rest
            numbers.frombytes(bytes(4 * rest))
            self.available_from = min(self.available_from, acquired_last + 1)
        self.lock_numbers[i:j] = numbers
        if j < len(self.states) and self.states[j] == HOLE:
            self.marks[j] = 1

    def pass_over(self, first: int, last: int, code: int = CONTROL) -> None:
        """The log has control batches at first..last: holes there, and offsets behind the SPEO,
        become CONTROL. Offsets between the SPEO and `first` become holes. The window does not grow
        beyond MAX_SPAN. `code`: PASSED for offsets that are finished for the group."""
        if not self.states:
            if last >= self.start_offset:
                self.clear(last + 1)
            return
        i, j = max(first, self.start_offset) - self.base, min(last, self.end_offset) + 1 - self.base
        while i < j and (i := self.states.find(HOLE, i, j)) >= 0:
            size = len(self.states[i:j]) - len(self.states[i:j].lstrip(_HOLE_BYTE))
            self.states[i : i + size] = _SINGLE[code] * size
            self.complete += size if code == PASSED else 0
            self.marks[i] = 1
            i += size
            if i < len(self.states):
                self.marks[i] = 1
        if first <= self.gap_start <= last:
            self.gap_start = last + 1
        last = min(last, self.start_offset + MAX_SPAN - 1)
        if last > self.end_offset:
            first = max(first, self.end_offset + 1)
            if first > last:  # Behind a long hole: the SPSO has to pass what is before it.
                return
            self._append(HOLE, first - self.end_offset - 1)
            self._append(code, last - first + 1)
            self.complete += last - first + 1 if code == PASSED else 0
            self.end_offset = last

    def place_ahead(self, first: int, last: int) -> None:
        """Add AVAILABLE records first..last behind the SPEO. Offsets before them become a hole of
        the gap window."""
        has_gap, missing = self.has_gap, first - self.unread_from
        if not has_gap:
            self.gap_start = self.unread_from
        self._append(HOLE, missing)
        self._append(AVAILABLE, last - first + 1)
        self.undelivered += last - first + 1
        self.available_from = min(self.available_from, first)
        self.end_offset = last
        self.gap_end = last if missing or has_gap else -1

    def _append(self, code: int, size: int) -> None:
        """So many offsets behind the last one, never delivered, as one cached batch or hole."""
        if size:
            self.states += _SINGLE[code] * size
            self.counts += bytes(size)
            self.marks += b"\1" + bytes(size - 1)
            self.lock_numbers.frombytes(bytes(4 * size))

    def put(self, offset: int, code: int, count: int) -> None:
        """A record takes this place of a window of returned records: the next one, or a vacant
        one."""
        i = offset - self.base
        if i == len(self.states):
            self.states.append(code)
            self.counts.append(count)
            self.marks.append(1)
            self.lock_numbers.append(0)
            self.end_offset = offset
        else:
            self.states[i], self.counts[i], self.lock_numbers[i] = code, count, 0
        self.undelivered += code == AVAILABLE and not count
        self.available_from = min(self.available_from, offset)

    def vacate(self, offset: int) -> int:
        """The record leaves its place, which becomes a hole. Returns its delivery count."""
        i = offset - self.base
        code, count = self.states[i], self.counts[i]
        self.undelivered -= code == AVAILABLE and not count
        self.complete -= code in TERMINAL_OR_PENDING
        self.states[i] = HOLE
        return count

    def take(self, i: int, j: int, number: int) -> None:
        """Column indexes i..j-1, all AVAILABLE with one delivery count, are delivered again under
        the Lock `number`."""
        if not self.counts[i]:
            self.undelivered -= j - i
        if j - i == 1:
            self.states[i], self.lock_numbers[i] = ACQUIRED, number
            count = self.counts[i] = COUNT_UP[self.counts[i]]
            self.highest_count = max(self.highest_count, count)
            return
        self.states[i:j] = _ACQUIRED_BYTE * (j - i)
        self.counts[i:j] = self.counts[i:j].translate(COUNT_UP)
        self.highest_count = max(self.highest_count, self.counts[i])
        self.lock_numbers[i:j] = array("I", [number]) * (j - i)

    def answer(self, first: int, last: int, types: Sequence[int], settings: ShareSettings) -> None:
        """Their holder has answered for first..last: one acknowledge type for all, or one for each
        offset; no renewals. They are PENDING."""
        acknowledged = ACKNOWLEDGED[settings.dead_letter_queue]
        if len(types) == 1:
            if types[0] == _RELEASE:
                self.exhausted += self.give_back(first, last, returned(Event.RELEASE, settings))
                return
            if types[0] == _REJECT:
                self.rejected += last - first + 1
                self.giving_up += 0 if settings.dead_letter_queue else last - first + 1
            self._set_code(first, last, acknowledged[types[0]])
            return
        kinds = bytes(types)
        codes = bytearray(kinds.translate(acknowledged))
        before = self.rejected + self.exhausted
        self.rejected += kinds.count(_REJECT)
        at = kinds.find(_RELEASE)
        if at >= 0:
            by_count = returned(Event.RELEASE, settings)
            counts = self.counts_of(first, last)
            while at >= 0:  # Usually a few of many.
                codes[at] = by_count[counts[at]]
                at = kinds.find(_RELEASE, at + 1)
            self.exhausted += kinds.count(_RELEASE) - codes.count(by_count[0])
        self.giving_up += 0 if settings.dead_letter_queue else self.rejected + self.exhausted - before
        self._set_codes(first, codes)

    def dead_lettered(self, first: int, last: int) -> None:
        """The dead letters of first..last are written."""
        self.given_up += last - first + 1
        self._set_code(first, last, RecordState.ARCHIVED)

    def _set_code(self, first: int, last: int, code: int) -> None:
        """Set one code for all of first..last; none of them was terminal."""
        i, size = first - self.base, last - first + 1
        if size == 1:
            self.states[i] = code
        else:
            self.states[i : i + size] = _SINGLE[code] * size
        if code in TERMINAL_OR_PENDING:
            self.complete += size

    def _set_codes(self, first: int, codes: bytes | bytearray) -> None:
        """Set a code per offset from `first` on; none of them was terminal."""
        i = first - self.base
        self.states[i : i + len(codes)] = codes
        self.complete += sum(map(codes.count, TERMINAL_OR_PENDING))

    def give_back(self, first: int, last: int, table: bytes) -> int:
        """Records return, in a state by delivery count (`returned` of rules.py). Returns how many
        are given up because of it."""
        i, j = first - self.base, last + 1 - self.base
        counts = self.counts[i:j]
        available = table[0]
        if counts.count(counts[0]) == j - i:
            code = table[counts[0]]
            self._set_code(first, last, code)
            came_back = j - i if code == available else 0
        else:
            codes = counts.translate(table)
            self._set_codes(first, codes)
            came_back = codes.count(available)
        if came_back and available == AVAILABLE and first < self.available_from:
            self.available_from = first
        if table[-1] == RecordState.ARCHIVED:
            self.given_up += j - i - came_back
        elif table[-1] == _ARCHIVED_PENDING:
            self.giving_up += j - i - came_back
        return j - i - came_back

    def discard_available(self, first: int, last: int) -> list[tuple[int, int]]:
        """The log no longer has the AVAILABLE offsets of first..last, waiting or not: they become
        ARCHIVED. Returns their runs."""
        discarded = [
            (run[0], run[1]) for run in self.runs(first, last) if run.state in (AVAILABLE, WAITING, BEHIND)
        ]
        for run_first, run_last in discarded:
            self.undelivered -= self._undelivered_in(run_first, run_last)
            self._set_code(run_first, run_last, RecordState.ARCHIVED)
        return discarded

    def recode(self, first: int, last: int, table: bytes) -> None:
        """Change flags of first..last by a bytes.translate table, which makes no code AVAILABLE or
        terminal."""
        i, j = first - self.base, last + 1 - self.base
        self.states[i:j] = self.states[i:j].translate(table)

    # ---- the record at one offset of the window --------------------------------------------------

    def code_at(self, offset: int) -> int | None:
        """None: the offset is not in the window."""
        if not self.states or not self.start_offset <= offset <= self.end_offset:
            return None
        return self.states[offset - self.base]

    def move_out(self, offset: int) -> None:
        """The record is parked once that is saved, and its place here is final then."""
        self._leave_undelivered(offset)
        self._set_code(offset, offset, _ARCHIVED_PENDING)

    def archive(self, offset: int) -> None:
        """An AVAILABLE record is given up, without a dead letter."""
        self.given_up += 1
        self._leave_undelivered(offset)
        self._set_code(offset, offset, RecordState.ARCHIVED)

    def _leave_undelivered(self, offset: int) -> None:
        i = offset - self.base
        self.undelivered -= self.states[i] == AVAILABLE and not self.counts[i]

    def put_behind(self, offset: int) -> None:
        """An AVAILABLE record: another one of its key is delivered first."""
        self._leave_undelivered(offset)
        self.states[offset - self.base] = BEHIND

    def go(self, offset: int) -> bool:
        """The record is no longer behind another one. False: it was not, or is not here."""
        if self.code_at(offset) != BEHIND:
            return False
        i = offset - self.base
        self.states[i] = AVAILABLE
        self.undelivered += not self.counts[i]
        self.available_from = min(self.available_from, offset)
        return True

    def end_order(self) -> None:
        """No record is behind another one any more."""
        first = self.start_offset - self.base
        self.undelivered += sum(
            code == BEHIND and not count
            for code, count in zip(self.states[first:], self.counts[first:], strict=True)
        )
        self.states[:] = self.states.translate(_NOT_BEHIND)
        self.available_from = self.start_offset

    def end_wait(self, offset: int) -> bool:
        """The record is due. True if it is AVAILABLE now; False if its return is still being saved,
        or it does not wait."""
        code, i = self.code_at(offset), offset - self.base
        if code is None or not code & WAITING:
            return False
        self.states[i] &= ~WAITING
        if self.states[i] != AVAILABLE:
            return False
        self.undelivered += not self.counts[i]
        self.available_from = min(self.available_from, offset)
        return True

    def wait(self, offset: int) -> bool:
        """Make the record wait. False if it is neither AVAILABLE nor waiting."""
        i = offset - self.base
        if self.states[i] not in (AVAILABLE, WAITING):
            return False
        self._leave_undelivered(offset)
        self.states[i] = WAITING
        return True

    def put_off_again(self, offset: int) -> bool:
        """The record could not be parked before its first delivery: it waits here. False if it has
        left the window."""
        if self.code_at(offset) is None:
            return False
        self.states[offset - self.base] = WAITING
        self.complete -= 1
        return True

    def settle(self, first: int, last: int) -> None:
        """Pending and unsaved codes of first..last are saved, and final."""
        if first < self.start_offset:
            first = self.start_offset
            if first > last:
                return
        i, j = first - self.base, last + 1 - self.base
        codes = self.states[i:j].translate(SETTLE)
        self.states[i:j] = codes
        if AVAILABLE in codes and first < self.available_from:
            self.available_from = first

    def roll_back(self, first: int, last: int, by_count: bytes, now_ms: float) -> list[tuple[int, int]]:
        """Return pending records of first..last to their holder. Where its lock has run out they
        are released by delivery count, or given up at the limit. Returns the runs whose lock has
        run out. The broker prolongs none of the others: their holder has answered."""
        first = max(first, self.start_offset)
        if first > last:
            return []
        self.complete -= self.count_of(TERMINAL_OR_PENDING, first, last)
        returned = []
        for number, run in groupby(self.lock_numbers[first - self.base : last + 1 - self.base]):
            run_last = first + len(list(run)) - 1
            lock = self.locks.by_number.get(number)
            if lock is not None and lock.deadline_ms > now_ms:
                self._set_code(first, run_last, ACQUIRED)
                if lock.since_ms != ANSWERED:
                    self.renew(lock.member_id, first, run_last, lock.deadline_ms, ANSWERED)
            else:
                self.exhausted += self.give_back(first, run_last, by_count)
                returned.append((first, run_last))
            first = run_last + 1
        return returned

    # ---- moving ----------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move the SPSO past terminal offsets, control batches and natural holes, but not past the
        start of an open gap window. If no offset is left, the window is empty and begins after its
        last one."""
        states, head = self.states, self.start_offset - self.base
        if not states or states[head] not in PASSABLE:
            return
        size = len(states)
        stop = min(size, self.gap_start - self.base) if self.gap_end == self.end_offset else size
        i = head
        while i < stop:
            chunk = states[i : i + _STRIP_CHUNK] if i + _STRIP_CHUNK < stop else states[i:stop]
            left = len(chunk.lstrip(PASSABLE))
            i += len(chunk) - left
            if left:
                break
        if i <= head:
            return
        if i == size:
            self.clear(self.end_offset + 1)
            return
        self.complete -= i - head - states.count(HOLE, head, i) - states.count(CONTROL, head, i)
        self._start_at(self.base + i)

    def drop_below(self, new_start_offset: int) -> None:
        """The log now begins at `new_start_offset` > SPSO: forget all records below it, held or
        not."""
        if not self.states or new_start_offset > self.end_offset:
            self.clear(new_start_offset)
            return
        finished = (*TERMINAL_OR_PENDING, PASSED)
        self.complete -= self.count_of(finished, self.start_offset, new_start_offset - 1)
        self.undelivered -= self._undelivered_in(self.start_offset, new_start_offset - 1)
        self._start_at(new_start_offset)

    def _undelivered_in(self, first: int, last: int) -> int:
        if not self.undelivered:
            return 0
        columns = zip(
            self.states[first - self.base : last + 1 - self.base], self.counts_of(first, last), strict=True
        )
        return sum(code == AVAILABLE and not count for code, count in columns)

    def _start_at(self, offset: int) -> None:
        self.start_offset = offset
        self.locks.forget_below(offset)
        head = offset - self.base
        if head >= _TRIM_FROM and 2 * head >= len(self.states):
            keep_from = self.marks.rfind(1, 0, head + 1)
            if keep_from > 0:
                del (
                    self.states[:keep_from],
                    self.counts[:keep_from],
                    self.marks[:keep_from],
                    self.lock_numbers[:keep_from],
                )
                self.base += keep_from

    def load(self, batches: Sequence[StateBatch], settings: ShareSettings) -> None:
        """Fill an empty window with saved state: batches in order from the SPSO on, without
        overlaps. The first hole before or between them opens the gap window."""
        next_offset, gap_start = self.start_offset, None
        for first, last, state, count in batches:
            size, missing = last - first + 1, first - next_offset
            if missing:
                gap_start = next_offset if gap_start is None else gap_start
                self.states += _HOLE_BYTE * missing
                self.counts += bytes(missing)
                self.marks += b"\1" + bytes(missing - 1)
            self.states += _SINGLE[code_of_stored(state, count, settings)] * size
            self.counts += bytes([count]) * size
            if state not in TERMINAL_CODES:
                self.highest_count = max(self.highest_count, count)
            self.marks += b"\1" + bytes(size - 1)
            next_offset = last + 1
        if not batches:
            return
        self.lock_numbers.frombytes(bytes(4 * len(self.states)))
        self.end_offset = next_offset - 1
        if gap_start is not None:
            self.gap_start, self.gap_end = gap_start, self.end_offset
        self.complete = self.count_of((*TERMINAL_CODES, PASSED), self.start_offset, self.end_offset)
        self.undelivered = sum(
            last - first + 1 for first, last, state, count in batches if state == AVAILABLE and not count
        )
