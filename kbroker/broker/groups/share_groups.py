"""Carries out what the group coordinator decides: saves its changes, has share state made, altered,
summed up and deleted, runs session timers.

The coordinator shows its decisions in memory at once; here they are submitted in the same step and,
if the save fails, taken back in the same step for every group concerned. Whoever waits for an
initialisation waits here, with patience and no longer: the persister may be a slow plugin. What it
answers later is taken in by a task of the broker's, and the member's next heartbeat shows it.

Whoever deletes a group, or alters or deletes its offsets, has the group alone until the persister
has answered: joining members and other administrators are told to come again, and so is an
administrator while share-partitions are being initialised. What this broker has loaded of the
share-partitions is forgotten at once, so that the next fetch finds what was altered.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import trio

from kbroker.broker.configs import Configs
from kbroker.broker.groups.deletion import decide_deletion
from kbroker.broker.groups.runner import DecisionRunner
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
from kbroker.groups.share.offsets import LogRange, described, described_with_parked
from kbroker.share.lag import Standing, least_standing
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
"""How long a joining member waits for its share-partitions before it gets what there is."""
_SAVE_FAILED = GroupHeartbeatReply(ErrorCode.coordinator_not_available)
_IN_ADMINISTRATION = GroupHeartbeatReply(ErrorCode.coordinator_load_in_progress)
"""Clients back off and come again."""
_NOT_SAVED = OffsetsReply(ErrorCode.coordinator_not_available, "The change could not be saved.")
_NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class ShareGroupServiceStatistics:
    """`initializations`: those that are decided and that the persister has not answered;
    `in_administration`: groups that are being deleted or whose offsets are altered or deleted."""

    groups: ShareGroupStatistics
    initializations: int
    in_administration: int


class ShareGroupService:
    """Carries out what the pure ShareGroupCoordinator decides.

    - `configs`: a deleted group's settings go with it
    - `before_reset`: called before a group begins at other offsets, and its result when it does;
      raises nothing
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
        # the group of each initialisation, from the decision to the persister's answer
        self._asking: list[str] = []

    def statistics(self) -> ShareGroupServiceStatistics:
        return ShareGroupServiceStatistics(
            self.coordinator.statistics(), len(self._asking), len(self._in_administration)
        )

    def load(self, store: StateStore) -> None:
        """Load the stored groups."""
        self.coordinator.load(store.scan(GroupKey.namespace), now_ms=self._clock.now_ms())

    def settings_changed(self, group_id: str | None) -> None:
        """Settings of a group were altered (None: the broker's, and none of those changes an
        assignment). If the new targets cannot be saved, the next heartbeat makes them again."""
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
        """Whether it was saved. From the decision on nobody has the group alone: a member may leave
        before its join is on disk, and state that is made behind a deletion would stay for good."""
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
        """However long the persister takes, and whether or not anybody still waits. Cancelled only
        when the broker stops: the partitions are Initializing in the store then, and asked for
        again."""
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
        """Have the group alone. Raises COORDINATOR_LOAD_IN_PROGRESS: clients come again."""
        if group_id in self._in_administration or group_id in self._asking:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, f"Group {group_id} is being changed.")
        self._in_administration.add(group_id)
        try:
            yield
        finally:
            self._in_administration.discard(group_id)

    async def describe_offsets(
        self, group_id: str, wanted: Mapping[str, Sequence[int]] | None
    ) -> list[TopicOffsets]:
        """DescribeShareGroupOffsets for one group. Lags are those of one moment: log ends are
        looked at when the persister answers, and the default one answers at once. Raises KafkaError
        UNKNOWN_SERVER_ERROR for what no partition can be."""
        topics = self.coordinator.describe_offsets(group_id, wanted, self._topics)
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
        # Before anything is awaited: what a persister appends to the log meanwhile would be lag.
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

        return [replace(topic, partitions=tuple(filled(topic))) for topic in topics]

    def _described(self, group_id: str, summary: SummaryResult) -> PartitionOffset:
        partition = self._topics.partition(*summary.partition)
        if partition is None or partition.deleted:
            return described(summary, None, partial(self._stands_from, group_id, summary))
        log = LogRange(partition.log_start_offset, partition.high_watermark)
        return described(summary, log, partial(self._stands_from, group_id, summary))

    def _stands_from(self, group_id: str, summary: SummaryResult, offset: int) -> Standing:
        try:
            found = self._persister.stands_from(group_id, summary.partition, offset)
        except Exception:  # It may be a plugin: see _answered.
            logger.exception("the persister failed on a share-partition of group %s", group_id)
            found = None
        return found or least_standing(summary.start_offset, summary.delivery_complete_count, offset)

    async def alter_offsets(self, group_id: str, wanted: Mapping[str, Mapping[int, int]]) -> OffsetsReply:
        """AlterShareGroupOffsets: start offsets by topic name and partition; durable, and what
        fetches go by, on return."""
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
                each for request in effect.requests for each in begin_anew(self._told_of_the_log(request))
            )
            results = await self._initialized_by_persister(replace(effect, requests=requests))
            # One that was loaded before the persister had done it is of old.
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

    def _told_of_the_log(self, request: InitializeRequest) -> InitializeRequest:
        """A start offset that the log has is lost with the log's end, as what was acknowledged is;
        one beyond it is just a number."""
        partition = self._topics.partition(*request.partition)
        is_in_log = partition is not None and 0 <= request.start_offset <= partition.high_watermark
        return (
            request._replace(written_in=partition.leader_epoch)
            if partition is not None and is_in_log
            else request
        )

    async def delete_offsets(self, group_id: str, names: Sequence[str]) -> OffsetsReply:
        """DeleteShareGroupOffsets: the share state of topics; gone, and for fetches too, on
        return."""
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
        """DeleteGroups for one group: its share state first, then its records and settings. Nobody
        can join meanwhile: the state that a new member's share-partitions get must not be what is
        deleted here. Nor may state come to life afterwards, so a persister that has an
        initialisation to answer is waited for, by the client."""
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
    """What the persister says, or errors where it raises or leaves rows out: it may be a plugin,
    and such a thing concerns this group alone; raised from here it could end the broker."""
    try:
        results = await call
    except Exception:
        logger.exception("the persister failed on share-partitions of group %s", group_id)
        results = ()
    if len(results) == len(partitions):
        return results
    return [result(partition, ErrorCode.unknown_server_error) for partition in partitions]
