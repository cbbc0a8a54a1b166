"""DeleteShareGroupState (86), v0 (KIP-932): deletes the state of share-partitions, whatever their
epochs. A share-partition without state is no error.

With an authorizer it needs CLUSTER_ACTION (31 in every row)."""

from __future__ import annotations

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked, refused
from kbroker.security.acls import Operation
from kbroker.share.persister import Result


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.CLUSTER_ACTION):
        return answer(refused(request.body, Result))
    partitions = asked(request.body, lambda partition, _: partition)
    return answer(await request.broker.persister.delete(request.body.group_id, partitions))
