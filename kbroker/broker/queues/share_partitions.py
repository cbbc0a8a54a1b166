"""The share-partitions that this broker leads: loading them, carrying out their effects, waking
whoever waits for them.

The engine (kbroker.share.share_partition) decides; here its Persist effects go through the
Persister, its deadlines into the broker's heap, and its answers to the API handlers. A
share-partition is loaded at first use and kept until it is fenced, its group or its topic is
deleted, or the last session of its group has ended, as in Kafka; but where Kafka drops it at once,
here it stays until nobody holds a record of it and everything is saved.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import Deadlines, now_ms
from kbroker.broker.commits.waiting import Waiter, Waiters
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.expiry import Expiry
from kbroker.broker.queues.loading import load_share_partition
from kbroker.broker.queues.lock_reports import LockReports
from kbroker.broker.queues.parked_reading import ParkedReading
from kbroker.broker.queues.scanner import Scanner
from kbroker.broker.queues.sliced_batches import TakenRecords
from kbroker.broker.queues.turns import Turns
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metrics import ShareGroupMetrics
from kbroker.share.effects import AckBatch, Persist, ShareSettings
from kbroker.share.held import HeldRecords
from kbroker.share.persister import Persister, Result, TopicPartition, WriteRequest
from kbroker.share.session import ShareSession, ShareSessions
from kbroker.share.share_partition import SharePartition
from kbroker.share.share_queries import RanOut

logger = logging.getLogger(__name__)

PERSISTER_CODES = {
    ErrorCode.not_coordinator: ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_not_available: ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress: ErrorCode.coordinator_not_available,
    ErrorCode.group_id_not_found: ErrorCode.group_id_not_found,
    ErrorCode.unknown_topic_or_partition: ErrorCode.unknown_topic_or_partition,
    ErrorCode.fenced_leader_epoch: ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_state_epoch: ErrorCode.not_leader_or_follower,
}
"""What a share client is told for a persister's code; anything else is UNKNOWN_SERVER_ERROR."""

FENCING_CODES = frozenset(
    {ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.group_id_not_found}
)
"""After these the share-partition is loaded anew: somebody else changed its state."""

Key: TypeAlias = tuple[str, TopicPartition]


def client_error(code: ErrorCode, message: str | None = None) -> KafkaError:
    return KafkaError(PERSISTER_CODES.get(code, ErrorCode.unknown_server_error), message)


