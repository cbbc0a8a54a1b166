"""ReadShareGroupState (84), v0 (KIP-932): the state of share-partitions, for their leader.

The leader epoch of the request is stored, and fences older leaders from then on. A row with an
error has an empty state.


With an authorizer it needs CLUSTER_ACTION (31 in every row)."""

from __future__ import annotations

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked, refused
from kbroker.security.acls import Operation
from kbroker.share.persister import ReadRequest, ReadResult


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.CLUSTER_ACTION):
        return answer(refused(request.body, ReadResult), _state)
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
