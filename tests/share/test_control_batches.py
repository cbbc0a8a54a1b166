"""Control batches in the log: never acquired, not in flight, and never in the way of other records.
The broker's own are left out of the lag; those of transactions are finished for the group."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kbroker.share import offers
from kbroker.share.acquire import Control, runs_of
from kbroker.share.effects import AckBatch, AcquiredRange, Persist, ShareSettings, StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.record_state import AVAILABLE, HOLE
from kbroker.share.share_partition import AcquireMode, SharePartition
from kbroker.share.state_batches import combine

ACCEPT, RELEASE = 1, 2
Batches = list[tuple[int, int]]
KINDS = {"D": None, "C": False, "M": True}
"""Data, the broker's own control batches, and markers or batches of aborted transactions."""


class Queue:
    """A share-partition over a log of batches (KINDS), read from the front, `at_once` batches at a
    time."""

    def __init__(
        self,
        log: str,
        *,
        at_once: int = 1000,
        locks: int = 2000,
        start: int = 0,
        batches: tuple[StateBatch, ...] = (),
    ) -> None:
        self.log: list[tuple[int, int, bool | None]] = []
        for word in log.split():
            self.append(word[0], int(word[1:]))
        self.at_once = at_once
        self.settings = ShareSettings(max_record_locks=locks)
        self.load(start, batches)

    def load(self, start: int, batches: tuple[StateBatch, ...]) -> None:
        self.start, self.batches = start, batches
        self.complete = 0
        self.sp = SharePartition.load(
            self.settings, start_offset=start, state_batches=batches, state_epoch=0, leader_epoch=0
        )

    def append(self, kind: str, size: int) -> None:
        self.log.append((self.end, self.end + size - 1, KINDS[kind]))

    @property
    def end(self) -> int:
        return self.log[-1][1] + 1 if self.log else 0

    def data(self) -> set[int]:
        return {
            offset
            for first, last, is_finished in self.log
            if is_finished is None
            for offset in range(first, last + 1)
        }

    def fetch(
        self, member: str = "m", max_records: int = 500, *, by_record: bool = False
    ) -> list[tuple[int, int, int]]:
        """As the broker does it: continue reading while the batches read have nothing to
        deliver."""
        while (
            offers.offset_to_acquire(self.sp) is not None
            and (offset := self.sp.window.next_fetch_offset()) < self.end
        ):
            found = [each for each in self.log if each[1] >= offset][: self.at_once]
            ranges: list[AcquiredRange] = self.sp.acquire(
                member,
                mode=AcquireMode.RECORD_LIMIT if by_record else AcquireMode.BATCH_OPTIMIZED,
                batch_size=max_records,
                max_records=max_records,
                fetch_offset=offset,
                batches=[(first, last) for first, last, is_finished in found if is_finished is None],
                control=[
                    Control(first, last, is_finished)
                    for first, last, is_finished in found
                    if is_finished is not None
                ],
                now_ms=0,
            )
            if not ranges and (passed := self.sp.save_passed()) is not None:
                self._saved(passed)
            if ranges or self.sp.window.next_fetch_offset() == offset:
                return [tuple(each) for each in ranges]
        return []

    def _saved(self, persist: Persist) -> None:
        self.start = max(self.start, persist.start_offset)
        self.complete = persist.delivery_complete_count
        self.batches = combine(self.batches, persist.batches, self.start)
        self.sp.persisted(persist.token)

    def lag(self) -> int:
        """As it is stored. The persister leaves out the broker's own control batches."""
        own = sum(last + 1 - first for first, last, kind in self.log if kind is False and first >= self.start)
        return self.end - self.start - self.complete - own

    def ack(self, first: int, last: int, kind: int = ACCEPT, member: str = "m") -> None:
        persist = self.sp.acknowledge(member, [AckBatch(first, last, (kind,))], now_ms=0)
        assert persist is not None
        self._saved(persist)

    def unread(self) -> list[int]:
        """Offsets of the window whose content is unknown."""
        window = self.sp.window
        return [
            offset
            for offset, code in enumerate(window.states, window.base)
            if code == HOLE and offset >= window.start_offset
        ]

    def reload(self) -> None:
        self.load(self.start, self.batches)


