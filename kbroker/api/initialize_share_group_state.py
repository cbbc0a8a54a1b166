"""InitializeShareGroupState (83), v0 (KIP-932): creates the state of share-partitions, or recreates
it under a state epoch that is not lower.

Served by the broker's persister; durable when the answer has code 0.
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked
from kbroker.share.persister import InitializeRequest


async def handle(request: Request) -> Message:
    requests = asked(
        request.body, lambda partition, row: InitializeRequest(partition, row.state_epoch, row.start_offset)
    )
    return answer(await request.broker.persister.initialize(request.body.group_id, requests))
