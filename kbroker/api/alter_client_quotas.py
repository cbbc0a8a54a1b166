"""AlterClientQuotas (49), v0-1: sets and removes quotas of users, client ids and addresses.

A row for each entity, in the order of the request, when its change is committed; with
`validate_only` nothing changes. A refused entity (INVALID_REQUEST, 42, with Kafka's messages)
does not affect the others. One that is named twice is refused; Kafka says so too, but carries out
the first of them. Needs ALTER_CONFIGS on the cluster (31 in every row).

Two things are refused that Kafka accepts: controller_mutation_rate, which kbroker would not
enforce, and names of hosts in place of an IP address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.api.authorization import check_cluster
from kbroker.api.request import Message, Request
from kbroker.broker.security.quotas import Alteration
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation
from kbroker.security.quotas import Entity, entity_of


async def handle(request: Request) -> Message:
    entries = request.body.entries
    outcomes: dict[Entity, KafkaError | None] = dict.fromkeys(map(_entity, entries))
    try:
        check_cluster(request, Operation.ALTER_CONFIGS)
    except KafkaError as error:
        return _answer(dict.fromkeys(outcomes, error))
    times = Counter(map(_entity, entries))
    wanted: list[Alteration] = []
    for entry in entries:
        entity = _entity(entry)
        try:
            wanted.append(Alteration(entity, _values(entity, entry.ops, times[entity])))
        except KafkaError as error:
            outcomes[entity] = error
    results = await request.broker.quotas.alter(wanted, validate_only=request.body.validate_only)
    outcomes |= {each.entity: result for each, result in zip(wanted, results, strict=True)}
    return _answer(outcomes)


def _entity(entry: Any) -> Entity:
    return entity_of({each.entity_type: each.entity_name for each in entry.entity})


def _values(entity: Entity, ops: Sequence[Any], times: int) -> Mapping[str, float | None]:
    """Raises KafkaError for an entity, or a key of it, that is named twice."""
    values = {op.key: None if op.remove else float(op.value) for op in ops}
    if times > 1 or len(values) < len(ops):
        raise KafkaError(ErrorCode.invalid_request, f"Ignoring duplicate entity {dict(entity)}")
    return values


def _answer(outcomes: Mapping[Entity, KafkaError | None]) -> Message:
    return {
        "entries": [
            {
                "error_code": ErrorCode.none if error is None else error.code,
                "error_message": None if error is None else error.message,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            }
            for entity, error in outcomes.items()
        ]
    }
