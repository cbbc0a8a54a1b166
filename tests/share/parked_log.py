"""The commands of parked_world.py that add records to the log, set the clock and scan the log."""

from __future__ import annotations

from kbroker.share.acquire import Control
from tests.share.log_starts import LogStarts
from tests.share.parked_store import Job


class ParkedLog(LogStarts):
    """See World. `markers`: offsets without a record; whether they are finished, or are a broker's
    own. `bases`: of the log's batches, if it is `batched`."""

    marker_rate = 0.0
    wall_ahead_ms: float
    markers: dict[int, bool]

    def append(self) -> None:
        self.bases.append(self.log_end)
        for _ in range(self.rnd.randint(1, 8)):
            job = self.jobs[self.log_end] = Job()
            self.log_end += 1
            is_alone = not self.batched or self.bases[-1] == self.log_end - 1
            if is_alone and self.rnd.random() < self.marker_rate:
                job.done, self.markers[self.log_end - 1] = True, self.rnd.random() < 0.6
                if self.batched:
                    break
            elif self.settings.scans and self.rnd.random() < 0.5:
                job.scheduled_ms = int(self.wall_ms) + self.rnd.choice((10, 40, 60, 300, 900))

    @property
    def wall_ms(self) -> float:
        return self.now_ms + self.wall_ahead_ms

    def step_clock(self) -> None:
        """The wall clock is set."""
        self.wall_ahead_ms += self.rnd.choice((-400, -50, 50, 400))
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        self.latest_wall_ms = max(self.latest_wall_ms, self.wall_ms)

    def _was_due(self, job: Job) -> bool:
        """At some moment of this life."""
        return not self.settings.scans or job.scheduled_ms <= self.latest_wall_ms

    def scan(self) -> None:
        if not self.settings.scans:
            return
        self._move_log_start()
        self._began(self.sp.park_again(self.wall_ms), {}, None)
        offset = self.sp.scan_from()
        if offset is None or offset >= self.log_end:
            return
        end = min(self.log_end, offset + self.rnd.choice((1, 3, 20)))
        due = {each: self.jobs[each].scheduled_ms for each in range(offset, end)}
        scheduled = [(each, due_ms) for each, due_ms in due.items() if due_ms > self.wall_ms]
        batches, control = self._read(offset, end)
        times = {"now_ms": self.now_ms, "wall_ms": self.wall_ms}
        persist = self.sp.scanned(offset, batches, control, scheduled, **times)
        assert self.sp.scan_from() != offset
        self._began(persist, {}, None)

    def scan_ahead(self) -> None:
        """Find records further on to be unscheduled, or due."""
        offset = self.sp.scan_from() if self.settings.scans and self.sp.may_look_ahead() else None
        if offset is None or offset >= self.log_end:
            return
        first = self.rnd.randrange(offset, self.log_end)
        last = min(first + self.rnd.choice((0, 2)), self.log_end - 1)
        found = range(first, last + 1)
        has_markers = not self.markers.keys().isdisjoint(found)
        if not has_markers and all(self.jobs[each].scheduled_ms <= self.wall_ms for each in found):
            self.sp.place_ahead(first, last)

    def _read(self, offset: int, end: int | None = None) -> tuple[list[tuple[int, int]], list[Control]]:
        """Batches of the log, and those that no member gets. `end`: each record is a batch."""
        if end is None and self.batched:
            ends = [*self.bases[1:], self.log_end]
            found = [(first, end - 1) for first, end in zip(self.bases, ends, strict=True) if end > offset]
        else:
            found = [(each, each) for each in range(offset, self.log_end if end is None else end)]
        control = [Control(*run, self.markers[run[0]]) for run in found if run[0] in self.markers]
        return [run for run in found if run[0] not in self.markers], control
