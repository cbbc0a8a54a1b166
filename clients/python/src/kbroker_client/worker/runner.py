"""The worker of one queue: takes as many jobs as it has free slots, runs them, and acknowledges.

    poll --> run --> acknowledge --> the broker's answer --> hook
              |                          |
              lock renewed               refused: lock lost

A job counts as done, retried or rejected when the broker has stored that. The slot of a job is free
as soon as its acknowledgement is queued.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from .._shared.errors import ErrorCode, KafkaError
from .._shared.settings.definition import INT_MAX
from ..background import Signal
from ..cluster import TopicPartition
from ..errors import ClientError, LockLost, WokenUp
from ..share.consumer import Acquire, Mode, ShareConsumer
from ..share.records import Outcome, Record
from .execution import executor
from .job import JobEvent, job_of
from .locks import Locks
from .policies import TIMED_OUT, Failure, Kind, failure_of, place_of, reason, too_often
from .queue_facts import Facts, warn_of_deletion
from .running import Concluded, Ended, RunningJob
from .task import RunIn

if TYPE_CHECKING:
    from .task import Program, Task

logger = logging.getLogger(__name__)

_FETCH_WAIT_MS: Final = 500
_SHORT_FETCH_WAIT_MS: Final = 50
"""An acknowledgement waits for the fetch that is under way. In a queue with key order the next job
of the key waits for that acknowledgement."""
_COMMIT_S: Final = 1.0
_PAUSE_S: Final = 0.01
_IDLE_S: Final = 0.5
_LAST_S: Final = 5.0
"""For jobs that were cancelled, and their acknowledgements."""
_LOGGED_CHARACTERS: Final = 200
_MOST_NAMES: Final = 10
"""Jobs that a line of the log names."""
_ERRORS: Final = 3
"""Of polls in a row, after which the worker ends."""
_ERRORS_S: Final = 60.0
"""Errors with more time between them are not in a row. A poll of an empty queue does not return."""
_HOOKS: Final = {Outcome.ACCEPT: "on_success", Outcome.RELEASE: "on_retry", Outcome.REJECT: "on_reject"}
_Place: TypeAlias = tuple[int, int]
"""Partition and offset. A runner has one topic, which may be deleted under it."""


@dataclass(frozen=True)
class Statistics:
    """Jobs of one queue since the worker's start. `running`: now."""

    running: int
    started: int
    succeeded: int
    retried: int
    rejected: int
    locks_lost: int


