"""Saves the decisions of the share engine through the Persister, and then confirms or undoes them.

The engine (kbroker.share.share_partition) returns a `Persist` and keeps the change pending. Here
one write carries the changes of several share-partitions to the Persister. Each change then becomes
final, or is undone, and the waiting tasks are notified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import trio

from kbroker.broker.commits.background import Background
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.queues.loaded import DeadLetterHooks, LoadedSharePartition
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.makers import maker
from kbroker.share import offers
from kbroker.share.effects import Persist, StateBatch
from kbroker.share.parked import ParkingChange
from kbroker.share.persister import Persister, Result, TopicPartition, WriteRequest
from kbroker.share.reasons import ReasonChange
from kbroker.share.rejections import without_reasons

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
"""The code that a share client gets for a persister's code; UNKNOWN_SERVER_ERROR for others."""

FENCING_CODES = frozenset(
    {ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.group_id_not_found}
)
"""After these the share-partition is reloaded: its state was changed elsewhere."""

_write_request = maker(
    WriteRequest,
    tuple[
        TopicPartition,
        int,
        int,
        int,
        int,
        Sequence[StateBatch],
        Sequence[ParkingChange],
        int,
        Sequence[ReasonChange],
        int,
    ],
)
"""A Persist has the same fields, after its token."""
Save: TypeAlias = tuple[LoadedSharePartition, Persist]


def client_error(code: ErrorCode, message: str | None = None) -> KafkaError:
    return KafkaError(PERSISTER_CODES.get(code, ErrorCode.unknown_server_error), message)


class Saving:
    """`forget(loaded)` is called when the state was changed elsewhere, and `follow_up(loaded)` when
    a save has ended and more may have to be done."""

    def __init__(
        self,
        persister: Persister,
        background: Background,
        forget: Callable[[LoadedSharePartition], None],
        follow_up: Callable[[LoadedSharePartition], None],
    ) -> None:
        self._persister = persister
        self._shields_writes = not persister.writes_to_the_end
        self._background = background
        self._forget = forget
        self._follow_up = follow_up
        self.dead_letters = DeadLetterHooks()

    async def save_all(
        self, group_id: str, saves: Sequence[Save]
    ) -> dict[LoadedSharePartition, KafkaError | None]:
        """Write through the Persister, and make the changes final or undo them. A cancelled caller
        still waits to the end: the engines need the outcome.

        Changes queued by save_later() go first, because the count in a Persist includes the effect
        of earlier ones."""
        for loaded, _ in saves:
            if loaded.to_save:
                saves = [each for save in saves for each in (*_take_queued(save[0]), save)]
                break
        requests = []
        for loaded, persist in saves:
            if persist.archiving:
                self.dead_letters.before_save(loaded)
            if persist.reasons or loaded.void_reasons:
                saves, persist = _with_reasons(saves, loaded, persist)
            requests.append(_write_request((loaded.key[1], *persist[1:])))
        try:
            write = self._write_shielded if self._shields_writes else self._persister.write
            written = await write(group_id, requests)
        except Exception:
            # Left pending, the records could be neither acknowledged nor acquired until a restart.
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

    def _settle(self, save: Save, result: Result) -> KafkaError | None:
        loaded, persist = save
        engine = loaded.engine
        assert engine is not None
        error: KafkaError | None = None
        if result.code is ErrorCode.none:
            engine.persisted(persist.token)
            if persist.reasons:
                loaded.void_reasons.difference_update(
                    offset for offset, reason in persist.reasons if reason is None
                )
        else:
            engine.persist_failed(persist.token, now_ms=now_ms())
            loaded.void_reasons.update(offset for offset, reason in persist.reasons if reason is not None)
            error = client_error(result.code, result.message)
            if error.code in FENCING_CODES:
                self._forget(loaded)
        if loaded.settled:
            loaded.settled.wake_all()
        # Wake fetches only if they find something. Usually they have reached the log's end, and
        # wait for a producer.
        if loaded.waiters:
            offset, partition = offers.offset_to_acquire(engine), loaded.partition
            # The next fetch notices that, and makes room.
            is_behind = engine.start_offset < partition.log_start_offset
            # Freed with its key, or by the locks of others.
            is_ready = engine.parking is not None and offers.parked_ready(engine) > 0
            if is_behind or is_ready or (offset is not None and offset < loaded.visible.high_watermark):
                loaded.waiters.wake_all()
        if persist.archiving:
            self.dead_letters.wake(loaded)
        if engine.parking is not None or loaded.retiring:
            self._follow_up(loaded)
        return error

    async def save(self, loaded: LoadedSharePartition, persist: Persist) -> KafkaError | None:
        """Save, and return the error if that failed."""
        if loaded.gone:  # Its offsets may have been altered, which a late write would undo.
            return client_error(
                ErrorCode.fenced_state_epoch, "The share-partition is not in memory any more."
            )
        return (await self.save_all(loaded.key[0], [(loaded, persist)]))[loaded]

    async def must_save(self, loaded: LoadedSharePartition, persist: Persist | None) -> None:
        """Save, if there is a change. Raises KafkaError; the engine then keeps it as unsaved."""
        if persist is not None and (error := await self.save(loaded, persist)) is not None:
            raise error

    def save_later(self, loaded: LoadedSharePartition, persist: Persist | None) -> None:
        """Save in the background changes that no client waits for: expired locks, released records,
        a moved log start."""
        if persist is not None:
            loaded.to_save.append(persist)
            self._background.start(self._save_queued, loaded)

    async def _save_queued(self, loaded: LoadedSharePartition) -> None:
        group_id, partition = loaded.key
        saves = _take_queued(loaded)
        if not saves or loaded.gone:
            return
        error = (await self.save_all(group_id, saves))[loaded]
        if error is not None and not loaded.partition.deleted:
            logger.warning(
                "state of share-partition %s:%s-%d was not saved: %s",
                group_id,
                partition.topic_id,
                partition.partition,
                error,
            )


def _with_reasons(
    saves: Sequence[Save], loaded: LoadedSharePartition, persist: Persist
) -> tuple[Sequence[Save], Persist]:
    """The saves and the Persist, which now also removes reasons that failed writes may have
    left."""
    more = persist._replace(reasons=without_reasons(sorted(loaded.void_reasons), persist.reasons))
    loaded.void_reasons.difference_update(offset for offset, reason in more.reasons if reason is not None)
    return [(each, more if saved is persist else saved) for each, saved in saves], more


def _take_queued(loaded: LoadedSharePartition) -> list[Save]:
    saves = [(loaded, persist) for persist in loaded.to_save]
    loaded.to_save.clear()
    return saves
