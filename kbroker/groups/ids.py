"""One namespace for the ids of groups of all types: classic, consumer and share groups.

An id belongs to the type that used it first, until its last record is deleted. Requests of another
type are refused, even if the group is empty; only classic and consumer groups are converted into
each other. This module must not know what a group is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
"""Group types as ListGroups names them."""


class ListedGroup(NamedTuple):
    """A row of ListGroups."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class GroupIdsStatistics(NamedTuple):
    groups_by_type: Mapping[str, int]


class GroupIds:
    def __init__(self) -> None:
        self._types: dict[str, str] = {}

    def type_of(self, group_id: str) -> str | None:
        return self._types.get(group_id)

    def claim(self, group_id: str, group_type: str) -> None:
        """Claim an id, which must be free or belong to this type already."""
        assert self._types.setdefault(group_id, group_type) == group_type, (
            f"{group_id!r} is a {self._types[group_id]} group"
        )

    def release(self, group_id: str, group_type: str) -> None:
        """Free the id, unless it belongs to another type by now."""
        if self._types.get(group_id) == group_type:
            del self._types[group_id]

    def statistics(self) -> GroupIdsStatistics:
        return GroupIdsStatistics(Counter(self._types.values()))
