"""How many records the members of a group hold: acquired, or with an acknowledgement being saved.
Pure.

Counted only in groups that limit it (`kbroker.queue.prefetch`). A member's count covers all
share-partitions of the group, also those that it has lost in a rebalance: it is busy with their
records until it acknowledges them.
"""

from __future__ import annotations

from collections.abc import Callable


class HeldRecords:
    """The counts of one group. `notify[member_id]` is called when the member holds fewer records
    than before."""

    __slots__ = ("_counts", "notify")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.notify: dict[str, Callable[[], None]] = {}

    def of(self, member_id: str) -> int:
        return self._counts.get(member_id, 0)

    def add(self, member_id: str, records: int) -> None:
        _add(self._counts, member_id, records)
        if records < 0 and (notify := self.notify.get(member_id)) is not None:
            notify()

    def counts(self) -> dict[str, int]:
        """Members that hold records."""
        return dict(self._counts)


class HeldHere:
    """One share-partition's part of these counts."""

    __slots__ = ("_here", "_of_group")

    def __init__(self, of_group: HeldRecords) -> None:
        self._of_group = of_group
        self._here: dict[str, int] = {}

    def add(self, member_id: str, records: int) -> None:
        _add(self._here, member_id, records)
        self._of_group.add(member_id, records)

    def clear(self) -> None:
        """The share-partition is forgotten, or its records are no longer counted."""
        for member_id, records in list(self._here.items()):
            self.add(member_id, -records)


def _add(counts: dict[str, int], member_id: str, records: int) -> None:
    count = counts.get(member_id, 0) + records
    assert count >= 0, f"{member_id} holds {count} records"
    if count:
        counts[member_id] = count
    else:
        counts.pop(member_id, None)
