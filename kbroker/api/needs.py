"""What the column `needs` of the table of APIs means, and its check.

    READ group; READ topic                     both, each for every group and topic that the request
                                               names
    IDEMPOTENT_WRITE cluster or WRITE topic    one of them is enough
    ALTER_CONFIGS topic, cluster, group        that operation, on each kind that the request names
    nothing                                    every client may send it

A row says which rights the handler looks at, not how a refusal looks: that is in the handler's
docstring. Some rights are only needed for a part of the answer. A test calls every handler and
compares the rights that it looks at with this column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.security.acls import SUPPORTED, Operation, ResourceType

NOTHING = "nothing"


class Need(NamedTuple):
    operation: Operation
    kind: ResourceType


def parse_needs(text: str) -> tuple[Need, ...]:
    """Raises ValueError for a text that names no operation of a kind of resource."""
    if text == NOTHING:
        return ()
    return tuple(need for each in text.split("; ") for part in each.split(" or ") for need in _parse(part))


def _parse(text: str) -> Iterator[Need]:
    operation, _, kinds = text.partition(" ")
    for kind in kinds.split(", "):
        need = Need(
            Operation.__members__.get(operation, Operation.UNKNOWN),
            ResourceType.__members__.get(kind.upper(), ResourceType.UNKNOWN),
        )
        if need.operation < Operation.READ or need.kind not in SUPPORTED:
            raise ValueError(f"no operation and kind of resource: {text!r}")
        yield need
