"""The state of every share-partition as a broker would load it, from the state store or the topics'
logs, depending on the persister.

A state that cannot be read becomes a row with a problem and does not affect others. Must not know
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final, NamedTuple
from uuid import UUID

from kbroker.formats.control_records import has_share_state
from kbroker.formats.parked_records import BY_OFFSET, by_offset_key, end_of, offset_of_key, record_by_offset
from kbroker.formats.state import (
    PERSISTER,
    ControlHint,
    ControlHintKey,
    PersisterName,
    ShareStateKey,
    parse_key,
    share_state_number,
)
from kbroker.share.effects import StateBatch
from kbroker.share.lag import UNKNOWN, ParkedLeft, Standing, saved_standing, what_is_left
from kbroker.share.parked import Parked
from kbroker.share.persister import TopicPartition
from kbroker.share.record_state import RecordState
from kbroker.share_state.loading import ShareState, load
from kbroker.share_state.parked import parked_of, prefix_of, stored_left, stored_within
from kbroker.storage.spi import LogId, LogReader, StateReader
from kbroker_spark.control_log import control_batches, read_groups
from kbroker_spark.data import DataDir
from kbroker_spark.errors import SourceError
from kbroker_spark.offsets import Bounds

STATE_NAMES: Final = {int(state): state.name.lower() for state in RecordState}
_DEFAULT: Final = "default"
_CONTROL_RECORDS: Final = "control-records"
_NOOP: Final = "noop"
_NUMBER_BYTES: Final = 8
_PIECE: Final = 10_000


class SharePartition(NamedTuple):
    """`state` is None if it cannot be read; `problem` says why. `batches` are merged, in offset
    order."""

    group: str
    log: LogId
    state: ShareState | None
    batches: tuple[StateBatch, ...]
    problem: str | None


class Wanted(NamedTuple):
    """The requested groups and topics; None means all."""

    groups: frozenset[str] | None = None
    topic_ids: frozenset[UUID] | None = None

    def has(self, group: str, topic_id: UUID) -> bool:
        return (self.groups is None or group in self.groups) and (
            self.topic_ids is None or topic_id in self.topic_ids
        )


def persister_of(state: StateReader) -> str:
    """The name of the persister. Raises SourceError for a plugin, since only the plugin can find
    its state."""
    value = state.get(PERSISTER.encode())
    name = _DEFAULT if value is None else PersisterName.decode(value).name
    if name not in (_DEFAULT, _CONTROL_RECORDS, _NOOP):
        raise SourceError(
            f"share state is stored by the persister {name}, a plugin that only the broker can use: use its "
            "own tools"
        )
    return name


def keeps_control_records(state: StateReader) -> bool:
    return persister_of(state) == _CONTROL_RECORDS


def from_entries(state: StateReader, wanted: Wanted) -> Iterator[SharePartition]:
    """The share-partitions of the default persister, by topic id, partition and group."""
    for key, entries in share_entries(state, wanted):
        yield _loaded(key.group_id, LogId(key.topic_id, key.partition), entries)


def share_entries(
    state: StateReader, wanted: Wanted
) -> Iterator[tuple[ShareStateKey, list[tuple[bytes, bytes]]]]:
    """Each share-partition's stored entries, with the key of its snapshot."""
    for prefix, entries in groupby(
        state.scan(ShareStateKey.namespace), lambda entry: entry[0][:-_NUMBER_BYTES]
    ):
        key = parse_key(prefix + share_state_number(0))
        assert isinstance(key, ShareStateKey), "that is its namespace"
        if wanted.has(key.group_id, key.topic_id):
            yield key, list(entries)


def hints(state: StateReader, wanted: Wanted) -> Iterator[tuple[LogId, ControlHint]]:
    """The logs with share state in control records, and their hints."""
    for key, value in state.scan(ControlHintKey.namespace):
        parsed = parse_key(key)
        assert isinstance(parsed, ControlHintKey), "that is its namespace"
        if wanted.topic_ids is None or parsed.topic_id in wanted.topic_ids:
            yield LogId(parsed.topic_id, parsed.partition), ControlHint.decode(value)


