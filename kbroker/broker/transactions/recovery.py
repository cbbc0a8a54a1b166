"""What the last broker life left of its transactions, finished at the start.

- PREPARE_*: the markers are written (again), and the id is complete.
- ONGOING: its producer continues, and its time-out counts from the beginning.

If that life ran with durability `os` and did not end cleanly, a power cut may have taken records
and added logs of an ongoing transaction. Its producer does not know, and might commit the rest. So
all of them are aborted with a new epoch. Then the logs are searched for open transactions that no
id knows of any more. No transaction begins before that is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import trio

from kbroker.broker.commits.waiting import Decision
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.broker.transactions.markers import append_marker
from kbroker.broker.transactions.saving import now
from kbroker.broker.transactions.service import TransactionService
from kbroker.errors import KafkaError, NoSpace, StoreFailed
from kbroker.formats.batches import ProducerInfo
from kbroker.formats.state import read_entries
from kbroker.formats.transactions import MarkerType, TransactionKey, TransactionPartition, TransactionRecord
from kbroker.groups.offsets.pending import PendingOffsets
from kbroker.storage.spi import StateStore
from kbroker.transactions.steps import PREPARED

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


def recover(
    service: TransactionService, store: StateStore, topics: Topics, pending: PendingOffsets, *, has_lost: bool
) -> None:
    """Load the stored ids, and start the rest as a task. Raises ValueError for a damaged id.

    `has_lost`: a power cut may have taken what the last life had answered."""
    service.coordinator.load(_stored(store), now())
    for transactional_id in service.coordinator.unfinished():
        service.ending.start(service.ending.finish, transactional_id)
    if has_lost:
        service.ending.start(_abort_lost, service, topics, pending)
    else:
        service.recovered()


def _stored(store: StateStore) -> Iterator[tuple[str, TransactionRecord]]:
    for key, record in read_entries(store.scan(TransactionKey.namespace)):
        assert isinstance(key, TransactionKey)
        assert isinstance(record, TransactionRecord)
        yield key.transactional_id, record


async def _abort_lost(service: TransactionService, topics: Topics, pending: PendingOffsets) -> None:
    while True:
        try:
            await _abort_all(service, topics, pending)
            break
        except StoreFailed as error:
            logger.warning("no transaction is possible before a restart: %s", error)
            return
        except (NoSpace, KafkaError) as error:
            logger.warning("transactions have to wait: %s", error)
            await trio.sleep(_RETRY_S)
    service.recovered()


async def _abort_all(service: TransactionService, topics: Topics, pending: PendingOffsets) -> None:
    """Raises NoSpace, StoreFailed and KafkaError."""
    await service.reserve_producer_ids()
    decisions: list[Decision] = []
    for transition in service.coordinator.abort_ongoing(now()):
        logger.warning(
            "the transaction of %s is aborted: the last broker did not end cleanly, and a power cut may have "
            "taken a part of it",
            transition.transactional_id,
        )
        decisions.append(service.ending.abort(transition))
    for decision in decisions:
        await decision.wait()
    for partition in list(topics.partitions()):
        if partition.has_transactions:
            await _abort_unknown(service, partition)
    for producer_id in pending.producer_ids() - _ending(service):
        if not await service.ending.end_offsets(producer_id, False):
            raise NoSpace("offsets of a lost transaction cannot be removed")


def _ending(service: TransactionService, log: TransactionPartition | None = None) -> set[int]:
    """The producers whose transaction, with this log, is about to end."""
    return {
        record.producer_id
        for _, record in service.coordinator.records()
        if record.state in PREPARED and (log is None or log in record.partitions)
    }


async def _abort_unknown(service: TransactionService, partition: Partition) -> None:
    """Abort the log's open transactions that no id is about to end."""
    log = TransactionPartition(*partition.log)
    try:
        states = await partition.load_producers()
    except KafkaError as error:  # The log is damaged, or its topic is being deleted.
        logger.error("%s-%d: its transactions cannot be looked at: %s", *_name(partition), error)
        return
    for each in states.confirmed():
        is_ending = each.producer_id in _ending(service, log)
        if is_ending or not states.has_open(each.producer_id) or partition.deleted:
            continue
        logger.warning(
            "%s-%d: the transaction of producer %d from offset %d on is aborted: nobody knows how it ended",
            *_name(partition),
            each.producer_id,
            each.open_from,
        )
        producer = ProducerInfo(each.producer_id, each.producer_epoch, -1)
        done, epoch = Decision(), service.ending.markers.coordinator_epoch
        await append_marker(partition, MarkerType.ABORT, producer, epoch, 1, done.decide, is_own=True)
        await done.wait()


def _name(partition: Partition) -> tuple[str, int]:
    return partition.topic_name, partition.log.partition
