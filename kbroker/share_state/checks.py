"""The requests that the share coordinator refuses. Each check raises a KafkaError, or creates one
to be raised. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import StateBatch
from kbroker.share.in_flight import MAX_SPAN
from kbroker.share.persister import TopicPartition
from kbroker.share.record_state import MAX_DELIVERY_COUNT
from kbroker.share_state.loading import ShareState

PERSISTED_STATES: Final = frozenset({0, 2, 3, 4})
"""AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED. An acquisition is never saved."""


def check_partition(partition: TopicPartition) -> None:
    if partition.partition < 0:
        raise KafkaError(ErrorCode.invalid_request, "The partition must not be negative.")


def check_epoch(epoch: int, name: str) -> None:
    if epoch < 0:
        raise KafkaError(ErrorCode.invalid_request, f"The {name} must not be negative.")


def check_batches(batches: Iterable[StateBatch]) -> int:
    """Returns the last offset. Kafka stores any batches, and can then never load the
    share-partition again; kbroker refuses bad ones."""
    last_offset = -1
    for first, last, state, count in batches:
        if not 0 <= first <= last or state not in PERSISTED_STATES or not 0 <= count <= MAX_DELIVERY_COUNT:
            message = (
                f"Not a state batch: {first}-{last}, state {state}, delivery count {count} (0 to "
                f"{MAX_DELIVERY_COUNT})."
            )
            raise KafkaError(ErrorCode.invalid_request, message)
        if last > last_offset:
            last_offset = last
    return last_offset


def check_span(last_offset: int, start_offset: int) -> None:
    """No more offsets than a share-partition has in memory. Without a decided start offset this is
    unknown."""
    if last_offset - start_offset >= MAX_SPAN and start_offset >= 0:
        message = (
            f"State batches may span {MAX_SPAN} offsets from the start offset {start_offset} on, not "
            f"up to {last_offset}."
        )
        raise KafkaError(ErrorCode.invalid_request, message)


def fenced_leader(leader_epoch: int, state: ShareState) -> KafkaError:
    return KafkaError(
        ErrorCode.fenced_leader_epoch, f"Leader epoch {leader_epoch} is older than {state.leader_fence}."
    )


def fenced_state(state_epoch: int, state: ShareState) -> KafkaError:
    return KafkaError(
        ErrorCode.fenced_state_epoch, f"State epoch {state_epoch} is older than {state.state_epoch}."
    )
