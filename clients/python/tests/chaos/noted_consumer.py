"""A share consumer that notes what a judge must know: when each fetch was sent, what the
application received, what it acknowledged, and which acknowledgements the broker has answered.

The client is not changed. Two of its classes get subclasses that look on: only they see when a
fetch is sent and when a session is lost.

An answer names offsets, not acknowledgements. If a record is delivered again to the same consumer
while an acknowledgement of its last delivery is unanswered, that one's outcome is noted as unknown,
and the next answer for its place is ignored.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clients.python.tests.chaos.notes import (
    GROUP,
    TOPIC,
    Note,
    Notes,
    Place,
    Value,
    runs_of_places,
    runs_of_records,
)
from kbroker.errors import ErrorCode
from kbroker_client import KafkaError, LockLost, Mode, Outcome, Record, ShareConsumer, TopicPartition
from kbroker_client.share import consumer as client
from kbroker_client.share.records import Decoded
from kbroker_client.share.session import ShareSession
from kbroker_client.share.wire import SHARE_FETCH
from tests.judges.history_events import AckKind
from tests.judges.history_events import Outcome as Answer

KINDS = {
    Outcome.ACCEPT: AckKind.ACCEPT,
    Outcome.RELEASE: AckKind.RELEASE,
    Outcome.REJECT: AckKind.REJECT,
    Outcome.RENEW: AckKind.RENEW,
}
REFUSALS = (
    ErrorCode.invalid_request,
    ErrorCode.invalid_record_state,
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
)
"""An acknowledgement that is answered with one of these was certainly not carried out."""


def place_of(record: Record) -> Place:
    return Place(record.partition, record.offset)


class NotedSession(ShareSession):
    asked_ns = 0

    async def _call(self, connection: Any, api: str, *args: Any, **more: Any) -> Any:
        if api == SHARE_FETCH:
            self.asked_ns = time.monotonic_ns()
        return await super()._call(connection, api, *args, **more)

    def _lose(self, error: Exception) -> None:
        assert isinstance(self._inbox, NotedConsumer)
        self._inbox.notes.write(Note.BROKEN)
        super()._lose(error)


client.ShareSession = NotedSession  # type: ignore[misc]


class NotedConsumer(ShareConsumer):
    """`held`: records that the application has and has not acknowledged."""

    def __init__(self, bootstrap: str, notes: Notes, mode: Mode, **options: Any) -> None:
        super().__init__(
            bootstrap, group=GROUP, topics=[TOPIC], mode=mode, on_acknowledged=self._note_answer, **options
        )
        self.notes = notes
        self.held: dict[Place, Record] = {}
        self.unanswered: set[Place] = set()
        self._ignored: Counter[Place] = Counter()
        self._asked_ns: dict[Place, int] = {}

    def received(self, session: ShareSession, decoded: Decoded) -> None:
        assert isinstance(session, NotedSession)
        self._asked_ns |= dict.fromkeys(map(place_of, decoded.records), session.asked_ns)
        super().received(session, decoded)

    def note_delivery(self, records: Sequence[Record]) -> None:
        """To be called with the records of a poll, before anything else is awaited."""
        now_ns = time.monotonic_ns()
        again = self.unanswered.intersection(map(place_of, records))
        if again:
            self.unanswered -= again
            self._ignored.update(again)
            self.notes.write(Note.ANSWERED, Answer.UNKNOWN, runs_of_places(again), at_ns=now_ns)
        by_fetch: dict[int, list[tuple[Place, Value, int]]] = defaultdict(list)
        for record in records:
            place = place_of(record)
            self.held[place] = record
            by_fetch[self._asked_ns[place]].append((place, Value.read(record.value), record.delivery_count))
        for asked_ns, delivered in by_fetch.items():
            self.notes.write(Note.DELIVERED, asked_ns, runs_of_records(delivered), at_ns=now_ns)

    def repeat(self, records: Sequence[Record]) -> None:
        """A fault: the next poll returns them once more."""
        self._ready.extend(records)

    def note_acknowledgement(self, records: Iterable[Record], outcome: Outcome) -> None:
        """To be called before they are acknowledged."""
        places = [place_of(record) for record in records]
        if not places:
            return
        self.notes.write(Note.ACKNOWLEDGED, KINDS[outcome], runs_of_places(places))
        self.unanswered.update(places)
        if outcome is not Outcome.RENEW:
            for place in places:
                del self.held[place]

    def acknowledge_all(self, records: Sequence[Record], outcome: Outcome) -> None:
        self.note_acknowledgement(records, outcome)
        for record in records:
            self.acknowledge(record, outcome)

    def _note_answer(
        self, answered: Mapping[TopicPartition, frozenset[int]], error: Exception | None
    ) -> None:
        places = {
            Place(partition, offset) for (_, partition), offsets in answered.items() for offset in offsets
        }
        ignored = {place for place in places if self._ignored[place]}
        self._ignored.subtract(ignored)
        places -= ignored
        assert places <= self.unanswered, f"answers to nothing: {runs_of_places(places - self.unanswered)}"
        self.unanswered -= places
        if places:
            self.notes.write(Note.ANSWERED, _answer(error), runs_of_places(places))


def _answer(error: Exception | None) -> Answer:
    if error is None:
        return Answer.CONFIRMED
    if isinstance(error, LockLost):
        # Without the broker's word the request may have been carried out.
        lost = "the session that held the record was lost", "the consumer has been closed"
        return Answer.UNKNOWN if str(error).startswith(lost) else Answer.REFUSED
    assert isinstance(error, KafkaError), error
    return Answer.REFUSED if error.code in REFUSALS else Answer.UNKNOWN
