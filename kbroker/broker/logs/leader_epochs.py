"""The leader epochs of a partition (KIP-101, KIP-320): one for each broker life. Pure.

Clients use them to detect that a restart took records from the log that they had already read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.errors import ErrorCode, KafkaError


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset that is, or would be, written in it."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """`current`: the epoch of this broker life. `entries`: in ascending order, the last one is the
    current epoch."""

    def __init__(self, current: int, entries: Sequence[EpochEntry]) -> None:
        self.current = current
        self.entries = list(entries)

    def check(self, epoch: int) -> None:
        """Fencing of KIP-320: a client that knows another epoch must first refresh its metadata.
        -1: the client names none."""
        if epoch == -1 or epoch == self.current:
            return
        raise KafkaError(
            ErrorCode.fenced_leader_epoch if epoch < self.current else ErrorCode.unknown_leader_epoch
        )

    def of_offset(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written, or will be; -1 if unknown."""
        return next((entry.epoch for entry in reversed(self.entries) if entry.start_offset <= offset), -1)

    def end_of(self, epoch: int, log_start_offset: int, high_watermark: int) -> tuple[int, int]:
        """(epoch, end offset) of the newest epoch up to `epoch` (OffsetForLeaderEpoch).

        An epoch older than all that have records ends where the oldest of these begins, or at the
        log start: a client that has read nothing since must not conclude that its position was
        truncated. (-1, -1) for -1 and for epochs of the future.
        """
        if epoch == self.current:
            return epoch, high_watermark
        if epoch == -1 or epoch > self.current:
            return -1, -1
        end = high_watermark
        for entry in reversed(self.entries):
            if entry.epoch <= epoch:
                return entry.epoch, end
            end = max(entry.start_offset, log_start_offset)
            if end == log_start_offset:
                break  # Older epochs have no records any more.
        return epoch, end
