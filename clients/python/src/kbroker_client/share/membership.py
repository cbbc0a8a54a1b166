"""A member of a share group: heartbeats, and the partitions that the group assigns to it.

Heartbeats have a connection of their own, since a broker answers the requests of one connection in
order, and a fetch may wait. A member that the group does not know any more joins again under the
same id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import anyio

from .._shared.client.answers import lacking
from .._shared.errors import ErrorCode, KafkaError
from ..background import Signal
from ..cluster import Backoff, Cluster
from ..connection import Connection
from ..errors import BrokerUnreachable, NotAuthenticated
from .wire import Partition

logger = logging.getLogger(__name__)

_JOIN: Final = 0
_LEAVE: Final = -1
_LEAVE_S: Final = 5.0
_UNKNOWN: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found)
_ELSEWHERE: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
_LATER: Final = (ErrorCode.coordinator_load_in_progress, ErrorCode.topic_authorization_failed)


class Membership:
    """- `on_assignment`: called with all partitions of the member whenever they change
    - `on_error`: called with what a person must mend; heartbeats go on
    - `on_end`: called with an error that ends the member
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        member_id: str,
        on_assignment: Callable[[frozenset[Partition]], None],
        on_error: Callable[[KafkaError], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._member_id = member_id
        self._on_assignment = on_assignment
        self._on_error = on_error
        self._on_end = on_end
        self._topics: frozenset[str] = frozenset()
        self._epoch = _JOIN
        self._told: frozenset[str] | None = None
        self._changed = Signal()
        self._connection: Connection | None = None
        self._is_ending = False
        self._ended = anyio.Event()

    def subscribe(self, topics: frozenset[str]) -> None:
        """Takes effect with the next heartbeat, which is sent at once."""
        self._topics = topics
        self._changed.set()

    async def run(self) -> None:
        """Until `end`, or `on_end` was called."""
        try:
            await self._run()
        finally:
            self._ended.set()

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._is_ending:
            if not self._topics:
                await self._leave()
                self._on_assignment(frozenset())
                await self._changed.wait()
                self._changed.clear()
                continue
            try:
                interval_s = await self._beat()
            except (KafkaError, NotAuthenticated) as error:
                self._on_end(error)
                return
            except BrokerUnreachable as error:
                logger.debug("share group %s: %s", self._group, error)
                await backoff.pause()
                continue
            if interval_s is None:
                await backoff.pause()
                continue
            backoff.reset()
            with anyio.move_on_after(interval_s):
                await self._changed.wait()
                self._changed.clear()

    async def _beat(self) -> float | None:
        """One heartbeat. Returns seconds to the next; None: the answer was an error that passes."""
        topics = self._topics
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._cluster.connect_to_coordinator(self._group)
            self._told = None
        if self._is_ending:
            return None
        answer = await self._heartbeat(None if topics == self._told else sorted(topics))
        if answer.error_code is ErrorCode.none:
            self._told = topics
            self._epoch = answer.member_epoch
            if answer.assignment is not None:
                self._on_assignment(_partitions(answer.assignment))
            return float(answer.heartbeat_interval.total_seconds())
        self._told = None
        if answer.error_code in _UNKNOWN:
            logger.info("share group %s: the member joins again", self._group)
            self._epoch = _JOIN
            self._on_assignment(frozenset())
        elif answer.error_code in _ELSEWHERE:
            await self._connection.close()
        elif answer.error_code in _LATER:
            if answer.error_code is ErrorCode.topic_authorization_failed:
                why = lacking(answer.error_code, "describe", ", ".join(sorted(topics)))
                self._on_error(KafkaError(answer.error_code, why or answer.error_message))
        else:
            why = lacking(answer.error_code, "read", self._group) or answer.error_message
            raise KafkaError(answer.error_code, why or f"share group {self._group}")
        return None

    async def _heartbeat(self, topics: list[str] | None) -> Any:
        assert self._connection is not None
        return await self._connection.call(
            "share_group_heartbeat", 1, group_id=self._group, member_id=self._member_id,
            member_epoch=self._epoch, rack_id=None, subscribed_topic_names=topics,
        )  # fmt: skip

    async def end(self) -> None:
        """Leave the group, behind the heartbeat that is under way, which may be the one that joins:
        the connection is its own until it is answered. If this fails, the session runs out at the
        broker."""
        self._is_ending = True
        self._changed.set()
        if self._connection is not None and not self._connection.is_closed:
            await self._ended.wait()
            await self._leave()

    async def _leave(self) -> None:
        """The last heartbeat."""
        if self._epoch == _JOIN or self._connection is None or self._connection.is_closed:
            return
        self._epoch = _LEAVE
        try:
            with anyio.fail_after(_LEAVE_S):
                await self._heartbeat(None)
        except (BrokerUnreachable, TimeoutError) as error:
            logger.debug("share group %s: could not leave: %s", self._group, error)
        self._epoch, self._told = _JOIN, None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def _partitions(assignment: Any) -> frozenset[Partition]:
    return frozenset(
        (UUID(bytes=row.topic_id.bytes), index)
        for row in assignment.topic_partitions
        for index in row.partitions
    )
