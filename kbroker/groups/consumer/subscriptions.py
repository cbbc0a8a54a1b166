"""The topics that members of a consumer group subscribe to: by name, and by a regular expression
that the broker resolves (KIP-848).

Expressions use RE2's syntax and must match the whole name. Kafka resolves them in the background;
kbroker does so at once, when a member sends a new one and when a topic was created or deleted. With
an authorizer, a member's expression matches only topics that its principal may describe.

The broker does the costly steps before it asks the coordinator: it compiles and matches in a thread
and leaves the result here (`unmatched`, `matched`). When topics change, an expression is matched
with the names of the changed topics only. A result that is missing is computed on the spot.

Names are kept as members send them, even if no such topic exists. This module must not know groups
or assignments.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kbroker.bounded_cache import ENTRY_BYTES, BoundedCache
from kbroker.formats.group_records import ConsumerGroupMember
from kbroker.groups.consumer.messages import IterableTopicsView
from kbroker.groups.expressions import Expressions
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights

MATCHED_BYTES: Final = 32 << 20
"""Of the names that expressions match, and again of those that clients may describe."""
_KNOWN_BYTES: Final = 8 << 20
_MAX_CHANGES: Final = 5000
"""If more topics have changed, expressions are matched with all names again."""


class Subscriber(Protocol):
    """A member. `rights`: of the client that sent its last heartbeat; None: it may do
    everything."""

    @property
    def said(self) -> ConsumerGroupMember: ...
    @property
    def rights(self) -> Rights | None: ...


class Matched(NamedTuple):
    """The names that an expression matches, as of so many changes of the topics."""

    names: frozenset[str]
    changes: int


class Unmatched(NamedTuple):
    """What an expression must still be matched with, to be known as of so many changes of the
    topics.

    - `names`: to be matched; `already`: other names, which it is known to match"""

    names: Collection[str]
    already: frozenset[str]
    changes: int


class Subscriptions:
    """Resolves subscriptions to topics. Results are cached until the version of the topics changes,
    which a change of rights raises, too."""

    def __init__(self, topics: IterableTopicsView) -> None:
        self.expressions = Expressions()
        self._topics = topics
        self._version = topics.version
        self._names = frozenset(topic.name for topic in topics)
        self._changed: list[str] = []
        """Names of topics that were created or deleted, some of them long ago."""
        self._forgotten = 0
        """Changes that are no longer in `_changed`."""
        self._matched: BoundedCache[str, Matched] = BoundedCache(MATCHED_BYTES)
        self._resolved: BoundedCache[tuple[str, Rights | None], frozenset[str]] = BoundedCache(MATCHED_BYTES)
        self._hashes: BoundedCache[frozenset[str], int] = BoundedCache(_KNOWN_BYTES)
        self._ids: BoundedCache[frozenset[str], frozenset[UUID]] = BoundedCache(_KNOWN_BYTES)

    @property
    def version(self) -> int:
        """A version that changes whenever the results below may change."""
        return self._topics.version

    def names(self, members: Iterable[Subscriber]) -> frozenset[str]:
        """All names that the members subscribe to, and the names of topics that match their
        expressions."""
        distinct = {
            (member.said.subscribed_topic_names, member.said.subscribed_topic_regex, member.rights)
            for member in members
        }
        found = [self.resolve(regex, rights) for _, regex, rights in distinct if regex]
        return frozenset().union(*found, *(names for names, _, _ in distinct))

    def topic_ids(self, member: Subscriber) -> frozenset[UUID]:
        """The topics that the member subscribes to and that exist."""
        self._forget_old()
        names = self.names((member,))
        if (known := self._ids.get(names)) is None:
            found = map(self._topics.by_name, names)
            known = frozenset(topic.topic_id for topic in found if topic is not None)
            self._ids.put(names, known, _size(names) + ENTRY_BYTES * len(known))
        return known

    def partitions(self, topic_ids: Iterable[UUID]) -> dict[UUID, range]:
        """The partition numbers of those topics that exist."""
        found = map(self._topics.by_id, topic_ids)
        return {topic.topic_id: range(len(topic.partitions)) for topic in found if topic is not None}

    def hash(self, names: frozenset[str]) -> int:
        """A hash that changes when one of these topics is created, deleted, recreated or gets
        partitions. 0: none of them exists."""
        self._forget_old()
        if (known := self._hashes.get(names)) is None:
            found = [topic for topic in map(self._topics.by_name, sorted(names)) if topic is not None]
            text = "\n".join(f"{topic.name} {topic.topic_id} {len(topic.partitions)}" for topic in found)
            digest = blake2b(text.encode(), digest_size=8).digest()
            known = int.from_bytes(digest, "big", signed=True) if found else 0
            self._hashes.put(names, known, _size(names))
        return known

    def resolve(self, regex: str, rights: Rights | None = None) -> frozenset[str]:
        """The topics whose whole name matches, and that the client may describe. Raises
        INVALID_REGULAR_EXPRESSION."""
        self._forget_old()
        if (known := self._resolved.get((regex, rights))) is None:
            known = self._matching(regex)
            if rights is not None:
                known = frozenset(name for name in known if sees(rights, name))
            self.resolved(regex, rights, known)
        return known

    # --- resolving ahead ---

    def is_resolved(self, regex: str, rights: Rights | None) -> bool:
        """Whether `resolve` costs look-ups only."""
        self._forget_old()
        return self._resolved.get((regex, rights)) is not None

    def unmatched(self, regex: str) -> Unmatched | None:
        """What `matched` needs; None: nothing has changed since."""
        self._forget_old()
        known = self._matched.get(regex)
        if known is None or known.changes < self._forgotten:
            return Unmatched(self._names, frozenset(), self._changes)
        if known.changes == self._changes:
            return None
        changed = frozenset(self._changed[known.changes - self._forgotten :])
        return Unmatched(changed & self._names, known.names - changed, self._changes)

    def matched(self, regex: str, what: Unmatched, found: Iterable[str]) -> frozenset[str]:
        """All names that the expression matches, with those of `what.names` that were found."""
        names = what.already.union(found)
        self._matched.put(regex, Matched(names, what.changes), sys.getsizeof(names) + 4 * len(regex))
        return names

    def resolved(self, regex: str, rights: Rights | None, names: frozenset[str]) -> None:
        """Since the last change of `version`."""
        self._resolved.put((regex, rights), names, sys.getsizeof(names) + 4 * len(regex))

    def _matching(self, regex: str) -> frozenset[str]:
        what = self.unmatched(regex)
        if what is not None:
            matches = self.expressions.compiled(regex).fullmatch
            return self.matched(regex, what, filter(matches, what.names))
        known = self._matched.get(regex)
        assert known is not None
        return known.names

    @property
    def _changes(self) -> int:
        return self._forgotten + len(self._changed)

    def _forget_old(self) -> None:
        if self._version == self._topics.version:
            return
        self._version = self._topics.version
        self._resolved.clear()
        self._hashes.clear()
        self._ids.clear()
        names = frozenset(topic.name for topic in self._topics)
        self._changed += names ^ self._names
        self._names = names
        if len(self._changed) > _MAX_CHANGES:
            self._forgotten += len(self._changed)
            self._changed.clear()


def sees(rights: Rights, name: str) -> bool:
    return rights.has(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _size(names: frozenset[str]) -> int:
    """Of a key: names of members may have any length, and no topic."""
    return sys.getsizeof(names) + sum(map(sys.getsizeof, names))
