"""ReadShareGroupState (84), v0 (KIP-932): the state of share-partitions, for their leader.

The leader epoch of the request is stored, and fences older leaders from then on. A row with an
error has an empty state.
"""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked
from kbroker.share.persister import ReadRequest, ReadResult


async def handle(request: Request) -> Message:
    requests = asked(request.body, lambda partition, row: ReadRequest(partition, row.leader_epoch))
    return answer(await request.broker.persister.read(request.body.group_id, requests), _state)


def _state(result: ReadResult) -> Message:
    return {
        "state_epoch": result.state_epoch,
        "start_offset": result.start_offset,
        "state_batches": [
            {
                "first_offset": batch.first_offset,
                "last_offset": batch.last_offset,
                "delivery_state": batch.state,
                "delivery_count": batch.delivery_count,
            }
            for batch in result.batches
        ],
    }
