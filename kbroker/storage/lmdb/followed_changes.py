"""What readers of a state log (segment/state_log.py) lay over the map in LMDB beside it, as
overlaid_map.py is for the store. This module must not load LMDB: a segment broker may have none."""

from __future__ import annotations

from kbroker.storage.keyvalue.key_ranges import Overlay
from kbroker.storage.segment.state_log import bounds_of, read_changes
from kbroker.storage.spi import LogReader


class FollowedChanges:
    """The changes of a state log from a position on, of keys in one namespace, for a reader beside
    a broker: each call reads only the new part of the log. Not thread-safe."""

    def __init__(self, log: LogReader, namespace: bytes = b"") -> None:
        self._log = log
        self._namespace = namespace
        self.changes = Overlay()
        self._position = self._end_offset = -1

    def follow(self, position: int, end_offset: int) -> bool:
        """Have in `changes` all that the log has from `position` up to `end_offset`. False if the
        log was trimmed meanwhile, so that some may be missing: then begin again with the position
        that the trim left."""
        start_offset = bounds_of(self._log).start_offset
        is_new = self._position != position or not start_offset <= self._end_offset <= end_offset
        began_at = offset = max(position, start_offset) if is_new else self._end_offset
        found: dict[bytes, bytes | None] = {}
        while offset < end_offset:
            changes, offset = read_changes(self._log, offset, end_offset)
            found.update(change for change in changes if change[0].startswith(self._namespace))
        if is_new:
            self.changes = Overlay(found)
        else:
            self.changes.update(found.items())
        is_whole = bounds_of(self._log).start_offset <= began_at
        self._position, self._end_offset = position if is_whole else -1, end_offset
        return is_whole
