"""The events of a history: what producers, consumers and a test harness note while a broker is
killed, loses power, or purges logs.

A history is a sequence of these frozen dataclasses, merged from several processes that each write
their own in order. `at_ns` is CLOCK_MONOTONIC (`time.monotonic_ns`), which all processes of a
machine share. A history can be checked only if its writers keep two rules:

    write a request down before sending it           (Sent, AckSent, CommitSent, Closing, LifeBegan)
    write a response down after receiving it         (SendConfirmed, Delivered, AckAnswered,
                                                     CommitAnswered, LifeEnded)

Then a request's `at_ns` is never later, and a response's never earlier, than the moment at which
the broker acted. On disk an event is one line of JSON. This module must not know brokers, clients
or files. The checkers are tests.judges.history (share groups), group_history (consumer groups),
queue_history (work queues), producer_history (producers and purged logs), transaction_history and
compaction_history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias, get_args

from tests.judges.compaction_events import CompactionEvent, EntrySeen, Stage
from tests.judges.transaction_events import Planned, TransactionEvent, TransactionResult


class Record(NamedTuple):
    """An offset in a topic partition's log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class AckKind(StrEnum):
    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"


class Outcome(StrEnum):
    CONFIRMED = "confirmed"
    """The broker confirmed it: it was done."""
    REFUSED = "refused"
    """The broker answered with an error: it was not done."""
    UNKNOWN = "unknown"
    """No response arrived: it may or may not have been done."""


@dataclass(frozen=True, slots=True)
class LifeBegan:
    """Written just before a broker process is started. Each such process is a life of the broker.
    Lives have rising numbers and do not overlap."""

    at_ns: int
    life: int


@dataclass(frozen=True, slots=True)
class LifeEnded:
    """The broker process of this life is known to have ended. `orderly`: it stopped by itself after
    SIGTERM."""

    at_ns: int
    life: int
    orderly: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """A producer is about to send a record.

    - `value` identifies the record: the application sends each value once, although a client
      library may resend it.
    - `is_old`: its timestamp is so old that retention by time may remove it at once.
    - `due_ns`: the CLOCK_MONOTONIC time before which its headers forbid delivery; 0: none.
    - `key`: the record's key; "": none.
    - `digest`: of key, value, headers and timestamp, to compare with the digest in Delivered and
      DeadLetterRead; "": not recorded.
    """

    at_ns: int
    producer: str
    value: str
    idempotent: bool = False
    is_old: bool = False
    due_ns: int = 0
    key: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class SendConfirmed:
    """The broker confirmed the send, with acks=1 or all. Without this event the record may or may
    not be in the log."""

    at_ns: int
    producer: str
    value: str
    record: Record


@dataclass(frozen=True, slots=True)
class Delivered:
    """A share consumer received a record.

    `asked_ns`: a lower bound of the time at which the broker acquired the record. It is the time
    when the fetch was sent. If a client library hides that, it is when the library returned the
    consumer's previous records, since a share consumer has one fetch in flight, or when its
    connection was last seen down.
    """

    at_ns: int
    asked_ns: int
    consumer: str
    record: Record
    value: str
    count: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class AckSent:
    at_ns: int
    consumer: str
    record: Record
    kind: AckKind


@dataclass(frozen=True, slots=True)
class AckAnswered:
    """The outcome of this consumer's last AckSent for the record."""

    at_ns: int
    consumer: str
    record: Record
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Closing:
    """The consumer is about to be closed or killed: from now on the broker may release the records
    that it holds."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The consumer noticed that its connection had broken, some time before this moment."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The group has no records left: its only consumer received nothing for longer than a lock
    lasts."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """An ordinary read of the log at the end of the test found this value. `is_cut`: the log begins
    inside the record's batch."""

    at_ns: int
    record: Record
    value: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class LogReadDone:
    """The LogRead events of this topic partition are complete from `start` on, the log's start
    offset after the read."""

    at_ns: int
    topic: str
    partition: int
    start: int = 0


# --- work queues ---


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An operator's request was confirmed: the group gets no record below `start` any more,
    finished or not."""

    at_ns: int
    topic: str
    partition: int
    start: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """The broker reported that the log begins at `start`. Records below are delivered only from
    their kept copies, beside the log."""

    at_ns: int
    topic: str
    partition: int
    start: int


@dataclass(frozen=True, slots=True)
class DeadLetterRead:
    """A read of the dead letter topic at the end of the test found the dead letter of `record`.
    `value`: its copy of the record's value, if any; `digest`: of its copy of the whole record."""

    at_ns: int
    record: Record
    count: int
    is_rejected: bool
    value: str | None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """The state of a share-partition at the end of the test.

    - `lag`: as the broker reports it.
    - `parked`: parked records in the store; `counted`: the store's own counter of them.
    - `kept`: kept records in the store.

    After this event of a group's last partition, no DeadLetterRead follows."""

    at_ns: int
    topic: str
    partition: int
    lag: int | None
    parked: int
    counted: int
    kept: int = 0


