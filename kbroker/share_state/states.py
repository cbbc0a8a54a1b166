"""The states of share-partitions in memory: loaded from the store at first use, changed by
decisions, and encoded for it. Pure.

    requests --> ShareStateCoordinator --> entry(), put_update(), put_snapshot(), remove()
    its caller --------------------------> confirm() or failed() when the save has ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError, StoreFailed
from kbroker.formats.share_records import UNKNOWN_EPOCH, encode_share_snapshot, encode_share_update
from kbroker.formats.state import (
    MAX_GROUP_ID_BYTES,
    GivenUp,
    GivenUpKey,
    ShareStateKey,
    parse_key,
    share_partition_prefix,
    share_topic_prefix,
)
from kbroker.share.effects import StateBatch
from kbroker.share.persister import Result, TopicPartition
from kbroker.share_state.housekeeping import SharePartitionKey, is_cold
from kbroker.share_state.loading import ShareState, load
from kbroker.share_state.outcome import Draft, Entry, R, ShareStateOutcome, to_be_saved
from kbroker.share_state.parked import NO_GENERATION, ParkingStore, prefix_of, stored_count

UPDATES_PER_SNAPSHOT: Final = 500
"""share.coordinator.snapshot.update.records.per.snapshot."""
BATCHES_PER_SNAPSHOT: Final = 2000
"""They take some milliseconds to merge, and 40 kB. A busy group that acknowledges in order has
fewer in all of its updates."""


class ShareStateStatistics(NamedTuple):
    """- `loaded`: share-partitions in memory.
    - `unsaved`: decisions neither confirmed nor failed.
    - Since the start: `loads` from the store, `updates` and `snapshots` decided. `cold_snapshots`
      are `snapshots` that housekeeping asked for."""

    loaded: int
    unsaved: int
    loads: int
    updates: int
    snapshots: int
    cold_snapshots: int


class ShareStates:
    """- `scan`: the StateStore's.
    - `partition_exists(topic_id, partition)`: by the broker's topics.
    - `parking`: None if no write may park records.
    - `on_generation_ended`: called with a share-partition and the generation of parked records that
      it no longer uses, once that is saved."""

    def __init__(
        self,
        scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]],
        partition_exists: Callable[[UUID, int], bool],
        updates_per_snapshot: int,
        parking: ParkingStore | None,
        on_generation_ended: Callable[[SharePartitionKey, int], None],
    ) -> None:
        self._scan = scan
        self._partition_exists = partition_exists
        self._updates_per_snapshot = updates_per_snapshot
        self._parking = parking
        self._on_generation_ended = on_generation_ended
        self._entries: dict[tuple[str, TopicPartition], Entry] = {}
        self._loads = self._updates = self._snapshots = self._snapshots_anew = 0

    def entry(self, group_id: str, partition: TopicPartition, draft: Draft[R] | None = None) -> Entry:
        """From memory or from the store. An entry without state is not kept: requests for unknown
        names must not cost memory."""
        entry = self._entries.get((group_id, partition))
        if entry is None:
            key = SharePartitionKey(group_id, partition)
            if len(group_id.encode()) > MAX_GROUP_ID_BYTES:
                raise KafkaError(
                    ErrorCode.invalid_request,
                    f"The group id must not be longer than {MAX_GROUP_ID_BYTES} bytes.",
                )
            prefix = share_partition_prefix(group_id, *partition)
            try:
                state = load(self._scan(prefix))
                if state is not None and state.generation and self._parking is not None:
                    state.waiting = stored_count(
                        self._parking.get, prefix_of(group_id, partition, state.generation)
                    )
            # An error of this row alone: the decisions for earlier rows still have to be saved.
            except (ValueError, StoreFailed) as error:
                raise _unreadable(error) from error
            self._loads += state is not None
            entry = Entry(key, prefix, state, to_be_saved(state))
            if entry.state:
                self._entries[key] = entry
        elif entry.unsaved and draft:
            draft.must_wait = True
        return entry

    def check_exists(self, partition: TopicPartition) -> None:
        if not self._partition_exists(*partition):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
            )

    def put_update(
        self,
        draft: Draft[R],
        entry: Entry,
        state: ShareState,
        batches: Sequence[StateBatch],
        now_ms: int,
    ) -> None:
        """Save a change: as an update, or as a snapshot when there are enough updates."""
        if (
            state.updates >= self._updates_per_snapshot
            or state.update_batches + len(batches) > BATCHES_PER_SNAPSHOT
        ):
            state.snapshot_epoch += 1
            self.put_snapshot(draft, entry, state, now_ms)
            return
        state.updates += 1
        state.update_batches += len(batches)
        value = encode_share_update(
            state.snapshot_epoch,
            state.leader_epoch,
            state.start_offset,
            state.delivery_complete_count,
            batches,
        )
        draft.change(entry, state.updates, value)
        self._updates += 1

    def put_snapshot(
        self,
        draft: Draft[R],
        entry: Entry,
        state: ShareState,
        now_ms: int,
        *,
        create_ms: int | None = None,
    ) -> None:
        state.create_timestamp = now_ms if create_ms is None else create_ms
        state.write_timestamp = now_ms
        value = encode_share_snapshot(
            state.snapshot_epoch,
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.create_timestamp,
            now_ms,
            state.delivery_complete_count,
            UNKNOWN_EPOCH if state.written_in is None else state.written_in,
            state.merged_batches(),
            state.generation,
        )
        state.is_generation_new = False
        draft.change(entry, 0, value)
        for number in range(1, state.updates + 1):
            draft.change(entry, number, None)
        state.updates = state.update_batches = 0
        self._snapshots += 1
        self._entries[entry.key] = entry

    def remove(self, draft: Draft[R], entry: Entry, state: ShareState) -> None:
        """Tombstones. The entry stays, without state, until they are saved, because the store still
        has the removed keys."""
        self.forget_given_up(draft, entry)
        for number in range(state.updates + 1):
            draft.change(entry, number, None)
        entry.state = None

    # ---- the count of records that are given up, beside the state --------------------------------

    def give_up(self, draft: Draft[R], entry: Entry, state: ShareState, records: int) -> None:
        """Count so many more. Raises KafkaError, with nothing changed, if the count cannot be
        read."""
        key = _given_up_key(entry)
        if state.given_up is None:
            try:
                state.given_up = sum(GivenUp.decode(value).records for _, value in self._scan(key))
            except (ValueError, StoreFailed) as error:
                raise _unreadable(error) from error
        state.given_up += records
        draft.changes.append((key, GivenUp(state.given_up).encode()))
        draft.changed[entry] = None

    def forget_given_up(self, draft: Draft[R], entry: Entry) -> None:
        """A count that is not known is removed as well: this must not fail."""
        if entry.state is None or entry.state.given_up != 0:
            draft.changes.append((_given_up_key(entry), None))

    # ---- after the save --------------------------------------------------------------------------

    def confirm(self, outcome: ShareStateOutcome[R]) -> None:
        """The outcome's changes are saved."""
        for entry, saved in outcome.changed:
            assert not entry.lost, f"{entry.key} was saved although an earlier change of it had failed"
            if entry.saved.generation not in (NO_GENERATION, saved.generation):
                self._on_generation_ended(entry.key, entry.saved.generation)
            entry.saved = saved
            entry.unsaved -= 1
            if not entry.unsaved and entry.state is None:
                del self._entries[entry.key]

    def failed(
        self,
        outcome: ShareStateOutcome[R],
        code: ErrorCode = ErrorCode.coordinator_not_available,
        message: str | None = None,
    ) -> tuple[R, ...]:
        """No change of the outcome was saved. Returns the results to answer with instead: `code` in
        every row that was good."""
        for entry, _ in outcome.changed:
            entry.lost = True
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
        return tuple(
            replace(row, code=code, message=message) if row.code is ErrorCode.none else row
            for row in outcome.results
        )

    def statistics(self) -> ShareStateStatistics:
        return ShareStateStatistics(
            loaded=len(self._entries),
            unsaved=sum(entry.unsaved for entry in self._entries.values()),
            loads=self._loads,
            updates=self._updates,
            snapshots=self._snapshots,
            cold_snapshots=self._snapshots_anew,
        )

    # ---- topics that are deleted, and housekeeping -----------------------------------------------

    def topic_deleted(self, topic_id: UUID) -> ShareStateOutcome[Result]:
        """Forget the share-partitions of all groups on that topic. One result for each that
        existed."""
        found = dict.fromkeys(
            entry.key for entry in self._entries.values() if entry.key.partition.topic_id == topic_id
        )
        for stored, _ in self._scan(share_topic_prefix(topic_id)):
            key = parse_key(stored)
            assert isinstance(key, ShareStateKey)
            found.setdefault(SharePartitionKey(key.group_id, TopicPartition(key.topic_id, key.partition)))
        draft: Draft[Result] = Draft()
        for share_partition in found:
            entry = self.entry(*share_partition)
            if entry.state:
                self.remove(draft, entry, entry.state)
                draft.results.append(Result(share_partition.partition))
        return draft.outcome()

    def cold(self, *, now_ms: int, interval_ms: int) -> list[SharePartitionKey]:
        """Those in memory that need a cold snapshot."""
        entries = self._entries.values()
        return [
            entry.key
            for entry in entries
            if entry.state and is_cold(entry.state, now_ms=now_ms, interval_ms=interval_ms)
        ]

    def snapshot(
        self,
        share_partitions: Iterable[SharePartitionKey],
        *,
        now_ms: int,
        wanted: Callable[[ShareState], bool] = lambda _: True,
    ) -> ShareStateOutcome[Result]:
        """New snapshots of those that are `wanted`, with a result for each of these. The state and
        its creation time stay."""
        draft: Draft[Result] = Draft()
        for key in share_partitions:
            if not self._partition_exists(*key.partition):
                continue  # The topic was deleted meanwhile: no key of it may be recreated.
            try:
                entry = self.entry(*key)
            except KafkaError as refusal:
                draft.results.append(Result(key.partition, refusal.code, refusal.message))
                continue
            state = entry.state
            if state and wanted(state):
                state.snapshot_epoch += 1
                self.put_snapshot(draft, entry, state, now_ms, create_ms=state.create_timestamp)
                self._snapshots_anew += 1
                draft.results.append(Result(key.partition))
        return draft.outcome()


def _unreadable(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.unknown_server_error, f"The stored state cannot be read: {error}")


def _given_up_key(entry: Entry) -> bytes:
    """As GivenUpKey encodes it: the body is that of the share-partition's prefix."""
    return GivenUpKey.namespace + entry.prefix[len(ShareStateKey.namespace) :]
