"""The composition root: the only place that knows every part of the broker and puts them together.

`open_broker` opens the data directory and the stores, recovers, starts the background tasks and
yields the `Broker`. On exit it stops everything in an order that loses nothing: the background
tasks, the saving of remaining state, the committers, the stores, the directory's lock. The server
must have ended all requests before.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import trio

from kbroker import plugins
from kbroker.broker.client_telemetry import ClientTelemetry
from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import Deadlines, DeadlinesStatistics, now_ms
from kbroker.broker.commits.group_commit import GroupCommit, GroupCommitStatistics
from kbroker.broker.commits.process import prepare_process, settle_memory
from kbroker.broker.commits.session_clock import SessionClock
from kbroker.broker.commits.store_errors import close, starting
from kbroker.broker.compaction.cleaner import LogCleaner, LogCleanerStatistics, Stores
from kbroker.broker.configs import Configs, ConfigsStatistics
from kbroker.broker.connection import ClientConnection
from kbroker.broker.groups.consumer_groups import ConsumerGroupService, ConsumerGroupServiceStatistics
from kbroker.broker.groups.runner import DecisionRunner
from kbroker.broker.groups.share_groups import ShareGroupService, ShareGroupServiceStatistics
from kbroker.broker.logs.append_queues import AppendQueues
from kbroker.broker.logs.disk_floor import DiskFloor
from kbroker.broker.logs.fetch_sessions import FetchSessions, FetchSessionsStatistics
from kbroker.broker.logs.missing_topics import MissingTopics, MissingTopicsStatistics
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.producer_ids import ProducerIdSource, ProducerIdsStatistics
from kbroker.broker.logs.producer_snapshots import ProducerSnapshots
from kbroker.broker.logs.recovery import load_topics, note_clean_end, note_persister, raise_generation
from kbroker.broker.logs.removed_records import RemovedRecords
from kbroker.broker.logs.retention import run_retention
from kbroker.broker.logs.space_reserve import SpaceReserve
from kbroker.broker.logs.topics import NOT_WITH_OWN_RECORDS, Topics, TopicsStatistics
from kbroker.broker.options import StartOptions
from kbroker.broker.persisters.housekeeping import StateHousekeeping, StateHousekeepingStatistics
from kbroker.broker.persisters.local import CountsShareState, LocalPersister, PersisterContext, parking_store
from kbroker.broker.persisters.parked_cleaner import ParkedCleaner, ParkedCleanerStatistics
from kbroker.broker.queues.acquiring import ShareFetchContext
from kbroker.broker.queues.dead_letter_writer import DeadLetterWriter
from kbroker.broker.queues.dead_letters import DeadLetters, DeadLettersStatistics
from kbroker.broker.queues.held_logs import HeldLogs
from kbroker.broker.queues.kept_records import KeptRecords, KeptRecordsStatistics
from kbroker.broker.queues.opened_batches import OpenedBatches, OpenedBatchesStatistics
from kbroker.broker.queues.share_partitions import SharePartitions, SharePartitionsStatistics
from kbroker.broker.queues.unattended import Unattended
from kbroker.broker.security.acls import Acls, AclsStatistics
from kbroker.broker.security.credentials import Credentials
from kbroker.broker.security.quotas import Quotas, QuotasStatistics
from kbroker.broker.security.seen_topics import SeenTopics
from kbroker.broker.security.service import Security, SecurityStatistics
from kbroker.broker.transactions.ending import TransactionEnding
from kbroker.broker.transactions.markers import Markers
from kbroker.broker.transactions.recovery import recover
from kbroker.broker.transactions.saving import TransactionSaving
from kbroker.broker.transactions.service import TransactionService, transaction_settings
from kbroker.clock import wall_clock_ms
from kbroker.groups.classic import coordinator as classic_group
from kbroker.groups.consumer import coordinator as consumer_group
from kbroker.groups.consumer.messages import IterableTopicsView
from kbroker.groups.ids import GroupIds
from kbroker.groups.offsets.committed import Offsets
from kbroker.groups.outcome import Coordinator
from kbroker.groups.routing import Groups
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.metrics import BrokerMetrics
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import Persister, TopicPartition, adapted_persister
from kbroker.share.session import ShareSessionsStatistics
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.share_state.states import ShareStateStatistics
from kbroker.storage.data_dir import COMPACTION_FORMAT, SECURITY_FORMAT, TRANSACTIONS_FORMAT, DataDirectory
from kbroker.storage.spi import Change, LogStore, StampedBatch, StateStore
from kbroker.transactions.coordinator import Transactions, TransactionsStatistics

C = TypeVar("C", bound=Coordinator)


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """The statistics of every part that holds state. Partitions and engines have their own
    `statistics()`."""

    topics: TopicsStatistics
    missing_topics: MissingTopicsStatistics
    log_commits: GroupCommitStatistics
    state_commits: GroupCommitStatistics
    configs: ConfigsStatistics
    acls: AclsStatistics
    quotas: QuotasStatistics
    producer_ids: ProducerIdsStatistics
    transactions: TransactionsStatistics
    deadlines: DeadlinesStatistics
    fetch_sessions: FetchSessionsStatistics
    share_partitions: SharePartitionsStatistics
    share_sessions: ShareSessionsStatistics
    opened_batches: OpenedBatchesStatistics
    share_state: ShareStateStatistics
    state_housekeeping: StateHousekeepingStatistics
    parked_cleaner: ParkedCleanerStatistics
    kept_records: KeptRecordsStatistics
    log_cleaner: LogCleanerStatistics
    dead_letters: DeadLettersStatistics
    share_group_service: ShareGroupServiceStatistics
    consumer_group_service: ConsumerGroupServiceStatistics
    security: SecurityStatistics


class Broker:
    """A running broker. `host` and `port`: the address for clients (but see Request.advertised)."""

    closing = False

    def __init__(
        self,
        options: StartOptions,
        directory: DataDirectory,
        generation: int,
        log_store: LogStore,
        state_store: StateStore,
    ) -> None:
        self.options = options
        self.config: BrokerConfig = options.config
        self.directory = directory
        self.cluster_id, self.node_id = directory.cluster_id, directory.description.node_id
        self.generation = generation
        self.host, self.port = options.advertise or options.listen
        self.metrics = BrokerMetrics()
        self.background = Background()
        self.deadlines = Deadlines()
        self.client_telemetry = ClientTelemetry(now_ms)
        # logs
        self.log_store = log_store
        self.state_store = state_store
        self.log_commits: GroupCommit[StampedBatch] = self._commits("log", self._write_log, log_store)
        self.state_commits: GroupCommit[Change] = self._commits("state", state_store.write, state_store)
        least_bytes = self.config["kbroker.disk.min.free.bytes"]
        self.disk_floor = DiskFloor(options.data_dir, least_bytes, log_store, state_store)
        self.topics = self._topics()
        self.missing_topics = MissingTopics(self.topics, self.config)
        self.append_queues = AppendQueues(self.background)
        self.fetch_sessions = FetchSessions(self.config["max.incremental.fetch.session.cache.slots"])
        self.producer_ids = ProducerIdSource(state_store, self.state_commits)
        raise_format = partial(directory.raise_format, SECURITY_FORMAT)
        self.acls = Acls(self.config, state_store, self.state_commits, raise_format)
        self.quotas = Quotas(self.config, state_store, self.state_commits, self.metrics.quotas)
        commits = self.log_commits, self.state_commits
        self.producer_snapshots = ProducerSnapshots(self.topics, self.config, state_store, *commits)
        # share state
        self.share_state = self._local_persister()
        persister = self.persister = self._persister()
        self.topics.log_start_watchers.append(self._before_log_start_moves)
        self.state_counts = persister if isinstance(persister, CountsShareState) else self.share_state
        self.state_housekeeping, self.parked_cleaner = self._house_keepers()
        # queues and groups
        self.configs = self._configs()
        self.configs.group_watchers.append(self._group_settings_changed)
        self.group_ids = GroupIds()
        clock = SessionClock()
        coordinator = ShareGroupCoordinator(self.configs.group_settings, self.group_ids, times=clock.times)
        self.share_partitions = self._share_partitions(coordinator, clock)
        self.opened_batches = OpenedBatches(self.config["kbroker.queue.cache.bytes"])
        self.share_fetches = ShareFetchContext(
            self.share_partitions, self.topics, self.opened_batches, self.metrics.share_fetch
        )
        self.dead_letters = self._dead_letters()
        self.unattended = Unattended(self.share_partitions, coordinator.group_ids, coordinator.partitions_of)
        self.held_logs, self.kept_records = self._held_and_kept(coordinator)
        self.share_group_service = self._share_group_service(coordinator, clock)
        self.log_cleaner = self._log_cleaner()
        self.consumer_group_service = self._consumer_group_service(clock)
        self.transactions = self._transactions()
        self.security = self._security()

    # -- the parts
    # ----------------------------------------------------------------------------------------------

    def _commits(
        self, name: str, write: Callable[[list[Any]], None], store: LogStore | StateStore
    ) -> GroupCommit[Any]:
        return GroupCommit(
            name,
            write,
            store.sync,
            in_thread=store.write_in_thread,
            beside_sync=store.write_beside_sync,
            waits=store.write_waits if isinstance(store, LogStore) else None,
            durability=self.options.durability,
            sync_interval_s=self.config["kbroker.sync.interval.ms"] / 1000,
        )

    def _write_log(self, batches: list[StampedBatch]) -> None:
        self.log_store.write(batches, now_ms=wall_clock_ms())

    def _topics(self) -> Topics:
        return Topics(
            self.config,
            self.log_store,
            self.state_store,
            self.log_commits,
            self.state_commits,
            leader_epoch=self.generation,
            reserve=SpaceReserve(self.options.data_dir),
            queue_segment_bytes=self.disk_floor.segment_bytes,
        )

    def _log_cleaner(self) -> LogCleaner:
        stores = Stores(self.log_store, self.state_store, self.log_commits, self.state_commits)
        holders = self.held_logs.holders
        raise_format = partial(self.directory.raise_format, COMPACTION_FORMAT)
        return LogCleaner(self.topics, self.config, stores, self.disk_floor, holders, raise_format)

    def _transactions(self) -> TransactionService:
        coordinator = Transactions(partial(transaction_settings, self.config), self.producer_ids.next)
        raise_format = partial(self.directory.raise_format, TRANSACTIONS_FORMAT)
        saving = TransactionSaving(coordinator, self.state_commits, raise_format)
        ending = TransactionEnding(
            coordinator,
            saving,
            Markers(self.topics, self.generation, self.log_commits.start),
            self.consumer_group_service.end_transaction,
            self.topics,
            self.log_commits,
            self.background,
        )
        return TransactionService(self.config, coordinator, self.producer_ids, saving, ending)

    def _security(self) -> Security:
        raise_format = partial(self.directory.raise_format, SECURITY_FORMAT)
        return Security(Credentials(self.state_store, self.state_commits, raise_format), self.metrics.sasl)

    def _local_persister(self) -> LocalPersister:
        coordinator = ShareStateCoordinator(
            self.state_store.scan,
            lambda topic_id, index: self.topics.partition(topic_id, index) is not None,
            updates_per_snapshot=self.config["share.coordinator.snapshot.update.records.per.snapshot"],
            parking=parking_store(self.state_store, self.generation),
            on_generation_ended=self._generation_ended,
        )
        return LocalPersister(coordinator, self.state_commits, self.state_store)

    def _generation_ended(self, key: SharePartitionKey, generation: int) -> None:
        self.parked_cleaner.ended(key, generation)

    def _persister(self) -> Persister:
        stores = self.log_commits, self.state_commits, self.state_store
        context = PersisterContext(
            self.share_state, self.config, self.topics, *stores, self.generation, self._generation_ended
        )
        name = self.config["kbroker.persister"]
        persister = plugins.opening(plugins.persister_factory(name), adapted_persister)(context)
        if persister.own_records is not None:
            self.topics.refuse_compaction(NOT_WITH_OWN_RECORDS.format(name))
        return persister

    async def _before_log_start_moves(self, partition: Partition, offset: int, _: str) -> None:
        own = self.persister.own_records
        if own is not None and not partition.deleted:
            await own.before_log_start_moves(TopicPartition(*partition.log), offset)

    def _house_keepers(self) -> tuple[StateHousekeeping, ParkedCleaner]:
        cold_ms = self.config["share.coordinator.cold.partition.snapshot.interval.ms"]
        own, rows, store = self.persister.own_records, self.persister.waiting_rows, self.state_store
        return (
            StateHousekeeping(self.share_state, store, self.topics, interval_ms=cold_ms, own=own),
            ParkedCleaner(rows, store, self.state_commits, interval_s=cold_ms / 1000),
        )

    def _configs(self) -> Configs:
        parks = self.persister.waiting_rows is not None
        return Configs(self.config, self.state_store, self.state_commits, parks_records=parks)

    def _group_settings_changed(self, group_id: str | None) -> None:
        self.share_partitions.settings_changed(group_id)
        self.share_group_service.settings_changed(group_id)
        if group_id is not None:
            self.unattended.look(group_id)

    def _share_partitions(self, coordinator: ShareGroupCoordinator, clock: SessionClock) -> SharePartitions:
        return SharePartitions(
            self.topics,
            self.persister,
            self.deadlines,
            self.background,
            self.configs,
            flush=self.state_commits.flush,
            member_lives_ms=lambda group_id, member_id: coordinator.session_left_ms(
                group_id, member_id, now_ms=clock.now_ms()
            ),
        )

    def _dead_letters(self) -> DeadLetters:
        return DeadLetters(
            self.topics,
            self.configs,
            self.share_partitions,
            self.persister,
            DeadLetterWriter(self.topics, self.config, self.disk_floor, self.missing_topics.creation),
            self.state_commits,
            self.background,
        )

    def _held_and_kept(self, coordinator: ShareGroupCoordinator) -> tuple[HeldLogs, KeptRecords]:
        topics, persister, share_partitions = self.topics, self.persister, self.share_partitions
        removed = RemovedRecords(persister, share_partitions, coordinator.groups_of)
        topics.log_start_watchers.append(removed.before_removal)
        commits = (self.state_commits, self.log_commits)
        held = HeldLogs(persister, commits, coordinator.groups_of, self.configs.reset_policy)
        return held, KeptRecords(
            persister, share_partitions, held, topics, (self.log_commits,), removed.report, self.disk_floor
        )

    def _share_group_service(
        self, coordinator: ShareGroupCoordinator, clock: SessionClock
    ) -> ShareGroupService:
        return ShareGroupService(
            self._runner(coordinator, clock),
            self.topics,
            self.persister,
            self.share_partitions,
            self.configs,
            self.kept_records.before_reset,
            self.unattended.look,
        )

    def _consumer_group_service(self, clock: SessionClock) -> ConsumerGroupService:
        assignors = plugins.consumer_assignors(self.config["group.consumer.assignors"])
        configs, ids, times = self.configs, self.group_ids, clock.times
        topics: IterableTopicsView = self.topics
        if self.acls.has_authorizer:
            topics = SeenTopics(topics, self.acls)
        groups = Groups(
            classic_group.ClassicGroups(configs.classic_group_settings, ids, _new_id, times),
            consumer_group.ConsumerGroups(
                configs.consumer_group_settings, ids, topics, assignors, _new_short_id, times
            ),
            Offsets(configs.offsets_settings, times),
            ids,
            self.topics,
        )
        expiry_interval_s = self.config["offsets.retention.check.interval.ms"] / 1000
        runner = self._runner(groups, clock)
        return ConsumerGroupService(runner, configs, expiry_interval_s=expiry_interval_s)

    def _runner(self, coordinator: C, clock: SessionClock) -> DecisionRunner[C]:
        stores = self.topics, self.state_store, self.state_commits
        return DecisionRunner(coordinator, *stores, clock, self.background)

    def statistics(self) -> BrokerStatistics:
        return BrokerStatistics(
            topics=self.topics.statistics(),
            missing_topics=self.missing_topics.statistics(),
            log_commits=self.log_commits.statistics(),
            state_commits=self.state_commits.statistics(),
            configs=self.configs.statistics(),
            acls=self.acls.statistics(),
            quotas=self.quotas.statistics(),
            producer_ids=self.producer_ids.statistics(),
            transactions=self.transactions.statistics(),
            deadlines=self.deadlines.statistics(),
            fetch_sessions=self.fetch_sessions.statistics(),
            share_partitions=self.share_partitions.statistics(),
            share_sessions=self.share_partitions.sessions.statistics(),
            opened_batches=self.opened_batches.statistics(),
            share_state=self.state_counts.statistics(),
            state_housekeeping=self.state_housekeeping.statistics(),
            parked_cleaner=self.parked_cleaner.statistics(),
            kept_records=self.kept_records.statistics(),
            log_cleaner=self.log_cleaner.statistics(),
            dead_letters=self.dead_letters.statistics(),
            share_group_service=self.share_group_service.statistics(),
            consumer_group_service=self.consumer_group_service.statistics(),
            security=self.security.statistics(),
        )

    def connection_closed(self, connection: ClientConnection) -> None:
        """Release the records that the client held, and write the batches that it sent without
        waiting for an answer."""
        self.log_commits.start()
        self.share_partitions.connection_closed(connection.id)
        self.fetch_sessions.connection_closed(connection.id)

    def start_closing(self) -> None:
        """Have waiting requests answered at once, with the records found so far."""
        self.closing = True
        for partition in self.topics.partitions():
            partition.waiters.wake_all()
        self.share_partitions.start_closing()
        self.consumer_group_service.refuse_waiting()


def _new_id() -> str:
    return str(uuid4())


def _new_short_id() -> str:
    """A UUID in the form that Kafka uses for consumer groups: base64 for URLs, without padding."""
    return urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()


@asynccontextmanager
async def open_broker(options: StartOptions) -> AsyncIterator[Broker]:
    """A broker that has recovered and is ready to serve; on exit it is closed, with everything
    synced. Raises OperatorError."""
    prepare_process()
    # All plugins must exist before the directory is created, which records its engines permanently.
    log_stores = plugins.log_store_factory(options.storage)
    state_stores = plugins.state_store_factory(options.state_storage)
    plugins.persister_factory(options.config["kbroker.persister"])
    plugins.consumer_assignors(options.config["group.consumer.assignors"])
    plugins.authorizer_factory(options.config["authorizer.class.name"])
    with DataDirectory.open(options.data_dir, *options.engines, **options.of_directory) as directory:
        options.config.is_node(directory.description.node_id)
        # A killed broker leaves its reserve behind, and starting may need the room.
        SpaceReserve(options.data_dir).give_up()
        with starting(options.data_dir):
            state_store = state_stores.open(directory.state_path, {}, 0)
        try:
            with starting(options.data_dir):
                log_store = log_stores.open(directory.log_path, {}, 0)
            try:
                with starting(options.data_dir):
                    broker = _recover(options, directory, log_store, state_store)
                broker.topics.reserve.take(from_little=True)
                try:
                    async with _running(broker):
                        yield broker
                finally:
                    broker.topics.reserve.give_up()
            finally:
                close(log_store)
        finally:
            close(state_store)


def _recover(
    options: StartOptions, directory: DataDirectory, log_store: LogStore, state_store: StateStore
) -> Broker:
    note_persister(state_store, options.config["kbroker.persister"])
    generation, has_lost = raise_generation(state_store, unsynced=options.durability == "os")
    broker = Broker(options, directory, generation, log_store, state_store)
    broker.configs.load()
    broker.security.credentials.load()
    broker.acls.load()
    broker.quotas.load()
    load_topics(broker.topics, log_store, state_store, adopt=options.adopt, durability=options.durability)
    broker.share_group_service.load(state_store)
    broker.consumer_group_service.load(state_store)
    broker.dead_letters.load(state_store)
    offsets = broker.consumer_group_service.groups.offsets
    recover(broker.transactions, state_store, broker.topics, offsets.pending, has_lost=has_lost)
    return broker


@asynccontextmanager
async def _running(broker: Broker) -> AsyncIterator[None]:
    async with trio.open_nursery() as committers:
        for commits in (broker.log_commits, broker.state_commits):
            committers.start_soon(_shielded, commits.run)
        try:
            async with broker.background.running():
                interval_ms = broker.config["log.retention.check.interval.ms"]
                start = broker.background.start
                start(run_retention, broker.topics, interval_ms, broker.held_logs, broker.kept_records)
                start(broker.log_cleaner.run)
                start(broker.producer_snapshots.run)
                start(broker.transactions.run)
                start(broker.deadlines.run)
                start(broker.disk_floor.run)
                start(broker.state_housekeeping.run)
                start(broker.parked_cleaner.run)
                start(broker.unattended.run)
                settle_memory()
                yield
            await broker.persister.aclose()
            await broker.producer_snapshots.save(least_bytes=1, may_replay=False)
            await note_clean_end(broker.state_store, broker.log_commits, broker.state_commits)
        finally:
            broker.log_commits.close()
            broker.state_commits.close()


async def _shielded(run: Callable[[], object]) -> None:
    with trio.CancelScope(shield=True):
        await run()  # type: ignore[misc]
