"""What a pass has seen of transactions, batch by batch in the order of the log.

Records of an aborted transaction go at once. A marker goes only when no batch of its transaction is
left, and then after a delay (the delete horizon): readers of aborted records need it until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kbroker.formats.batches import BatchHeader
from kbroker.formats.transactions import AbortedTransaction


class SeenTransactions:
    """`aborted`: all aborted transactions with a record or marker in the range of the pass. The
    marker of one may be gone since an earlier pass."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        """By producer, the aborted transaction that began last."""
        self._seen: set[int] = set()
        """Producers of whose transaction a batch was seen, and no marker yet."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the data batch belongs to an aborted transaction. Notes the batch as seen."""
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        while self._to_come and self._to_come[0].first_offset <= header.last_offset:
            found = self._to_come.popleft()
            self._aborted[found.producer_id] = found
        last = self._aborted.get(header.producer_id)
        return last is not None and header.last_offset < last.last_offset

    def ends_empty(self, marker: BatchHeader) -> bool:
        """Whether the marker ends a transaction of which the pass has seen no batch."""
        was_seen = marker.producer_id in self._seen
        self._seen.discard(marker.producer_id)
        return not was_seen