def from_logs(
    logs: LogReader, found: Iterable[tuple[LogId, ControlHint]], wanted: Wanted
) -> Iterator[SharePartition]:
    """The share-partitions in control records, by topic id, partition and group. `found` has the
    hints of one snapshot."""
    for log, hint in found:
        try:
            groups = read_groups(logs, log, hint)
        except KeyError:
            continue  # The topic was deleted meanwhile.
        except ValueError as error:
            names = [group for group in sorted(hint.groups) if wanted.has(group, log.topic_id)]
            yield from (
                SharePartition(group, log, None, (), f"its control records cannot be read: {error}")
                for group in names
            )
            continue
        for group, entries, problem in groups:
            if wanted.has(group, log.topic_id):
                if problem is not None:
                    yield SharePartition(group, log, None, (), problem)
                else:
                    yield _loaded(
                        group, log, [(share_state_number(number), value) for number, value in entries]
                    )


def _loaded(group: str, log: LogId, entries: Iterable[tuple[bytes, bytes]]) -> SharePartition:
    try:
        state = load(entries)
    except ValueError as error:
        return SharePartition(group, log, None, (), f"the stored state cannot be read: {error}")
    assert state is not None, "there are entries"
    return SharePartition(group, log, state, state.merged_batches(), None)


def parked_of_state(state: StateReader, found: SharePartition, log_start: int) -> ParkedLeft:
    """The parked records that the log still has. Raises ValueError."""
    assert found.state is not None, "it could be read"
    partition = TopicPartition(found.log.topic_id, found.log.partition)
    return stored_left(state, found.group, partition, found.state.generation, log_start)


def parked_of_batches(data: DataDir, found: SharePartition) -> list[int]:
    """How many records of each batch are parked."""
    places = [each for each in found.batches if each.state == RecordState.ARCHIVED]
    if found.state is None or not found.state.generation or not places:
        return [0] * len(found.batches)
    what = found.group, TopicPartition(found.log.topic_id, found.log.partition), found.state.generation
    with data.state().snapshot() as moment:
        parked = {each: stored_within(moment, *what, each.first_offset, each.last_offset) for each in places}
    return [parked.get(each, 0) for each in found.batches]


def parked_records(data: DataDir, found: SharePartition) -> Iterator[Parked]:
    """All parked records by offset. There may be millions, so they are read in pieces, each from
    its own snapshot. Raises ValueError."""
    if found.state is None or not found.state.generation:
        return
    prefix = prefix_of(
        found.group, TopicPartition(found.log.topic_id, found.log.partition), found.state.generation
    )
    at, end = by_offset_key(prefix, 0), end_of(prefix + bytes((BY_OFFSET,)))
    while True:
        with data.state().snapshot() as moment:
            entries = list(islice(moment.scan_range(at, end), _PIECE)) if moment.keeps_keys_on_disk else []
        for key, value in entries:
            yield parked_of(record_by_offset(offset_of_key(key), value))
        if len(entries) < _PIECE:
            return
        at = entries[-1][0] + b"\0"


class LogView:
    """One log, for the calculation of lag: its bounds and the positions of its control records.
    Each control record is searched for once."""

    def __init__(self, logs: LogReader, log: LogId, bounds: Bounds, *, has_controls: bool) -> None:
        self.bounds, self._logs, self._log = bounds, logs, log
        self._known_from = bounds.end
        self._runs: list[tuple[int, int]] = []
        """[first, end) offsets of the control batches of share state."""
        self.has_controls = has_controls

    def controls_from(self, start: int) -> int:
        """The number of control records of share state from `start` on. They are not delivered, so
        they are not lag. (Markers of transactions count as finished, like records.) Raises
        ValueError for damage."""
        if start < self._known_from:
            batches = control_batches(self._logs, self._log, start, self._known_from)
            self._runs += [
                (max(header.base_offset, start), min(header.last_offset + 1, self._known_from))
                for view, position, header in batches
                if has_share_state(view, position, header)
            ]
            self._known_from = start
        return sum(end - max(first, start) for first, end in self._runs if end > start)

    def lag_of(self, found: SharePartition) -> int | None:
        """The lag that DescribeShareGroupOffsets returns; None where it returns -1.

        Raises ValueError for damage, KeyError for a deleted log."""
        state = found.state
        if state is None or state.start_offset == UNKNOWN or state.delivery_complete_count < 0:
            return None
        complete, own = state.delivery_complete_count, 0
        if self.has_controls:
            own = self.controls_from(max(state.start_offset, self.bounds.start))

        def stands_from(offset: int) -> Standing:
            first_open, done = saved_standing(found.batches, state.start_offset, complete, offset)
            return Standing(first_open, min(done, complete) + own)

        return what_is_left(state.start_offset, complete + own, *self.bounds, stands_from).lag


def state_name(number: int) -> str:
    return STATE_NAMES.get(number, f"state {number}")
