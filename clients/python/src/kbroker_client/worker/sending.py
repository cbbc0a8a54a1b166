"""The connection over which an app sends jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import anyio

from ..cluster import Cluster
from ..producer import Producer, Sent
from ..security import Security
from .hooks import Hooks
from .queue_facts import check_scheduling

Headers = Iterable[tuple[str, bytes | None]]


class Sender:
    """Use it with `async with`. Entering raises BrokerUnreachable."""

    def __init__(
        self, bootstrap: str | Sequence[str], client_id: str, security: Security, hooks: Hooks
    ) -> None:
        self.cluster = Cluster(bootstrap, client_id, security)
        self._producer = Producer(bootstrap, client_id=client_id, security=security)
        self._hooks = hooks
        self._scheduling: set[str] = set()
        """Queues that delay jobs."""

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.cluster.close()
        await self._producer.__aexit__(kind, error, trace)

    async def send(
        self,
        queue: str,
        topic: str,
        value: bytes,
        *,
        key: bytes | None,
        headers: Headers,
        is_delayed: bool,
    ) -> Sent:
        """Raises SchedulingOff, QueueMissing, and as Producer.send."""
        if is_delayed and queue not in self._scheduling:
            await check_scheduling(self.cluster, queue, topic)
            self._scheduling.add(queue)
        added = [header for make in self._hooks.send_headers for header in make()]
        return await self._producer.send(topic, value, key=key, headers=(*headers, *added))
