"""Batches of dead letters, and the group's state before and after."""

from __future__ import annotations

from tests.differential.dead_letters import batches, letter_topic, queue
from tests.differential.script import ACCEPT, REJECT, RELEASE, Session, script


@script("DLQ-28")
def one_range(s: Session) -> None:
    q = queue(s, *"abcdefgh")
    q.acknowledge((0, 7, [REJECT]))
    q.settle()
    batches(s, q.letters)


@script("DLQ-28")
def one_range_of_several_batches(s: Session) -> None:
    q = queue(s, copies=True)
    q.put(*"abcdefgh", per_batch=2)
    q.take(8)
    q.acknowledge((0, 7, [REJECT]))
    q.outcome()


@script("DLQ-28")
def every_second_record(s: Session) -> None:
    q = queue(s, *"abcdefgh")
    q.acknowledge((0, 7, [REJECT, ACCEPT] * 4))
    q.outcome()
    batches(s, q.letters)


@script("DLQ-28")
def different_counts(s: Session) -> None:
    q = queue(s, *"abcdef")
    q.release(2, 3)
    q.take(2)
    q.acknowledge((0, 5, [REJECT]))
    q.outcome()
    batches(s, q.letters)


@script("DLQ-28")
def many_letters(s: Session) -> None:
    """More than a batch of the dead letter topic may hold, in one range."""
    letters = letter_topic(s, max_message_bytes="1500")
    q = queue(s, *(f"{index}" for index in range(20)), letters=letters.name)
    q.acknowledge((0, 19, [REJECT]))
    q.outcome()
    batches(s, q.letters)


@script("DLQ-14", "DLQ-18", "DLQ-39")
def state_after_letters(s: Session) -> None:
    q = queue(s, *"abcdefgh")
    q.acknowledge((0, 3, [REJECT]))
    q.outcome()
    q.state()
    q.acknowledge((5, 6, [REJECT]))
    q.outcome()
    q.state()
    q.acknowledge((4, 4, [ACCEPT]))
    q.settle()
    q.state()
    q.acknowledge((7, 7, [ACCEPT]))
    q.state()


@script("DLQ-14", "DLQ-18", "DLQ-39")
def state_behind_a_held_record(s: Session) -> None:
    q = queue(s, *"abcd")
    q.acknowledge((1, 2, [REJECT]))
    q.outcome()
    q.state()
    q.acknowledge((0, 0, [RELEASE]))
    q.state()


@script("DLQ-8", "DLQ-39")
def state_without_letters(s: Session) -> None:
    q = queue(s, *"abcd", letters="dlq.missing")
    q.acknowledge((0, 1, [REJECT]))
    q.settle()
    q.state()


@script("DLQ-18")
def a_waiting_fetch(s: Session) -> None:
    """The next records are delivered behind those that were rejected."""
    q = queue(s, "a", "b")
    q.acknowledge((0, 1, [REJECT]))
    q.put("c")
    q.fetch(wait_ms=5_000)
    q.acknowledge((2, 2, [ACCEPT]))
    q.outcome()
