"""InitializeShareGroupState (83), v0 (KIP-932): creates the state of share-partitions, or recreates
it under a state epoch that is not lower.

Served by the broker's persister; durable when the answer has code 0.


With an authorizer it needs CLUSTER_ACTION (31 in every row)."""

from __future__ import annotations

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked, refused
from kbroker.security.acls import Operation
from kbroker.share.persister import InitializeRequest, Result


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.CLUSTER_ACTION):
        return answer(refused(request.body, Result))
    requests = asked(
        request.body, lambda partition, row: InitializeRequest(partition, row.state_epoch, row.start_offset)
    )
    return answer(await request.broker.persister.initialize(request.body.group_id, requests))
