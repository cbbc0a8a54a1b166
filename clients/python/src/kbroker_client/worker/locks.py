"""The locks of running jobs: each is renewed at half of its time, and a lost one ends its job.

One task looks after all of them, a few times within the time of a lock. It runs on the loop, so a
job that blocks the loop for as long as a lock loses its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import anyio

from .running import RunningJob

_LOOKS: Final = 8
"""Within the time of a lock."""
_MOST_S: Final = 0.25
"""Shorter locks may have begun meanwhile: the shortest that Kafka allows is 1 s."""
_DEFAULT_LOCK_S: Final = 30.0


class Locks:
    """- `lock_s()`: how long a lock lasts, as the broker said last
    - `renew`: sends a renewal
    - `lose`: called for a job whose session has ended
    """

    def __init__(
        self,
        held: Iterable[RunningJob],
        lock_s: Callable[[], float | None],
        renew: Callable[[RunningJob], None],
        lose: Callable[[RunningJob], None],
    ) -> None:
        self._held = held
        self._lock_s = lock_s
        self._renew = renew
        self._lose = lose
        self.are_renewed = True

    def begin(self, job: RunningJob) -> None:
        """The lock has just begun."""
        job.renew_at_s = anyio.current_time() + self.lock_s / 2

    def renewed(self, job: RunningJob) -> None:
        """The new lock may be a shorter one than `begin` knew of."""
        job.renew_at_s = min(job.renew_at_s, anyio.current_time() + self.lock_s / 2)

    @property
    def lock_s(self) -> float:
        return self._lock_s() or _DEFAULT_LOCK_S

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            tick_s = min(self.lock_s / _LOOKS, _MOST_S)
            await anyio.sleep(tick_s)
            now_s = anyio.current_time()
            for job in list(self._held):
                if not job.record.lease.is_open:
                    self._lose(job)
                elif job.renew_at_s - tick_s < now_s and self._may_renew(job):
                    self._renew(job)
                    self.begin(job)

    def _may_renew(self, job: RunningJob) -> bool:
        """Not after its time is over, even if the job does not end."""
        return self.are_renewed and not job.is_renewing and not job.scope.cancel_called
