"""Says in the log that somebody asks for a topic that does not exist: such a consumer waits without an error, for ever.

One line for each topic in ten minutes, however often it is asked for, and for so many topics at most. Nobody can tell here whether the
client waits or only looks: that a line is too much where an administrator has mistyped a name does no harm.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable

import trio

from kbroker.broker.topics import INTERNAL_TOPICS, Topics, check_name
from kbroker.errors import KafkaError
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

INTERVAL_S = 600.0
_SHOWN = 249
"""Characters of a name, which need not be one that a topic can have."""


class MissingTopics:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._seldom = Seldom(INTERVAL_S)

    def asked_for(self, name: str, client_id: str, host: str) -> None:
        """A client asked for a topic that does not exist, and that it does not make by asking."""
        self._warn(name, f"client {client_id[:_SHOWN]!r} at {host}")

    def subscribed(self, names: Iterable[str], group_id: str, client_id: str, host: str) -> None:
        """A member of a group subscribes to these topics, which may exist."""
        for name in names:
            if self._topics.by_name(name) is None:
                self._warn(name, f"client {client_id[:_SHOWN]!r} at {host}, in group {group_id[:_SHOWN]!r},")

    def _warn(self, name: str, who: str) -> None:
        if name in INTERNAL_TOPICS or not self._seldom.times(name, trio.current_time()):
            return
        try:
            check_name(name)
        except KafkaError:
            logger.warning("%s asks for %r, and gets nothing: no topic can have that name", who, name[:_SHOWN])
            return
        logger.warning(
            "%s asks for topic %s, which does not exist; it gets nothing until somebody runs: kbroker topics create %s",
            who, name, shlex.quote(name),
        )  # fmt: skip
