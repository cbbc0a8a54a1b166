"""How a share group gets from one group epoch to the next. Pure.

    look_at_topics     changed subscriptions, or changes of their topics, start a new group epoch
    compare_targets    so does a partition that has become assignable, or no longer is
    assign             if the group epoch is newer than the targets, compute targets for all members

A member takes its whole target at once, with a heartbeat: members of a share group may have
partitions in common, so none waits for another to give one up.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kbroker.groups.assignors.share import ASSIGNORS, AssignorMember
from kbroker.groups.outcome import Records
from kbroker.groups.share.messages import ShareGroupSettings, TopicsView
from kbroker.groups.share.state import (
    NO_PARTITIONS,
    ShareGroup,
    from_assignment,
    share_partitions,
    to_assignment,
)


class ShareRebalances:
    """`settings(group_id)` returns the current settings of a group. `count`: new group epochs since
    the start."""

    def __init__(self, settings: Callable[[str], ShareGroupSettings]) -> None:
        self._settings = settings
        self.count = 0

    def look_at_topics(
        self, group: ShareGroup, topics: TopicsView, records: Records, *, subscription_changed: bool = False
    ) -> bool:
        """Start a new group epoch if a subscription or the topics behind the subscriptions have
        changed. True if one was started."""
        topics_hash = group.hash_topics(topics, self._settings(group.group_id).assignor)
        changed = subscription_changed or topics_hash != group.metadata_hash
        if changed:
            group.metadata_hash = topics_hash
            self._bump(group, records)
        return changed

    def compare_targets(self, group: ShareGroup, records: Records) -> None:
        """Start a new group epoch if the targets do not cover exactly the assignable partitions.
        Does nothing if new targets are due anyway."""
        if not group.must_compare_targets or group.assignment_pending:
            return
        group.must_compare_targets = False
        given_away = {partition for target in group.targets.values() for partition in from_assignment(target)}
        if given_away != set(share_partitions(group.assignable())):
            self._bump(group, records)

    def _bump(self, group: ShareGroup, records: Records) -> None:
        group.bump(records)
        self.count += 1

    def assign(self, group: ShareGroup, now_ms: int, records: Records) -> None:
        """Compute targets for the present group epoch, unless it has some."""
        if not group.assignment_pending:
            return
        assignable = group.assignable()
        ids: dict[str, list[UUID]] = {}
        for topic_id, part in assignable.items():
            ids.setdefault(part.name, []).append(topic_id)
        members = {
            member.member_id: AssignorMember(
                frozenset(topic_id for name in member.topic_names for topic_id in ids.get(name, ())),
                from_assignment(group.targets.get(member.member_id, NO_PARTITIONS)),
            )
            for member in group.members.values()
        }
        assignor = ASSIGNORS[self._settings(group.group_id).assignor]
        targets = assignor.assign(
            members, {topic_id: sorted(part.partitions) for topic_id, part in assignable.items()}
        )
        group.set_targets(
            {member_id: to_assignment(targets[member_id]) for member_id in members}, now_ms, records
        )
