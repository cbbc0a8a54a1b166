"""The topics that members of a consumer group subscribe to: by name, and by a regular expression
that the broker resolves (KIP-848).

Expressions use RE2's syntax, whose matching takes linear time, and must match the whole name. Kafka
resolves them in the background; kbroker does so at once, when a member sends a new one and when a
topic was created or deleted. With an authorizer, a member's expression matches only topics that its
principal may describe.

Names are kept as members send them, even if no such topic exists. This module must not know groups
or assignments.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ConsumerGroupMember
from kbroker.groups.consumer.messages import IterableTopicsView
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.rights import Rights

_MAX_KNOWN: Final = 1000

K = TypeVar("K")
V = TypeVar("V")


class Subscriber(Protocol):
    """A member. `rights`: of the client that sent its last heartbeat; None: it may do
    everything."""

    @property
    def said(self) -> ConsumerGroupMember: ...
    @property
    def rights(self) -> Rights | None: ...


class Subscriptions:
    """Resolves subscriptions to topics. Results are cached until the version of the topics changes,
    which a change of rights raises, too."""

    def __init__(self, topics: IterableTopicsView) -> None:
        self._topics = topics
        self._version = topics.version
        self._resolved: dict[tuple[str, Rights | None], frozenset[str]] = {}
        self._hashes: dict[frozenset[str], int] = {}
        self._ids: dict[frozenset[str], frozenset[UUID]] = {}

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
            known = _keep(self._ids, names, frozenset(topic.topic_id for topic in found if topic is not None))
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
            known = _keep(self._hashes, names, int.from_bytes(digest, "big", signed=True) if found else 0)
        return known

    def resolve(self, regex: str, rights: Rights | None = None) -> frozenset[str]:
        """The topics whose whole name matches, and that the client may describe. Raises
        INVALID_REGULAR_EXPRESSION."""
        self._forget_old()
        if (known := self._resolved.get((regex, rights))) is None:
            matches = compile_regex(regex).fullmatch
            found = (topic.name for topic in self._topics if matches(topic.name))
            known = _keep(
                self._resolved,
                (regex, rights),
                frozenset(name for name in found if rights is None or _sees(rights, name)),
            )
        return known

    def _forget_old(self) -> None:
        if self._version != self._topics.version:
            self._version = self._topics.version
            self._resolved.clear()
            self._hashes.clear()
            self._ids.clear()


def _sees(rights: Rights, name: str) -> bool:
    return rights.has(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _keep(known: dict[K, V], key: K, value: V) -> V:
    """Cache a value. The cache is bounded, as subscriptions may change often while the topics do
    not."""
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[key] = value
    return value


@lru_cache(maxsize=_MAX_KNOWN)
def compile_regex(regex: str) -> Any:  # noqa: ANN401 - google-re2 has no types
    """Raises INVALID_REGULAR_EXPRESSION with the reason."""
    import re2  # Imported here, as most brokers never see an expression.

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from None