def test_entries_end_where_a_control_batch_begins() -> None:
    queue = Queue("D3 C1 D2 C2 D4")
    assert queue.fetch() == [(0, 2, 1), (4, 5, 1), (8, 11, 1)]
    statistics = queue.sp.statistics()
    assert (statistics.in_flight, statistics.acquired, statistics.end_offset) == (9, 9, 11)


@pytest.mark.parametrize("by_record", [False, True])
def test_a_record_at_its_last_delivery_comes_alone(by_record: bool) -> None:  # THR-6
    """A control batch does not let later records be delivered with it."""
    queue = Queue("D1 C1 D3", batches=(StateBatch(0, 0, AVAILABLE, 4),))
    assert queue.fetch(by_record=by_record) == [(0, 0, 5)]
    assert queue.fetch(by_record=by_record) == [(2, 4, 1)]


@pytest.mark.parametrize("by_record", [False, True])
def test_a_record_at_its_last_delivery_follows_no_others(by_record: bool) -> None:  # THR-6
    """Nor are records before the control batch delivered with it."""
    suspect = StateBatch(0, 2, AVAILABLE, 1), StateBatch(4, 4, AVAILABLE, 4)
    queue = Queue("D3 C1 D1", batches=suspect)
    assert queue.fetch(by_record=by_record) == [(0, 2, 2)]
    assert queue.fetch(by_record=by_record) == [(4, 4, 5)]


def test_nothing_but_control_batches_is_nothing_to_do() -> None:
    """Reading resumes after them, so that the next fetch does not read them again."""
    queue = Queue("C1 C1 C3")
    assert queue.fetch() == []
    assert (queue.sp.window.next_fetch_offset(), queue.sp.start_offset, queue.sp.statistics().in_flight) == (
        5,
        5,
        0,
    )
    assert queue.sp.is_settled


def test_trailing_ones_are_not_waited_for() -> None:
    queue = Queue("D2 C1 C1")
    assert queue.fetch(max_records=2) == [(0, 1, 1)]
    assert queue.fetch() == []
    assert queue.sp.window.next_fetch_offset() == queue.end
    queue.ack(0, 1)
    assert (queue.sp.start_offset, queue.sp.window.complete) == (4, 0)


def test_the_start_moves_past_them() -> None:
    queue = Queue("D1 C1 D1 C1 D1")
    queue.fetch()
    queue.ack(2, 2)
    assert (queue.sp.start_offset, queue.sp.window.complete) == (0, 1)
    queue.ack(0, 0)
    assert (queue.sp.start_offset, queue.sp.window.complete) == (4, 0)


def test_they_take_no_room() -> None:
    """Kafka counts the offsets between SPSO and SPEO; 20 groups would then leave a queue a 20th of
    its locks."""
    queue = Queue("D1 C30 " * 120, locks=100)
    assert len(queue.fetch()) == 100
    assert queue.sp.statistics().in_flight == 100
    assert queue.fetch() == []
    queue.ack(0, 0)
    assert queue.fetch() == [(3100, 3100, 1)]


@pytest.mark.parametrize("by_record", [False, True])
def test_a_limit_ends_between_them(by_record: bool) -> None:
    queue = Queue("D2 C1 D2 C1 D2")
    assert queue.fetch(max_records=3, by_record=by_record) == [(0, 1, 1), (3, 3 if by_record else 4, 1)]
    assert queue.sp.window.next_fetch_offset() == (4 if by_record else 6)
    assert queue.fetch() == ([(4, 4, 1), (6, 7, 1)] if by_record else [(6, 7, 1)])


def test_what_comes_back_is_delivered_around_them() -> None:
    queue = Queue("D3 C1 D3 C1 D2")
    queue.fetch()
    queue.ack(1, 2, RELEASE)
    queue.ack(4, 4, RELEASE)
    assert queue.fetch("n") == [(1, 2, 2), (4, 4, 2)]
    assert queue.fetch("n") == []


def test_after_a_restart() -> None:
    """The loaded state does not mention them: they are holes of the gap window until they are
    read."""
    queue = Queue("D2 C1 D2 C1 D2")
    queue.fetch()
    queue.ack(0, 0)
    queue.ack(3, 4)
    queue.reload()
    assert (queue.sp.start_offset, queue.sp.end_offset) == (1, 4)
    assert queue.fetch() == [(1, 1, 1), (6, 7, 1)]
    assert queue.sp.statistics().in_flight == 5
    queue.ack(1, 1)
    queue.ack(6, 7)
    assert queue.sp.start_offset == 8
    queue.reload()
    assert queue.fetch() == []
    assert queue.sp.window.next_fetch_offset() == 8


