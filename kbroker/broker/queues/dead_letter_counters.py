"""Counts a group's dead letters, and reports problems with them: each kind at most once a
minute."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from enum import Enum, auto

import trio

from kbroker.broker.queues.dead_letter_writer import CannotCopy, NotYet, Written
from kbroker.errors import KafkaError, NoSpace, StoreFailed

logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 60.0


class _Trouble(Enum):
    """The kinds of reports, each limited separately: a full disk must not hide that records get no
    dead letter."""

    NOT_YET = auto()
    DELAYED = auto()
    REFUSED = auto()
    WITHOUT_COPY = auto()
    STUCK = auto()
    NO_ROOM = auto()


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
    _next_report_s: dict[_Trouble, float] = field(default_factory=dict, repr=False, compare=False)

    def written(self, place: str, written: Written, without_copy: int) -> None:
        self.records += len(written.offsets)
        self.produce_requests += written.batches
        self.failed_requests += written.failed_batches
        self.without_copy += without_copy
        if without_copy and self._may_report(_Trouble.WITHOUT_COPY):
            what = (
                "share-partition %s: %d dead letters are without the copy that they should have (%d of "
                "the group so far), since the records cannot be read"
            )
            logger.warning(what, place, without_copy, self.without_copy)

    def refuse(self, place: str, reason: str, count: int) -> None:
        """Note that so many records are archived without a dead letter."""
        self.refused += count
        if self._may_report(_Trouble.REFUSED):
            what = (
                "share-partition %s: %d records (%d of the group so far) are archived without a dead "
                "letter: %s"
            )
            logger.warning(what, place, count, self.refused, reason)

    def put_off(self, place: str, count: int, size_bytes: int) -> None:
        """Note that dead letters wait for room on the disk."""
        if self._may_report(_Trouble.NO_ROOM):
            what = (
                "share-partition %s: %d dead letters of about %d KiB wait for room on the disk "
                "(kbroker.disk.min.free.bytes); their records stay in the topic"
            )
            logger.warning(what, place, count, size_bytes >> 10)

    def delay(self, place: str, error: Exception, retry_s: float) -> None:
        if not isinstance(error, KafkaError | NoSpace | StoreFailed | NotYet | CannotCopy):
            logger.exception("dead letters of share-partition %s have to wait", place)
            return
        trouble, level = _Trouble.DELAYED, logging.WARNING
        if isinstance(error, NotYet):
            trouble, level = _Trouble.NOT_YET, logging.INFO
        elif isinstance(error, CannotCopy):
            trouble = _Trouble.STUCK
        if self._may_report(trouble):
            what = "dead letters of share-partition %s have to wait, the next try is in %.0f s: %s"
            logger.log(level, what, place, retry_s, error)

    def _may_report(self, trouble: _Trouble) -> bool:
        """True once a minute, since a failure mostly concerns thousands of records."""
        now_s = trio.current_time()
        if now_s < self._next_report_s.get(trouble, -math.inf):
            return False
        self._next_report_s[trouble] = now_s + _REPORT_EVERY_S
        return True