class Runner:
    """- `concurrency`: jobs at a time
    - `drain_s`: how long running jobs may continue after `stop`
    - `is_quick`: hear the broker's answers soon, at the cost of more requests
    """

    def __init__(
        self,
        app: Program,
        task: Task[..., Any],
        facts: Facts,
        concurrency: int,
        drain_s: float,
        *,
        is_quick: bool = False,
    ) -> None:
        self.queue = task.queue
        self._task = task
        self._options = task.options
        self._facts = facts
        self._hooks = app.hooks
        self._concurrency = concurrency
        self._drain_s = drain_s
        self._executor = executor(task)
        self._cluster = app.sender.cluster
        self._consumer = ShareConsumer(
            app.bootstrap, group=task.queue, topics=[task.options.topic], mode=Mode.FREE,
            acquire=Acquire.RECORD_LIMIT, max_poll_records=min(concurrency, INT_MAX),
            fetch_wait_ms=_SHORT_FETCH_WAIT_MS if facts.is_ordered or is_quick else _FETCH_WAIT_MS,
            client_id=app.client_id, security=app.security, on_acknowledged=self._answered,
        )  # fmt: skip
        self._retries = task.options.retries
        if self._retries is None and facts.delivery_limit is not None:
            self._retries = facts.delivery_limit - 1
        self._active: set[RunningJob] = set()
        self._by_place: dict[_Place, RunningJob] = {}
        self._concluded: dict[_Place, Concluded] = {}
        self._locks = Locks(self._active, lambda: self._consumer.lock_timeout_s, self._renew, self._lose)
        self._nudge = Signal()
        self._is_stopping = False
        self.handles_signals = False
        """Of the worker: otherwise Ctrl-C may raise KeyboardInterrupt in any job on the loop."""
        self.closed = anyio.Event()
        """Nothing is held any more. Jobs that cannot be cancelled may go on."""
        self._counts = dict.fromkeys(("on_start", *_HOOKS.values(), "on_lock_lost"), 0)

    def statistics(self) -> Statistics:
        return Statistics(len(self._active), *self._counts.values())

    @property
    def left(self) -> int:
        """Threads that continue although their jobs were ended."""
        return self._executor.left

    @property
    def going_on(self) -> int:
        """Jobs that have not ended."""
        return len(self._active)

    @property
    def is_busy(self) -> bool:
        return bool(self._active or self._concluded)

    # -- life
    # ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`, or until it is cancelled: then running jobs are cancelled, and released
        with the session. Raises BrokerUnreachable, NotAuthenticated and KafkaError; running
        jobs are drained before."""
        error = None
        try:
            async with self._consumer, anyio.create_task_group() as tasks:
                tasks.start_soon(self._locks.run)
                tasks.start_soon(
                    warn_of_deletion, self._cluster, self.queue, self._options.topic,
                    lambda: bool(self._consumer.assignment),
                )  # fmt: skip
                try:
                    await self._take(tasks)
                except (ClientError, KafkaError) as raised:
                    error = raised  # Raised below, without a group around it.
                await self._drain()
                tasks.cancel_scope.cancel()
                if self._active:  # They go on although they were cancelled.
                    await self._consumer.close()
                    self.closed.set()
        finally:
            self.closed.set()
            with anyio.CancelScope(shield=True):
                await self._executor.aclose()
        if error is not None:
            raise error

    def stop(self) -> None:
        """Take no more jobs; end when the running ones have ended."""
        self._is_stopping = True
        self._consumer.stop_fetching()
        self._consumer.wake_up()
        self._nudge.set()

    async def _take(self, tasks: TaskGroup) -> None:
        errors, last_s = 0, 0.0
        while not self._is_stopping:
            self._nudge.clear()
            free = self._concurrency - len(self._active)
            if not free:
                await self._settle()
                continue
            try:
                records = await self._consumer.poll(max_records=free)
            except WokenUp:
                continue
            except KafkaError as error:
                errors = errors + 1 if anyio.current_time() - last_s < _ERRORS_S else 1
                last_s = anyio.current_time()
                logger.error("queue %s: %s", self.queue, error)
                if errors == _ERRORS:
                    raise
                await anyio.sleep(errors)
                continue
            errors = 0
            for record in records:
                self._begin(record, tasks)

    async def _settle(self) -> None:
        """Wait until a job ends, or the broker answers."""
        if self._concluded or any(job.is_renewing for job in self._active):
            try:
                if not await self._consumer.commit(_COMMIT_S):
                    await anyio.sleep(_PAUSE_S)  # The answer has just come, or will not come.
            except (ClientError, KafkaError) as error:
                logger.debug("queue %s: %s", self.queue, error)
                await anyio.sleep(_PAUSE_S)
        else:
            await self._nudge.wait()

    def _names_of_active(self) -> str:
        """Those that have run for longest."""
        names = [
            f"{job.job.id} for {job.seconds:.0f} s"
            for job in sorted(self._active, key=lambda job: job.began_s)
        ]
        return ", ".join(names[:_MOST_NAMES] + ["..."] * (len(names) > _MOST_NAMES))

    async def _drain(self) -> None:
        self._is_stopping = True
        self._consumer.stop_fetching()
        if self._active:
            logger.info(
                "queue %s: waiting up to %g s for running jobs (%d): %s",
                self.queue, self._drain_s, len(self._active), self._names_of_active(),
            )  # fmt: skip
        with anyio.move_on_after(self._drain_s):
            await self._finish()
        if self._active:
            logger.warning(
                "queue %s: running jobs (%d) have not ended within %g s: they are cancelled and released: %s",
                self.queue, len(self._active), self._drain_s, self._names_of_active(),
            )  # fmt: skip
            for job in list(self._active):
                job.end(Ended.STOPPED)
        with anyio.move_on_after(_LAST_S):
            await self._finish()

    async def _finish(self) -> None:
        """Until all jobs have ended and are acknowledged. Jobs that are still on their way are
        released."""
        is_failing = False
        while True:
            self._nudge.clear()
            try:
                for record in await self._consumer.poll(timeout_s=0):
                    self._lose_older(record)
                    self._consumer.acknowledge(record, Outcome.RELEASE)
            except WokenUp:
                continue
            except (ClientError, KafkaError) as error:
                if not is_failing:
                    logger.error("queue %s: %s", self.queue, error)
                is_failing = True
            if not self._active and not self._concluded:
                return
            with anyio.move_on_after(_IDLE_S):
                await self._settle()

    # -- one job
    # ----------------------------------------------------------------------------------------------

    def _begin(self, record: Record, tasks: TaskGroup) -> None:
        self._lose_older(record)
        job = RunningJob(record, job_of(record, self.queue), self._options.timeout)
        if self._retries is not None and record.delivery_count > self._retries + 1:
            self._conclude(job, too_often(record.delivery_count, self._retries))
            return
        self._locks.begin(job)
        self._active.add(job)
        self._by_place[record.partition, record.offset] = job
        tasks.start_soon(self._work, job)

    def _lose_older(self, record: Record) -> None:
        """A delivery that still runs here: its lock has run out, and this worker got it again."""
        before = self._by_place.get((record.partition, record.offset))
        if before is not None:
            self._lose(before)

    async def _work(self, job: RunningJob) -> None:
        self._call("on_start", JobEvent(job.job))
        try:
            failure = await self._run_job(job)
            while job.is_renewing and job.ended is not Ended.LOST:
                await job.answered.wait()
            if job.ended is not Ended.LOST:
                self._conclude(job, failure)
        finally:
            self._active.discard(job)
            place = job.record.partition, job.record.offset
            if self._by_place.get(place) is job:
                del self._by_place[place]
            self._nudge.set()

    async def _run_job(self, job: RunningJob) -> Failure | None:
        """None: it returned."""
        trace = ""
        try:
            with job.scope:
                try:
                    failure, has_returned = None, False
                    with ExitStack() as stack:
                        for around in self._hooks.around:
                            stack.enter_context(around(job.job))
                        failure, has_returned = await self._executor.run(job.job, job.begin), True
                    if has_returned or not job.scope.cancel_called:
                        return failure  # None also if an `around` has taken it upon itself.
                except anyio.get_cancelled_exc_class() as error:
                    if not job.scope.cancel_called and not _is_cancelled():
                        # Something that the job waited for was cancelled: that is a failure.
                        return failure_of(RuntimeError("the job was cancelled from within"))
                    trace = "".join(traceback.format_tb(error.__traceback__)[2:])
                    raise
        except BaseException as error:
            if not _is_of_job(error, self._options.run_in is RunIn.LOOP and not self.handles_signals):
                raise
            if not job.scope.cancel_called:
                return failure_of(error, self._options.reject_on)
        if job.ended is not None:
            return Failure(Kind.STOPPED, reason("Stopped", "the worker ended before the job did"))
        text = f"the job ran for longer than its timeout, {self._options.timeout:g} s"
        return Failure(Kind.ERROR, reason(TIMED_OUT, text, trace))

    # -- acknowledgements
    # ----------------------------------------------------------------------------------------------

    def _conclude(self, job: RunningJob, failure: Failure | None) -> None:
        record, attempt = job.record, job.record.delivery_count
        outcome = Outcome.ACCEPT
        if failure is not None:
            is_final = failure.is_final(attempt, self._retries)
            outcome = Outcome.REJECT if is_final else Outcome.RELEASE
            self._log(job, failure, outcome)
        if not record.lease.is_open:
            self._lose(job)
            return
        self._concluded[record.partition, record.offset] = Concluded(job.job, outcome, failure, job.seconds)
        given = failure.reason if failure is not None and outcome is Outcome.REJECT else None
        self._consumer.acknowledge(record, outcome, reason=given)

    def _log(self, job: RunningJob, failure: Failure, outcome: Outcome) -> None:
        why = failure.reason
        line = why.message.partition("\n")[0][:_LOGGED_CHARACTERS]
        what = f"{why.type}: {line}" if line else why.type
        text = "job %s of %s, attempt %d, after %.3f s: %s%s"
        values = job.job.id, self.queue, job.job.attempt, job.seconds, what, place_of(failure)
        if outcome is Outcome.RELEASE:
            logger.warning(text + "; it is delivered again", *values)
            if why.traceback:
                logger.debug("job %s of %s: %s", job.job.id, self.queue, why.traceback)
        elif self._facts.takes_reasons:
            logger.warning(text + "; rejected", *values)
        else:
            logger.error(text + "; rejected\n%s", *values, why.traceback or "(no traceback)")

    def _renew(self, job: RunningJob) -> None:
        job.is_renewing = True
        job.answered = anyio.Event()
        self._consumer.acknowledge(job.record, Outcome.RENEW)
        self._nudge.set()

    def _lose(self, job: RunningJob) -> None:
        """The outcome of the job does not count any more."""
        if job.ended is Ended.LOST:
            return
        job.ended = None
        job.end(Ended.LOST)
        job.answered.set()
        why = reason("LockLost", "the lock of the job was lost while it ran")
        logger.warning("job %s of %s: %s; it is delivered again", job.job.id, self.queue, why.message)
        self._call("on_lock_lost", JobEvent(job.job, job.seconds, why))

    def _answered(self, offsets: Mapping[TopicPartition, frozenset[int]], error: Exception | None) -> None:
        """The broker's answer to acknowledgements; called in polls and commits."""
        for partition, found in offsets.items():
            for offset in found:
                place = partition.partition, offset
                concluded = self._concluded.pop(place, None)
                if concluded is not None:
                    self._confirm(concluded, error)
                elif (job := self._by_place.get(place)) is not None:
                    self._renewed(job, error)
        self._nudge.set()

    def _confirm(self, concluded: Concluded, error: Exception | None) -> None:
        job, failure = concluded.job, concluded.failure
        if error is not None:
            logger.warning("job %s of %s: its outcome does not count: %s", job.id, self.queue, error)
            self._call("on_lock_lost", JobEvent(job, concluded.seconds, reason("LockLost", str(error))))
            return
        why, raised = (None, None) if failure is None else (failure.reason, failure.error)
        self._call(_HOOKS[concluded.outcome], JobEvent(job, concluded.seconds, why, raised))

    def _renewed(self, job: RunningJob, error: Exception | None) -> None:
        job.is_renewing = False
        job.answered.set()
        self._locks.renewed(job)
        if isinstance(error, LockLost):
            self._lose(job)
        elif isinstance(error, KafkaError) and error.code is ErrorCode.unsupported_version:
            if self._locks.are_renewed:
                logger.warning("queue %s: %s: jobs have %g s", self.queue, error, self._locks.lock_s)
            self._locks.are_renewed = False
        elif error is not None:
            logger.warning("job %s of %s: its lock was not renewed: %s", job.job.id, self.queue, error)

    def _call(self, name: str, event: JobEvent) -> None:
        self._counts[name] += 1
        self._hooks.call(name, event)


def _is_of_job(error: BaseException, may_be_interrupted: bool) -> bool:
    """Not of the loop, or of a person at the keyboard."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_job(each, may_be_interrupted) for each in error.exceptions)
    if isinstance(error, KeyboardInterrupt):
        return not may_be_interrupted
    return not isinstance(error, (GeneratorExit, anyio.get_cancelled_exc_class()))


def _is_cancelled() -> bool:
    """From outside of the job's own scope."""
    return anyio.current_effective_deadline() == float("-inf")
