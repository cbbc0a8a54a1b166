"""OffsetForLeaderEpoch (23), v2-4 (KIP-320): the offset at which a leader epoch ended, for clients
that check their positions after a restart.

A leader epoch is one life of the broker. An epoch that never existed is -1/-1 without an error. A
client whose current epoch is lower than this one is fenced (74), one whose epoch is higher is ahead
(75).

The rows are made when the answer is packed: by then the batches that the connection has sent before
are committed.

With an authorizer a topic needs DESCRIBE (29, whether or not it exists). CLUSTER_ACTION on the
cluster is enough for all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.api.authorization import check_topic, has_on_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation


def handle(request: Request) -> Message:
    is_broker = has_on_cluster(request, Operation.CLUSTER_ACTION)
    return {
        "topics": (
            {
                "topic": topic.topic,
                "partitions": map(partial(_row, request, topic.topic, is_broker), topic.partitions),
            }
            for topic in request.body.topics
        )
    }


def _row(request: Request, name: str, is_broker: bool, asked: Any) -> Message:
    code, epoch, end_offset = ErrorCode.none, -1, -1
    try:
        if not is_broker:
            check_topic(request, Operation.DESCRIBE, name)
        topic = request.broker.topics.by_name(name)
        if topic is None or not 0 <= asked.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        partition = topic.partitions[asked.partition]
        partition.epochs.check(asked.current_leader_epoch)
        epoch, end_offset = partition.epochs.end_of(
            asked.leader_epoch, partition.log_start_offset, partition.high_watermark
        )
    except KafkaError as error:
        code = error.code
    return {"error_code": code, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}
