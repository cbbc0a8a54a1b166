"""WriteShareGroupState (85), v0-1 (KIP-932): merges batches into the state of share-partitions and
moves their start offsets up.

v1 has the delivery complete count (KIP-1226); in v0 it is unknown. A write is fenced by leader
epoch (74) and state epoch (124).


With an authorizer it needs CLUSTER_ACTION (31 in every row)."""

from __future__ import annotations

from typing import Any

from kbroker.api.authorization import allows_on_cluster
from kbroker.api.request import Message, Request
from kbroker.api.share_state_rows import answer, asked, refused
from kbroker.formats.share_records import UNKNOWN_COUNT
from kbroker.security.acls import Operation
from kbroker.share.effects import StateBatch
from kbroker.share.persister import Result, TopicPartition, WriteRequest


async def handle(request: Request) -> Message:
    if not allows_on_cluster(request, Operation.CLUSTER_ACTION):
        return answer(refused(request.body, Result))
    return answer(await request.broker.persister.write(request.body.group_id, asked(request.body, _write)))


def _write(partition: TopicPartition, row: Any) -> WriteRequest:
    batches = [
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in row.state_batches
    ]
    complete: int = getattr(row, "delivery_complete_count", UNKNOWN_COUNT)
    return WriteRequest(partition, row.state_epoch, row.leader_epoch, row.start_offset, complete, batches)
