"""The records that a consumer has delivered, until they are acknowledged, and the acknowledgements
until they are given to their sessions. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias
from uuid import UUID

from .._shared.share.reasons import Reason, shortened
from ..errors import IllegalState
from .records import Lease, Outcome, Record
from .session import Acknowledgement

RUN_OUT: Final = Lease()
"""Of acknowledgements whose record has been delivered again; no session has it."""
Place: TypeAlias = tuple[UUID, int, int]
"""Topic id, partition and offset of a record."""


class HeldRecords:
    """`delivered`: the last delivery at each place that is still to be acknowledged."""

    def __init__(self) -> None:
        self.delivered: dict[Place, Record] = {}
        self._run_out: set[Place] = set()
        """Where a later delivery of what is in `delivered` waits for the next poll: the broker
        would take an acknowledgement of the earlier one for one of the later."""
        self._acknowledged: list[Acknowledgement] = []

    def received(self, records: Iterable[Record]) -> None:
        """They are not delivered yet."""
        if self.delivered:
            self._run_out |= self.delivered.keys() & map(_place, records)

    def deliver(self, record: Record) -> bool:
        """Whether the record is still this member's. If not, the broker delivers it again."""
        place = _place(record)
        self._run_out.discard(place)
        if record.lease.is_open:
            self.delivered[place] = record
        return record.lease.is_open

    def acknowledge(self, record: Record, outcome: Outcome, reason: Reason | None) -> None:
        """A RENEW leaves the record to be acknowledged. Raises IllegalState for a record that is
        not to be acknowledged."""
        place = _place(record)
        if self.delivered.get(place) is not record:
            raise IllegalState(f"{record.topic}-{record.partition}@{record.offset} is not to be acknowledged")
        if outcome is not Outcome.RENEW:
            del self.delivered[place]
        self._note(place, record, outcome, None if reason is None else _sendable(reason))

    def accept_all(self) -> None:
        delivered, self.delivered = self.delivered, {}
        for place, record in delivered.items():
            self._note(place, record, Outcome.ACCEPT, None)

    def drop_lost(self) -> None:
        """Records whose session was lost need no acknowledgement."""
        for place in [place for place, record in self.delivered.items() if not record.lease.is_open]:
            del self.delivered[place]

    def take_acknowledgements(self) -> list[Acknowledgement]:
        """Those that were made since the last call."""
        taken, self._acknowledged = self._acknowledged, []
        return taken

    def _note(self, place: Place, record: Record, outcome: Outcome, reason: Reason | None) -> None:
        lease = RUN_OUT if place in self._run_out else record.lease
        self._acknowledged.append(Acknowledgement(place[:2], record.offset, outcome, lease, reason))


def _place(record: Record) -> Place:
    return record.topic_id, record.partition, record.offset


def _sendable(reason: Reason) -> Reason:
    """What UTF-8 cannot express becomes a question mark."""
    return shortened(Reason(*(text.encode("utf-8", "replace").decode() for text in reason)))
