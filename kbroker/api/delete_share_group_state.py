"""DeleteShareGroupState (86), v0 (KIP-932): deletes the state of share-partitions, whatever their
epochs. A share-partition without state is no error."""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked


async def handle(request: Request) -> Message:
    partitions = asked(request.body, lambda partition, _: partition)
    return answer(await request.broker.persister.delete(request.body.group_id, partitions))
