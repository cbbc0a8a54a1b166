"""Requests about quotas. Plain functions over a Connection, as in admin.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.client.answers import check, reason
from kbroker.client.rpc import Connection
from kbroker.errors import KafkaError
from kbroker.security.quotas import Component, Entity, entity_of


class ListedQuotas(NamedTuple):
    entity: Entity
    values: Mapping[str, float]


def describe(
    connection: Connection, components: Sequence[Component] = (), *, strict: bool = False
) -> list[ListedQuotas]:
    """The quotas of the entities that the filter selects, in the broker's order. Raises
    KafkaError."""
    answer = connection.call(
        "describe_client_quotas",
        components=[
            {"entity_type": each.kind, "match_type": each.match_type, "match": each.match}
            for each in components
        ],
        strict=strict,
    )
    check(answer.error_code, reason(answer.error_code, answer.error_message), needs="describe-configs")
    return [
        ListedQuotas(
            entity_of({each.entity_type: each.entity_name for each in entry.entity}),
            {each.key: float(each.value) for each in entry.values},
        )
        for entry in answer.entries or ()
    ]


def alter(connection: Connection, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Set quotas of one entity; None removes one. In force on return. Raises KafkaError."""
    answer = connection.call(
        "alter_client_quotas",
        entries=[
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "ops": [
                    {"key": key, "value": value or 0.0, "remove": value is None}
                    for key, value in values.items()
                ],
            }
        ],
        validate_only=False,
    )
    for row in answer.entries:
        if row.error_code:
            why = reason(row.error_code, row.error_message, needs="alter-configs")
            raise KafkaError(row.error_code, why)
