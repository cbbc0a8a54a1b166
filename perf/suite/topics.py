"""Topics that rows read repeatedly, each time with a new group. They are filled once for each
broker, before the first round.

Their sizes suffice for one window of the fastest reader; a window that nearly reaches the end of a
topic is closed early. Topics in small batches are smaller, except BACKLOG, since a ShareFetch takes
Kafka time in proportion to the batches that wait in the partition. SMALL_1P and SMALL_6P are read
from beginning to end, by as many groups in a row as a reading needs (suite/rows/share.py).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from perf.suite.rows import Run


class Content(NamedTuple):
    """The content of a topic. `batches`: "large" (1 MB, as written by a producer with a backlog) or
    "small" (1, 2 and 3 records, well mixed)."""

    records: int
    record_bytes: int
    partitions: int
    batches: str


class Kept(Enum):
    LARGE_1P = Content(3_000_000, 100, 1, "large")
    LARGE_6P = Content(3_000_000, 100, 6, "large")
    KILOBYTE_6P = Content(400_000, 1000, 6, "large")
    SMALL_1P = Content(60_000, 100, 1, "small")
    SMALL_6P = Content(120_000, 100, 6, "small")
    TASKS = Content(6_000, 100, 1, "small")
    BACKLOG = Content(200_000, 100, 1, "small")

    @property
    def records(self) -> int:
        return self.value.records

    def topic(self, run: Run) -> str:
        """Fills the topic if needed, and returns its name."""
        return run.kept_topic(
            self.name.lower().replace("_", "-"), self._fill, partitions=self.value.partitions
        )

    def prepare(self, run: Run) -> None:
        """For Row.prepare."""
        self.topic(run)

    def _fill(self, bootstrap: str, topic: str) -> None:
        from perf.workloads.fill import fill, fill_small

        records, record_bytes, partitions, batches = self.value
        write = fill if batches == "large" else fill_small
        write(bootstrap, topic, records, record_bytes, partitions=partitions)
