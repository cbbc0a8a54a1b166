"""The logs of the `control-records` persister: every topic partition whose control records it
knows, and which of them holds the state of a share-partition.

The share coordinator reads and writes (key, value) pairs as if they were in a state store. Here its
keys lead to chains of control records. The chains that it will read are loaded first, because a log
may have to be read in a thread, and the coordinator cannot wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.logs.partition import Partition
from kbroker.broker.logs.topics import Topics
from kbroker.errors import ErrorCode, KafkaError, NoSpace, StoreFailed
from kbroker.formats.parked_records import ParkedKey
from kbroker.formats.state import (
    ControlChain,
    GivenUpKey,
    ShareStateKey,
    parse_key,
    share_state_number,
)
from kbroker.share.persister import TopicPartition
from kbroker.share_state.control_chains import ShareChange
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.storage.spi import Change, StateReader
from kbroker_control_records.partition import ControlPartition

_ANY_NUMBER = share_state_number(0)
_BESIDE = (ParkedKey.namespace, GivenUpKey.namespace)
"""These are in the state store, with this persister too."""


@dataclass(frozen=True, slots=True)
class ControlRecordsStatistics:
    """`logs`: topic partitions whose control records are known. `scanned`: offsets that were
    searched for them."""

    logs: int
    groups: int
    scanned: int


class ControlLogs:
    def __init__(self, topics: Topics, store: StateReader, state: GroupCommit[Change]) -> None:
        self._topics = topics
        self._store = store
        self._state = state
        self._controls: dict[TopicPartition, ControlPartition] = {}
        self._read_ahead: dict[SharePartitionKey, tuple[ControlChain, list[tuple[int, bytes]]]] = {}
        self._asked: set[SharePartitionKey] = set()
        self._keys: dict[bytes, SharePartitionKey] = {}
        """Share-partitions with changes since the start, by the prefix of their keys, without
        deleted ones. (Mere reads add nothing: clients may ask for any name.)"""

    def statistics(self) -> ControlRecordsStatistics:
        controls = self._controls.values()
        groups = sum(len(control.chains.groups) for control in controls)
        return ControlRecordsStatistics(len(controls), groups, sum(control.scanned for control in controls))

    # -- finding

    def partition(self, key: TopicPartition) -> Partition | None:
        partition = self._topics.partition(*key)
        return None if partition is None or partition.deleted else partition

    def control(self, partition: Partition) -> ControlPartition:
        key = TopicPartition(*partition.log)
        control = self._controls.get(key)
        if control is None or control.partition is not partition:
            control = self._controls[key] = ControlPartition(partition, self._store, self._state)
        return control

    def deleted(self) -> list[TopicPartition]:
        return [key for key, control in self._controls.items() if control.partition.deleted]

    def forget(self, key: TopicPartition) -> None:
        del self._controls[key]
        self._asked = {each for each in self._asked if each.partition != key}
        self._keys = {prefix: each for prefix, each in self._keys.items() if each.partition != key}
        for each in [each for each in self._read_ahead if each.partition == key]:
            del self._read_ahead[each]

    # -- before the coordinator decides

    async def prepare(
        self, group_id: str, partitions: Iterable[TopicPartition], *, opens: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """Load all that the coordinator will read, and open every log that it may append to.
        Returns the failures by partition."""
        refused: dict[TopicPartition, KafkaError] = {}
        to_open: list[ControlPartition] = []
        for key in dict.fromkeys(partitions):
            partition = self.partition(key)
            if partition is None:
                continue  # The coordinator refuses it.
            control = self.control(partition)
            try:
                await control.load()
                await self._read_group_ahead(SharePartitionKey(group_id, key), control)
            except KafkaError as error:
                refused[key] = error
            except ValueError as error:
                refused[key] = KafkaError(
                    ErrorCode.unknown_server_error, f"The stored state cannot be read: {error}"
                )
            else:
                if not control.is_open and (opens or control.chains.chain(group_id) is not None):
                    to_open.append(control)
        try:
            await self.open(to_open)
        except (NoSpace, StoreFailed) as error:
            message = str(error)
            refused |= {
                TopicPartition(*each.partition.log): KafkaError(ErrorCode.coordinator_not_available, message)
                for each in to_open
            }
        return refused

    async def prepare_one(self, group_id: str, partition: TopicPartition) -> None:
        """prepare() for one share-partition. Raises its failure, a KafkaError."""
        if refused := await self.prepare(group_id, [partition]):
            raise refused[partition]

    async def open(self, controls: Sequence[ControlPartition]) -> None:
        """Must precede the first append to a log in this broker life. Durable on return, with
        durability `os` as well. Raises NoSpace, StoreFailed."""
        there = [control for control in controls if not control.partition.deleted]
        if there:
            await self._state.commit([control.open_hint() for control in there])
            await self._state.flush()
            for control in there:
                control.is_open = True

    async def _read_group_ahead(self, key: SharePartitionKey, control: ControlPartition) -> None:
        """Read ahead at the first request for a share-partition, because old records may be on a
        slow disk. Changes that are not saved yet cannot be read, and are in memory."""
        chain = control.chains.chain(key.group_id)
        if key not in self._asked and chain is not None and chain == control.chains.groups.get(key.group_id):
            try:
                self._read_ahead[key] = chain, await control.entries(key.group_id)
            except (KafkaError, ValueError):
                if chain == control.chains.chain(key.group_id):
                    # Otherwise the log's start has moved meanwhile, and the checkpoint that was
                    # rewritten before that is in memory.
                    raise
            self._asked.add(key)

    def forget_read_ahead(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._read_ahead.pop(SharePartitionKey(group_id, partition), None)

    # -- what the coordinator reads and writes

    def stored(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The share coordinator's scan of a share-partition. It also scans topics for
        share-partitions that are not in memory, which finds nothing here: state is removed together
        with its log."""
        if prefix.startswith(_BESIDE):
            yield from self._store.scan(prefix)
            return
        parsed = self._keys.get(prefix) or _parsed(prefix)
        control = None if parsed is None else self._controls.get(parsed.partition)
        if parsed is None or control is None:
            return
        chain, entries = self._read_ahead.pop(parsed, (None, []))
        # The chain has grown meanwhile, or nothing was read ahead.
        if chain != control.chains.chain(parsed.group_id):
            try:
                entries = control.entries_now(parsed.group_id)
            except StoreFailed as error:
                raise KafkaError(ErrorCode.unknown_server_error, str(error)) from error
        for number, value in entries:
            yield prefix + share_state_number(number), value

    def by_log(self, changes: Iterable[Change]) -> list[tuple[ControlPartition, list[ShareChange]]]:
        """The changes that each log has to record. Raises KafkaError for a deleted topic."""
        by_log: dict[TopicPartition, list[ShareChange]] = {}
        for encoded, value in changes:
            if encoded.startswith(_BESIDE) or (value is None and encoded[-8:] != _ANY_NUMBER):
                continue  # A checkpoint removes its deltas.
            key = self._key_of(encoded[:-8])
            by_log.setdefault(key.partition, []).append(
                (key.group_id, int.from_bytes(encoded[-8:], "big"), value)
            )
            if value is None:
                del self._keys[encoded[:-8]]
                self._asked.discard(key)
        found = [(self._controls[key], wanted) for key, wanted in by_log.items()]
        if any(control.partition.deleted for control, _ in found):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return found

    def _key_of(self, prefix: bytes) -> SharePartitionKey:
        key = self._keys.get(prefix) or _parsed(prefix)
        assert key is not None, "the share coordinator's changes are those of share-partitions"
        self._keys[prefix] = key
        return key

    # -- hints

    def closed_hints(self) -> list[Change]:
        hints = [control.closed_hint() for control in self._controls.values()]
        return [hint for hint in hints if hint is not None]

    def renewed_hints(self) -> list[Change]:
        hints = [control.renewed_hint(1) for control in self._controls.values()]
        return [hint for hint in hints if hint is not None]

    # -- offsets of control records

    async def know_own_offsets(self, key: TopicPartition, start_offset: int) -> None:
        """Make count_own_offsets() exact from `start` on. Raises KafkaError for a log that cannot
        be read."""
        partition = self.partition(key)
        if partition is not None:
            await self.control(partition).know_offsets(start_offset)

    def count_own_offsets(self, key: TopicPartition, start_offset: int) -> int:
        """How many offsets from `start` to the log's end are control records."""
        control = self._controls.get(key)
        return 0 if control is None else control.count_offsets(start_offset)

    async def count_own(self, key: TopicPartition, first: int, end: int) -> int:
        partition = self.partition(key)
        return 0 if partition is None else await self.control(partition).count_between(first, end)


def _parsed(prefix: bytes) -> SharePartitionKey | None:
    try:
        key = parse_key(prefix + _ANY_NUMBER)
    except ValueError:
        return None
    assert isinstance(key, ShareStateKey)
    return SharePartitionKey(key.group_id, TopicPartition(key.topic_id, key.partition))
