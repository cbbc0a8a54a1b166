"""ReadShareGroupStateSummary (87), v0-1 (KIP-932): start offsets and epochs of share-partitions;
fences no leader.

The states of up to ROWS_A_TURN share-partitions are of one moment.

A share-partition without state has start offset -1 without an error; a refused row has 0. v1 has
the delivery complete count (KIP-1226).


With an authorizer it needs CLUSTER_ACTION (31 in every row)."""

from __future__ import annotations

from itertools import islice
from uuid import UUID

from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import add, answer_of, each_asked
from kbroker.api.turns import pause
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation, ResourceType
from kbroker.share.persister import ReadRequest, SummaryResult
from kbroker.turns import ROWS_A_TURN

_MOST = (1 << 31) - 1
"""The most that the field can hold. The count includes offsets that the persister itself occupies
in the log."""


async def handle(request: Request) -> Message:
    refused = None if allows_on_cluster(request, Operation.CLUSTER_ACTION) else refusal(ResourceType.CLUSTER)
    requests = each_asked(request.body, lambda partition, row: ReadRequest(partition, row.leader_epoch))
    topics: dict[UUID, dict[int, SummaryResult]] = {}
    while some := list(islice(requests, ROWS_A_TURN)):
        if topics:
            await pause()
        if refused is None:
            results = await request.broker.persister.read_summary(request.body.group_id, some)
        else:
            results = [SummaryResult(each.partition, refused.code, refused.message) for each in some]
        add(results, topics)
    return answer_of(topics, _summary)


def _summary(result: SummaryResult) -> Message:
    return {
        "state_epoch": result.state_epoch,
        "leader_epoch": result.leader_epoch,
        "start_offset": result.start_offset if result.code is ErrorCode.none else 0,
        "delivery_complete_count": min(result.delivery_complete_count, _MOST),
    }
