"""What a client knows of the brokers: their addresses, the leaders of partitions, coordinators.

It asks over one connection of its own, made again when it is lost. Everything that it knows may be
out of date: callers refresh it when a broker says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

import anyio

from ._shared.client.answers import lacking
from ._shared.errors import ErrorCode, KafkaError
from .addresses import Address, addresses
from .connection import Connection, connect
from .errors import BrokerUnreachable, NotAuthenticated
from .security import Security

_BACKOFF_S: Final = 0.1
_MOST_BACKOFF_S: Final = 1.0
_RETRIABLE: Final = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.leader_not_available,
)


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Backoff:
    """Pauses between attempts, which double."""

    def __init__(self) -> None:
        self._next_s = _BACKOFF_S

    def reset(self) -> None:
        self._next_s = _BACKOFF_S

    async def pause(self) -> None:
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, _MOST_BACKOFF_S)
        await anyio.sleep(pause_s)


class Topic(NamedTuple):
    """`leaders`: node ids by partition; -1: none at the moment."""

    name: str
    id: UUID
    leaders: Sequence[int]

    def leader(self, partition: int) -> int:
        """-1 also for a partition that is not known, such as one of a topic that was recreated."""
        return self.leaders[partition] if partition < len(self.leaders) else -1


class Cluster:
    def __init__(self, bootstrap: str | Sequence[str], client_id: str, security: Security) -> None:
        self._bootstrap = addresses(bootstrap)
        self._client_id = client_id
        self._security = security
        self._nodes: dict[int, Address] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._connection: Connection | None = None
        self._asking = anyio.Lock()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def connect_to(self, node: int) -> Connection:
        """A new connection, of the caller's own. Raises BrokerUnreachable."""
        address = self._nodes.get(node)
        if address is None:
            raise BrokerUnreachable(f"broker {node} is not known at the moment")
        return await connect(address, self._client_id, self._security)

    async def ask(self, api: str, version: int | None = None, /, **fields: Any) -> Any:
        """A request that any broker answers, and that may be repeated. Raises BrokerUnreachable and
        KafkaError (unsupported_version)."""
        async with self._asking:
            if self._connection is not None and not self._connection.is_closed:
                with suppress(BrokerUnreachable):  # It may have been lost while nobody asked.
                    return await self._connection.call(api, version, **fields)
            self._connection = await self.connect_to_any()
            return await self._connection.call(api, version, **fields)

    async def connect_to_any(self) -> Connection:
        """A new connection, of the caller's own. Raises BrokerUnreachable."""
        last = BrokerUnreachable("no broker is known")
        for address in dict.fromkeys((*self._bootstrap, *self._nodes.values())):
            try:
                return await connect(address, self._client_id, self._security)
            except NotAuthenticated:
                raise
            except BrokerUnreachable as error:
                last = error
        raise last

    # -- topics
    # ----------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_of(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    async def refresh(self, names: Iterable[str] = (), ids: Iterable[UUID] = ()) -> dict[str, ErrorCode]:
        """Ask for these topics; a missing one is forgotten. Returns the codes of those that the
        client may not use, or that have no valid name. Raises BrokerUnreachable."""
        wanted: list[dict[str, Any]] = [{"name": name, "topic_id": None} for name in names]
        wanted += [{"name": None, "topic_id": topic_id} for topic_id in ids]
        answer = await self.ask("metadata", topics=wanted, allow_auto_topic_creation=False,
            include_topic_authorized_operations=False)  # fmt: skip
        self._nodes = {row.node_id: Address(row.host, row.port) for row in answer.brokers}
        refused = {}
        for row in answer.topics:
            if row.error_code is ErrorCode.none:
                self._learn(row)
                continue
            for known in (self._by_name.pop(row.name or "", None), self._by_id.pop(row.topic_id, None)):
                if known is not None:
                    self._by_name.pop(known.name, None)
                    self._by_id.pop(known.id, None)
            refused[row.name or str(row.topic_id)] = row.error_code
        return refused

    def _learn(self, row: Any) -> None:
        leaders = {each.partition_index: each.leader_id for each in row.partitions}
        in_order = [leaders.get(index, -1) for index in range(max(leaders, default=-1) + 1)]
        topic = Topic(row.name, UUID(bytes=row.topic_id.bytes), in_order)
        before = self._by_name.get(topic.name)
        if before is not None and before.id != topic.id:
            del self._by_id[before.id]
        self._by_name[topic.name] = self._by_id[topic.id] = topic

    # -- coordinators
    # ----------------------------------------------------------------------------------------------

    async def connect_to_coordinator(self, group: str) -> Connection:
        """A new connection to the coordinator of a group. Raises BrokerUnreachable, and KafkaError
        for what trying again does not mend."""
        answer = await self.ask("find_coordinator", key_type=0, coordinator_keys=[group], key=group)
        row = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        if row.error_code in _RETRIABLE:
            raise BrokerUnreachable(f"the group {group} has no coordinator yet")
        if row.error_code is not ErrorCode.none:
            why = lacking(row.error_code, "read", group) or row.error_message or f"group {group}"
            raise KafkaError(row.error_code, why)
        return await connect(Address(row.host, row.port), self._client_id, self._security)
