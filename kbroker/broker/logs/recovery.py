"""Recovery at the start, before the broker serves: raises the generation, finishes tombstoned
deletions, checks for logs without a topic, and loads the topics.

The two stores have no common transaction, so each may lack something that the other has. A log
without a topic record is removed only if it is empty (the creation of its topic was interrupted).
If it has records, it is logged and left alone: no crash and no power cut leaves such a log, as the
creation of a topic is synced before it is answered. Hence two findings stop the start: logs with
records but no topic at all, and a topic without its log. Something was deleted, damaged or mixed
up, and starting would hide it. With `--adopt` the operator confirms the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from kbroker import plugins
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.flushes import warn_of_flushes
from kbroker.broker.logs.leader_epochs import EpochEntry
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_recovery import unusable_snapshots
from kbroker.broker.logs.topic_records import removal_of
from kbroker.broker.logs.topics import Topics
from kbroker.broker.options import Durability
from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.formats.state import (
    GENERATION,
    PERSISTER,
    Config,
    ConfigKey,
    Generation,
    GroupKey,
    LeaderEpoch,
    LeaderEpochKey,
    LogStart,
    LogStartKey,
    PersisterName,
    ResourceType,
    Topic,
    TopicKey,
    TopicState,
    read_entries,
)
from kbroker.formats.transactions import TransactionalLogKey
from kbroker.storage.spi import Change, LogId, LogStore, StampedBatch, StateReader, StateStore

logger = logging.getLogger(__name__)


def raise_generation(store: StateStore, *, unsynced: bool = False) -> tuple[int, bool]:
    """The number of this broker life: the owner epoch of the stores and the leader epoch of every
    log. Durable on return. Also returns whether a power cut may have taken what an earlier life had
    answered; that is remembered until a clean end.

    `unsynced`: this life answers before it syncs."""
    value = store.get(GENERATION.encode())
    last = Generation(-1) if value is None else Generation.decode(value)
    following = Generation(last.number + 1, unsynced or last.unsynced)
    store.write([(GENERATION.encode(), following.encode())])
    store.sync()
    return following.number, last.unsynced


async def note_clean_end(
    store: StateStore, logs: GroupCommit[StampedBatch], state: GroupCommit[Change]
) -> None:
    """From here on a power cut takes nothing that was answered."""
    value = store.get(GENERATION.encode())
    if value is None or not (ended := Generation.decode(value)).unsynced:
        return
    try:
        await logs.flush()
        await state.flush()
        await state.commit([(GENERATION.encode(), Generation(ended.number).encode())])
    except (NoSpace, StoreFailed) as error:
        logger.warning("the next start takes this end for an unclean one: %s", error)


def note_persister(store: StateStore, name: str) -> None:
    """Note the persister's name: a persister finds only its own state. Raises OperatorError if
    another one keeps the state of existing groups, whose records would otherwise be redelivered or
    lost; the line says how to install that one if it is a plugin of kbroker's own that is not
    installed. The note is as durable as the generation, which is written after it."""
    value = store.get(PERSISTER.encode())
    noted = name if value is None else PersisterName.decode(value).name
    if noted != name and any(True for _ in store.scan(GroupKey.namespace)):
        missing = plugins.how_to_install(plugins.PERSISTER, noted)
        advice = f"{missing}, " if missing else ""
        raise OperatorError(
            f"the share state of its groups was kept with kbroker.persister={noted}, and {name} would not "
            f"find it: {advice}start with "
            f"--config kbroker.persister={noted}, and delete all groups before you change that"
        )
    if value is None or noted != name:
        store.write([(PERSISTER.encode(), PersisterName(name).encode())])


def load_topics(
    topics: Topics, log_store: LogStore, state_store: StateStore, *, adopt: bool, durability: Durability
) -> None:
    """Load the topics, after finishing interrupted deletions. Synchronous: nothing is served yet.
    Logs which of them want more than `durability`.

    Raises OperatorError, unless `adopt`, if a topic lacks a log, or if logs have records but there
    is no topic.
    """
    records = [
        (TopicKey.parse(key[len(TopicKey.namespace) :]), Topic.decode(value))
        for key, value in state_store.scan(TopicKey.namespace)
    ]
    for key, record in records:
        if record.state is TopicState.DELETING:
            _finish_deletion(key, record, log_store, state_store)
    known = set(log_store.logs())
    for key, record in records:
        if record.state is not TopicState.LIVE:
            continue
        logs = [LogId(key.topic_id, index) for index in range(record.partitions)]
        missing = [log for log in logs if log not in known]
        if missing and not adopt:
            raise OperatorError(
                f"topic {record.name} has no log for partition {missing[0].partition}: a part of the data "
                "directory is gone; restore it, or start with --adopt to continue with empty partitions"
            )
        for log in missing:
            logger.error("topic %s partition %d has no log: made empty", record.name, log.partition)
        known.difference_update(logs)
        config = state_store.get(ConfigKey(ResourceType.TOPIC, record.name).encode())
        topics.add_recovered(key.topic_id, record, {} if config is None else Config.decode(config).entries)
    filled = [log for log in known if log_store.bounds(log).end_offset > 0]
    if filled and not len(topics) and not adopt:
        raise OperatorError(
            f"there is no topic in the state, but {len(filled)} logs hold records: the state store was "
            "removed, damaged, or belongs to "
            "another engine (--state-storage); restore it, or start with --adopt to leave those logs alone "
            "and start without topics"
        )
    _look_at_orphans(known, set(filled), log_store)
    _note_transactional_logs(topics, state_store)
    _begin_life(topics, state_store)
    warn_of_flushes(topics, durability)


def _note_transactional_logs(topics: Topics, state_store: StateStore) -> None:
    for key, _ in read_entries(state_store.scan(TransactionalLogKey.namespace)):
        assert isinstance(key, TransactionalLogKey)
        if (partition := topics.partition(key.topic_id, key.partition)) is not None:
            partition.has_transactions = True


def _begin_life(topics: Topics, state_store: StateStore) -> None:
    """Adapt the state of each log to a loss of records in a power cut, and note where the new
    leader epoch begins. Durable on return and before the first append: a log that has grown again
    hides what it had lost.
    """
    changes: list[Change] = []
    # One snapshot for all partitions: many small reads would take longer.
    with state_store.snapshot() as found:
        for partition in topics.partitions():
            changes += _first_changes(partition, found)
    if changes:
        state_store.write(changes)
        state_store.sync()


def _first_changes(partition: Partition, found: StateReader) -> list[Change]:
    """The changes of a start to the stored state of one log; updates `partition.epochs`.

    A log start beyond the log's end would remove the next appends. Epochs without records are
    dropped, so that restarts without writes add nothing.
    """
    log, end_offset = partition.log, partition.high_watermark
    changes = unusable_snapshots(partition, found)
    start_key = LogStartKey(log.topic_id, log.partition).encode()
    stored = found.get(start_key)
    if stored is not None and (lost := LogStart.decode(stored).offset) > end_offset:
        logger.warning(
            "%s-%d ends at %d, before its log start %d: records were lost, and it starts at its end",
            partition.topic_name, log.partition, end_offset, lost,
        )  # fmt: skip
        changes.append((start_key, LogStart(end_offset).encode()))
    ended = [entry for entry in partition.epochs.entries if entry.start_offset >= end_offset]
    changes += [(LeaderEpochKey(log.topic_id, log.partition, entry.epoch).encode(), None) for entry in ended]
    changes.append(
        (
            LeaderEpochKey(log.topic_id, log.partition, partition.leader_epoch).encode(),
            LeaderEpoch(end_offset).encode(),
        )
    )
    kept = [entry for entry in partition.epochs.entries if entry.start_offset < end_offset]
    partition.epochs.entries = [*kept, EpochEntry(partition.leader_epoch, end_offset)]
    return changes


def _finish_deletion(key: TopicKey, record: Topic, log_store: LogStore, state_store: StateStore) -> None:
    logger.info("finishing the deletion of topic %s, id %s", record.name, key.topic_id)
    for index in range(record.partitions):
        log_store.drop(LogId(key.topic_id, index))
    state_store.write(removal_of(state_store, key.topic_id, record.partitions))
    state_store.sync()


def _look_at_orphans(orphans: Iterable[LogId], filled: Container[LogId], log_store: LogStore) -> None:
    for log in orphans:
        if log in filled:
            logger.error(
                "log %s-%d belongs to no topic and holds records: left alone", log.topic_id, log.partition
            )
        else:
            logger.info("log %s-%d belongs to no topic and is empty: removed", log.topic_id, log.partition)
            log_store.drop(log)
