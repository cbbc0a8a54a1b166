"""The `control-records` persister (kbroker.persister=control-records): share state in the topic
partition itself, as control records.

The design of an early draft of KIP-932 (control_records.py has the format, docs/persisters.md the
comparison). What the five verbs do is decided by the same share coordinator as with the default
persister; what it changes becomes SHARE_CHECKPOINT and SHARE_DELTA records, appended with the log's
own group commit: an acknowledgement is one append and one sync, shared with whatever is produced at
that time.

    verb ─▶ control_partition: load, open ─▶ share coordinator decides ─▶ control_chains: records ─▶ Partition.append_control
                                              └────────── no await between ──────────┘

A log's start does not move past a checkpoint before a newer one is written behind it.
`read_summary` counts the control records from the start offset on as done with, so that they are
not lag. What is answered with code none counts as far as --durability goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

from kbroker.broker.commits.waiting import Pending
from kbroker.broker.logs.partition import Partition
from kbroker.broker.persisters.control.parking import BEGUN_ANEW, ControlParking, Step
from kbroker.broker.persisters.control.partition import ControlPartition
from kbroker.broker.persisters.local import CountsShareState, PersisterContext, parking_store
from kbroker.broker.persisters.parked_reader import ParkedReader
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import NO_GENERATION, ParkedKey
from kbroker.formats.state import ControlChain, ShareStateKey, parse_key, share_state_number
from kbroker.metrics import SECONDS, Histogram
from kbroker.share.lag import UNKNOWN, Standing
from kbroker.share.parked import Lane, Parked
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
from kbroker.share_state.control_chains import ShareChange
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey, is_cold
from kbroker.share_state.loading import ShareState
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.share_state.parked import prefix_of
from kbroker.share_state.states import ShareStateStatistics

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
_ANY_NUMBER = share_state_number(0)


@dataclass(frozen=True, slots=True)
class ControlRecordsStatistics:
    """`logs`: topic partitions whose control records are known; `scanned`: offsets that were looked
    through to know them."""

    logs: int
    groups: int
    scanned: int


class ControlRecordsPersister(CountsShareState):
    keeps_records = True
    finds_parked_keys = True

    def __init__(self, context: PersisterContext) -> None:
        self._topics = context.topics
        self._logs = context.logs
        self._state = context.state
        self._store = context.state_store
        self._controls: dict[TopicPartition, ControlPartition] = {}
        self._read_ahead: dict[SharePartitionKey, tuple[ControlChain, list[tuple[int, bytes]]]] = {}
        self._asked: set[SharePartitionKey] = set()
        self._keys: dict[bytes, SharePartitionKey] = {}
        """By the prefix of their keys: what had changes, without what was deleted since. (Not what
        was asked for: names cost nothing.)"""
        self._is_closed = False
        self.write_seconds = Histogram(SECONDS)
        self._coordinator = ShareStateCoordinator(
            self._stored,
            lambda topic_id, index: self._partition(TopicPartition(topic_id, index)) is not None,
            updates_per_snapshot=context.config["share.coordinator.snapshot.update.records.per.snapshot"],
            parking=parking_store(context.state_store, context.generation),
        )
        self._coordinator.on_generation_ended = self._generation_ended
        self._on_generation_ended: Callable[[SharePartitionKey, int], None] = lambda key, generation: None
        self._parked = ParkedReader(context.state_store, self._coordinator.generation)
        self.parks_records = self._parked.can_park
        self._parking = ControlParking(self._coordinator, context.state_store, context.state, self._parked)

    def statistics(self) -> ShareStateStatistics:
        return self._coordinator.statistics()

    def control_statistics(self) -> ControlRecordsStatistics:
        controls = self._controls.values()
        groups = sum(len(control.chains.groups) for control in controls)
        return ControlRecordsStatistics(len(controls), groups, sum(control.scanned for control in controls))

    # -- the five verbs
    # ----------------------------------------------------------------------------------------------

    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]:
        """Synced on return, with durability `os` as well: the group is told so in the state store
        next, and could not go on without."""
        return await self._synced(
            await self._ask(group_id, requests, Result, self._coordinator.initialize, opens=True)
        )

    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """`written_in` is never told: state cannot be ahead of the log that it lies in."""
        if await self._has_parked(group_id, requests):
            rows = await self._read_in_turn(group_id, requests)
        else:
            rows = await self._ask(group_id, requests, ReadResult, self._coordinator.read)
        return [replace(row, written_in=None) for row in rows]

    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        began = perf_counter()
        if self._parking.is_busy or any([request.parking for request in requests]):
            results = await self._write_in_turn(group_id, requests)
        else:
            results = await self._ask(group_id, requests, Result, self._coordinator.write)
        self.write_seconds.observe(perf_counter() - began)
        return results

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]:
        """Synced on return, with durability `os` as well: the group goes from the state store next,
        and a power cut that takes the log's end must not leave its state to the next group of that
        name."""

        def decide(group_id: str, wanted: Sequence[ReadRequest], *, now_ms: int) -> ShareStateOutcome[Result]:
            return self._coordinator.delete(group_id, [request.partition for request in wanted])

        requests = [ReadRequest(partition, 0) for partition in partitions]
        return await self._synced(await self._ask(group_id, requests, Result, decide))

    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]:
        """What is saved, and what is counted, at the moment of the answer. Control records that
        went with the log's start are not counted: nobody knows afterwards how many of the offsets
        there were some."""
        partitions = [request.partition for request in requests]
        refused = await self._prepare(group_id, partitions)
        wanted = [request for request in requests if request.partition not in refused]
        for row in self._coordinator.read_summary(group_id, wanted).results:
            if row.start_offset != UNKNOWN:
                try:
                    await self.know_own_offsets(row.partition, row.start_offset)
                except KafkaError as error:
                    refused[row.partition] = error
        wanted = [request for request in requests if request.partition not in refused]
        done = [self._with_control(row) for row in self._coordinator.read_summary(group_id, wanted).results]
        return _merged(group_id, partitions, refused, done, SummaryResult)

    def _with_control(self, row: SummaryResult) -> SummaryResult:
        partition = self._partition(row.partition)
        if partition is None or row.start_offset == UNKNOWN or row.delivery_complete_count < 0:
            return row
        own = self.count_own_offsets(row.partition, max(row.start_offset, partition.log_start_offset))
        return replace(row, delivery_complete_count=row.delivery_complete_count + own)

    def stands_from(self, group_id: str, partition: TopicPartition, offset: int) -> Standing:
        return self._coordinator.stands_from(
            group_id, partition, offset, partial(self.count_own_offsets, partition)
        )

    async def aclose(self) -> None:
        """After everything that was asked: what is on its way is saved, and the next start need not
        look for it."""
        try:
            await self._logs.commit([])
            self._is_closed = True
            hints = [control.closed_hint() for control in self._controls.values()]
            await self._state.commit([hint for hint in hints if hint is not None])
        except (NoSpace, StoreFailed) as error:
            self._is_closed = True
            logger.warning("the next start has to look for control records: %s", error)

    # -- how it is done
    # ----------------------------------------------------------------------------------------------

    def _partition(self, key: TopicPartition) -> Partition | None:
        partition = self._topics.partition(*key)
        return None if partition is None or partition.deleted else partition

    def _control(self, partition: Partition) -> ControlPartition:
        key = TopicPartition(*partition.log)
        control = self._controls.get(key)
        if control is None or control.partition is not partition:
            control = self._controls[key] = ControlPartition(partition, self._store, self._state)
        return control

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
        refused = await self._prepare(group_id, partitions, opens=opens)
        wanted = [request for request in requests if request.partition not in refused]
        outcome = decide(group_id, wanted, now_ms=wall_clock_ms())
        for partition in partitions:
            self._read_ahead.pop(SharePartitionKey(group_id, partition), None)
        return _merged(group_id, partitions, refused, await self._save(outcome), result)

    async def _prepare(
        self, group_id: str, partitions: Iterable[TopicPartition], *, opens: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """Have everything in memory that the coordinator will ask for, and every log opened that it
        may want to append to. What could not be done, by partition."""
        refused: dict[TopicPartition, KafkaError] = {}
        to_open: list[ControlPartition] = []
        for key in dict.fromkeys(partitions):
            partition = self._partition(key)
            if partition is None:
                continue  # The coordinator knows what to say.
            control = self._control(partition)
            try:
                await control.load()
                await self._read_group_ahead(SharePartitionKey(group_id, key), control)
            except KafkaError as error:
                refused[key] = error
            except ValueError as error:
                refused[key] = KafkaError(
                    ErrorCode.unknown_server_error, f"The stored state cannot be read: {error}"
                )
            else:
                if not control.is_open and (opens or control.chains.chain(group_id) is not None):
                    to_open.append(control)
        try:
            await self._open(to_open)
        except (NoSpace, StoreFailed) as error:
            message = str(error)
            refused |= {
                TopicPartition(*each.partition.log): KafkaError(ErrorCode.coordinator_not_available, message)
                for each in to_open
            }
        return refused

    async def _open(self, controls: Sequence[ControlPartition]) -> None:
        """Before the first append to a log in this broker life. Durable, with durability `os` as
        well. Raises NoSpace, StoreFailed."""
        there = [control for control in controls if not control.partition.deleted]
        if there:
            await self._state.commit([control.open_hint() for control in there])
            await self._state.flush()
            for control in there:
                control.is_open = True

    async def _read_group_ahead(self, key: SharePartitionKey, control: ControlPartition) -> None:
        """The first time that a share-partition is asked for: what is far back may lie on a disk
        that is slow. What is not saved yet cannot be read, and is in memory."""
        chain = control.chains.chain(key.group_id)
        if key not in self._asked and chain is not None and chain == control.chains.groups.get(key.group_id):
            try:
                self._read_ahead[key] = chain, await control.entries(key.group_id)
            except (KafkaError, ValueError):
                if chain == control.chains.chain(key.group_id):
                    # Otherwise the log's start has moved meanwhile, and what was written anew
                    # before that is in memory.
                    raise
            self._asked.add(key)

    def _stored(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The share coordinator's scan of a share-partition. (It also scans a topic, for those that
        it has not in memory: there are none that a store would have to be told of.)"""
        parsed = self._keys.get(prefix) or _parsed(prefix)
        control = None if parsed is None else self._controls.get(parsed.partition)
        if parsed is None or control is None:
            return
        chain, entries = self._read_ahead.pop(parsed, (None, []))
        # It has grown meanwhile, or nothing was read ahead.
        if chain != control.chains.chain(parsed.group_id):
            try:
                entries = control.entries_now(parsed.group_id)
            except StoreFailed as error:
                raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
        for number, value in entries:
            yield prefix + share_state_number(number), value

    async def _synced(self, results: list[Result]) -> list[Result]:
        """These, or that they were not done if a power cut might still take them."""
        try:
            await self._logs.flush()
        except (NoSpace, StoreFailed) as error:
            failed = ErrorCode.coordinator_not_available, str(error)
            return [
                Result(each.partition, *failed) if each.code is ErrorCode.none else each for each in results
            ]
        return results

    async def _save(self, outcome: ShareStateOutcome[R]) -> list[R]:
        if not outcome.must_wait:
            return list(outcome.results)
        results, pending = self._begin(outcome)
        await pending.wait()
        return results

    def _begin(
        self, outcome: ShareStateOutcome[R], steps: Mapping[TopicPartition, Step] | None = None
    ) -> tuple[list[R], Pending]:
        """Have an outcome that must wait saved; `steps`: what of its parked records is left to do
        then."""
        results = list(outcome.results)
        pending = Pending(1)
        left = 0
        failure: Exception | None = None

        def done(error: Exception | None) -> None:
            nonlocal left, failure
            left, failure = left - 1, failure or error
            if left:
                return
            if failure is None:
                self._coordinator.confirm(outcome)
                decided = (
                    [
                        steps[row.partition]
                        for row in results
                        if row.code is ErrorCode.none and row.partition in steps
                    ]
                    if steps
                    else ()
                )
                if decided and self._parking.submit_removals(decided, removed):
                    return
            else:
                results[:] = self._coordinator.failed(outcome, message=str(failure))
            pending.part_done()

        def removed(error: Exception | None) -> None:
            if error is not None and steps:  # What is decided is saved all the same.
                refusal = KafkaError(ErrorCode.coordinator_not_available, str(error))
                results[:] = [_failed(row, refusal) if row.partition in steps else row for row in results]
            pending.part_done()

        try:
            changes = self._by_log(outcome)
        except KafkaError as error:
            pending.parts = 0
            return list(self._coordinator.failed(outcome, error.code, error.message)), pending
        for control, wanted in changes:
            left += control.append(wanted, done)
        if not left:  # What is answered may rest on what is on its way already.
            left = 1
            self._logs.submit((), done)
        return results, pending

    def _by_log(self, outcome: ShareStateOutcome[R]) -> list[tuple[ControlPartition, list[ShareChange]]]:
        """Raises KafkaError while nothing is appended yet."""
        changes: dict[TopicPartition, list[ShareChange]] = {}
        for encoded, value in outcome.changes:
            if encoded.startswith(ParkedKey.namespace) or (value is None and encoded[-8:] != _ANY_NUMBER):
                continue  # The one is in the state store, and a checkpoint removes its deltas without a word.
            key = self._key_of(encoded[:-8])
            changes.setdefault(key.partition, []).append(
                (key.group_id, int.from_bytes(encoded[-8:], "big"), value)
            )
            if value is None:
                del self._keys[encoded[:-8]]
                self._asked.discard(key)
        if self._is_closed:
            raise _STOPPING
        if self._logs.failed:
            raise KafkaError(
                ErrorCode.coordinator_not_available, "the log store has failed; restart the broker"
            )
        found = [(self._controls[key], wanted) for key, wanted in changes.items()]
        if any(control.partition.deleted for control, _ in found):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return found

    def _key_of(self, prefix: bytes) -> SharePartitionKey:
        key = self._keys.get(prefix) or _parsed(prefix)
        assert key is not None, "the share coordinator's changes are those of share-partitions"
        self._keys[prefix] = key
        return key

    # -- parked records
    # ----------------------------------------------------------------------------------------------

    async def read_parked(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        await self._prepared(group_id, partition)
        return await self._parking.in_lane(group_id, partition, lane, after, limit)

    async def parked_from(
        self, group_id: str, partition: TopicPartition, offset: int, limit: int
    ) -> list[Parked]:
        await self._prepared(group_id, partition)
        return await self._parked.from_offset(group_id, partition, offset, limit)

    async def parked_of_keys(
        self, group_id: str, partition: TopicPartition, key_hashes: Iterable[int]
    ) -> dict[int, list[int]]:
        await self._prepared(group_id, partition)
        return await self._parked.of_keys(group_id, partition, key_hashes)

    async def count_parked(
        self, group_id: str, partition: TopicPartition, first: int, end: int | None
    ) -> int:
        await self._prepared(group_id, partition)
        return await self._parked.count(
            group_id, partition, first, end, self._coordinator.waiting(group_id, partition)
        )

    async def kept_record(self, group_id: str, partition: TopicPartition, offset: int) -> bytes | None:
        await self._prepared(group_id, partition)
        return await self._parked.kept_record(group_id, partition, offset)

    async def count_kept(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        await self._prepared(group_id, partition)
        return await self._parked.count_kept(group_id, partition, first, end)

    async def parked_generations(self, group_id: str, partition: TopicPartition) -> set[int]:
        if self._partition(partition) is None:
            return set()
        await self._prepared(group_id, partition)
        return self._coordinator.generations_in_use(group_id, partition)

    def tell_ended(self, listener: Callable[[tuple[str, TopicPartition], int], None]) -> None:
        self._on_generation_ended = listener

    async def sync_ends(self) -> None:
        await self._logs.flush()

    def _generation_ended(self, key: SharePartitionKey, generation: int) -> None:
        self._parking.forget(prefix_of(*key, generation))
        self._on_generation_ended(key, generation)

    async def _prepared(self, group_id: str, partition: TopicPartition) -> None:
        if refused := await self._prepare(group_id, [partition]):
            raise refused[partition]

    async def _write_in_turn(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        """See control/parking.py."""
        partitions = [request.partition for request in requests]
        try:
            async with self._parking.turn(
                SharePartitionKey(group_id, partition) for partition in partitions
            ) as failed:
                refused = await self._prepare(group_id, partitions)
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
                results, pending = (
                    self._begin(outcome, steps) if outcome.must_wait else (list(outcome.results), Pending())
                )
        except (NoSpace, StoreFailed) as error:
            return [Result(each, ErrorCode.coordinator_not_available, str(error)) for each in partitions]
        except KafkaError as error:
            return [Result(each, error.code, error.message) for each in partitions]
        await pending.wait()
        return _merged(group_id, partitions, refused, results, Result)

    async def _has_parked(self, group_id: str, requests: Sequence[ReadRequest]) -> bool:
        refused = await self._prepare(group_id, [request.partition for request in requests])
        for request in requests:
            if request.partition not in refused:
                with suppress(KafkaError):
                    if self._coordinator.generation(group_id, request.partition) != NO_GENERATION:
                        return True
        return False

    async def _read_in_turn(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """Behind all writes, with nothing parked that the window has as well."""
        partitions = [request.partition for request in requests]
        refused: dict[TopicPartition, KafkaError] = {}
        try:
            async with self._parking.turn(SharePartitionKey(group_id, partition) for partition in partitions):
                await self._logs.commit([])
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
    # ----------------------------------------------------------------------------------------------

    async def know_own_offsets(self, key: TopicPartition, start_offset: int) -> None:
        """So that `count_own_offsets` from there on is right. Raises KafkaError for a log that
        cannot be read."""
        partition = self._partition(key)
        if partition is not None:
            await self._control(partition).know_offsets(start_offset)

    def count_own_offsets(self, key: TopicPartition, start_offset: int) -> int:
        """How many offsets from there on to the log's end are this persister's own."""
        control = self._controls.get(key)
        return 0 if control is None else control.count_offsets(start_offset)

    async def count_unfinished(self, group_id: str, key: TopicPartition, first: int, end: int) -> int:
        await self._prepared(group_id, key)
        parked = await self.count_parked(group_id, key, first, end)
        parked -= await self.count_kept(group_id, key, first, end) if parked else 0
        return parked + await self._count_in_window(group_id, key, first, end)

    async def _count_in_window(self, group_id: str, key: TopicPartition, first: int, end: int) -> int:
        if not self._coordinator.unfinished(group_id, key, first, end):
            return 0
        # From the start offset on: the rest of the range may be long, and lie on a slow disk.
        (row,) = self._coordinator.read_summary(group_id, [ReadRequest(key, 0)]).results
        own = await self.count_own(key, max(first, row.start_offset), end)
        return max(0, self._coordinator.unfinished(group_id, key, first, end) - own)

    async def count_own(self, key: TopicPartition, first: int, end: int) -> int:
        partition = self._partition(key)
        return 0 if partition is None else await self._control(partition).count_between(first, end)

    # -- retention and housekeeping
    # -----------------------------------------------------------------------------------

    async def before_log_start_moves(self, key: TopicPartition, offset: int) -> None:
        """Checkpoints that would go are written anew, behind. Raises NoSpace and StoreFailed: then
        the log start must stay.

        A full disk must not keep retention from making room: what is set aside for deletions is
        used."""
        partition = self._partition(key)
        control = None if partition is None else self._control(partition)
        if partition is None or control is None or not control.has_state:
            return
        try:
            await control.load()
        except KafkaError as error:
            logger.error(
                "%s-%d: share state is lost where it cannot be read: %s",
                partition.topic_name,
                partition.log.partition,
                error,
            )
            return
        group_ids = control.chains.below(offset)
        try:
            await self._write_anew(control, group_ids)
        except NoSpace:
            self._topics.reserve.give_up()
            await self._write_anew(control, group_ids)

    async def _write_anew(self, control: ControlPartition, group_ids: Sequence[str]) -> None:
        if not group_ids:
            return
        await self._open([] if control.is_open else [control])
        key = TopicPartition(*control.partition.log)
        keys = [SharePartitionKey(group_id, key) for group_id in group_ids]
        for each in keys:
            await self._prepare(each.group_id, [key])
        for result in await self._save(self._coordinator.snapshot(keys, now_ms=wall_clock_ms())):
            if result.code is ErrorCode.coordinator_not_available:
                raise NoSpace(result.message)
            if result.code is not ErrorCode.none:
                logger.error(
                    "%s: share state that cannot be read goes with the log: %s",
                    control.partition.topic_name,
                    result.message,
                )

    async def keep_house(self, now_ms: int, interval_ms: int) -> list[Result]:
        """Cold snapshots, fresh hints, and nothing of topics that are gone."""
        for key, control in list(self._controls.items()):
            if control.partition.deleted:
                self._forget(key)
        cold = self._coordinator.cold(now_ms=now_ms, interval_ms=interval_ms)
        results = await self._snapshot_cold(cold, now_ms, interval_ms)
        hints = [control.renewed_hint(1) for control in self._controls.values()]
        changes = [hint for hint in hints if hint is not None]
        if changes:
            try:
                await self._state.commit(changes)
            except (NoSpace, StoreFailed) as error:
                logger.warning("hints to control records were not saved: %s", error)
        return results

    async def _snapshot_cold(
        self, keys: Sequence[SharePartitionKey], now_ms: int, interval_ms: int
    ) -> list[Result]:
        def wanted(state: ShareState) -> bool:
            return is_cold(state, now_ms=now_ms, interval_ms=interval_ms)

        results: list[Result] = []
        for key in keys:
            results += await self._save(self._coordinator.snapshot([key], now_ms=now_ms, wanted=wanted))
        return results

    def _forget(self, key: TopicPartition) -> None:
        del self._controls[key]
        self._asked = {each for each in self._asked if each.partition != key}
        self._keys = {prefix: each for prefix, each in self._keys.items() if each.partition != key}
        for each in [each for each in self._read_ahead if each.partition == key]:
            del self._read_ahead[each]
        outcome = self._coordinator.topic_deleted(key.topic_id)
        self._coordinator.confirm(outcome)  # The log went, and what was in it.


def _parsed(prefix: bytes) -> SharePartitionKey | None:
    try:
        key = parse_key(prefix + _ANY_NUMBER)
    except ValueError:
        return None
    assert isinstance(key, ShareStateKey)
    return SharePartitionKey(key.group_id, TopicPartition(key.topic_id, key.partition))


def _failed(row: R, refusal: KafkaError) -> R:
    return replace(row, code=refusal.code, message=refusal.message) if row.code is ErrorCode.none else row


def _merged(
    group_id: str,
    partitions: Sequence[TopicPartition],
    refused: dict[TopicPartition, KafkaError],
    done: Sequence[R],
    result: type[R],
) -> list[R]:
    """One row for each that was asked for, in that order; none at all where the group id is empty,
    as in Kafka."""
    if not group_id:
        return []
    rest = iter(done)
    return [
        result(each, refused[each].code, refused[each].message) if each in refused else next(rest)
        for each in partitions
    ]


def open_control_records(context: PersisterContext) -> Persister:
    return ControlRecordsPersister(context)


PERSISTER = open_control_records
