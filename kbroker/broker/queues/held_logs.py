"""The part of a log that share groups hold: the records that retention must not remove.

The topic config `kbroker.queue.retention` decides whether holds matter:

    time         retention.ms and retention.bytes alone decide, as in Kafka
    unfinished   they apply only to records that every share group has finished
    workqueue    likewise; and records that every share group has finished are removed soon,
                 whatever their age

A group holds a log from its lowest unfinished record on, according to its saved state: from its
start offset, or from a parked record below that. A kept record (kept_records.py) holds nothing. A
group whose start is undecided holds the whole log, unless it begins at the end
(share.auto.offset.reset=latest). Deleted groups and consumer groups hold nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.queues.parked_left import first_parked
from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.persister import Persister, ReadRequest, TopicPartition
from kbroker.storage.spi import SegmentInfo

_UNDECIDED = -1
_NO_LEADER_EPOCH = -1
_ROLL_FROM_BYTES = 1 << 20
"""A finished active segment is removed from this size on: a new segment for each job would cost
more."""


class LogHold(NamedTuple):
    """The offset from which a group holds a log, and the offset from which its window holds it
    (None: its start is undecided)."""

    offset: int
    window_from: int | None


class Holdings(NamedTuple):
    """The groups that hold a log, in the order of their offsets.

    - `holders`: by group, the offset from which it holds the log
    - `held_bytes`: how many bytes would soon be removed without that group
    - `together_bytes`: likewise, without that group and those with lower offsets"""

    holders: Mapping[str, int]
    held_bytes: Mapping[str, int]
    together_bytes: Mapping[str, int]


NOTHING_HELD: Final = Holdings({}, {}, {})


class HeldLogs:
    """`stores`: the commits of all stores that the persister may use. `groups_of(partition)`: the
    groups with share state of it. `reset_policy(group_id)`: where a group begins."""

    def __init__(
        self,
        persister: Persister,
        stores: Sequence[GroupCommit[Any]],
        groups_of: Callable[[TopicPartition], Iterable[str]],
        reset_policy: Callable[[str], str],
    ) -> None:
        self._persister = persister
        self._stores = stores
        self.groups_of = groups_of
        self._reset_policy = reset_policy
        self._known: WeakKeyDictionary[Partition, Holdings] = WeakKeyDictionary()

    async def holders(self, partition: Partition) -> dict[str, int]:
        """By group, the offset from which it holds the log, according to durable state. Raises
        KafkaError for state that cannot be read, NoSpace and StoreFailed."""
        return {group_id: hold.offset for group_id, hold in (await self.holds(partition)).items()}

    def known(self, partition: Partition) -> Holdings:
        """As of the last check by retention; empty where holds do not matter."""
        return self._known.get(partition, NOTHING_HELD)

    def note(self, partition: Partition, holdings: Holdings) -> None:
        self._known[partition] = holdings

    async def holds(self, partition: Partition) -> dict[str, LogHold]:
        """Raises the errors of holders()."""
        key = TopicPartition(*partition.log)
        windows = {
            group_id: await self._window_from(group_id, key, partition) for group_id in self.groups_of(key)
        }
        found = {group_id: hold for group_id, hold in windows.items() if hold is not None}
        if found:
            # The holds may depend on writes under way: a commit behind them succeeds only if they
            # do. Only then is every record that has left the window, unfinished, readable as a
            # parked one.
            for commits in self._stores:
                await commits.commit([])
                await commits.flush()
        rows, begins_at = self._persister.waiting_rows, partition.log_start_offset
        for group_id, (offset, window_from) in found.items():
            # The lowest parked record that only the log has.
            parked = (
                None
                if rows is None
                else await first_parked(rows, group_id, key, begins_at, lambda each: not each.kept)
            )
            held_from = offset if parked is None else min(offset, parked.offset)
            found[group_id] = LogHold(max(held_from, partition.log_start_offset), window_from)
        return found

    async def _window_from(self, group_id: str, key: TopicPartition, partition: Partition) -> LogHold | None:
        (summary,) = await self._persister.read_summary(group_id, [ReadRequest(key, _NO_LEADER_EPOCH)])
        if summary.code is not ErrorCode.none:
            raise KafkaError(summary.code, summary.message)
        if summary.start_offset <= _UNDECIDED:
            begins_at_end = summary.start_offset == _UNDECIDED and self._reset_policy(group_id) == "latest"
            return None if begins_at_end else LogHold(partition.log_start_offset, None)
        held_from = max(summary.start_offset, partition.log_start_offset)
        if summary.stands_from is not None:
            held_from = summary.stands_from(held_from).first_open
        return LogHold(held_from, held_from)


def has_removable(segments: Sequence[SegmentInfo]) -> bool:
    """Whether anything could be removed if all records were finished."""
    return len(segments) > 1 or segments[0].size_bytes >= _ROLL_FROM_BYTES


def holdings_of(
    segments: Sequence[SegmentInfo],
    start: int,
    holders: Mapping[str, int],
    visible_end: int,
    *,
    removes_finished: bool,
) -> Holdings:
    """Parameters as for queue_log_start(). Only the group with the lowest offset holds bytes
    alone."""
    in_order = sorted(holders, key=lambda group_id: holders[group_id])
    if not in_order:
        return NOTHING_HELD
    ends = (min(each, visible_end) for each in (*(holders[group_id] for group_id in in_order), visible_end))
    begins, *would_begin = (
        queue_log_start(segments, start, end, removes_finished=removes_finished) for end in ends
    )
    sizes = [
        sum(segment.size_bytes for segment in segments if begins <= segment.base_offset < each)
        for each in would_begin
    ]
    alone = dict.fromkeys(in_order, 0) | {in_order[0]: sizes[0]}
    return Holdings(
        {group_id: holders[group_id] for group_id in in_order}, alone, dict(zip(in_order, sizes, strict=True))
    )


def queue_log_start(
    segments: Sequence[SegmentInfo], start: int, held_from: int | None, *, removes_finished: bool
) -> int:
    """The new log start, if retention requests `start` and share groups hold the log from
    `held_from` on (None: no group does, and retention alone decides). `removes_finished`: true for
    a work queue."""
    if held_from is None:
        return start
    finished = segments[0].base_offset
    for segment in segments:
        if segment.end_offset > held_from or (
            segment is segments[-1] and segment.size_bytes < _ROLL_FROM_BYTES
        ):
            break
        finished = segment.end_offset
    if removes_finished:
        return finished
    boundaries = [*(segment.base_offset for segment in segments), segments[-1].end_offset]
    return max(offset for offset in boundaries if offset <= max(boundaries[0], min(start, held_from)))
