"""The share-partitions that this broker leads: loading them, acknowledging and releasing their
records, and forgetting them.

The engine (kbroker.share.share_partition) decides. This module passes its answers to the API
handlers, its changes to the Persister (saving.py), and its deadlines to the broker's timers.

A share-partition is loaded at first use. It stays in memory until it is fenced, its group or topic
is deleted, or the last session of its group has ended, as in Kafka. Kafka drops it at once then;
here it stays until no member holds a record of it and everything is saved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import Deadlines, now_ms
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.configs import Configs
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.expiry import Expiry
from kbroker.broker.queues.filters import filters_of
from kbroker.broker.queues.loaded import DeadLetterHooks, Key, LoadedSharePartition
from kbroker.broker.queues.loading import Load, LoadTurns
from kbroker.broker.queues.lock_reports import LockReports
from kbroker.broker.queues.parked_reading import ParkedReading
from kbroker.broker.queues.saving import Save, Saving, client_error
from kbroker.broker.queues.scanner import Scanner
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metrics import ShareGroupMetrics
from kbroker.share import archiving
from kbroker.share.effects import AckBatch, Persist
from kbroker.share.held import HeldRecords
from kbroker.share.persister import Persister, TopicPartition
from kbroker.share.reasons import SHORT_REASON_BYTES, Reason, shortened
from kbroker.share.redelivery import LOOK_AT_THE_CLOCK_MS
from kbroker.share.rejections import attached
from kbroker.share.session import ShareSession, ShareSessions
from kbroker.share.share_partition import SharePartition
from kbroker.share.statistics import RanOut

logger = logging.getLogger(__name__)

_CLOCK_STEP_MS = 100
"""A smaller step of the wall clock makes scheduled records at most so late."""


class SharePartitionsStatistics(NamedTuple):
    share_partitions: int
    sessions: int
    in_flight: int


class SharePartitions:
    """`flush` syncs the state store. `member_lives_ms(group_id, member_id)`: how long a member
    remains in its group if it sends no heartbeat from now on."""

    def __init__(
        self,
        topics: Topics,
        persister: Persister,
        deadlines: Deadlines,
        background: Background,
        configs: Configs,
        *,
        flush: Callable[[], Awaitable[None]],
        member_lives_ms: Callable[[str, str], float],
    ) -> None:
        self._topics = topics
        self._persister = persister
        self._deadlines = deadlines
        self._background = background
        self.settings = configs.share_settings
        self._reset_policy = configs.reset_policy
        self._member_lives_ms = member_lives_ms
        self._lock_reports = LockReports(configs.share_settings, configs.broker)
        background.start(self._lock_reports.run)
        background.start(watch_clock, self.loaded, self.schedule)
        self.saving = Saving(persister, background, self._forget, self._follow_up)
        self.parked = ParkedReading(
            persister, background, self.saving.must_save, self._parked_changed, self.retire
        )
        self.expiry = Expiry(self.saving.save_later, self.parked.record_of)
        self._filters_of = lru_cache(maxsize=64)(partial(filters_of, self.expiry))
        self.scanner = Scanner(persister, background, self.saving, self.expiry, self.schedule, flush)
        self._loaded: dict[Key, LoadedSharePartition] = {}
        self._load_turns = LoadTurns()
        self._groups: dict[str, dict[TopicPartition, LoadedSharePartition]] = {}
        self.held: dict[str, HeldRecords] = {}
        """The records that members hold, for groups with a prefetch limit and a share-partition in
        memory."""
        self.is_closing = False
        self.metrics: dict[str, ShareGroupMetrics] = {}
        """For groups that had a share-partition in memory, or lost records. Clients cannot add
        other entries."""
        self.sessions = ShareSessions(
            configs.max_share_sessions(), lambda group_id, partition: (group_id, partition) in self._loaded
        )

    def statistics(self) -> SharePartitionsStatistics:
        engines = [loaded.engine for loaded in self._loaded.values() if loaded.engine is not None]
        in_flight = sum(engine.statistics().in_flight for engine in engines)
        return SharePartitionsStatistics(len(self._loaded), self.sessions.statistics().sessions, in_flight)

    def notify(self, dead_letters: DeadLetterHooks) -> None:
        """Have the writer of dead letters notified from now on."""
        self.saving.dead_letters = dead_letters

    # -- finding and loading

    def find(self, group_id: str, partition: TopicPartition) -> LoadedSharePartition | None:
        return self._loaded.get((group_id, partition))

    def loaded(self) -> list[LoadedSharePartition]:
        return list(self._loaded.values())

    def groups_of(self, partition: TopicPartition) -> list[str]:
        """The groups that have this partition in memory."""
        return [group_id for group_id, partitions in self._groups.items() if partition in partitions]

    def find_or_load(self, group_id: str, partition: TopicPartition) -> LoadedSharePartition:
        """The share-partition, perhaps still loading: look at `engine` and `error` after its
        waiters were woken.

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
        self._background.start(self._load, loaded)
        return loaded

    async def load(self, group_id: str, partition: TopicPartition) -> LoadedSharePartition:
        """Like find_or_load, but waits until it is loaded. Raises KafkaError if that fails, or if
        it is forgotten meanwhile."""
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

    async def _load(self, loaded: LoadedSharePartition) -> None:
        group_id, (topic_id, index) = loaded.key
        began = trio.current_time()
        try:
            load = Load(self._persister, group_id, loaded.partition, self._load_turns)
            engine, waiting, kept_from = await load.run(
                self.settings(group_id), lambda: self._reset_policy(group_id), lambda: loaded.gone
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
            # A batch or state that cannot be read affects this queue only. If the error were raised
            # here, it would end the broker.
            logger.exception("share-partition %s:%s-%d cannot be loaded", group_id, topic_id, index)
            self._not_loaded(loaded, client_error(ErrorCode.unknown_server_error, str(error)))
            return
        if not loaded.gone:
            self._use(loaded, engine)  # The settings were perhaps altered while the state was read.
            loaded.engine = engine
            self.parked.prepare(engine, waiting, kept_from=kept_from)
            self._count_held(group_id, engine)
            loaded.metrics = self.metrics.setdefault(group_id, ShareGroupMetrics())
            loaded.metrics.load_seconds.observe(trio.current_time() - began)
            loaded.waiters.wake_all()
            self.saving.dead_letters.loaded(loaded)
            self.parked.see_to(loaded)
            self.scanner.see_to(loaded)
            self.retire(loaded)

    def _not_loaded(self, loaded: LoadedSharePartition, error: KafkaError) -> None:
        if not loaded.gone:  # Otherwise the requests that wait for it load it again.
            loaded.error = error
            self._forget(loaded)

    # -- forgetting

    def _forget(self, loaded: LoadedSharePartition) -> None:
        """Drop it from memory. The next fetch reloads the saved state."""
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
        loaded.gone = True
        loaded.waiters.wake_all()
        loaded.settled.wake_all()
        if loaded.scanner is not None:
            loaded.scanner.wake()

    def forget(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Drop share-partitions whose state was altered or deleted. Waiting and later fetches
        reload it, and members lose the records that they hold. Changes that the Persister has not
        received yet are never saved."""
        for partition in partitions:
            loaded = self._loaded.get((group_id, partition))
            if loaded is not None:
                self._forget(loaded)

    def forget_group(self, group_id: str) -> None:
        for loaded in list(self._groups.get(group_id, {}).values()):
            self._forget(loaded)
        self.saving.dead_letters.forget_group(group_id)
        self.metrics.pop(group_id, None)

    def forget_topic(self, topic: Sequence[Partition]) -> None:
        logs = {(partition.log.topic_id, partition.log.partition) for partition in topic}
        for loaded in [each for (_, partition), each in self._loaded.items() if tuple(partition) in logs]:
            self._forget(loaded)
        for metrics in self.metrics.values():
            metrics.forget(logs)
        self.saving.dead_letters.forget_topic(topic)

    def retire_unless_used(self, loaded: LoadedSharePartition) -> None:
        """Mark it for retirement if its group has no sessions. Called for one that was loaded
        without a client."""
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

    # -- settings

    def settings_changed(self, group_id: str | None = None) -> None:
        """The configs of one group, or of the broker (None), were altered. They apply to the next
        locks and fetches."""
        for loaded in self.loaded():
            engine, group = loaded.engine, loaded.key[0]
            if engine is None or group_id not in (None, group):
                continue
            counted = engine.settings.prefetch > 0
            self._use(loaded, engine)
            self.parked.prepare(engine, 0)
            self.scanner.see_to(loaded)
            if counted != (engine.settings.prefetch > 0):
                self._count_held(group, engine)
            loaded.waiters.wake_all()
            self.retire(loaded)  # It may have worked alone until now.
        for group in [group for group in self.held if not self.settings(group).prefetch]:
            del self.held[group]

    def _use(self, loaded: LoadedSharePartition, engine: SharePartition) -> None:
        settings = self.settings(loaded.key[0])
        loaded.use(engine, settings)
        loaded.filters = self._filters_of(settings)

    def _count_held(self, group_id: str, engine: SharePartition) -> None:
        """Count what members hold where the group's settings need that."""
        if engine.settings.prefetch:
            engine.count_held(self.held.setdefault(group_id, HeldRecords()))
        elif group_id in self.held:
            engine.count_held(None)

    # -- acknowledging

    async def acknowledge(
        self,
        group_id: str,
        member_id: str,
        batches: Sequence[tuple[TopicPartition, Sequence[AckBatch]]],
        reasons: Mapping[TopicPartition, Mapping[int, Reason]] | None = None,
    ) -> list[KafkaError | None]:
        """Accept or refuse the list of each partition as a whole. Accepted lists are saved on
        return. ack_validation has checked them all. `reasons`: of rejections, by offset."""
        results: list[KafkaError | None] = []
        saves: list[Save] = []
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
                if reasons is not None:
                    persist = self._with_reasons(persist, loaded.engine, partition, acks, reasons)
                saves.append((loaded, persist))
                to_be_saved.append(len(results))
            results.append(None)
        if saves:
            outcomes = await self.saving.save_all(group_id, saves)
            for place, (loaded, _) in zip(to_be_saved, saves, strict=True):
                results[place] = outcomes[loaded]
        metrics = self.metrics.get(group_id)
        if metrics is not None:
            for (_, acks), refusal in zip(batches, results, strict=True):
                if refusal is None:
                    metrics.count_acknowledged(acks)
        return results

    def _with_reasons(
        self,
        persist: Persist,
        engine: SharePartition,
        partition: TopicPartition,
        acks: Sequence[AckBatch],
        reasons: Mapping[TopicPartition, Mapping[int, Reason]],
    ) -> Persist:
        given = reasons.get(partition, {})
        if engine.window.letters_wait:
            given = {offset: shortened(reason, SHORT_REASON_BYTES) for offset, reason in given.items()}
        found = attached(persist, acks, given) if self._persister.waiting_rows is not None else ()
        if len(found) < len(given):
            logger.debug(
                "%d reasons of rejections are ignored: no dead letter will have them",
                len(given) - len(found),
            )
        return persist._replace(reasons=found)

    def _follow_up(self, loaded: LoadedSharePartition) -> None:
        """A save has ended: records may have been parked, or the share-partition may be settled."""
        if loaded.engine is not None and loaded.engine.parking is not None:
            self.schedule(loaded)
            self.parked.see_to(loaded)
            self.scanner.resume(loaded)
        if loaded.retiring:
            self.retire(loaded)

    def _parked_changed(self, loaded: LoadedSharePartition) -> None:
        """Parked records were read: they may be due, become dead letters or have left the log."""
        engine = loaded.engine
        assert engine is not None
        end_waits(loaded)
        if archiving.has_dead_letters(engine):
            self.saving.dead_letters.wake(loaded)
        if engine.parking is not None and engine.parking.has_unsaved:
            self.saving.save_later(loaded, engine.retry_unsaved())
        if engine.key_order is not None:
            self.scanner.resume(loaded)
        self.schedule(loaded)

    # -- locks

    def schedule(self, loaded: LoadedSharePartition) -> None:
        """Have locks expire in time, after records were acquired or renewed."""
        assert loaded.engine is not None
        deadline_ms = loaded.engine.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < loaded.scheduled_ms:
            loaded.scheduled_ms = deadline_ms
            self._deadlines.schedule(deadline_ms, partial(self._expire, loaded, deadline_ms))

    def _expire(self, loaded: LoadedSharePartition, deadline_ms: float) -> None:
        if loaded.gone or loaded.engine is None or deadline_ms != loaded.scheduled_ms:
            # A nearer deadline has replaced this one. Scheduling the next one here as well would
            # double the timers permanently.
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
        self.saving.save_later(loaded, persist)
        end_waits(loaded)
        if persist is not None:
            loaded.waiters.wake_all()
        if engine.key_order is not None:
            self.scanner.resume(loaded)
        self.schedule(loaded)
        self.retire(loaded)

    def _alive_ms(self, group_id: str, member_id: str) -> float:
        """How long a holder of records is known to be alive: it has a share session and sends
        heartbeats."""
        return (
            self._member_lives_ms(group_id, member_id)
            if self.sessions.get(group_id, member_id) is not None
            else 0
        )

    def first_lock_ms(self, connection_id: int) -> float:
        """When the first lock ends under which a member with a session on this connection holds a
        record. Infinite: they hold none."""
        first_ms = math.inf
        for session in self.sessions.of_connection(connection_id):
            group_id, member_id = session.key
            for partition in session.to_release:
                loaded = self._loaded.get((group_id, partition))
                if loaded is not None and loaded.engine is not None:
                    lock_ms = loaded.engine.first_lock_ms(member_id)
                    first_ms = first_ms if lock_ms is None else min(first_ms, lock_ms)
        return first_ms

    # -- releasing

    def release(
        self, group_id: str, member_id: str, partitions: Sequence[TopicPartition], *, delayed: bool
    ) -> None:
        """Release the records that the member holds in these share-partitions, at once or after its
        redelivery delay."""
        for partition in partitions:
            loaded = self._loaded.get((group_id, partition))
            if loaded is None or loaded.engine is None:
                continue
            persist = loaded.engine.release_member(member_id, delayed_at_ms=now_ms() if delayed else None)
            self.saving.save_later(loaded, persist)
            self.schedule(loaded)
            loaded.waiters.wake_all()

    def release_session(self, session: ShareSession, *, in_order: bool = False) -> None:
        """Release the records that the member of an ended session holds.

        `in_order`: the member has closed the session and returns its records. Otherwise the member
        was lost, perhaps to a record that kills every worker, so the records wait for their
        redelivery."""
        self.release(*session.key, session.to_release, delayed=not in_order)
        group_id = session.key.group_id
        if not self.sessions.has_group(group_id):
            for loaded in list(self._groups.get(group_id, {}).values()):
                loaded.retiring = True
                self.retire(loaded)

    def close_session(self, session: ShareSession) -> None:
        """End the member's session, unless it has a newer one by now."""
        if self.sessions.close(session):
            self.release_session(session, in_order=True)

    def connection_closed(self, connection_id: int) -> None:
        """Release the records of its members, but not while the broker stops: their deliveries are
        not counted then."""
        for session in self.sessions.connection_closed(connection_id):
            if not self.is_closing:
                self.release_session(session)

    def start_closing(self) -> None:
        self.is_closing = True
        self.wake_all()

    def wake_all(self) -> None:
        for loaded in self._loaded.values():
            loaded.waiters.wake_all()
            loaded.turns.wake_everybody()


def end_waits(loaded: LoadedSharePartition) -> None:
    """Wake what waits for records, if delayed or scheduled ones are due."""
    engine = loaded.engine
    if engine is not None and engine.end_waits(now_ms(), wall_clock_ms()):
        loaded.waiters.wake_all()
        if engine.settings.ttl_ms and loaded.scanner is not None:
            loaded.scanner.wake()  # They may expire from now on.


async def watch_clock(
    loaded: Callable[[], Iterable[LoadedSharePartition]], schedule: Callable[[LoadedSharePartition], None]
) -> None:
    """Look at all that is `loaded` when the wall clock is set, by which scheduled records are due.
    `schedule` sets their timers.

    One task looks at the clock each second: with a look for each share-partition, thousands with a
    job for tomorrow would keep the loop busy."""
    known_ms = wall_clock_ms() - now_ms()
    while True:
        await trio.sleep(LOOK_AT_THE_CLOCK_MS / 1000)
        ahead_ms = wall_clock_ms() - now_ms()
        if abs(ahead_ms - known_ms) > _CLOCK_STEP_MS:
            known_ms = ahead_ms
            for each in loaded():
                if each.engine is not None and each.engine.parking is not None and not each.gone:
                    end_waits(each)
                    schedule(each)
