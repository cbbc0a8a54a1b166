"""Parked records beside control records. The two stores have no common commit, so a write that
parks takes three steps:

    1  parked records and reasons of rejections are put into the state store, old reasons are
       removed from it, and it is synced, whatever the durability
    2  the write is decided, and its control record appended: the window is now final
    3  records that are no longer parked, and old places, are removed from the state store; then
       the write is answered

If the broker is killed after step 1, a record is parked and in the window: at each load, `settle`
drops those that the window still has. A reason may be that of a record which is not ARCHIVING: the
load drops it as well (queues/loading.py). If the broker is killed after step 2, a parked record may
have an old place as well. A place that the key by offset does not name is invalid, and removed when
it is read. The number of parked records is that of the keys by offset and changes with them, so it
is right after each step.

Between steps 1 and 2 a later write could overtake this one, and its start offset could pass a
record that is not parked yet. So the writes and loads of a share-partition take turns while one of
them parks. If one fails before it is decided, those that waited behind it fail as well.

Step 3 is outside the turn. A write whose step 1 comes before that of an earlier one puts keys that
the earlier one must no longer remove.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakSet

import trio

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.waiting import OnDone
from kbroker.broker.persisters.parked_reader import PIECE, ParkedReader, blocks
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import (
    BY_OFFSET,
    NO_GENERATION,
    by_key_key,
    by_offset_key,
    kept_key,
    place_key,
    record_by_offset,
)
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.persister import PARKED, TopicPartition, WriteRequest
from kbroker.share.reasons import ReasonChange
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.parked import (
    changes_of,
    changes_of_reasons,
    counter,
    keys_of,
    parked_of,
    prefix_of,
    stored_count,
)
from kbroker.storage.spi import Change, StateReader

logger = logging.getLogger(__name__)

OVERTAKEN = KafkaError(ErrorCode.coordinator_not_available, "A write before this one has failed.")
BEGUN_ANEW = KafkaError(
    ErrorCode.coordinator_not_available, "The state was initialized again before this write was decided."
)
_LOOKS_ON_LOOP = 64


@dataclass(eq=False)
class Step:
    """Step 3 of a write that parks. `removals`: the keys to remove. `gone`: the keys by offset
    among them that the store has."""

    generation: int
    prefix: bytes
    removals: dict[bytes, None] = field(default_factory=dict)
    gone: set[bytes] = field(default_factory=set)
    is_submitted: bool = False

    def spare(self, keys: Iterable[bytes]) -> None:
        """A later write has put these keys."""
        for key in keys:
            self.removals.pop(key, None)
            self.gone.discard(key)


@dataclass(eq=False)
class _Turns:
    """The turns of one share-partition. `failures`: how many writes failed during their turn."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    users: int = 0
    failures: int = 0


