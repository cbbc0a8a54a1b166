"""What a task gets of a job beside its payload, and what hooks get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from .._shared.share.reasons import Reason
from ..share.records import Record

Headers = tuple[tuple[str, bytes | None], ...]
Begin: TypeAlias = Callable[[], None]
"""Called when a job begins, after its process has started: its timeout counts from then on."""


@dataclass(frozen=True, slots=True)
class Job:
    """- `queue`: the share group that delivered it
    - `attempt`: 1 for the first delivery
    - `sent_ms`: when it was sent, since the epoch
    - `value`: the bytes that the payload was read from

    The defaults are for tests that call a task as a function: `await task(payload, Job("emails"))`.
    """

    queue: str
    topic: str = ""
    partition: int = 0
    offset: int = 0
    attempt: int = 1
    sent_ms: int = 0
    key: bytes | None = None
    value: bytes | None = field(default=None, repr=False)
    headers: Headers = ()

    @property
    def id(self) -> str:
        """The same at each delivery. A job that is sent twice has two ids."""
        return f"{self.topic or self.queue}-{self.partition}-{self.offset}"

    def header(self, name: str) -> bytes | None:
        """The value of the last header of this name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


def job_of(record: Record, queue: str) -> Job:
    return Job(
        queue, record.topic, record.partition, record.offset, record.delivery_count,
        record.timestamp_ms, record.key, record.value, record.headers,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a hook is called with.

    - `seconds`: how long the job ran; 0.0 at its start, or if it was not run
    - `reason`: why it is delivered again, rejected or lost
    - `error`: the exception of a job that failed; None for one that ran in a process
    """

    job: Job
    seconds: float = 0.0
    reason: Reason | None = None
    error: BaseException | None = None
