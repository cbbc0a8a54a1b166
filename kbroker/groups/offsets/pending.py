"""Offsets that groups get when a transaction is committed (TxnOffsetCommit, KIP-98). Pure.

They are stored beside the committed ones, so that a transaction continues after a restart. Nobody
reads them; a consumer that asks for stable offsets waits for their end (KIP-447).

A commit without a transaction may come meanwhile. The offset that was saved last stays, so the
later commit of the transaction leaves such a partition as it is: its pending offset is superseded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.formats.group_records import AnyGroupOffset
from kbroker.formats.state import PendingOffsetKey
from kbroker.groups.outcome import ApplyPending, EndPending, OffsetOf


class PendingOf(NamedTuple):
    """One group's offset for one log in the transaction of one producer."""

    producer_id: int
    group_id: str
    partition: OffsetOf

    def key(self) -> bytes:
        return PendingOffsetKey(self.producer_id, self.group_id, *self.partition).encode()


@dataclass(slots=True)
class _Pending:
    """`order`: of the save. `superseded`: a later commit has replaced it."""

    offset: AnyGroupOffset
    order: int
    superseded: bool = False


class PendingOffsets:
    """Decisions see the offsets from the moment when their save is submitted (`begin`), as theirs
    is submitted after it."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[OffsetOf, dict[int, _Pending]]] = {}
        """By group, log and producer."""
        self._producers: dict[int, dict[PendingOf, None]] = {}
        """The same by producer: the end of a transaction must not look at those of others."""
        self._on_their_way: dict[ApplyPending, None] = {}
        self._saves = 0

    def __len__(self) -> int:
        return sum(len(producers) for logs in self._groups.values() for producers in logs.values())

    def __bool__(self) -> bool:
        return bool(self._groups or self._on_their_way)

    def __iter__(self) -> Iterator[PendingOf]:
        """Those on their way may be there twice."""
        for group_id in self._groups:
            yield from self._saved_of(group_id)
        yield from self._coming()

    def _saved_of(self, group_id: str) -> Iterator[PendingOf]:
        for partition, producers in self._groups.get(group_id, {}).items():
            yield from (PendingOf(producer_id, group_id, partition) for producer_id in producers)

    def _coming(self, group_id: str | None = None, producer_id: int | None = None) -> Iterator[PendingOf]:
        for each in self._on_their_way:
            if group_id in (None, each.group_id) and producer_id in (None, each.producer_id):
                yield from (
                    PendingOf(each.producer_id, each.group_id, partition) for partition in each.offsets
                )

    def of_group(self, group_id: str) -> list[PendingOf]:
        """Every commit and removal of the group asks for them."""
        if not self:
            return []
        return [*self._saved_of(group_id), *self._coming(group_id=group_id)]

    def of_partitions(self, group_id: str, partitions: Collection[OffsetOf]) -> list[PendingOf]:
        """All that concern these logs of a group, of any producer."""
        return [each for each in self.of_group(group_id) if each.partition in partitions]

    def has(self, group_id: str, partition: OffsetOf) -> bool:
        """Whether the end of a transaction may change the committed offset."""
        return partition in self._groups.get(group_id, ())

    # --- saving ---

    def begin(self, saving: ApplyPending) -> None:
        self._on_their_way[saving] = None

    def saved(self, saved: ApplyPending) -> None:
        self.not_saved(saved)
        self.put(saved.producer_id, saved.group_id, saved.offsets)

    def not_saved(self, refused: ApplyPending) -> None:
        del self._on_their_way[refused]

    def put(self, producer_id: int, group_id: str, offsets: Mapping[OffsetOf, AnyGroupOffset]) -> None:
        self._saves += 1
        if not offsets:
            return
        logs = self._groups.setdefault(group_id, {})
        own = self._producers.setdefault(producer_id, {})
        for partition, offset in offsets.items():
            logs.setdefault(partition, {})[producer_id] = _Pending(offset, self._saves)
            own[PendingOf(producer_id, group_id, partition)] = None

    # --- commits without a transaction, removals ---

    def supersede(self, which: Iterable[PendingOf]) -> None:
        """A commit of these was saved later. Those on their way are saved later still."""
        for producer_id, group_id, partition in which:
            producers = self._groups.get(group_id, {}).get(partition, {})
            if (pending := producers.get(producer_id)) is not None:
                pending.superseded = True

    def drop(self, gone: Iterable[PendingOf]) -> None:
        for each in gone:
            producer_id, group_id, partition = each
            logs = self._groups.get(group_id, {})
            producers = logs.get(partition, {})
            if producers.pop(producer_id, None) is not None:
                own = self._producers[producer_id]
                del own[each]
                if not own:
                    del self._producers[producer_id]
            if not producers and logs.pop(partition, None) is not None and not logs:
                del self._groups[group_id]

    # --- the end of a transaction ---

    def producer_ids(self) -> set[int]:
        return {*self._producers, *(each.producer_id for each in self._on_their_way)}

    def of_producer(self, producer_id: int) -> list[PendingOf]:
        return [*self._producers.get(producer_id, ()), *self._coming(producer_id=producer_id)]

    def committed_by(
        self, own: Iterable[PendingOf]
    ) -> tuple[Mapping[str, Mapping[OffsetOf, AnyGroupOffset]], list[PendingOf]]:
        """`own`: of the producer that commits, all saved. Returns what the commit gives to each
        group, and the offsets of other producers that it supersedes."""
        found: dict[str, dict[OffsetOf, AnyGroupOffset]] = {}
        superseded: list[PendingOf] = []
        for producer_id, group_id, partition in own:
            producers = self._groups[group_id][partition]
            pending = producers[producer_id]
            if pending.superseded:
                continue
            found.setdefault(group_id, {})[partition] = pending.offset
            superseded += [
                PendingOf(other, group_id, partition)
                for other, each in producers.items()
                if each.order < pending.order
            ]
        return found, superseded

    def end(self, ended: EndPending) -> None:
        self.supersede(PendingOf(*each) for each in ended.superseded)
        self.drop(self.of_producer(ended.producer_id))
