"""Classic groups become consumer groups, and the other way round (KIP-848, online migration). Pure.

    upgrade     a member joins a classic group of ordinary consumers with the consumer protocol. The
                members stay, with their partitions, and the generation is the group epoch. Members
                that wait in a rebalance must join again
    downgrade   the last member of the consumer protocol leaves, or a static one returns with the
                classic protocol. The targets become the assignments, the group epoch becomes the
                generation, and the group rebalances

group.consumer.migration.policy says which of them is allowed. Groups without members are always
converted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ClassicMember, ClassicProtocol, ConsumerGroupMember
from kbroker.groups.classic import state as classic
from kbroker.groups.classic.messages import Protocol
from kbroker.groups.consumer.messages import ConsumerGroupSettings, IterableTopicsView, Partitions
from kbroker.groups.consumer.reconciliation import Current
from kbroker.groups.consumer.state import ConsumerGroup, ConsumerMember
from kbroker.groups.consumer.subscriptions import Subscriptions
from kbroker.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL,
    read_assignment,
    read_subscription,
    write_assignment,
)

logger = logging.getLogger(__name__)


class Conversions:
    """Makes groups of one type from groups of the other, and changes neither."""

    def __init__(
        self,
        settings: Callable[[str], ConsumerGroupSettings],
        topics: IterableTopicsView,
        subscriptions: Subscriptions,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._subscriptions = subscriptions

    # --- upgrade ---

    def to_consumer_group(self, old: classic.ClassicGroup) -> ConsumerGroup:
        """Raises GROUP_ID_NOT_FOUND, with the reason, if the group cannot be converted, and
        UNKNOWN_SERVER_ERROR if two members have the same partition."""
        if not old.members:
            return ConsumerGroup(old.group_id)
        settings = self._settings(old.group_id)
        for refused, reason in (
            (not settings.migration_policy.may_upgrade, "online upgrade is disabled"),
            (old.protocol_type != CONSUMER_PROTOCOL, "the group does not use the consumer embedded protocol"),
            (len(old.members) > settings.max_size, "the group size exceeds the consumer group maximum size"),
        ):
            if refused:
                raise _not_upgraded(old.group_id, reason)
        group = ConsumerGroup(old.group_id, epoch=old.generation, assignment_epoch=old.generation)
        name = old.protocol_name or old.elected_protocol()
        for row in old.members.values():
            try:
                said, had = self._said(row, name), self._partitions(row.assignment)
            except ValueError as error:
                raise _not_upgraded(old.group_id, "the embedded consumer protocol is malformed") from error
            if had is None:
                raise _not_upgraded(old.group_id, "an unsupported custom assignor is in use")
            assigned = {topic_id: dict.fromkeys(numbers, old.generation) for topic_id, numbers in had.items()}
            if not all(
                group.is_free(topic_id, number) for topic_id, numbers in had.items() for number in numbers
            ):
                raise KafkaError(
                    ErrorCode.unknown_server_error,
                    "Two members of the classic group have the same partition.",
                )
            group.add(
                ConsumerMember(
                    row.member_id, said, Current(old.generation, old.generation, assigned=assigned)
                ),
                had,
            )
        group.metadata_hash = self._subscriptions.hash(self._subscriptions.names(group.members.values()))
        return group

    def _said(self, row: classic.ClassicMember, protocol_name: str) -> ConsumerGroupMember:
        subscription = read_subscription(row.metadata(protocol_name))
        protocols = tuple(
            ClassicProtocol(name=protocol.name, metadata=protocol.metadata) for protocol in row.protocols
        )
        return ConsumerGroupMember(
            instance_id=row.instance_id,
            rack_id=subscription.rack_id or None,
            client_id=row.client_id,
            client_host=row.client_host,
            subscribed_topic_names=tuple(sorted(set(subscription.topics))),
            subscribed_topic_regex="",
            rebalance_timeout=row.rebalance_timeout_ms,
            classic=ClassicMember(session_timeout=row.session_timeout_ms, supported_protocols=protocols),
        )

    def _partitions(self, assignment: bytes) -> Partitions | None:
        """The partitions of an assignment. None: it has data of a custom assignor, which would be
        lost. Raises ValueError."""
        if not assignment:
            return {}
        read = read_assignment(assignment)
        if read.user_data:
            return None
        found = ((self._topics.by_name(name), numbers) for name, numbers in read.partitions.items())
        return {
            topic.topic_id: tuple(sorted(set(numbers)))
            for topic, numbers in found
            if topic is not None and numbers
        }

    # --- downgrade ---

    def may_downgrade(self, group: ConsumerGroup, leaving: Collection[ConsumerMember], joining: int) -> bool:
        """Whether the group becomes a classic one once `leaving` are gone and `joining` classic
        members have joined: it must still have members, all of which use the classic protocol."""
        gone = {member.member_id for member in leaving}
        left = [member for member in group.members.values() if member.member_id not in gone]
        count = len(left) + joining
        settings = self._settings(group.group_id)
        if not count or not all(member.is_classic for member in left):
            return False
        if not settings.migration_policy.may_downgrade or count > settings.classic_max_size:
            logger.info(
                "group %s stays a consumer group, although all members that are left speak the classic "
                "protocol",
                group.group_id,
            )
            return False
        return True

    def to_classic_group(
        self, group: ConsumerGroup, leaving: Collection[ConsumerMember], now_ms: int
    ) -> classic.ClassicGroup:
        """A stable generation of the members that stay; all of them use the classic protocol."""
        made = classic.ClassicGroup(
            group.group_id, now_ms, classic.GroupState.STABLE, group.epoch, CONSUMER_PROTOCOL
        )
        gone = {member.member_id for member in leaving}
        for member in group.members.values():
            if member.member_id not in gone:
                made.put(self._classic_member(member, group.targets.get(member.member_id, {})))
                made.former_epochs[member.member_id] = member.current.epoch
        made.protocol_name = made.elected_protocol()
        made.note_subscriptions()
        return made

    def _classic_member(
        self, member: ConsumerMember, target: Mapping[UUID, tuple[int, ...]]
    ) -> classic.ClassicMember:
        said = member.said
        protocols = tuple(
            Protocol(protocol.name, protocol.metadata) for protocol in said.classic.supported_protocols
        )
        found = ((self._topics.by_id(topic_id), numbers) for topic_id, numbers in target.items())
        partitions = {topic.name: numbers for topic, numbers in found if topic is not None}
        return classic.ClassicMember(
            member.member_id,
            said.instance_id,
            said.client_id,
            said.client_host,
            said.classic.session_timeout,
            said.rebalance_timeout,
            protocols,
            write_assignment(partitions, read_subscription(protocols[0].metadata).version),
        )


def _not_upgraded(group_id: str, reason: str) -> KafkaError:
    message = f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
    return KafkaError(ErrorCode.group_id_not_found, message)
