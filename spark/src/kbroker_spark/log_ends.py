"""The bounds of many logs, for tables. Log starts are read from one snapshot of the state, and the
bounds of each log once.

With some engines, reading one key beside a running broker costs as much as a scan. Must not know
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.storage.spi import LogId, LogReader, StateReader
from kbroker_spark.data import TopicInfo, bounds_from, log_starts
from kbroker_spark.offsets import Bounds


class LogEnds:
    """The bounds of the logs of live topics. Raises SourceError for a log start that cannot be
    read."""

    def __init__(self, logs: LogReader, moment: StateReader, topics: Iterable[TopicInfo]) -> None:
        self._logs = logs
        self._live = {topic.topic_id for topic in topics}
        self._moved = log_starts(moment)
        self._known: dict[LogId, Bounds | None] = {}

    def get(self, log: LogId) -> Bounds | None:
        """The bounds that clients see (DeleteRecords, retention); None if the log does not exist or
        its topic was deleted."""
        if log not in self._known:
            self._known[log] = self._look(log)
        return self._known[log]

    def _look(self, log: LogId) -> Bounds | None:
        if log.topic_id not in self._live:
            return None
        try:
            return bounds_from(self._logs, log, self._moved.get(log, 0))
        except KeyError:
            return None