# --- members of a consumer group ---


@dataclass(frozen=True, slots=True)
class Assigned:
    """The client library notified the application that it has this partition now. `asked_ns`: a
    time before the member can have fetched the committed offset."""

    at_ns: int
    asked_ns: int
    consumer: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The application has released the partition, after the response to its last commit. `lost`: it
    had lost the partition before it was notified."""

    at_ns: int
    consumer: str
    topic: str
    partition: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The application has received and processed this record."""

    at_ns: int
    consumer: str
    record: Record
    value: str


@dataclass(frozen=True, slots=True)
class CommitSent:
    """`offset`: the next record to read. A member waits for the response to its commit of a
    partition before it sends the next one."""

    at_ns: int
    consumer: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    """The outcome of this consumer's last CommitSent for the partition. UNKNOWN: the client gave up
    waiting."""

    at_ns: int
    consumer: str
    topic: str
    partition: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Gone:
    """The member is about to be killed or frozen, or was found dead. It may lose its partitions
    without being notified."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Back:
    """The frozen member is about to resume. It may still be notified about partitions that it has
    lost meanwhile."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class CommittedAtEnd:
    """The group's committed offset of the partition at the end of the test; -1: none."""

    at_ns: int
    topic: str
    partition: int
    offset: int


# --- producers that keep their id and sequence across lives of a broker, and purged logs ---


@dataclass(frozen=True, slots=True)
class IdTaken:
    """InitProducerId returned this id."""

    at_ns: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class BatchSent:
    """One attempt to send a batch of `count` records with sequence numbers from `sequence` on. A
    second such event is a retry, or a repeat after a response."""

    at_ns: int
    producer_id: int
    topic: str
    partition: int
    sequence: int
    count: int
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class BatchAnswered:
    """The response to this producer's last BatchSent for the partition. `error`: Kafka's code. A
    batch without a response may have been stored."""

    at_ns: int
    producer_id: int
    topic: str
    partition: int
    sequence: int
    error: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class PurgeSent:
    """DeleteRecords is about to be sent for all records below `offset`; -1: for all records."""

    at_ns: int
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class PurgeAnswered:
    """The response to the last PurgeSent for the partition: its log now begins at `start`."""

    at_ns: int
    topic: str
    partition: int
    error: int
    start: int


@dataclass(frozen=True, slots=True)
class BoundsSeen:
    """The response to a ListOffsets that was sent at `asked_ns`, while no purge was in flight: the
    log's start and end offset."""

    at_ns: int
    asked_ns: int
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PowerLost:
    """A power cut, after LifeEnded. `promises_end`: the durability was `os`, so that unsynced data
    may be lost."""

    at_ns: int
    promises_end: bool


Event: TypeAlias = (
    LifeBegan
    | LifeEnded
    | Sent
    | SendConfirmed
    | Delivered
    | AckSent
    | AckAnswered
    | Closing
    | Disconnected
    | Drained
    | LogRead
    | LogReadDone
    | PassedOver
    | LogCut
    | DeadLetterRead
    | LeftBehind
    | Assigned
    | Revoked
    | Read
    | CommitSent
    | CommitAnswered
    | Gone
    | Back
    | CommittedAtEnd
    | IdTaken
    | BatchSent
    | BatchAnswered
    | PurgeSent
    | PurgeAnswered
    | BoundsSeen
    | PowerLost
    | TransactionEvent
    | CompactionEvent
)

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS = {
    "record": lambda value: Record(*value),
    "records": lambda value: tuple(Planned(*each) for each in value),
    "kind": AckKind,
    "outcome": Outcome,
    "result": TransactionResult,
    "entries": lambda value: tuple(EntrySeen(*each) for each in value),
    "stage": Stage,
}


def to_json(event: Event) -> str:
    """One line, without its newline."""
    return json.dumps({"event": type(event).__name__, **asdict(event)}, separators=(",", ":"))


def from_json(line: str | bytes) -> Event:
    fields = json.loads(line)
    cls = _EVENTS[fields.pop("event")]
    for name, decode in _FIELDS.items():
        if name in fields:
            fields[name] = decode(fields[name])
    return cls(**fields)


def read_lines(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Parse lines. A last line without a newline, whose writer was killed, is left out."""
    for line in lines:
        if line[-1:] in ("\n", b"\n"):
            yield from_json(line)


def merge(histories: Iterable[Iterable[Event]]) -> list[Event]:
    """Merge the histories of several processes into one. Events of one process with the same time
    keep their order."""
    return sorted((event for history in histories for event in history), key=lambda event: event.at_ns)
