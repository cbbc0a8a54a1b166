"""Topics that are created because a client uses them, and names for which that has to wait.

A tool that copies topics (MirrorMaker 2, Kafka Connect) creates each with its settings. If one is
refused, the tool only warns and produces all the same. Created automatically, the topic would have
default settings: records that were to be kept for ever would be removed after a week. So a name
whose CreateTopics was refused for its settings, or had settings and was refused for its number of
replicas, is not created automatically until a CreateTopics of it succeeds, or for an hour. Until
then it is an unknown topic, which every client reports.

It must not know requests or rights: callers check them.
"""

from __future__ import annotations

import logging
import shlex
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import trio

from kbroker.broker.logs.topics import Topic, Topics
from kbroker.errors import ErrorCode, KafkaError
from kbroker.seldom import Seldom
from kbroker.settings.altering import BrokerConfig

logger = logging.getLogger(__name__)

WAIT_S: Final = 3600.0
MAX_NAMES: Final = 1000
_MAX_REASON: Final = 400
"""Characters of a refusal, which may repeat a value as large as a request."""
_LINE_INTERVAL_S: Final = 600.0
NOT_CREATED = (
    "%s asks for topic %s, which is not created automatically, as it would have default settings: its "
    "creation with others was refused: %s. Create it with the settings that are allowed (kbroker topics "
    "create %s --config NAME=VALUE ...), or set up the tool that copies topics (MirrorMaker 2: "
    "config.properties.exclude, replication.factor=1). An hour after the last refusal it is created "
    "automatically again"
)
FORGOTTEN = (
    "more than %d topics with settings were refused within an hour; the oldest are forgotten, such as topic "
    "%s, and will be created automatically with default settings when a client asks for them. Start with "
    "auto.create.topics.enable=false while a tool copies topics"
)


class _Refusal(NamedTuple):
    reason: str
    until_s: float


class AutoCreationStatistics(NamedTuple):
    """`refused_names`: those that are remembered. `prevented`: how often a client has not caused a
    creation for that reason."""

    refused_names: int
    prevented: int


class AutoCreation:
    def __init__(self, topics: Topics, config: BrokerConfig) -> None:
        self._topics = topics
        self._config = config
        self._refusals: OrderedDict[str, _Refusal] = OrderedDict()
        """The oldest refusal first."""
        self._prevented = 0
        self._lines, self._forgotten_lines = Seldom(_LINE_INTERVAL_S), Seldom(_LINE_INTERVAL_S)

    def statistics(self) -> AutoCreationStatistics:
        return AutoCreationStatistics(len(self._refusals), self._prevented)

    def refused(self, name: str, reason: str) -> None:
        """A client that may create the topic was refused; it wanted settings. The name is legal."""
        self._refusals.pop(name, None)  # It becomes the newest one.
        self._refusals[name] = _Refusal(reason[:_MAX_REASON], trio.current_time() + WAIT_S)
        if len(self._refusals) > MAX_NAMES:
            forgotten, refusal = self._refusals.popitem(last=False)
            now_s = trio.current_time()
            if now_s < refusal.until_s and self._forgotten_lines.times(FORGOTTEN, now_s):
                logger.warning(FORGOTTEN, MAX_NAMES, forgotten)

    def succeeded(self, name: str) -> None:
        self._refusals.pop(name, None)

    async def create(self, name: str, configs: Mapping[str, str], asked_by: str) -> Topic:
        """A topic with `num.partitions` partitions, durable on return. `asked_by`: for the log.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a name that has to wait, and the errors of
        Topics.create.
        """
        refusal = self._refusals.get(name)
        if refusal is None or trio.current_time() >= refusal.until_s:
            self._refusals.pop(name, None)
            return await self._topics.create(name, self._config["num.partitions"], configs)
        self._prevented += 1
        if self._lines.times(name, trio.current_time()):
            logger.warning(NOT_CREATED, asked_by, name, refusal.reason, shlex.quote(name))
        what = f"Topic '{name}' is not created automatically, since its creation with settings was refused: "
        raise KafkaError(ErrorCode.unknown_topic_or_partition, what + refusal.reason)
