"""The topics as members of consumer groups see them: with a version that also rises when rights
change, so that regular expressions are resolved again."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.broker.security.acls import Acls
from kbroker.groups.consumer.messages import IterableTopicsView
from kbroker.groups.share.messages import TopicView


class SeenTopics:
    """Only for a broker with an authorizer."""

    def __init__(self, topics: IterableTopicsView, acls: Acls) -> None:
        self._topics = topics
        self._acls = acls
        self.by_name = topics.by_name
        self.by_id = topics.by_id

    @property
    def version(self) -> int:
        return self._topics.version + self._acls.version

    def __iter__(self) -> Iterator[TopicView]:
        return iter(self._topics)
