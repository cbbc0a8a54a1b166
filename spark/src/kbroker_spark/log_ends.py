"""Where logs begin and end, for a table that asks for many of them: log starts are of the state's moment, and each log is looked at once.

Asking a reader beside a broker for one key costs as much as a scan in some engines. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.state_records import LogStart, LogStartKey, read_entries
from kbroker.storage.spi import LogId, LogReader, StateReader
from kbroker_spark.data import TopicInfo
from kbroker_spark.offsets import Bounds


class LogEnds:
    """Of the logs of live topics. Raises ValueError for a log start that cannot be read."""

    def __init__(self, logs: LogReader, moment: StateReader, topics: Iterable[TopicInfo]) -> None:
        self._logs = logs
        self._live = {topic.topic_id for topic in topics}
        self._moved: dict[LogId, int] = {}
        self._known: dict[LogId, Bounds | None] = {}
        for key, value in read_entries(moment.scan(LogStartKey.namespace)):
            assert isinstance(key, LogStartKey), "that is its namespace"
            assert isinstance(value, LogStart), "and its value"
            self._moved[LogId(key.topic_id, key.partition)] = value.offset

    def get(self, log: LogId) -> Bounds | None:
        """What clients see of it (DeleteRecords, retention); None: there is no such log, or no such topic any more."""
        if log not in self._known:
            self._known[log] = self._look(log)
        return self._known[log]

    def _look(self, log: LogId) -> Bounds | None:
        if log.topic_id not in self._live:
            return None
        try:
            start, end = self._logs.bounds(log)
        except KeyError:
            return None
        return Bounds(min(max(start, self._moved.get(log, 0)), end), end)