def test_the_window_does_not_grow_without_end() -> None:
    """One record is held forever, with a million acknowledgements of others after it."""
    queue = Queue(f"D1 C{MAX_SPAN - 1} C{MAX_SPAN} D1")
    assert queue.fetch() == [(0, 0, 1)]
    assert queue.fetch() == []
    assert queue.sp.end_offset == MAX_SPAN - 1
    queue.ack(0, 0)
    assert queue.fetch() == [(2 * MAX_SPAN, 2 * MAX_SPAN, 1)]


def test_runs_of_what_was_read() -> None:
    assert list(runs_of([(0, 1), (2, 3)], [])) == [([(0, 1), (2, 3)], None)]
    control = [Control(2, 2, False), Control(7, 7, True), Control(8, 8, True), Control(9, 9, False)]
    assert list(runs_of([(0, 1), (3, 4), (5, 6), (10, 10)], control)) == [
        ([(0, 1)], None),
        ([(2, 2)], False),
        ([(3, 4), (5, 6)], None),
        ([(7, 7), (8, 8)], True),
        ([(9, 9)], False),
        ([(10, 10)], None),
    ]
    assert list(runs_of([], [Control(2, 2, True)])) == [([(2, 2)], True)]


@pytest.mark.parametrize("log", ["D1 M1", "D1 M3 D1 M1", "M2", "D2 C1 M1", "M1 D1 M4 C2"])
def test_markers_are_no_lag(log: str) -> None:
    """ISO-4."""
    queue = Queue(log)
    while ranges := queue.fetch():
        for first, last, _ in ranges:
            queue.ack(first, last)
    assert queue.lag() == 0
    queue.reload()
    assert queue.fetch() == []


def test_returned_records_of_an_aborted_transaction_are_given_up() -> None:
    queue = Queue("D2 D1")
    assert queue.fetch() == [(0, 2, 1)]
    queue.log[0] = (0, 1, True)
    queue.ack(0, 1, RELEASE)
    assert queue.fetch() == []
    queue.ack(2, 2)
    assert queue.sp.start_offset == 3
    assert queue.lag() == 0


@pytest.mark.parametrize("seed", range(60))
def test_random_work(seed: int) -> None:
    """Appends, fetches, acknowledgements and restarts in any order: each record ends acknowledged,
    no control batch is ever touched."""
    rng = random.Random(seed)
    queue = Queue("", at_once=rng.choice((1, 2, 3, 1000)), locks=rng.choice((100, 2000)))
    held: dict[int, str] = {}
    delivered: Counter[int] = Counter()
    accepted: set[int] = set()
    for step in range(260):
        kind = rng.choice(("D", "C", "M", "M", "fetch", "fetch", "ack", "ack", "ack", "reload"))
        if step >= 200:
            kind = rng.choice(("fetch", "ack"))
        if kind in KINDS:
            queue.append(kind, rng.choice((1, 1, 2, 5)))
        elif kind == "reload" and rng.random() < 0.2:
            queue.reload()
            held.clear()
        elif kind == "fetch":
            member = rng.choice("mn")
            for first, last, _ in queue.fetch(member, rng.choice((1, 3, 500)), by_record=rng.random() < 0.5):
                for offset in range(first, last + 1):
                    assert offset in queue.data()
                    assert offset not in held
                    assert offset not in accepted
                    held[offset] = member
                    delivered[offset] += 1
        elif held:
            offset = rng.choice(list(held))
            release = rng.random() < 0.3 and delivered[offset] < 3
            queue.ack(offset, offset, RELEASE if release else ACCEPT, held.pop(offset))
            if not release:
                accepted.add(offset)
        unread = len(queue.unread())  # after a restart these may be either
        assert queue.sp.statistics().in_flight - unread <= len(
            [each for each in queue.data() if each >= queue.sp.start_offset]
        )
    while held:
        offset, member = held.popitem()
        queue.ack(offset, offset, ACCEPT, member)
    while ranges := queue.fetch():
        for first, last, _ in ranges:
            queue.ack(first, last)
    assert queue.sp.window.next_fetch_offset() == queue.end
    assert queue.unread() == []
    assert queue.lag() == 0
    assert queue.sp.statistics().available == queue.sp.statistics().acquired == 0
