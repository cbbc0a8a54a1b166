"""The dead letter queue beside queue_model.py: a writer that takes dead letters, writes them, and
is killed meanwhile.

A dead letter is in hand from take() on, and is then written to the queue or not. A written one is
reported as done, perhaps much later. Any other may be returned, or dropped if the configuration
forbids it. A crash loses the letters in hand, after some of them may have reached the queue. The
next life reads the queue before it writes, as the broker does after a crash only.
"""

from __future__ import annotations

from itertools import groupby
from random import Random

from kbroker.share.effects import DeadLetter, DeadLetterCause, Persist, StateBatch
from tests.share.engine import Engine

CAUSES = tuple(DeadLetterCause)


class DeadLetterModel:
    """`queue`: offset to the life that wrote it. `owed`: records that became ARCHIVING and were
    saved as such. `waived`: those of them that need not be in the queue."""

    def __init__(self) -> None:
        self.life = 0
        self.queue: dict[int, int] = {}
        self.in_hand: dict[int, DeadLetter] = {}
        self.owed: set[int] = set()
        self.waived: set[int] = set()

    def take(
        self,
        sp: Engine,
        expected: dict[int, tuple[int, DeadLetterCause]],
        saved: dict[int, tuple[int, int]],
    ) -> None:
        """`expected`: delivery count and cause of the ready records. `saved`: the state after a
        crash, as (count, state)."""
        assert sp.has_dead_letters == bool(expected)
        taken = sp.take_dead_letters()
        assert not sp.has_dead_letters
        letters = {
            offset: letter
            for letter in taken
            for offset in range(letter.first_offset, letter.last_offset + 1)
        }
        assert list(letters) == sorted(expected), "each once, in offset order"
        assert {
            offset: (letter.delivery_count, letter.cause) for offset, letter in letters.items()
        } == expected
        for offset in letters:
            assert offset in self.owed
            assert offset not in self.in_hand
            assert saved[offset] >= (expected[offset][0], 3), "a crash would forget it"
            assert self.queue.get(offset, -1) < self.life, "handed out again although it is in the queue"
        assert [(letter.first_offset, letter.last_offset) for letter in taken] == runs_of(
            sorted(letters), lambda o: expected[o]
        )
        self.in_hand |= letters

    def write(self, rnd: Random) -> None:
        """Append some of the letters in hand. After a restart those already in the queue have been
        found there."""
        for offset in self._some(rnd, [offset for offset in self.in_hand if offset not in self.queue]):
            assert offset in self.owed, "nobody gave it up"
            self.queue[offset] = self.life

    def end(self, sp: Engine, rnd: Random) -> tuple[Persist | None, set[int]]:
        """Report some letters in the queue as done; sometimes also some that the configuration
        excludes."""
        done = [offset for offset in self.in_hand if offset in self.queue]
        if rnd.random() < 0.05:
            done = list(self.in_hand)
        ended = set(self._some(rnd, done))
        self.waived |= ended - self.queue.keys()
        for offset in ended:
            del self.in_hand[offset]
        return sp.dead_lettered(runs_of(sorted(ended))), ended

    def give_back(self, sp: Engine, rnd: Random) -> set[int]:
        back = set(self._some(rnd, [offset for offset in self.in_hand if offset not in self.queue]))
        for offset in back:
            del self.in_hand[offset]
        sp.give_back_dead_letters(runs_of(sorted(back)))
        return back

    def log_start_moved(self, offset: int) -> None:
        self.waived |= {owed for owed in self.owed if owed < offset and owed not in self.queue}

    def crash(self, rnd: Random) -> None:
        if rnd.random() < 0.5:
            self.write(rnd)
        self.in_hand = {}
        self.life += 1

    def check_all_written(self) -> None:
        """Each dead letter is in the queue. Duplicates were detected when they were written."""
        assert not self.in_hand
        assert self.owed - self.waived <= self.queue.keys()

    @staticmethod
    def _some(rnd: Random, offsets: list[int]) -> list[int]:
        return offsets if rnd.random() < 0.3 else [offset for offset in offsets if rnd.random() < 0.5]


def runs_of(offsets: list[int], alike: object = None) -> list[tuple[int, int]]:
    """Sorted offsets as runs; `alike` separates neighbors for which it returns different values."""
    key = alike if callable(alike) else lambda _: None
    runs = []
    for _, run in groupby(enumerate(offsets), lambda entry: (entry[1] - entry[0], key(entry[1]))):
        members = [offset for _, offset in run]
        runs.append((members[0], members[-1]))
    return runs


def by_offset(batches: tuple[StateBatch, ...]) -> dict[int, StateBatch]:
    """No offset appears twice."""
    said = {offset: batch for batch in batches for offset in range(batch.first_offset, batch.last_offset + 1)}
    assert len(said) == sum(batch.last_offset + 1 - batch.first_offset for batch in batches)
    return said
