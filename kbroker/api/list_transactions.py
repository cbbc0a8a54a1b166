"""ListTransactions (66), v0-2 (KIP-664): transactional ids, filtered by state and producer id, by
the time since their transaction began (v1, KIP-994) and by an expression for the whole id (v2,
KIP-1152).

Filters for unknown states match nothing, and are named in the answer. As in Kafka, the time of an
id counts from its last transaction, if it has none now, and an id that never had one is older than
any duration.

With an authorizer, ids without DESCRIBE are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.api.authorization import has
from kbroker.api.request import Message, Request
from kbroker.api.transactions import STATE_NAMES
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.transactions import TransactionRecord
from kbroker.security.acls import Operation, ResourceType

_KNOWN_STATES = frozenset({*STATE_NAMES.values(), "Dead", "PrepareEpochFence"})
"""No id is ever in one of the last two here."""


async def handle(request: Request) -> Message:
    service = request.broker.transactions
    if not service.is_ready:
        return _answer(ErrorCode.coordinator_load_in_progress)
    filters = _Filters(request.body)
    if filters.pattern:
        ids = (transactional_id for transactional_id, _ in service.coordinator.records())
        try:
            filters.ids = frozenset(
                await request.broker.consumer_group_service.expressions.matching(filters.pattern, ids)
            )
        except KafkaError as error:
            return _answer(error.code)
    unknown = [each for each in filters.states if each not in _KNOWN_STATES]
    return {
        **_answer(ErrorCode.none),
        "unknown_state_filters": unknown,
        "transaction_states": _rows(request, filters),
    }


def _rows(request: Request, filters: _Filters) -> Iterator[Message | None]:
    """None for an id that is left out."""
    for transactional_id, record in request.broker.transactions.coordinator.records():
        if filters.match(transactional_id, record) and has(
            request, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            yield {
                "transactional_id": transactional_id,
                "producer_id": record.producer_id,
                "transaction_state": STATE_NAMES[record.state],
            }
        else:
            yield None


class _Filters:
    """`ids`: those that match `pattern`; None: there is none."""

    def __init__(self, body: Any) -> None:
        self.states = dict.fromkeys(body.state_filters)
        self._producer_ids = frozenset(body.producer_id_filters)
        self._duration_ms = getattr(body, "duration_filter", -1)
        self._now_ms = wall_clock_ms()
        self.pattern: str = getattr(body, "transactional_id_pattern", None) or ""
        self.ids: frozenset[str] | None = None

    def match(self, transactional_id: str, record: TransactionRecord) -> bool:
        return (
            (not self.states or STATE_NAMES[record.state] in self.states)
            and (not self._producer_ids or record.producer_id in self._producer_ids)
            and (self._duration_ms < 0 or self._now_ms - record.started_ms > self._duration_ms)
            and (self.ids is None or transactional_id in self.ids)
        )


def _answer(code: ErrorCode) -> Message:
    return {"error_code": code, "unknown_state_filters": (), "transaction_states": ()}
