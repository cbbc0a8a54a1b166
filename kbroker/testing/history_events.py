"""The events of a history: what producers, consumers and a harness record while a broker is killed,
cut off from power, or purged.

A history is a sequence of these frozen dataclasses, from several processes, each of which writes
its own in order. `at_ns` is CLOCK_MONOTONIC (`time.monotonic_ns`), which all processes of one
machine share. Two rules make a history worth judging:

    a request is written down before it is sent      (Sent, AckSent, CommitSent, Closing, LifeBegan)
    a response is written down after it has arrived  (SendConfirmed, Delivered, AckAnswered,
                                                     CommitAnswered, LifeEnded)

So each event bounds, from the right side, the moment at which the broker acted. On disk an event is
one line of JSON. This module knows nothing of brokers, clients and files. The judges are
kbroker.testing.history (share groups), group_history (consumer groups), queue_history (work queues)
and producer_history (producers and purged logs).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias, get_args


class Record(NamedTuple):
    """One place in a topic partition's log."""

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
    """The broker answered that it is done."""
    REFUSED = "refused"
    """The broker answered with an error: it was not done."""
    UNKNOWN = "unknown"
    """No answer came: it may have been done or not."""


@dataclass(frozen=True, slots=True)
class LifeBegan:
    """Just before the broker process of this life is started. Lives are numbered upward and do not
    overlap."""

    at_ns: int
    life: int


@dataclass(frozen=True, slots=True)
class LifeEnded:
    """The broker process of this life is known to be dead. `orderly`: it ended by itself, after
    SIGTERM."""

    at_ns: int
    life: int
    orderly: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """`value` names the record and is never sent twice by the application (a client library may
    repeat it by itself).

    `is_old`: its timestamp lies so far back that retention by time may remove it at once. `due_ns`:
    its headers say not to deliver it before that time of CLOCK_MONOTONIC; 0: they say nothing.
    `key`: the record's; "": it has none.
    `digest`: of key, value, headers and timestamp, as Delivered and DeadLetterRead have it; "": not
    told.
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
    """With acks=all. A send without this event may or may not be in the log."""

    at_ns: int
    producer: str
    value: str
    record: Record


@dataclass(frozen=True, slots=True)
class Delivered:
    """A share consumer got a record. `asked_ns`: no later than the moment at which the broker can
    have acquired it.

    That is the moment when the fetch was sent or, where a client library hides it, when this
    consumer's previous records were handed out (a share consumer has one fetch under way) or its
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
    """To this consumer's last AckSent for the record."""

    at_ns: int
    consumer: str
    record: Record
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Closing:
    """The consumer is about to be closed or killed: the broker may release what it holds from now
    on."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The consumer has seen that its connection broke, some time before this moment."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The group was worked off: a consumer alone in it got nothing more, for longer than a lock
    lasts."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """An ordinary read of the log, at the end, found this value there. `is_cut`: the log begins
    inside the batch that holds it."""

    at_ns: int
    record: Record
    value: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class LogReadDone:
    """The LogRead events of this topic partition are complete, from `start` on: behind the read its
    log began there."""

    at_ns: int
    topic: str
    partition: int
    start: int = 0


# --- work queues ---


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An operator's request is confirmed: the group is to get nothing below `start` any more,
    finished or not."""

    at_ns: int
    topic: str
    partition: int
    start: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """The log begins at `start`, by the broker's word: what comes from below comes from beside the
    log."""

    at_ns: int
    topic: str
    partition: int
    start: int


@dataclass(frozen=True, slots=True)
class DeadLetterRead:
    """A read of the dead letter topic, at the end, found one that stands for `record`. `value`: its
    copy of the record's, if any; `digest`: of all that it holds of the record."""

    at_ns: int
    record: Record
    count: int
    is_rejected: bool
    value: str | None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """When all is over: the group's lag by the broker's word; parked records in the store, what the
    store's counters say of them, and records that are kept there.

    With the event of a group's last partition the DeadLetterRead events are complete, too."""

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
    """The application was told that it has this partition now. `asked_ns`: before the member can
    have asked from where on to read."""

    at_ns: int
    asked_ns: int
    consumer: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The application has given the partition up, its last commit answered. `lost`: it had lost it
    before it was told."""

    at_ns: int
    consumer: str
    topic: str
    partition: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The application got this record and has done its work."""

    at_ns: int
    consumer: str
    record: Record
    value: str


@dataclass(frozen=True, slots=True)
class CommitSent:
    """`offset`: the next record to read. One commit of a member's for a partition is answered
    before it sends the next."""

    at_ns: int
    consumer: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    """To this consumer's last CommitSent for the partition. UNKNOWN: the client has given up on
    it."""

    at_ns: int
    consumer: str
    topic: str
    partition: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Gone:
    """The member is about to be killed or frozen, or was found dead: it may lose its partitions
    without being told."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Back:
    """The frozen member is about to go on. It may still be told of partitions that it has lost
    meanwhile."""

    at_ns: int
    consumer: str


@dataclass(frozen=True, slots=True)
class CommittedAtEnd:
    """What the group has committed for the partition when everything is over; -1: nothing."""

    at_ns: int
    topic: str
    partition: int
    offset: int


# --- producers that keep id and sequence over the lives of a broker, and purged logs ---


@dataclass(frozen=True, slots=True)
class IdTaken:
    """InitProducerId was answered with this id."""

    at_ns: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class BatchSent:
    """One try of a batch: records of the sequences from `sequence` on, `count` of them. The same
    again is a retry, or a repeat."""

    at_ns: int
    producer_id: int
    topic: str
    partition: int
    sequence: int
    count: int
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class BatchAnswered:
    """To this producer's last BatchSent for the partition. `error`: Kafka's code. A try that is not
    answered may have been done."""

    at_ns: int
    producer_id: int
    topic: str
    partition: int
    sequence: int
    error: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class PurgeSent:
    """DeleteRecords: nothing below `offset` is wanted any more; -1 for all that is there."""

    at_ns: int
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class PurgeAnswered:
    """To the last PurgeSent for the partition: its log begins at `start` now."""

    at_ns: int
    topic: str
    partition: int
    error: int
    start: int


@dataclass(frozen=True, slots=True)
class BoundsSeen:
    """ListOffsets, asked at `asked_ns`, when no purge was under way: the first offset of the log,
    and the one behind its last."""

    at_ns: int
    asked_ns: int
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PowerLost:
    """A power cut, after LifeEnded. `promises_end`: with durability `os`, which promises nothing
    about what was not synced."""

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
)

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS = {"record": lambda value: Record(*value), "kind": AckKind, "outcome": Outcome}


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
    """A last line that its writer did not finish, because it was killed, is left out: it ends
    without a newline."""
    for line in lines:
        if line[-1:] in ("\n", b"\n"):
            yield from_json(line)


def merge(histories: Iterable[Iterable[Event]]) -> list[Event]:
    """Histories of several processes as one. Events of one process at the same nanosecond keep
    their order."""
    return sorted((event for history in histories for event in history), key=lambda event: event.at_ns)
