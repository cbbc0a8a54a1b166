"""The Persister SPI (KIP-932, "Share group state persister"): stores the state of share-partitions.

Kafka's five verbs are required. They are asynchronous, because another process may answer. Each
takes many share-partitions of one group and returns one result per request, in the order of the
requests, each with a Kafka error code of its own. A refusal is a result and raises nothing; an
exception is a bug or a cancellation. Cancelling a write leaves it undecided.

Everything else in `Persister` is optional: parked records, exact lag, records in the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.plugins import adapted
from kbroker.share.effects import StateBatch
from kbroker.share.lag import Standing
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.reasons import Reason, ReasonChange


class TopicPartition(NamedTuple):
    """A topic partition by id. With a group it names a share-partition."""

    topic_id: UUID
    partition: int


class InitializeRequest(NamedTuple):
    """
    - `start_offset`: -1 if undecided; the group's share.auto.offset.reset then decides at the first
      load.
    - `written_in`: the leader epoch of the log that the start offset refers to, as if it were
      written; None if it is only a number, perhaps beyond the log's end.
    - `keeps_parked`: the state is recreated and its parked records stay; only for a persister that
      `parks_records`.
    """

    partition: TopicPartition
    state_epoch: int
    start_offset: int
    written_in: int | None = None
    keeps_parked: bool = False


def begin_anew(request: InitializeRequest) -> tuple[InitializeRequest, InitializeRequest]:
    """For one `initialize` call: recreates the state even if it has that epoch and start already. A
    single request would be taken for a repetition of itself, and change nothing."""
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
    `parks_records`."""
    waiting: int = 0
    """How many records are parked once this is saved; meaningful where `parking` is not empty."""
    reasons: Sequence[ReasonChange] = ()
    """Saved with the rest, all or nothing; only for a persister that `keeps_reasons`."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome for one share-partition."""

    partition: TopicPartition
    code: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ReadResult(Result):
    """`written_in`: the newest leader epoch of the log that the start offset and the batches refer
    to; None if they refer to no record, or cannot be ahead of the log after a power cut.
    `waiting`: how many records are parked."""

    state_epoch: int = 0
    start_offset: int = 0
    batches: tuple[StateBatch, ...] = field(default=())
    written_in: int | None = None
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class SummaryResult(Result):
    """The saved state at this moment, without waiting for writes under way.

    - `start_offset`: -1 if not initialised, or initialised without an offset.
    - `delivery_complete_count`: -1 if unknown. Offsets of the persister's own records in the topic
      partition, from the start offset on, are counted as well: nobody consumes these.
    - `waiting`: how many records are parked. They are lag, although their offsets are complete.
    """

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = -1
    waiting: int = 0


