"""Group commit: all writes to one store that queue up during a commit become the next one write()
and one sync().

One `GroupCommit` per store, at most one commit in flight, no timer. Where the engine allows it,
write() runs on the loop and only sync() in the store's thread; an engine that ties writes to a
thread (LMDB) does both there in one hop.

Three drivers start a commit (measured in docs/decisions/0002-commit-groups.md):

    the committer's task   `submit` resumes it; it takes all that the tasks of one tick have queued
    `start`                a request queues with `enqueue` and starts once, before it waits. A task
                           that writes alone then writes in its own turn of the loop.
    `_kept`                the end of a commit begins the next one in the same turn

A write that nothing waits for (`defer`) joins the next one, so it needs no sync of its own.

With durability `os` a sync follows in the background. No request waits for it if the engine allows
a write() during a sync(); operations do, as they share its thread. `flush` waits for a sync, and
flushes that wait at the same time share one.

Each entry is notified once, by `on_done`: the data is durable, or with durability `os` written (it
survives kill -9). Callbacks run on the loop in the order of submission, so visibility moves in
offset order, and nothing is confirmed before readers see it.

A full disk (NoSpace) refuses the group and everything queued behind it: a writer that has stamped
offsets on top of a refused entry is refused as well and can roll back. The next entry is tried
again. StoreFailed refuses everything until the broker restarts.

A write() that would wait for the disk (`waits`) runs in the thread, whatever `in_thread` says.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
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
"""A task writes alone after so many starts in a row. Of two tasks that write in the same ticks, one
may start twice in a row."""
_DEFERRED_S = 0.1
"""A deferred write waits for another one no longer than this."""
_REPORT_EVERY_S = 10.0
"""How often refused writes are logged: there may be thousands in a second, and the log file may be
on the disk that is full."""


class QueuedWrite(NamedTuple):
    """A queued write. `on_done`: see above."""

    items: Sequence[Any]
    on_done: OnDone


class QueuedOperation(NamedTuple):
    """A queued call in the store's thread, between writes. `ended` gets its outcome."""

    call: Callable[[], Any]
    ended: Callable[[outcome.Outcome[Any]], None]


class GroupCommitStatistics(NamedTuple):
    """Counted since the broker started. `failed`: the error that stopped all further writes."""

    groups: int
    entries: int
    syncs: int
    refused: int
    pending: int
    failed: str | None


