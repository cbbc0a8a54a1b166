"""Seals full segments of a store, in the thread that syncs, because it takes longer than a write
may. This module must not know about logs."""

from __future__ import annotations

import logging
from collections import deque

from kbroker.storage.files import REFUSALS
from kbroker.storage.segment.checkpoint_budget import Checkpoints
from kbroker.storage.segment.failures import Failures
from kbroker.storage.segment.segment import OpenHandles, Segment
from kbroker.storage.segment.unsynced import Unsynced

logger = logging.getLogger(__name__)


class Sealing:
    """`waiting`: full segments that are not sealed yet, and some that were sealed or removed
    meanwhile. The owner serialises `next` and `seal`."""

    def __init__(
        self, handles: OpenHandles, unsynced: Unsynced, checkpoints: Checkpoints, failures: Failures
    ) -> None:
        self._handles = handles
        self._unsynced = unsynced
        self._checkpoints = checkpoints
        self._failures = failures
        self.waiting: deque[Segment] = deque()

    def again(self, segment: Segment) -> None:
        """Its stored index was bad."""
        segment.sealed = False
        self.waiting.append(segment)

    def next(self) -> bool:
        """Seal the segment that has waited longest. False if there is none, or if it must wait. It
        then stays unsealed, which only makes recovery slower."""
        while self.waiting and (self.waiting[0].discarded or self.waiting[0].sealed):
            self.waiting.popleft()
        if not self.waiting or not self.seal(self.waiting[0]):
            return False
        self.waiting.popleft()
        return True

    def seal(self, segment: Segment) -> bool:
        """Seal a segment whose batches are on disk. False if there is no space or open file for the
        index."""
        try:
            try:
                with self._handles.lock:
                    self._unsynced.syncing = {segment}
                    fd = self._handles.file(segment)
            except OSError as error:
                return self._may_wait(segment, error)
            segment.shorten(fd)
            try:
                segment.seal()
            except OSError as error:
                return self._may_wait(segment, error)
        except OSError as error:
            self._failures.fail("seal", error)
        finally:
            self._unsynced.syncing = set()
        self._checkpoints.forget(segment)
        self._handles.close_file(segment)
        return True

    @staticmethod
    def _may_wait(segment: Segment, error: OSError) -> bool:
        """False if sealing may be tried again after this error; raises it otherwise."""
        if error.errno not in REFUSALS:
            raise error
        logger.warning("cannot store the index of %s, will try again: %s", segment.path, error.strerror)
        return False
