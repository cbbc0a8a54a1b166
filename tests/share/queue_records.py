"""What the model of queue_model.py knows of a record, and of a write that is under way."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kbroker.share.effects import DeadLetterCause, Persist, StateBatch
from kbroker.share.redelivery import Redelivery

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
NOTHING = (-1, -1)
DONE = (ACKNOWLEDGED, ARCHIVED)
MEMBERS = ("a", "b", "c")
LOCK_MS = 100


@dataclass
class Rec:
    """`target` is the state that is being persisted, for a record that is still held. What is (or will be) ARCHIVING has a cause;
    `is_saved` tells that it is known to be saved as that, `is_taken` that it is handed out."""

    state: int
    count: int
    member: str | None = None
    deadline_ms: float = 0
    target: int | None = None
    cause: DeadLetterCause | None = None
    is_saved: bool = False
    is_taken: bool = False
    since_ms: float | None = None
    due_ms: float = 0
    """Of a prolonged lock: when it was granted. Of what came back, and waits: when it can be delivered again."""

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE and not self.due_ms

    @property
    def counts_as_done(self) -> bool:
        return self.state in DONE or self.target in DONE


@dataclass
class Write:
    """`offsets`: those that are pending. `said`: all that it says."""

    persist: Persist
    offsets: list[int]
    said: dict[int, StateBatch]
    holder: str | None = None


def some_redelivery(rnd: Random) -> Redelivery | None:
    return rnd.choice((None, Redelivery(30, 2, 70, 0), Redelivery(200, 1.5, 300, 0)))
