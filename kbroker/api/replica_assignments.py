"""Checks that CreateTopics and CreatePartitions share: the replicas, of which there can be one, on
this broker, and the number of new partitions. Metadata, which may create topics too, checks the
number."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.broker import MAX_PARTITIONS_PER_REQUEST

REPLICATION_FACTOR = 1


def check_batch_size(new_partitions: int) -> None:
    """`new_partitions`: of all topics of a request. Raises POLICY_VIOLATION."""
    if new_partitions > MAX_PARTITIONS_PER_REQUEST:
        what = (
            f"Excessively large number of partitions per request: {new_partitions} are more than "
            f"{MAX_PARTITIONS_PER_REQUEST}."
        )
        raise KafkaError(ErrorCode.policy_violation, what)


def check_replicas(broker_ids: Sequence[int], node_id: int) -> None:
    """The replicas that a client wants for one partition. Raises INVALID_REPLICA_ASSIGNMENT unless
    they are this broker alone."""
    if not broker_ids:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        )
    for broker_id in broker_ids:
        if broker_id != node_id:
            what = (
                f"The manual partition assignment includes broker {broker_id}, but no such broker is "
                "registered."
            )
            raise KafkaError(ErrorCode.invalid_replica_assignment, what)
    if len(broker_ids) > 1:
        what = f"The manual partition assignment includes the broker {node_id} more than once."
        raise KafkaError(ErrorCode.invalid_replica_assignment, what)
