"""The `noop` persister (kbroker.persister=noop): share state is only in memory, and is lost when
the broker stops.

It is for tests, and for queues whose consumers may get every record again after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.broker.persisters.local import PersisterContext
from kbroker.share.persister import (
    InitializeRequest,
    Persister,
    ReadRequest,
    ReadResult,
    Result,
    SummaryResult,
    TopicPartition,
    WriteRequest,
)


class NoopPersister(Persister):
    async def initialize(self, group_id: str, requests: Sequence[InitializeRequest]) -> list[Result]:
        return [Result(request.partition) for request in requests]

    async def read(self, group_id: str, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        return [ReadResult(request.partition, start_offset=-1) for request in requests]

    async def write(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        return [Result(request.partition) for request in requests]

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> list[Result]:
        return [Result(partition) for partition in partitions]

    async def read_summary(self, group_id: str, requests: Sequence[ReadRequest]) -> list[SummaryResult]:
        return [SummaryResult(request.partition) for request in requests]

    async def aclose(self) -> None:
        """Nothing to close."""


def open_noop(context: PersisterContext) -> Persister:
    return NoopPersister()


PERSISTER = open_noop
