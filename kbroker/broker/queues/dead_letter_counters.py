"""Counts a group's dead letters, and reports problems with them: each kind at most once a
minute."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial

import trio

from kbroker.broker.queues.dead_letter_writer import CannotCopy, NotYet, Written
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 60.0


@dataclass(slots=True)
class GroupDeadLetters:
    """Counters of one group, since the start of the broker or the group's first dead letter.

    - `records`: dead letters written
    - `produce_requests`: batches appended, of which the disk refused `failed_requests`
    - `refused`: records archived without a dead letter, because the settings allow none
    - `without_copy`: dead letters that lack the copy of the record that they should have

    Methods take the share-partition's `place` as the log names it."""

    records: int = 0
    produce_requests: int = 0
    failed_requests: int = 0
    refused: int = 0
    without_copy: int = 0
    _reports: Seldom = field(default_factory=partial(Seldom, _REPORT_EVERY_S), repr=False, compare=False)

    def written(self, place: str, written: Written, without_copy: int) -> None:
        self.records += len(written.offsets)
        self.produce_requests += written.batches
        self.failed_requests += written.failed_batches
        self.without_copy += without_copy
        if without_copy:
            what = (
                "share-partition %s: %d dead letters are without the copy that they should have (%d of "
                "the group so far), since the records cannot be read"
            )
            self._report("without copy", what, place, without_copy, self.without_copy)

    def refuse(self, place: str, reason: str, count: int) -> None:
        """Note that so many records are archived without a dead letter."""
        self.refused += count
        what = (
            "share-partition %s: %d records (%d of the group so far) are archived without a dead letter: %s"
        )
        self._report("refused", what, place, count, self.refused, reason)

    def put_off(self, place: str, count: int, size_bytes: int) -> None:
        """Note that dead letters wait for room on the disk."""
        what = (
            "share-partition %s: %d dead letters of about %d KiB wait for room on the disk "
            "(kbroker.disk.min.free.bytes); their records stay in the topic"
        )
        self._report("no room", what, place, count, size_bytes >> 10)

    def delay(self, place: str, error: Exception, retry_s: float) -> None:
        if not isinstance(error, KafkaError | NoSpace | StoreFailed | NotYet | CannotCopy):
            logger.exception("dead letters of share-partition %s have to wait", place)
            return
        level = logging.INFO if isinstance(error, NotYet) else logging.WARNING
        what = "dead letters of share-partition %s have to wait, the next try is in %.0f s: %s"
        kind = type(error).__name__ if isinstance(error, NotYet | CannotCopy) else "delayed"
        self._report(kind, what, place, retry_s, error, level=level)

    def _report(self, kind: str, what: str, *arguments: object, level: int = logging.WARNING) -> None:
        """Each kind once a minute, since a failure mostly concerns thousands of records. They are
        limited separately: a full disk must not hide that records get no dead letter."""
        if self._reports.times(kind, trio.current_time()):
            logger.log(level, what, *arguments)
