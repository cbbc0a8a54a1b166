"""A record, and a write under way, in the model of queue_model.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from kbroker.share.effects import AckBatch, DeadLetterCause, Persist, StateBatch
from kbroker.share.redelivery import Redelivery
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
NOTHING = (-1, -1)
DONE = (ACKNOWLEDGED, ARCHIVED)
MEMBERS = ("a", "b", "c")
LOCK_MS = 100


@dataclass
class Rec:
    """For a held record, `target` is the state that is being persisted. A record that is (or will
    be) ARCHIVING has a cause. `is_saved`: it is known to be saved as that. `is_taken`: it was
    handed out. `is_gap`: its holder says that the log does not have it."""

    state: int
    count: int
    member: str | None = None
    deadline_ms: float = 0
    target: int | None = None
    cause: DeadLetterCause | None = None
    is_saved: bool = False
    is_taken: bool = False
    is_gap: bool = False
    since_ms: float | None = None
    due_ms: float = 0
    """For a renewed lock: when it was granted. For a released record that waits: when it can be
    redelivered."""

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE and not self.due_ms

    @property
    def counts_as_done(self) -> bool:
        return self.state in DONE or self.target in DONE


@dataclass
class Write:
    """`offsets`: the pending ones. `said`: the whole content. `given_up`: how many of its records
    are given up even if it fails."""

    persist: Persist
    offsets: list[int]
    said: dict[int, StateBatch]
    holder: str | None = None
    given_up: int = 0


def some_redelivery(rnd: Random) -> Redelivery | None:
    return rnd.choice((None, Redelivery(30, 2, 70, 0), Redelivery(200, 1.5, 300, 0)))


def some_ack_batches(rnd: Random, known: Mapping[int, Rec], start: int) -> list[AckBatch]:
    """Mostly of records that a member holds, sometimes of others; in the order that the validation
    requires."""
    batches: list[AckBatch] = []
    offset = start - rnd.choice((0, 0, 0, 2))
    for _ in range(rnd.randint(1, 3)):
        held = sorted(
            o for o, rec in known.items() if rec.state == ACQUIRED and rec.target is None and o >= offset
        )
        if held and rnd.random() < 0.9:
            offset = rnd.choice(held[:6])
        last = offset + rnd.choice((0, 0, 1, 3, 8))
        if held and rnd.random() < 0.8:
            while last > offset and (last not in known or known[last].member != known[held[0]].member):
                last -= 1
        size = 1 if rnd.random() < 0.6 else last - offset + 1
        batches.append(
            AckBatch(
                offset,
                last,
                tuple(rnd.choice((GAP, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW)) for _ in range(size)),
            )
        )
        offset = last if rnd.random() < 0.05 else last + 1
    return batches