class Persister(ABC):
    """Derive from this class. The abstract verbs are required; everything else has a default, which
    says that the persister does not do it.

    Durable on return: everything that a result with code none says was done, as far as the
    operator's --durability goes.
    """

    writes_to_the_end: bool = False
    """Whether `write` cannot be cancelled. Otherwise the broker shields its calls from
    cancellation, which costs something."""

    @abstractmethod
    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]: ...

    @abstractmethod
    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]: ...

    @abstractmethod
    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]: ...

    @abstractmethod
    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]: ...

    @abstractmethod
    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    # Parked records. All methods raise KafkaError for state that cannot be read.

    parks_records: bool = False
    """Whether it keeps parked records (share/parked.py), any number of them, on disk and in order.
    Without it, `write` is never given any.

    `write` saves `parking` and `waiting`. Parked records belong to the state: `initialize` with
    another epoch or start, `delete`, and the topic's deletion end them in the same commit. A state
    that is recreated under the same name never shows them. A failed write may have parked all or a
    part of its records: the next write lists removals of these. Records that a failed write was to
    remove may be there or not. `read` returns what holds: no record is both parked and in the
    window."""

    async def read_parked(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        """The saved records of one lane, in order, from the first after `after` = (due_ms, offset).
        At most `limit`; fewer mean that there are no more."""
        return []

    async def parked_from(
        self, group_id: str, partition: TopicPartition, offset: int, limit: int
    ) -> list[Parked]:
        """As `read_parked`, of all lanes, by offset, from `offset` on."""
        return []

    async def count_parked(
        self, group_id: str, partition: TopicPartition, first: int, end: int | None
    ) -> int:
        """How many of the offsets `first` to `end` - 1 are parked. None: all from `first` on, and
        those below it that are kept."""
        return 0

    keeps_records: bool = False
    """Whether one that `parks_records` keeps whole records as well: it saves
    `ParkingChange.record` with the rest of the write, and removes it with b"". Without this, the
    log stays as long as a record is parked."""

    async def kept_record(self, group_id: str, partition: TopicPartition, offset: int) -> bytes | None:
        """The kept bytes of the record at `offset`; None if it is not kept."""
        return None

    async def count_kept(self, group_id: str, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 are parked and kept."""
        return 0

    finds_parked_keys: bool = False
    """Whether one that `parks_records` finds them by their keys, for groups that keep the order of
    keys."""

    async def parked_of_keys(
        self, group_id: str, partition: TopicPartition, key_hashes: Iterable[int]
    ) -> dict[int, list[int]]:
        """By hash (Parked.key_hash), the offsets of saved records in the lane REDELIVERY."""
        return {}

    # Reasons of rejections. Both methods raise KafkaError.

    keeps_reasons: bool = False
    """Whether one that `parks_records` keeps the reasons of rejections (share/reasons.py): `write`
    saves `reasons`. They end with the state, as parked records do. After a failed write its reasons
    may be there or not; a later write removes them before it is saved, or together with that.
    Without this, the reasons are ignored."""

    async def reasons_from(
        self, group_id: str, partition: TopicPartition, offset: int, limit: int
    ) -> dict[int, Reason]:
        """The saved reasons by offset, in order, from `offset` on. At most `limit`; fewer mean that
        there are no more."""
        return {}

    async def drop_reasons(  # noqa: B027
        self, group_id: str, partition: TopicPartition, offsets: Iterable[int]
    ) -> None:
        """Remove the reasons at these offsets, if there are any. On return no power cut brings
        them back and yet leaves later writes."""

    # Parked records in the broker's own state store: the broker removes those of generations that
    # are no longer in use.

    def tell_ended(  # noqa: B027
        self, listener: Callable[[tuple[str, TopicPartition], int], None]
    ) -> None:
        """Call `listener` with (group id, partition) and generation once the end of a generation is
        saved."""

    async def parked_generations(self, group_id: str, partition: TopicPartition) -> set[int]:
        """The generations in use, at the moment of return. Raises KafkaError for state that cannot
        be read."""
        return set()

    async def sync_ends(self) -> None:  # noqa: B027
        """Returns once no power cut can undo the generations' ends so far and yet leave later
        writes of the state store. Raises NoSpace, StoreFailed."""

    # Lag.

    async def count_unfinished(
        self, group_id: str, partition: TopicPartition, first: int, end: int
    ) -> int | None:
        """How many of the offsets `first` to `end` - 1 hold records that the group has not finished
        and that are not kept; 0 without state or without a decided start offset. None: unknown; the
        broker then calls `read`, which may cost a write. Raises KafkaError for state or a log that
        cannot be read."""
        return None

    def stands_from(self, group_id: str, partition: TopicPartition, offset: int) -> Standing | None:
        """The offsets saved as finished from `offset` on, which is not below the start offset that
        `read_summary` has just returned. Offsets of the persister's own records count as finished.

        None: unknown. Lag is then at most what the log has, and is too high by finished records
        that a count alone cannot place; the oldest unfinished record is taken to be the one at the
        saved start offset. Raises KafkaError for state that cannot be read."""
        return None

    # Records of the persister's own in the topic partitions. They have offsets, and are never lag.

    async def know_own_offsets(  # noqa: B027
        self, partition: TopicPartition, start_offset: int
    ) -> None:
        """Load what `count_own_offsets` from `start_offset` on needs. Raises KafkaError for a log
        that cannot be read."""

    def count_own_offsets(self, partition: TopicPartition, start_offset: int) -> int:
        """How many offsets from `start_offset` to the log's end are the persister's own."""
        return 0

    async def count_own(self, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 are the persister's own. Raises KafkaError
        for a log that cannot be read."""
        return 0

    async def before_log_start_moves(  # noqa: B027
        self, partition: TopicPartition, offset: int
    ) -> None:
        """Rewrite what the log would lose below `offset`. Raises NoSpace and StoreFailed: the log's
        start then stays."""

    # Upkeep.

    async def keep_house(self, now_ms: int, interval_ms: int) -> list[Result]:
        """Called every `interval_ms`
        (share.coordinator.cold.partition.snapshot.interval.ms). A result for each share-partition
        concerned; raises nothing."""
        return []


def adapted_persister(found: Any) -> Persister:  # noqa: ANN401
    """`found`, or an adapter if its class does not derive from Persister. OperatorError where it
    lacks a required verb."""
    flags = {
        "keeps_records": "kept_record",
        "finds_parked_keys": "parked_of_keys",
        "keeps_reasons": "reasons_from",
    }
    persister: Persister = adapted(Persister, found, flags)
    return persister
