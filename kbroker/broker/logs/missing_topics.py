"""Logs that a client asks for a topic that does not exist: such a consumer waits for ever, without
an error.

Each topic gets one line in ten minutes, however often clients ask, and all topics together at most
a hundred. Names that begin with "__" are for tools, which create such topics themselves with
settings of their own: they get no line. The broker cannot tell whether a client waits or only
looks. A line too much, where an administrator has mistyped a name, does no harm.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from typing import NamedTuple

import trio

from kbroker.broker.logs.topics import Topics, check_name
from kbroker.errors import KafkaError
from kbroker.seldom import Seldom

logger = logging.getLogger(__name__)

INTERVAL_S = 600.0
_SHOWN = 249
"""Characters of a name, which need not be one that a topic can have."""


class MissingTopicsStatistics(NamedTuple):
    """`remembered`: topics that got a line, most of them lately."""

    remembered: int


class MissingTopics:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._seldom = Seldom(INTERVAL_S)

    def statistics(self) -> MissingTopicsStatistics:
        return MissingTopicsStatistics(len(self._seldom))

    def asked_for(self, name: str, client_id: str, host: str) -> None:
        """A client asked for a topic that does not exist, and its question does not create it."""
        self._warn(name, f"client {client_id[:_SHOWN]!r} at {host}")

    def subscribed(self, names: Iterable[str], group_id: str, client_id: str, host: str) -> None:
        """A member of a group subscribes to these topics, which may exist."""
        for name in names:
            if self._topics.by_name(name) is None:
                self._warn(name, f"client {client_id[:_SHOWN]!r} at {host}, in group {group_id[:_SHOWN]!r},")

    def _warn(self, name: str, who: str) -> None:
        if name.startswith("__") or not self._seldom.times(name, trio.current_time()):
            return
        try:
            check_name(name)
        except KafkaError:
            shown = name[:_SHOWN]
            logger.warning("%s asks for %r, and gets nothing: no topic can have that name", who, shown)
            return
        logger.warning(
            "%s asks for topic %s, which does not exist; it gets nothing until there is one: "
            "kbroker topics create %s",
            who, name, shlex.quote(name),
        )  # fmt: skip
