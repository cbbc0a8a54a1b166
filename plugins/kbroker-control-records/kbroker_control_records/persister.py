"""The `control-records` persister (kbroker.persister=control-records): share state in the topic
partition itself, as control records.

This is the design of an early draft of KIP-932 (formats/control_records.py has the format). The
share coordinator decides as with the default persister. Its changes become SHARE_CHECKPOINT and
SHARE_DELTA records, appended in the log's own group commit. So an acknowledgement is one append and
one sync, shared with the records that are produced at that time.

    call ─▶ ControlLogs.prepare ─▶ share coordinator decides ─▶ ControlPartition.append
            load, open the log     └──────────────── no await between ────────────────┘

A log's start does not pass a checkpoint before a newer one is written. `read_summary` counts the
control records from the start offset on as finished, so that they are not lag. A result with code
none is as durable as --durability makes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

from kbroker.broker.persisters.local import CountsShareState, PersisterContext, parking_store
from kbroker.broker.persisters.parked_reader import ParkedReader
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import NO_GENERATION
from kbroker.metrics import SECONDS, Histogram
from kbroker.share.lag import UNKNOWN, Standing
from kbroker.share.persister import (
    InitializeRequest,
    Persister,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.share_state.parked import prefix_of
from kbroker.share_state.states import ShareStateStatistics
from kbroker_control_records.logs import ControlLogs, ControlRecordsStatistics
from kbroker_control_records.own_records import ControlRecords
from kbroker_control_records.parking import BEGUN_ANEW, ControlParking, Step
from kbroker_control_records.rows import ControlRows
from kbroker_control_records.saving import SavedOutcome

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=Result)


class _Request(Protocol):
    @property
    def partition(self) -> TopicPartition: ...


Q = TypeVar("Q", bound=_Request)
Q_in = TypeVar("Q_in", bound=_Request, contravariant=True)


class _Decide(Protocol[Q_in, R]):
    def __call__(
        self, group_id: str, requests: Sequence[Q_in], /, *, now_ms: int
    ) -> ShareStateOutcome[R]: ...


_STOPPING = KafkaError(ErrorCode.coordinator_not_available, "the broker is stopping")


class ControlRecordsPersister(CountsShareState):
    def __init__(self, context: PersisterContext) -> None:
        self._log_commits = context.logs
        self._state = context.state
        self._logs = ControlLogs(context.topics, context.state_store, context.state)
        self._is_closed = False
        self.write_seconds = Histogram(SECONDS)
        self._coordinator = ShareStateCoordinator(
            self._logs.stored,
            lambda topic_id, index: self._logs.partition(TopicPartition(topic_id, index)) is not None,
            updates_per_snapshot=context.config["share.coordinator.snapshot.update.records.per.snapshot"],
            parking=parking_store(context.state_store, context.generation),
            on_generation_ended=self._generation_ended,
        )
        self._parked = ParkedReader(context.state_store, self._coordinator)
        self._parking = ControlParking(self._coordinator, context.state_store, context.state, self._parked)
        self._tell_ended = context.generation_ended
        if context.state_store.keeps_keys_on_disk:
            self.waiting_rows = ControlRows(self._parked, self._parking, self._logs, context.logs)
        self.own_records = ControlRecords(
            context.topics, context.state, self._logs, self._coordinator, self._save
        )

    def statistics(self) -> ShareStateStatistics:
        return self._coordinator.states.statistics()

    def control_statistics(self) -> ControlRecordsStatistics:
        return self._logs.statistics()

    # -- the five verbs

    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]:
        """Synced on return, with durability `os` as well: next, the state store records the
        initialisation, and the group could not continue if the state were lost."""
        return await self._synced(
            await self._ask(group_id, requests, Result, self._coordinator.initialize, opens=True)
        )

    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """`written_in` is None: state cannot be ahead of the log that it is in."""
        if await self._has_parked(group_id, requests):
            rows = await self._read_in_turn(group_id, requests)
        else:
            rows = await self._ask(group_id, requests, ReadResult, self._coordinator.read)
        return [replace(row, written_in=None) for row in rows]

    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        began = perf_counter()
        if self._parking.is_busy or any([request.parking or request.reasons for request in requests]):
            results = await self._write_in_turn(group_id, requests)
        else:
            results = await self._ask(group_id, requests, Result, self._coordinator.write)
        self.write_seconds.observe(perf_counter() - began)
        return results

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]:
        """Synced on return, with durability `os` as well: next, the group is removed from the state
        store. If a power cut then takes the log's end, a new group of that name must not find the
        old state."""

        def decide(group_id: str, wanted: Sequence[ReadRequest], *, now_ms: int) -> ShareStateOutcome[Result]:
            return self._coordinator.delete(group_id, [request.partition for request in wanted])

        requests = [ReadRequest(partition, 0) for partition in partitions]
        return await self._synced(await self._ask(group_id, requests, Result, decide))

    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]:
        """The saved state and the count of control records, at the moment of the answer. Records
        that retention has removed are not counted: how many were control records is unknown."""
        partitions = [request.partition for request in requests]
        refused = await self._logs.prepare(group_id, partitions)
        wanted = [request for request in requests if request.partition not in refused]
        for row in self._coordinator.read_summary(group_id, wanted).results:
            if row.start_offset != UNKNOWN:
                try:
                    await self._logs.know_own_offsets(row.partition, row.start_offset)
                except KafkaError as error:
                    refused[row.partition] = error
        wanted = [request for request in requests if request.partition not in refused]
        rows = self._coordinator.read_summary(group_id, wanted).results
        done = [self._with_control(group_id, row) for row in rows]
        return _merged(group_id, partitions, refused, done, SummaryResult)

    def _with_control(self, group_id: str, row: SummaryResult) -> SummaryResult:
        partition = self._logs.partition(row.partition)
        row = replace(row, stands_from=partial(self._stands_from, group_id, row.partition))
        if partition is None or row.start_offset == UNKNOWN or row.delivery_complete_count < 0:
            return row
        own = self._logs.count_own_offsets(row.partition, max(row.start_offset, partition.log_start_offset))
        return replace(row, delivery_complete_count=row.delivery_complete_count + own)

    def _stands_from(self, group_id: str, partition: TopicPartition, offset: int) -> Standing:
        return self._coordinator.stands_from(
            group_id, partition, offset, partial(self._logs.count_own_offsets, partition)
        )

    async def aclose(self) -> None:
        """Finish the saves under way, and close the hints, so that the next start has nothing to
        search for."""
        try:
            await self._log_commits.commit([])
            self._is_closed = True
            await self._state.commit(self._logs.closed_hints())
        except (NoSpace, StoreFailed) as error:
            self._is_closed = True
            logger.warning("the next start has to search for control records: %s", error)

    # -- decisions and their commits

    async def _ask(
        self,
        group_id: str,
        requests: Sequence[Q],
        result: type[R],
        decide: _Decide[Q, R],
        *,
        opens: bool = False,
    ) -> list[R]:
        partitions = [request.partition for request in requests]
        refused = await self._logs.prepare(group_id, partitions, opens=opens)
        wanted = [request for request in requests if request.partition not in refused]
        outcome = decide(group_id, wanted, now_ms=wall_clock_ms())
        self._logs.forget_read_ahead(group_id, partitions)
        return _merged(group_id, partitions, refused, await self._save(outcome), result)

    async def _synced(self, results: list[Result]) -> list[Result]:
        """The results once they are synced, or failures if that fails."""
        try:
            await self._log_commits.flush()
        except (NoSpace, StoreFailed) as error:
            failed = ErrorCode.coordinator_not_available, str(error)
            return [
                Result(each.partition, *failed) if each.code is ErrorCode.none else each for each in results
            ]
        return results

    async def _save(self, outcome: ShareStateOutcome[R]) -> list[R]:
        if not outcome.must_wait:
            return list(outcome.results)
        saved = self._begin(outcome, {})
        await saved.pending.wait()
        return saved.results

    def _begin(self, outcome: ShareStateOutcome[R], steps: Mapping[TopicPartition, Step]) -> SavedOutcome[R]:
        """Queue the outcome's changes. `steps`: of its parked records."""
        saved = SavedOutcome(self._coordinator, self._parking, outcome, steps)
        if not outcome.must_wait:
            return saved
        try:
            changes = self._logs.by_log(outcome.changes)
            if self._is_closed:
                raise _STOPPING
            if self._log_commits.failed:
                raise KafkaError(
                    ErrorCode.coordinator_not_available, "the log store has failed; restart the broker"
                )
        except KafkaError as error:
            saved.refuse(error)
            return saved
        for control, wanted in changes:
            saved.logs_left += control.append(wanted, saved.log_done)
        if not saved.logs_left:  # The answer may depend on commits that are under way.
            saved.logs_left = 1
            self._log_commits.submit((), saved.log_done)
        return saved

    # -- parked records

    def _generation_ended(self, key: SharePartitionKey, generation: int) -> None:
        self._parking.forget(prefix_of(*key, generation))
        self._tell_ended(key, generation)

    async def _write_in_turn(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        """The three steps of parking.py."""
        partitions = [request.partition for request in requests]
        try:
            async with self._parking.turn(
                SharePartitionKey(group_id, partition) for partition in partitions
            ) as failed:
                refused = await self._logs.prepare(group_id, partitions)
                steps = await self._parking.put(
                    group_id, [request for request in requests if request.partition not in refused]
                )
                anew = [
                    request.partition
                    for request in requests
                    if not self._parking.is_as_put(group_id, request, steps)
                ]
                refused |= dict.fromkeys(anew, BEGUN_ANEW)
                if refused:
                    failed()
                wanted = [request for request in requests if request.partition not in refused]
                outcome = self._coordinator.write(group_id, wanted, now_ms=wall_clock_ms())
                saved = self._begin(outcome, steps)
        except (NoSpace, StoreFailed) as error:
            return [Result(each, ErrorCode.coordinator_not_available, str(error)) for each in partitions]
        except KafkaError as error:
            return [Result(each, error.code, error.message) for each in partitions]
        await saved.pending.wait()
        for request in requests:
            if request.parking:
                self._parked.written(group_id, request.partition)
        return _merged(group_id, partitions, refused, saved.results, Result)

    async def _has_parked(self, group_id: str, requests: Sequence[ReadRequest]) -> bool:
        refused = await self._logs.prepare(group_id, [request.partition for request in requests])
        for request in requests:
            if request.partition not in refused:
                with suppress(KafkaError):
                    if self._coordinator.generation(group_id, request.partition) != NO_GENERATION:
                        return True
        return False

    async def _read_in_turn(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """Read after all writes, with no record both parked and in the window."""
        partitions = [request.partition for request in requests]
        refused: dict[TopicPartition, KafkaError] = {}
        try:
            async with self._parking.turn(SharePartitionKey(group_id, partition) for partition in partitions):
                await self._log_commits.commit([])
                await self._state.commit([])
                for row in self._coordinator.read_summary(group_id, requests).results:
                    if row.code is ErrorCode.none:
                        try:
                            await self._parking.settle(group_id, row.partition, row.start_offset)
                        except KafkaError as error:
                            refused[row.partition] = error
                wanted = [request for request in requests if request.partition not in refused]
                done = await self._ask(group_id, wanted, ReadResult, self._coordinator.read)
        except (NoSpace, StoreFailed) as error:
            return [ReadResult(each, ErrorCode.coordinator_not_available, str(error)) for each in partitions]
        except KafkaError as error:
            return [ReadResult(each, error.code, error.message) for each in partitions]
        return _merged(group_id, partitions, refused, done, ReadResult)

    # -- lag

    async def count_unfinished(self, group_id: str, key: TopicPartition, first: int, end: int) -> int:
        await self._logs.prepare_one(group_id, key)
        parked = await self._parked.count(group_id, key, first, end, kept=False)
        return parked + await self._count_in_window(group_id, key, first, end)

    async def _count_in_window(self, group_id: str, key: TopicPartition, first: int, end: int) -> int:
        if not self._coordinator.unfinished(group_id, key, first, end):
            return 0
        own, counted_from = 0, UNKNOWN
        # From the start offset on, which may rise: the rest may be long and on a slow disk.
        while (start := self._coordinator.counts_from(group_id, key, first, end)) != counted_from:
            own, counted_from = await self._logs.count_own(key, start, end) if start < end else 0, start
        return self._coordinator.unfinished(group_id, key, first, end) - own


def _merged(
    group_id: str,
    partitions: Sequence[TopicPartition],
    refused: dict[TopicPartition, KafkaError],
    done: Sequence[R],
    result: type[R],
) -> list[R]:
    """One row for each requested partition, in that order; none at all for an empty group id, as in
    Kafka."""
    if not group_id:
        return []
    rest = iter(done)
    return [
        result(each, refused[each].code, refused[each].message) if each in refused else next(rest)
        for each in partitions
    ]


PERSISTER: Callable[[PersisterContext], Persister] = ControlRecordsPersister
