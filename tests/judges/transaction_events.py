"""The events of transactional producers and of readers with read_committed (history_events.py has
the others, and the rules for writers).

`transaction` is a name that the application gives to each transaction; it is used only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class TransactionResult(StrEnum):
    COMMITTED = "committed"
    """The broker confirmed the commit."""
    ABORTED = "aborted"
    """The broker confirmed the abort, or has fenced the producer before it asked for an end."""
    UNKNOWN = "unknown"


class Planned(NamedTuple):
    """A record that a transaction is about to write. `source`: the value of the input from which it
    was made; "": none."""

    topic: str
    partition: int
    value: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class TransactionBegan:
    """A producer is about to begin a transaction with these records. `producer`: its transactional
    id."""

    at_ns: int
    producer: str
    transaction: str
    records: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """The producer is about to ask for the commit. A transaction without this event is never
    committed."""

    at_ns: int
    transaction: str


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    at_ns: int
    transaction: str
    result: TransactionResult


@dataclass(frozen=True, slots=True)
class StableEndSeen:
    """At the end of the test, when no producer was left: the last stable offset and the high
    watermark, after the wait for open transactions."""

    at_ns: int
    topic: str
    partition: int
    stable: int
    high_watermark: int


TransactionEvent: TypeAlias = TransactionBegan | CommitAsked | TransactionEnded | StableEndSeen
