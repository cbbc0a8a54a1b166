"""The random worlds of tests/share over two engines."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from kbroker.share.effects import ShareSettings
from kbroker.share.redelivery import Redelivery
from tests.share.engine import Engine
from tests.share.key_order_world import OrderedWorld
from tests.share.parked_checks import MEMBERS
from tests.share.parked_store import Store
from tests.share.parked_world import World
from tests.share.queue_driver import ACCEPT
from tests.share.queue_model import CheckedQueue
from tests.share.queue_records import Write
from tests.share.shadow.old_engine import OldEngine
from tests.share.shadow.old_tree import as_old
from tests.share.shadow.pair import Judge, Pair, TwinStore

LOOK_EACH = 3
"""Everything that can be seen is compared after so many commands: each time would take most of the
time. Rows, and the results of calls, are compared at once."""


def look(judge: Judge, pair: Pair, now_ms: float, log_start: int, log_end: int) -> None:
    """What members, metrics and the broker's loops see."""
    pair.look(_SEEN)
    pair.look(("acquirable",), log_end)
    pair.look(("unfinished",), max(log_start, pair.start_offset), log_end)
    pair.look(("waits_for_letters",), log_start, log_end)
    pair.look(("in_flight_view",), now_ms, log_start)
    for member in (*MEMBERS, "drain"):
        pair.look(("first_lock_ms",), member)
    if judge.held is not None:
        judge.same("held", judge.held.new.counts(), judge.held.old.counts())


_SEEN = (
    "start_offset", "end_offset", "delivery_complete_count", "unread_from", "parked_ready", "ran_out",
    "has_given_up", "has_unsaved", "is_settled", "has_dead_letters", "has_archiving",
    "has_unsaved_archiving", "letters_wait", "statistics", "next_deadline_ms", "next_fetch_offset",
    "offset_to_acquire", "next_available",
)  # fmt: skip
_PARKED_SEEN = ("waiting", "floor", "kept_from", "needs_sweep", "knows_archiving", "scan_from")


class ShadowWorld(World):
    """In some lives, failed writes are saved as a whole. Then only the old engine says what is
    right: the promises of the worlds are not known to hold."""

    new_engine: ClassVar[type[Engine]] = Engine

    def __init__(self, rnd: Random) -> None:
        self.judge, self.checks = Judge(), 0
        self.saves_failed = rnd.choice((0.0, 0.0, 0.0, 0.2))
        self.jitter = rnd.choice((0.0, 0.5))
        self.marker_rate = rnd.choice((0.0, 0.0, 0.1, 0.3))
        super().__init__(rnd)
        self.alters_limit = rnd.random() < 0.7

    def first_settings(self, rnd: Random) -> ShareSettings:
        settings = super().first_settings(rnd)
        delay_ms = rnd.choice((30, 60, 60, 90, 300))
        return replace(settings, redelivery=Redelivery(delay_ms, 2, 600, self.jitter))

    def plan_beside_others(self) -> None:
        """Another member acquires records during a plan, and leaves in order."""
        if self.planned is None:
            self.plan()
        member = self.rnd.choice(MEMBERS)
        self.fetch_parked(member)
        self.release(member, in_order=True)
        while self.writes:
            self.settle()
        self.expire()
        self.plan()

    def read_beside_others(self) -> None:
        """Rows change while the store is read for the next ones to be due."""
        self.read()
        for _ in range(self.rnd.randint(1, 4)):
            commands = self._lose_rows, self._end_rows, self.retain, self.settle, self.leave
            self.rnd.choice(commands)()
        self.read()

    def _end_rows(self) -> None:
        """A member accepts the parked records that it holds."""
        member = self.rnd.choice(MEMBERS)
        held = [offset for offset, job in self.jobs.items() if job.member == member]
        parked = [offset for offset in held if offset in self.sp.rows]
        if parked:
            self._acknowledge(member, dict.fromkeys(parked, ACCEPT))
        while self.writes:
            self.settle()

    def _lose_rows(self) -> None:
        self.trim()
        self._move_log_start()
        self.sweep()
        self.sweep()
        self.settle()

    @property
    def is_sure(self) -> bool:
        return not self.saves_failed

    def first_store(self) -> Store:
        return TwinStore(self.judge)

    def engine(self) -> Any:
        assert isinstance(self.store, TwinStore)
        self.store.compare()
        self.judge.reloaded()
        new = self.new_engine(self.settings, self.store, **self._times())
        old = OldEngine(as_old(self.settings), self.store.old, **self._times())
        return Pair(new, old, self.judge)

    def check(self) -> None:
        assert isinstance(self.store, TwinStore)
        self.store.compare()
        self.checks += 1
        if self.checks % LOOK_EACH:
            return
        look(self.judge, self.sp, self.now_ms, self.log_start, self.log_end)
        self.sp.look(_PARKED_SEEN)
        self.sp.look(("in_turn",), 1 << 30)
        self.sp.look(("has_to_scan",), self.log_end)
        super().check()


class OrderedShadowWorld(ShadowWorld, OrderedWorld):
    pass


class ShadowQueue(CheckedQueue):
    """Of the window alone: batches of many records, control of the log, writes that end in any
    order."""

    is_sure = True

    def __init__(self, rnd: Random) -> None:
        self.judge, self.checks = Judge(), 0
        self.rows: TwinStore | None = None
        super().__init__(rnd)

    def engine(self) -> Any:
        if self.rows is None:
            self.rows = TwinStore(self.judge, self.saved_start)
        self.rows.compare()
        self.judge.reloaded()
        engines = [
            Engine(self.settings, self.rows, parks=False),
            OldEngine(as_old(self.settings), self.rows.old, parks=False),
        ]
        return Pair(*engines, self.judge)

    def _save(self, write: Write) -> None:
        super()._save(write)
        assert self.rows is not None
        self.rows.keep_state(write.persist)
        self.rows.compare()

    def check(self, *, settled: bool = False) -> None:
        self.checks += 1
        if self.checks % LOOK_EACH == 0:
            look(self.judge, self.sp, self.now_ms, self.log_start, self.log_end)
        super().check(settled=settled)
