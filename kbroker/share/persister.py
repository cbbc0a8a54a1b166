"""The Persister SPI (KIP-932, "Share group state persister"): stores the state of share-partitions.

    Persister      the state: Kafka's five verbs. Required.
    WaitingRows    records and reasons that wait outside of the state, written with it. Optional:
                   without it the broker refuses the settings that let records wait.
    OwnRecords     records that the persister itself has in the logs of topics. Optional; rare.

Kafka's verbs are asynchronous, because another process may answer. Each takes many share-partitions
of one group and returns one result per request, in the order of the requests, each with a Kafka
error code of its own. A refusal is a result and raises nothing; an exception is a bug or a
cancellation. Cancelling a write leaves it undecided. The verbs of the other two interfaces are of
one share-partition or one log, and raise KafkaError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.plugins import adapted
from kbroker.share.effects import StateBatch
from kbroker.share.lag import Standing
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.reasons import Reason, ReasonChange

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
    - `keeps_parked`: the state is recreated and its waiting rows stay; only for a persister that
      has WaitingRows.
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
    """Saved with the rest, all or nothing, in this order; only for a persister that has
    WaitingRows, as `reasons`."""
    waiting: int = 0
    """How many records are parked once this is saved; meaningful where `parking` is not empty."""
    reasons: Sequence[ReasonChange] = ()
    """Saved with the rest, all or nothing."""
    given_up: int = 0
    """So many more records are given up for good: a persister may keep the sum, as long as the
    state."""


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
    - `stands_from(offset)`: the offsets saved as finished from `offset` on, which is not below
      `start_offset`. Offsets of the persister's own records count as finished. To be called before
      the caller waits for anything. Raises KafkaError for state that cannot be read. None: unknown.
      Lag is then at most what the log has, and is too high by finished records that a count alone
      cannot place; the oldest unfinished record is taken to be the one at the start offset.
    """

    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = -1
    waiting: int = 0
    stands_from: Callable[[int], Standing] | None = field(default=None, compare=False, repr=False)


class Kept(NamedTuple):
    """The bytes of a parked record that are stored beside the log, as a batch of its own."""

    offset: int
    batch: bytes


class Rejected(NamedTuple):
    """The reason of a rejection whose dead letter is not written yet."""

    offset: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Rows(Generic[T_co]):
    """One of the kinds of waiting rows, each in the order of offsets."""

    name: str


PARKED: Final[Rows[Parked]] = Rows("parked")
KEPT: Final[Rows[Kept]] = Rows("kept")
REJECTED: Final[Rows[Rejected]] = Rows("rejected")


class WaitingRows(ABC):
    """Rows that wait outside of the state, any number of them, on disk and in order: parked records
    (share/parked.py), the bytes of those whose log may be removed, and reasons of rejections
    (share/reasons.py).

    `Persister.write` saves them with the state: `parking` with `waiting`, and `reasons`.
    `ParkingChange.record` is kept beside the log from then on, and removed with b"".

    The rows belong to the state: `initialize` with another epoch or start, `delete`, and the
    topic's deletion end them in the same commit. A state that is recreated under the same name
    never shows them. A failed write may have saved all or a part of its rows: a later write lists
    removals of these. Rows that a failed write was to remove may be there or not. A power cut that
    undoes a removal undoes the share-partition's later writes as well. After `Persister.read` no
    record is both parked and in the window.

    Every verb returns saved rows, and raises KafkaError for state or rows that cannot be read.
    """

    @abstractmethod
    async def read_due(
        self, group_id: str, partition: TopicPartition, lane: Lane, after: tuple[int, int], limit: int
    ) -> list[Parked]:
        """The parked records of one lane, in order, from the first after `after` = (due_ms,
        offset). At most `limit`; fewer mean that there are no more."""

    @abstractmethod
    async def read_from(
        self, group_id: str, partition: TopicPartition, rows: Rows[T], first: int, end: int | None, limit: int
    ) -> list[T]:
        """The rows of one kind at the offsets `first` to `end` - 1, in order; None: all from
        `first` on. At most `limit`; fewer mean that there are no more."""

    @abstractmethod
    async def read_keys(
        self, group_id: str, partition: TopicPartition, key_hashes: Iterable[int]
    ) -> dict[int, list[int]]:
        """By hash (Parked.key_hash), the offsets of parked records in the lane REDELIVERY."""

    @abstractmethod
    async def count(
        self,
        group_id: str,
        partition: TopicPartition,
        first: int,
        end: int | None,
        *,
        kept: bool | None = None,
    ) -> int:
        """How many of the offsets `first` to `end` - 1 are parked. None: all from `first` on, and
        those below it that are kept. `kept`: if true, only records whose
        bytes are kept; if false, only the others."""

    @abstractmethod
    async def has_ended(self, group_id: str, partition: TopicPartition, generation: int) -> bool:
        """Whether the rows of this generation belong to no state any more, so that the broker
        removes them; for rows in the broker's own state store, whose keys have the generation. If
        so, no power cut can undo the generation's end after the return and yet leave later writes
        of the state store. Raises NoSpace and StoreFailed as well."""


class OwnRecords(ABC):
    """Records of the persister's own in the logs of topics. They have offsets, no member gets them,
    and they are never lag. A log that has them is not compacted."""

    @abstractmethod
    async def count_own(self, partition: TopicPartition, first: int, end: int) -> int:
        """How many of the offsets `first` to `end` - 1 are the persister's own. Raises KafkaError
        for a log that cannot be read."""

    @abstractmethod
    async def before_log_start_moves(self, partition: TopicPartition, offset: int) -> None:
        """Rewrite what the log would lose below `offset`; saved on return. Raises NoSpace and
        StoreFailed: the log's start then stays."""

    @abstractmethod
    async def keep_house(self, now_ms: int, interval_ms: int) -> list[Result]:
        """Called every `interval_ms`
        (share.coordinator.cold.partition.snapshot.interval.ms), to write the state of
        share-partitions that nothing else writes. A result for each share-partition concerned;
        raises nothing."""


class Persister(ABC):
    """Derive from this class. The abstract verbs are required.

    Durable on return: everything that a result with code none says was done, as far as the
    operator's --durability goes.
    """

    writes_to_the_end: bool = False
    """Whether `write` cannot be cancelled. Otherwise the broker shields its calls from
    cancellation, which costs something."""

    waiting_rows: WaitingRows | None = None
    """None: it has none, and `write` is never given any. The same object as long as the persister
    is open."""

    own_records: OwnRecords | None = None
    """None: the logs of topics have no records of the persister."""

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

    async def count_unfinished(
        self, group_id: str, partition: TopicPartition, first: int, end: int
    ) -> int | None:
        """How many of the offsets `first` to `end` - 1 hold records that the group has not finished
        and that are not kept; 0 without state or without a decided start offset. None: unknown; the
        broker then calls `read`, which may cost a write. Raises KafkaError for state or a log that
        cannot be read."""
        return None


def adapted_persister(found: Any) -> Persister:  # noqa: ANN401
    """`found`, or an adapter if its class does not derive from Persister. OperatorError where it
    lacks a required verb."""
    persister: Persister = adapted(Persister, found)
    return persister
