"""Compiles and matches the regular expressions of clients in a thread, so that neither holds other
clients: an expression of a few characters may take a fifth of a second to compile, and milliseconds
for each name that it is matched with.

The results go into the caches of the pure part (kbroker/groups/consumer/subscriptions.py), so that
the coordinator finds them there when it decides in one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import trio

from kbroker.errors import KafkaError
from kbroker.groups.consumer.coordinator import ConsumerGroups
from kbroker.groups.consumer.subscriptions import sees
from kbroker.groups.expressions import compile_pattern
from kbroker.security.rights import Rights

AT_A_TIME: Final = 1
NAMES_A_PIECE: Final = 500
"""Names that are matched before another client's expression has its turn, and rights that are
looked up in one turn of the loop."""
_ROUNDS: Final = 3
"""Topics may change while an expression is matched with their names."""


class ExpressionService:
    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups
        self._subscriptions = groups.rebalances.subscriptions
        self._expressions = self._subscriptions.expressions
        self._limit = trio.CapacityLimiter(AT_A_TIME)

    async def matching(self, pattern: str, texts: Iterable[str]) -> list[str]:
        """Those that the expression matches as a whole. Raises INVALID_REGULAR_EXPRESSION.

        - `texts`: read a piece at a time, with turns of others in between"""
        compiled = await self._compiled(pattern)
        remaining = iter(texts)
        found: list[str] = []
        while piece := list(islice(remaining, NAMES_A_PIECE)):
            found += await trio.to_thread.run_sync(_matching, compiled, piece, limiter=self._limit)
        return found

    async def prepare(self, group_id: str, regex: str | None, rights: Rights | None) -> None:
        """Resolve what the next decision about the group needs, including `regex` of a client with
        these rights. The coordinator refuses an invalid one, after its other checks."""
        group = self._groups.get(group_id)
        if not regex and (group is None or group.topics_version == self._subscriptions.version):
            return
        members = () if group is None else group.members.values()
        for each, its_rights in {
            (regex, rights),
            *((member.said.subscribed_topic_regex, member.rights) for member in members),
        }:
            if each and not self._subscriptions.is_resolved(each, its_rights):
                try:
                    await self._resolve(each, its_rights)
                except KafkaError:
                    continue
        if regex:  # Last, as other expressions may have taken its place: the decision looks at it.
            with suppress(KafkaError):
                await self._compiled(regex)

    async def _resolve(self, regex: str, rights: Rights | None) -> None:
        subscriptions = self._subscriptions
        await self._compiled(regex)
        for _ in range(_ROUNDS):
            if (what := subscriptions.unmatched(regex)) is not None:
                subscriptions.matched(regex, what, await self.matching(regex, what.names))
            version = subscriptions.version
            found = subscriptions.resolve(regex)
            if rights is not None:
                found = await _seen(rights, found)
            if subscriptions.version == version:
                subscriptions.resolved(regex, rights, found)
                return

    async def _compiled(self, pattern: str) -> Any:  # noqa: ANN401 - google-re2 has no types
        if not self._expressions.is_known(pattern):
            compiled = await trio.to_thread.run_sync(compile_pattern, pattern, limiter=self._limit)
            self._expressions.add(pattern, compiled)
        return self._expressions.compiled(pattern)


def _matching(compiled: Any, names: Iterable[str]) -> list[str]:  # noqa: ANN401
    matches = compiled.fullmatch
    return [name for name in names if matches(name) is not None]


async def _seen(rights: Rights, names: Iterable[str]) -> frozenset[str]:
    remaining = iter(names)
    found: list[str] = []
    while piece := list(islice(remaining, NAMES_A_PIECE)):
        found += [name for name in piece if sees(rights, name)]
        await trio.lowlevel.checkpoint()
    return frozenset(found)
