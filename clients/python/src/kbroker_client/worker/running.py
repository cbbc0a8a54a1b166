"""A job that a worker holds, from its delivery to the broker's answer."""

from __future__ import annotations

import math
from enum import Enum

import anyio

from ..share.records import Outcome, Record
from .job import Job
from .policies import Failure


class Ended(Enum):
    """Why a job was ended from outside."""

    LOST = "lost"
    STOPPED = "stopped"


class RunningJob:
    """- `timeout_s`: after `begin`, when its scope ends it
    - `ended`: None unless it was ended; a job that runs too long is ended by its scope
    - `renew_at_s`: the loop's time of the next renewal
    - `is_renewing`: a renewal has not been answered yet
    """

    __slots__ = (
        "_timeout_s", "answered", "began_s", "ended", "is_renewing", "job", "record", "renew_at_s", "scope",
    )  # fmt: skip

    def __init__(self, record: Record, job: Job, timeout_s: float) -> None:
        self.record = record
        self.job = job
        self._timeout_s = timeout_s
        self.began_s = anyio.current_time()
        self.scope = anyio.CancelScope()
        self.ended: Ended | None = None
        self.renew_at_s = math.inf
        self.is_renewing = False
        self.answered = anyio.Event()

    def begin(self) -> None:
        """Its time counts from now on."""
        self.began_s = anyio.current_time()
        self.scope.deadline = self.began_s + self._timeout_s

    def end(self, why: Ended) -> None:
        if self.ended is None:
            self.ended = why
        self.scope.cancel()

    @property
    def seconds(self) -> float:
        return anyio.current_time() - self.began_s


class Concluded:
    """A job whose outcome was sent and has not been answered yet."""

    __slots__ = ("failure", "job", "outcome", "seconds")

    def __init__(self, job: Job, outcome: Outcome, failure: Failure | None, seconds: float) -> None:
        self.job = job
        self.outcome = outcome
        self.failure = failure
        self.seconds = seconds
