"""The broker's side of share groups: has the persister initialise, alter, summarise and delete
share state.

A joining member waits here for its share-partitions, but not long: the persister may be a slow
plugin. A background task receives the persister's results, and the member's next heartbeat returns
them.

An administrator who deletes a group, or alters or deletes its offsets, has exclusive access to the
group until the persister has answered. Joining members and other administrators are refused
meanwhile, with an error that clients retry; so is an administrator while share-partitions are being
initialised. Loaded share-partitions are forgotten at once, so the next fetch finds the new state.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from kbroker.broker.configs import Configs
from kbroker.broker.groups.deletion import decide_deletion
from kbroker.broker.groups.runner import DecisionRunner
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.broker.queues.parked_left import parked_left
from kbroker.broker.queues.share_partitions import SharePartitions
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.state import GroupKey
from kbroker.groups.outcome import DeleteShareState, InitializeSharePartitions, Outcome
from kbroker.groups.share.checks import check_form
from kbroker.groups.share.coordinator import ShareGroupCoordinator
from kbroker.groups.share.messages import (
    GroupHeartbeatReply,
    OffsetsReply,
    PartitionOffset,
    ShareGroupHeartbeatRequest,
    ShareGroupStatistics,
    TopicOffsets,
)
from kbroker.groups.share.offsets import LogRange, described, described_with_parked, to_describe
from kbroker.seldom import Seldom
from kbroker.share.lag import UNKNOWN, Standing, is_miscount, least_standing
from kbroker.share.persister import (
    InitializeRequest,
    Persister,
    ReadRequest,
    Result,
    SummaryResult,
    TopicPartition,
    begin_anew,
)
from kbroker.storage.spi import StateStore

logger = logging.getLogger(__name__)
P = TypeVar("P", bound=Result)

JOIN_PATIENCE_S = 5.0
"""How long a joining member waits for its share-partitions before it gets the assignable ones."""
_SAVE_FAILED = GroupHeartbeatReply(ErrorCode.coordinator_not_available)
_IN_ADMINISTRATION = GroupHeartbeatReply(ErrorCode.coordinator_load_in_progress)
"""Clients back off and retry."""
_NOT_SAVED = OffsetsReply(ErrorCode.coordinator_not_available, "The change could not be saved.")
_NO_LEADER_EPOCH = -1
_MISCOUNTS_EVERY_S = 60.0


class ShareGroupServiceStatistics(NamedTuple):
    """`initializations`: decided, but not answered by the persister yet; `in_administration`:
    groups that are being deleted, or whose offsets are being altered or deleted."""

    groups: ShareGroupStatistics
    initializations: int
    in_administration: int


class ShareGroupService:
    """Carries out the decisions of the pure ShareGroupCoordinator.

    - `configs`: where a deleted group's settings are removed
    - `before_reset`: called before a group starts at other offsets; its result is called when it
      does. Raises nothing
    - `on_state_altered`: called with a group whose share state an administrator has altered"""

    def __init__(
        self,
        runner: DecisionRunner[ShareGroupCoordinator],
        topics: Topics,
        persister: Persister,
        share_partitions: SharePartitions,
        configs: Configs,
        before_reset: Callable[[str, Sequence[TopicPartition]], Awaitable[Callable[[], None]]],
        on_state_altered: Callable[[str], None],
    ) -> None:
        self.coordinator = runner.coordinator
        self.topic_deleted = runner.topic_deleted
        self._save = runner.save
        self._runner = runner
        self._clock = runner.clock
        self._topics = topics
        self._persister = persister
        self._share_partitions = share_partitions
        self._configs = configs
        self._before_reset = before_reset
        self._on_state_altered = on_state_altered
        self._initialized: dict[str, trio.Event] = {}
        self._in_administration: set[str] = set()
        self._miscounts = Seldom(_MISCOUNTS_EVERY_S)
        # The group of each initialisation, from the decision to the persister's answer.
        self._asking: list[str] = []

    def statistics(self) -> ShareGroupServiceStatistics:
        return ShareGroupServiceStatistics(
            self.coordinator.statistics(), len(self._asking), len(self._in_administration)
        )

    def load(self, store: StateStore) -> None:
        """Load the stored groups."""
        self.coordinator.load(store.scan(GroupKey.namespace), now_ms=self._clock.now_ms())

    def settings_changed(self, group_id: str | None) -> None:
        """Settings of a group were altered; None: the broker's, which change no assignment. If the
        new targets cannot be saved, the next heartbeat computes them again."""
        if group_id is not None:
            now_ms = self._clock.now_ms()
            self._runner.submit(
                self.coordinator.settings_changed(group_id, now_ms=now_ms, topics=self._topics)
            )

    # -- heartbeats
    # ----------------------------------------------------------------------------------------------

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> GroupHeartbeatReply:
        try:
            check_form(request)
        except KafkaError as refusal:
            return GroupHeartbeatReply.refusal(refusal)
        if request.group_id in self._in_administration:
            return _IN_ADMINISTRATION
        outcome = self.coordinator.heartbeat(request, now_ms=self._clock.now_ms(), topics=self._topics)
        if not await self._save_and_initialize(outcome):
            return _SAVE_FAILED
        if outcome.reply is not None:
            return outcome.reply
        with trio.move_on_after(JOIN_PATIENCE_S):
            while self.coordinator.is_waiting(request.group_id, request.member_id):
                await self._initialized.setdefault(request.group_id, trio.Event()).wait()
        late = self.coordinator.heartbeat_reply(
            request.group_id, request.member_id, now_ms=self._clock.now_ms()
        )
        if not await self._save(late) or late.reply is None:
            return _SAVE_FAILED
        return late.reply

    async def _save_and_initialize(self, outcome: Outcome[GroupHeartbeatReply]) -> bool:
        """True if it was saved. From the decision on, `_alone` refuses the group: a member may
        leave before its join is on disk, and state initialised after a deletion would stay
        forever."""
        initializations = [
            effect for effect in outcome.effects if isinstance(effect, InitializeSharePartitions)
        ]
        self._asking += [effect.group_id for effect in initializations]
        saved = False
        try:
            saved = await self._save(outcome)
        finally:
            for effect in initializations:
                if saved:
                    self._runner.background.start(self._initialize, effect)
                else:
                    self._asking.remove(effect.group_id)
        return saved

    async def _initialize(self, effect: InitializeSharePartitions) -> None:
        """Initialise share-partitions, however long the persister takes and whether or not a member
        still waits. Only the end of the broker cancels this: the partitions are Initializing in the
        store then, and the next run tries again."""
        group_id = effect.group_id
        try:
            results = await self._initialized_by_persister(effect)
        finally:
            self._asking.remove(group_id)
        await self._save(self.coordinator.initialized(group_id, results, now_ms=self._clock.now_ms()))
        self._initialized.pop(group_id, trio.Event()).set()

    async def _initialized_by_persister(self, effect: InitializeSharePartitions) -> Sequence[Result]:
        partitions = [request.partition for request in effect.requests]
        return await _answered(
            self._persister.initialize(effect.group_id, effect.requests), effect.group_id, partitions, Result
        )

    # -- administration
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self, group_id: str) -> Iterator[None]:
        """Take exclusive access to the group. Raises COORDINATOR_LOAD_IN_PROGRESS, which clients
        retry."""
        if group_id in self._in_administration or group_id in self._asking:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"Group {group_id} is being changed.")
        self._in_administration.add(group_id)
        try:
            yield
        finally:
            self._in_administration.discard(group_id)

    async def describe_offsets(
        self, group_id: str, wanted: Mapping[str, Sequence[int]]
    ) -> list[TopicOffsets]:
        """Some rows of DescribeShareGroupOffsets. `wanted`: partitions by topic name. All lags are
        of one moment: log ends are read when the persister answers, and the default persister
        answers at once. Raises UNKNOWN_SERVER_ERROR for a number that no partition can have."""
        topics = to_describe(group_id, wanted, self._topics)
        asked = [
            TopicPartition(topic.topic_id, row.partition_index)
            for topic in topics
            for row in topic.partitions
            if topic.topic_id is not None
            and self._topics.partition(topic.topic_id, row.partition_index) is not None
        ]
        requests = [ReadRequest(partition, _NO_LEADER_EPOCH) for partition in asked]
        summaries = await _answered(
            self._persister.read_summary(group_id, requests), group_id, asked, SummaryResult
        )
        # Before the next await: records that a persister appends to the log would become lag.
        rows = {summary.partition: self._described(group_id, summary) for summary in summaries}
        for summary in summaries:
            if summary.waiting and (partition := self._topics.partition(*summary.partition)) is not None:
                parked = await parked_left(
                    self._persister, group_id, summary.partition, partition.log_start_offset
                )
                rows[summary.partition] = described_with_parked(rows[summary.partition], parked)

        def filled(topic: TopicOffsets) -> Iterator[PartitionOffset]:
            for row in topic.partitions:
                found = (
                    None
                    if topic.topic_id is None
                    else rows.get(TopicPartition(topic.topic_id, row.partition_index))
                )
                yield found or row

        return [topic._replace(partitions=tuple(filled(topic))) for topic in topics]

    def _described(self, group_id: str, summary: SummaryResult) -> PartitionOffset:
        partition = self._topics.partition(*summary.partition)
        if partition is None or partition.deleted:
            return described(summary, None, partial(self._stands_from, group_id, summary))
        log = LogRange(partition.log_start_offset, partition.high_watermark)
        row = described(summary, log, partial(self._stands_from, group_id, summary))
        if UNKNOWN not in (row.first_open, summary.delivery_complete_count):
            self.check_lag(group_id, partition, row.lag, summary.start_offset)
        return row

    def check_lag(self, group_id: str, partition: Partition, lag: int, start_offset: int) -> None:
        """Log a lag that cannot be right, once a minute. `lag`: known, without parked records."""
        if not is_miscount(lag, start_offset, partition.high_watermark):
            return
        times = self._miscounts.times((group_id, partition.log), trio.current_time())
        if times:
            logger.error(
                "share group %s on %s-%d: the unfinished records are miscounted: %d from offset %d to %d, "
                "with start offset %d (%d times)",
                group_id, partition.topic_name, partition.log.partition, lag, partition.log_start_offset,
                partition.high_watermark, start_offset, times,
            )  # fmt: skip

    def _stands_from(self, group_id: str, summary: SummaryResult, offset: int) -> Standing:
        try:
            found = None if summary.stands_from is None else summary.stands_from(offset)
        except Exception:  # It may be a plugin: see _answered.
            logger.exception("the persister failed on a share-partition of group %s", group_id)
            found = None
        return found or least_standing(summary.start_offset, summary.delivery_complete_count, offset)

    async def alter_offsets(self, group_id: str, wanted: Mapping[str, Mapping[int, int]]) -> OffsetsReply:
        """AlterShareGroupOffsets: start offsets by topic name and partition. On return they are
        durable, and fetches use them."""
        try:
            with self._alone(group_id):
                return await self._alter_offsets(group_id, wanted)
        except KafkaError as error:
            return OffsetsReply.refusal(error)

    async def _alter_offsets(self, group_id: str, wanted: Mapping[str, Mapping[int, int]]) -> OffsetsReply:
        outcome = self.coordinator.alter_offsets(group_id, wanted, self._topics)
        if not await self._save(outcome):
            return _NOT_SAVED
        assert outcome.reply is not None
        for effect in outcome.effects:
            assert isinstance(effect, InitializeSharePartitions)
            partitions = [request.partition for request in effect.requests]
            report = await self._before_reset(group_id, partitions)
            self._share_partitions.forget(group_id, partitions)
            requests = tuple(
                each for request in effect.requests for each in begin_anew(self._with_log_epoch(request))
            )
            results = await self._initialized_by_persister(effect._replace(requests=requests))
            # A share-partition loaded before the persister was done has the old state.
            self._share_partitions.forget(group_id, partitions)
            altered = self.coordinator.offsets_altered(
                group_id, outcome.reply, results, now_ms=self._clock.now_ms()
            )
            if not await self._save(altered):
                return _NOT_SAVED
            assert altered.reply is not None
            report()
            self._on_state_altered(group_id)
            return altered.reply
        return outcome.reply

    def _with_log_epoch(self, request: InitializeRequest) -> InitializeRequest:
        """Add the log's leader epoch if the log has the start offset: if the log loses its end, the
        start offset is lost with it, as acknowledgements are. One beyond the end stays."""
        partition = self._topics.partition(*request.partition)
        is_in_log = partition is not None and 0 <= request.start_offset <= partition.high_watermark
        return (
            request._replace(written_in=partition.leader_epoch)
            if partition is not None and is_in_log
            else request
        )

    async def delete_offsets(self, group_id: str, names: Sequence[str]) -> OffsetsReply:
        """DeleteShareGroupOffsets: the share state of topics. On return it is deleted, and fetches
        do not find it either."""
        try:
            with self._alone(group_id):
                return await self._delete_offsets(group_id, names)
        except KafkaError as error:
            return OffsetsReply.refusal(error)

    async def _delete_offsets(self, group_id: str, names: Sequence[str]) -> OffsetsReply:
        outcome = self.coordinator.delete_offsets(group_id, names, self._topics)
        if not await self._save(outcome):
            return _NOT_SAVED
        assert outcome.reply is not None
        for effect in outcome.effects:
            assert isinstance(effect, DeleteShareState)
            deleted = self.coordinator.offsets_deleted(
                group_id, outcome.reply, await self._deleted_by_persister(effect)
            )
            if not await self._save(deleted):
                return _NOT_SAVED
            assert deleted.reply is not None
            return deleted.reply
        return outcome.reply

    async def _deleted_by_persister(self, effect: DeleteShareState) -> Sequence[Result]:
        self._share_partitions.forget(effect.group_id, effect.partitions)
        deletion = self._persister.delete(effect.group_id, effect.partitions)
        results = await _answered(deletion, effect.group_id, effect.partitions, Result)
        self._share_partitions.forget(effect.group_id, effect.partitions)
        return results

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups for one group: its share state first, then its records and settings. No
        member can join meanwhile: this must not delete the state of a new member's
        share-partitions. Nor may state appear afterwards, so the client must retry while an
        initialisation is pending at the persister."""
        try:
            with self._alone(group_id):
                return await self._delete_group(group_id)
        except KafkaError as error:
            return error.code

    async def _delete_group(self, group_id: str) -> ErrorCode:
        deletion = await self._decided(group_id, partial(self.coordinator.delete, group_id, self._topics))
        for effect in deletion.effects:
            assert isinstance(effect, DeleteShareState)
            results = await self._deleted_by_persister(effect)
            deletion = await self._decided(group_id, partial(self.coordinator.deleted, group_id, results))
        assert deletion.reply is not None
        return deletion.reply

    async def _decided(self, group_id: str, decide: Callable[[], Outcome[ErrorCode]]) -> Outcome[ErrorCode]:
        gone = partial(self._gone, group_id)
        return await decide_deletion(decide, group_id, self._runner, self._configs, gone)

    def _gone(self, group_id: str) -> None:
        self.coordinator.deletion_saved(group_id)
        self._share_partitions.forget_group(group_id)


async def _answered(
    call: Awaitable[Sequence[P]],
    group_id: str,
    partitions: Sequence[TopicPartition],
    result: Callable[[TopicPartition, ErrorCode], P],
) -> Sequence[P]:
    """The persister's results, or errors if it raises or leaves rows out. It may be a plugin: its
    faults must affect this group only, and an exception from here could end the broker."""
    try:
        results = await call
    except Exception:
        logger.exception("the persister failed on share-partitions of group %s", group_id)
        results = ()
    if len(results) == len(partitions):
        return results
    return [result(partition, ErrorCode.unknown_server_error) for partition in partitions]
