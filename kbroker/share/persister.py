"""The Persister SPI (KIP-932, "Share group state persister"): where a share-partition's state is
kept.

Five verbs, asynchronous because another process may answer; each takes many share-partitions of one
group and gives one result per share-partition asked for, in the order asked, with a Kafka error
code of its own. A call raises nothing for a refusal; what it raises is a bug or a cancellation.
Cancelling a write leaves it undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import StateBatch
from kbroker.share.lag import Standing
from kbroker.share.parked import Lane, Parked, ParkingChange


class TopicPartition(NamedTuple):
    """A topic partition by id. With a group it names a share-partition."""

    topic_id: UUID
    partition: int


class InitializeRequest(NamedTuple):
    """`start_offset` -1: not decided yet, the group's share.auto.offset.reset decides at the first
    load. `written_in`: the leader epoch whose log the start offset is an offset of, as if it were
    written; None: it is just a number, perhaps beyond the log's end. `keeps_parked`: the state
    begins anew, and its parked records stay; only for a persister that ParksRecords."""

    partition: TopicPartition
    state_epoch: int
    start_offset: int
    written_in: int | None = None
    keeps_parked: bool = False


def begin_anew(request: InitializeRequest) -> tuple[InitializeRequest, InitializeRequest]:
    """For one `initialize` call: the state begins anew with that start, also where it has that
    epoch and start already, which a single request would take for its own repetition and leave as
    it is."""
    return request._replace(start_offset=0 if request.start_offset < 0 else -1), request


def check_start_offset(start_offset: int) -> None:
    """Raises INVALID_REQUEST for one that cannot be the first offset to deliver. Kafka takes any,
    and begins at the log's start."""
    if start_offset < -1:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Start offset {start_offset} is below -1: give an offset from 0 on, or -1 to let the group's "
            "share.auto.offset.reset decide.",
        )


class ReadRequest(NamedTuple):
    partition: TopicPartition
    leader_epoch: int


class WriteRequest(NamedTuple):
    partition: TopicPartition
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]
    parking: Sequence[ParkingChange] = ()
    """Saved with the rest, all or nothing, in this order; only for a persister that
    ParksRecords."""
    waiting: int = 0
    """How many records are parked once this is saved; looked at where `parking` is not empty."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome for one share-partition."""

    partition: TopicPartition
    code: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ReadResult(Result):
    """`written_in`: the newest leader epoch whose log the start offset and the batches speak of.
    None: they speak of no record, or are kept so that a power cut cannot leave them ahead of the
    log. `waiting`: how many records are parked."""

    state_epoch: int = 0
    start_offset: int = 0
    batches: tuple[StateBatch, ...] = field(default=())
    written_in: int | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class SummaryResult(Result):
    """What is saved at this moment: nobody waits for what is on its way. `start_offset` -1: not
    initialised, or initialised without an offset. `delivery_complete_count` -1: unknown; offsets
    from the start on that the persister itself has taken in the topic partition are counted as
    well, since they are nobody's to deliver. `waiting`: how many records are parked: they are lag,
    although their places count as complete."""

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = -1
    waiting: int = 0


class Persister(Protocol):
    """What is durable on return: everything that a result with code none says was done, as far as
    the operator's --durability goes. Writes are shielded from cancellation, which costs something;
    a persister whose `write` cannot be cancelled may say `writes_to_the_end = True`, and is called
    without that."""

    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]: ...
    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]: ...
    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]: ...
    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]: ...
    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]: ...
    async def aclose(self) -> None: ...


@runtime_checkable
class ParksRecords(Protocol):
    """A persister that keeps parked records (share/parked.py), any number of them, on disk and in
    order.

    `write` saves `parking` and `waiting`. Parked records belong to the state: `initialize` with
    another epoch or start, `delete` and the topic's deletion end them in the same commit, and a
    state that begins anew under the same name never shows them. A write that fails may have parked
    what it said, or a part of it: the next write says removals of that. What a failed write was to
    remove may be there or not. `read` gives what holds: no record is both parked and in the
    window."""

    @property
    def parks_records(self) -> bool:
        """Whether the store underneath can; without it, `write` is never given any."""

    async def read_parked(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        """Of one lane, in order, those that are saved and stand behind `after` = (due_ms, offset);
        at most `limit`. Fewer: there are no more. Raises KafkaError for state that cannot be
        read."""

    async def parked_from(
        self, group_id: str, partition: TopicPartition, offset: int, limit: int
    ) -> list[Parked]:
        """In the order of their offsets, of all lanes, from one offset on. Else as
        `read_parked`."""

    async def count_parked(
        self, group_id: str, partition: TopicPartition, first: int, end: int | None
    ) -> int:
        """How many of the offsets `first` to `end` - 1 are parked; None: all from `first` on, and
        those below it that are kept (KeepsRecords)."""


@runtime_checkable
class KeepsRecords(Protocol):
    """A persister that ParksRecords, and keeps whole records: `ParkingChange.record`, which it
    saves with the rest of the write, and removes with b"". Without it, the log stays as long as a
    record is parked. Both methods raise KafkaError for state that cannot be read."""

    async def kept_record(self, group_id: str, partition: TopicPartition, offset: int) -> bytes | None:
        """What is kept of the record at that offset; None: nothing."""

    async def count_kept(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 are parked and kept."""


@runtime_checkable
class FindsParkedKeys(Protocol):
    """A persister that ParksRecords and finds them by their keys, for groups that keep the order of
    keys."""

    async def parked_of_keys(
        self, group_id: str, partition: TopicPartition, key_hashes: Iterable[int]
    ) -> dict[int, list[int]]:
        """Of these hashes (Parked.key_hash), the offsets of parked records in the lane REDELIVERY,
        as far as they are saved. Raises KafkaError for state that cannot be read."""


@runtime_checkable
class CountsUnfinished(Protocol):
    """A persister that counts a group's unfinished records without the write that `read` may cost.
    Both methods raise KafkaError for state or a log that cannot be read."""

    async def count_unfinished(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 hold records that the group is not done
        with, but for those that are kept (KeepsRecords). 0 where the group has no state, or no
        decided start offset."""

    async def count_own(self, partition: TopicPartition, first: int, end: int) -> int:
        """How many of these offsets are the persister's own (see KeepsRecordsInLogs)."""


@runtime_checkable
class TellsWhatIsDone(Protocol):
    """A persister that can tell what is left of a share-partition whose saved start offset the
    log's start has passed. Without it lag counts at most what the log has, and is too high by
    finished records that a count alone cannot place. It also tells which record is the oldest that
    is not finished: without it that is the one at the saved start offset."""

    def stands_from(self, group_id: str, partition: TopicPartition, offset: int) -> Standing:
        """What is saved as done from `offset` on, which is not below the start offset that
        `read_summary` has just given; offsets that the persister itself has taken are counted as
        done. Raises KafkaError for state that cannot be read."""


@runtime_checkable
class KeepsRecordsInLogs(Protocol):
    """A persister that puts records of its own into the topic partitions. They have offsets, and
    are nobody's lag."""

    async def know_own_offsets(self, partition: TopicPartition, start_offset: int) -> None:
        """So that `count_own_offsets` from there on is right from now on. Raises KafkaError for a
        log that cannot be read."""

    def count_own_offsets(self, partition: TopicPartition, start_offset: int) -> int:
        """How many offsets from there on to the log's end are the persister's own."""