class ControlParking:
    def __init__(
        self,
        coordinator: ShareStateCoordinator,
        store: StateReader,
        state: GroupCommit[Change],
        reader: ParkedReader,
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._state = state
        self._reader = reader
        self._turns: dict[SharePartitionKey, _Turns] = {}
        self._counts: dict[bytes, int] = {}
        """Number of keys by offset, by the prefix of their generation, with changes under way."""
        self._steps: WeakSet[Step] = WeakSet()
        """Those under way. A later write may do its step 1 before them."""
        self.dropped = 0
        """Parked records that were dropped because the window had them."""

    @property
    def is_busy(self) -> bool:
        return bool(self._turns)

    @asynccontextmanager
    async def turn(self, keys: Iterable[SharePartitionKey]) -> AsyncIterator[Callable[[], None]]:
        """Lock share-partitions, in the order of requests. Yields a function for the caller to call
        if a part of the write is not decided; an exception or cancellation has the same effect.
        Raises KafkaError if a write failed for which this one waited."""
        turns = [(key, self._turns.setdefault(key, _Turns())) for key in sorted(dict.fromkeys(keys))]
        failures = [turn.failures for _, turn in turns]
        taken: list[_Turns] = []

        def failed() -> None:
            for _, turn in turns:
                turn.failures += 1

        for _, turn in turns:
            turn.users += 1
        try:
            for _, turn in turns:
                await turn.lock.acquire()
                taken.append(turn)
            if [turn.failures for _, turn in turns] != failures:
                raise OVERTAKEN
            try:
                yield failed
            except BaseException:
                failed()
                raise
        finally:
            for turn in taken:
                turn.lock.release()
            for key, turn in turns:
                turn.users -= 1
                if not turn.users and self._turns.get(key) is turn:
                    del self._turns[key]

    # -- writes

    async def put(self, group_id: str, requests: Sequence[WriteRequest]) -> Mapping[TopicPartition, Step]:
        """Step 1, for requests that have their turn: synced on return. Leaves out requests that
        will be refused. Raises NoSpace, StoreFailed."""
        parking: dict[TopicPartition, list[ParkingChange]] = {}
        reasons: dict[TopicPartition, list[ReasonChange]] = {}
        generations: dict[TopicPartition, int] = {}
        for request in requests:
            if request.parking or request.reasons:
                with suppress(KafkaError):  # The decision will refuse it.
                    generations[request.partition] = self._coordinator.generation_to_park_in(
                        group_id, request
                    )
                    parking.setdefault(request.partition, []).extend(request.parking)
                    reasons.setdefault(request.partition, []).extend(request.reasons)
        steps: dict[TopicPartition, Step] = {}
        changes: list[Change] = []
        for partition, wanted in parking.items():
            prefix = prefix_of(group_id, partition, generations[partition])
            if generations[partition] == NO_GENERATION:
                steps[partition] = Step(NO_GENERATION, prefix)
                continue
            puts, removals = _parted(changes_of(prefix, wanted))
            earlier = [step for step in self._steps if step.prefix == prefix]
            there = await self._there(prefix, [*(key for key, _ in puts), *removals])
            for step in earlier:
                if step.is_submitted:
                    there -= step.gone
                else:
                    step.spare(key for key, _ in puts)
            new = sum(_is_by_offset(prefix, key) and key not in there for key, _ in puts)
            steps[partition] = Step(generations[partition], prefix, removals, there & removals.keys())
            self._steps.add(steps[partition])
            if puts:
                changes += [*puts, self._counted(prefix, new)]
            changes += changes_of_reasons(prefix, reasons[partition])
        try:
            if changes:
                await self._state.commit(changes)
                await self._state.flush()
        except (NoSpace, StoreFailed):
            for step in steps.values():
                self._counts.pop(step.prefix, None)
            raise
        return steps

    async def _there(self, prefix: bytes, keys: Iterable[bytes]) -> set[bytes]:
        """The keys by offset among these that the store has."""
        wanted = [key for key in keys if _is_by_offset(prefix, key)]

        def look() -> set[bytes]:
            return {key for key in wanted if self._store.get(key) is not None}

        return look() if len(wanted) <= _LOOKS_ON_LOOP else await trio.to_thread.run_sync(look)

    def forget(self, prefix: bytes) -> None:
        """Forget a generation that has ended."""
        self._counts.pop(prefix, None)

    def is_as_put(self, group_id: str, request: WriteRequest, steps: Mapping[TopicPartition, Step]) -> bool:
        """Whether the state was not recreated since step 1."""
        step = steps.get(request.partition)
        return step is None or step.generation == self._coordinator.generation(group_id, request.partition)

    def submit_removals(self, steps: Iterable[Step], counts: Iterable[Change], on_done: OnDone) -> bool:
        """Step 3, and `counts`. False: there is nothing to do, and `on_done` is not called."""
        changes = list(counts)
        under_way = [step for step in steps if step.removals]
        for step in under_way:
            changes += [(key, None) for key in step.removals]
            changes.append(self._counted(step.prefix, -len(step.gone)))
            step.is_submitted = True
        if not changes:
            return False

        self._state.submit(changes, partial(self._removed, under_way, on_done))
        return True

    def _removed(self, steps: Iterable[Step], on_done: OnDone, error: Exception | None) -> None:
        for step in steps:
            self._steps.discard(step)
            if error is not None:
                self._counts.pop(step.prefix, None)
        on_done(error)

    def _counted(self, prefix: bytes, more: int) -> Change:
        known = self._counts.get(prefix)
        if known is None:
            known = stored_count(self._store.get, prefix)
        self._counts[prefix] = max(0, known + more)
        return counter(prefix, self._counts[prefix])

    # -- loads

    async def settle(self, group_id: str, partition: TopicPartition, start_offset: int) -> None:
        """Drop parked records that the window has. For a share-partition that has its turn, before
        it is loaded. Raises KafkaError."""
        prefix = self._reader.prefix(group_id, partition)
        if prefix is None:
            return
        at, dropped = max(0, start_offset), 0
        try:
            while found := await self._reader.read_from(group_id, partition, PARKED, at, None, PIECE):
                at = found[-1].offset + 1
                both = set(
                    self._coordinator.in_window(group_id, partition, [parked.offset for parked in found])
                )
                removals: list[Change] = []
                for parked in found:
                    if parked.offset in both:
                        removals += [(key, None) for key in keys_of(prefix, parked)]
                        removals += [(kept_key(prefix, parked.offset), None)] if parked.kept else []
                if removals:
                    dropped += len(both)
                    await self._state.commit([*removals, self._counted(prefix, -len(both))])
        except (NoSpace, StoreFailed) as error:
            self._counts.pop(prefix, None)
            raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error
        self._coordinator.recount(group_id, partition, self._count_now(prefix))
        if dropped:
            self.dropped += dropped
            logger.warning(
                "share group %s on %s-%d: %d parked records were still in the window, and are "
                "delivered from there",
                group_id, partition.topic_id, partition.partition, dropped,
            )  # fmt: skip

    def _count_now(self, prefix: bytes) -> int:
        known = self._counts.get(prefix)
        return stored_count(self._store.get, prefix) if known is None else known

    async def in_lane(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        """Like ParkedReader, but without old places left over from a kill, which are removed.

        A record may have been rewritten at the same place since the piece was read, for instance to
        keep it. That place is still valid, and the value of the key by offset is newer."""
        found: list[Parked] = []
        while len(found) < limit:
            piece = await self._reader.read_due(group_id, partition, lane, after, limit - len(found))
            prefix = self._reader.prefix(group_id, partition)
            if not piece or prefix is None:
                break
            after = piece[-1].due_ms, piece[-1].offset
            named = {each.offset: self._store.get(by_offset_key(prefix, each.offset)) for each in piece}
            valid, old = _told_apart(piece, named)
            found += valid
            if old:
                removals = [(place_key(prefix, each.lane, each.due_ms, each.offset), None) for each in old]
                blocked = [
                    each
                    for each in old
                    if each.key_hash is not None and not blocks(named[each.offset], each.key_hash)
                ]
                removals += [(by_key_key(prefix, each.key_hash or 0, each.offset), None) for each in blocked]
                self._state.submit(removals, _report)
        return found


def _parted(changes: Mapping[bytes, bytes | None]) -> tuple[list[Change], dict[bytes, None]]:
    """The puts, and the keys to remove."""
    puts: list[Change] = [change for change in changes.items() if change[1] is not None]
    return puts, {key: None for key, value in changes.items() if value is None}


def _is_by_offset(prefix: bytes, key: bytes) -> bool:
    return key[len(prefix)] == BY_OFFSET


def _told_apart(
    piece: Iterable[Parked], named: Mapping[int, bytes | None]
) -> tuple[list[Parked], list[Parked]]:
    """Divide records into those at the places that their keys by offset name (with the values of
    these keys), and those at old places. Raises KafkaError."""
    valid, old = [], []
    for each in piece:
        value = named[each.offset]
        try:
            record = None if value is None else parked_of(record_by_offset(each.offset, value))
        except ValueError as error:
            raise KafkaError(
                ErrorCode.unknown_server_error, f"A parked record cannot be read: {error}"
            ) from error
        if record is not None and (record.lane, record.due_ms) == (each.lane, each.due_ms):
            valid.append(record)
        else:
            old.append(each)
    return valid, old


def _report(error: Exception | None) -> None:
    if error is not None:
        logger.warning("old places of parked records were not removed: %s", error)
