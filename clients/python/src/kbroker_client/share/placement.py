"""Gives each partition of a consumer's assignment to the session of its leader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

import anyio

from ..background import Signal
from ..cluster import Cluster, TopicPartition
from ..errors import BrokerUnreachable
from .session import ShareSession
from .wire import Partition

logger = logging.getLogger(__name__)

_LEADER_S: Final = 0.5
"""Between questions for the leader of a partition that has none, or whose topic is not known."""
_PAUSE_S: Final = 0.2
"""Before asking again when no broker can be reached."""


class Placement:
    """- `sessions`: by node
    - `open_session`: starts the tasks of the session of a node
    """

    def __init__(self, cluster: Cluster, group: str, open_session: Callable[[int], ShareSession]) -> None:
        self.sessions: dict[int, ShareSession] = {}
        self._cluster = cluster
        self._group = group
        self._open_session = open_session
        self._assignment: frozenset[Partition] = frozenset()
        self._changed = Signal()
        self._is_ended = False

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that are assigned, as far as their topics are known."""
        return frozenset(
            TopicPartition(topic.name, index)
            for topic_id, index in self._assignment
            if (topic := self._cluster.topic_of(topic_id)) is not None
        )

    def assign(self, partitions: frozenset[Partition]) -> None:
        self._assignment = partitions
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with anyio.move_on_after(_LEADER_S if self._unplaced() else None):
                await self._changed.wait()
            self._changed.clear()
            try:
                if unplaced := self._unplaced():
                    await self._cluster.refresh(ids=unplaced)
            except BrokerUnreachable as error:
                logger.info("share group %s: %s", self._group, error)
                await anyio.sleep(_PAUSE_S)
                self._changed.set()
                continue
            self._distribute()

    async def look_again(self, partitions: Iterable[Partition]) -> None:
        """Their metadata are out of date. Raises BrokerUnreachable."""
        await self._cluster.refresh(ids={topic_id for topic_id, _ in partitions})
        self._distribute()
        if self._unplaced():
            self._changed.set()

    def end(self) -> None:
        """Open no more sessions."""
        self._is_ended = True

    def wake(self) -> None:
        """Let all sessions look again whether there is something to send."""
        for session in self.sessions.values():
            session.wake()

    def _unplaced(self) -> set[UUID]:
        """The topics of partitions without a known leader. No broker announces a later one."""
        return {topic_id for topic_id, index in self._assignment if self._leader(topic_id, index) < 0}

    def _leader(self, topic_id: UUID, index: int) -> int:
        topic = self._cluster.topic_of(topic_id)
        return -1 if topic is None else topic.leader(index)

    def _distribute(self) -> None:
        if self._is_ended:
            return
        by_node: dict[int, set[Partition]] = {node: set() for node in self.sessions}
        for partition in self._assignment:
            if (leader := self._leader(*partition)) >= 0:
                by_node.setdefault(leader, set()).add(partition)
        for node, partitions in by_node.items():
            if node not in self.sessions:
                self.sessions[node] = self._open_session(node)
            self.sessions[node].assign(frozenset(partitions))
        self.wake()
