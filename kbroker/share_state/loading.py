"""A share-partition's state in memory, and how it is loaded from its snapshot and updates (KIP-932,
share coordinator replay). Pure.

It must not know its readers and writers. Loading is lean, because a restarted broker loads
thousands of these in its first seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kbroker.formats.parked_records import NO_GENERATION
from kbroker.formats.share_records import (
    UNCHANGED_OFFSET,
    UNKNOWN_EPOCH,
    ShareSnapshot,
    ShareUpdate,
    StateBatchRecord,
)
from kbroker.share.effects import StateBatch
from kbroker.share.state_batches import combine, shortened

NEVER_READ_LEADER_EPOCH: Final = 0
_UNCHANGED_EPOCH: Final = -1


@dataclass(slots=True)
class ShareState:
    """One share-partition.

    - `recent`: batches that `batches` does not contain yet. They are merged on the next read.
    - `updates`: the number of the newest stored update. `update_batches`: the batches of all
      updates.
    - `leader_fence`: the newest leader epoch since the state was loaded. It survives an initialize,
      which stores leader epoch 0.
    - `written_in`: the newest leader epoch of the log that the start offset and the batches refer
      to. None: they refer to no record.
    - The timestamps are the stored snapshot's, in milliseconds since 1970.
    - `generation`: of its `waiting` parked records, which the coordinator counts. A new one needs a
      snapshot that stores it.
    - `given_up`: how many records the group has given up; None: as stored.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...] = ()
    recent: list[StateBatch] = field(default_factory=list)
    updates: int = 0
    update_batches: int = 0
    leader_fence: int = NEVER_READ_LEADER_EPOCH
    written_in: int | None = None
    create_timestamp: int = 0
    write_timestamp: int = 0
    generation: int = NO_GENERATION
    is_generation_new: bool = False
    waiting: int = 0
    given_up: int | None = None

    def merged_batches(self) -> tuple[StateBatch, ...]:
        if not self.recent and (not self.batches or self.batches[0].first_offset >= self.start_offset):
            return self.batches
        self.batches = shortened(combine(self.batches, self.recent, self.start_offset))
        self.recent.clear()
        return self.batches


def load(records: Iterable[tuple[bytes, bytes]]) -> ShareState | None:
    """From a scan of `share_partition_prefix`; None if it is empty. Raises ValueError for a value
    that cannot be read."""
    state: ShareState | None = None
    for key, value in records:
        number = int.from_bytes(key[-8:], "big")
        if number == 0:
            state = _from_snapshot(ShareSnapshot.decode(value))
        else:
            update = ShareUpdate.decode(value)
            state = _from_update(update) if state is None else _with_update(state, update)
            state.updates = number
            state.update_batches += len(update.state_batches)
    return state


def _from_snapshot(snapshot: ShareSnapshot) -> ShareState:
    return ShareState(
        snapshot_epoch=snapshot.snapshot_epoch,
        state_epoch=snapshot.state_epoch,
        leader_epoch=snapshot.leader_epoch,
        start_offset=snapshot.start_offset,
        delivery_complete_count=snapshot.delivery_complete_count,
        batches=tuple(_batches(snapshot.state_batches)),
        leader_fence=snapshot.leader_epoch,
        written_in=None if snapshot.written_in == UNKNOWN_EPOCH else snapshot.written_in,
        create_timestamp=snapshot.create_timestamp,
        write_timestamp=snapshot.write_timestamp,
        generation=snapshot.parked_generation,
    )


def _from_update(update: ShareUpdate) -> ShareState:
    """An update without its snapshot is the whole state, as in Kafka: such a log is half pruned,
    and a deletion follows."""
    return ShareState(
        snapshot_epoch=update.snapshot_epoch,
        state_epoch=0,
        leader_epoch=update.leader_epoch,
        start_offset=update.start_offset,
        delivery_complete_count=update.delivery_complete_count,
        recent=_batches(update.state_batches),
        leader_fence=update.leader_epoch,
        written_in=update.leader_epoch,
    )


def _with_update(state: ShareState, update: ShareUpdate) -> ShareState:
    if update.leader_epoch != _UNCHANGED_EPOCH:
        state.leader_epoch = update.leader_epoch
        state.leader_fence = max(state.leader_fence, update.leader_epoch)
    if update.state_batches or update.start_offset not in (UNCHANGED_OFFSET, state.start_offset):
        state.written_in = state.leader_epoch
    if update.start_offset != UNCHANGED_OFFSET:
        state.start_offset = update.start_offset
    state.delivery_complete_count = update.delivery_complete_count
    state.recent += _batches(update.state_batches)
    return state


def _batches(records: Iterable[StateBatchRecord]) -> list[StateBatch]:
    return [
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in records
    ]
