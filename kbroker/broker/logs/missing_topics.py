"""Topics that do not exist and that clients request. Where automatic creation applies,
`MissingTopics.creation` creates them. Otherwise such a consumer waits forever, without an error, so
the request is logged.

Each topic is logged once in ten minutes, however often clients request it; all topics together at
most a hundred times. Names that begin with "__" are not logged: tools create such topics
themselves, with their own settings. The broker cannot tell a client that waits from one that only
checks; a superfluous line does no harm.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from typing import NamedTuple

import trio

from kbroker.broker.logs.auto_creation import AutoCreation, AutoCreationStatistics
from kbroker.broker.logs.topics import Topics, check_name
from kbroker.errors import KafkaError
from kbroker.seldom import Seldom
from kbroker.settings.altering import BrokerConfig

logger = logging.getLogger(__name__)

INTERVAL_S = 600.0
_SHOWN = 249
"""Characters of a name, which need not be a legal topic name."""


def client_at(client_id: str, host: str) -> str:
    """A client, as log lines name it."""
    return f"client {client_id[:_SHOWN]!r} at {host}"


class MissingTopicsStatistics(NamedTuple):
    """`remembered`: topics logged recently."""

    remembered: int
    creation: AutoCreationStatistics


class MissingTopics:
    def __init__(self, topics: Topics, config: BrokerConfig) -> None:
        self._topics = topics
        self.creation = AutoCreation(topics, config)
        self._seldom = Seldom(INTERVAL_S)

    def statistics(self) -> MissingTopicsStatistics:
        return MissingTopicsStatistics(len(self._seldom), self.creation.statistics())

    def asked_for(self, name: str, client_id: str, host: str) -> None:
        """A client requested a topic that does not exist, and the request does not create it."""
        self._warn(name, client_at(client_id, host))

    def subscribed(self, names: Iterable[str], group_id: str, client_id: str, host: str) -> None:
        """A group member subscribes to these topics, some of which may not exist."""
        for name in names:
            if self._topics.by_name(name) is None:
                self._warn(name, f"{client_at(client_id, host)}, in group {group_id[:_SHOWN]!r},")

    def _warn(self, name: str, who: str) -> None:
        # The longer ones are no topics, and may be as large as a request.
        if name.startswith("__") or not self._seldom.times(name[: _SHOWN + 1], trio.current_time()):
            return
        try:
            check_name(name)
        except KafkaError:
            shown = name[:_SHOWN]
            logger.warning("%s asks for %r, and gets nothing: no topic can have that name", who, shown)
            return
        logger.warning(
            "%s asks for topic %s, which does not exist; it gets nothing until there is one: "
            "kbroker topics create %s, or kbroker queues create %s",
            who, name, shlex.quote(name), shlex.quote(name),
        )  # fmt: skip