class LoadedSharePartition:
    """A share-partition in this broker's memory. `engine` is None while it loads; `error` says why
    it could not be; `retiring`: its group has no sessions, so that it goes when it is settled."""

    __slots__ = (
        "__weakref__", "engine", "error", "gone", "is_parked_turn", "key", "metrics", "partition", "records", "retiring",
        "scanner", "scheduled_ms", "settled", "to_save", "turns", "waiters",
    )  # fmt: skip

    def __init__(self, key: Key, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.engine: SharePartition | None = None
        self.metrics: ShareGroupMetrics | None = None
        self.error: KafkaError | None = None
        self.gone = False
        self.retiring = False
        self.waiters = Waiters()
        self.turns = Turns(self)
        self.records = TakenRecords()
        self.scanner: Waiter | None = None
        """Of the task that looks at records ahead of the members (scanner.py)."""
        self.is_parked_turn = True
        """Where both are there, members are given parked records and others in turn."""
        self.scheduled_ms = float("inf")
        self.to_save: list[Persist] = []
        """What nobody waits for and no write has taken along yet."""
        self.settled = Waiters()
        """Wait for the end of any write, or for the share-partition to leave the memory."""


class DeadLetterHooks(Protocol):
    """What is told to whoever writes dead letters (dead_letters.py), always in the step in which it
    happens."""

    def before_save(self, loaded: LoadedSharePartition) -> None: ...
    def wake(self, loaded: LoadedSharePartition) -> None: ...
    def loaded(self, loaded: LoadedSharePartition) -> None: ...
    def forget_group(self, group_id: str) -> None: ...
    def forget_topic(self, topic: Sequence[Partition]) -> None: ...


class _NoDeadLetters:
    """Without a broker around them."""

    def before_save(self, loaded: LoadedSharePartition) -> None: ...
    def wake(self, loaded: LoadedSharePartition) -> None: ...
    def loaded(self, loaded: LoadedSharePartition) -> None: ...
    def forget_group(self, group_id: str) -> None: ...
    def forget_topic(self, topic: Sequence[Partition]) -> None: ...


_Save: TypeAlias = tuple[LoadedSharePartition, Persist]


@dataclass(frozen=True, slots=True)
class SharePartitionsStatistics:
    share_partitions: int
    sessions: int
    in_flight: int


class SharePartitions:
    """`settings(group_id)` and `reset_policy(group_id)` give the group's effective configs.
    `longest_lock_ms()`: the broker's bound of lock durations. `flush` syncs the state store."""

    def __init__(
        self,
        topics: Topics,
        persister: Persister,
        deadlines: Deadlines,
        background: Background,
        *,
        max_sessions: int,
        settings: Callable[[str], ShareSettings],
        reset_policy: Callable[[str], str],
        longest_lock_ms: Callable[[], int],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._persister = persister
        self._shields_writes = not getattr(persister, "writes_to_the_end", False)
        self._deadlines = deadlines
        self._start = background.start
        self.settings = settings
        self._reset_policy = reset_policy
        self._lock_reports = LockReports(settings, longest_lock_ms)
        self._start(self._lock_reports.run)
        self.longest_lock_ms = longest_lock_ms
        self.parked = ParkedReading(persister, self, self._start)
        self.scanner = Scanner(self, persister, self._start, flush)
        self.expiry = Expiry(self.save_later, self.parked.record_of)
        self._loaded: dict[Key, LoadedSharePartition] = {}
        self._groups: dict[str, dict[TopicPartition, LoadedSharePartition]] = {}
        self.dead_letters: DeadLetterHooks = _NoDeadLetters()
        self.member_lives_ms: Callable[[str, str], float] = lambda *_: 0
        """For how long a member of a group keeps its membership if it sends no heartbeat from now
        on."""
        self.held: dict[str, HeldRecords] = {}
        """Of groups with a prefetch limit that have a share-partition in memory: what their members
        hold."""
        self.unusual: dict[str, ShareSettings] = {}
        """Of groups that are paused or have priorities, and a share-partition in memory. Others
        need not be asked at each fetch."""
        self._is_closing = False
        self.metrics: dict[str, ShareGroupMetrics] = {}
        """Of groups that had a share-partition in memory, or lost records; nobody else can make an
        entry."""
        self.sessions = ShareSessions(
            max_sessions, lambda group_id, partition: (group_id, partition) in self._loaded
        )

    def statistics(self) -> SharePartitionsStatistics:
        engines = [loaded.engine for loaded in self._loaded.values() if loaded.engine is not None]
        in_flight = sum(engine.statistics().in_flight for engine in engines)
        return SharePartitionsStatistics(len(self._loaded), self.sessions.statistics().sessions, in_flight)

    # -- share-partitions
    # ---------------------------------------------------------------------------------------------

    def find(self, group_id: str, partition: TopicPartition) -> LoadedSharePartition | None:
        return self._loaded.get((group_id, partition))

    def find_or_load(self, group_id: str, partition: TopicPartition) -> LoadedSharePartition:
        """The share-partition, perhaps still loading (look at `engine` and `error` after its
        waiters were woken).

        Raises UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION."""
        loaded = self._loaded.get((group_id, partition))
        if loaded is not None:
            loaded.retiring = False
            return loaded
        topic = self._topics.by_id(partition.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        if not 0 <= partition.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        loaded = LoadedSharePartition((group_id, partition), topic.partitions[partition.partition])
        self._loaded[loaded.key] = self._groups.setdefault(group_id, {})[partition] = loaded
        self._start(self._load, loaded)
        return loaded

    async def _load(self, loaded: LoadedSharePartition) -> None:
        group_id, (topic_id, index) = loaded.key
        began = trio.current_time()
        try:
            engine, waiting, kept_from = await load_share_partition(
                self._persister,
                group_id,
                loaded.partition,
                self.settings(group_id),
                lambda: self._reset_policy(group_id),
                lambda: loaded.gone,
            )
        except KafkaError as error:
            self._not_loaded(
                loaded,
                error
                if error.code is ErrorCode.offset_not_available
                else client_error(error.code, error.message),
            )
            return
        except Exception as error:
            # A batch or a state that cannot be read concerns this queue alone; raised from here it
            # would end the broker.
            logger.exception("share-partition %s:%s-%d cannot be loaded", group_id, topic_id, index)
            self._not_loaded(loaded, client_error(ErrorCode.unknown_server_error, str(error)))
            return
        if not loaded.gone:
            engine.settings = self.settings(group_id)  # They may have been altered while the state was read.
            loaded.engine = engine
            self.parked.prepare(engine, waiting, engine.settings, kept_from=kept_from)
            self._count_held(group_id, engine)
            self._note_unusual(group_id)
            loaded.metrics = self.metrics.setdefault(group_id, ShareGroupMetrics())
            loaded.metrics.load_seconds.observe(trio.current_time() - began)
            loaded.waiters.wake_all()
            self.dead_letters.loaded(loaded)
            self.parked.see_to(loaded)
            self.scanner.see_to(loaded)
            self.retire(loaded)

    def _not_loaded(self, loaded: LoadedSharePartition, error: KafkaError) -> None:
        if not loaded.gone:  # Else whoever waited for it loads it anew, and hears what comes of that.
            loaded.error = error
            self._forget(loaded)

    def _count_held(self, group_id: str, engine: SharePartition) -> None:
        """As the group's settings are now."""
        if engine.settings.prefetch:
            engine.count_held(self.held.setdefault(group_id, HeldRecords()))
        elif group_id in self.held:
            engine.count_held(None)

    def groups_of(self, partition: TopicPartition) -> list[str]:
        """Groups that have it in memory."""
        return [group_id for group_id, partitions in self._groups.items() if partition in partitions]

    async def load(self, group_id: str, partition: TopicPartition) -> LoadedSharePartition:
        """As find_or_load, waiting until it is loaded. Raises KafkaError where it cannot be, or is
        forgotten meanwhile."""
        loaded = self.find_or_load(group_id, partition)
        waiter = Waiter()
        loaded.waiters.add(waiter)
        try:
            while loaded.engine is None and not loaded.gone:
                await waiter.wait()
                waiter.rearm()
        finally:
            loaded.waiters.discard(waiter)
        if loaded.engine is None:
            raise loaded.error or KafkaError(ErrorCode.unknown_topic_or_partition)
        return loaded

    def _forget(self, loaded: LoadedSharePartition) -> None:
        """Out of memory: the next fetch loads it anew from what was saved."""
        group_id, partition = loaded.key
        if self._loaded.get(loaded.key) is loaded:
            if loaded.engine is not None and loaded.metrics is not None:
                loaded.metrics.keep(loaded.key[1], loaded.engine.statistics())
            if loaded.engine is not None and group_id in self.held:
                loaded.engine.count_held(None)
            del self._loaded[loaded.key]
            group = self._groups[group_id]
            del group[partition]
            if not group:
                del self._groups[group_id]
                self.held.pop(group_id, None)
                self.unusual.pop(group_id, None)
        loaded.gone = True
        loaded.waiters.wake_all()
        loaded.settled.wake_all()
        if loaded.scanner is not None:
            loaded.scanner.wake()

    def forget(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Their state was altered or deleted: fetches that wait, and those to come, load it anew;
        what members hold is not theirs any more. What was to be saved of it and was not handed to
        the Persister yet is never saved."""
        for partition in partitions:
            loaded = self._loaded.get((group_id, partition))
            if loaded is not None:
                self._forget(loaded)

    def forget_group(self, group_id: str) -> None:
        for loaded in list(self._groups.get(group_id, {}).values()):
            self._forget(loaded)
        self.dead_letters.forget_group(group_id)
        self.metrics.pop(group_id, None)

    def _session_ended(self, group_id: str) -> None:
        if self.sessions.has_group(group_id):
            return
        for loaded in list(self._groups.get(group_id, {}).values()):
            loaded.retiring = True
            self.retire(loaded)

    def retire_unless_used(self, loaded: LoadedSharePartition) -> None:
        """It was loaded without a client (dead letters of a broker life before)."""
        loaded.retiring = loaded.retiring or not self.sessions.has_group(loaded.key[0])
        self.retire(loaded)

    def retire(self, loaded: LoadedSharePartition) -> None:
        """Forget it if its group has no sessions and does not work alone, it is settled, and no
        fetch waits for it."""
        engine = loaded.engine
        if not loaded.retiring or loaded.gone or engine is None or engine.settings.works_alone:
            return
        if engine.is_settled and not loaded.waiters:
            self._forget(loaded)

    def forget_topic(self, topic: Sequence[Partition]) -> None:
        logs = {(partition.log.topic_id, partition.log.partition) for partition in topic}
        for loaded in [each for (_, partition), each in self._loaded.items() if tuple(partition) in logs]:
            self._forget(loaded)
        for metrics in self.metrics.values():
            metrics.forget(logs)
        self.dead_letters.forget_topic(topic)

    def settings_changed(self, group_id: str | None = None) -> None:
        """Configs of one group, or of the broker (None), were altered: new locks and fetches go by
        the new ones."""
        for (group, _), loaded in self._loaded.items():
            if loaded.engine is not None and group_id in (None, group):
                counted, loaded.engine.settings = loaded.engine.settings.prefetch > 0, self.settings(group)
                self.parked.prepare(loaded.engine, 0, loaded.engine.settings)
                self.scanner.see_to(loaded)
                if counted != (loaded.engine.settings.prefetch > 0):
                    self._count_held(group, loaded.engine)
                loaded.waiters.wake_all()
        for loaded in [
            each
            for each in self._loaded.values()
            if each.engine is not None and group_id in (None, each.key[0])
        ]:
            self.retire(loaded)  # It may have worked alone until now.
        for group in [group for group in self.held if not self.settings(group).prefetch]:
            del self.held[group]
        for group in self._groups if group_id is None else (group_id,):
            self._note_unusual(group)

    def _note_unusual(self, group_id: str) -> None:
        settings = self.settings(group_id)
        if group_id in self._groups and (settings.paused or settings.priorities):
            self.unusual[group_id] = settings
        else:
            self.unusual.pop(group_id, None)

    def loaded(self) -> list[LoadedSharePartition]:
        return list(self._loaded.values())

    # -- acknowledging
    # ----------------------------------------------------------------------------------------------

    async def acknowledge(
        self, group_id: str, member_id: str, batches: Sequence[tuple[TopicPartition, Sequence[AckBatch]]]
    ) -> list[KafkaError | None]:
        """For each partition: its list is taken or refused as a whole; what is taken is saved
        before this returns. The lists were checked by ack_validation."""
        results: list[KafkaError | None] = []
        saves: list[_Save] = []
        to_be_saved: list[int] = []
        now = now_ms()
        for partition, acks in batches:
            loaded = self._loaded.get((group_id, partition))
            if loaded is None or loaded.engine is None:
                results.append(
                    KafkaError(
                        ErrorCode.unknown_topic_or_partition,
                        "This server does not host this share-partition.",
                    )
                )
                continue
            try:
                persist = loaded.engine.acknowledge(member_id, acks, now_ms=now)
            except KafkaError as error:
                results.append(error)
                continue
            self.schedule(loaded)
            if persist is not None:
                saves.append((loaded, persist))
                to_be_saved.append(len(results))
            results.append(None)
        if saves:
            outcomes = await self._save(group_id, saves)
            for place, (loaded, _) in zip(to_be_saved, saves, strict=True):
                results[place] = outcomes[loaded]
        metrics = self.metrics.get(group_id)
        if metrics is not None:
            for (_, acks), refusal in zip(batches, results, strict=True):
                if refusal is None:
                    metrics.count_acknowledged(acks)
        return results

    async def _save(
        self, group_id: str, saves: Sequence[_Save]
    ) -> dict[LoadedSharePartition, KafkaError | None]:
        """Write through the Persister and make it final, or undo it. Never cancelled half-way: the
        engines wait for the outcome.

        What was to be saved later goes first: the count of a Persist includes what those before it
        did."""
        for loaded, _ in saves:
            if loaded.to_save:
                saves = [each for save in saves for each in (*_take_queued(save[0]), save)]
                break
        requests = []
        for loaded, persist in saves:
            if persist.archiving:
                self.dead_letters.before_save(loaded)
            _, start_offset, complete, batches, state_epoch, leader_epoch, parking, waiting = persist
            requests.append(
                WriteRequest(
                    loaded.key[1],
                    state_epoch,
                    leader_epoch,
                    start_offset,
                    complete,
                    batches,
                    parking,
                    waiting,
                )
            )
        try:
            write = self._write_shielded if self._shields_writes else self._persister.write
            written = await write(group_id, requests)
        except Exception:
            # Left pending, the records could neither be acknowledged nor acquired by anybody until
            # a restart.
            logger.exception("the persister failed to save share state of group %s", group_id)
            written = []
        if len(written) != len(requests):
            written = [Result(request.partition, ErrorCode.unknown_server_error) for request in requests]
        return {save[0]: self._settle(save, result) for save, result in zip(saves, written, strict=True)}

    async def _write_shielded(self, group_id: str, requests: Sequence[WriteRequest]) -> list[Result]:
        written: list[Result] = []
        with trio.CancelScope(shield=True):
            written = await self._persister.write(group_id, requests)
        return written

    def _settle(self, save: _Save, result: Result) -> KafkaError | None:
        loaded, persist = save
        engine = loaded.engine
        assert engine is not None
        error: KafkaError | None = None
        if result.code is ErrorCode.none:
            engine.persisted(persist.token)
        else:
            engine.persist_failed(persist.token, now_ms=now_ms())
            error = client_error(result.code, result.message)
            if error.code in FENCING_CODES:
                self._forget(loaded)
        if loaded.settled:
            loaded.settled.wake_all()
        # Most acknowledgements make room where nothing more lies: who waits there waits for a
        # producer.
        if loaded.waiters:
            offset, partition = engine.offset_to_acquire(), loaded.partition
            # Who fetches next finds that out, and makes room.
            is_behind = engine.start_offset < partition.log_start_offset
            is_ready = engine.key_order is not None and engine.parked_ready > 0  # One was freed with its key.
            if is_behind or is_ready or (offset is not None and offset < partition.high_watermark):
                loaded.waiters.wake_all()
        if persist.archiving:
            self.dead_letters.wake(loaded)
        if engine.parking is not None:
            self.schedule(loaded)
            self.parked.see_to(loaded)
            self.scanner.resume(loaded)
        if loaded.retiring:
            self.retire(loaded)
        return error

    async def save(self, loaded: LoadedSharePartition, persist: Persist) -> KafkaError | None:
        """Save for whoever wants to know what became of it; None: it is saved."""
        # Its state is for others to say now: after an alteration of offsets a late write would undo
        # that.
        if loaded.gone:
            return client_error(
                ErrorCode.fenced_state_epoch, "The share-partition is not in memory any more."
            )
        return (await self._save(loaded.key[0], [(loaded, persist)]))[loaded]

    # -- what happens without a client
    # ----------------------------------------------------------------------------------

    def save_later(self, loaded: LoadedSharePartition, persist: Persist | None) -> None:
        """Save in the background what nobody waits for: expired locks, released records, a moved
        log start."""
        if persist is not None:
            loaded.to_save.append(persist)
            self._start(self._save_and_report, loaded)

    async def _save_and_report(self, loaded: LoadedSharePartition) -> None:
        group_id, partition = loaded.key
        saves = _take_queued(loaded)
        if not saves or loaded.gone:
            return
        error = (await self._save(group_id, saves))[loaded]
        if error is not None and not loaded.partition.deleted:
            logger.warning(
                "state of share-partition %s:%s-%d was not saved: %s",
                group_id,
                partition.topic_id,
                partition.partition,
                error,
            )

    def parked_changed(self, loaded: LoadedSharePartition) -> None:
        """Parked records were read: some may be due, or to be dead letters; others are in the log
        no more."""
        engine = loaded.engine
        assert engine is not None
        if engine.end_waits(now_ms(), wall_clock_ms()):
            loaded.waiters.wake_all()
        if engine.has_dead_letters:
            self.dead_letters.wake(loaded)
        if engine.parking is not None and engine.parking.has_unsaved:
            self.save_later(loaded, engine.retry_unsaved())
        if engine.key_order is not None:
            self.scanner.resume(loaded)
        self.schedule(loaded)

    def schedule(self, loaded: LoadedSharePartition) -> None:
        """Records were acquired or renewed: their locks run out some time."""
        assert loaded.engine is not None
        deadline_ms = loaded.engine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < loaded.scheduled_ms:
            loaded.scheduled_ms = deadline_ms
            self._deadlines.schedule(deadline_ms, partial(self._expire, loaded, deadline_ms))

    def _expire(self, loaded: LoadedSharePartition, deadline_ms: float) -> None:
        if loaded.gone or loaded.engine is None or deadline_ms != loaded.scheduled_ms:
            # A nearer deadline took the place of this one: to schedule the next one again would
            # double it for good.
            return
        loaded.scheduled_ms = float("inf")
        engine, group_id = loaded.engine, loaded.key[0]
        before = engine.ran_out
        persist = engine.expire(now_ms(), partial(self._alive_ms, group_id))
        ran_out = engine.ran_out
        if ran_out.timeouts > before.timeouts:
            self._lock_reports.ran_out(
                group_id, RanOut(*(now - then for now, then in zip(ran_out, before, strict=True)))
            )
        self.save_later(loaded, persist)
        if engine.end_waits(now_ms(), wall_clock_ms()) or persist is not None:
            loaded.waiters.wake_all()
        if engine.key_order is not None:
            self.scanner.resume(loaded)
        self.schedule(loaded)
        self.retire(loaded)

    def _alive_ms(self, group_id: str, member_id: str) -> float:
        """For how long a holder of records is known to live: it has a share session, and sends
        heartbeats."""
        return (
            self.member_lives_ms(group_id, member_id)
            if self.sessions.get(group_id, member_id) is not None
            else 0
        )

    def release(
        self, group_id: str, member_id: str, partitions: Sequence[TopicPartition], *, delayed: bool
    ) -> None:
        """The member has let go of these share-partitions: what it holds there comes back, at once
        or after its redelivery delay."""
        for partition in partitions:
            loaded = self._loaded.get((group_id, partition))
            if loaded is None or loaded.engine is None:
                continue
            persist = loaded.engine.release_member(member_id, delayed_at_ms=now_ms() if delayed else None)
            self.save_later(loaded, persist)
            self.schedule(loaded)
            loaded.waiters.wake_all()

    def release_session(self, session: ShareSession, *, in_order: bool = False) -> None:
        """Release what the member of a session that has ended holds. `in_order`: the member said
        so, and gives its records back; else it was lost, perhaps for a record that ends every
        worker: then they wait for their redelivery."""
        self.release(*session.key, session.to_release, delayed=not in_order)
        self._session_ended(session.key.group_id)

    def close_session(self, session: ShareSession) -> None:
        """The member ends its session, unless it has a newer one by now."""
        if self.sessions.close(session):
            self.release_session(session, in_order=True)

    def connection_closed(self, connection_id: int) -> None:
        """What its members hold comes back, but for a broker that stops: their deliveries are not
        counted then."""
        for session in self.sessions.connection_closed(connection_id):
            if not self._is_closing:
                self.release_session(session)

    def start_closing(self) -> None:
        self._is_closing = True
        self.wake_all()

    def wake_all(self) -> None:
        for loaded in self._loaded.values():
            loaded.waiters.wake_all()
            loaded.turns.wake_everybody()


def _take_queued(loaded: LoadedSharePartition) -> list[_Save]:
    saves = [(loaded, persist) for persist in loaded.to_save]
    loaded.to_save.clear()
    return saves
