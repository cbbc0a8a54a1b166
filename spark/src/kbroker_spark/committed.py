"""The partitions of a selection as a consumer with read_committed sees them: `lookup.look` with
last stable offsets and aborted transactions.

The log's end is fixed first. Then the state tells which logs may have transactions: the broker
stores that before the first one begins, so a later moment of the state misses none below that end.
While a broker runs, the two stores may be some milliseconds apart, or retention may take batches
that are being read; then the look is repeated. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kbroker.formats.state import MetaKey
from kbroker.formats.transactions import TransactionalLogKey
from kbroker.storage.spi import LogId, StateReader
from kbroker_spark.batch_groups import CorruptBatch
from kbroker_spark.data import DataDir
from kbroker_spark.errors import DataLoss, SourceError
from kbroker_spark.lookup import Partition, look
from kbroker_spark.offsets import TopicPartition
from kbroker_spark.options import ISOLATION, Selection
from kbroker_spark.transactions import Committed, LogTransactions, stored_snapshots

_ATTEMPTS = 5


class _Moved(Exception):
    """The log and the state that were read do not fit together."""


class CommittedLogs:
    """An object that is kept, as a stream does, reads what was appended since its last look."""

    def __init__(self) -> None:
        self._known: dict[LogId, LogTransactions] = {}
        self._life: bytes | None = None

    def look(
        self,
        directory: DataDir,
        selection: Selection,
        *,
        missing_ok: bool = False,
        with_damage: bool = False,
    ) -> dict[TopicPartition, Partition]:
        """As `lookup.look`, with `committed` of each partition. Raises SourceError, too, where
        damage hides how transactions ended."""
        for left in reversed(range(_ATTEMPTS)):
            found = look(directory, selection, missing_ok=missing_ok, with_damage=with_damage)
            try:
                return self._decided(directory, found, is_last=not left)
            except (_Moved, DataLoss):
                if not left:
                    raise
                directory.refresh()
        raise AssertionError("the last attempt returns or raises")

    def _decided(
        self, directory: DataDir, found: Mapping[TopicPartition, Partition], *, is_last: bool
    ) -> dict[TopicPartition, Partition]:
        directory.refresh_state()
        with directory.state().snapshot() as moment:
            known = self._taken(moment)
            may_have = set(_transactional(moment))
            begun = {
                partition: _begun(moment, each, known.get(each.log), is_last=is_last)
                for partition, each in found.items()
                if each.log in may_have
            }
        decided = {
            partition: replace(each, committed=_read(directory, partition, each, begun.get(partition)))
            for partition, each in found.items()
        }
        self._known = {found[partition].log: each for partition, each in begun.items()}
        return decided

    def _taken(self, moment: StateReader) -> dict[LogId, LogTransactions]:
        """The known transactions, which no call after an error may use. After a power cut, a start
        of the broker may find shorter logs, which then grow again with other batches."""
        known, before = self._known, self._life
        self._known, self._life = {}, moment.get(MetaKey("generation").encode())
        return known if self._life == before else {}


def _begun(
    moment: StateReader, each: Partition, known: LogTransactions | None, *, is_last: bool
) -> LogTransactions:
    """The transactions up to some offset, from which the log is to be read."""
    if known is not None and not each.bounds.start <= known.offset <= each.bounds.end:
        known = None
    if known is not None and not known.has_open:
        return known
    snapshots = stored_snapshots(moment, each.log)
    if max(snapshots, default=0) > each.bounds.end and not is_last:
        raise _Moved  # The broker has appended since. After a power cut the log stays behind.
    if known is not None and not known.lacks_an_end(each.bounds, snapshots):
        return known
    return LogTransactions.stored(moment, each.log, each.bounds, snapshots)


def _read(
    directory: DataDir, partition: TopicPartition, each: Partition, transactions: LogTransactions | None
) -> Committed:
    if transactions is None:
        return Committed(each.bounds.end)
    began_at = transactions.offset
    try:
        transactions.read(directory.logs(), each.log, each.bounds.end, str(partition))
    except CorruptBatch as error:
        raise _hidden(partition, str(error)) from error
    for first, end in each.damage:
        if began_at < end and first < each.bounds.end:
            raise _hidden(partition, f"offsets {first} to {end - 1} cannot be read")
    return transactions.committed(each.bounds.start)


def _transactional(moment: StateReader) -> Iterator[LogId]:
    """The logs that may have transactions."""
    for key, _ in moment.scan(TransactionalLogKey.namespace):
        found = TransactionalLogKey.parse(key[len(TransactionalLogKey.namespace) :])
        yield LogId(found.topic_id, found.partition)


def _hidden(partition: TopicPartition, reason: str) -> SourceError:
    return SourceError(
        f"{partition} cannot be read with {ISOLATION}=read_committed, as damage may hide how a "
        f"transaction ended: {reason}; look with kbroker storage inspect --check, restore a backup, or use "
        "read_uncommitted"
    )
