"""Group commit: all writes to one store that gathered while the last commit ran are one write() and
one sync().

One `GroupCommit` per store, at most one commit in flight, no timer: the first entry of an idle
store is committed in the same tick, together with everything that other tasks of that tick submit.
Where the engine allows, write() runs on the loop and only sync() in the store's thread; an engine
that ties writes to a thread (LMDB) does both there in one hop.

A task that writes alone has its group begun at once (`start`), and where that takes no thread,
ended too: this saves each request one or two turns of the loop. As soon as another one writes as
well, the committer's task collects what comes in one tick, which saves more.

With durability `os` a sync follows in the background. Nothing waits for it where the engine allows
a write() beside a sync(); operations do, as they share its thread.

Entries are told twice: `on_written` (the data survives kill -9) and `on_done` (it counts: synced
with durability `disk`, written with `os`). Both run on the loop in the order of submission, so
visibility moves in offset order.

A full disk refuses the group and everything queued behind it, so that whoever stamped offsets on
top of a refused entry is refused as well and can roll back; the next entry starts afresh.
StoreFailed refuses everything until restart.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar, cast

import outcome
import trio

from kbroker.broker.commits.thread import CommitThread
from kbroker.broker.commits.waiting import Decision, OnDone
from kbroker.errors import NoSpace, StoreFailed
from kbroker.metrics import SECONDS, Histogram

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Answer = TypeVar("Answer")

_ALONE = 3
"""Starts of one task in a row after which it is taken to write alone. Of two tasks that write in
the same ticks, in whatever order, one may start twice in a row."""
_REPORT_EVERY_S = 10.0
"""How often a full disk is reported: thousands of writes may be refused in a second, and the log
may lie on that disk."""


class _Entry(NamedTuple):
    items: Sequence[Any]
    on_written: Callable[[], None] | None
    on_done: OnDone


class _Operation(NamedTuple):
    call: Callable[[], Any]
    task: trio.lowlevel.Task


@dataclass(frozen=True, slots=True)
class GroupCommitStatistics:
    """`entries` and `groups` since start; `failed` names the error after which nothing is written
    any more."""

    groups: int
    entries: int
    syncs: int
    refused: int
    pending: int
    failed: str | None


class GroupCommit(Generic[Item]):
    """`write` and `sync` are the store's; `durability` 'disk' syncs every group, 'os' every
    `sync_interval_s` in between. `in_thread` and `beside_sync` are the engine's `write_in_thread`
    and `write_beside_sync` (storage/spi.py)."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[Item]], None],
        sync: Callable[[], None],
        *,
        in_thread: bool,
        beside_sync: bool = False,
        durability: str,
        sync_interval_s: float = 0.1,
    ) -> None:
        self.name = name
        self._write = write
        self._sync = sync
        self._in_thread = in_thread
        self._beside_sync = beside_sync and not in_thread
        self._sync_each = durability == "disk"
        self._sync_interval_s = sync_interval_s
        self._thread = CommitThread(f"commit-{name}")
        self._queue: deque[_Entry | _Operation] = deque()
        self._idle_task: trio.lowlevel.Task | None = None
        self._is_in_flight = False  # a group is in the thread
        self._closing = False
        # set with durability 'os': something was written that no sync is announced for
        self._dirty = trio.Event()
        self._sync_is_due = False
        self._failure: StoreFailed | None = None
        self._crash: BaseException | None = None
        self._is_abandoned = False
        self._last_starter: trio.lowlevel.Task | None = None
        self._starts_in_a_row = 0
        self._is_reported_full = False
        self._next_report = -math.inf
        self.seconds = Histogram(SECONDS)
        """How long groups took to be kept: written, and synced where that is waited for."""
        self._counts = dict.fromkeys(("groups", "entries", "syncs", "refused"), 0)

    # -- asking
    # ----------------------------------------------------------------------------------------------

    def submit(
        self,
        items: Sequence[Item],
        on_done: OnDone,
        on_written: Callable[[], None] | None = None,
        *,
        start: bool = True,
    ) -> None:
        """Queue a write. Both callbacks run later, never inside this call; `on_done` gets None,
        NoSpace or StoreFailed.

        Who says `start=False` calls `start` before it waits for anything."""
        if self._is_abandoned:
            trio.lowlevel.current_trio_token().run_sync_soon(on_done, self._failure)
            return
        self._queue.append(_Entry(items, on_written, on_done))
        if start:
            self._wake()

    def start(self) -> None:
        """Begin to write what is queued; all of it may be written, and told, on return."""
        if not self._queue:
            return
        starter = trio.lowlevel.current_task()
        self._starts_in_a_row = self._starts_in_a_row + 1 if starter is self._last_starter else 1
        self._last_starter = starter
        self._go_on()

    async def commit(self, items: Sequence[Item]) -> None:
        """Write and wait until it counts; raises NoSpace or StoreFailed. Cancelling leaves the
        write under way."""
        decision = Decision()
        self.submit(items, decision.decide)
        await decision.wait()

    async def perform(self, operation: Callable[[], Answer]) -> Answer:
        """Run `operation` (creating, dropping, trimming) in the store's thread, after everything
        that was submitted before it."""
        if self._failure is not None:
            raise self._failure
        self._queue.append(_Operation(operation, trio.lowlevel.current_task()))
        self._wake()
        answer: Answer = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return answer

    async def flush(self) -> None:
        """What was committed survives a power cut on return, with durability `os` as well: for what
        is rare and must not be lost."""
        if not self._sync_each:
            await self.perform(self._sync)
            self._counts["syncs"] += 1

    def close(self) -> None:
        """Let `run` finish what is queued, sync and return."""
        self._closing = True
        self._wake()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def statistics(self) -> GroupCommitStatistics:
        failed = None if self._failure is None else str(self._failure)
        return GroupCommitStatistics(**self._counts, pending=len(self._queue), failed=failed)

    # -- working
    # ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The committer's task: until `close`, then one last sync. Shielded by its caller from
        cancellation."""
        async with self._thread.running(), trio.open_nursery() as nursery:
            nursery.start_soon(self._remind)
            try:
                await self._work()
            except BaseException as crash:
                self._abandon(crash)
                raise
            nursery.cancel_scope.cancel()

    def _abandon(self, crash: BaseException) -> None:
        """Nobody may go on waiting for a committer that has ended: then the broker could not end
        either."""
        failure = self._failure = self._failure or StoreFailed(f"nothing is written any more after {crash!r}")
        self._is_abandoned = True
        operations = [each for each in self._queue if isinstance(each, _Operation)]
        self._refuse([], failure)
        self._queue.clear()
        for operation in operations:
            trio.lowlevel.reschedule(operation.task, outcome.Error(failure))

    async def _work(self) -> None:
        while True:
            if self._crash is not None:
                raise self._crash
            if self._is_in_flight:
                await self._idle()
            # Before the queue: under load that is never empty where writing is a wait for the
            # thread.
            elif self._sync_is_due:
                await self._sync_in_background()
            elif self._queue and isinstance(self._queue[0], _Entry):
                # Not kept in a local: this task may sleep for long, and a group holds whole
                # requests.
                self._commit(self._next_group())
            elif self._queue:
                await self._perform(cast(_Operation, self._queue.popleft()))
            elif self._closing and self._dirty.is_set():
                await self._sync_in_background()
            elif self._closing:
                return
            else:
                await self._idle()

    async def _remind(self) -> None:
        """Sync, or have the committer sync, what was written and has waited long enough. Not a
        deadline of the committer's own: that would cost every commit a cancel scope (10 us)."""
        while True:
            await self._dirty.wait()
            await trio.sleep(self._sync_interval_s)
            self._dirty = trio.Event()
            if self._beside_sync:
                await self._sync_in_background()
            else:
                self._sync_is_due = True
                self._wake()

    async def _idle(self) -> None:
        self._idle_task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle_task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        """Whoever leaves something to be done, with no group in flight, has to wake the committer;
        behind a group `_kept` does."""
        if self._idle_task is not None and not self._is_in_flight:
            task, self._idle_task = self._idle_task, None
            trio.lowlevel.reschedule(task)

    def _go_on(self) -> None:
        """With the next group where its writer is alone; all else is the committer's."""
        is_committers = self._starts_in_a_row < _ALONE or self._sync_is_due or self._crash is not None
        if (
            not is_committers
            and not self._is_in_flight
            and self._idle_task is not None
            and (group := self._next_group())
        ):
            try:
                self._commit(group)
            except Exception as error:  # A bug: the broker ends, as it does with others.
                self._crash = error
        if self._queue or self._sync_is_due or self._closing or self._crash is not None:
            self._wake()  # Also where the group has ended in this turn already, refused or empty.

    def _next_group(self) -> list[_Entry]:
        """The entries that are queued before the first operation."""
        waiting = self._queue
        group: list[_Entry] = []
        while waiting and isinstance(entry := waiting[0], _Entry):
            group.append(entry)
            waiting.popleft()
        return group

    async def _perform(self, operation: _Operation) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            result: outcome.Outcome[Any] = outcome.Value(await self._thread.call(operation.call))
        except Exception as error:
            self._note(error)
            result = outcome.Error(error)
        except BaseException as crash:  # PanicException of an engine in Rust is no Exception
            self._crash = crash
            result = outcome.Error(StoreFailed(repr(crash)))
        trio.lowlevel.reschedule(operation.task, result)

    def _commit(self, group: list[_Entry]) -> None:
        """Keep it, or have the thread do so; `_kept` goes on in the turn in which that says that it
        has."""
        began = perf_counter()
        try:
            items = self._items_of(group)
            if items and self._in_thread:
                self._begin(group, began, partial(self._write_and_sync, items))
                return
            if items:
                self._write_here(items)
                self._tell_written(group)
                if self._sync_each:
                    self._begin(group, began, self._sync)
                    return
                self.seconds.observe(perf_counter() - began)
        except (NoSpace, StoreFailed) as error:
            self._refuse(group, error)
        else:
            self._committed(group)

    def _write_here(self, items: list[Item]) -> None:
        try:
            self._write(items)
        except (NoSpace, StoreFailed):
            raise
        except Exception as crash:
            self._crash = crash
            raise StoreFailed(repr(crash)) from crash

    def _begin(self, group: list[_Entry], began: float, call: Callable[[], None]) -> None:
        self._is_in_flight = True
        self._thread.begin(call, partial(self._kept, group, began))

    def _kept(self, group: list[_Entry], began: float, error: BaseException | None) -> None:
        """By the thread, unless there is an error."""
        try:
            if error is None:
                if self._in_thread:
                    self._tell_written(group)
                self.seconds.observe(perf_counter() - began)
                self._committed(group)
            elif isinstance(error, NoSpace | StoreFailed):
                self._refuse(group, error)
            else:
                self._crash = error
                self._refuse(group, StoreFailed(repr(error)))
        except BaseException as crash:
            self._crash = crash
        self._is_in_flight = False  # Not before all are told: what they submit comes after them.
        if self._queue or self._sync_is_due or self._closing or self._crash is not None:
            self._go_on()

    def _items_of(self, group: list[_Entry]) -> list[Item]:
        """Raises StoreFailed if the store has failed before."""
        if self._failure is not None:
            raise self._failure
        return list(group[0].items) if len(group) == 1 else [item for entry in group for item in entry.items]

    def _committed(self, group: list[_Entry]) -> None:
        if self._is_reported_full:
            self._is_reported_full = False
            logger.warning(
                "%s store: there is space again, %d writes were refused since the start",
                self.name,
                self._counts["refused"],
            )
        counts = self._counts
        counts["groups"] += 1
        counts["entries"] += len(group)
        if self._sync_each:
            counts["syncs"] += 1
        else:
            self._dirty.set()
        for entry in group:
            entry.on_done(None)

    def _write_and_sync(self, items: list[Item]) -> None:
        self._write(items)
        if self._sync_each:
            self._sync()

    @staticmethod
    def _tell_written(group: list[_Entry]) -> None:
        for entry in group:
            if entry.on_written is not None:
                entry.on_written()

    async def _sync_in_background(self) -> None:
        self._sync_is_due = False
        if self._closing:
            self._dirty = trio.Event()
        if self._failure is not None:
            return
        try:
            await self._thread.call(self._sync)
            self._counts["syncs"] += 1
        except StoreFailed as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        if isinstance(error, StoreFailed) and self._failure is None:
            self._failure = error
            logger.critical(
                "%s store failed and takes no more writes until the broker is restarted: %s", self.name, error
            )
        elif isinstance(error, NoSpace) and trio.current_time() >= self._next_report:
            self._next_report = trio.current_time() + _REPORT_EVERY_S
            self._is_reported_full = True
            logger.error("%s store: no space on the disk, writes are refused: %s", self.name, error)

    def _refuse(self, group: list[_Entry], error: Exception) -> None:
        self._note(error)
        # What queued behind a refused write was stamped on top of it: it must not be written
        # either.
        refused = group + [each for each in self._queue if isinstance(each, _Entry)]
        self._queue = deque(each for each in self._queue if isinstance(each, _Operation))
        self._counts["refused"] += len(refused)
        for entry in refused:
            entry.on_done(error)