class GroupCommit(Generic[Item]):
    """- `write`, `sync`: the store's
    - `in_thread`, `beside_sync`, `waits`: the engine's `write_in_thread`, `write_beside_sync` and
      `write_waits` (storage/spi.py)
    - `durability`: 'disk' syncs every group, 'os' every `sync_interval_s`"""

    def __init__(
        self,
        name: str,
        write: Callable[[list[Item]], None],
        sync: Callable[[], None],
        *,
        in_thread: bool,
        beside_sync: bool = False,
        waits: Callable[[list[Item]], bool] | None = None,
        durability: str,
        sync_interval_s: float = 0.1,
    ) -> None:
        self.name = name
        self._write = write
        self._sync = sync
        self._in_thread = in_thread
        self._beside_sync = beside_sync and not in_thread
        self._waits = None if in_thread else waits
        self._sync_each = durability == "disk"
        self._sync_interval_s = sync_interval_s
        self._thread = CommitThread(f"commit-{name}")
        self._queue: deque[QueuedWrite | QueuedOperation] = deque()
        self._idle_task: trio.lowlevel.Task | None = None
        self._is_in_flight = False  # a group is in the thread
        self._closing = False
        # With durability 'os': set after a write until a sync is due.
        self._dirty = trio.Event()
        self._sync_is_due = False
        self._has_deferred = trio.Event()
        # The callbacks of a sync which has not begun yet.
        self._next_flush: list[OnDone] | None = None
        self._failure: StoreFailed | None = None
        self._crash: BaseException | None = None
        self._is_abandoned = False
        self._last_starter: trio.lowlevel.Task | None = None
        self._starts_in_a_row = 0
        self._is_reported_full = False
        self._next_report = -math.inf
        self.seconds = Histogram(SECONDS)
        """How long groups took to become durable, or with durability `os` written."""
        self._counts = dict.fromkeys(("groups", "entries", "syncs", "refused"), 0)

    # -- callers
    # ----------------------------------------------------------------------------------------------

    def submit(self, items: Sequence[Item], on_done: OnDone) -> None:
        """Queue a write and have the committer's task begin: for writers that are not requests.

        `on_done` runs later, never inside this call; it gets None, NoSpace or StoreFailed."""
        self.enqueue(items, on_done)
        self.wake()

    def enqueue(self, items: Sequence[Item], on_done: OnDone) -> None:
        """`submit` for a request: only queues. The caller must call `start` before it waits."""
        if self._is_abandoned:
            trio.lowlevel.current_trio_token().run_sync_soon(on_done, self._failure)
            return
        self._queue.append(QueuedWrite(items, on_done))

    def defer(self, items: Sequence[Item]) -> None:
        """Queue a write for the next group, which begins in a tenth of a second at the latest: for
        what a start after a crash restores anyway. A refused one is dropped."""
        self.enqueue(items, _ignore)
        self._has_deferred.set()

    def start(self) -> None:
        """Begin to write the queued entries. They may all be written, and their callbacks called,
        on return."""
        if not self._queue:
            return
        starter = trio.lowlevel.current_task()
        self._starts_in_a_row = self._starts_in_a_row + 1 if starter is self._last_starter else 1
        self._last_starter = starter
        self._go_on()

    def wake(self) -> None:
        """Resume the committer's task if it is idle. While a group is in flight nothing happens:
        `_kept` continues after it."""
        if self._idle_task is not None and not self._is_in_flight:
            task, self._idle_task = self._idle_task, None
            trio.lowlevel.reschedule(task)

    async def commit(self, items: Sequence[Item]) -> None:
        """Write, and wait until on_done. Raises NoSpace or StoreFailed. Cancelling does not stop
        the write."""
        decision = Decision()
        self.submit(items, decision.decide)
        await decision.wait()

    async def perform(self, operation: Callable[[], Answer]) -> Answer:
        """Run `operation` (create, drop or trim a log) in the store's thread, after all writes that
        were submitted before it."""
        if self._failure is not None:
            raise self._failure
        self._queue.append(
            QueuedOperation(operation, partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
        )
        self.wake()
        answer: Answer = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return answer

    async def flush(self) -> None:
        """On return everything that was submitted before survives a power cut, even with durability
        `os`. Cancelling has no effect. Raises StoreFailed, and whatever the engine's sync() raises.

        Writes of others continue meanwhile if the engine allows a write() during a sync()."""
        if self._sync_each:
            return
        decision = Decision()
        self.flush_then(decision.decide)
        await decision.wait(to_the_end=True)

    def flush_then(self, ended: OnDone) -> None:
        """`flush` without waiting: `ended` is called on the loop, with None or the error. It must
        not raise anything itself, and may be called before this returns."""
        if self._sync_each or self._failure is not None:
            ended(None if self._sync_each else self._failure)
        elif not self._beside_sync:
            self._queue.append(QueuedOperation(self._sync, partial(self._operation_flushed, ended)))
            self.wake()
        elif self._queue:  # After all writes that were submitted before are written or refused.
            self.submit([], lambda _: self._begin_flush(ended))
        else:
            self._begin_flush(ended)

    def _operation_flushed(self, ended: OnDone, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Error):
            ended(cast(Exception, result.error))
        else:
            self._counts["syncs"] += 1
            ended(None)

    def _begin_flush(self, ended: OnDone) -> None:
        if self._failure is not None:
            ended(self._failure)
            return
        waiting = self._next_flush
        if waiting is None:
            waiting = self._next_flush = []
            self._thread.begin(self._sync_for_flush, partial(self._flushed, waiting))
        waiting.append(ended)

    def _sync_for_flush(self) -> None:
        """Runs in the thread. The sync may miss what is written from now on, so the next flush
        needs another one."""
        self._next_flush = None
        self._sync()

    def _flushed(self, waiting: list[OnDone], error: BaseException | None) -> None:
        if error is None:
            self._counts["syncs"] += 1
        elif isinstance(error, Exception):
            self._note(error)
        else:  # A panic of an engine in Rust is no Exception.
            self._crash = error
            error = StoreFailed(repr(error))
            self.wake()
        for ended in waiting:
            ended(error)

    def close(self) -> None:
        """Have `run` finish the queue, sync and return."""
        self._closing = True
        self.wake()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def statistics(self) -> GroupCommitStatistics:
        failed = None if self._failure is None else str(self._failure)
        return GroupCommitStatistics(**self._counts, pending=len(self._queue), failed=failed)

    # -- the committer
    # ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The committer's task: until `close`, then one last sync. Shielded by its caller from
        cancellation."""
        async with self._thread.running(), trio.open_nursery() as nursery:
            nursery.start_soon(self._remind)
            nursery.start_soon(self._begin_deferred)
            try:
                await self._work()
            except BaseException as crash:
                self._abandon(crash)
                raise
            nursery.cancel_scope.cancel()

    def _abandon(self, crash: BaseException) -> None:
        """Fail all waiting writes and operations: tasks that still waited for a committer that has
        ended would keep the broker from ending."""
        failure = self._failure = self._failure or StoreFailed(f"nothing is written any more after {crash!r}")
        self._is_abandoned = True
        operations = [each for each in self._queue if isinstance(each, QueuedOperation)]
        self._refuse([], failure)
        self._queue.clear()
        for operation in operations:
            operation.ended(outcome.Error(failure))

    async def _work(self) -> None:
        while True:
            if self._crash is not None:
                raise self._crash
            if self._is_in_flight:
                await self._idle()
            # Before the queue, which is never empty under load if every write waits for the thread.
            elif self._sync_is_due:
                await self._sync_in_background()
            elif self._queue and isinstance(self._queue[0], QueuedWrite):
                # No local variable: this task may sleep for long, and a group holds whole requests.
                self._commit(self._next_group())
            elif self._queue:
                await self._perform(cast(QueuedOperation, self._queue.popleft()))
            elif self._closing and self._dirty.is_set():
                await self._sync_in_background()
            elif self._closing:
                return
            else:
                await self._idle()

    async def _remind(self) -> None:
        """Sync after each interval with writes, or have the committer do so. A task of its own: a
        deadline in the committer would cost every commit a cancel scope (10 us)."""
        while True:
            await self._dirty.wait()
            await trio.sleep(self._sync_interval_s)
            self._dirty = trio.Event()
            if self._beside_sync:
                await self._sync_in_background()
            else:
                self._sync_is_due = True
                self.wake()

    async def _begin_deferred(self) -> None:
        while True:
            await self._has_deferred.wait()
            await trio.sleep(_DEFERRED_S)
            self._has_deferred = trio.Event()
            self.wake()

    async def _idle(self) -> None:
        self._idle_task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle_task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _go_on(self) -> None:
        """Commit the next group if its writer is alone; otherwise leave it to the committer."""
        is_committers = self._starts_in_a_row < _ALONE or self._sync_is_due or self._crash is not None
        if (
            not is_committers
            and not self._is_in_flight
            and self._idle_task is not None
            and (group := self._next_group())
        ):
            try:
                self._commit(group)
            except Exception as error:  # A bug: it ends the broker, like any other.
                self._crash = error
        if self._queue or self._sync_is_due or self._closing or self._crash is not None:
            self.wake()  # Even if the group has ended in this turn, refused or empty.

    def _next_group(self) -> list[QueuedWrite]:
        """The queued entries before the first operation."""
        waiting = self._queue
        group: list[QueuedWrite] = []
        while waiting and isinstance(entry := waiting[0], QueuedWrite):
            group.append(entry)
            waiting.popleft()
        return group

    async def _perform(self, operation: QueuedOperation) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            result: outcome.Outcome[Any] = outcome.Value(await self._thread.call(operation.call))
        except Exception as error:
            self._note(error)
            result = outcome.Error(error)
        except BaseException as crash:  # A panic of an engine in Rust is no Exception.
            self._crash = crash
            result = outcome.Error(StoreFailed(repr(crash)))
        operation.ended(result)

    def _commit(self, group: list[QueuedWrite]) -> None:
        """Write and sync the group, or have the thread do so and report to `_kept`."""
        began = perf_counter()
        try:
            items = self._items_of(group)
            if items and (self._in_thread or (self._waits is not None and self._waits(items))):
                self._begin(group, began, partial(self._write_and_sync, items))
                return
            if items:
                self._write_here(items)
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

    def _begin(self, group: list[QueuedWrite], began: float, call: Callable[[], None]) -> None:
        self._is_in_flight = True
        self._thread.begin(call, partial(self._kept, group, began))

    def _kept(self, group: list[QueuedWrite], began: float, error: BaseException | None) -> None:
        """The thread has written or synced the group, or failed."""
        try:
            if error is None:
                self.seconds.observe(perf_counter() - began)
                self._committed(group)
            elif isinstance(error, NoSpace | StoreFailed):
                self._refuse(group, error)
            else:
                self._crash = error
                self._refuse(group, StoreFailed(repr(error)))
        except BaseException as crash:
            self._crash = crash
        self._is_in_flight = False  # After all callbacks: their writes come later.
        if self._queue or self._sync_is_due or self._closing or self._crash is not None:
            self._go_on()

    def _items_of(self, group: list[QueuedWrite]) -> list[Item]:
        """Raises StoreFailed if the store has failed earlier."""
        if self._failure is not None:
            raise self._failure
        return list(group[0].items) if len(group) == 1 else [item for entry in group for item in entry.items]

    def _committed(self, group: list[QueuedWrite]) -> None:
        if self._is_reported_full:
            self._is_reported_full = False
            logger.warning(
                "%s store: writes work again, %d writes were refused since the start",
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
            logger.error("%s store: %s, writes are refused: %s", self.name, error.shortage, error)

    def _refuse(self, group: list[QueuedWrite], error: Exception) -> None:
        self._note(error)
        # Writes queued behind a refused one were stamped on top of it: they are refused, too.
        refused = group + [each for each in self._queue if isinstance(each, QueuedWrite)]
        self._queue = deque(each for each in self._queue if isinstance(each, QueuedOperation))
        self._counts["refused"] += len(refused)
        for entry in refused:
            entry.on_done(error)


def _ignore(_: Exception | None) -> None:
    pass
